"""Send-recv: each rank sends its array to the next rank, as nccl-tests' sendrecv_perf does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.traffic.collectives.pattern import Pattern, Piece, ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class NextSendRecv(Pattern):
    """Rank r sends to r+1 and receives from r-1 (modulo n)."""

    collective = "send-recv"
    algorithm = "next"
    as_sends = True
    replaces = False

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        return [
            SendStep(0, (rank + 1) % ranks, (0, count), 0),
            ReceiveStep(0, (rank - 1) % ranks, (0, count)),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, (rank - 1) % ranks, 0),)

    def busbw_factor(self, ranks: int) -> float:
        return 1.0

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        src = np.arange(ranks, dtype=np.int64)
        return np.stack([src, (src + 1) % ranks], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver; two ranks need none: each receives from the other."""
        return self.back(ranks)[: ranks if ranks > 2 else 0]
