"""Direct reduce-scatter: every rank sends to each other rank that rank's chunk, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import DirectPattern, ReducingPattern
from heddle.traffic.collectives.pattern import Piece, SendStep, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DirectReduceScatter(DirectPattern, ReducingPattern):
    """Rank r's result is chunk r of the reduction."""

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
