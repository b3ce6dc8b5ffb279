"""The hashing configuration of a switch as values, and which modes are named because they reorder packets."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network

import pytest

from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import MODES, kernel_policy, sysctls
from heddle.fabric.policy import DEFAULT_OPTIONS, HashOptions, Udf
from heddle.fabric.policydata import routing_policy
from heddle.fabric.shapes import build
from heddle.lab.rehash import label_of
from heddle.runs.reordering import reordering
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of
from heddle.switch.hashing.steering import PrefixRule, Steering, steering_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan

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
    options = routing_policy(spec.routing).hash
    assert options == HashOptions(fields=0x03, udf=Udf("l4", 0, 2), gap_ns=500_000, resilient=True, buckets=64)
    assert HashOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert load_spec(json.loads(json.dumps(dump_spec(spec)))) == spec
    assert routing_policy(ClosSpec(name="a", racks=1, ctsw=1).routing).hash == DEFAULT_OPTIONS


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
    row = replace(row, steering=replace(row.steering, exact={(50000, prefix): "eth2", (1, prefix): "eth1"}))
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
