"""Chain broadcast: the root's array passes one rank after the other, message by message, as in NCCL's ring.

The chain is root, root+1, ..., root-1 (modulo n). All its links work at the same time, on different messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.bases import BroadcastPattern
from heddle.traffic.collectives.pattern import ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ChainBroadcast(BroadcastPattern):
    """Every rank but the last of the chain sends on what it has received."""

    algorithm = "chain"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """One receive, but at the root; one send, but at the end of the chain. Step p: the p-th link of the chain."""
        place = (rank - self.root) % ranks
        steps: list[Step] = []
        if place:
            steps.append(ReceiveStep(place - 1, (rank - 1) % ranks, (0, count), "input"))
        if place < ranks - 1:
            steps.append(SendStep(place, (rank + 1) % ranks, (0, count), 0))
        return steps

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """The links of the chain."""
        import numpy as np

        src = np.delete(np.arange(ranks, dtype=np.int64), (self.root - 1) % ranks)
        return np.stack([src, (src + 1) % ranks], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver."""
        return self.back(ranks)
