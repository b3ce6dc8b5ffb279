"""All-reduce by other algorithms than a ring (ring.py): direct, halving-doubling, tree, hierarchical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from heddle.traffic.collectives.bases import AllReducePattern, DirectPattern
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Span, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DirectAllReduce(DirectPattern, AllReducePattern):
    """Each rank reduces its chunk of all inputs, and sends the result to all: any ranks, the volume of a ring.

    Two steps, with bursts of n-1 senders to each rank.
    """

    algorithm = "direct"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Steps 0 to n-1: reduce-scatter, numbered by sender. Steps n to 2n-1: all-gather."""
        own, others = chunk_range(rank, ranks, count), self.others(ranks, rank)
        chunks = {other: chunk_range(other, ranks, count) for other in others}
        return [
            *(SendStep(rank, to, chunks[to], chunks[to][0]) for to in others),
            *(self.reduced(source, source, own, ranks, last=True) for source in others),
            *(SendStep(ranks + rank, to, own, own[0]) for to in others),
            *(ReceiveStep(ranks + source, source, chunks[source], "input") for source in others),
        ]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunks of both: their lengths differ by one element at most."""
        chunk = chunk_lengths(ranks, count)
        return chunk[pairs[:, 0]] + chunk[pairs[:, 1]]


@dataclass(frozen=True)
class HalvingDoublingAllReduce(AllReducePattern):
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling.

    2 log2(n) steps instead of the ring's 2(n-1), with the same volume (Rabenseifner 2004; Thakur, Rabenseifner and
    Gropp 2005). Before a step of halving, the ranks that share a rank's upper bits reduce a common range. Partners are
    half of the communicator apart in the first step, and neighbours in the middle. As in MPICH, a rank sends in a step
    when it has received all of the step before. If messages went on one by one, each rank would have several senders at
    once; queues would fill, and a pause of one receiver would stop packets to others.
    """

    algorithm = "halving-doubling"

    @property
    def typed(self) -> str:
        return f"--algorithm {self.algorithm}"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """log2(n) exchanges of halves, and the same ones backwards."""

        def half(of: int, distance: int) -> Span:
            """What a rank has reduced after the exchange at this distance: that of `distance` ranks."""
            first = of // distance * distance
            return first * count // ranks, (first + distance) * count // ranks

        distances = [1 << bit for bit in reversed(range(ranks.bit_length() - 1))]
        steps: list[Step] = []
        for s, distance in enumerate(distances):
            peer = rank ^ distance
            out = half(peer, distance)
            steps.append(SendStep(s, peer, out, out[0], after=tuple(range(s)[-1:])))
            steps.append(self.reduced(s, peer, half(rank, distance), ranks, last=distance == 1))
        for s, distance in enumerate(reversed(distances), len(distances)):
            peer = rank ^ distance
            out = half(rank, distance)
            steps.append(SendStep(s, peer, out, out[0], after=tuple(range(s)[-1:])))
            steps.append(ReceiveStep(s, peer, half(peer, distance), "input"))
        return steps

    def unfit(self, ranks: int) -> str:
        if ranks & (ranks - 1):
            fewer = 1 << ranks.bit_length() - 1
            return f"needs a power of two of ranks, not {ranks}; use {fewer} or {2 * fewer} ranks, or --algorithm ring"
        return super().unfit(ranks)


_WIDTH: Final = 4  # receives of a rank from one level: two children in each of two trees


class TreeRank(NamedTuple):
    """A rank in one tree. parent: None at the root. up, down: the step in which its parent, or it, receives."""

    parent: int | None
    children: list[int]
    up: int
    down: int


@dataclass(frozen=True)
class TreeAllReduce(AllReducePattern):
    """Two complementary binary trees, each with half of the data, as NCCL's double binary tree.

    Data is reduced up to the root, which has one child, and the result goes down again. Most leaves of one tree are
    inner ranks of the other, so no rank sends more than twice its array (Sanders, Speck and Traeff 2009; NCCL's
    graph/trees.cc). In NCCL a place of the tree is a host, with a chain of GPUs. Here it is a rank. A rank sends on
    each message as soon as it is reduced, so all levels work at the same time.
    """

    algorithm = "tree"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """In each tree: from the children, to the parent and back, to the children."""
        steps: list[Step] = []
        for tree, nodes in enumerate(double_tree(ranks)):
            node, span = nodes[rank], chunk_range(tree, 2, count)
            for child in node.children:
                last = node.parent is None
                steps.append(self.reduced(nodes[child].up, child, span, ranks, last=last))
            if node.parent is not None:
                steps.append(SendStep(node.up, node.parent, span, span[0]))
                steps.append(ReceiveStep(node.down, node.parent, span, "input"))
            steps += (SendStep(nodes[child].down, child, span, span[0]) for child in node.children)
        return steps

    def at_once(self, ranks: int) -> int:
        return _WIDTH


@lru_cache(maxsize=8)
def double_tree(ranks: int) -> tuple[list[TreeRank], list[TreeRank]]:
    """Both trees, by rank. The second is the first one mirrored, or shifted by one rank if the number is odd."""
    shifted = [(place + 1) % ranks for place in range(ranks)]
    return _tree(range(ranks), 0), _tree(shifted if ranks % 2 else range(ranks)[::-1], 1)


def _tree(order: Sequence[int], number: int) -> list[TreeRank]:
    """The rank at place p has as many levels below it as p has trailing zeros. Steps follow levels: up, then down.

    order: the rank at each place; the root is at place 0.
    """
    ranks = len(order)
    top = (ranks - 1).bit_length()
    children: dict[int, list[int]] = {rank: [] for rank in order}
    nodes = {order[0]: TreeRank(None, children[order[0]], 0, 0)}
    for place in range(1, ranks):
        bit = place & -place
        above = (place ^ bit) | bit << 1
        parent = order[above if above < ranks else place ^ bit]
        level, turn = bit.bit_length() - 1, 2 * number + len(children[parent])
        rank = order[place]
        nodes[rank] = TreeRank(parent, children[rank], _WIDTH * level + turn, _WIDTH * (2 * top - level) + number)
        children[parent].append(rank)
    return [nodes[rank] for rank in range(ranks)]


@dataclass(frozen=True)
class HierarchicalAllReduce(RailPattern, AllReducePattern):
    """Reduce-scatter inside each host, a ring across hosts for each rail, all-gather inside.

    Rank i of g ranks of a host reduces part i of the array, so a NIC sends 2(h-1)/h of S/g for h hosts: the fabric
    carries 1/g of what it would with one rank for each host. A part has a chunk for each host; the ring is that of an
    all-reduce, on the chunks of a part. Inside a host every rank sends to each other one directly, as over NVLink.
    """

    algorithm = "hierarchical"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """g-1 receives of each chunk inside the host; 2(h-1) steps of the ring; g-1 parts inside."""
        hosts, at, own = self.place(ranks, rank)
        many, here = len(hosts), hosts[at]
        peers = [(own + delta) % len(here) for delta in range(1, len(here))]
        ring, gather = ranks, ranks + 2 * (many - 1)

        def chunk(part: int, index: int) -> Span:
            lo, hi = chunk_range(part, len(here), count)
            first, end = chunk_range(index % many, many, hi - lo)
            return lo + first, lo + end

        steps: list[Step] = []
        for peer in peers:
            for index in range(many):
                out = chunk(peer, index)
                steps.append(SendStep(own * many + index, here[peer], out, out[0]))
        for peer in peers:
            for index in range(many):
                # The ring reduces this chunk here last, too: Divisors finds which of the receives is the last one.
                last = index == (at + 1) % many
                steps.append(self.reduced(peer * many + index, here[peer], chunk(own, index), ranks, last=last))
        there, back = hosts[(at + 1) % many][own], hosts[at - 1][own]
        for s in range(2 * (many - 1)):
            out, into = chunk(own, at - s), chunk(own, at - s - 1)
            receive = self.reduced(ring + s, back, into, ranks, last=s == many - 2)
            if s >= many - 1:
                receive = ReceiveStep(ring + s, back, into, "input")
            steps += SendStep(ring + s, there, out, out[0]), receive
        part = chunk_range(own, len(here), count)
        steps += (SendStep(gather + own, here[peer], part, part[0]) for peer in peers)
        parts = ((peer, chunk_range(peer, len(here), count)) for peer in peers)
        steps += (ReceiveStep(gather + peer, here[peer], span, "input") for peer, span in parts)
        return steps

    def along(self, hosts: int) -> Sequence[tuple[int, int]]:
        return [(src, (src + 1) % hosts) for src in range(hosts)]
