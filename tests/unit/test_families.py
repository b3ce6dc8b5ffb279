"""A fabric's IP: every address of an IPv6 fabric follows from its file as those of IPv4 do."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Interface, IPv6Network
from itertools import pairwise

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.spec.load import presets
from heddle.spec.plain import differences, dump_spec, load_spec
from heddle.spec.schema import AddressingSpec
from heddle.spec.shapes.clos import ClosSpec


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
    pool = six.policy.pool
    assert all(each is not None and each in pool for each in loopbacks)
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


def test_only_addresses_differ_between_the_families() -> None:
    four, six = (load_fabric("demo", overrides=[f"family={word}"]).fabric for word in ("ipv4", "ipv6"))
    assert four.links == six.links
    for a, b in zip(four.nodes, six.nodes, strict=True):
        assert (a.name, a.asn, a.hash_seed, a.router_id) == (b.name, b.asn, b.hash_seed, b.router_id)
        assert [(p.ref, p.mac, p.peer_ref) for p in a.ports] == [(p.ref, p.mac, p.peer_ref) for p in b.ports]
    ways = [[set(map(frozenset, table.values())) for table in each.expected_next_hops.values()] for each in (four, six)]
    assert ways[0] == ways[1]


def test_defaults_are_the_familys_and_what_a_file_says_is_kept() -> None:
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
