"""The tables by which a switch's program steers: groups of ports, prefixes, exact entries.

In:  a Fabric, one of its switches, and the options of its mode.
Out: Steering: port names, prefixes and numbers, ready to be written into the switch's maps (maps.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from ipaddress import ip_network
from typing import Any, Final

from heddle.base.families import Network
from heddle.fabric.model import Fabric
from heddle.fabric.policy import HashOptions
from heddle.fabric.wiring import Node

Exact = Mapping[tuple[int, Network], tuple[str, ...]]  # (UDP source port, prefix) -> port, or port and backup
MAX_MEMBERS: Final = 128  # steer.h: the limit of FRR's multipath and of a fabric file's uplinks


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """How a prefix is steered. The slice of an address is slice + ((address - network address) >> shift).

    group: index in Steering.groups. shift: address bits of one NIC; 128: the whole prefix is one slice.
    """

    group: int
    slice: int = 0
    shift: int = 128


@dataclass(frozen=True)
class Steering:
    """The steering tables of one switch, with its port names."""

    groups: tuple[tuple[str, ...], ...] = ()  # members, in the switch's port order, which is the kernel's
    slots: tuple[tuple[str, ...], ...] = ()  # per group: the table that round-robin and resilient buckets index
    prefixes: Mapping[Network, PrefixRule] = field(default_factory=dict)
    exact: Exact = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "groups": [list(group) for group in self.groups],
            "slots": [list(slots) for slots in self.slots],
            "prefixes": {str(prefix): [rule.group, rule.slice, rule.shift] for prefix, rule in self.prefixes.items()},
            "exact": exact_to_json(self.exact),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Steering:
        return cls(
            tuple(tuple(map(str, group)) for group in data["groups"]),
            tuple(tuple(map(str, slots)) for slots in data["slots"]),
            {ip_network(prefix): PrefixRule(*map(int, rule)) for prefix, rule in data["prefixes"].items()},
            exact_from_json(data["exact"]),
        )


NO_STEERING: Final = Steering()


def exact_to_json(exact: Exact) -> list[list[Any]]:
    """A row for each entry: source port, prefix, port, and the backup if there is one."""
    return [[sport, str(prefix), *ports] for (sport, prefix), ports in exact.items()]


def exact_from_json(rows: Iterable[Sequence[Any]]) -> Exact:
    """From the rows of `exact_to_json`. ValueError or TypeError for others."""
    network = cache(ip_network)  # many rows have one prefix, and parsing one is most of the work
    return {(int(sport), network(prefix)): tuple(map(str, ports)) for sport, prefix, *ports in rows}


def steering_of(fabric: Fabric, node: Node, options: HashOptions) -> Steering:
    """The steering tables of a switch: a group for each distinct set of two or more next hops, no exact entries.

    A prefix needs one rule if the networks of its hosts' links fill it from the start, one after the other. Otherwise
    each link has a rule. In both cases a slice is the index of the downlink (above the edge: see _turn).
    """
    order = {port.name: index for index, port in enumerate(node.ports)}
    groups: dict[tuple[str, ...], int] = {}
    prefixes: dict[Network, PrefixRule] = {}
    for prefix, ports in fabric.expected_next_hops[node.name].items():
        if len(ports) < 2:
            continue
        members = tuple(sorted(ports, key=order.__getitem__))
        group = groups.setdefault(members, len(groups))
        prefixes |= _slices(prefix, _downlinks(fabric, prefix), group, _turn(fabric, node, prefix))
    slots = tuple(slots_of(members, options) for members in groups)
    return Steering(tuple(groups), slots, prefixes)


def slots_of(members: tuple[str, ...], options: HashOptions) -> tuple[str, ...]:
    """The table that round-robin and buckets index: the members, or if resilient, one member in turn per bucket."""
    return tuple(members[i % len(members)] for i in range(options.buckets)) if options.resilient else members


def _downlinks(fabric: Fabric, prefix: Network) -> tuple[Network, ...]:
    """The networks of an edge switch's links to NICs, in the order of its ports."""
    owner = fabric.edge_prefixes.get(prefix)
    ports = fabric.by_name[owner].ports if owner is not None else ()
    return tuple(port.address.network for port in ports if port.address is not None)


def _turn(fabric: Fabric, node: Node, prefix: Network) -> int:
    """The offset of every slice of an edge switch: directly above the edge its number, from 0; on other levels 0.

    A switch above the edge receives from below only the slices that are pinned to it. By the slice alone it would never
    use some of its next hops. The next level receives packets sorted by that sum, so there the slice is enough again.
    """
    owner = fabric.edge_prefixes.get(prefix)
    return fabric.edge_of[owner] - 1 if owner is not None and fabric.level_of(node).above_edge else 0


def _slices(prefix: Network, links: tuple[Network, ...], group: int, turn: int) -> dict[Network, PrefixRule]:
    shift = links[0].max_prefixlen - links[0].prefixlen if links else 128
    start = int(prefix.network_address)
    regular = all(
        link.prefixlen + shift == link.max_prefixlen and int(link.network_address) == start + (index << shift)
        for index, link in enumerate(links)
    )
    if regular:
        return {prefix: PrefixRule(group, turn, shift)}
    own = {link: PrefixRule(group, turn + index, 128) for index, link in enumerate(links)}
    return {prefix: PrefixRule(group, turn), **own}
