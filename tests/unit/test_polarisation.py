"""Polarisation is named where two tiers choose by the same rule, and only there: uneven is not polarised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.polarisation import Polarisation, polarisation, synthetic_flows
from heddle.spec.routingspec import RoutingSpec
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing
from tests.marks import deep


def fabric_of(k: int, seed: str = "per-switch", zones: int = 2) -> Fabric:
    """A fabric that is not up, with k uplinks at each of its two tiers that have any."""
    routing = RoutingSpec(seed=seed)  # type: ignore[arg-type]
    return build(ClosSpec(name="k", zones=zones, racks=2, ctsw=k, atsw=k if zones > 1 else None, routing=routing))


def fibs_of(fabric: Fabric, dead: tuple[str, ...] = (), weights: tuple[int, ...] = ()) -> dict[str, Fib]:
    """What the kernels would have, with some ports dead and members of groups weighted."""
    found = {}
    for node in fabric.switches:
        order = {port.name: index for index, port in enumerate(node.ports, 2)}
        routes = {}
        for prefix, names in fabric.expected_next_hops[node.name].items():
            ports = sorted(names, key=order.__getitem__)
            each = weights if len(weights) == len(ports) else (1,) * len(ports)
            routes[prefix] = tuple(
                NextHop(port, order[port], "169.254.0.1", weight, f"{node.name}:{port}" in dead)
                for port, weight in zip(ports, each, strict=True)
            )
        found[node.name] = Fib(node.name, routes)
    return found


def asked(fabric: Fabric, mode: str = "e-ecmp", count: int | None = 4096, **fibs: tuple[object, ...]) -> Polarisation:
    policy = 3 if mode == "flow" else 1
    hashing = {n.name: SwitchHashing(n.name, mode, n.hash_seed or 1, policy, 0x37) for n in fabric.switches}
    return polarisation(fabric, fibs_of(fabric, **fibs), hashing, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["flow", "e-ecmp"])
@pytest.mark.parametrize("k", [2, 4])
def test_with_shared_seeds_each_ctsw_uses_one_of_its_k_uplinks(mode: str, k: int) -> None:
    found = asked(fabric_of(k, "shared"), mode)
    ctsws = [pair for pair in found.pairs if pair.switch.startswith("ctsw")]
    assert len(ctsws) == 2 * k
    for pair in ctsws:
        assert (pair.used, pair.next_hops) == (1, k)
        assert pair.polarised
        assert pair.dependence.bits == pytest.approx(k // 2, abs=0.02), "log2 of k: one choice tells the other"


@pytest.mark.parametrize("seed", ["per-switch", "per-tier"])
@pytest.mark.parametrize("mode", ["flow", "e-ecmp"])
@pytest.mark.parametrize("k", [2, 4])
def test_with_other_seeds_at_each_tier_all_are_used(seed: str, mode: str, k: int) -> None:
    found = asked(fabric_of(k, seed), mode)
    assert {pair.switch for pair in found.pairs} == {
        *(f"ctsw{c}" for c in range(1, 2 * k + 1)), *(f"atsw{a}" for a in range(1, k + 1)),
    }  # fmt: skip
    for pair in found.pairs:
        assert pair.used == pair.next_hops
        assert not pair.polarised
        assert pair.dependence.bits < 0.02


def test_the_message_has_the_numbers() -> None:
    pair = asked(fabric_of(2, "shared")).pairs[0]
    assert pair.text() == (
        f"ctsw1 uses 1 of its 2 next hops: {pair.before} and switches like it have already sorted the flows by the "
        f"same rule ({pair.dependence.bits:.2f} bits of mutual information over {pair.dependence.flows} flows, "
        f"{pair.dependence.by_chance:.4f} by chance)"
    )
    assert pair.before in {"rtsw1", "rtsw2"}
    assert pair.to_json()["polarised"] is True


def test_uneven_is_not_polarised() -> None:
    """Weights of 1 to 9 at both tiers, and a CTSW with a dead uplink: far from even, and independent."""
    found = asked(fabric_of(2), weights=(1, 9))
    assert found.pairs
    assert not any(pair.polarised for pair in found.pairs)
    found = asked(fabric_of(4), dead=("ctsw1:eth3", "ctsw1:eth4", "rtsw1:eth1"))
    assert {pair.next_hops for pair in found.pairs if pair.switch == "ctsw1"} == {2}
    assert not any(pair.polarised for pair in found.pairs)


def test_weighted_groups_that_hash_alike_are_polarised_all_the_same() -> None:
    found = asked(fabric_of(2, "shared"), weights=(1, 3))
    assert all(pair.polarised for pair in found.pairs if pair.switch.startswith("ctsw"))


def test_one_switch_with_the_seed_of_those_before_it_is_found() -> None:
    fabric = fabric_of(4, "per-tier")
    hashing = {n.name: SwitchHashing(n.name, "e-ecmp", n.hash_seed or 1, 1, 0x37) for n in fabric.switches}
    hashing["ctsw2"] = replace(hashing["ctsw2"], seed=hashing["rtsw1"].seed)
    found = polarisation(fabric, fibs_of(fabric), hashing)
    assert [pair.switch for pair in found.pairs if pair.polarised] == ["ctsw2"]


def test_too_few_flows_give_no_verdict() -> None:
    found = asked(fabric_of(4, "shared"), count=24)
    assert found.pairs
    assert all(pair.too_few and not pair.polarised for pair in found.pairs)


def test_two_tiers_have_nothing_to_polarise() -> None:
    found = asked(fabric_of(4, "shared", zones=1))
    assert found.pairs == ()
    assert found.reason.startswith("no flow passes two switches that choose")


def test_spread_packets_follow_no_choice() -> None:
    found = asked(fabric_of(2, "shared"), "spray")
    assert found.pairs == ()
    assert "spread" in found.reason


def test_the_synthetic_flows_are_the_same_every_time_and_cross_zones() -> None:
    fabric = fabric_of(2)
    flows = synthetic_flows(fabric, 500)
    assert flows == synthetic_flows(fabric, 500)
    assert len(flows) == len(set(flows)) == 500
    assert all(fabric.by_name[flow.src].group("zone") != fabric.by_name[flow.dst].group("zone") for flow in flows)
    lone = build(ClosSpec(name="one", racks=1, ctsw=2))
    assert synthetic_flows(lone, 5) == []


def test_a_trifle_is_real_and_not_named() -> None:
    """One rack of eight hashes as its CTSW does: seven in eight of what comes is independent."""
    fabric = build(ClosSpec(name="k", zones=2, racks=8, ctsw=2, atsw=2, hosts_per_rack=1))
    nodes = tuple(
        replace(node, hash_seed=fabric.by_name["rtsw1"].hash_seed) if node.name == "ctsw1" else node
        for node in fabric.nodes
    )
    (pair,) = (each for each in asked(replace(fabric, nodes=nodes)).pairs if each.switch == "ctsw1")
    assert pair.dependence.verdict == "dependent"
    assert 0 < pair.share < 0.1
    assert not pair.polarised


@pytest.mark.parametrize(("k", "zones"), [(16, 4), deep(32, 2)])
def test_wide_fabrics_get_as_many_flows_as_a_verdict_takes(k: int, zones: int) -> None:
    for seed in ("shared", "per-switch"):
        found = asked(fabric_of(k, seed, zones), count=None)
        assert len(found.pairs) == zones * k + k
        assert all(pair.polarised == (seed == "shared") and not pair.too_few for pair in found.pairs)
