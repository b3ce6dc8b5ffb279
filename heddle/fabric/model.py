"""The built fabric: its wiring, and the next hops that follow from it.

Out: Fabric, which shapes build from a fabric file. Two builds of one spec are equal, so two `up`s give the same fabric,
path for path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from heddle.base.families import Network
from heddle.base.problems import Problems, did_you_mean
from heddle.fabric.nexthops import Group, edges_of
from heddle.fabric.ucmp import Announcement, announcements, next_hop_groups
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
        return self.groups_without()

    def groups_without(self, dead: Collection[str] = (), drained: Collection[str] = ()) -> dict[str, tuple[Group, ...]]:
        """The same with links and switches that are not used: see ucmp.next_hop_groups."""
        return next_hop_groups(self, self.announcements, dead, drained)

    @cached_property
    def announcements(self) -> Mapping[str, tuple[Announcement, ...]]:
        """Port -> the bandwidths that BGP announces over it; see ucmp.py. Empty without `routing.ucmp`."""
        return announcements(self) if self.policy.routing.ucmp else {}


_PATTERN: Final = frozenset("*?[")


def split_words(typed: Iterable[str]) -> tuple[str, ...]:
    """A flag that was given several times, or once with commas: each word once, in the order typed."""
    return tuple(dict.fromkeys(word.strip() for each in typed for word in each.split(",") if word.strip()))


def is_pattern(word: str) -> bool:
    """Whether a word can mean several names: it has a wildcard or a comma."""
    return "," in word or bool(_PATTERN & set(word))


def matching_names(words: Sequence[str], names: Iterable[str], what: str, flag: str = "") -> list[str]:
    """The names that the words mean. what: `is not a node of zone`; flag: how the words were given, `--host`.

    InputError with a hint for each word that matches no name.
    """
    known = list(names)
    problems = Problems()
    for word in words:
        if not any(fnmatchcase(name, word) for name in known):
            problems.add(where="", what=f"{flag} {word}".strip(), why=what, hint=did_you_mean(word, known))
    problems.raise_if_any()
    return [name for name in known if any(fnmatchcase(name, word) for word in words)]


@dataclass(frozen=True, slots=True)
class NicNames:
    """How the ends of flows are called. ports: address of a NIC -> its port; single: hosts that have one NIC."""

    ports: Mapping[str, str] = field(default_factory=dict)
    single: frozenset[str] = frozenset()

    @classmethod
    def of(cls, wiring: Wiring) -> NicNames:
        """Of all hosts of a fabric."""
        ports = {address: port.ref for address, port in wiring.nic_at.items()}
        return cls(ports, frozenset(host for host, nics in wiring.nics_of.items() if len(nics) == 1))

    def nic(self, host: str, address: str) -> str:
        """`host1:eth2`; the host alone where the address is not of a NIC."""
        return self.ports.get(address, host)

    def shown(self, host: str, address: str) -> str:
        """`host1:eth2`, and `host1` where it has no other NIC."""
        return host if host in self.single else self.nic(host, address)
