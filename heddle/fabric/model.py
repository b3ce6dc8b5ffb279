"""The built fabric: frozen values, derived from the fabric file alone.

In:  nothing; shapes build these from a FabricSpec.
Out: Fabric, with nodes in a fixed order, ports in the order eth1, eth2, ..., and links in the order they were drawn.
Two builds of one spec are equal, so two `up`s give the same fabric, path for path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from heddle.base.families import Address, Interface, Network
from heddle.fabric.nexthops import Group, next_hop_groups, racks_of

if TYPE_CHECKING:
    from heddle.spec.schema import FabricSpec


class Tier(StrEnum):
    """Where a node stands, from the hosts up."""

    HOST = "host"
    RTSW = "rtsw"
    CTSW = "ctsw"
    ATSW = "atsw"


class Role(StrEnum):
    """What a node does: it forwards, or it sends and receives."""

    HOST = "host"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Level:
    """One row of a fabric, from the hosts up: how its nodes are called and shown. Each shape supplies its own.

    word: names are word + index (`rtsw3`); it is also a label, a seed under `per-tier`, a key of `queues.buffer`.
    title: the word in tables and pictures (`RTSW`). group: containerlab's name for the row, which its graph sorts by.
    """

    word: str
    title: str
    group: str


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a link. `address` is set on routed host links (both ends); fabric ports are unnumbered."""

    node: str
    name: str
    mac: str
    peer_node: str
    peer_port: str
    rate_bps: int
    mtu: int
    address: Interface | None = None

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
    """A switch or a host. Switches have asn, loopback and hash_seed; RTSWs and hosts have a rack; RTSWs a prefix."""

    name: str
    tier: Tier
    index: int  # from 1, within its tier
    ports: tuple[Port, ...]
    rack: int | None = None  # from 1
    asn: int | None = None
    loopback: Address | None = None  # in IPv4 also the BGP router id
    prefix: Network | None = None  # the rack's prefix, announced by its RTSW
    hash_seed: int | None = None  # 32 bits, never 0 (0 means "random" to the kernel)
    zone: int | None = None  # from 1; ATSWs belong to none, and where there are none there is one zone
    router_id: IPv4Address | None = None  # BGP's, in IPv6 fabrics too

    @property
    def role(self) -> Role:
        """Host or switch."""
        return Role.HOST if self.tier is Tier.HOST else Role.SWITCH

    @property
    def level(self) -> int:
        """Index into `Fabric.levels`: 0 for hosts, 1 for the switches that hosts hang on, and so on."""
        return tuple(Tier).index(self.tier)

    def port(self, name: str) -> Port:
        """The port of that name; KeyError when there is none."""
        for port in self.ports:
            if port.name == name:
                return port
        raise KeyError(f"{self.name}:{name}")


@dataclass(frozen=True, slots=True)
class Link:
    """Two ports, as node and port names; `a` is the lower tier."""

    a: tuple[str, str]
    b: tuple[str, str]
    rate_bps: int
    mtu: int


@dataclass(frozen=True)
class Fabric:
    """Everything derived from one fabric file."""

    name: str
    spec: FabricSpec
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The rows of this fabric, hosts first."""
        return (
            Level("host", "hosts", "server"),
            Level("rtsw", "RTSW", "leaf"),
            Level("ctsw", "CTSW", "spine"),
            Level("atsw", "ATSW", "superspine"),
        )

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Node name -> node."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def switches(self) -> tuple[Node, ...]:
        """All nodes that are not hosts, in file order."""
        return tuple(n for n in self.nodes if n.tier is not Tier.HOST)

    @cached_property
    def hosts(self) -> tuple[Node, ...]:
        """All hosts, rack by rack."""
        return tuple(n for n in self.nodes if n.tier is Tier.HOST)

    @cached_property
    def rack_prefixes(self) -> Mapping[Network, str]:
        """Rack prefix -> the RTSW that announces it."""
        return {n.prefix: n.name for n in self.nodes if n.tier is Tier.RTSW and n.prefix is not None}

    @cached_property
    def expected_next_hops(self) -> Mapping[str, Mapping[Network, frozenset[str]]]:
        """Switch -> prefix -> names of the egress ports on all shortest paths.

        Prefixes are those of all racks but the switch's own, and in its place the networks of its host links.
        """
        return self.next_hops(self.next_hop_groups)

    def next_hops(self, groups: Mapping[str, Sequence[Group]]) -> dict[str, dict[Network, frozenset[str]]]:
        """The same for groups of any state of the fabric (nexthops.py); host links are as the file has them."""
        table: dict[str, dict[Network, frozenset[str]]] = {}
        for switch in self.switches:
            hops: dict[Network, frozenset[str]] = {
                p.address.network: frozenset({p.name}) for p in switch.ports if p.address is not None
            }
            ways: dict[int, frozenset[str]] = {}
            for group in groups[switch.name]:
                ways |= dict.fromkeys(racks_of(group.racks), frozenset(group.ports))
            # Racks in order, whichever group they are of: tables and messages go by it.
            hops |= {self.prefixes[rack]: ways[rack] for rack in sorted(ways) if rack in self.prefixes}
            table[switch.name] = hops
        return table

    @cached_property
    def prefixes(self) -> Mapping[int, Network]:
        """Rack -> its prefix."""
        return {n.rack: n.prefix for n in self.nodes if n.rack is not None and n.prefix is not None}

    @cached_property
    def next_hop_groups(self) -> Mapping[str, tuple[Group, ...]]:
        """Switch -> its ways to racks, one group for all racks that have the same ports; see nexthops.py."""
        return next_hop_groups(self)
