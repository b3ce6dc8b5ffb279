"""Ring all-reduce: n-1 steps of reduce-scatter, then n-1 of all-gather, a 1/n of the array to one neighbour each.

Every rank sends 2(n-1)/n of the array in all, which is where busbw's factor comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traffic.collectives.pattern import Transfer


def chunk_range(index: int, ranks: int, count: int) -> tuple[int, int]:
    """Elements of chunk `index`: as even as whole elements allow; empty when there are fewer elements than ranks."""
    return index * count // ranks, (index + 1) * count // ranks


class RingAllReduce:
    """Rank r sends to r+1 and receives from r-1."""

    collective = "all-reduce"
    algorithm = "ring"

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """2(n-1) transfers; at step s rank r sends chunk r-s and receives chunk r-s-1 (all modulo n)."""
        steps = []
        for s in range(2 * (ranks - 1)):
            gathering = s >= ranks - 1
            out = (rank - s) % ranks
            into = (rank - s - 1) % ranks
            steps.append(
                Transfer(
                    step=s,
                    send_to=(rank + 1) % ranks,
                    send=chunk_range(out, ranks, count),
                    recv_from=(rank - 1) % ranks,
                    recv=chunk_range(into, ranks, count),
                    reduce=not gathering,
                )
            )
        return steps

    def busbw_factor(self, ranks: int) -> float:
        """2(n-1)/n."""
        return 2 * (ranks - 1) / ranks

    def peers(self, ranks: int) -> list[tuple[int, int]]:
        """Each rank and its right-hand neighbour."""
        return [(r, (r + 1) % ranks) for r in range(ranks)]

    def alike(self, ranks: int, count: int, pairs: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """By the chunks that a rank does not send in one of the two phases: r+1 and r+2."""
        chunk = np.array([hi - lo for lo, hi in (chunk_range(i, ranks, count) for i in range(ranks))], dtype=np.int64)
        src = np.array([pair[0] for pair in pairs], dtype=np.int64)
        return chunk[(src + 1) % ranks] + chunk[(src + 2) % ranks]
