"""Ring all-reduce: n-1 steps of reduce-scatter, then n-1 of all-gather. Each sends 1/n of the array to a neighbour.

Every rank sends 2(n-1)/n of the array in total; this is busbw's factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.traffic.collectives.pattern import Pattern, Piece, Transfer, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class RingAllReduce(Pattern):
    """Rank r sends to r+1 and receives from r-1."""

    collective = "all-reduce"
    algorithm = "ring"
    in_place = True
    redop = "sum"

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """2(n-1) transfers; at step s rank r sends chunk r-s and receives chunk r-s-1 (all modulo n)."""
        steps = []
        for s in range(2 * (ranks - 1)):
            gathering = s >= ranks - 1
            out = chunk_range((rank - s) % ranks, ranks, count)
            into = chunk_range((rank - s - 1) % ranks, ranks, count)
            there, from_here = (rank + 1) % ranks, (rank - 1) % ranks
            steps.append(Transfer(s, there, out, from_here, into, put=out[0], reduce=not gathering))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The sum of all inputs, at every rank."""
        return (Piece(0, count, None, 0),)

    def busbw_factor(self, ranks: int) -> float:
        """2(n-1)/n."""
        return 2 * (ranks - 1) / ranks

    def whole(self, ranks: int, count: int) -> int:
        """All of them (nccl-tests, src/all_reduce.cu); with fewer than ranks, some chunks are empty."""
        return count

    def connections(self, ranks: int) -> int:
        """One per rank."""
        return ranks

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """Each rank and its right-hand neighbour."""
        import numpy as np

        src = np.arange(ranks, dtype=np.int64)
        return np.stack([src, (src + 1) % ranks], axis=1)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunks that a rank does not send in one of the two phases: r+1 and r+2."""
        chunk = chunk_lengths(ranks, count)
        return chunk[(pairs[:, 0] + 1) % ranks] + chunk[(pairs[:, 0] + 2) % ranks]
