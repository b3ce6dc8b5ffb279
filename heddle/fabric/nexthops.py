"""The ports of each switch that lead to each edge once BGP has converged. A set of edges is an integer, a bit per edge.

An edge is a switch that announces the prefix of its host links. Edges are numbered from 1 (`Fabric.edges`).
In:  a Fabric; dead ports and drained switches, if any.
Out: switch -> groups of next hops. A group is a set of ports and all edges that exactly these ports lead to.
AS plans are those of RFC 7938, section 5.2: switches of one level may share an AS, switches of two levels never do. A
switch refuses a route that has its own AS in its path. So an edge's prefix climbs, then descends, and never climbs
again. A route learned from below has a shorter path than one learned from above.
A drained switch announces with community GRACEFUL_SHUTDOWN (RFC 8326), which stays on the route: such a path is used
only if there is no other.
Where routes go sideways (`Level.prepends`) each switch has an AS of its own, and the shortest AS path counts, with the
prepended numbers. So a third box is passed only when something is down or drained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.records import record

if TYPE_CHECKING:
    from heddle.fabric.wiring import Node, Wiring


@record(frozen=True, slots=True)
class Group:
    """Next hops: names of ports in the switch's order. edges: bit n - 1 is set if they lead to edge n.

    bandwidths: for `routing.ucmp`, one per port; empty if all ports have equal weight. Weights: heddle/fabric/ucmp.py.
    """

    ports: tuple[str, ...]
    edges: int
    bandwidths: tuple[int, ...] = ()


def edges_of(bits: int) -> Iterator[int]:
    """The edge numbers of a bit set, from 1, in order."""
    text = bin(bits)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at + 1
        at = text.find("1", at + 1)


def groups_of(
    wiring: Wiring, dead: Collection[str] = (), drained: Collection[str] = ()
) -> dict[str, tuple[Group, ...]]:
    """Switch -> its groups without bandwidths, sorted by their lowest port; see ucmp.next_hop_groups."""
    found = _Routes(wiring, dead, drained).groups()
    if wiring.sideways:
        sideways = {n.name for n in wiring.switches if wiring.level_of(n).prepends}
        found |= {name: parts for name, parts in _Sideways(wiring, dead, drained).groups().items() if name in sideways}
    return found


@dataclass(slots=True)
class _Known:
    """Edges that a switch announces: without (clean) and with (drained) the community."""

    clean: int = 0
    drained: int = 0


class _Routes:
    """The announcements of every switch, upwards and downwards."""

    def __init__(self, fabric: Wiring, dead: Collection[str], drained: Collection[str]) -> None:
        self._switches = {node.name: node for node in fabric.switches}
        self._drained = drained
        self._below = {name: _Known() for name in self._switches}
        self._above = {name: _Known() for name in self._switches}
        ends = {name: (node.level, self._below[name], self._above[name]) for name, node in self._switches.items()}
        self._down: dict[str, list[tuple[str, _Known]]] = {}  # switch -> ports, each with its peer's announcement
        self._up: dict[str, list[tuple[str, _Known]]] = {}
        for node in fabric.switches:
            down, up = self._down[node.name], self._up[node.name] = list[tuple[str, _Known]](), []
            for port in node.ports:
                peer = ends.get(port.peer_node)
                if peer is None or (dead and (port.ref in dead or port.peer_ref in dead)):
                    continue
                level, below, above = peer
                if level < node.level:
                    down.append((port.name, below))
                elif level > node.level:
                    up.append((port.name, above))
        self._own = {name: 1 << (number - 1) for name, number in fabric.edge_of.items()}
        order = sorted(fabric.switches, key=lambda node: node.level)
        self._climb(order)
        self._climbed: dict[int, int] = {}  # AS -> edges whose routes have climbed through a switch of it
        for node in fabric.switches:
            if node.asn is not None:
                own = self._below[node.name]
                self._climbed[node.asn] = self._climbed.get(node.asn, 0) | own.clean | own.drained
        self._descend(order[::-1])

    def groups(self) -> dict[str, tuple[Group, ...]]:
        """Both directions of every switch."""
        found = {}
        for name, node in self._switches.items():
            own = self._below[name]
            covered = own.clean | own.drained
            # bgpd in graceful shutdown gives all received routes the same local preference (bgp_update in FRR).
            alike = name in self._drained
            parts = _grouped(self._down[name], self._own.get(name, 0), alike=alike)
            found[name] = (*parts, *_grouped(self._up[name], covered | self._refused(node), alike=alike))
        return found

    def _refused(self, node: Node) -> int:
        """Edges whose routes from above have the switch's own AS in their path."""
        return 0 if node.asn is None else self._climbed[node.asn]

    def _climb(self, order: list[Node]) -> None:
        """The announcements of each switch upwards: its own prefix, and all edges known from below."""
        for node in order:
            known = self._below[node.name]
            known.clean, known.drained = self._announced(node, self._down[node.name], self._own.get(node.name, 0))

    def _descend(self, order: list[Node]) -> None:
        """The announcements of each switch downwards: edges known from below, else from above."""
        for node in order:
            below, known = self._below[node.name], self._above[node.name]
            covered = below.clean | below.drained | self._refused(node)
            clean, drained = self._announced(node, self._up[node.name], 0)
            known.clean, known.drained = below.clean | clean & ~covered, below.drained | drained & ~covered

    def _announced(self, node: Node, received: list[tuple[str, _Known]], own: int) -> tuple[int, int]:
        clean, drained = own, 0
        for _, each in received:
            clean |= each.clean
            drained |= each.drained
        return (0, clean | drained) if node.name in self._drained else (clean, drained & ~clean)


class _Sideways:
    """The shortest AS paths of every switch, for all edges at once, by rising length."""

    def __init__(self, fabric: Wiring, dead: Collection[str], drained: Collection[str]) -> None:
        own = {name: 1 << (number - 1) for name, number in fabric.edge_of.items()}
        self._ports: dict[str, list[tuple[str, str, int]]] = {}  # name, peer, length of a path over this link alone
        for node in fabric.switches:
            prepends = fabric.level_of(node).prepends
            self._ports[node.name] = [
                (port.name, port.peer_node, 1 + fabric.is_global(port) * prepends)
                for port in node.ports
                if not fabric.leads_to_host(port) and port.ref not in dead and port.peer_ref not in dead
            ]
        self._longest = max((length for ports in self._ports.values() for _, _, length in ports), default=1)
        # By the length of the path: switch -> edges that it announces.
        self._known = [{name: own[name] for name in self._ports if name in own and name not in drained}]
        self._settled = {name: own.get(name, 0) for name in self._ports}
        self._by = {name: [0] * len(ports) for name, ports in self._ports.items()}
        # Routes without the community first: they are preferred, but not at a drained switch.
        self._flood({name for name in self._ports if name not in drained})
        if drained:
            self._known[0] |= {name: own[name] for name in drained if name in own}
            self._flood(set(self._ports))

    def groups(self) -> dict[str, tuple[Group, ...]]:
        """Of every switch."""
        found = {}
        for name, ports in self._ports.items():
            received = [(port, _Known(bits)) for (port, *_), bits in zip(ports, self._by[name], strict=True)]
            found[name] = tuple(_grouped(received, 0, alike=False))
        return found

    def _flood(self, among: set[str]) -> None:
        """Announce among these switches all edges to which they have no path yet."""
        length = 0
        while any(self._known[max(0, length + 1 - self._longest) :]):
            length += 1
            if length == len(self._known):
                self._known.append({})
            gained: dict[str, int] = {}
            for name in among:
                for place, (_, peer, more) in enumerate(self._ports[name]):
                    if more <= length and (bits := self._known[length - more].get(peer, 0) & ~self._settled[name]):
                        self._by[name][place] |= bits
                        gained[name] = gained.get(name, 0) | bits
            for name, bits in gained.items():
                self._settled[name] |= bits
                self._known[length][name] = self._known[length].get(name, 0) | bits


def _grouped(received: list[tuple[str, _Known]], without: int, *, alike: bool) -> list[Group]:
    """Ports by the edges that they lead to. received: each port with its peer's announcement. without: edges to omit.

    A drained path to an edge is not used if a clean one exists; with `alike` both are.
    Ports that lead to the same edges are joined first, so that a switch with hundreds of downlinks is fast.
    """
    anywhere = 0
    for _, known in received:
        anywhere |= 0 if alike else known.clean
    masks: dict[int, list[int]] = {}
    wanted = ~without
    for place, (_, known) in enumerate(received):
        if mask := (known.clean | known.drained & ~anywhere if known.drained else known.clean) & wanted:
            masks.setdefault(mask, []).append(place)
    parts: list[tuple[int, list[int]]] = []
    covered = 0
    for mask, places in masks.items():
        if not mask & covered:
            parts.append((mask, places))
        else:
            parts = _split(parts, mask, mask & ~covered, places)
        covered |= mask
    return [
        Group(tuple([received[place][0] for place in sorted(places)]), edges)
        for edges, places in sorted(parts, key=lambda part: min(part[1]))
    ]


def _split(parts: list[tuple[int, list[int]]], mask: int, fresh: int, places: list[int]) -> list[tuple[int, list[int]]]:
    """The parts, each divided into its edges inside `mask` and outside; ports of `places` join the inside."""
    found: list[tuple[int, list[int]]] = []
    for edges, others in parts:
        inside = edges & mask
        if inside:
            found.append((inside, [*others, *places]))
        if edges & ~mask:
            found.append((edges & ~mask, others))
    return [*found, (fresh, places)] if fresh else found
