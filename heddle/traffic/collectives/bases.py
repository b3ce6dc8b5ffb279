"""Patterns that reduce, and patterns with a root: what they have in common.

In, out: as for Pattern (pattern.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from heddle.base.declared import Declared
from heddle.traffic.collectives.parameters import GROUP
from heddle.traffic.collectives.pattern import Pattern, ReceiveStep, Reduction, Span

BF16_RANKS: Final = 128  # whole numbers up to 256 are exact: two for each rank


@dataclass(frozen=True)
class ReducingPattern(Pattern):
    """A collective that reduces. operation: avg divides the sum by the number of ranks, in the last reduction."""

    operation: Annotated[Reduction, Declared(
        "reduction of elements", GROUP, word="op", unlike="is not an operation", value="OP", short="-o",
        listed="one of",
    )] = "sum"  # fmt: skip

    @property
    def redop(self) -> Reduction | Literal["none"]:
        """The reduction, as nccl-tests prints it."""
        return self.operation

    def unfit(self, ranks: int) -> str:
        """A sum that is not exact, so that its check would need a tolerance."""
        if self.dtype == "bfloat16" and self.operation in ("sum", "avg") and ranks > BF16_RANKS:
            return f"has sums of {ranks} ranks, which are not exact in bfloat16: {BF16_RANKS} are"
        return super().unfit(ranks)

    def reduced(self, step: int, source: int, span: Span, ranks: int, *, last: bool) -> ReceiveStep:
        """Reduce received data into `input`. last: no other rank reduces these elements afterwards."""
        mean = self.operation == "avg"
        return ReceiveStep(
            step, source, span, "input", "sum" if mean else self.operation, ranks if mean and last else 1
        )


@dataclass(frozen=True)
class RootedPattern(Pattern):
    """A collective that sends to or from one rank, the root."""

    root: Annotated[int, Declared(
        "rank that sends to all, or receives from all", GROUP, value="RANK", short="-r", least=0, most=(1 << 20) - 1,
        hint="the default is 0",
    )] = 0  # fmt: skip

    @property
    def printed_root(self) -> int:
        """The root, as nccl-tests prints it."""
        return self.root

    def unfit(self, ranks: int) -> str:
        """No such rank."""
        return super().unfit(ranks) or (f"has root {self.root}: ranks are 0 to {ranks - 1}" * (self.root >= ranks))
