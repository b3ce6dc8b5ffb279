"""Each rank sends its array to one other rank, and receives from one: the next one, or one that a seed chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated

from heddle.base.declared import Declared
from heddle.traffic.collectives.pattern import GROUP, Pattern, Piece, ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@lru_cache(maxsize=64)
def cycle(ranks: int, seed: int) -> tuple[int, ...]:
    """The receiver of each rank in a random cycle through all ranks: that of `predict --workload permutation:SEED`."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(ranks)
    to = np.empty(ranks, dtype=np.int64)
    to[order] = np.roll(order, -1)
    return tuple(to.tolist())


@lru_cache(maxsize=64)
def _sources(ranks: int, seed: int) -> tuple[int, ...]:
    to = cycle(ranks, seed)
    return tuple(sorted(range(ranks), key=to.__getitem__))


class _OneReceiver(Pattern):
    """Each rank sends its array to one other, and receives from one."""

    as_sends = True
    replaces = False

    def busbw_factor(self, ranks: int) -> float:
        return 1.0

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver; two ranks need none: each receives from the other."""
        return self.back(ranks)[: ranks if ranks > 2 else 0]


@dataclass(frozen=True)
class RandomPermutation(_OneReceiver):
    """Ranks form one random cycle. seed: of the random numbers."""

    collective = "permutation"
    algorithm = "random"

    seed: Annotated[int, Declared(
        "seed of the permutation", GROUP, value="N", least=0, most=(1 << 31) - 1, hint="the default is 0",
    )] = 0  # fmt: skip

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        to, source = cycle(ranks, self.seed)[rank], _sources(ranks, self.seed)[rank]
        return [SendStep(0, to, (0, count), 0), ReceiveStep(0, source, (0, count))]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, _sources(ranks, self.seed)[rank], 0),)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        src = np.arange(ranks, dtype=np.int64)
        return np.stack([src, np.array(cycle(ranks, self.seed), dtype=np.int64)], axis=1)


@dataclass(frozen=True)
class NextSendRecv(_OneReceiver):
    """Rank r sends to r+1 and receives from r-1 (modulo n), as nccl-tests' sendrecv_perf does."""

    collective = "send-recv"
    algorithm = "next"

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        return [
            SendStep(0, (rank + 1) % ranks, (0, count), 0),
            ReceiveStep(0, (rank - 1) % ranks, (0, count)),
        ]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, (rank - 1) % ranks, 0),)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        src = np.arange(ranks, dtype=np.int64)
        return np.stack([src, (src + 1) % ranks], axis=1)
