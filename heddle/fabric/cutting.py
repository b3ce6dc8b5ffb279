"""Cut a fabric into shards: which nodes are together on one machine, and which links are cut.

In:  a fabric, the number of shards.
Out: Cut. Edge switches stay with their hosts. Racks go to shards in blocks, in their order: neighbours in a ring are
neighbours in a shard. Each other switch, from the lowest level up, goes where most of its links lead, among the shards
that still have room; so the memory is balanced. Nothing is random: the same fabric is always cut in the same way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric, Link, Node, Role

# Resident memory of a node, MB. A switch: zebra, bgpd, namespace and maps (facts of `./inv bench large`: 252 + 18
# switches and their links take 13.4 GB). A host has no daemon: its namespace, its queues, and its share of a worker.
_SWITCH_MB: Final = 50
_HOST_MB: Final = 10
_SHARD_MB: Final = 150  # Heddle's own processes: the agents, the worker's code
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """The nodes that are together. memory_mb: an estimate."""

    name: str  # s1, s2, ...
    nodes: tuple[str, ...]
    switches: int
    memory_mb: int


@dataclass(frozen=True)
class Cut:
    """A fabric in shards. links: those whose ends are in different shards."""

    shards: tuple[Shard, ...]
    links: tuple[Link, ...]

    @cached_property
    def home(self) -> dict[str, str]:
        """Node -> its shard."""
        return {node: shard.name for shard in self.shards for node in shard.nodes}

    @property
    def imbalance(self) -> float:
        """The largest memory of a shard over the mean, minus 1."""
        sizes = [shard.memory_mb for shard in self.shards]
        return max(sizes) * len(sizes) / sum(sizes) - 1


def cut(fabric: Fabric, count: int) -> Cut:
    """Cut a fabric. InputError for a number of shards that it cannot have."""
    racks = _racks(fabric)
    most = min(len(racks), _MOST)
    if not 1 <= count <= most:
        why = f"is outside 1 to {most}: a rack stays in one shard, and {fabric.name} has {len(racks)}"
        raise InputError(Problem("", f"--shards {count}", why, f"use --shards {min(max(count, 1), most)}"))
    home: dict[str, int] = {}
    sizes = [0] * count
    for at, rack in enumerate(racks):
        shard = at * count // len(racks)
        for node in rack:
            home[node.name] = shard
            sizes[shard] += _memory_mb(node)
    rest = [node for node in fabric.nodes if node.name not in home]
    share = (sum(sizes) + sum(map(_memory_mb, rest))) / count
    for node in sorted(rest, key=lambda each: each.level):
        lead = Counter(home[port.peer_node] for port in node.ports if port.peer_node in home)
        room = [at for at in range(count) if sizes[at] + _memory_mb(node) <= share] or [*range(count)]
        best = min(room, key=lambda at: (-lead[at], sizes[at], at))
        home[node.name] = best
        sizes[best] += _memory_mb(node)
    names = [f"s{at + 1}" for at in range(count)]
    members = [[node for node in fabric.nodes if home[node.name] == at] for at in range(count)]
    shards = tuple(
        Shard(
            name, tuple(node.name for node in own), sum(node.role is Role.SWITCH for node in own),
            _SHARD_MB + sum(map(_memory_mb, own)),
        )
        for name, own in zip(names, members, strict=True)
    )  # fmt: skip
    return Cut(shards, tuple(link for link in fabric.links if home[link.a[0]] != home[link.b[0]]))


def _racks(fabric: Fabric) -> list[list[Node]]:
    """Groups of nodes that stay together: switches with hosts in common, and these hosts; in the fabric's order."""
    group: dict[str, int] = {}
    for host in fabric.hosts:
        edges = {port.peer_node for port in host.ports}
        known = {group[edge] for edge in edges if edge in group}
        number = min(known, default=len(group))
        for name, old in list(group.items()):  # a host of two racks joins them
            if old in known:
                group[name] = number
        group |= dict.fromkeys((*edges, host.name), number)
    found: dict[int, list[Node]] = {}
    for node in fabric.nodes:
        if node.name in group:
            found.setdefault(group[node.name], []).append(node)
    return [found[number] for number in sorted(found)]


def _memory_mb(node: Node) -> int:
    return _SWITCH_MB if node.role is Role.SWITCH else _HOST_MB
