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
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import EveryPairPattern
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
        """n-1 rounds."""
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
        """One chunk from each rank, in their order."""
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
