"""The walk over arrays, and the hashing of switches: fans, steering, fall-backs, and modes that reorder packets."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import numpy as np
import pytest

from heddle.base.problems import CheckError
from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import MODES, kernel_policy, sysctls
from heddle.fabric.shapes import build
from heddle.kernel.fib import NextHop
from heddle.lab.rehash import label_of
from heddle.predict import walk as engine
from heddle.predict.forwarding import FlowArrays, Forwarding, forwarding_of
from heddle.predict.rules import FabricRules, HashingRule, SteeringTables, exact_keys, steering_like
from heddle.predict.walk import Hops, walk
from heddle.proof import oracle
from heddle.runs.run import reordering
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.routingpolicy import DEFAULT_OPTIONS, HashOptions, Udf
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.switch.hashing.maps import Exact, PrefixRule, Steering, steering_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan

LEAVES = 2
SEEDS = {f"leaf{i}": 11 + i for i in range(LEAVES)} | {f"spine{i}": 21 + i for i in range(6)}


def clos(weights: tuple[int, ...] = (1, 1, 1), dead: tuple[int, ...] = ()) -> Forwarding:
    """Two leaves, a spine for each weight; a destination is a leaf. dead: uplinks of leaf0 that are down."""
    spines = len(weights)
    names = list(SEEDS)[: LEAVES + spines]
    ports = [f"leaf{leaf}:up{spine}" for leaf in range(LEAVES) for spine in range(spines)]
    ports += [f"spine{spine}:down{leaf}" for spine in range(spines) for leaf in range(LEAVES)]
    ports += [f"leaf{leaf}:host" for leaf in range(LEAVES)]
    peer = [LEAVES + spine for _ in range(LEAVES) for spine in range(spines)]
    peer += [leaf for _ in range(spines) for leaf in range(LEAVES)] + [-1] * LEAVES
    groups: list[tuple[list[int], list[int], bool]] = []
    table = np.full((len(names), LEAVES), -1, dtype=np.int32)

    def group(members: list[int], shares: list[int]) -> int:
        groups.append((members, shares, False))
        return len(groups) - 1

    for leaf in range(LEAVES):
        alive = [spine for spine in range(spines) if leaf or spine not in dead]
        table[leaf, 1 - leaf] = group([leaf * spines + spine for spine in alive], [weights[spine] for spine in alive])
        table[leaf, leaf] = group([ports.index(f"leaf{leaf}:host")], [1])
        for spine in range(spines):
            table[LEAVES + spine, leaf] = group([ports.index(f"spine{spine}:down{leaf}")], [1])
    return forwarding_of(names, ports, peer, table, groups)


def some(count: int) -> FlowArrays:
    chance = np.random.default_rng(3)
    address = 0x0A000000 + chance.integers(1, 200, count).astype(np.uint32)
    port = np.full(count, 4791, dtype=np.uint32)
    sport = (0xC000 + chance.integers(0, 1000, count)).astype(np.uint32)
    return FlowArrays(
        address, address + np.uint32(256), sport, port, chance.integers(2, 1 << 24, count).astype(np.uint32)
    )


def go(
    forwarding: Forwarding, rule: HashingRule, count: int, steering: SteeringTables | None = None, **keys: Any
) -> Hops:
    """Flows from leaf0 to leaf1."""
    rules = FabricRules.of(forwarding.switches, rule, SEEDS, steering)
    to = np.ones(count, dtype=np.int32)
    return walk(forwarding, rules, some(count), to, np.zeros(count, dtype=np.int32), **keys)


@pytest.mark.parametrize(
    "rule", [HashingRule(), HashingRule("flow", 1), HashingRule("flow", 0), HashingRule("e-ecmp", 1)]
)
def test_a_flows_path_does_not_depend_on_other_flows(rule: HashingRule, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = go(clos(), rule, 500)
    assert whole.ports.shape == (500, 3) and not whole.fan.any()
    monkeypatch.setattr(engine, "BLOCK", 64)  # hashed in blocks of another size
    assert (go(clos(), rule, 500).ports == whole.ports).all()
    assert (go(clos(), rule, 100).ports.shape) == (100, 3)
    used = np.bincount(whole.ports[:, 0], minlength=3)[:3]
    assert used.min() > 100 if rule.policy else used.min() > 0


@pytest.mark.parametrize("mode", ["spray", "flowlet", "adaptive"])
def test_a_fan_spreads_by_weight_and_merges_again(mode: str) -> None:
    forwarding = clos((1, 2, 5))
    hops = go(forwarding, HashingRule(mode, 1), 40)
    assert hops.fan[:, 0].all() and hops.fan[:, 1].all() and not hops.fan[:, 2].any()
    assert [len(step.flow) for step in hops.steps] == [120, 120, 40]
    load = dict(zip(forwarding.ports, hops.load(np.full(40, 8.0), len(forwarding.ports)).tolist(), strict=True))
    assert [load[f"leaf0:up{i}"] for i in range(3)] == [40.0, 80.0, 200.0]
    assert [load[f"spine{i}:down1"] for i in range(3)] == [40.0, 80.0, 200.0]
    assert load["leaf1:host"] == 320.0


def test_a_field_that_differs_makes_a_fan_and_the_oracle_rounds_as_the_kernel() -> None:
    assert go(clos(), HashingRule("e-ecmp", 1, udf=Udf("bth", 9, 3)), 5).fan[:, 0].all()
    assert not go(clos(), HashingRule("e-ecmp", 1, udf=Udf("l4", 0, 2)), 5).fan.any()
    # The oracle rounds a share as the kernel does: A third of 2^31 is 715827882.67: the first of three has 715827883
    # values, the last of them 715827882.
    hops = [NextHop(port, at, "") for at, port in enumerate("abcd", 1)]
    three = [hops[0], replace(hops[1], dead=True), *hops[2:]]
    values = (0, 715827882, 715827883, 1431655764, 1431655765, (1 << 31) - 1)
    assert [oracle._by_threshold(three, value) for value in values] == [
        ("a",), ("a",), ("c",), ("c",), ("d",), ("d",)
    ]  # fmt: skip
    heavy = [replace(hops[0], weight=2), hops[1]]
    assert [oracle._by_threshold(heavy, value) for value in (1431655764, 1431655765)] == [("a",), ("b",)]


def test_pinned_takes_the_member_of_its_slice_and_the_hash_where_that_is_dead() -> None:
    slices = np.arange(60, dtype=np.int32) % 7
    whole = go(clos(), HashingRule("pinned", 1), 60, steering_like(clos()), slices=slices).ports[:, 0]
    assert whole.tolist() == (slices % 3).tolist()
    degraded = clos(dead=(1,))
    rest = go(degraded, HashingRule("pinned", 1), 60, steering_like(clos()), slices=slices).ports[:, 0]
    hashed = go(degraded, HashingRule("e-ecmp", 1), 60).ports[:, 0]
    assert (rest == np.where(slices % 3 == 1, hashed, whole)).all()
    with pytest.raises(ValueError, match="slice of each destination"):
        go(clos(), HashingRule("pinned", 1), 60, steering_like(clos()))


def test_resilient_hashing_moves_what_used_the_dead_and_nothing_else_at_each_failure_and_return() -> None:
    rule, equal = HashingRule("e-ecmp", 1, resilient=True, buckets=256), (1,) * 6
    homes = steering_like(clos(equal))
    before, down = go(clos(equal), rule, 3000, homes).ports[:, 0], set[int]()
    for port in (1, 4, 0, 4, 3, 1, 0, 3):  # down or, the second time, up
        down ^= {port}
        after = go(clos(equal, tuple(down)), rule, 3000, homes).ports[:, 0]
        moved = before != after
        assert ((before if port in down else after)[moved] == port).all()
        assert port not in down or (before[~moved] != port).all()
        share = np.bincount(after, minlength=6) / 3000
        assert all(abs(share[at] - (at not in down) / (6 - len(down))) < 0.05 for at in range(6))
        before = after
    assert (before == go(clos(equal), rule, 3000, homes).ports[:, 0]).all()
    threshold = (
        go(clos(), HashingRule("e-ecmp", 1), 3000).ports[:, 0],
        go(clos(dead=(1,)), HashingRule("e-ecmp", 1), 3000).ports[:, 0],
    )
    # RFC 2992: of three, losing the middle one moves its third, and a sixth on either side of it to the other.
    assert 0.30 < (threshold[0] != threshold[1]).mean() < 0.37
    # Where there is nothing to steer over resilient hashing is plain hashing.
    like = steering_like(clos())
    nothing = replace(like, group=np.full_like(like.group, -1))
    resilient = go(clos(), HashingRule("e-ecmp", 1, resilient=True), 300, nothing).ports
    assert (resilient == go(clos(), HashingRule("e-ecmp", 1), 300).ports).all()


@pytest.mark.parametrize("dead", [(), (1,), (1, 2)], ids=["all live", "port dead", "port and backup dead"])
def test_exact_entries_are_by_switch_destination_and_source_port(dead: tuple[int, ...]) -> None:
    forwarding = clos(dead=dead)
    like = steering_like(forwarding)
    flows = some(400)
    named = np.unique(flows.sport)[:50]
    zeros, ones = np.zeros(len(named), dtype=np.int32), np.ones(len(named), dtype=np.int32)
    keys = exact_keys(zeros, ones, named, 2)
    ports = np.array([(at % 3, (at + 1) % 3) for at in range(len(named))], dtype=np.int32)  # the next one is the backup
    tables = SteeringTables(
        like.group, like.start, like.member, like.slot_start, like.slot, exact_key=keys, exact_port=ports
    )
    went = go(forwarding, HashingRule("exact-match", 1), 400, tables).ports[:, 0]
    hashed = go(forwarding, HashingRule("e-ecmp", 1), 400).ports[:, 0]
    table = dict(zip(named.tolist(), ports.tolist(), strict=True))
    for sport, port, other in zip(flows.sport.tolist(), went.tolist(), hashed.tolist(), strict=True):
        assert port == next((each for each in table.get(sport, ()) if each not in dead), other)


def test_a_walk_ends_without_a_route_and_a_rule_that_is_not_modelled_is_named() -> None:
    forwarding = clos(dead=(0, 1, 2))
    assert go(forwarding, HashingRule(), 4).ports.shape == (4, 0)
    rules = FabricRules.of(clos().switches, HashingRule("mode 9"), SEEDS)
    one = np.ones(1, dtype=np.int32)
    with pytest.raises(CheckError, match="leaf0 hashes by mode 9"):
        walk(clos(), rules, some(1), one, np.zeros(1, dtype=np.int32))
    assert walk(clos(), rules, some(1), one, one).ports.shape == (1, 1), (
        "where nothing is to be chosen it does not matter"
    )
    nowhere = walk(clos(), rules, some(1), one, np.full(1, -1, dtype=np.int32))
    assert nowhere.ports.shape == (1, 0)


FABRIC = build(ClosSpec(name="a", racks=3, ctsw=4, hosts_per_rack=3))


def test_options_are_what_the_file_says_and_survive_the_record() -> None:
    settings = [
        "hash.gap=500us",
        "hash.udf={base: l4, offset: 0, bytes: 2}",
        "hash.fields=[src, dst]",
        "resilient=true",
    ]
    spec = load_fabric(
        "tiny", overrides=[f"routing.{each}" for each in (*settings, "ecmp=e-ecmp", "hash.buckets=64")]
    ).spec
    options = spec.routing.hash
    assert options == HashOptions(fields=0x03, udf=Udf("l4", 0, 2), gap_ns=500_000, resilient=True, buckets=64)
    assert HashOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert load_spec(json.loads(json.dumps(dump_spec(spec)))) == spec
    assert ClosSpec(name="a", racks=1, ctsw=1).routing.hash == DEFAULT_OPTIONS


def test_a_rack_is_steered_by_one_rule_and_buckets_are_the_members_in_turn() -> None:
    steering = steering_of(FABRIC, FABRIC.by_name["rtsw1"], DEFAULT_OPTIONS)
    assert steering.groups == steering.slots == (("eth1", "eth2", "eth3", "eth4"),)
    assert steering.prefixes == {ip_network(f"10.0.{r}.0/24"): PrefixRule(0, 0, 1) for r in (1, 2)}
    assert steering_of(FABRIC, FABRIC.by_name["ctsw1"], DEFAULT_OPTIONS) == Steering()
    # Buckets are the members in turn.
    options = HashOptions(resilient=True, buckets=6)
    steering = steering_of(FABRIC, FABRIC.by_name["rtsw1"], options)
    assert steering.slots == (("eth1", "eth2", "eth3", "eth4", "eth1", "eth2"),)


def test_links_that_are_not_one_after_the_other_have_a_rule_each() -> None:
    rtsw2 = FABRIC.by_name["rtsw2"]
    first, second, third = [port for port in rtsw2.ports if port.address is not None]
    moved = replace(rtsw2, ports=(*rtsw2.ports[:4], third, first, second))
    fabric = replace(FABRIC, nodes=tuple(moved if node is rtsw2 else node for node in FABRIC.nodes))
    rules = steering_of(fabric, fabric.by_name["rtsw1"], DEFAULT_OPTIONS).prefixes
    assert rules[ip_network("10.0.1.0/24")] == PrefixRule(0)
    links = [port.address.network for port in (third, first, second) if port.address is not None]
    assert [rules[link] for link in links] == [PrefixRule(0, 0), PrefixRule(0, 1), PrefixRule(0, 2)]


def test_at_a_ctsw_the_rack_number_is_added_so_that_all_next_hops_are_used() -> None:
    dc = load_fabric("dc").fabric
    steering = steering_of(dc, dc.by_name["ctsw1"], DEFAULT_OPTIONS)
    racks = {dc.by_name[owner].prefix: dc.by_name[owner].group("rack") for owner in dc.edge_prefixes.values()}
    turns = {racks[prefix]: rule.slice for prefix, rule in steering.prefixes.items()}
    assert turns == {3: 2, 4: 3}
    assert {rule.slice for rule in steering_of(dc, dc.by_name["atsw1"], DEFAULT_OPTIONS).prefixes.values()} == {0}


def test_hashing_with_tables_survives_json() -> None:
    row = hashing_of(FABRIC, FABRIC.by_name["rtsw1"], "exact-match", HashOptions(resilient=True))
    prefix = ip_network("10.0.1.0/24")
    exact: Exact = {(50000, prefix): ("eth2", "eth3"), (1, prefix): ("eth1",)}
    row = replace(row, steering=replace(row.steering, exact=exact))
    assert SwitchHashing.from_json(json.loads(json.dumps(row.to_json()))) == row


@pytest.mark.parametrize(
    ("mode", "options", "version", "policy"),
    [
        ("flow", HashOptions(), 4, 3),
        ("flow", HashOptions(), 6, 1),
        ("flow", HashOptions(fields=0x03), 6, 3),
        ("flow", HashOptions(policy="l3"), 4, 0),
        ("flow", HashOptions(policy="l4"), 6, 1),
        ("flow", HashOptions(resilient=True), 4, 1),
        *((mode, HashOptions(policy="l3"), 4, 1) for mode in MODES if mode != "flow"),
    ],
)
def test_every_mode_has_its_kernel_policy(mode: str, options: HashOptions, version: int, policy: int) -> None:
    assert kernel_policy(mode, options, version) == policy
    rules = sysctls(mode, 9, options, version)
    assert rules[f"net.ipv{version}.fib_multipath_hash_policy"] == str(policy)
    assert rules[f"net.ipv{version}.fib_multipath_hash_fields"] == str(options.fields if policy == 3 else 0x37)


def test_a_label_names_the_mode_of_most_switches_and_the_others() -> None:
    rows = [SwitchHashing(f"rtsw{i}", "e-ecmp", 1, 1, 0x37) for i in range(1, 9)]
    assert label_of(rows) == "e-ecmp"
    assert label_of([replace(rows[0], mode="spray"), *rows[1:]]) == "e-ecmp, rtsw1: spray"
    many = [replace(row, mode="pinned") for row in rows[5:]]
    last = SwitchHashing("ctsw1", "e-ecmp", 1, 1, 0x37, HashOptions(resilient=True))
    assert label_of([*rows[:5], *many, last]) == ("e-ecmp, rtsw6: pinned, rtsw7: pinned, rtsw8: pinned, and 1 more")
    assert label_of([]) == "none"


TINY = load_fabric("tiny").fabric  # 100 Mb/s: a frame of 4,154 bytes takes 332 us
LOST = "counts packets that arrive out of order as lost"
USE = "use --transport srd, which accepts any order"
PSN = Udf("bth", 9, 3)


def said(mode: str, options: HashOptions = DEFAULT_OPTIONS, transport: str = "rc", switches: int = 4) -> list[str]:
    plan = build_plan(TINY, RunOptions(transport=transport))
    rows = {node.name: hashing_of(TINY, node, "e-ecmp") for node in TINY.switches}
    for node in TINY.switches[:switches]:
        rows[node.name] = hashing_of(TINY, node, mode, options)
    return reordering(rows, plan, find_transport(transport).of(plan))


@pytest.mark.parametrize("transport", ["rc", "uc"])
def test_spraying_switches_are_named(transport: str) -> None:
    assert said("spray", transport=transport) == [f"4 switches spray packets, but transport {transport} {LOST}: {USE}"]
    assert said("spray", transport=transport, switches=1)[0].startswith("1 switch sprays packets, but ")


@pytest.mark.parametrize("mode", ["flowlet", "adaptive"])
def test_a_gap_shorter_than_a_frame_is_named(mode: str) -> None:
    short, long = (replace(DEFAULT_OPTIONS, gap_ns=gap) for gap in (331_000, 333_000))
    assert said(mode, short) == [
        "4 switches begin a new flowlet after 331us, but packets at line rate are 332us apart: each may take another"
        f" path, and transport rc {LOST}; set a longer hash.gap, or {USE}"
    ]
    assert said(mode, long) == said(mode) == []


@pytest.mark.parametrize("mode", ["e-ecmp", "exact-match"])
def test_hashed_bytes_that_differ_from_packet_to_packet_are_named(mode: str) -> None:
    why = f"bytes that differ between packets of one QP (hash.udf), but transport rc {LOST}: {USE}"
    assert said(mode, replace(DEFAULT_OPTIONS, udf=PSN)) == [f"4 switches hash {why}"]


@pytest.mark.parametrize("mode", ["flow", "e-ecmp", "flowlet", "pinned", "exact-match", "adaptive"])
def test_nothing_is_said_of_modes_that_keep_order(mode: str) -> None:
    assert said(mode) == said(mode, replace(DEFAULT_OPTIONS, resilient=True)) == []


@pytest.mark.parametrize("mode", ["spray", "flowlet"])
def test_a_transport_that_accepts_any_order_needs_no_warning(mode: str) -> None:
    assert said(mode, replace(DEFAULT_OPTIONS, gap_ns=1000, udf=PSN), "srd") == []
