"""Properties of tests in JUnit XML: names, units, and when they are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from heddle.host.saturation import Cause
from heddle.proof.linkuse import LinkUse
from heddle.testing.junit import fabric_properties, paths_properties, run_properties
from tests.unit.run_samples import result
from tests.unit.test_assertions import SKEWED, paths, proof

DOC = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
RUN = {
    "r.id": "0003", "r.collective": "all-reduce", "r.ecmp": "e-ecmp", "r.ranks": "4", "r.qps": "16",
    "r.sizes": "65536,4194304", "r.busbw": "0.0225", "r.busbw.65536": "0.015", "r.busbw.4194304": "0.03",
    "r.wrong": "0", "r.reliable": "true", "r.packets": "16", "r.marked": "0", "r.dropped": "2", "r.pauses": "5",
    "r.paused_ms": "12.5", "r.deepest": "60000", "r.deepest_at": "rtsw1:eth3 class 3",
}  # fmt: skip


def test_a_run_has_its_options_and_what_came_of_it() -> None:
    run = replace(result(), run_id="0003")
    assert dict(run_properties("r", run)) == RUN
    # One size has one bandwidth; a marked packet and one that the host's sockets lost count; so does a busy host.
    flow = replace(run.flows[0], ce=4)
    busy = replace(run.machine, socket_drops=3, unreliable=(Cause("processor", None, 0, sure=True, text="busy"),))
    found = dict(run_properties("r", replace(run, rows=run.rows[:1], flows=(flow,), machine=busy)))
    assert (found["r.busbw"], found["r.marked"], found["r.packets"]) == ("0.015", "4", "7")
    assert (found["r.dropped"], found["r.reliable"]) == ("5", "false")
    assert "r.busbw.65536" not in found
    assert "r.dropped" not in dict(run_properties("r", replace(run, queues=None)))


def test_paths_have_the_proof_the_mmr_and_a_load_for_each_uplink() -> None:
    found = dict(paths_properties("r", paths(proof(1), links=SKEWED)))
    assert (found["r.paths_agree"], found["r.mmr"], found["r.mmr_flows"]) == ("true", "1.75", "1.75")
    assert (found["r.uplink.rtsw1:eth3.bytes"], found["r.uplink.rtsw1:eth3.flows"]) == ("3500", "14")
    assert len([name for name in found if name.startswith("r.uplink.")]) == 8, "two of each: no rate is known"
    timed = LinkUse("rtsw1:eth3", True, 10, 1_000_000, 4, rate_bps=20_000_000, run_s=0.8)
    assert dict(paths_properties("r", paths(links=(timed,))))["r.uplink.rtsw1:eth3.utilisation"] == "0.5000"
    idle = dict(paths_properties("r", paths(proof(1, (), "lost"), links=(LinkUse("rtsw1:eth3", True, 0, 0, 0),))))
    assert idle["r.paths_agree"] == "false"
    assert "r.mmr" not in idle


def test_the_fabric_is_named_where_it_is_known() -> None:
    assert list(fabric_properties("netns", 4000)) == [("heddle.runtime", "netns"), ("heddle.k", "4000")]
    assert dict(fabric_properties("netns", 4000, "tiny, racks=3"))["heddle.fabric"] == "tiny, racks=3"


def test_every_property_is_in_the_manual() -> None:
    text = DOC.read_text(encoding="utf-8")
    named = [*dict(fabric_properties("netns", 1, "tiny")), *(name.replace("r.", "heddle.runN.", 1) for name in RUN)]
    named = [name.replace("busbw.65536", "busbw.SIZE") for name in named if not name.endswith("busbw.4194304")]
    named += [f"heddle.runN.{name}" for name in ("paths_agree", "mmr", "mmr_flows", "no_paths")]
    named += [f"heddle.runN.uplink.PORT.{name}" for name in ("bytes", "flows", "utilisation")]
    assert [name for name in named if f"`{name}`" not in text] == []
