"""The built fabric: its wiring, and the next hops that follow from it.

Out: Fabric, which shapes build from a fabric file. Two builds of one spec are equal, so two `up`s give the same fabric,
path for path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from heddle.base.families import Network
from heddle.fabric.nexthops import Group, edges_of
from heddle.fabric.ucmp import next_hop_groups
from heddle.fabric.wiring import BACKEND, Bridge, Level, Link, Node, Port, Role, Wiring

__all__ = ["BACKEND", "Bridge", "Fabric", "Level", "Link", "Node", "Port", "Role"]


@dataclass(frozen=True)
class Fabric(Wiring):
    """Everything derived from one fabric file."""

    @cached_property
    def expected_next_hops(self) -> Mapping[str, Mapping[Network, frozenset[str]]]:
        """Switch -> prefix -> names of the egress ports on all shortest paths.

        Prefixes are all edge prefixes that the switch can reach. Instead of its own prefix it has the networks of its
        host links.
        """
        return self.next_hops(self.next_hop_groups)

    def next_hops(self, groups: Mapping[str, Sequence[Group]]) -> dict[str, dict[Network, frozenset[str]]]:
        """The same for groups of any state of the fabric (nexthops.py); host links are as in the file."""
        table: dict[str, dict[Network, frozenset[str]]] = {}
        for switch in self.switches:
            hops: dict[Network, frozenset[str]] = {
                p.address.network: frozenset({p.name}) for p in switch.ports if p.address is not None
            }
            ports: dict[int, frozenset[str]] = {}
            for group in groups[switch.name]:
                ports |= dict.fromkeys(edges_of(group.edges), frozenset(group.ports))
            # Edges in order, independent of their groups: tables and messages use this order.
            hops |= {self.prefixes[edge]: ports[edge] for edge in sorted(ports)}
            table[switch.name] = hops
        return table

    @cached_property
    def next_hop_groups(self) -> Mapping[str, tuple[Group, ...]]:
        """Switch -> its next hops, one group for all edges with the same ports; see nexthops.py."""
        return next_hop_groups(self)
