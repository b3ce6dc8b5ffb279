"""Evenness, dependence, entropy, the arithmetic of chance; and polarisation where tiers choose by one rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.forwarding import FlowArrays
from heddle.predict.polarisation import Polarisation, polarisation, synthetic_flows
from heddle.predict.rules import HashingRule
from heddle.predict.statistics import (
    DEPENDENT,
    EVEN,
    INDEPENDENT,
    TOO_FEW,
    UNEVEN,
    Evenness,
    chi_square_p,
    dependence,
    entropy_bits,
    entropy_of,
    evenness_of_groups,
    max_over_mean,
)
from heddle.spec.routingpolicy import RoutingPolicy
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing
from tests.marks import deep


def evenness(counts: Any, weights: Any = None, **options: float) -> Evenness:
    return evenness_of_groups([(counts, weights)], **options)


@pytest.mark.parametrize(
    ("value", "degrees", "p"),
    [(3.841459, 1, 0.05), (10.827566, 1, 0.001), (15.507313, 8, 0.05), (29.588298, 10, 0.001), (124.342113, 100, 0.05)],
)
def test_chi_square_is_as_in_the_printed_tables(value: float, degrees: int, p: float) -> None:
    assert chi_square_p(value, degrees) == pytest.approx(p, rel=1e-5)


def test_mmr_of_nothing_is_unknown_and_fair_dice_are_even() -> None:
    assert max_over_mean([0, 0]) is None
    assert max_over_mean([]) is None
    assert max_over_mean([3, 1]) == 1.5
    # Fair dice are even and loaded ones are not.
    random = np.random.default_rng(2)
    fair = np.bincount(random.integers(0, 6, 6000), minlength=6)
    assert evenness(fair).verdict == EVEN
    assert evenness(fair).degrees == 5
    assert evenness([1400, *[920] * 5]).verdict == UNEVEN


def test_weights_make_links_due_to_more() -> None:
    counts = [1010, 1990]
    assert evenness(counts).verdict == UNEVEN
    weighted = evenness(counts, [1, 2])
    assert weighted.verdict == EVEN
    assert weighted.mmr == pytest.approx(1.010 * 2 / (1.010 + 0.995))
    # One link that hardly anything is due to makes a test worthless.
    weights = [0.001, *[1.0] * 5]
    assert evenness([0, *[100] * 5], weights).verdict == TOO_FEW
    assert evenness([1, *[100] * 5], [0.03, *[1.0] * 5]).verdict == EVEN


@pytest.mark.parametrize("counts", [[0, 0, 0], [16], [4, 0], [16, 0, 0, 0, 0, 0, 0, 0], [7, 2]])
def test_too_few_flows_are_neither_even_nor_uneven(counts: list[int]) -> None:
    assert evenness(counts).verdict == TOO_FEW


def test_the_error_rate_of_a_verdict_is_as_stated() -> None:
    random = np.random.default_rng(3)
    wrong = sum(evenness(random.multinomial(400, [1 / 8] * 8), alpha=0.05).verdict == UNEVEN for _ in range(2000))
    assert 60 < wrong < 140


def test_each_switch_costs_a_degree_of_freedom_and_an_idle_one_all_of_its() -> None:
    result = evenness_of_groups([([50, 50, 50, 50], None), ([20, 30], None), ([0, 0, 0], None)])
    assert result.degrees == 3 + 1
    assert result.chi_square == pytest.approx(2.0)
    assert result.links == 9


def test_choices_are_independent_dependent_or_too_few() -> None:
    random = np.random.default_rng(4)
    result = dependence(random.integers(0, 4, 4000), random.integers(0, 4, 4000))
    assert result.verdict == INDEPENDENT
    assert result.degrees == 9
    assert result.bits < 4 * result.by_chance
    # A choice that repeats the last one is dependent and tells all its bits.
    first = np.arange(4000) % 4
    result = dependence(first, first * 7)
    assert result.verdict == DEPENDENT
    assert result.bits == pytest.approx(2.0)
    # Few flows say nothing about dependence.
    assert dependence([0, 1, 2, 3], [0, 1, 2, 3]).verdict == TOO_FEW
    assert dependence([0] * 500, [1] * 500).verdict == TOO_FEW
    assert dependence([], []).verdict == TOO_FEW


def test_entropy_counts_what_a_hash_can_tell_apart() -> None:
    assert entropy_bits([1, 1, 1, 1]) == 2.0
    assert entropy_bits([4, 0]) == 0.0
    four = np.full(4, 1, dtype=np.uint32)
    ports = np.array([49152, 49152, 49153, 49152], dtype=np.uint32)
    inputs = HashingRule().inputs(FlowArrays(four, four, ports, four * np.uint32(4791), np.arange(4, dtype=np.uint32)))
    assert inputs is not None
    seen = entropy_of(inputs)
    assert (seen.flows, seen.distinct) == (4, 2)
    assert seen.bits == pytest.approx(entropy_bits([3, 1]))


def test_information_by_chance_is_what_independent_choices_show() -> None:
    random = np.random.default_rng(3)
    found = [dependence(random.integers(0, 4, 500), random.integers(0, 4, 500)) for _ in range(300)]
    assert found[0].by_chance == pytest.approx(9 / (1000 * math.log(2)))
    assert np.mean([each.bits for each in found]) == pytest.approx(found[0].by_chance, rel=0.1)


def fabric_of(k: int, seed: str = "per-switch", zones: int = 2) -> Fabric:
    """A fabric that is not up, with k uplinks at each of its two tiers that have any."""
    routing = RoutingPolicy(seed=seed)  # type: ignore[arg-type]
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


def asked(
    fabric: Fabric, mode: str = "e-ecmp", count: int | None = 4096, fields: int = 0x37, **fibs: tuple[object, ...]
) -> Polarisation:
    policy = 3 if mode == "flow" else 1
    hashing = {n.name: SwitchHashing(n.name, mode, n.hash_seed or 1, policy, fields) for n in fabric.switches}
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
        f"same rule ({pair.dependence.bits:.2f} bits of mutual information over {pair.dependence.flows} distinct hash "
        f"inputs, {pair.dependence.by_chance:.4f} by chance)"
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
    alike = asked(fabric_of(2, "shared"), weights=(1, 3))
    assert all(pair.polarised for pair in alike.pairs if pair.switch.startswith("ctsw")), "weights do not hide it"


def test_one_switch_with_the_seed_of_those_before_it_is_found() -> None:
    fabric = fabric_of(4, "per-tier")
    hashing = {n.name: SwitchHashing(n.name, "e-ecmp", n.hash_seed or 1, 1, 0x37) for n in fabric.switches}
    hashing["ctsw2"] = replace(hashing["ctsw2"], seed=hashing["rtsw1"].seed)
    found = polarisation(fabric, fibs_of(fabric), hashing)
    assert [pair.switch for pair in found.pairs if pair.polarised] == ["ctsw2"]


def test_few_flows_give_no_verdict_and_two_tiers_have_nothing_to_polarise() -> None:
    found = asked(fabric_of(4, "shared"), count=24)
    assert found.pairs
    assert all(pair.too_few and not pair.polarised for pair in found.pairs)
    # Two tiers have nothing to polarise.
    found = asked(fabric_of(4, "shared", zones=1))
    assert found.pairs == ()
    assert found.reason.startswith("no flow passes two switches that choose")
    # Spread packets follow no choice.
    found = asked(fabric_of(2, "shared"), "spray")
    assert found.pairs == ()
    assert "spread" in found.reason


@pytest.mark.parametrize("fields", [0x3, 0x2, 0x1])  # both addresses, destination, source
def test_flows_that_hash_alike_count_once(fields: int) -> None:
    """Thousands of flows over a few pairs of addresses are few observations: no verdict, and never a false one."""
    random = np.random.default_rng(4)
    for hosts in (2, 8):
        fabric = build(ClosSpec(name="dc", zones=2, racks=2, hosts_per_rack=hosts, ctsw=2, atsw=2))
        for _ in range(5):
            seeds = random.integers(1, 1 << 32, len(fabric.nodes))
            nodes = tuple(replace(n, hash_seed=int(seed)) for n, seed in zip(fabric.nodes, seeds, strict=True))
            found = asked(replace(fabric, nodes=nodes), "flow", fields=fields)
            assert not any(pair.polarised for pair in found.pairs)
            assert max(pair.dependence.flows for pair in found.pairs) <= 2 * (2 * hosts) ** 2
            assert hosts == 8 or all(pair.too_few for pair in found.pairs if pair.switch.startswith("ctsw"))
    spec = ClosSpec(name="dc", zones=2, racks=2, hosts_per_rack=8, ctsw=2, atsw=2, routing=RoutingPolicy(seed="shared"))
    shared = asked(build(spec), "flow", fields=0x3)
    assert {pair.dependence.flows for pair in shared.pairs if pair.polarised} == {256}


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
