"""Routes that a fabric does not have, found in FIBs; and what `status`, `validate` and a run say about them."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from types import SimpleNamespace
from typing import cast

import pytest

from heddle.base.families import Network
from heddle.checks import labchecks
from heddle.checks.subject import Subject
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.kernel.fib import Fib, NextHop
from heddle.lab import health
from heddle.lab.health import ForeignRoute, foreign_routes, overriding_routes
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot

TINY = load_fabric("tiny").fabric
Stray = Mapping[str, Mapping[str, tuple[NextHop, ...]]]  # switch -> prefix -> next hops
MANAGEMENT = "eth0"  # no port of the fabric has this name


def hops(*ports: str) -> tuple[NextHop, ...]:
    return tuple(NextHop(port, number, "") for number, port in enumerate(ports, 1))


def fibs(fabric: Fabric, more: Stray) -> dict[str, Fib]:
    """What BGP installs and the kernel adds, loopbacks of other switches included, and more: switch -> prefix."""
    found = {}
    for node in fabric.switches:
        loopbacks = [ip_network(each.loopback) for each in fabric.switches if each is not node and each.loopback]
        routes: dict[Network, tuple[NextHop, ...]] = {
            prefix: hops(*sorted(ports)) for prefix, ports in fabric.expected_next_hops[node.name].items()
        }
        routes |= dict.fromkeys(loopbacks, hops("eth1"))
        routes |= {ip_network(prefix): each for prefix, each in more.get(node.name, {}).items()}
        found[node.name] = Fib(node.name, routes)
    return found


def of(switch: str, prefix: str, *ports: str) -> list[ForeignRoute]:
    return foreign_routes(TINY, fibs(TINY, {switch: {prefix: hops(*ports)}}))


@pytest.mark.parametrize("preset", ["tiny", "dc", "rail"])
def test_routes_of_the_fabric_are_not_foreign(preset: str) -> None:
    fabric = load_fabric(preset).fabric
    assert foreign_routes(fabric, fibs(fabric, {})) == []


@pytest.mark.parametrize(
    ("switch", "prefix", "ports", "overrides"),
    [
        ("rtsw1", "10.0.1.1/32", ("eth2",), "10.0.1.0/24"),
        ("rtsw1", "10.0.1.0/25", ("eth1", "eth2"), "10.0.1.0/24"),
        ("ctsw1", "10.0.1.3/32", (), "10.0.1.0/24"),
        ("rtsw1", "10.0.0.1/32", ("eth1",), "10.0.0.0/31"),
        ("rtsw1", "10.0.1.1/32", (MANAGEMENT,), "10.0.1.0/24"),
        ("rtsw1", "10.0.0.0/24", ("eth1",), ""),
        ("rtsw1", "10.0.0.0/16", ("eth1",), ""),
        ("ctsw1", "0.0.0.0/0", ("eth1",), ""),
        ("ctsw2", "192.0.2.0/24", ("eth2",), ""),
    ],
)
def test_a_foreign_route_is_named_with_what_it_overrides(
    switch: str, prefix: str, ports: tuple[str, ...], overrides: str
) -> None:
    wanted = ip_network(overrides) if overrides else None
    assert of(switch, prefix, *ports) == [ForeignRoute(switch, ip_network(prefix), ports, wanted)]


@pytest.mark.parametrize("prefix", ["0.0.0.0/0", "172.20.20.0/24", "10.0.0.0/8"])
@pytest.mark.parametrize("port", [(MANAGEMENT,), ()])
def test_a_management_network_is_not_foreign(prefix: str, port: tuple[str, ...]) -> None:
    assert of("rtsw1", prefix, *port) == []


def test_of_an_imported_topology_only_routes_inside_a_hosts_network_are_named() -> None:
    """It defines no routes. tiny stands for one: the function reads only addresses and links."""
    more = {"rtsw1": {"10.0.0.1/32": hops("eth1"), "10.0.0.0/24": hops("eth1"), "192.0.2.0/24": hops("eth2")}}
    found = overriding_routes(TINY, fibs(TINY, more))
    assert found == [ForeignRoute("rtsw1", ip_network("10.0.0.1/32"), ("eth1",), ip_network("10.0.0.0/31"))]


def test_validate_notes_them_and_does_not_fail() -> None:
    made = SimpleNamespace(rendered=False, routes_checked=lambda: "4 addresses", gaps=lambda now: [])
    lab = cast("Lab", SimpleNamespace(name="tiny", fabric=TINY, blueprint=made))
    nodes = {name: NodeSnapshot(name, fib=fib) for name, fib in fibs(TINY, {"rtsw1": {"10.0.0.1/32": ()}}).items()}
    answer = labchecks.routes(Subject(lab, {}, Snapshot("tiny", LabPart.FIBS, nodes)))
    assert answer == (
        "4 addresses",
        [],
        ("rtsw1: 10.0.0.1/32 to nowhere overrides 10.0.0.0/31, the network of a host",),
    )


def wrong(fabric: Fabric, more: Stray, *, rendered: bool = True) -> list[str]:
    lab = cast("Lab", SimpleNamespace(name="tiny", fabric=fabric, blueprint=SimpleNamespace(rendered=rendered)))
    nodes = {name: NodeSnapshot(name, fib=fib) for name, fib in fibs(fabric, more).items()}
    return [str(each) for each in health.wrong_routes(lab, Snapshot("tiny", LabPart.FIBS, nodes))]


def test_the_words_and_the_hint() -> None:
    more: Stray = {"rtsw1": {"10.0.1.1/32": hops("eth1", "eth2")}, "ctsw1": {"10.0.1.1/32": ()}}
    hint = "ip route show 10.0.1.1/32 to see its origin (proto), and remove it there"
    assert wrong(TINY, more) == [
        "rtsw1  10.0.1.1/32 over eth1, eth2 is not a route of the fabric and overrides 10.0.1.0/24\n"
        f"       hint: run ./inv exec --lab tiny rtsw1 {hint}",
        "ctsw1  10.0.1.1/32 to nowhere is not a route of the fabric and overrides 10.0.1.0/24\n"
        f"       hint: run ./inv exec --lab tiny ctsw1 {hint}",
    ]
    assert wrong(TINY, more, rendered=False) == []


def test_an_ipv6_fabric_has_the_same_check() -> None:
    fabric = load_fabric("tiny", overrides=("family=ipv6",)).fabric
    edge = fabric.by_name["rtsw2"].prefix
    assert edge is not None and wrong(fabric, {}) == []
    (said,) = wrong(fabric, {"rtsw1": {f"{edge.network_address + 1}/128": hops("eth1")}})
    assert f"and overrides {edge}" in said and "rtsw1 ip -6 route show" in said
