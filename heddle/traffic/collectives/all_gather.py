"""Ring all-gather: n-1 steps. In each, a rank sends the chunk that it received last to its right-hand neighbour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.pattern import Piece, ReceiveStep, SendStep, Step, chunk_lengths, chunk_range
from heddle.traffic.collectives.ring import Ring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class RingAllGather(Ring):
    """The input of rank r becomes chunk r of every rank's array. At step s rank r sends chunk r-s (modulo n)."""

    collective = "all-gather"
    algorithm = "ring"
    by_chunk = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """n-1 sends and receives: first from the input, then from the output."""
        steps: list[Step] = []
        for s, chunk in enumerate(self.sent_chunks(ranks, rank)):
            out, into = (chunk_range(c, ranks, count) for c in (chunk, (chunk - 1) % ranks))
            span = out if s else (0, out[1] - out[0])
            steps.append(SendStep(s, (rank + 1) % ranks, span, out[0], "output" if s else "input"))
            steps.append(ReceiveStep(s, (rank - 1) % ranks, into))
        return steps

    def sent_chunks(self, ranks: int, rank: int) -> Iterator[int]:
        """Its own first."""
        return ((rank - s) % ranks for s in range(ranks - 1))

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The input of each rank, in their order."""
        return [Piece(*chunk_range(source, ranks, count), source, 0) for source in range(ranks)]

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the chunk that a rank does not send, which is that of its neighbour."""
        return chunk_lengths(ranks, count)[pairs[:, 1]]
