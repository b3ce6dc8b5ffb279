"""Scatter: the root sends a chunk of its input to every other rank at once, as nccl-tests' scatter_perf does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import RootedPattern
from heddle.traffic.collectives.pattern import (
    CREDIT_BYTES,
    Piece,
    ReceiveStep,
    SendStep,
    Step,
    chunk_lengths,
    chunk_range,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class DirectScatter(RootedPattern):
    """Chunk r of the root's input becomes the array of rank r; the root's own chunk is copied."""

    collective = "scatter"
    algorithm = "direct"
    as_sends = True
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """The root: one send to each other rank, first to root+1. Another rank: one receive."""
        if rank != self.root:
            lo, hi = chunk_range(rank, ranks, count)
            return [ReceiveStep(0, self.root, (0, hi - lo))]
        others = ((self.root + delta) % ranks for delta in range(1, ranks))
        return [SendStep(0, to, chunk_range(to, ranks, count), 0) for to in others]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        lo, hi = chunk_range(rank, ranks, count)
        return (Piece(0, hi - lo, self.root, lo),)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        return self.from_root(ranks)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        return self.back(ranks)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the sent data: the receiver's chunk, or a credit."""
        import numpy as np

        credit = CREDIT_BYTES // self.element_bytes
        return np.where(pairs[:, 0] == self.root, chunk_lengths(ranks, count)[pairs[:, 1]], credit)
