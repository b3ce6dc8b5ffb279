"""A search for the places of ranks that load the links between racks and areas least.

In:  slots (NICs) in groups by level, the bytes between ranks, and places to begin with.
Out: a slot for each rank. The same seed gives the same places, and the number of steps is limited.
Ranks that exchange most bytes are put together first (greedy). Then pairs of ranks change places, and whole hosts move
to free hosts, as long as the cost falls (Kernighan and Lin, "An efficient heuristic procedure for partitioning graphs",
Bell System Technical Journal 49, 1970; Fiduccia and Mattheyses, DAC 1982).
The cost is a sum over the cuts around all groups: the time that each needs, as a share of the busiest NIC's time, to
the fourth power, so that the busiest cut counts most. A small linear part avoids bytes on links that limit nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I64
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.traffic.placement import in_turn, shuffled

_RANDOM: Final = 3


@dataclass(frozen=True, slots=True)
class FreeHost:
    """A host with free NICs, and the numbers of its box and area; 0 where there is none."""

    name: str
    nics: tuple[Port, ...]
    box: int
    area: int


def free_hosts(fabric: Fabric, free: Sequence[Port]) -> list[FreeHost]:
    """The hosts of free NICs, in file order."""
    found: dict[str, list[Port]] = {}
    for port in free:
        found.setdefault(port.node, []).append(port)
    node = fabric.by_name
    return [
        FreeHost(name, tuple(nics), node[name].group(fabric.box) or 0, node[name].group(fabric.area) or 0)
        for name, nics in found.items()
    ]


def candidates(hosts: Sequence[FreeHost], ranks: int, seed: int) -> dict[str, list[Port]]:
    """Name -> NICs by rank. hosts: with as many NICs as ranks, or more. seed: the first one of the random orders."""
    turns = in_turn([[*in_turn(_split(area, lambda host: host.box))] for area in _split(hosts, lambda host: host.area)])
    interleaved = _nics(turns)[:ranks]
    chosen = {nic.ref for nic in interleaved}
    return {
        "packed": packed(hosts, ranks)[:ranks],
        "spread": [nic for nic in _nics(hosts) if nic.ref in chosen],
        "interleaved": interleaved,
        **{f"random:{n}": _nics(shuffled(hosts, n))[:ranks] for n in range(seed, seed + _RANDOM)},
    }


def packed(hosts: Sequence[FreeHost], ranks: int) -> list[Port]:
    """All NICs, in the order of `packed_hosts`."""
    return _nics(packed_hosts(hosts, ranks))


def packed_hosts(hosts: Sequence[FreeHost], ranks: int) -> list[FreeHost]:
    """All hosts, those first that fill the fewest areas and boxes, and leave the largest ones free."""
    found: list[FreeHost] = []
    for area in _fewest(_split(hosts, lambda host: host.area), ranks):
        missing = ranks - sum(len(host.nics) for host in found)
        for box in _fewest(_split(area, lambda host: host.box), missing):
            found += box
    return found


def _fewest(groups: Sequence[Sequence[FreeHost]], ranks: int) -> list[Sequence[FreeHost]]:
    """All groups in the order of use: the smallest one that has enough for all ranks left, else the largest one."""
    left, found = [*groups], []
    while left:
        enough = [group for group in left if _size(group) >= ranks > 0]
        chosen = min(enough, key=_size) if enough else max(left, key=_size)
        left.remove(chosen)
        found.append(chosen)
        ranks -= _size(chosen)
    return found


def _split(hosts: Sequence[FreeHost], key: Callable[[FreeHost], int]) -> list[list[FreeHost]]:
    found: dict[int, list[FreeHost]] = {}
    for host in hosts:
        found.setdefault(key(host), []).append(host)
    return [*found.values()]


def _size(hosts: Sequence[FreeHost]) -> int:
    return sum(len(host.nics) for host in hosts)


def _nics(hosts: Iterable[FreeHost]) -> list[Port]:
    return [*chain.from_iterable(host.nics for host in hosts)]


_PASSES: Final = 8  # over all ranks and hosts
_MOST_TRIES: Final = 20_000  # changes that are tried: a few seconds
_MOST_VISITS: Final = 60_000_000  # connections that these tries read
_POWER: Final = 4
_LINEAR: Final = 0.01
_TARGETS: Final = 3  # partners of a rank in a group
_FREE_HOSTS: Final = 8  # for each host
_NEXT_LEVEL: Final = 1 / 1024  # how much less a coarser level counts in the greedy order
MOST_CONNECTIONS: Final = 4_000_000  # beyond that the search takes minutes, and such traffic is mostly uniform


@dataclass(frozen=True)
class CutLevel:
    """Groups of slots, and the cut around each. group: (slots,). bps: (groups,), both directions alike, in bit/s.

    out, into: (groups,), bytes of other jobs that leave and enter each.
    """

    group: I64
    bps: F64
    out: F64
    into: F64


@dataclass(frozen=True)
class Exchange:
    """The bytes between ranks: src, dst, bytes of shape (connections,). ranks: their number."""

    src: I64
    dst: I64
    bytes: F64
    ranks: int


def search(
    levels: Sequence[CutLevel], host: I64, traffic: Exchange, starts: Sequence[I64], nic_s: float, seed: int
) -> list[I64]:
    """The slot of each rank, (ranks,): one result for each start, those of lower cost first.

    levels: the finest first. host: (slots,). starts: slots in an order, of which the first ones are used. nic_s: the
    busiest NIC's seconds. seed: of the order in which changes are tried.
    """
    graph = _Graph(traffic)
    searches = [
        _Search(levels, host, graph, places, nic_s)
        for slots in starts
        for places in (slots[: traffic.ranks], _grown(levels, slots[: traffic.ranks], graph))
    ]
    for each in searches:
        each.improve(np.random.default_rng(seed), _MOST_TRIES // len(searches))
    return [each.place for each in sorted(searches, key=lambda each: each.cost)]


class _Graph:
    """Traffic with an index from ranks to connections."""

    def __init__(self, traffic: Exchange) -> None:
        out = traffic.src != traffic.dst  # the others never cross a cut
        self.src, self.dst, self.bytes = traffic.src[out], traffic.dst[out], traffic.bytes[out]
        self.ranks = traffic.ranks
        ends = np.concatenate([self.src, self.dst])
        order = np.argsort(ends, kind="stable")
        self._connection = order % max(1, len(self.src))
        self._peer = np.concatenate([self.dst, self.src])[order]
        self._start = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=self.ranks))])

    def of(self, ranks: I64) -> I64:
        """The connections with an end at one of these ranks, each once."""
        parts = []
        for at, rank in enumerate(ranks.tolist()):
            part = slice(self._start[rank], self._start[rank + 1])
            new = ~np.isin(self._peer[part], ranks[:at]) if at else slice(None)  # np.unique takes most of the search
            parts.append(self._connection[part][new])
        return np.concatenate(parts)

    def near(self, rank: int) -> tuple[I64, F64]:
        """The peers of a rank, and the bytes of each connection with it."""
        part = slice(self._start[rank], self._start[rank + 1])
        return self._peer[part], self.bytes[self._connection[part]]


def _grown(levels: Sequence[CutLevel], slots: I64, graph: _Graph) -> I64:
    """Fill group after group of the finest level, each time with the rank that has most bytes with those in it."""
    finest = next(iter(levels)).group
    first: dict[int, int] = {}
    for at, group in enumerate(finest[slots].tolist()):
        first.setdefault(group, at)
    slots = slots[np.argsort([first[group] for group in finest[slots].tolist()], kind="stable")]
    left = [np.bincount(level.group[slots]) for level in levels]
    near: dict[tuple[int, int], F64] = {}  # of groups with free slots: bytes of each rank with the ranks there
    place = np.full(graph.ranks, -1, dtype=np.int64)
    for slot in slots.tolist():
        keys = [(number, int(level.group[slot])) for number, level in enumerate(levels)]
        score = np.where(place < 0, 0.0, -1.0)
        for number, group in keys:
            if (number, group) in near:
                score += near[number, group] * (place < 0) * _NEXT_LEVEL**number
        rank = int(score.argmax())
        place[rank] = slot
        peers, amount = graph.near(rank)
        more: F64 = np.bincount(peers, weights=amount, minlength=graph.ranks).astype(np.float64)
        for number, group in keys:
            left[number][group] -= 1
            if left[number][group]:
                near[number, group] = near[number, group] + more if (number, group) in near else more
            else:
                near.pop((number, group), None)
    return place


class _Search:
    """Places that get better. cost: of these places now."""

    def __init__(self, levels: Sequence[CutLevel], host: I64, graph: _Graph, place: I64, nic_s: float) -> None:
        self.place = place.copy()
        self._levels, self._host, self._graph, self._nic_s = levels, host, graph, nic_s
        every = np.arange(len(graph.src))
        self._loads = [np.stack([level.out, level.into]) + self._crossing(level, every) for level in levels]
        self.cost = self._cost(self._loads)
        self._visits = 0

    def _crossing(self, level: CutLevel, some: I64) -> F64:
        """(2, groups): bytes of these connections out of and into each group."""
        here, there = level.group[self.place[self._graph.src[some]]], level.group[self.place[self._graph.dst[some]]]
        amount = np.where(here != there, self._graph.bytes[some], 0.0)
        return np.stack([np.bincount(ends, weights=amount, minlength=len(level.bps)) for ends in (here, there)])

    def _cost(self, loads: Sequence[F64]) -> float:
        shares = [load * 8 / np.maximum(level.bps, 1.0) / self._nic_s
                  for level, load in zip(self._levels, loads, strict=True)]  # fmt: skip
        return sum(float((share**_POWER).sum() + _LINEAR * share.sum()) for share in shares)

    def _try(self, ranks: I64, slots: I64) -> bool:
        """Move ranks to slots, if that costs less."""
        old = self.place[ranks]
        if all((level.group[old] == level.group[slots]).all() for level in self._levels):
            return False
        some = self._graph.of(ranks)
        self._visits += len(some)
        before = [self._crossing(level, some) for level in self._levels]
        self.place[ranks] = slots
        after = [self._crossing(level, some) for level in self._levels]
        loads = [load - less + more for load, less, more in zip(self._loads, before, after, strict=True)]
        cost = self._cost(loads)
        if cost < self.cost * (1 - 1e-9):
            self._loads, self.cost = loads, cost
            return True
        self.place[ranks] = old
        return False

    def improve(self, random: np.random.Generator, tries: int) -> None:
        for _ in range(_PASSES):
            changed = False
            for ranks, slots in self._changes(random):
                if tries <= 0 or self._visits > _MOST_VISITS:
                    return
                tries -= 1
                changed |= self._try(ranks, slots)
            if not changed:
                return

    def _changes(self, random: np.random.Generator) -> Iterator[tuple[I64, I64]]:
        """Ranks and their new slots, made from the places at the time."""
        for rank in random.permutation(self._graph.ranks).tolist():
            peers, amount = self._graph.near(rank)
            for level in reversed(self._levels):
                group = level.group[self.place]
                near = np.bincount(group[peers], weights=amount, minlength=len(level.bps))
                best = int(near.argmax())
                if near[best] <= near[group[rank]]:
                    continue
                there = np.setdiff1d(np.flatnonzero(group == best), peers)
                for other in random.permutation(there)[:_TARGETS].tolist():
                    pair = np.array([rank, other])
                    yield pair, self.place[pair[::-1]]
        yield from self._host_moves(random)

    def _host_moves(self, random: np.random.Generator) -> Iterator[tuple[I64, I64]]:
        """All ranks of a host to a free host."""
        hosts = int(self._host.max()) + 1
        slots_of = np.split(np.argsort(self._host, kind="stable"), np.cumsum(np.bincount(self._host))[:-1])
        for host in random.permutation(np.unique(self._host[self.place])).tolist():
            ranks = np.flatnonzero(self._host[self.place] == host)
            used = np.bincount(self._host[self.place], minlength=hosts)
            number = {slot: at for at, slot in enumerate(slots_of[host].tolist())}
            at = np.array([number[slot] for slot in self.place[ranks].tolist()], dtype=np.int64)
            for free in random.permutation(np.flatnonzero(used == 0))[:_FREE_HOSTS].tolist():
                if len(slots_of[free]) > at.max():
                    yield ranks, slots_of[free][at]
