"""heddle.testing: what its assertions accept, the exact text of each failure, and properties in JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.host.saturation import Cause
from heddle.lab.queues import AgentRow, QueueRow, QueuesResult, Reactions
from heddle.proof.linkuse import LinkUse, Mmr
from heddle.proof.measure import Count, Measured
from heddle.proof.verdict import Arrivals, FlowProof, PathsResult
from heddle.runs.results import RunResult
from heddle.testing import (
    assert_busbw_above,
    assert_depth_below,
    assert_lossless,
    assert_marked_below,
    assert_mmr_below,
    assert_no_pauses,
    assert_no_wrong,
    assert_paths_agree,
    assert_reliable,
)
from heddle.testing.junit import fabric_properties, paths_properties, run_properties
from tests.unit.run_samples import result, sent

PREDICTED = ("rtsw1:eth3", "ctsw1:eth2", "rtsw2:eth1")
OTHER = ("rtsw1:eth4", "ctsw2:eth2", "rtsw2:eth1")


def proof(qpn: int, measured: tuple[str, ...] = PREDICTED, why: str = "", *, trusted: bool = True) -> FlowProof:
    steps = tuple((Count(port, 7, 900),) for port in measured)
    return FlowProof(sent(qpn), PREDICTED if trusted else None, PREDICTED, Measured(steps, (), 7), why)


def uplinks(loads: Mapping[str, tuple[int, int]]) -> tuple[LinkUse, ...]:
    """Port -> flows and bytes."""
    return tuple(LinkUse(port, True, size // 100, size, flows) for port, (flows, size) in loads.items())


EVEN = uplinks({f"rtsw{n}:eth{p}": (8, 1000) for n in (1, 2) for p in (3, 4)})
SKEWED = uplinks({"rtsw1:eth3": (14, 3500), "rtsw1:eth4": (2, 500), "rtsw2:eth3": (8, 2000), "rtsw2:eth4": (8, 2000)})


def paths(*proofs: FlowProof, links: tuple[LinkUse, ...] = EVEN, lost: Mapping[str, int] | None = None) -> PathsResult:
    agree = all(not each.why for each in proofs)
    return PathsResult(agree, proofs, links, Mmr.of(links), {}, "rtsw", lost or {}, (), delivery=Arrivals.of(proofs))


def queue(port: str, drops: Mapping[str, int]) -> QueueRow:
    return QueueRow(
        port, 3, "lossless", 0, 90_000, 10_000, 40_000_000, 0, 0, drops, 0, 0, 0, 0, 0, 0, 0, 0, False, 0.0, "ok", 0,
        quiet=False,
    )  # fmt: skip


def queues(*rows: QueueRow) -> QueuesResult:
    return QueuesResult("t1", 4000, rows, (), (), Reactions(0, 0, 0), AgentRow(1, 2), {})


def calm() -> RunResult:
    """A run without marks, drops and pauses."""
    found = result()
    assert found.queues is not None
    use = replace(found.queues, marks=0, drops={}, pauses=0, paused_ports=0, paused_hosts=0, paused_ms=0.0)
    return replace(found, queues=use, run_id="0002")


def busy() -> RunResult:
    """The run of the samples on a machine that was too slow, with marked packets and a wrong element."""
    found = result()
    causes = (Cause("processor", 1 << 16, 1, sure=True, text="CPU 1 was busy 99% of the time"),)
    flows = tuple(replace(flow, ce=at) for at, flow in enumerate(found.flows))
    rows = (*found.rows[:1], replace(found.rows[1], wrong=12))
    machine = replace(found.machine, unreliable=causes, socket_drops=3)
    return replace(found, flows=flows, rows=rows, machine=machine, run_id="0003")


def test_a_good_result_passes() -> None:
    good = paths(proof(1), proof(2))
    assert_paths_agree(good)
    assert_mmr_below(good, 1.0)
    assert_mmr_below(good, 1.0, by="flows")
    run = calm()
    for subject in (good, queues(queue("rtsw1:eth3", {})), run):
        assert_lossless(subject)
    assert_no_wrong(run)
    assert_busbw_above(run, 0.0225)  # the mean of 0.015 and 0.03: limits are inclusive
    assert_busbw_above(run, 0.03, size=1 << 22)
    assert_marked_below(run, 0)
    assert_depth_below(run, 60_000)
    assert_no_pauses(run)
    assert_reliable(run)


CASES: Mapping[str, Callable[[], None]] = {
    "paths that differ": lambda: assert_paths_agree(
        paths(proof(1), proof(2, OTHER, "the counters name other ports"), proof(3, trusted=False))
    ),
    "paths without a prediction": lambda: assert_paths_agree(
        replace(paths(proof(3, OTHER, "the counters name other ports", trusted=False)), sources=("oracle", "counters"))
    ),
    "many paths that differ": lambda: assert_paths_agree(paths(*(proof(n, (), "was not counted") for n in range(9)))),
    "a verdict that the notes explain": lambda: assert_paths_agree(
        replace(paths(proof(1)), agree=False, notes=("hashing was switched during the run on rtsw1",))
    ),
    "MMR of bytes": lambda: assert_mmr_below(paths(proof(1), links=SKEWED), 1.4),
    "MMR of flows": lambda: assert_mmr_below(paths(proof(1), links=SKEWED), 1.4, by="flows"),
    "MMR where nothing was sent": lambda: assert_mmr_below(paths(links=uplinks({"rtsw1:eth3": (0, 0)})), 1.4),
    "drops of a run": lambda: assert_lossless(replace(result(), run_id="0001")),
    "drops of queues": lambda: assert_lossless(
        queues(queue("rtsw1:eth3", {"headroom": 12, "threshold": 5}), queue("ctsw1:eth1", {"lost": 40}))
    ),
    "losses on paths": lambda: assert_lossless(paths(proof(1), lost={"ctsw1:eth2": 3})),
    "losses at NICs": lambda: assert_lossless(
        replace(paths(proof(1)), delivery=Arrivals(qps=1, counted=7, received=5))
    ),
    "wrong elements": lambda: assert_no_wrong(busy()),
    "bandwidth": lambda: assert_busbw_above(calm(), 0.05),
    "bandwidth of one size on a busy machine": lambda: assert_busbw_above(busy(), 0.05, size=1 << 22),
    "a size that was not run": lambda: assert_busbw_above(calm(), 0.05, size=12),
    "marks": lambda: assert_marked_below(busy(), 0.01),
    "depth": lambda: assert_depth_below(calm(), "50KB"),
    "pauses": lambda: assert_no_pauses(result()),
    "a busy machine": lambda: assert_reliable(busy()),
}


def test_each_failure_says_what_was_expected_and_observed_and_where(golden: Callable[[str, str], None]) -> None:
    texts = []
    for name, case in CASES.items():
        with pytest.raises(AssertionError) as caught:
            case()
        texts.append(f"--- {name}\n{caught.value}\n")
        assert max(map(len, str(caught.value).splitlines())) <= 100
    golden("testing/failures.txt", "\n".join(texts))


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
