"""Values that can be computed by hand: MMR without some links, rooflines, moved flows, and rows of counters."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.lab.snapshot import NodeSnapshot, Snapshot
from heddle.offline.forecast import Ask, forecast
from heddle.offline.result import Percentiles, Prediction
from heddle.offline.wires import EVEN_SPLIT
from heddle.predict.predict import predict
from heddle.predict.statistics import EVEN, UNEVEN
from heddle.predict.walk import ports_of
from heddle.proof import collect
from heddle.proof.collect import refusal, rows_of
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import rows_for
from heddle.switch.hashing.hashing import hashing_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from tests.unit.test_paths_report import fibs

TWO: dict[str, Any] = {"racks": 3, "ctsw": 4, "hosts_per_rack": 3}
THREE: dict[str, Any] = {"zones": 2, "racks": 2, "ctsw": 3, "atsw": 2, "hosts_per_rack": 2}
EIGHT: dict[str, Any] = {
    "racks": 8, "ctsw": 4, "hosts_per_rack": 4,
    "link": {"exceptions": {f"ctsw1:eth{n}": "10mbit" for n in range(2, 6)}},
}  # fmt: skip
ZONES: dict[str, Any] = {
    "zones": 2, "racks": 4, "ctsw": 4, "atsw": 3, "hosts_per_rack": 4,
    "link": {"exceptions": {"ctsw1:eth2": "10mbit", "atsw2:eth4": "20mbit", "ctsw5": "50mbit"}},
}  # fmt: skip


def ask(shape: dict[str, Any], plan: str, **keys: Any) -> Prediction:
    spec = ClosSpec.model_validate({"name": "small", **shape})
    return forecast(build(spec), load_workload(plan).workload, Ask(**keys), Silent())


@pytest.mark.parametrize("key", ["down", "drain"])
def test_links_that_are_gone_are_no_part_of_the_mean(key: str) -> None:
    """Zone 1 has 2 CTSWs of 3 left: 1/4 of its load on a link to ATSWs; zone 2 has 1/6, the mean is 1/5."""
    for gone, mmr in ((("ctsw1", "ctsw4"), 1), (("ctsw1",), 5 / 4)):
        found = ask(THREE, "all-to-all", **{key: gone})
        (even,) = (mode for mode in found.modes if mode.mode == EVEN_SPLIT)
        assert even.mmr[1] == even.mmr[2] == pytest.approx(mmr)


def test_mmr_counts_links_that_live_in_racks_with_ranks() -> None:
    found = ask({**TWO, "ctsw": 1}, "incast:3")  # ranks 1, 2 and 3; rank 3 is alone in rack 2 and sends to rack 1
    assert found.modes[0].mmr[1] == pytest.approx(3, rel=1e-3)  # credits go the other way
    # Links of racks without ranks are no part of the mean: Ranks in two racks of eight: what the idle racks' uplinks do
    # not carry makes nothing uneven.
    shape = {"racks": 8, "ctsw": 2, "hosts_per_rack": 2}
    found = ask(shape, "ring,ranks=4")
    (even,) = (mode for mode in found.modes if mode.mode == EVEN_SPLIT)
    names = {found.wires.direction_name(d): value for d, value in even.mmr.items()}
    assert names["RTSW to CTSW"] == names["CTSW to RTSW"] == pytest.approx(1)
    ranked = {row["port"] for row in found.to_json()["links"] if row["ranked"] and row["port"].startswith("rtsw")}
    assert {port.partition(":")[0] for port in ranked} == {"rtsw1", "rtsw2"}


def test_the_use_of_a_link_is_its_time_over_that_of_the_busiest() -> None:
    """As for a run (heddle/proof/linkuse.py), with the completion in place of the run's time."""
    found = ask({**TWO, "link": {"exceptions": {"rtsw1:eth1": "10mbit"}}}, "shift:3")
    rows = found.to_json()["links"]
    assert max(row["utilisation"] for row in rows) == 1
    for row in rows:
        assert row["utilisation"] == pytest.approx(
            row["bytes"] * 8 / row["rate_bps"] / found.modes[0].seconds, abs=1e-5
        )


def test_a_narrow_rack_is_a_roofline_and_a_wide_one_beside_it_does_not_hide_it() -> None:
    uplinks = {f"rtsw1:eth{n}": "10mbit" for n in range(1, 5)}
    found = ask({**TWO, "link": {"exceptions": uplinks}}, "shift:3")
    carried = found.modes[0].bytes[found.wires.id_of["host4:eth1"]] * 3  # what three NICs of a rack send
    assert found.roofline.what == "all uplinks of rtsw1"
    assert found.roofline.seconds == pytest.approx(carried * 8 / (4 * 10e6))


def test_flows_that_had_to_move_are_those_over_the_dead_link_at_any_hop() -> None:
    before = ask(THREE, "all-to-all,qps=8").modes[0].flows
    found = ask(THREE, "all-to-all,qps=8", down=("rtsw1:eth1",))
    assert before is not None
    assert found.moved is not None
    at = [found.wires.id_of[port] for port in ("rtsw1:eth1", "ctsw1:eth1")]
    assert found.moved.lost["threshold"] == before[at].sum() > 0
    assert found.unreachable == 0


@pytest.mark.parametrize(("down", "local"), [(("rtsw2",), 0), (("rtsw2:eth1", "rtsw2:eth2", "rtsw2:eth3"), 2)])
def test_flows_without_a_path_now_count_as_not_moved(down: tuple[str, ...], local: int) -> None:
    moved = ask(THREE, "all-to-all,qps=8", down=down).moved
    assert moved is not None
    assert (moved.moved, moved.lost) == ({"threshold": 0, "resilient": 0},) * 2
    assert moved.flows == (6 * 5 + local) * 8


def predicted(shape: dict[str, Any], seed: str | int, *, ucmp: bool) -> Prediction:
    return ask({**shape, "routing": {"ucmp": ucmp, "seed": seed}}, "all-to-all,qps=16")


@pytest.mark.parametrize("seed", ["per-switch", 7, 8])
def test_a_fair_hash_over_weighted_paths_is_even_if_weights_differ_between_racks(seed: str | int) -> None:
    found = predicted(EIGHT, seed, ucmp=True).evenness[1]
    assert found.verdict == EVEN
    assert found.degrees == 8 * 3
    assert found.flows == 32 * 28 * 16


def test_weights_do_not_hide_polarisation_and_without_them_narrow_links_get_as_much() -> None:
    assert {d: e.verdict for d, e in predicted(ZONES, "per-switch", ucmp=True).evenness.items()} == {1: EVEN, 2: EVEN}
    assert {d: e.verdict for d, e in predicted(ZONES, "shared", ucmp=True).evenness.items()} == {1: EVEN, 2: UNEVEN}
    # Without weights narrow links get as many flows as others.
    assert predicted(EIGHT, "per-switch", ucmp=False).evenness[1].verdict == EVEN
    # Evenness is not judged where links are gone.
    assert ask(TWO, "all-to-all,qps=16").evenness
    assert not ask(TWO, "all-to-all,qps=16", down=("ctsw1",)).evenness
    # Trials are summarised by mean and percentiles.
    assert Percentiles.of([float(n) for n in range(101)]) == Percentiles(mean=50, p5=5, p95=95)
    assert Percentiles.of([3.0]) == Percentiles(3, 3, 3)


def fabric_of(preset: str) -> Fabric:
    return load_fabric(preset).fabric


def plan_of(fabric: Fabric, qps: int) -> Plan:
    return build_plan(fabric, RunOptions(collective="all-to-all", qps=qps))


@pytest.mark.parametrize("preset", ["tiny", "zone", "dc", "rail"])
@pytest.mark.parametrize("mode", ["flow", "spray"])
def test_a_plan_needs_a_row_at_each_port_of_each_path_and_as_many_for_the_answers(preset: str, mode: str) -> None:
    fabric = fabric_of(preset)
    flows = [qp.flow for qp in plan_of(fabric, 2).qps]
    hashing = {switch.name: hashing_of(fabric, switch, mode) for switch in fabric.switches}
    paths = predict(fabric, fibs(fabric), hashing, flows)
    assert all(paths)
    rows = 2 * sum(len(ports_of(step)) for path in paths for step in path)
    assert rows_of(fabric, flows, spread=mode == "spray") == rows


@pytest.mark.parametrize("preset", ["tiny", "demo", "zone", "rail"])
def test_a_lab_has_room_for_the_maximum_of_queue_pairs_in_every_mode(preset: str) -> None:
    fabric = fabric_of(preset)
    for spread in (False, True):
        assert refusal(fabric, plan_of(fabric, 128), holds=rows_for(fabric), spread=spread) is None


@pytest.mark.parametrize(
    ("mode", "options", "fits"),
    [
        ("flow", HashOptions(), True),
        ("e-ecmp", HashOptions(), True),
        ("spray", HashOptions(), False),
        ("e-ecmp", HashOptions(udf=Udf("bth", 9, 3)), False),  # the PSN
        ("flow", HashOptions(udf=Udf("bth", 9, 3)), True),  # this mode does not hash it
    ],
)
def test_a_run_is_refused_if_its_packets_spread_over_more_rows_than_there_are(
    mode: str, options: HashOptions, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = fabric_of("tiny")
    plan = plan_of(fabric, 2)
    rows = {node.name: hashing_of(fabric, node, mode, options, 1) for node in fabric.switches}
    nodes = {name: NodeSnapshot(name, hashing=row) for name, row in rows.items()}
    lab = SimpleNamespace(fabric=fabric, snapshot=lambda parts: Snapshot("tiny", parts, nodes))
    monkeypatch.setattr(collect, "room", lambda _: rows_of(fabric, plan.flows(), spread=False))
    with nullcontext() if fits else pytest.raises(InputError, match="rows of the switches' counters, but tiny has"):
        collect.check_room(lab, plan)
