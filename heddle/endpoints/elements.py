"""The elements of arrays: types, the ranks' inputs, reductions; the arrays of a rank and the result that they need.

In:  a type, a reduction, the number of ranks. Out: inputs that every reduction gives exactly, in any order, and that
show it if a contribution of one rank is missing, is added twice, or is that of another rank or iteration.
In element i the input of rank (i mod n) is the largest of all, and that of rank (i + n/2 mod n) the smallest; no other
rank has the same. So with n elements or more, each rank decides an element of a maximum and one of a minimum. Any two
ranks differ in one of two elements in a row, and in each element where a type has enough values. An iteration adds the
same number to all inputs.
numpy has no bfloat16. Such an array has the upper halves of float32 as uint16, and is reduced in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from heddle.traffic.collectives.bases import EXACT
from heddle.traffic.collectives.pattern import Buffer, DType, Pattern, Piece, Reduction

Numbers = NDArray[Any]  # float32 or int32
_VALUES: Final = 4000  # sums of 2,048 inputs stay below 2^23, so that even quotients of two sums differ in float32
_EPOCHS: Final = 31  # inputs differ between epochs, so that a stale array cannot pass the check
_STORED: Final[Mapping[DType, type[np.generic]]] = {
    "float32": np.float32, "bfloat16": np.uint16, "float16": np.float16, "int32": np.int32,
}  # fmt: skip
_COMBINE: Final[Mapping[Reduction, Callable[..., Numbers]]] = {
    "sum": np.add,
    "avg": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


_PERIOD: Final = 65_521  # elements: a prime, so that blocks are never moved by a multiple of it


def _without_order() -> NDArray[np.uint16]:
    """A number for each element of a period (the end of MurmurHash3's finalizer)."""
    mixed = np.arange(_PERIOD, dtype=np.uint32) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (mixed >> np.uint32(16)).astype(np.uint16)


_MIXED: Final = _without_order()


def _mixed(start: int, count: int) -> NDArray[np.uint16]:
    at = start % _PERIOD
    if at + count <= _PERIOD:
        return _MIXED[at : at + count]
    return np.concatenate([_MIXED[at:], *[_MIXED] * (1 + count // _PERIOD)])[:count]


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of one run. ranks: all that have an input; `operation` reduces them, unless a piece has its own.

    Inputs are `unit` times a whole number of [lowest, lowest + values). epochs: an epoch adds less than it to that
    number. unit: makes differences of averages visible where a quotient is rounded down.
    """

    dtype: DType
    operation: Reduction
    ranks: int
    lowest: int = 1
    values: int = _VALUES
    epochs: int = _EPOCHS
    unit: int = 1

    @classmethod
    def of(cls, pattern: Pattern, ranks: int) -> Self:
        """Those of a pattern. Inputs are so small that the sum of all that are added is exact in the type."""
        operation: Reduction = "max" if pattern.redop == "none" else pattern.redop
        added = pattern.added(ranks)
        unit = added if pattern.dtype == "int32" else 1
        most = EXACT[pattern.dtype] // (added * unit)
        lowest = -most if pattern.element_bytes == 2 else 1
        more = min(_EPOCHS - 1, max(2, most // 4))  # three values: buffers are used again after two epochs
        values = max(2, min(_VALUES, most - more - lowest + 1))
        return cls(pattern.dtype, operation, ranks, lowest, values, more + 1, unit)

    @property
    def stored(self) -> type[np.generic]:
        """The numpy type in memory and in packets."""
        return _STORED[self.dtype]

    def input(self, rank: int, count: int, start: int = 0) -> Numbers:
        """A rank's input from element `start` on, without the addend of an epoch."""
        return self._input(rank, start, _mixed(start, count))

    def _input(self, rank: int, start: int, mixed: NDArray[np.uint16]) -> Numbers:
        # The middle values are a power of two. Two ranks whose numbers are equal modulo it differ by their quotients,
        # which move them against each other from element to element.
        middle = 1 << max(0, (self.values - 2).bit_length() - 1)
        edge = (self.values - middle) // 2
        found = mixed + np.uint16(rank * 40503 & 0xFFFF)
        if rank >= middle:
            index = np.arange(start, start + len(mixed), dtype=np.uint32).astype(np.uint16)
            found += index * np.uint16(rank // middle)
        found &= np.uint16(middle - 1)
        found += np.uint16(edge)
        for turn, lowest in ((rank, edge + middle), (rank - self.ranks // 2, 0)):
            if edge and self.ranks > 1:
                at = slice((turn - start) % self.ranks, None, self.ranks)
                found[at] = mixed[at] % np.uint16(edge) + np.uint16(lowest)
        numbers = found.astype(np.int32 if self.dtype == "int32" else np.float32)
        numbers += self.lowest
        return numbers if self.unit == 1 else numbers * self.unit

    def more(self, epoch: int) -> int:
        """The number that an epoch adds to every element of every input."""
        return epoch % self.epochs * self.unit

    def begin(self, inputs: Numbers, epoch: int, out: Numbers) -> None:
        """Write the input of an epoch."""
        if out.itemsize == 2:
            out[:] = self.coded(inputs + np.float32(self.more(epoch)))
        else:
            np.add(inputs, self.more(epoch), out=out)

    def total(
        self, count: int, start: int = 0, ranks: Sequence[int] = (), operation: Reduction | Literal[""] = ""
    ) -> Numbers:
        """The reduction of the inputs of ranks, by default of all; for avg their sum."""
        mixed, combine = _mixed(start, count), _COMBINE[operation or self.operation]
        first, *others = ranks or range(self.ranks)
        total = self._input(first, start, mixed)
        for rank in others:
            combine(total, self._input(rank, start, mixed), out=total)
        return total

    def reduced(self, total: Numbers, epoch: int, ranks: int = 0, operation: Reduction | Literal[""] = "") -> Numbers:
        """The result of an epoch, by the definition of the reduction. total: of `total`. ranks: how many; 0: all."""
        ranks, operation = ranks or self.ranks, operation or self.operation
        if operation in ("max", "min"):
            return self.coded(total + self.more(epoch))
        found = total + ranks * self.more(epoch)
        if operation != "avg":
            return self.coded(found)
        found = _divided(found, ranks)
        return _halved(found) if self.dtype == "bfloat16" else found.astype(self.stored, copy=False)

    def coded(self, numbers: Numbers) -> Numbers:
        """Inputs, or sums of them, as they are in memory. They are exact in the type, so nothing is rounded."""
        if self.dtype == "bfloat16":
            return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        if self.dtype == "float16":
            # numpy converts element by element. Times 2^-112, a number has the exponent of float16.
            bits = (numbers * np.float32(2.0**-112)).view(np.uint32)
            sign = bits >> np.uint32(16) & np.uint32(0x8000)
            return (bits >> np.uint32(13) & np.uint32(0x7FFF) | sign).astype(np.uint16).view(np.float16)
        return numbers

    def unseen(self, reductions: Iterable[Piece]) -> int:
        """How many ranks change no element of a result, so that it is the same if their contribution is missing.

        None of those reductions that have as many elements as the job has ranks.
        """
        found = set[int]()
        for each in reductions:
            count, many = each.hi - each.lo, len(each.ranks)
            if count >= self.ranks:
                continue
            inputs = np.stack([self.input(rank, count, each.start) for rank in each.ranks])
            total = self.total(count, each.start, each.ranks, each.operation)
            if each.operation in ("max", "min"):
                seen = (inputs == total) & ((inputs == total).sum(axis=0) == 1)
            else:
                rest = self.reduced(total - inputs, 0, many, each.operation)
                seen = rest != self.reduced(total, 0, many, each.operation)
            found.update(rank for rank, any_seen in zip(each.ranks, seen.any(axis=1), strict=True) if not any_seen)
        return len(found)

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


Bytes = NDArray[np.uint8]
_TOGETHER: Final = 1 << 15  # elements that are compared at once: what is computed for them stays in the cache


class Expected:
    """The correct content of one rank's result for one size.

    pieces: in order; each names its buffer. total: the reduction of all inputs, without the addend of an epoch
    (`Elements.total`); ValueError if a piece needs it and it is None.
    """

    def __init__(self, pieces: Sequence[Piece], elements: Elements, total: Numbers | None) -> None:
        self._pieces = tuple(pieces)
        self._elements, self._total = elements, total
        self.buffers: tuple[Buffer, ...] = tuple(dict.fromkeys(piece.buffer or "input" for piece in pieces))

    def copy_own(self, rank: int, source: Numbers, results: Mapping[Buffer, Numbers]) -> None:
        """Copy the pieces of a rank's result that are its own input: no message brings them."""
        for piece in self._pieces:
            if piece.source == rank and piece.buffer == "output":
                results["output"][piece.lo : piece.hi] = source[piece.start : piece.start + piece.hi - piece.lo]

    def wrong_elements(self, results: Mapping[Buffer, Numbers], epoch: int) -> int:
        """The number of wrong elements: those of which a bit differs."""
        bits = f"u{np.dtype(self._elements.stored).itemsize}"
        return sum(
            int(np.count_nonzero(results[piece.buffer or "input"][lo : lo + len(want)].view(bits) != want.view(bits)))
            for piece in self._pieces
            for lo, want in self._wanted(piece, epoch)
        )

    def _wanted(self, piece: Piece, epoch: int) -> Iterator[tuple[int, Numbers]]:
        """The elements of a piece, part by part, with the first element of each."""
        elements, length = self._elements, piece.hi - piece.lo
        for at in range(0, length, _TOGETHER):
            start, count = piece.start + at, min(_TOGETHER, length - at)
            if piece.source is not None:
                want = elements.coded(_input(elements, piece.source, count, start) + elements.more(epoch))
            else:
                total = self._total_of(piece)[start - piece.start * bool(piece.ranks) :][:count]
                want = elements.reduced(total, epoch, len(piece.ranks), piece.operation)
            yield piece.lo + at, want

    def _total_of(self, piece: Piece) -> Numbers:
        """The reduction of the inputs of a piece's ranks, from its start on; of all ranks from their first element."""
        if piece.ranks:
            length = piece.hi - piece.lo
            return _total(self._elements, length, piece.start, piece.ranks, piece.operation)
        if self._total is None:
            raise ValueError("a piece that is a reduction needs that of all inputs")
        return self._total


@lru_cache(maxsize=256)  # 32 MB
def _input(elements: Elements, rank: int, count: int, start: int) -> Numbers:
    """The same for all ranks of a worker that receive it, and in each iteration. count: at most _TOGETHER."""
    return elements.input(rank, count, start)


@lru_cache(maxsize=64)
def _total(
    elements: Elements, length: int, start: int, ranks: tuple[int, ...], operation: Reduction | Literal[""]
) -> Numbers:
    """The same for all ranks of a worker that reduce together."""
    return elements.total(length, start, ranks, operation)


class RankArrays:
    """Buffers of two epochs, used in turn: if packets were lost, a neighbour needs the bytes of the last one.

    An algorithm that works in place has its data and its result in `input`. Out of place, it works in a second array,
    which begins as a copy of `input`; data that no earlier operation has changed is sent from `input` itself. An
    algorithm with the result in `output` has both in one array in place, as nccl-tests lays them: the input is a part
    of the output, or the output one of the input.
    lengths: bytes of each buffer. pieces: the result of the rank.
    """

    def __init__(
        self,
        pattern: Pattern,
        elements: Elements,
        rank: int,
        lengths: Mapping[Buffer, int],
        pieces: Sequence[Piece],
        *,
        in_place: bool,
    ) -> None:
        self._elements = elements
        self._moves = pattern.in_place and not in_place
        own = next((piece for piece in pieces if piece.source == rank), None)
        joined = own is not None and in_place and not pattern.in_place
        offset = (own.lo - own.start) * pattern.element_bytes if own is not None and joined else None
        self._epochs = [_arrays(lengths, offset) for _ in range(2)]
        if self._moves:
            for each in self._epochs:
                each["output"] = np.zeros_like(each.get("input", np.empty(0, np.uint8)))

    def __iter__(self) -> Iterator[Bytes]:
        """All of them."""
        return (array for each in self._epochs for array in each.values())

    def bytes_of(self, name: Buffer, epoch: int, *, unchanged: bool = False) -> Bytes:
        """A buffer of an operation; empty if there is none. unchanged: of data that nothing has written in this epoch.

        Out of place, `input` is the second array for all other data.
        """
        real: Buffer = "output" if self._moves and name == "input" and not unchanged else name
        found = self._epochs[epoch & 1].get(real)
        return np.empty(0, np.uint8) if found is None else found

    def numbers(self, name: Buffer, epoch: int, *, unchanged: bool = False) -> Numbers:
        """The same by element."""
        return self.bytes_of(name, epoch, unchanged=unchanged).view(self._elements.stored)

    def begin(self, inputs: Numbers, epoch: int) -> Numbers:
        """Write the input of an epoch; return it."""
        source = self.numbers("input", epoch, unchanged=True)
        self._elements.begin(inputs, epoch, source)
        if self._moves:
            self.numbers("input", epoch)[:] = source
        return source


def _arrays(lengths: Mapping[Buffer, int], offset: int | None) -> dict[Buffer, Bytes]:
    """An array for each buffer. offset: where the input begins in the output, in bytes; None: they are apart."""
    if offset is None:
        return {name: np.zeros(size, np.uint8) for name, size in lengths.items()}
    at = {**dict.fromkeys(lengths, 0), "input": max(0, offset), "output": max(0, -offset)}
    shared = np.zeros(max(at[name] + lengths[name] for name in ("input", "output")), np.uint8)
    return {
        name: shared[at[name] : at[name] + size] if name in ("input", "output") else np.zeros(size, np.uint8)
        for name, size in lengths.items()
    }
