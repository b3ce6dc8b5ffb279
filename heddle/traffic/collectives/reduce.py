"""Chain reduce: each rank adds its input to what it receives, and sends it on to the root, as in NCCL's ring.

The chain is root+1, root+2, ..., root (modulo n). All its links work at the same time, on different messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import ReducingPattern, RootedPattern
from heddle.traffic.collectives.pattern import Piece, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ChainReduce(RootedPattern, ReducingPattern):
    """Only the root has the reduction at the end."""

    collective = "reduce"
    algorithm = "chain"
    in_place = True

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """One receive, but at the start of the chain; one send, but at the root. Step p: the p-th link of the chain."""
        place = (rank - self.root - 1) % ranks
        steps: list[Step] = []
        if place:
            steps.append(self.reduced(place - 1, (rank - 1) % ranks, (0, count), ranks, last=place == ranks - 1))
        if place < ranks - 1:
            steps.append(SendStep(place, (rank + 1) % ranks, (0, count), 0))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, None, 0),) if rank == self.root else ()

    def busbw_factor(self, ranks: int) -> float:
        return 1.0

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        src = np.delete(np.arange(ranks, dtype=np.int64), self.root)
        return np.stack([src, (src + 1) % ranks], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        return self.back(ranks)
