"""Reduce-scatter as a ring of n-1 steps (in each, a rank sends on the chunk that it reduced last), or all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import DirectPattern, ReducingPattern
from heddle.traffic.collectives.hosts import Lane
from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range
from heddle.traffic.collectives.ring import Ring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RingReduceScatter(Ring, ReducingPattern):
    """Rank r's result is chunk r of the reduction. At step s rank r sends chunk r-1-s (modulo n)."""

    collective = "reduce-scatter"
    algorithm = "ring"
    in_place = True
    by_chunk = True

    def lane(self, lane: Lane, place: int) -> Iterator[SendStep | ReceiveStep]:
        """n-1 sends and receives. The last receive completes the rank's own chunk."""
        ranks = len(lane.order)
        for s, at in enumerate(self.sent_chunks(ranks, place)):
            out = lane.chunk(at)
            yield SendStep(s, place + 1, out, out[0])
            yield self.reduced(s, place - 1, lane.chunk(at - 1), ranks, last=s == ranks - 2)

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        return ((rank - 1 - s) % ranks for s in range(ranks - 1))

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        lo, hi = chunk_range(rank, ranks, count)
        return (Piece(lo, hi, None, lo),)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunk that a rank does not send: its own."""
        if self.channels > 1:
            return super().pair_labels(ranks, count, pairs)
        return chunk_lengths(ranks, count)[pairs[:, 0]]


@dataclass(frozen=True)
class DirectReduceScatter(DirectPattern, ReducingPattern):
    """Every rank sends to each other rank that rank's chunk, all at once. Results are those of the ring."""

    collective = "reduce-scatter"
    algorithm = "direct"
    in_place = True
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        own, others = chunk_range(rank, ranks, count), self.others(ranks, rank)
        chunks = ((to, chunk_range(to, ranks, count)) for to in others)
        return [
            *(SendStep(rank, to, chunk, chunk[0]) for to, chunk in chunks),
            *(self.reduced(source, source, own, ranks, last=True) for source in others),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        lo, hi = chunk_range(rank, ranks, count)
        return (Piece(lo, hi, None, lo),)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the receiver's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 1]]
