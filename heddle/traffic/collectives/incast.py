"""Incast: all ranks send to rank 0 at once, which is the traffic of a gather.

A rank may send again once rank 0 has everything. Rank 0 reports this with a write of one element, as NCCL's receivers
clear their senders to send (CTS). Without it, senders would be many iterations ahead of the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.traffic.collectives.pattern import NOTHING, Pattern, Piece, Transfer, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class DirectIncast(Pattern):
    """Rank r's chunk r becomes chunk r of rank 0's array; rank 0's own chunk is copied."""

    collective = "incast"
    algorithm = "direct"
    root = 0
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """Step r: chunk r to rank 0. Step n-1+r: rank 0 clears rank r to send again."""
        others = range(1, ranks)
        if rank == 0:
            everything = tuple(others)
            chunks = [Transfer(r, 0, NOTHING, r, chunk_range(r, ranks, count), put=0) for r in others]
            clear = [Transfer(ranks - 1 + r, r, (0, 1), 0, NOTHING, put=0, after=everything) for r in others]
            return [*chunks, *clear]
        chunk = chunk_range(rank, ranks, count)
        return [
            Transfer(rank, 0, chunk, rank, NOTHING, put=chunk[0]),
            Transfer(ranks - 1 + rank, rank, NOTHING, 0, (0, 1), put=0),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The chunks of all ranks at rank 0; at other ranks the element that rank 0 sent."""
        if rank:
            return (Piece(0, 1, 0, 0),)
        chunks = ((r, chunk_range(r, ranks, count)) for r in range(ranks))
        return [Piece(lo, hi, r, lo) for r, (lo, hi) in chunks]

    def at_once(self, ranks: int) -> int:
        """The chunks of all ranks, steps 1 to n-1."""
        return ranks

    def receivers(self, ranks: int) -> int:
        """Rank 0."""
        return 1

    def connections(self, ranks: int) -> int:
        """Two for each rank except rank 0."""
        return 2 * (ranks - 1)

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """Rank 0 to all others, and back."""
        import numpy as np

        others = np.arange(1, ranks, dtype=np.int64)
        zeros = np.zeros_like(others)
        return np.concatenate([np.stack([zeros, others], axis=1), np.stack([others, zeros], axis=1)])

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the sent data: the sender's chunk, or one element."""
        import numpy as np

        return np.where(pairs[:, 0] == 0, 1, chunk_lengths(ranks, count)[pairs[:, 0]])
