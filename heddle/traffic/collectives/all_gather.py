"""All-gather as a ring of n-1 steps (in each, a rank sends on the chunk that it received last), or all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import DirectPattern
from heddle.traffic.collectives.hosts import Lane
from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range
from heddle.traffic.collectives.ring import Ring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RingAllGather(Ring):
    """The input of rank r becomes chunk r of every rank's array. At step s rank r sends chunk r-s (modulo n)."""

    collective = "all-gather"
    algorithm = "ring"
    by_chunk = True

    def lane(self, lane: Lane, place: int) -> Iterator[SendStep | ReceiveStep]:
        """n-1 sends and receives: first from the input, then from the output."""
        ranks = len(lane.order)
        own, _ = chunk_range(lane.order[place], ranks, lane.count)
        for s, at in enumerate(self.sent_chunks(ranks, place)):
            lo, hi = lane.chunk(at)
            yield SendStep(s, place + 1, (lo, hi) if s else (lo - own, hi - own), lo, "output" if s else "input")
            yield ReceiveStep(s, place - 1, lane.chunk(at - 1))

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        return ((rank - s) % ranks for s in range(ranks - 1))

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return [Piece(*chunk_range(source, ranks, count), source, 0) for source in range(ranks)]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunk that a rank does not send, which is that of its neighbour."""
        if self.channels > 1:
            return super().pair_labels(ranks, count, pairs)
        return chunk_lengths(ranks, count)[pairs[:, 1]]


@dataclass(frozen=True)
class DirectAllGather(DirectPattern):
    """Every rank sends its input to all others at once. The input of rank r becomes chunk r of every rank's array."""

    collective = "all-gather"
    algorithm = "direct"
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        others = self.others(ranks, rank)
        lo, hi = chunk_range(rank, ranks, count)
        return [
            *(SendStep(rank, to, (0, hi - lo), lo) for to in others),
            *(ReceiveStep(source, source, chunk_range(source, ranks, count)) for source in others),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return [Piece(*chunk_range(source, ranks, count), source, 0) for source in range(ranks)]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the sender's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 0]]
