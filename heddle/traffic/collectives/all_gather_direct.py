"""Direct all-gather: every rank sends its input to all others at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import DirectPattern
from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DirectAllGather(DirectPattern):
    """The input of rank r becomes chunk r of every rank's array."""

    collective = "all-gather"
    algorithm = "direct"
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Step r: the input of rank r."""
        others = self.others(ranks, rank)
        lo, hi = chunk_range(rank, ranks, count)
        return [
            *(SendStep(rank, to, (0, hi - lo), lo) for to in others),
            *(ReceiveStep(source, source, chunk_range(source, ranks, count)) for source in others),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The input of each rank, in their order."""
        return [Piece(*chunk_range(source, ranks, count), source, 0) for source in range(ranks)]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the sender's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 0]]
