"""Incast: all ranks send to one rank at once, which is the traffic of a gather."""

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
class DirectIncast(RootedPattern):
    """Rank r's chunk r becomes chunk r of the root's array; the root's own chunk is copied."""

    collective = "incast"
    algorithm = "direct"
    as_sends = True
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Step r: chunk r to the root."""
        root = self.root
        if rank != root:
            chunk = chunk_range(rank, ranks, count)
            return [SendStep(rank, root, chunk, chunk[0])]
        return [ReceiveStep(r, r, chunk_range(r, ranks, count)) for r in range(ranks) if r != root]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The chunks of all ranks, at the root."""
        if rank != self.root:
            return ()
        chunks = ((r, chunk_range(r, ranks, count)) for r in range(ranks))
        return [Piece(lo, hi, r, lo) for r, (lo, hi) in chunks]

    def at_once(self, ranks: int) -> int:
        return ranks

    def routes(self, ranks: int) -> NDArray[np.int64]:
        return self.from_root(ranks)[:, ::-1]

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """The root to all others, which receive no data."""
        return self.from_root(ranks)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the sent data: the sender's chunk, or a credit."""
        import numpy as np

        credit = CREDIT_BYTES // self.element_bytes
        return np.where(pairs[:, 0] == self.root, credit, chunk_lengths(ranks, count)[pairs[:, 0]])
