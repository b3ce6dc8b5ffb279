"""All-to-all: every rank sends a chunk to every other rank, in the staggered rounds of NCCL.

In a round every rank r sends to rank r + delta and receives from rank r - delta, so that each rank has one sender. NCCL
visits the deltas in the order of (x^2 + x) / 2 modulo the next power of two, without those that are too large (init.cc,
p2pSchedule). NCCL runs a few rounds at once, on separate channels. Here a rank runs two, so that its link is not idle
while the end of a round is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from heddle.traffic.collectives.pattern import Pattern, Piece, Transfer, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNDER_WAY: Final = 2  # concurrent rounds of one rank


def deltas(ranks: int) -> list[int]:
    """The delta of each round: 1 to ranks - 1, each once; for 16 ranks 1, 3, 6, 10, 15, 5, 12, ..."""
    power = 1 << (ranks - 1).bit_length()
    triangular = ((x * x + x) // 2 % power for x in range(power))
    return [delta for delta in triangular if 0 < delta < ranks]


class StaggeredAllToAll(Pattern):
    """Rank r's chunk for rank q becomes piece r of q's array; a rank's chunk for itself is copied."""

    collective = "all-to-all"
    algorithm = "staggered"
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """n-1 transfers, one per round. A round is sent when the data of the round two before it has arrived."""
        lo, hi = chunk_range(rank, ranks, count)
        width = hi - lo
        steps = []
        for step, delta in enumerate(deltas(ranks)):
            to, source = (rank + delta) % ranks, (rank - delta) % ranks
            send, recv = chunk_range(to, ranks, count), (source * width, (source + 1) * width)
            after = (step - UNDER_WAY,) if step >= UNDER_WAY else ()
            steps.append(Transfer(step, to, send, source, recv, put=rank * (send[1] - send[0]), after=after))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """One chunk from each rank, in their order."""
        lo, hi = chunk_range(rank, ranks, count)
        width = hi - lo
        return [Piece(source * width, (source + 1) * width, source, lo) for source in range(ranks)]

    def at_once(self, ranks: int) -> int:
        """Two rounds."""
        return UNDER_WAY

    def connections(self, ranks: int) -> int:
        """One for each pair of ranks in each direction."""
        return ranks * (ranks - 1)

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """Every rank to every other rank."""
        import numpy as np

        src = np.repeat(np.arange(ranks, dtype=np.int64), ranks - 1)
        other = np.tile(np.arange(ranks - 1, dtype=np.int64), ranks)
        return np.stack([src, other + (other >= src)], axis=1)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the receiver's chunk."""
        return chunk_lengths(ranks, count)[pairs[:, 1]]
