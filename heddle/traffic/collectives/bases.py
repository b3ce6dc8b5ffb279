"""Patterns that reduce, have a root, or send between all ranks: what they have in common.

In, out: as for Pattern (pattern.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from heddle.base.declared import Declared
from heddle.traffic.collectives.pattern import GROUP, DType, Pattern, Piece, ReceiveStep, Reduction, Span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Whole numbers up to this one are exact, and so are their sums; in float32 also the difference of two quotients.
EXACT: Final[Mapping[DType, int]] = {"bfloat16": 256, "float16": 2048, "float32": 1 << 23, "int32": (1 << 31) - 1}


@dataclass(frozen=True)
class ReducingPattern(Pattern):
    """A collective that reduces. operation: avg divides the sum by the number of ranks, in the last reduction."""

    operation: Annotated[Reduction, Declared(
        "reduction of elements", GROUP, word="op", unlike="is not an operation", value="OP", short="-o",
        listed="one of",
    )] = "sum"  # fmt: skip

    @property
    def redop(self) -> Reduction | Literal["none"]:
        return self.operation

    def unfit(self, ranks: int) -> str:
        """A sum that is not exact, so that its check would need a tolerance."""
        most = EXACT[self.dtype] // 3  # of each rank: an input of 1, and up to 2 by the iteration
        if self.operation in ("sum", "avg") and ranks > most:
            return f"has sums of {ranks} ranks, which are not exact in {self.dtype}: {most} are"
        return super().unfit(ranks)

    def reduced(self, step: int, source: int, span: Span, ranks: int, *, last: bool) -> ReceiveStep:
        """Reduce received data into `input`. last: only receives of this rank, of the same
        range, can reduce these elements afterwards."""
        mean = self.operation == "avg"
        return ReceiveStep(
            step, source, span, "input", "sum" if mean else self.operation, ranks if mean and last else 1
        )


@dataclass(frozen=True)
class AllReducePattern(ReducingPattern):
    """An all-reduce by any algorithm."""

    collective = "all-reduce"
    in_place = True

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, None, 0),)

    def busbw_factor(self, ranks: int) -> float:
        return 2 * (ranks - 1) / ranks


@dataclass(frozen=True)
class RootedPattern(Pattern):
    """A collective that sends to or from one rank, the root."""

    root: Annotated[int, Declared(
        "rank that sends to all, or receives from all", GROUP, value="RANK", short="-r", least=0, most=(1 << 20) - 1,
        hint="the default is 0",
    )] = 0  # fmt: skip

    @property
    def printed_root(self) -> int:
        return self.root

    def from_root(self, ranks: int) -> NDArray[np.int64]:
        """The root to all others."""
        import numpy as np

        others = np.delete(np.arange(ranks, dtype=np.int64), self.root)
        return np.stack([np.full_like(others, self.root), others], axis=1)

    def unfit(self, ranks: int) -> str:
        return super().unfit(ranks) or (f"has root {self.root}: ranks are 0 to {ranks - 1}" * (self.root >= ranks))


@dataclass(frozen=True)
class BroadcastPattern(RootedPattern):
    """A broadcast by any algorithm."""

    collective = "broadcast"
    in_place = True

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return (Piece(0, count, self.root, 0),)

    def busbw_factor(self, ranks: int) -> float:
        return 1.0


class EveryPairPattern(Pattern):
    """A collective in which every rank sends to every other rank."""

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        src = np.repeat(np.arange(ranks, dtype=np.int64), ranks - 1)
        other = np.tile(np.arange(ranks - 1, dtype=np.int64), ranks)
        return np.stack([src, other + (other >= src)], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None: each rank receives from every other one."""
        import numpy as np

        return np.empty((0, 2), dtype=np.int64)

    def connections(self, ranks: int) -> int:
        return ranks * (ranks - 1)

    def receivers(self, ranks: int) -> int:
        return ranks


class DirectPattern(EveryPairPattern):
    """A rank sends to all others at once. Steps are numbered by sender."""

    def others(self, ranks: int, rank: int) -> list[int]:
        """All other ranks from the next one on, so that not all send to one rank first."""
        return [(rank + delta) % ranks for delta in range(1, ranks)]

    def at_once(self, ranks: int) -> int:
        return ranks
