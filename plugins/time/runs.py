"""Transfers of closed forms: the runs of equal waves of every collective of Heddle, as arrays.

In:  a pattern, ranks, elements of a rank's array, elements of a message. Out: runs, in any order.
No loop is over ranks and steps. Chunks of a ring, and of the rings of a hierarchy, differ by one element when the ranks
do not divide the array: the longest counts for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heddle.base.arrays import I64
from heddle.traffic.collectives.all_gather import DirectAllGather, RingAllGather
from heddle.traffic.collectives.all_reduce import (
    DirectAllReduce,
    HalvingDoublingAllReduce,
    HierarchicalAllReduce,
    TreeAllReduce,
    double_tree,
)
from heddle.traffic.collectives.all_to_all import RailAlignedAllToAll, StaggeredAllToAll
from heddle.traffic.collectives.barrier import DisseminationBarrier
from heddle.traffic.collectives.broadcast import ChainBroadcast, TreeBroadcast
from heddle.traffic.collectives.hosts import RailPattern, orders, ranks_of_hosts
from heddle.traffic.collectives.incast import DirectGather, DirectIncast, DirectScatter
from heddle.traffic.collectives.matrix import PairMatrix, StaggeredAllToAllV
from heddle.traffic.collectives.pattern import Pattern, chunk_lengths, chunk_range
from heddle.traffic.collectives.permutation import NextSendRecv, RandomPermutation
from heddle.traffic.collectives.reduce import ChainReduce
from heddle.traffic.collectives.reduce_scatter import DirectReduceScatter, RingReduceScatter
from heddle.traffic.collectives.ring import Ring, RingAllReduce

_BLOCKS: Final = 64  # of a long chain


class Time(NamedTuple):
    """When transfers begin: seconds of computations before them, and waves since these ended."""

    after_s: float = 0.0
    wave: int = 0


class Run(NamedTuple):
    """The same transfers in `times` waves one after the other. src, dst, elements: (transfers,), in each wave.

    parts: equal transfers of which each row is the sum. follows: as of a wave (waves.py).
    """

    begin: Time
    times: int
    src: NDArray[Any]
    dst: NDArray[Any]
    elements: I64
    parts: int = 1
    follows: bool = False

    @property
    def end(self) -> Time:
        """When the wave after the last one begins."""
        return self.begin._replace(wave=self.begin.wave + self.times)

    def messages(self, width: int) -> I64:
        """Messages of each row, of at most `width` elements."""
        return -(-self.elements // (self.parts * width)) * self.parts


def _ring(pattern: Ring, ranks: int, count: int, width: int) -> Iterator[Run]:
    steps = (ranks - 1) * (2 if isinstance(pattern, RingAllReduce) else 1)
    for number, order in enumerate(orders(pattern.hosts, ranks, pattern.channels)):
        spans = (chunk_range(number, pattern.channels, chunk) for chunk in (count // ranks, -(-count // ranks)))
        src = np.array(order, dtype=np.int32)
        longest = np.full(ranks, max(hi - lo for lo, hi in spans))
        yield from _passed_on(Time(), steps, src, np.roll(src, -1), longest, width)


def _passed_on(
    begin: Time, steps: int, src: NDArray[Any], dst: NDArray[Any], elements: I64, width: int
) -> Iterator[Run]:
    """Steps of a ring: a transfer of several messages goes on while its end is on its way."""
    yield Run(begin, 1, src, dst, elements)
    follows = bool((elements > width).all())
    yield Run(begin._replace(wave=begin.wave + 1), steps - 1, src, dst, elements, follows=follows)


def _every_pair(pattern: Pattern, ranks: int, count: int, width: int) -> Iterator[Run]:
    """A chunk for each pair: the sender's, or the receiver's. An all-reduce has the second one, then the first."""
    chunks = chunk_lengths(ranks, count)
    src = np.repeat(np.arange(ranks, dtype=np.int32), ranks - 1)
    dst = np.tile(np.arange(ranks - 1, dtype=np.int32), ranks)
    dst += dst >= src
    gather = isinstance(pattern, DirectAllGather)
    for wave, of in enumerate((dst, src) if isinstance(pattern, DirectAllReduce) else (src,) if gather else (dst,)):
        yield Run(Time(0.0, wave), 1, src, dst, chunks[of], follows=wave > 0 and bool(chunks.min() > width))


def _labelled(pattern: Pattern, ranks: int, count: int, width: int) -> Iterator[Run]:
    """All at once; the labels of pairs are lengths."""
    pairs = pattern.routes(ranks)
    yield Run(Time(), 1, pairs[:, 0], pairs[:, 1], pattern.pair_labels(ranks, count, pairs))


def _whole_arrays(pattern: Pattern, ranks: int, count: int, width: int) -> Iterator[Run]:
    pairs = pattern.routes(ranks)
    yield Run(Time(), 1, pairs[:, 0], pairs[:, 1], np.full(len(pairs), count))


def _barrier(pattern: Pattern, ranks: int, count: int, width: int) -> Iterator[Run]:
    src = np.arange(ranks)
    for bit in range((ranks - 1).bit_length()):
        many = min(1 << bit, ranks - (1 << bit))  # tokens, which have come in the rounds before; the first is its own
        at = Time(0.0, (many - 1).bit_length())
        yield Run(at, 1, src, (src + (1 << bit)) % ranks, np.full(ranks, count // ranks * many))


def _halving(pattern: Pattern, ranks: int, count: int, width: int) -> Iterator[Run]:
    src = np.arange(ranks)
    distances = [1 << bit for bit in reversed(range(ranks.bit_length() - 1))]
    for wave, distance in enumerate([*distances, *reversed(distances)]):
        peer = src ^ distance
        first = (peer if wave < len(distances) else src) // distance * distance
        yield Run(Time(0.0, wave), 1, src, peer, (first + distance) * count // ranks - first * count // ranks)


def _table(pattern: RailPattern, ranks: int) -> I64:
    """Ranks by host and place."""
    return np.array(ranks_of_hosts(pattern.hosts, ranks), dtype=np.int64)


def _inside(table: I64) -> tuple[I64, I64, I64]:
    """All pairs inside hosts: senders, receivers, and the place of each receiver."""
    hosts, each = table.shape
    own, peer = (~np.eye(each, dtype=np.bool_)).nonzero()
    return table[:, own].ravel(), table[:, peer].ravel(), np.tile(peer, hosts)


def _hierarchical(pattern: HierarchicalAllReduce, ranks: int, count: int, width: int) -> Iterator[Run]:
    table = _table(pattern, ranks)
    hosts, each = table.shape
    parts, steps = chunk_lengths(each, count), 2 * (hosts - 1)
    src, dst, place = _inside(table)
    yield Run(Time(), 1, src, dst, parts[place], hosts)
    rings = np.tile(-(-parts // hosts), hosts)
    yield from _passed_on(Time(0.0, 1), steps, table.ravel(), np.roll(table, -1, axis=0).ravel(), rings, width)
    yield Run(Time(0.0, 1 + steps), 1, dst, src, parts[place])


def _rails(pattern: RailAlignedAllToAll, ranks: int, count: int, width: int) -> Iterator[Run]:
    table, chunks = _table(pattern, ranks), chunk_lengths(ranks, count)
    hosts, each = table.shape
    src, dst, place = _inside(table)
    yield Run(Time(), 1, src, dst, chunks[table].sum(axis=0)[place], hosts)
    at, to = (~np.eye(hosts, dtype=np.bool_)).nonzero()
    here, there = (table.astype(np.int32)[ends].ravel() for ends in (at, to))
    yield Run(Time(), 1, here, there, chunks[there])
    follows = bool(chunks.min() > width)
    yield Run(Time(0.0, 1), 1, here, there, chunks[there] * (each - 1), each - 1, follows)


def _chain_broadcast(pattern: ChainBroadcast, ranks: int, count: int, width: int) -> Iterator[Run]:
    for number, line in enumerate(orders(pattern.hosts, ranks, pattern.channels)):
        lo, hi = chunk_range(number, pattern.channels, count)
        order = np.roll(line, -line.index(pattern.root))
        yield from forwarded(order[:-1], order[1:], np.arange(ranks - 1), hi - lo, width)


def _chain_reduce(pattern: ChainReduce, ranks: int, count: int, width: int) -> Iterator[Run]:
    order = (np.arange(ranks) + pattern.root + 1) % ranks
    return forwarded(order[:-1], order[1:], np.arange(ranks - 1), count, width)


def _tree_broadcast(pattern: TreeBroadcast, ranks: int, count: int, width: int) -> Iterator[Run]:
    place = np.arange(1, ranks)
    parent = place & (place - 1)
    depth = np.sum([parent >> bit & 1 for bit in range(ranks.bit_length())], axis=0)
    return forwarded((parent + pattern.root) % ranks, (place + pattern.root) % ranks, depth, count, width)


def _tree_reduce(pattern: TreeAllReduce, ranks: int, count: int, width: int) -> Iterator[Run]:
    for number, nodes in enumerate(double_tree(ranks)):
        lo, hi = chunk_range(number, 2, count)
        parents = np.array([rank if node.parent is None else node.parent for rank, node in enumerate(nodes)])
        child = np.flatnonzero(parents != np.arange(ranks))
        parent = parents[child]
        height, depth = np.zeros((2, ranks), dtype=np.int64)
        for _ in range(ranks.bit_length() + 1):  # a tree has no more levels
            np.maximum.at(height, parent, height[child] + 1)
            depth[child] = depth[parent] + 1
        levels = np.concatenate([height[child], height.max() + depth[child] - 1])
        src, dst = np.concatenate([child, parent]), np.concatenate([parent, child])
        yield from forwarded(src, dst, levels, hi - lo, width)


def forwarded(src: I64, dst: I64, depth: I64, length: int, width: int) -> Iterator[Run]:
    """Transfers of `length` elements that are forwarded message by message. depth: the wave of each first message.

    Message m of a transfer is m waves after its first one. Of a long chain, blocks of links begin together, when the
    last link of the block would begin: the number of waves, and all bytes, are exact.
    """
    if not length or not len(src):
        return
    messages = -(-length // width)
    last = length - (messages - 1) * width
    deepest = int(depth.max())
    block = max(1, min(-(-deepest // _BLOCKS), messages))  # no more, so that some link is busy in every wave
    depth = np.minimum(-(-depth // block) * block, deepest)
    order = np.argsort(depth, kind="stable")
    src, dst, depth = src[order], dst[order], depth[order]
    starts = np.unique(depth)
    edges = np.unique(np.concatenate([starts, starts + messages - 1, starts + messages, [deepest + 1]]))
    for begin, end in pairwise(edges.tolist()):
        rows = slice(*np.searchsorted(depth, [begin - messages, begin], side="right").tolist())
        elements = np.where(depth[rows] == begin - messages + 1, last, width)
        yield Run(Time(0.0, begin), end - begin, src[rows], dst[rows], elements, follows=begin > deepest)


def _rail_rows(pattern: RailPattern, ranks: int) -> tuple[int, int]:
    hosts, each = _table(pattern, ranks).shape
    inside, rail = ranks * (each - 1), ranks * (1 if isinstance(pattern, HierarchicalAllReduce) else hosts - 1)
    return 2 * (inside + rail), 2 * (inside + rail)


def _tree_rows(pattern: Pattern, ranks: int) -> tuple[int, int]:
    edges, levels = (
        (4 * ranks, 2 * ranks.bit_length()) if isinstance(pattern, TreeAllReduce) else (ranks, ranks.bit_length())
    )
    return 2 * levels * edges, edges


class Form(NamedTuple):
    """A closed form. rows: by pattern and ranks, the most rows of all waves together, and of those computed at once."""

    runs: Callable[[Any, int, int, int], Iterator[Run]]
    rows: Callable[[Any, int], tuple[int, int]]


_RING: Final = Form(_ring, lambda pattern, ranks: (pattern.channels * ranks, 3 * pattern.channels * ranks))
_PAIRS: Final = Form(_every_pair, lambda pattern, ranks: (ranks * ranks, ranks * ranks))
_ROOTED: Final = Form(_labelled, lambda pattern, ranks: (ranks, ranks))
_ONE: Final = Form(_whole_arrays, lambda pattern, ranks: (ranks, ranks))
FORMS: Final[Mapping[type[Pattern], Form]] = {
    RingAllReduce: _RING,
    RingAllGather: _RING,
    RingReduceScatter: _RING,
    DirectAllReduce: Form(_every_pair, lambda pattern, ranks: (2 * ranks * ranks, ranks * ranks)),
    DirectAllGather: _PAIRS,
    DirectReduceScatter: _PAIRS,
    StaggeredAllToAll: _PAIRS,
    StaggeredAllToAllV: Form(_labelled, lambda pattern, ranks: (ranks * ranks, 3 * ranks * ranks)),
    RailAlignedAllToAll: Form(_rails, _rail_rows),
    HierarchicalAllReduce: Form(_hierarchical, _rail_rows),
    HalvingDoublingAllReduce: Form(
        _halving, lambda pattern, ranks: (2 * ranks.bit_length() * ranks, ranks.bit_length() * ranks)
    ),
    DisseminationBarrier: Form(
        _barrier, lambda pattern, ranks: (ranks.bit_length() * ranks, ranks.bit_length() * ranks)
    ),
    ChainBroadcast: Form(
        _chain_broadcast, lambda pattern, ranks: (200 * pattern.channels * ranks, pattern.channels * ranks)
    ),
    ChainReduce: Form(_chain_reduce, lambda pattern, ranks: (200 * ranks, ranks)),
    TreeBroadcast: Form(_tree_broadcast, _tree_rows),
    TreeAllReduce: Form(_tree_reduce, _tree_rows),
    DirectIncast: _ROOTED,
    DirectGather: _ROOTED,
    DirectScatter: _ROOTED,
    PairMatrix: Form(_labelled, lambda pattern, ranks: (pattern.connections(ranks), 4 * pattern.connections(ranks))),
    NextSendRecv: _ONE,
    RandomPermutation: _ONE,
}
# Patterns that forward message by message, and those whose steps `after` only limit what is under way.
FORWARDED: Final = (ChainBroadcast, ChainReduce, TreeBroadcast, TreeAllReduce)
PACED: Final = (StaggeredAllToAll, RailAlignedAllToAll)
