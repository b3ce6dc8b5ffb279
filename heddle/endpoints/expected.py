"""The arrays of a rank for one size, and the result that they must contain after every iteration.

In:  the bytes of each buffer that the rank's operations use, the pieces of its result, and the inputs of the ranks,
     which can be computed.
Out: buffers by name; counts of wrong elements: every element is compared.
Two epochs use the buffers in turn: if packets were lost, a neighbour needs the bytes of the last one. An algorithm that
works in place has its data and its result in `input`. Out of place, it works in a second array, which begins as a copy
of `input`; data that no earlier operation has changed is sent from `input` itself. An algorithm with the result in
`output` has both in one array in place, as nccl-tests lays them: the input is a part of the output, or the output one
of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.elements import Elements, Numbers
from heddle.traffic.collectives import Pattern, Piece
from heddle.traffic.collectives.pattern import Buffer, Reduction

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
    """Buffers of two epochs. lengths: bytes of each buffer. pieces: the result of the rank."""

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
