"""The built fabric: frozen values, derived from the fabric file alone.

In:  nothing; shapes build these from a FabricSpec.
Out: Fabric, with nodes in a fixed order, ports in the order eth1, eth2, ..., and links in the order they were drawn.
Two builds of one spec are equal, so two `up`s give the same fabric, path for path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topologies.spec import FabricSpec


class Tier(StrEnum):
    """Where a node stands, from the hosts up."""

    HOST = "host"
    RTSW = "rtsw"
    CTSW = "ctsw"


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
    address: IPv4Interface | None = None

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
    loopback: IPv4Address | None = None  # also the BGP router id
    prefix: IPv4Network | None = None  # the rack's prefix, announced by its RTSW
    hash_seed: int | None = None  # 32 bits, never 0 (0 means "random" to the kernel)

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
    def rack_prefixes(self) -> Mapping[IPv4Network, str]:
        """Rack prefix -> the RTSW that announces it."""
        return {n.prefix: n.name for n in self.nodes if n.tier is Tier.RTSW and n.prefix is not None}

    @cached_property
    def expected_next_hops(self) -> Mapping[str, Mapping[IPv4Network, frozenset[str]]]:
        """Switch -> prefix -> names of the egress ports on all shortest paths.

        Prefixes are those of all racks but the switch's own, and in its place the networks of its host links.
        Shortest in switch hops is shortest in AS-path length, since every hop between tiers crosses an AS.
        """
        table: dict[str, dict[IPv4Network, frozenset[str]]] = {
            s.name: {p.address.network: frozenset({p.name}) for p in s.ports if p.address is not None}
            for s in self.switches
        }
        for prefix, owner in self.rack_prefixes.items():
            distance = self._distances(owner)
            for switch in self.switches:
                if switch.name == owner or switch.name not in distance:
                    continue
                near = distance[switch.name] - 1
                table[switch.name][prefix] = frozenset(
                    p.name for p in switch.ports if distance.get(p.peer_node) == near
                )
        return table

    def _distances(self, origin: str) -> dict[str, int]:
        """Hops from `origin` to every switch, by breadth-first search over switch-to-switch links."""
        distance = {origin: 0}
        queue = deque([origin])
        while queue:
            here = queue.popleft()
            for port in self.by_name[here].ports:
                peer = self.by_name[port.peer_node]
                if peer.tier is not Tier.HOST and peer.name not in distance:
                    distance[peer.name] = distance[here] + 1
                    queue.append(peer.name)
        return distance
