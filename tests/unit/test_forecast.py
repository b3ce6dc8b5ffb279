"""Offline predictions: against flow-by-flow prediction, against sums, and against what cannot be otherwise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.hashmodes import MODES, TE
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.host.preflight import frr_release
from heddle.kernel.fib import Fib, NextHop
from heddle.offline.forecast import Ask, forecast
from heddle.offline.loads import Scenario, carry, demand_of, nics_of, spread_evenly, traffic_of
from heddle.offline.result import Prediction
from heddle.offline.wires import (
    EVEN_SPLIT,
    HASHED,
    Wires,
    compared,
    forwarding_of,
    other_seeds,
    rule_of,
    rules_of,
    steering_of,
    trouble_of,
    wires_of,
)
from heddle.predict.predict import predict
from heddle.predict.rules import HashingRule
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import hashing_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from tests.answers import Answers

TWO: dict[str, Any] = {"racks": 3, "ctsw": 4, "hosts_per_rack": 3}
THREE: dict[str, Any] = {"zones": 3, "racks": 2, "ctsw": 3, "atsw": 2, "hosts_per_rack": 2}
UCMP: dict[str, Any] = {
    **TWO,
    "hosts_per_rack": 5,  # one slice goes twice over an uplink, so that its place in a group is seen
    "link": {"exceptions": {"ctsw2": "50mbit", "rtsw1:eth3": "10mbit"}},
    "routing": {"ucmp": True},
}
SHAPES: dict[str, dict[str, Any]] = {
    "two": TWO,
    "three": THREE,
    "ucmp": UCMP,
    "ipv6": {**THREE, "family": "ipv6"},
    "resilient": {**TWO, "hosts_per_rack": 5, "routing": {"resilient": True, "hash": {"buckets": 64}}},
    "options": {**THREE, "routing": {"hash": {"policy": "l3", "udf": {"base": "bth", "offset": 7, "bytes": 1}}}},
}


@cache
def fabric_of(shape: str) -> Fabric:
    return changed(shape)


def fibs_of(fabric: Fabric, wires: Wires) -> dict[str, Fib]:
    """What kernels would have, built from the routes that live labs are checked against, not from arrays."""
    fibs = {}
    forwarding = forwarding_of(wires, None, frr_release())
    for row, node in enumerate(fabric.switches):
        routes = {}
        for prefix, ports in fabric.expected_next_hops[node.name].items():
            names = [port.name for port in node.ports if port.name in ports]
            weights = dict.fromkeys(names, 1)
            if fabric.policy.routing.ucmp and prefix in fabric.edge_prefixes:
                rack = fabric.edge_of[fabric.edge_prefixes[prefix]] - 1
                group = int(forwarding.group[row, rack])
                part = slice(*forwarding.start[group : group + 2])
                refs = [wires.ports[at] for at in forwarding.member[part]]
                weights = {r.split(":")[1]: int(w) for r, w in zip(refs, forwarding.weight[part], strict=True)}
                names.sort(key=weights.__getitem__)
            routes[prefix] = tuple(NextHop(name, i, "", weights[name]) for i, name in enumerate(names))
        fibs[node.name] = Fib(node.name, routes)
    return fibs


def ask(shape: str, plan: str = "ring,qps=16", **keys: object) -> Prediction:
    return forecast(fabric_of(shape), load_workload(plan).workload, Ask(**keys), Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", HASHED)
@pytest.mark.parametrize("shape", SHAPES)
def test_ports_carry_what_flow_by_flow_prediction_says(shape: str, mode: str) -> None:
    fabric = fabric_of(shape)
    wires = wires_of(fabric)
    plan = build_plan(fabric, RunOptions(qps=5, placement="cyclic"))
    hashing = {node.name: hashing_of(fabric, node, mode) for node in fabric.switches}
    paths = predict(fabric, fibs_of(fabric, wires), hashing, plan.flows())
    wanted: dict[str, int] = {}
    for flow, path in zip(plan.flows(), paths, strict=True):
        nic = next(e.nic for e in plan.endpoints if e.host == flow.src)
        for port in (nic, *path):
            wanted[port] = wanted.get(port, 0) + 1
    found = forecast(fabric, load_workload("ring,qps=5,placement=cyclic").workload, Ask(mode=mode), Silent())
    flows = found.modes[0].flows
    assert flows is not None
    assert {port: round(count) for port, count in zip(found.wires.ports, flows, strict=True) if count} == wanted
    assert found.unreachable == 0


@pytest.mark.parametrize("down", [(), ("ctsw1",), ("rtsw1:eth1", "ctsw2:eth2")])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_bytes_that_enter_a_switch_leave_it(shape: str, down: tuple[str, ...]) -> None:
    found = ask(shape, "all-to-all,qps=3", down=down)
    wires = found.wires
    for mode in found.modes:
        out = np.bincount(wires.owner[wires.owner >= 0], weights=mode.bytes[wires.owner >= 0])
        into = np.bincount(wires.peer[wires.peer >= 0], weights=mode.bytes[wires.peer >= 0])
        assert into == pytest.approx(out), mode.mode
        sent = mode.bytes[wires.owner < 0].sum()
        assert sent == pytest.approx(mode.bytes[wires.direction == wires.direction.max()].sum())
        assert sent == pytest.approx(found.modes[0].bytes[wires.owner < 0].sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_an_even_split_is_what_spraying_every_flow_comes_to(shape: str) -> None:
    fabric = fabric_of(shape)
    wires, (traffic,) = wires_of(fabric), traffic_of(fabric, load_workload("all-to-all").workload)
    forwarding, nics = forwarding_of(wires), nics_of(wires, traffic)
    rules = rules_of(wires, HashingRule("spray", 1), steering_of(wires, forwarding), wires.seeds)
    sprayed = carry(wires, traffic, nics, [Scenario("spray", forwarding, rules)])[0]
    even = spread_evenly(wires, forwarding, demand_of(wires, traffic, nics, forwarding))
    assert even == pytest.approx(sprayed.bytes)
    assert sprayed.unreachable == 0


def test_splits_meet_the_roofline_which_may_be_a_cut() -> None:
    for shape in ("two", "three"):
        for plan in ("all-to-all", "permutation,qps=4", "shift:2"):
            found = ask(shape, plan)
            by_mode = {mode.mode: mode for mode in found.modes}
            assert by_mode["even split"].ratio == pytest.approx(1.0)
            assert all((mode.ratio or 0) > 1 - 1e-9 for mode in found.modes)
    # A roofline may be a cut and not a nic.
    fabric = changed("three", oversubscription=6.0)
    found = forecast(fabric, load_workload("shift:4").workload, Ask(), Silent())
    assert found.roofline.what.startswith("all links from zone")
    assert found.roofline.seconds > found.roofline.nic_s
    incast = ask("two", "incast:5")
    assert incast.roofline.what == "rtsw1:eth5"  # the one that receives; its rack has four uplinks
    assert incast.roofline.seconds == incast.roofline.nic_s


def changed(shape: str, **keys: object) -> Fabric:
    return build(ClosSpec.model_validate({"name": "small", **SHAPES[shape], **keys}))


def test_slices_are_dealt_over_uplinks_and_entropy_sees_source_ports() -> None:
    found = forecast(fabric_of("two"), load_workload("shift:3").workload, Ask(mode="pinned"), Silent())
    wires, flows = found.wires, found.modes[0].flows
    assert flows is not None
    # Each rank sends to its like in the next rack: NIC i of a rack over uplink i, so the fourth one idles.
    for rack in (1, 2, 3):
        assert [round(flows[wires.id_of[f"rtsw{rack}:eth{i}"]]) for i in (1, 2, 3, 4)] == [2, 2, 2, 0], "and a credit"
    # Entropy sees that a fixed source port hides queue pairs.
    free, fixed = (ask("two", f"ring,qps=16,sport={sport}") for sport in ("qpn", "fixed:4000"))
    assert free.entropy.distinct == free.entropy.flows == 9 * 16
    assert fixed.entropy.distinct == 9
    assert fixed.entropy.bits == pytest.approx(np.log2(9))


def test_entropy_is_that_of_the_fields_that_are_hashed(answers: Answers) -> None:
    """A source port for each QP does not help a hash that does not see it."""

    def entropy(routing: dict[str, object]) -> str:
        plan = load_workload("ring,qps=16,sport=qpn").workload
        found = forecast(changed("two", routing=routing), plan, Ask(), Silent()).entropy
        assert found.flows == 9 * 16 and found.bits == pytest.approx(np.log2(found.distinct))
        return found.text

    answers(entropy)


def test_with_many_inputs_of_a_hash_a_sample_of_them_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_workload("all-to-all,qps=64,sport=qpn").workload
    exact, few = (forecast(fabric_of("two"), load_workload(each).workload, Ask(), Silent()).entropy for each in (
        "all-to-all,qps=64,sport=qpn", "all-to-all,qps=64,sport=fixed:4000",
    ))  # fmt: skip
    monkeypatch.setattr("heddle.offline.forecast._DISTINCT", 1000)
    sampled = forecast(fabric_of("two"), plan, Ask(), Silent()).entropy
    assert exact.distinct > 4000 and sampled.distinct == pytest.approx(exact.distinct, rel=0.2)
    assert sampled.bits == pytest.approx(exact.bits, abs=0.1)
    again = forecast(fabric_of("two"), load_workload("all-to-all,qps=64,sport=fixed:4000").workload, Ask(), Silent())
    assert again.entropy == few, "few inputs of many flows are counted exactly"


def test_what_is_down_or_drained_carries_nothing() -> None:
    found = ask("three", "all-to-all", down=("ctsw1", "rtsw2"))
    wires = found.wires
    dead = [at for at, port in enumerate(wires.ports) if port in found.trouble.dead]
    for mode in found.modes:
        assert not mode.bytes[dead].any()
    ranks, gone = 12, 2
    assert found.unreachable == 2 * gone * (ranks - gone) + gone
    assert "host1:eth1 to host3:eth1" in found.named
    assert "rtsw2:eth1" not in {row["port"] for row in found.links()}
    # A drained switch carries no transit and all hosts stay reachable.
    found = ask("three", "all-to-all,qps=4", drain=("ctsw2",))
    switch = wires.switch_id["ctsw2"]
    for mode in found.modes:
        assert not mode.bytes[wires.owner == switch].any()
    assert found.unreachable == 0


def test_without_routes_flows_are_named_and_only_traffic_inside_racks_is_carried() -> None:
    every = tuple(f"ctsw{n}" for n in range(1, 5))
    found = ask("two", "all-to-all", down=every, trials=1)
    assert found.unreachable == 9 * 6
    loads = found.modes[0].bytes
    assert loads.sum() == 2 * loads[found.wires.direction == 0].sum() > 0
    assert all(mode.seconds == found.roofline.seconds for mode in found.modes)


def test_resilient_groups_move_only_what_has_to_and_weighted_ones_are_never_resilient() -> None:
    found = ask("two", "all-to-all,qps=16", down=("ctsw3",))
    moved = found.moved
    assert moved is not None
    assert moved.moved["resilient"] == moved.lost["resilient"] > 0
    assert moved.moved["threshold"] > 1.2 * moved.lost["threshold"]
    # One of four next hops is gone: a quarter of what leaves its rack.
    assert moved.lost["threshold"] / moved.flows == pytest.approx(0.25 * 6 / 8, abs=0.06)
    # Weighted groups are never resilient.
    moved = ask("ucmp", "all-to-all,qps=4", down=("ctsw3",)).moved
    assert moved is not None
    assert list(moved.moved) == ["threshold"]


def test_trials_are_the_same_each_time_and_shared_seeds_stay_shared() -> None:
    one, same, more = (ask("three", trials=n).modes[0].trials for n in (5, 5, 9))
    assert one == same != more
    assert set(one) == {"ratio", *(f"mmr {d}" for d in range(6))}
    assert one["ratio"].p5 <= one["ratio"].mean <= one["ratio"].p95
    # Seeds that were shared stay shared in every trial.
    seeds = np.array([7, 7, 9, 7], dtype=np.uint32)
    for trial in range(1, 5):
        drawn = other_seeds(seeds, trial)
        assert drawn[0] == drawn[1] == drawn[3] != drawn[2]
        assert (drawn != other_seeds(seeds, trial + 1)).all()
    assert (other_seeds(seeds, 0) == seeds).all()


def test_a_mode_is_that_of_the_file_and_a_rule_that_of_a_live_switch() -> None:
    assert compared("e-ecmp")[:3] == ["e-ecmp", "flow", "pinned"]
    assert set(compared("e-ecmp")) == {*HASHED, TE, EVEN_SPLIT}
    assert compared("spray")[0] == compared("flowlet")[0] == "even split"
    assert compared("exact-match")[0] == "e-ecmp"
    assert ask("two", mode="pinned").modes[0].mode == "pinned"
    assert "spray has no fixed path" in ask("two", mode="spray").notes[0]
    # A rule is that of a live switch.
    fabric = fabric_of("two")
    from heddle.predict.predict import rule_of as live

    for mode in MODES:
        node = next(n for n in fabric.switches if n.level == 1)
        assert rule_of(fabric.policy, mode) == live(hashing_of(fabric, node, mode))


def test_traffic_engineering_is_best_until_links_are_fewer_than_flows() -> None:
    fabric = build(ClosSpec.model_validate({"name": "te", "racks": 2, "ctsw": 8, "hosts_per_rack": 8}))

    def times(plan: str, **keys: object) -> dict[str, float]:
        found = forecast(fabric, load_workload(plan).workload, Ask(**keys), Silent())  # type: ignore[arg-type]
        return {mode.mode: round(mode.ratio or 0.0, 3) for mode in found.modes}

    whole, parts = (times(f"shift:8,qps={qps}") for qps in (1, 16))
    assert whole[TE] == parts[TE] == 1.0 < parts["e-ecmp"] < whole["e-ecmp"]
    whole, parts = (times(f"shift:8,qps={qps}", down=("rtsw1:eth1",)) for qps in (1, 16))
    # The published order reversed: two whole flows share an uplink, and small ones share seven.
    assert whole[TE] == round(2 * 7 / 8, 3) > parts["e-ecmp"] > parts[TE] > 1
    assert times("shift:8,qps=1", down=("rtsw1:eth1",), mode="te") == whole


def test_te_reaches_the_even_split_or_nearly_and_is_left_out_for_many_flows() -> None:
    for shape, plan in (
        ("three", "all-to-all,qps=4"),
        ("ipv6", "ring,qps=16,placement=cyclic"),
        ("two", "permutation"),
    ):
        modes = {mode.mode: mode for mode in ask(shape, plan).modes}
        assert (modes[TE].ratio or 0) <= 1.05 * (modes["even split"].ratio or 0) <= (modes["e-ecmp"].ratio or 0) * 1.05
    found = forecast(fabric_of("two"), load_workload("all-to-all,qps=128").workload, Ask(), Silent())
    assert TE not in {mode.mode for mode in found.modes}
    assert "te is left out, because it needs longer for 9,216 flows: --mode te computes it" in found.notes


def test_shared_seeds_polarise_in_a_prediction_too() -> None:
    shared = changed("three", routing={"seed": "shared", "ecmp": "e-ecmp"}, ctsw=2, atsw=2)
    found = forecast(shared, load_workload("all-to-all,qps=16").workload, Ask(), Silent())
    flows = found.modes[0].flows
    assert flows is not None
    tops = np.flatnonzero(found.wires.direction == 2)
    assert (flows[tops] == 0).sum() == len(tops) // 2  # each CTSW uses one of its two uplinks
    apart = changed("three", routing={"ecmp": "e-ecmp"}, ctsw=2, atsw=2)
    flows = forecast(apart, load_workload("all-to-all,qps=16").workload, Ask(), Silent()).modes[0].flows
    assert flows is not None and flows[tops].all()


def test_down_and_drain_name_what_is_there() -> None:
    fabric = fabric_of("two")
    with pytest.raises(InputError) as caught:
        trouble_of(fabric, ["rtsw9", "rtsw1:eth99", "ctsw1"], ["host1", "cstw2"])
    assert [p.what for p in caught.value.problems] == [
        "--down rtsw9", "--down rtsw1:eth99", "--drain host1", "--drain cstw2",
    ]  # fmt: skip
    assert trouble_of(fabric, ["rtsw1:eth2"], []).dead == {"rtsw1:eth2", "ctsw2:eth1"}
