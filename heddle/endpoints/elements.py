"""The elements of arrays: their types, the ranks' inputs, and reductions.

In:  a type, a reduction, the number of ranks. Out: inputs that every reduction gives exactly, in any order.
numpy has no bfloat16. Such an array has the upper halves of float32 as uint16, and is reduced in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from heddle.traffic.collectives.bases import EXACT
from heddle.traffic.collectives.pattern import DType, Pattern, Reduction

Numbers = NDArray[Any]  # float32 or int32
INPUT_VALUES: Final = 256  # inputs are 0 to 255
EPOCH_VALUES: Final = 31  # inputs differ between epochs, so that a stale array cannot pass the check
_STORED: Final[Mapping[DType, type[np.generic]]] = {
    "float32": np.float32, "bfloat16": np.uint16, "float16": np.float16, "int32": np.int32,
}  # fmt: skip
_COMBINE: Final[Mapping[Reduction, Callable[..., Numbers]]] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


def rank_input(rank: int, count: int, start: int = 0) -> NDArray[np.float32]:
    """Elements of a rank's input from index `start` on: whole numbers from 0 to 255 that differ by rank and index.

    Sums of 2,048 ranks are still exact in float32.
    """
    index = np.arange(start, start + count, dtype=np.uint32)
    mixed = (index + np.uint32(rank * 40503 & 0xFFFFFFFF)) * np.uint32(2654435761)
    return ((mixed >> np.uint32(21)) & np.uint32(0xFF)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of one run. values: inputs are below it. epochs: an epoch adds less than it to every input.

    ranks: whose inputs are reduced.
    """

    dtype: DType = "float32"
    operation: Reduction = "sum"
    ranks: int = 1
    values: int = INPUT_VALUES
    epochs: int = EPOCH_VALUES

    @classmethod
    def of(cls, pattern: Pattern, ranks: int) -> Self:
        """Those of a pattern. In types of two bytes inputs are so small that the sum of all is exact."""
        operation: Reduction = "max" if pattern.redop == "none" else pattern.redop
        if pattern.dtype not in EXACT:
            return cls(pattern.dtype, operation, ranks)
        most = EXACT[pattern.dtype] // pattern.added(ranks)
        more = min(EPOCH_VALUES - 1, max(2, most // 4))  # three values: buffers are used again after two epochs
        return cls(pattern.dtype, operation, ranks, min(INPUT_VALUES, max(1, most - more) + 1), more + 1)

    @property
    def stored(self) -> type[np.generic]:
        """The numpy type in memory and in packets."""
        return _STORED[self.dtype]

    def input(self, rank: int, count: int, start: int = 0) -> Numbers:
        """A rank's input, without the addend of an epoch."""
        found = rank_input(rank, count, start)
        found = found if self.values >= INPUT_VALUES else found % np.float32(self.values)
        return found.astype(np.int32) if self.dtype == "int32" else found

    def more(self, epoch: int) -> int:
        """The number that an epoch adds to every element of every input."""
        return epoch % self.epochs

    def begin(self, inputs: Numbers, epoch: int, out: Numbers) -> None:
        """Write the input of an epoch."""
        if self.dtype == "bfloat16":
            out[:] = _halved(inputs + np.float32(self.more(epoch)))
        else:
            np.add(inputs, self.more(epoch), out=out)

    def total(self, count: int, start: int = 0, ranks: Sequence[int] = ()) -> Numbers:
        """The reduction of the inputs of ranks, by default of all; for avg their sum."""
        first, *others = ranks or range(self.ranks)
        total = self.input(first, count, start)
        for rank in others:
            _COMBINE[self.operation](total, self.input(rank, count, start), out=total)
        return total

    def reduced(self, total: Numbers, epoch: int) -> Numbers:
        """The result of an epoch, by the definition of the reduction. total: of `total`."""
        if self.operation in ("max", "min"):
            return self.coded(total + self.more(epoch))
        found = total + self.ranks * self.more(epoch)
        return self.coded(_divided(found, self.ranks) if self.operation == "avg" else found)

    def coded(self, numbers: Numbers) -> Numbers:
        """As they are in memory."""
        return _halved(numbers) if self.dtype == "bfloat16" else numbers.astype(self.stored, copy=False)

    def merge(
        self, old: NDArray[np.uint8], new: NDArray[np.uint8], operation: Reduction | Literal[""], divide: int = 1
    ) -> None:
        """Bytes of a message, or of another buffer: copy them, or reduce them into the old ones."""
        if operation:
            self.combine(old.view(self.stored), new.view(self.stored), operation, divide)
        else:
            old[:] = new

    def combine(self, old: Numbers, new: Numbers, operation: Reduction, divide: int) -> None:
        """Reduce new values into old ones, and divide by a number. Whole numbers are rounded down, as NCCL does it."""
        if self.dtype == "bfloat16":
            old[:] = _halved(_divided(_COMBINE[operation](_widened(old), _widened(new)), divide))
            return
        _COMBINE[operation](old, new, out=old)
        if divide > 1:
            old[:] = _divided(old, divide)


def _divided(numbers: Numbers, by: int) -> Numbers:
    if by == 1:
        return numbers
    found: Numbers = numbers // by if numbers.dtype == np.int32 else numbers / np.float32(by)
    return found


def _halved(numbers: Numbers) -> NDArray[np.uint16]:
    """float32 as bfloat16, rounded to the nearest, half to even."""
    bits = numbers.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _widened(numbers: Numbers) -> NDArray[np.float32]:
    return (numbers.astype(np.uint32) << np.uint32(16)).view(np.float32)
