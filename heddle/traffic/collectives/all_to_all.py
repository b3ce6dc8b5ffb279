"""All-to-all: every rank has a chunk for every other, and they are exchanged in the staggered rounds of NCCL.

In a round every rank sends to the rank `delta` further on and receives from the one `delta` before it, so that nobody
is sent to by two. NCCL visits the deltas in the order of (x^2 + x) / 2 modulo the next power of two, without those that
are too large (init.cc, p2pSchedule). It has a few rounds under way at once, on channels of their own: here a rank has
two, so that its link does not rest while the end of a round is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.traffic.collectives.pattern import Piece, Transfer, chunk_lengths, chunk_range, whole_chunks

UNDER_WAY: Final = 2  # rounds of one rank


def deltas(ranks: int) -> list[int]:
    """How far each round reaches: 1 to ranks - 1, each once; of 16 ranks 1, 3, 6, 10, 15, 5, 12, ..."""
    power = 1 << (ranks - 1).bit_length()
    triangular = ((x * x + x) // 2 % power for x in range(power))
    return [delta for delta in triangular if 0 < delta < ranks]


class StaggeredAllToAll:
    """Rank r's chunk for rank q becomes piece r of q's array; what a rank keeps for itself is copied."""

    collective = "all-to-all"
    algorithm = "staggered"
    in_place = False
    redop = "none"
    root = -1

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """n-1 transfers, one a round; a round is sent when what comes in the one before the last has arrived."""
        lo, hi = chunk_range(rank, ranks, count)
        mine = hi - lo
        steps = []
        for step, delta in enumerate(deltas(ranks)):
            to, source = (rank + delta) % ranks, (rank - delta) % ranks
            send, recv = chunk_range(to, ranks, count), (source * mine, (source + 1) * mine)
            after = (step - UNDER_WAY,) if step >= UNDER_WAY else ()
            steps.append(Transfer(step, to, send, source, recv, put=rank * (send[1] - send[0]), after=after))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """One chunk from each rank, in their order."""
        lo, hi = chunk_range(rank, ranks, count)
        width = hi - lo
        return [Piece(source * width, (source + 1) * width, source, lo) for source in range(ranks)]

    def busbw_factor(self, ranks: int) -> float:
        """(n-1)/n."""
        return (ranks - 1) / ranks

    def receivers(self, ranks: int) -> int:
        """All of them."""
        return ranks

    def whole(self, ranks: int, count: int) -> int:
        """Equal chunks of whole 16 bytes."""
        return whole_chunks(ranks, count)

    def connections(self, ranks: int) -> int:
        """One for each two ranks, each way."""
        return ranks * (ranks - 1)

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """Everybody to everybody else."""
        src = np.repeat(np.arange(ranks, dtype=np.int64), ranks - 1)
        other = np.tile(np.arange(ranks - 1, dtype=np.int64), ranks)
        return np.stack([src, other + (other >= src)], axis=1)

    def alike(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the receiver's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 1]]
