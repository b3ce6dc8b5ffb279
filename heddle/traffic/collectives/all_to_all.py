"""All-to-all: every rank sends a chunk to every other rank, in the staggered rounds of NCCL.

In a round every rank r sends to rank r + delta and receives from rank r - delta, so that each rank has one sender. NCCL
visits the deltas in the order of (x^2 + x) / 2 modulo the next power of two, without those that are too large (init.cc,
p2pSchedule). NCCL runs a few rounds at once, on separate channels. Here two rounds of a rank overlap by NEARLY_BYTES,
so that its link is not idle while the end of a round is in flight. If they overlap by more, receivers have two senders
for a long time. Queues then fill, and a pause of one receiver stops packets to others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from heddle.traffic.collectives.bases import EveryPairPattern
from heddle.traffic.collectives.hosts import RailPattern
from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def deltas(ranks: int) -> list[int]:
    """The delta of each round: 1 to ranks - 1, each once; for 16 ranks 1, 3, 6, 10, 15, 5, 12, ..."""
    power = 1 << (ranks - 1).bit_length()
    triangular = ((x * x + x) // 2 % power for x in range(power))
    return [delta for delta in triangular if 0 < delta < ranks]


def before(step: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The rounds that must have arrived before a round is sent; those that must nearly have arrived."""
    return tuple(range(step)[-2:-1]), tuple(range(step)[-1:])


def exchanged(ranks: int, rank: int, count: int) -> list[Piece]:
    """The result of an all-to-all by any algorithm: one chunk from each rank, in their order."""
    lo, hi = chunk_range(rank, ranks, count)
    width = hi - lo
    return [Piece(source * width, (source + 1) * width, source, lo) for source in range(ranks)]


@dataclass(frozen=True)
class StaggeredAllToAll(EveryPairPattern):
    """Rank r's chunk for rank q becomes piece r of q's array; a rank's chunk for itself is copied."""

    collective = "all-to-all"
    algorithm = "staggered"
    as_sends = True
    replaces = False
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        lo, hi = chunk_range(rank, ranks, count)
        width = hi - lo
        steps: list[Step] = []
        for step, delta in enumerate(deltas(ranks)):
            to, source = (rank + delta) % ranks, (rank - delta) % ranks
            send = chunk_range(to, ranks, count)
            after, nearly = before(step)
            steps.append(SendStep(step, to, send, rank * (send[1] - send[0]), after=after, nearly=nearly))
            steps.append(ReceiveStep(step, source, (source * width, (source + 1) * width)))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return exchanged(ranks, rank, count)

    def sent_by(self, ranks: int, rank: int, count: int) -> Iterator[tuple[int, int]]:
        for delta in deltas(ranks):
            to = (rank + delta) % ranks
            lo, hi = chunk_range(to, ranks, count)
            if lo < hi:
                yield to, hi - lo

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the receiver's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 1]]


UNDER_WAY: Final = 2  # rounds of one rank at once


@dataclass(frozen=True)
class RailAlignedAllToAll(RailPattern):
    """Data for rank i of a host goes first to rank i of the sender's host, then along their rail: NCCL's PXN.

    The fabric carries only traffic between NICs of the same number, which share a leaf in a fabric of rails. Rounds are
    those of an all-to-all, among hosts. In a round a rank sends to its rail's rank of one host what all ranks of its
    own host have for it. NCCL joins these chunks into one message; here each is a transfer of its own. A rank keeps the
    data of others in `scratch`.
    """

    collective = "all-to-all"
    algorithm = "rail-aligned"
    by_chunk = True
    replaces = False

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """For each round of hosts: chunks to the ranks of this host, which pass them on, and chunks along the rail."""
        hosts, at, own = self.place(ranks, rank)
        here, many = hosts[at], len(hosts[at])
        rounds = deltas(len(hosts))
        first = -(-len(rounds) // UNDER_WAY) * UNDER_WAY * many  # of the steps along the rail
        inside = first + len(rounds) * many  # of the steps that end in this host
        widest = -(-count // ranks)
        lo, hi = chunk_range(rank, ranks, count)
        steps: list[Step] = []
        for number, delta in enumerate(rounds):
            there = hosts[(at + delta) % len(hosts)]
            for peer in (each for each in range(many) if each != own):
                step = number * many + own
                steps.append(SendStep(step, here[peer], chunk_range(there[peer], ranks, count), step * widest))
            to_lo, to_hi = chunk_range(there[own], ranks, count)
            for peer in (each for each in range(many) if each != own):
                step = number * many + peer
                kept = step * widest, step * widest + to_hi - to_lo
                steps.append(ReceiveStep(step, here[peer], kept, "scratch"))
        for number, delta in enumerate(rounds):
            there, source = hosts[(at + delta) % len(hosts)], hosts[(at - delta) % len(hosts)]
            to_lo, to_hi = chunk_range(there[own], ranks, count)
            before = first + (number - UNDER_WAY) * many
            after = tuple(range(before, before + many)) if number >= UNDER_WAY else ()
            for peer in range(many):
                put, step = here[peer] * (to_hi - to_lo), number * many + peer
                if peer == own:
                    steps.append(SendStep(first + step, there[own], (to_lo, to_hi), put, after=after))
                else:
                    kept = step * widest, step * widest + to_hi - to_lo
                    steps.append(SendStep(first + step, there[own], kept, put, "scratch", after))
                into = source[peer] * (hi - lo)
                steps.append(ReceiveStep(first + step, source[own], (into, into + hi - lo)))
        for peer in (each for each in range(many) if each != own):
            out = chunk_range(here[peer], ranks, count)
            steps.append(SendStep(inside + own, here[peer], out, rank * (out[1] - out[0])))
            into = here[peer] * (hi - lo)
            steps.append(ReceiveStep(inside + peer, here[peer], (into, into + hi - lo)))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return exchanged(ranks, rank, count)

    def at_once(self, ranks: int) -> int:
        """Two rounds: the chunks of all ranks of two hosts."""
        return UNDER_WAY * len(self.place(ranks, 0)[0][0])

    def along(self, hosts: int) -> Sequence[tuple[int, int]]:
        return [(src, dst) for src in range(hosts) for dst in range(hosts) if src != dst]
