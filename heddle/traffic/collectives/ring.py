"""Ring all-reduce, and what all rings have in common: rank r sends to r+1 and receives from r-1.

n-1 steps of reduce-scatter, then n-1 of all-gather. Each sends 1/n of the array to a neighbour. Every rank sends
2(n-1)/n of the array in total; this is busbw's factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import AllReducePattern
from heddle.traffic.collectives.pattern import Pattern, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Ring(Pattern):
    """Data of every rank passes all ranks in each iteration, so no rank can be more than one ahead."""

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """Each rank and its right-hand neighbour."""
        import numpy as np

        src = np.arange(ranks, dtype=np.int64)
        return np.stack([src, (src + 1) % ranks], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None."""
        import numpy as np

        return np.empty((0, 2), dtype=np.int64)

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        """The chunk that a rank sends in each step."""
        raise NotImplementedError

    def sent_by(self, ranks: int, rank: int, count: int) -> Iterator[tuple[int, int]]:
        """All to the neighbour."""
        for chunk in self.sent_chunks(ranks, rank):
            lo, hi = chunk_range(chunk, ranks, count)
            if lo < hi:
                yield (rank + 1) % ranks, hi - lo


@dataclass(frozen=True)
class RingAllReduce(Ring, AllReducePattern):
    """At step s rank r sends chunk r-s and receives chunk r-s-1 (all modulo n)."""

    algorithm = "ring"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """2(n-1) sends and receives."""
        steps: list[Step] = []
        there, from_here = (rank + 1) % ranks, (rank - 1) % ranks
        for s, chunk in enumerate(self.sent_chunks(ranks, rank)):
            out, into = (chunk_range(c, ranks, count) for c in (chunk, (chunk - 1) % ranks))
            receive = self.reduced(s, from_here, into, ranks, last=s == ranks - 2)
            if s >= ranks - 1:
                receive = ReceiveStep(s, from_here, into, "input")
            steps += SendStep(s, there, out, out[0]), receive
        return steps

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        """Its own first."""
        return ((rank - s) % ranks for s in range(2 * (ranks - 1)))

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunks that a rank does not send in one of the two phases: r+1 and r+2."""
        chunk = chunk_lengths(ranks, count)
        return chunk[(pairs[:, 0] + 1) % ranks] + chunk[(pairs[:, 0] + 2) % ranks]
