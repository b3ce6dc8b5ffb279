"""Cut a fabric into shards: which nodes run together on one machine, and which links are cut.

In:  a fabric, the number of shards.
Out: Cut. Racks stay whole: edge switches, and all hosts that they share. Racks go to shards in blocks, those with the
same uplinks next to each other. Other switches follow, the nearest to racks first, each to the shard to which most of
its links lead, among those with enough memory left. Then switches and racks move from shards that are too large, and
change places as long as that cuts fewer links (Fiduccia and Mattheyses, DAC 1982).
Nothing is random: the same fabric is always cut in the same way. tests/bench measures what is behind what
nodes cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Link, Node

# Bytes, fitted to labs of 12 to 270 switches. Pages that processes share count once.
_SWITCH_BYTES: Final = 23_300_000  # namespace, zebra and bgpd, without a neighbour
_SHARED_BYTES: Final = 3_000_000  # the same of a switch whose daemons are those of a group
_MANAGER_BYTES: Final = 6_000_000  # mgmtd, which FRR has from version 10 on
_SESSION_BYTES: Final = 630_000  # a BGP neighbour, in bgpd and the kernel
_PATH_BYTES: Final = 520  # a next hop of a prefix, in bgpd and zebra
_HOST_BYTES: Final = 300_000  # namespace
BUFFER_BYTES: Final = 12_000_000  # of a NIC: three buffers of a run of up to 4 MB (heddle/host/capacity.py)
_PORT_BYTES: Final = 220_000  # link, queues, programs and maps
_STATIC_PORT_BYTES: Final = 130_000  # the same without a daemon that knows it
# Processor time, seconds. Fitted to labs of 12 to 270 switches, within 30 %.
_START_S: Final = 0.09  # the daemons of a switch
_SHARED_START_S: Final = 0.025
_SESSION_S: Final = 0.004  # an end of a session, until it is established
_PATH_S: Final = 150e-6  # a next hop that a neighbour announces, up to the kernel
_REFUSED_S: Final = 2e-6  # an announcement with the switch's own AS in its path
_PACKET_S: Final = 30e-6  # a data packet from NIC to NIC (./inv bench packets)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one node. memory: bytes. work: processor seconds of its daemons until it has all routes. cpus: while its NICs
    send at line rate, with what their packets cost everywhere.
    """

    memory: int
    work: float
    cpus: float


def footprints(fabric: Fabric, *, mgmtd: bool = False) -> Mapping[str, Footprint]:
    """Node -> its footprint. Routes of an imported topology are known only to its kernels, and count nothing here.

    mgmtd: whether switches run it: FRR 10 does.
    """
    manager = _MANAGER_BYTES if mgmtd else 0
    known = {name: sum(group.edges.bit_count() for group in groups) for name, groups in fabric.next_hop_groups.items()}
    return {node.name: _switch(fabric, node, known, manager) if node.role is Role.SWITCH else _host(fabric, node)
            for node in fabric.nodes}  # fmt: skip


def start_s(fabric: Fabric) -> float:
    """Processor seconds in which the daemons of a switch start; 0 where none runs."""
    if not fabric.policy.routing.by_bgp:
        return 0.0
    return _SHARED_START_S if fabric.policy.routing.daemons == "shared" else _START_S


def paths_of(fabric: Fabric, node: str) -> int:
    """Next hops of all routes that a switch learns; 0 for a host."""
    return sum(len(group.ports) * group.edges.bit_count() for group in fabric.next_hop_groups.get(node, ()))


def _switch(fabric: Fabric, node: Node, known: Mapping[str, int], manager: int) -> Footprint:
    """known: switch -> prefixes that it learns. manager: bytes of mgmtd."""
    if not fabric.policy.routing.by_bgp:
        return Footprint(_HOST_BYTES + len(node.ports) * _STATIC_PORT_BYTES, 0.0, 0.0)
    peers = [port.peer_node for port in node.ports if not fabric.leads_to_host(port)]
    paths = paths_of(fabric, node.name)
    # FRR announces all that it knows to each neighbour, also what that one will refuse for its AS path.
    refused = sum(known[peer] + (peer in fabric.edge_of) for peer in peers) - paths
    daemons = _SHARED_BYTES if fabric.policy.routing.daemons == "shared" else _SWITCH_BYTES + manager
    memory = daemons + len(peers) * _SESSION_BYTES + paths * _PATH_BYTES + len(node.ports) * _PORT_BYTES
    work = start_s(fabric) + len(peers) * _SESSION_S + paths * _PATH_S + refused * _REFUSED_S
    return Footprint(memory, work, 0.0)


def _host(fabric: Fabric, node: Node) -> Footprint:
    nics = node.ports if node.serves else fabric.nics_of[node.name]
    rate = sum(port.rate_bps for port in nics)
    memory = _HOST_BYTES + len(node.ports) * _PORT_BYTES + len(nics) * BUFFER_BYTES
    return Footprint(memory, 0.0, rate / 8 / fabric.policy.ib_mtu * _PACKET_S)


# Measured 150 MB: agent, worker, carrier, the agent of PFC and its keeper, the files of FRR. And 45 MB for each of two
# more commands at the same time, such as the page and a capture.
SHARD_BYTES: Final = 240_000_000
NODE_BYTES: Final = 7 << 30  # of a machine of 8 GiB; kubelet and system have the rest
MARGIN: Final = 1.25  # what a shard requests, over what its nodes are expected to use: routes peak while they converge
_SLACK: Final = 1.04  # of the largest shard over the mean, and again to cut fewer links: within 10 % together
_PASSES: Final = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """Nodes that are together. memory_bytes: to request. cpus: while all its NICs send at line rate. work: processor
    seconds until it has all routes.
    """

    name: str  # s1, s2, ...
    nodes: tuple[str, ...]
    switches: int
    memory_bytes: int
    cpus: float
    work: float


@dataclass(frozen=True, slots=True)
class CutLink:
    """A link whose ends are in different shards: those of its ends `a` and `b`."""

    link: Link
    shards: tuple[str, str]


@dataclass(frozen=True)
class Cut:
    """A fabric in shards."""

    shards: tuple[Shard, ...]
    links: tuple[CutLink, ...]

    @cached_property
    def home(self) -> dict[str, str]:
        """Node -> its shard."""
        return {node: shard.name for shard in self.shards for node in shard.nodes}

    @cached_property
    def tunnels(self) -> Counter[frozenset[str]]:
        """Pairs of shards that exchange packets -> their cut links."""
        return Counter(frozenset(each.shards) for each in self.links)

    @property
    def imbalance(self) -> float:
        """The largest memory of a shard over the mean, minus 1."""
        sizes = [shard.memory_bytes for shard in self.shards]
        return max(sizes) * len(sizes) / sum(sizes) - 1


def cut(fabric: Fabric, count: int) -> Cut:
    """Cut a fabric into `count` shards. InputError for a number of shards that it cannot have."""
    racks = racks_of(fabric)
    if not 1 <= count <= len(racks):
        raise InputError(_refusal(fabric, count, len(racks)))
    costs = footprints(fabric, mgmtd=True)  # as the image of shards has it
    parts = _Parts(fabric, racks, costs, count)
    home = parts.home()
    names = [f"s{number + 1}" for number in range(count)]
    shards = [_shard(names[n], [node for node in fabric.nodes if home[node.name] == n], costs) for n in range(count)]
    places = ((link, home[link.a[0]], home[link.b[0]]) for link in fabric.links)
    return Cut(tuple(shards), tuple(CutLink(link, (names[a], names[b])) for link, a, b in places if a != b))


def fitting_cut(fabric: Fabric, memory: int = NODE_BYTES) -> Cut:
    """The cut with fewest shards, two or more, of which each fits into `memory` bytes.

    A fabric of one rack has one shard. Where one rack or switch is larger than the memory, each rack has a shard.
    """
    most = len(racks_of(fabric))
    count = min(2, most)
    found = cut(fabric, count)
    while (largest := max(shard.memory_bytes for shard in found.shards)) > memory and count < most:
        count = min(most, max(count + 1, int(count * largest / memory * 0.9)))
        found = cut(fabric, count)
    return found


def racks_of(fabric: Fabric) -> list[list[Node]]:
    """Groups of nodes that one shard must have: edge switches with the hosts that they share; in the fabric's order.

    Where routes go sideways, a whole box: most links are inside.
    """
    group = {node.name: node.name for node in fabric.nodes}

    def top(name: str) -> str:
        while group[name] != name:
            group[name] = name = group[group[name]]
        return name

    for host in fabric.hosts:
        for port in host.ports:
            group[top(port.peer_node)] = top(host.name)
    first: dict[int | None, str] = {}  # box -> a switch of it
    for node in fabric.switches if fabric.sideways else ():
        group[top(node.name)] = top(first.setdefault(node.group(fabric.box), node.name))
    found: dict[str, list[Node]] = {}
    for node in fabric.nodes:
        found.setdefault(top(node.name), []).append(node)
    return [
        rack for rack in found.values() if any(node.role is Role.HOST or fabric.level_of(node).is_edge for node in rack)
    ]


def _refusal(fabric: Fabric, count: int, most: int) -> Problem:
    what = f"--shards {count}"
    if count < 1:
        return Problem("", what, "is not a number of shards", "use --shards 2")
    if most < 2:
        return Problem("", what, f"is not possible: all hosts of {fabric.name} share switches, and racks stay whole")
    word = fabric.box or "rack"
    return Problem("", what, f"is more than the {most} {word}s of {fabric.name}", f"use --shards {most} or fewer")


def _shard(name: str, nodes: Sequence[Node], costs: Mapping[str, Footprint]) -> Shard:
    own = [costs[node.name] for node in nodes]
    memory = SHARD_BYTES + sum(each.memory for each in own)
    switches = sum(node.role is Role.SWITCH for node in nodes)
    cpus, work = sum(each.cpus for each in own), sum(each.work for each in own)
    return Shard(name, tuple(node.name for node in nodes), switches, round(memory * MARGIN), cpus, work)


class _Parts:
    """Units (racks, then other switches) and their shards, from a first choice to a better one."""

    def __init__(self, fabric: Fabric, racks: list[list[Node]], costs: Mapping[str, Footprint], count: int) -> None:
        inside = {node.name for rack in racks for node in rack}
        self._units = [*racks, *([node] for node in fabric.nodes if node.name not in inside)]
        self._unit_of = {node.name: number for number, unit in enumerate(self._units) for node in unit}
        self._weight = [sum(costs[node.name].memory for node in unit) for unit in self._units]
        self._near: list[Counter[int]] = [Counter() for _ in self._units]
        for link in fabric.links:
            a, b = self._unit_of[link.a[0]], self._unit_of[link.b[0]]
            if a != b:
                self._near[a][b] += 1
                self._near[b][a] += 1
        self._racks, self._count = len(racks), count
        self._place = [-1] * len(self._units)
        self._size = [0] * count
        self._links = [[0] * count for _ in self._units]  # of each unit, to the units of each shard
        self._mean = sum(self._weight) / count

    def home(self) -> dict[str, int]:
        """Node -> the number of its shard."""
        self._begin()
        self._balance()
        limit = max(self._mean, *self._size) * _SLACK
        for _ in range(_PASSES):
            if not (self._move(limit) | self._exchange(limit)):
                break
        return {name: self._place[unit] for name, unit in self._unit_of.items()}

    def _put(self, unit: int, shard: int) -> None:
        old = self._place[unit]
        self._place[unit] = shard
        self._size[shard] += self._weight[unit]
        if old >= 0:
            self._size[old] -= self._weight[unit]
        for other, links in self._near[unit].items():
            self._links[other][shard] += links
            if old >= 0:
                self._links[other][old] -= links

    def _begin(self) -> None:
        racks = sorted(range(self._racks), key=self._first_above)
        for at, rack in enumerate(racks):
            self._put(rack, at * self._count // self._racks)
        for unit in self._outwards(racks):
            room = [n for n in range(self._count) if self._size[n] + self._weight[unit] <= self._mean * _SLACK]
            shards = room or range(self._count)
            self._put(unit, min(shards, key=lambda n: (-self._links[unit][n], self._size[n], n)))

    def _first_above(self, rack: int) -> int:
        return min((unit for unit in self._near[rack] if unit >= self._racks), default=len(self._units))

    def _outwards(self, racks: Sequence[int]) -> Iterator[int]:
        """The units that are no rack, the nearest to racks first."""
        seen, edge = set(racks), list(racks)
        while edge or len(seen) < len(self._units):
            if edge:
                edge = sorted({far for unit in edge for far in self._near[unit]} - seen)
            else:  # no link leads there
                edge = [min(set(range(len(self._units))) - seen)]
            seen.update(edge)
            yield from edge

    def _balance(self) -> None:
        """Move units out of the largest shard while it is too large, those that cut fewest links more."""
        while max(self._size) > self._mean * _SLACK:
            old = max(range(self._count), key=lambda n: (self._size[n], -n))
            best = min(self._moves(old), default=None)
            if best is None:
                return
            self._put(*best[2:])

    def _moves(self, old: int) -> Iterator[tuple[int, int, int, int]]:
        """More cut links, the size of the other shard, a unit, that shard: moves after which both shards are smaller
        than this one is now.
        """
        for unit in self._inside(old):
            for new, size in enumerate(self._size):
                if size + self._weight[unit] < self._size[old]:
                    yield self._links[unit][old] - self._links[unit][new], size, unit, new

    def _gain(self, unit: int, other: int) -> int:
        """Cut links less after an exchange."""
        old, new = self._place[unit], self._place[other]
        ahead, back = self._links[unit], self._links[other]
        return ahead[new] - ahead[old] + back[old] - back[new] - 2 * self._near[unit][other]

    def _inside(self, shard: int) -> list[int]:
        return [unit for unit, place in enumerate(self._place) if place == shard]

    def _move(self, limit: float) -> bool:
        """Move each unit to the shard to which most of its links lead, if that has room."""
        moved = False
        for unit, weight in enumerate(self._weight):
            old, links = self._place[unit], self._links[unit]
            room = [n for n in range(self._count) if self._size[n] + weight <= limit and links[n] > links[old]]
            if room and self._size[old] > weight:  # the last unit of a shard stays
                self._put(unit, max(room, key=lambda n: (links[n], -self._size[n], -n)))
                moved = True
        return moved

    def _exchange(self, limit: float) -> bool:
        """Exchange two units of different shards if that cuts fewer links."""
        moved = False
        for unit, weight in enumerate(self._weight):
            for new in range(self._count):
                old = self._place[unit]
                if self._links[unit][new] <= self._links[unit][old]:
                    continue
                fit = (
                    other
                    for other in self._inside(new)
                    if self._size[new] + weight - self._weight[other] <= limit
                    and self._size[old] + self._weight[other] - weight <= limit
                )
                best = max(fit, key=lambda other: self._gain(unit, other), default=None)
                if best is not None and self._gain(unit, best) > 0:
                    self._put(unit, new)
                    self._put(best, old)
                    moved = True
        return moved
