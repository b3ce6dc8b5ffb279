"""Fabric, Fabric.policy and both families of IP as plain data: the same value comes back, and addresses follow."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from itertools import pairwise

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.policydata import (
    dump_policy,
    fabric_from_json,
    fabric_to_json,
    load_policy,
    queues_as_file,
)
from heddle.fabric.shapes import build
from heddle.spec.groups import as_file
from heddle.spec.load import presets
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.spec.schema import AddressingSpec
from heddle.spec.shapes.clos import ClosSpec

ODD = [
    "routing.ecmp=e-ecmp",
    "routing.seed=77",
    "routing.hash.udf.base=l4",
    "routing.hash.fields=[src, sport]",
    "queues.lossless=[3, 4]",
    "queues.weights={1: 2}",
    "queues.dscp={26: 1}",
    "queues.ecn.classes={3: {kmin: 10KB}, 1: {pmax: 0.5}}",
    "queues.pfc.quanta=1000",
    "queues.pfc.watchdog.detect=1500ms",
    "queues.buffer={switch: 9MB, host: 2MB}",
]


def test_a_policy_in_file_syntax_equals_the_file() -> None:
    loaded = load_fabric("tiny", overrides=[*ODD, "queues.buffer.ctsw=11MB"])
    policy, words = loaded.fabric.policy, [level.word for level in loaded.fabric.levels[1:]]
    again = {"queues": queues_as_file(policy.queues, words), "routing": as_file(policy.routing)}
    assert build(load_spec({**dump_spec(loaded.spec), **again})).policy == policy
    assert policy.routing == loaded.spec.routing
    assert policy.queues.buffer.switches == (9_000_000, 11_000_000, 9_000_000)
    assert policy.queues.ecn.curve(3) == (10_000, 160_000, 0.2)
    assert policy.queues.numbers == (0, 1, 3, 4, 6)


def test_data_of_another_version_is_refused() -> None:
    data = fabric_to_json(load_fabric("tiny").fabric)
    with pytest.raises((ValueError, LookupError, TypeError)):
        fabric_from_json({**data, "nodes": [{"name": "rtsw1"}]})
    with pytest.raises(LookupError):
        fabric_from_json({key: value for key, value in data.items() if key != "policy"})


def test_a_fabric_without_edge_switches_is_refused() -> None:
    data = fabric_to_json(load_fabric("dc").fabric)
    for level in data["levels"]:
        level["is_edge"] = False
    with pytest.raises(ValueError, match="no level is one of edge switches"):
        fabric_from_json(data)


@pytest.mark.parametrize("preset", presets())
def test_a_fabric_and_its_policy_come_back_as_they_were(preset: str) -> None:
    for overrides in ([], ["family=ipv6"], ODD):
        fabric = load_fabric(preset, overrides=overrides).fabric
        again = fabric_from_json(json.loads(json.dumps(fabric_to_json(fabric))))
        assert again == fabric and again.next_hop_groups == fabric.next_hop_groups
        assert load_policy(json.loads(json.dumps(dump_policy(fabric.policy)))) == fabric.policy


@pytest.fixture(params=[*presets(), "rails"])
def six(request: pytest.FixtureRequest) -> Fabric:
    if request.param == "rails":
        keys = {"racks": 2, "ctsw": 3, "nics_per_host": 4}
        return build(ClosSpec.model_validate({"name": "rails", "family": "ipv6", **keys}))
    return load_fabric(request.param, overrides=["family=ipv6"]).fabric


def test_nics_have_127s_of_their_racks_64_and_the_switch_the_even_end(six: Fabric) -> None:
    for host in six.hosts:
        for port in host.ports:
            leaf = six.by_name[port.peer_node]
            gateway = leaf.port(port.peer_port).address
            assert isinstance(port.address, IPv6Interface)
            assert isinstance(gateway, IPv6Interface)
            assert leaf.prefix is not None
            assert (port.address.network.prefixlen, leaf.prefix.prefixlen) == (127, 64)
            assert port.address.network == gateway.network
            assert port.address.ip in leaf.prefix
            assert int(gateway.ip) % 2 == 0


def test_no_two_ends_loopbacks_or_router_ids_are_the_same(six: Fabric) -> None:
    ends = [port.address.ip for node in six.nodes for port in node.ports if port.address is not None]
    loopbacks = [switch.loopback for switch in six.switches]
    ids = [switch.router_id for switch in six.switches]
    assert len({*ends, *loopbacks}) == len(ends) + len(loopbacks)
    assert len(set(ids)) == len(ids)
    assert all(isinstance(each, IPv4Address) for each in ids)
    assert all(any(each is not None and each in pool for pool in six.policy.pools) for each in loopbacks)
    prefixes = sorted(prefix for prefix in six.edge_prefixes if isinstance(prefix, IPv6Network))
    assert len(prefixes) == len(six.edge_prefixes)
    assert not any(one.overlaps(next_) for one, next_ in pairwise(prefixes))
    assert not any(loopback in prefix for loopback in loopbacks if loopback is not None for prefix in prefixes)


def test_a_loopback_shows_tier_and_index() -> None:
    fabric = build(ClosSpec(name="x", family="ipv6", racks=7, ctsw=2))
    assert fabric.by_name["rtsw7"].loopback == IPv6Address("fd00:0:0:ffff::1:7")
    assert fabric.by_name["ctsw2"].loopback == IPv6Address("fd00:0:0:ffff::2:2")
    assert fabric.by_name["rtsw7"].router_id == IPv4Address("10.255.16.7")
    # Tiers are the same tiers.
    fabric = build(ClosSpec(name="x", family="ipv6", racks=2, ctsw=2, zones=2, atsw=2))
    assert {node.level for node in fabric.nodes} == set(range(4))
    assert fabric.by_name["atsw2"].loopback == IPv6Address("fd00:0:0:ffff::3:2")


def test_only_addresses_differ_between_the_families_and_defaults_are_the_familys() -> None:
    four, six = (load_fabric("demo", overrides=[f"family={word}"]).fabric for word in ("ipv4", "ipv6"))
    assert four.links == six.links
    for a, b in zip(four.nodes, six.nodes, strict=True):
        assert (a.name, a.asn, a.hash_seed, a.router_id) == (b.name, b.asn, b.hash_seed, b.router_id)
        assert [(p.ref, p.mac, p.peer_ref) for p in a.ports] == [(p.ref, p.mac, p.peer_ref) for p in b.ports]
    ways = [[set(map(frozenset, table.values())) for table in each.expected_next_hops.values()] for each in (four, six)]
    assert ways[0] == ways[1]
    # Defaults are the familys and what a file says is kept.
    plain = ClosSpec(name="x", family="ipv6", racks=1, ctsw=1)
    assert (plain.addressing.pool, plain.addressing.rack_prefix) == ("fd00::/48", 64)
    own = ClosSpec(name="x", family="ipv6", racks=1, ctsw=1, addressing=AddressingSpec(pool="fd12:3456:789a::/48"))
    assert (own.addressing.pool, own.addressing.rack_prefix) == ("fd12:3456:789a::/48", 64)
    longer = ClosSpec(name="x", family="ipv6", racks=1, ctsw=1, addressing=AddressingSpec(rack_prefix=120))
    assert (longer.addressing.pool, longer.addressing.rack_prefix) == ("fd00::/48", 120)


def test_a_spec_of_ipv6_survives_being_stored_and_an_older_record_is_of_ipv4() -> None:
    spec = load_fabric("tiny", overrides=["family=ipv6"]).spec
    assert load_spec(dump_spec(spec)) == spec
    changed = {path: (old, new) for path, old, new in differences(load_fabric("tiny").spec, spec)}
    assert changed["family"] == ("ipv4", "ipv6")
    # An older record without a family is one of ipv4.
    data = dump_spec(load_fabric("tiny").spec)
    del data["family"]
    assert load_spec(data) == load_fabric("tiny").spec
