"""Next hops against BGP itself, spoken route by route: AS paths, loops, local preference, nothing of bit sets."""

from __future__ import annotations

import random

import pytest

from heddle.fabric.model import Fabric
from heddle.fabric.nexthops import edges_of
from heddle.fabric.shapes import build
from heddle.fabric.ucmp import next_hop_groups
from heddle.spec.shapes.clos import ClosSpec
from heddle.spec.shapes.rail import RailSpec

Route = tuple[tuple[int, ...], bool]  # AS path, the nearest first; whether GRACEFUL_SHUTDOWN is on it
Table = dict[str, dict[int, frozenset[str]]]
_USUAL, _SHUTDOWN = 100, 0  # local preference


def spoken(fabric: Fabric, dead: set[str], drained: set[str]) -> Table:
    """Rounds of announcements until nothing changes: switch -> edge -> ports of all best paths."""
    switches = {node.name: node for node in fabric.switches}
    links = {
        name: [
            (port.name, port.peer_node)
            for port in node.ports
            if port.peer_node in switches and not {port.ref, port.peer_ref} & dead
        ]
        for name, node in switches.items()
    }
    table: Table = {name: {} for name in switches}
    for origin in fabric.edges:
        said: dict[str, Route] = {}
        while True:
            now: dict[str, Route] = {origin.name: ((origin.asn or 0,), origin.name in drained)}
            for name, node in switches.items():
                heard = [
                    ((_SHUTDOWN if route[1] or name in drained else _USUAL, -len(route[0])), port, route)
                    for port, peer in links[name]
                    if (route := said.get(peer)) is not None and node.asn not in route[0]
                ]
                if node is origin or not heard:
                    continue
                rank = max(each[0] for each in heard)
                best = [each for each in heard if each[0] == rank]
                table[name][fabric.edge_of[origin.name]] = frozenset(port for _, port, _ in best)
                path, marked = best[0][2]
                now[name] = ((node.asn or 0, *path), marked or name in drained)
            if now == said:
                break
            for name in switches.keys() - now.keys():
                table[name].pop(fabric.edge_of[origin.name], None)
            said = now
    return table


@pytest.mark.parametrize("seed", range(4))
def test_next_hops_are_those_of_bgp_whatever_is_down_and_drained(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        zones = draw.choice([1, 2, 2, 3])
        racks, ctsw = draw.randint(1, 3), draw.randint(1, 3)
        atsw = draw.randint(1, 3) if zones > 1 else None
        fabric = build(ClosSpec(name="x", zones=zones, racks=racks, ctsw=ctsw, atsw=atsw, hosts_per_rack=1))
        compare(fabric, draw)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_of_rails_in_planes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        planes = draw.randint(1, 3)
        sizes = {"pods": draw.randint(1, 3), "nics_per_host": planes * draw.randint(1, 2), "hosts_per_pod": 1}
        spec = {"name": "x", "shape": "rail", "planes": planes, "spines": planes * draw.randint(1, 3), **sizes}
        compare(build(RailSpec.model_validate(spec)), draw)


def compare(fabric: Fabric, draw: random.Random) -> None:
    """Some links down and some switches drained: the next hops found at once, and those of the routes spoken."""
    names = [node.name for node in fabric.switches]
    ports = [p.ref for node in fabric.switches for p in node.ports if p.address is None]
    dead = set(draw.sample(ports, draw.randint(0, len(ports) // draw.choice([2, 3, 6]))))
    drained = set(draw.sample(names, draw.randint(0, min(4, len(names)))))
    found = {
        name: {edge: frozenset(group.ports) for group in groups for edge in edges_of(group.edges)}
        for name, groups in next_hop_groups(fabric, dead, drained).items()
    }
    assert found == spoken(fabric, dead, drained), (fabric.name, dead, drained)
