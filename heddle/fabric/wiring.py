"""The wiring of a fabric: nodes with their ports, links, levels. Frozen values; routes are computed from them.

Nodes are in a fixed order, ports in the order eth1, eth2, ..., links in the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final, Self

from heddle.base.families import Address, Interface, Network
from heddle.base.problems import Problems
from heddle.base.records import record

if TYPE_CHECKING:
    from heddle.fabric.policy import Policy


BACKEND: Final = "backend"  # the network whose ports carry ranks
FRONTEND: Final = "frontend"  # the network of storage, preprocessing and trainers (heddle/spec/frontend.py)
_ROOM: Final = 4  # ports that a switch can get while its lab runs
_NEW_NODES: Final = 32  # nodes that a lab can get, and so many times the ports of ...
_NEW_SWITCHES: Final = 4  # ... its largest switch
_MOST_WITH_ROOM: Final = 16_384  # ports; room costs memory, and larger fabrics are not changed while they run


class Role(StrEnum):
    """The role of a node: a switch forwards; a host sends and receives."""

    HOST = "host"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Level:
    """One row of a fabric, from the hosts up: names and labels of its nodes. Each shape supplies its own.

    word: names are word + index (`rtsw3`); it is also a label, a seed under `per-tier`, a key of `queues.buffer`.
    title: the word in tables and pictures (`RTSW`). group: containerlab's name for the row; its graph sorts by it.
    uplink_bps: bit/s of a link to the level above, unless the fabric file sets another rate.
    uplink_ns: delay of such a link on hardware, one way, if the fabric file says `shape`.
    is_edge: hosts are connected to its switches. above_edge: those switches are directly below it.
    counts_uplinks: its links upwards are the uplinks whose spread a run measures. boxed: pictures draw its switches in
    boxes, with their hosts. network: of its switches; hosts, on the first row, can be in several.
    prepends: above 0, routes also go sideways: links within the level are local in a box, and global between boxes.
    Over a global link a switch announces all routes with its AS number so many times more in the path.
    """

    word: str
    title: str
    group: str
    uplink_bps: int = 0
    uplink_ns: int = 0
    is_edge: bool = False
    above_edge: bool = False
    counts_uplinks: bool = False
    boxed: bool = False
    prepends: int = 0
    network: str = BACKEND


@dataclass(frozen=True, slots=True)
class Bridge:
    """The bridge that a switch's port is in. mac: of its router, if the bridge has an address (an SVI)."""

    name: str
    mac: str


@record(frozen=True, slots=True)
class Port:
    """One end of a link. `address` is set on routed host links (both ends); fabric ports are unnumbered. A port in a
    bridge has the bridge's address; only imported topologies have such. network: the one that the link belongs to;
    `Policy.of` has its pool, MTU and queues.
    """

    node: str
    name: str
    mac: str
    peer_node: str
    peer_port: str
    rate_bps: int
    mtu: int
    address: Interface | None = None
    bridge: Bridge | None = None
    network: str = BACKEND

    @property
    def router_mac(self) -> str:
        """The destination MAC of packets that this port's switch is to route."""
        return self.mac if self.bridge is None else self.bridge.mac

    @property
    def router_port(self) -> str:
        """The interface on which the switch's router receives what arrives at this port."""
        return self.name if self.bridge is None else self.bridge.name

    @property
    def ref(self) -> str:
        """`rtsw1:eth3`."""
        return f"{self.node}:{self.name}"

    @property
    def peer_ref(self) -> str:
        """The other end, as `ctsw3:eth1`."""
        return f"{self.peer_node}:{self.peer_port}"


@dataclass(frozen=True, slots=True)
class Node:
    """A switch or a host. Switches have a loopback and a hash seed; in fabrics with a shape also an AS number.

    level: index into `Fabric.levels`: 0 for hosts, then switches upwards. What a level means are the facts of `Level`.
    groups: the numbers of its rack, zone, pod, from 1, the smallest group first; the shape defines the words.
    serves: of a host without ranks, `storage` or `preprocess`.
    """

    name: str
    role: Role
    level: int
    index: int  # from 1, within its level
    ports: tuple[Port, ...]
    groups: tuple[tuple[str, int], ...] = ()
    asn: int | None = None
    loopback: Address | None = None  # in IPv4 also the BGP router id
    prefix: Network | None = None  # the edge prefix: of the links to its hosts; the switch announces it
    hash_seed: int | None = None  # 32 bits, never 0 (0 means "random" to the kernel)
    router_id: IPv4Address | None = None  # BGP's, in IPv6 fabrics too
    serves: str = ""

    def group(self, word: str | None) -> int | None:
        """The number of the node's group with that word (`rack`); None when it is in none."""
        return dict(self.groups).get(word or "")

    def port(self, name: str) -> Port:
        """The port of that name; KeyError when there is none."""
        for port in self.ports:
            if port.name == name:
                return port
        raise KeyError(f"{self.name}:{name}")


@record(frozen=True, slots=True)
class Link:
    """Two ports, as node and port names; `a` is on the lower level."""

    a: tuple[str, str]
    b: tuple[str, str]
    rate_bps: int
    mtu: int


@dataclass(frozen=True, slots=True)
class MapRows:
    """Where a node is in the maps that the programs of all nodes share (switch/queues/cells.py).

    index: its row of `switches`. first: its lowest port id; `width` of them are reserved for it. ids: of its ports.
    cross: the first of its (width + 1) * width pairs of ports in `transit`; hosts have none.
    """

    index: int
    first: int
    width: int
    cross: int
    ids: tuple[int, ...]

    @property
    def pairs(self) -> int:
        """The number of pairs of ports of a switch: it keeps the bytes of each in and out."""
        return (self.width + 1) * self.width


@dataclass(frozen=True)
class Wiring:
    """Nodes, ports and links, with the words for them and their policy.

    levels: the rows, hosts first. box: the word of the groups that a picture draws as boxes, and to which placement
    assigns ranks in turn. area: the word of larger groups, into which large fabrics are divided. sizes: the keys of the
    fabric file that add NICs. kept_places: of a lab that was changed while it ran; see `places`. shard: the nodes of
    this kernel, where others have the rest.
    """

    name: str
    policy: Policy
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    levels: tuple[Level, ...] = ()
    box: str = ""
    area: str = ""
    sizes: tuple[str, ...] = ()
    kept_places: Mapping[str, MapRows] = field(default_factory=dict)
    shard: frozenset[str] | None = None

    @cached_property
    def places(self) -> Mapping[str, MapRows]:
        """Node -> its place in the maps: in file order, with room behind the ports of each switch for more of them."""
        if self.kept_places:
            return self.kept_places
        found, first, cross = dict[str, MapRows](), 1, 0
        for index, node in enumerate(self.nodes_here):
            found[node.name] = place = self.place_at(node, index, first, cross)
            first += place.width
            cross += place.pairs if node.role is Role.SWITCH else 0
        return found

    def place_at(self, node: Node, index: int, first: int, cross: int) -> MapRows:
        """The place of a node behind others."""
        width = len(node.ports) + (_ROOM if self._has_room and node.role is Role.SWITCH else 0)
        return MapRows(index, first, width, cross, tuple(range(first, first + len(node.ports))))

    @cached_property
    def space(self) -> tuple[int, int, int]:
        """How many nodes, port ids (from 0) and pairs of ports the maps of a new lab have, with room for new nodes."""
        widest = max((place.width for place in self.places.values()), default=0) if self._has_room else 0
        switches = [self.places[node.name] for node in self.nodes_here if node.role is Role.SWITCH]
        more = _NEW_SWITCHES * widest
        return (
            len(self.nodes_here) + (_NEW_NODES if self._has_room else 0),
            1 + sum(place.width for place in self.places.values()) + more,
            sum(place.pairs for place in switches) + more * (widest + 1),
        )

    @cached_property
    def _has_room(self) -> bool:
        """Imported topologies have no sizes, and are not changed while they run; nor are shards."""
        return (
            self.shard is None and bool(self.sizes) and sum(len(node.ports) for node in self.nodes) <= _MOST_WITH_ROOM
        )

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Node name -> node."""
        return {node.name: node for node in self.nodes}

    def of_shard(self, nodes: Collection[str]) -> Self:
        """The same fabric, as the kernel that has only these nodes sees it."""
        return replace(self, shard=frozenset(nodes), kept_places={})

    @cached_property
    def nodes_here(self) -> tuple[Node, ...]:
        """The nodes of this kernel, in file order."""
        return self.nodes if self.shard is None else tuple(node for node in self.nodes if node.name in self.shard)

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """All nodes that are not hosts, in file order."""
        return tuple(n for n in self.nodes if n.role is Role.SWITCH)

    @cached_property
    def hosts(self) -> tuple[Node, ...]:
        """All hosts, in file order."""
        return tuple(n for n in self.nodes if n.role is Role.HOST)

    @cached_property
    def host_ports(self) -> tuple[Port, ...]:
        """All ports of hosts, of every network, in file order."""
        return tuple(port for host in self.hosts for port in host.ports)

    @cached_property
    def nics(self) -> tuple[Port, ...]:
        """The ports that can carry ranks, in file order. In an imported topology some have no address."""
        return tuple(port for nics in self.nics_of.values() for port in nics)

    @cached_property
    def nics_of(self) -> Mapping[str, tuple[Port, ...]]:
        """Host -> its NICs; none at hosts that serve."""
        return {
            host.name: tuple(port for port in host.ports if port.network == BACKEND and not host.serves)
            for host in self.hosts
        }

    @cached_property
    def networks(self) -> tuple[str, ...]:
        """The networks of the fabric, the one that carries ranks first."""
        return (BACKEND, *self.policy.others)

    def ports_of(self, network: str) -> tuple[Port, ...]:
        """All ports of a network, of switches and hosts, in file order."""
        return tuple(port for node in self.nodes for port in node.ports if port.network == network)

    def ends(self, network: str) -> Mapping[str, tuple[Port, ...]]:
        """Host -> its ports that take part in a network, for each host that has one.

        With `share_nics` the front-end has the links of the back-end: trainers use their NICs.
        """
        if network == BACKEND:
            found = self.nics_of
        else:
            own = network if network in self.policy.others or not any(host.serves for host in self.hosts) else BACKEND
            found = {host.name: tuple(port for port in host.ports if port.network == own) for host in self.hosts}
        return {host: ports for host, ports in found.items() if ports}

    def servers(self, word: str) -> tuple[Node, ...]:
        """The hosts that serve as `storage` or `preprocess`, in file order."""
        return tuple(host for host in self.hosts if host.serves == word)

    @cached_property
    def gateways(self) -> Mapping[tuple[str, str], Port]:
        """Node and name of a host's port -> the port at the other end."""
        hosts, peers = {host.name for host in self.hosts}, {port.peer_node for port in self.host_ports}
        nodes = [node for node in self.nodes if node.name in peers]
        return {(p.peer_node, p.peer_port): p for node in nodes for p in node.ports if p.peer_node in hosts}

    @cached_property
    def nic_at(self) -> Mapping[str, Port]:
        """Address, as text -> the port of a host, of any network."""
        return {str(port.address.ip): port for port in self.host_ports if port.address is not None}

    def level_of(self, node: Node) -> Level:
        """The row that a node is in."""
        return self.levels[node.level]

    @property
    def host_level(self) -> Level:
        """The row of hosts."""
        return self.levels[0]

    @property
    def switch_levels(self) -> tuple[Level, ...]:
        """The rows of switches, upwards; some can be without a node."""
        return self.levels[1:]

    @cached_property
    def boxed_levels(self) -> tuple[int, ...]:
        """Indexes of the rows that pictures draw in boxes, upwards: hosts, and the levels that say so."""
        return tuple(n for n, level in enumerate(self.levels) if level.boxed or level is self.host_level)

    @cached_property
    def top_level(self) -> Level:
        """The highest row that has a node."""
        return self.levels[max((node.level for node in self.nodes), default=0)]

    @cached_property
    def sideways(self) -> bool:
        """Whether routes go by links within a level, see Level.prepends."""
        return any(level.prepends for level in self.levels)

    def is_sideways(self, port: Port) -> bool:
        """Whether its link is within a level where routes go sideways."""
        node = self.by_name[port.node]
        return self.levels[node.level].prepends > 0 and node.level == self.by_name[port.peer_node].level

    def is_global(self, port: Port) -> bool:
        """Whether its link goes sideways to another box."""
        node, peer = self.by_name[port.node], self.by_name[port.peer_node]
        return self.is_sideways(port) and node.group(self.box) != peer.group(self.box)

    def leads_up(self, port: Port) -> bool:
        """Whether a node of a higher level is at the other end, or of the same one where routes go sideways."""
        return self.is_sideways(port) or self.by_name[port.peer_node].level > self.by_name[port.node].level

    def is_uplink(self, port: Port) -> bool:
        """Whether it is one of the links whose spread a run measures: a global one, where routes go sideways."""
        counts = self.level_of(self.by_name[port.node]).counts_uplinks
        return counts and self.leads_up(port) and self.is_sideways(port) == self.is_global(port)

    def direction(self, node: str, peer: str) -> str:
        """Of a link: `RTSW to CTSW`; with its class where it goes sideways, `switch to switch (global)`."""
        ends = [self.by_name[name] for name in (node, peer)]
        text = " to ".join(self.level_of(each).title for each in ends)
        if not self.sideways or ends[0].level != ends[1].level:
            return text
        return f"{text} ({'local' if ends[0].group(self.box) == ends[1].group(self.box) else 'global'})"

    def leads_to_host(self, port: Port) -> bool:
        """Whether a host is at the other end."""
        return self.by_name[port.peer_node].role is Role.HOST

    def uplinks_of(self, node: Node) -> int:
        """How many of a node's ports lead up (or sideways)."""
        return sum(self.leads_up(port) for port in node.ports)

    @cached_property
    def slowest_bps(self) -> int:
        """The rate of the slowest link that data of ranks can pass; without any 1 Mbit/s, the minimum."""
        return min((port.rate_bps for port in self.ports_of(BACKEND)), default=10**6)

    @cached_property
    def part_of(self) -> Mapping[str, int]:
        """Switch -> the number of its connected part of the fabric, from 0 in file order. Each plane is a part."""
        found: dict[str, int] = {}
        names = {switch.name for switch in self.switches}
        number = -1
        for start in self.switches:
            reached = [] if start.name in found else [start.name]
            number += len(reached)
            found |= dict.fromkeys(reached, number)
            while reached and len(found) < len(names):
                node = self.by_name[reached.pop()]
                more = {p.peer_node for p in node.ports if p.peer_node in names and p.peer_node not in found}
                found |= dict.fromkeys(more, number)
                reached += more
        return found

    @cached_property
    def edges(self) -> tuple[Node, ...]:
        """The switches that announce an edge prefix, in file order. Edge number N, from 1, is the Nth of them."""
        return tuple(n for n in self.switches if n.prefix is not None)

    @cached_property
    def edge_of(self) -> Mapping[str, int]:
        """Switch -> its edge number, for those that have one."""
        return {node.name: number for number, node in enumerate(self.edges, 1)}

    @cached_property
    def prefixes(self) -> Mapping[int, Network]:
        """Edge number -> the prefix."""
        return {number: n.prefix for number, n in enumerate(self.edges, 1) if n.prefix is not None}

    @cached_property
    def edge_prefixes(self) -> Mapping[Network, str]:
        """Edge prefix -> the switch that announces it."""
        return {n.prefix: n.name for n in self.edges if n.prefix is not None}

    @cached_property
    def slices(self) -> Mapping[str, tuple[int, tuple[Network, ...]]]:
        """Edge switch -> the address bits of one NIC, where the networks of its links to NICs fill its prefix from the
        start, one after the other; else 128, and these networks, in the order of its ports.
        """
        return {node.name: _slices(node) for node in self.edges}


def _slices(edge: Node) -> tuple[int, tuple[Network, ...]]:
    links = tuple(port.address.network for port in edge.ports if port.address is not None)
    if not links or edge.prefix is None:
        return 128, ()
    shift, start = links[0].max_prefixlen - links[0].prefixlen, int(edge.prefix.network_address)
    regular = all(
        link.prefixlen + shift == link.max_prefixlen and int(link.network_address) == start + (index << shift)
        for index, link in enumerate(links)
    )
    return (shift, ()) if regular else (128, links)


def refuse_level_links(wiring: Wiring) -> None:
    """InputError for each link within one level: routes climb and descend, so none would use it."""
    problems = Problems()
    level = {node.name: node.level for node in wiring.nodes}
    for link in wiring.links:
        if level[link.a[0]] == level[link.b[0]] and not wiring.levels[level[link.a[0]]].prepends:
            what = f"the link {':'.join(link.a)} - {':'.join(link.b)}"
            why = f"is within level {wiring.levels[level[link.a[0]]].word}: no route climbs or descends by it"
            problems.add(where=wiring.name, what=what, why=why, hint="join nodes of two levels")
    problems.raise_if_any()


def ports_above(fabric: Wiring, nics: Collection[str]) -> frozenset[str]:
    """Both ends of every link whose lower end is one of these NICs, or a switch above one of them.

    nics: ports of hosts, `host1:eth1`. A switch is above a NIC when links lead down from it to that NIC, level by
    level. A link within one level has its lower end at `a`, and leads no higher. Where routes go sideways, the links
    between switches of boxes with such NICs are used, also those of switches without one.
    """
    found: set[str] = set()
    nodes: set[str] = set()  # switches above the NICs
    level = {node.name: node.level for node in fabric.nodes}
    for link in sorted(fabric.links, key=lambda link: level[link.a[0]]):
        low = ":".join(link.a)
        if fabric.sideways and level[link.a[0]] == level[link.b[0]]:
            continue
        if low in nics if level[link.a[0]] == 0 else link.a[0] in nodes:
            found |= {low, ":".join(link.b)}
            if level[link.b[0]] > level[link.a[0]]:
                nodes.add(link.b[0])
    above = (fabric.by_name[name] for name in nodes)
    boxes = {node.group(fabric.box) for node in above if fabric.level_of(node).prepends}
    inside = (node for node in fabric.switches if node.group(fabric.box) in boxes)
    for port in (port for node in inside for port in node.ports if fabric.is_sideways(port)):
        if fabric.by_name[port.peer_node].group(fabric.box) in boxes:
            found.add(port.ref)
    return frozenset(found)
