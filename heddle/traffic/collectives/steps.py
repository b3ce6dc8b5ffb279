"""The operations of a rank in an iteration of a collective, and the pieces of its result. Lengths are in elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

NEARLY_BYTES: Final = 1 << 17
Span = tuple[int, int]  # elements [lo, hi); an empty range is not sent
# input: the rank's input, written again for each iteration. credit: see above; patterns do not use it.
Buffer = Literal["input", "output", "scratch", "credit"]
Reduction = Literal["sum", "max", "min", "avg"]


@dataclass(frozen=True, slots=True)
class SendStep:
    """Send a range of a buffer to rank `to`, to its element `put` and up.

    It waits for all earlier operations of this rank that write into the range, for the steps `after`, and for the
    receives `nearly` without their last NEARLY_BYTES, at least one message. step: of the receiver's operation.
    """

    step: int
    to: int
    span: Span
    put: int
    buffer: Buffer = "input"
    after: tuple[int, ...] = ()
    nearly: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiveStep:
    """A range of a buffer that rank `source` writes. step: unique among the receives and computations of a rank.

    reduce: combine the data with the old values; empty: replace them. divide: divide the result by this number, after
    the last receive of this range.
    """

    step: int
    source: int
    span: Span
    buffer: Buffer = "output"
    reduce: Reduction | Literal[""] = ""
    divide: int = 1


@dataclass(frozen=True, slots=True)
class ComputeStep:
    """Work that takes `seconds`, after the steps `after`. step: as in ReceiveStep."""

    step: int
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalStep:
    """Copy or reduce a range of a buffer into another one of the same rank, from its element `put` on.

    It waits for the steps `after` only. step: as in ReceiveStep, and above those of all messages. reduce: as there.
    """

    step: int
    span: Span
    put: int
    buffer: Buffer
    into: Buffer
    reduce: Reduction | Literal[""] = ""
    after: tuple[int, ...] = ()


Step = SendStep | ReceiveStep | ComputeStep | LocalStep


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [lo, hi) of a rank's result: a copy from `start` on of one rank's input, or of a reduction of inputs.

    source: that rank; None: the reduction. ranks: of which; empty: all. operation: empty: that of the pattern.
    buffer: that has the result; empty: `input` in place, else `output`.
    """

    lo: int
    hi: int
    source: int | None
    start: int
    ranks: tuple[int, ...] = ()
    operation: Reduction | Literal[""] = ""
    buffer: Buffer | Literal[""] = ""
