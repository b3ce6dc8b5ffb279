"""The result of a collective in a rank's array, checked after every iteration.

In:  the pattern's pieces, and the inputs of the ranks, which can be computed.
Out: counts of wrong blocks and elements. In the last iteration of a size every element is compared, in all others the
sum of each block of elements.

All values are whole numbers. A block is so short that its sum is below 2^24, so float32 represents it exactly, in any
order of addition. Equal sums do not prove equal elements: two errors in one block can cancel out, and so can two
elements that changed places. A sum takes about 0.15 us for each 4 KiB of the array (numpy 2, one core at 3 GHz). A ring
all-reduce sends nearly two data packets for these 4 KiB, so this is below 1 % of the cost of the packets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.elements import EPOCH_VALUES, INPUT_VALUES, Elements, Numbers
from heddle.traffic.collectives import Piece
from heddle.traffic.collectives.bases import EXACT
from heddle.traffic.collectives.pattern import Buffer, Reduction

_EXACT: Final = 1 << 24  # whole numbers up to this one are exact in float32
_MOST_IN_BLOCK: Final = 1024  # elements: one packet of 4 KiB


def block_elements(inputs: int) -> int:
    """Elements of a block: the largest power of two with an exact sum, if each element is a sum of `inputs` inputs.

    At most 1,024, at least 1: with more than 58,867 inputs even a single element may be inexact.
    """
    most = _EXACT // (inputs * (INPUT_VALUES - 1 + EPOCH_VALUES - 1))
    return min(_MOST_IN_BLOCK, 1 << max(0, most.bit_length() - 1))


class _Blocks:
    """The sums of blocks of one buffer. Gaps between pieces are blocks that are not compared."""

    def __init__(self, found: Sequence[tuple[Piece, int, Numbers]]) -> None:
        """found: pieces in order, the number of inputs that are summed in each element, and their bases."""
        starts: list[NDArray[np.intp]] = []
        sums: list[Numbers] = []
        adds: list[NDArray[np.intp]] = []
        end = 0
        for piece, inputs, base in found:
            if end < piece.lo and starts:
                starts.append(np.array([end], np.intp))
                sums.append(np.zeros(1, base.dtype))
                adds.append(np.full(1, -1))
            offsets = np.arange(0, piece.hi - piece.lo, block_elements(inputs), dtype=np.intp)
            if len(offsets):
                starts.append(piece.lo + offsets)
                sums.append(np.add.reduceat(base, offsets))
                adds.append(np.diff(offsets, append=piece.hi - piece.lo) * inputs)
                end = piece.hi
        # By block: its first element; its sum in epoch 0; the increase of the sum if every input increases by 1.
        self._starts, self._end = np.concatenate([*starts, np.empty(0, np.intp)]), end
        added = np.concatenate([*adds, np.empty(0, np.intp)])
        self._chosen = added >= 0
        self._sums = np.concatenate(sums)[self._chosen] if sums else np.empty(0)
        self._adds = added[self._chosen].astype(self._sums.dtype)

    def wrong(self, array: Numbers, more: int) -> int:
        """The number of blocks with a wrong sum. more: what an epoch adds to each input."""
        if not len(self._starts):
            return 0
        found = np.add.reduceat(array[: self._end], self._starts)[self._chosen]
        return int(np.count_nonzero(found != self._sums + more * self._adds))


class Expected:
    """The correct content of one rank's result for one size.

    pieces: in order; each names its buffer. total: the reduction of all inputs, without the addend of an epoch
    (`Elements.total`); ValueError if a piece needs it and it is None.
    """

    def __init__(self, pieces: Sequence[Piece], elements: Elements, total: Numbers | None) -> None:
        self._pieces = tuple(pieces)
        self._elements, self._total = elements, total
        self.buffers: tuple[Buffer, ...] = tuple(dict.fromkeys(piece.buffer or "input" for piece in pieces))
        # Sums of blocks are exact for whole numbers only, and not in types of two bytes.
        by_block = elements.dtype not in EXACT and all(self._operation(piece) != "avg" for piece in pieces)
        self._blocks = {name: self._blocks_of(name) for name in self.buffers} if by_block else {}

    def _blocks_of(self, name: Buffer) -> _Blocks:
        pieces = [piece for piece in self._pieces if (piece.buffer or "input") == name]
        return _Blocks([(piece, self._inputs(piece), self._base(piece)) for piece in pieces])

    def copy_own(self, rank: int, source: Numbers, results: Mapping[Buffer, Numbers]) -> None:
        """Copy the pieces of a rank's result that are its own input: no message brings them."""
        for piece in self._pieces:
            if piece.source == rank and piece.buffer == "output":
                results["output"][piece.lo : piece.hi] = source[piece.start : piece.start + piece.hi - piece.lo]

    def wrong_blocks(self, results: Mapping[Buffer, Numbers], epoch: int) -> int:
        """The number of blocks with a wrong sum: each has at least one wrong element. Else that of wrong elements."""
        if not self._blocks:
            return self.wrong_elements(results, epoch)
        more = self._elements.more(epoch)
        return sum(blocks.wrong(results[name], more) for name, blocks in self._blocks.items())

    def wrong_elements(self, results: Mapping[Buffer, Numbers], epoch: int) -> int:
        """The number of wrong elements."""
        found = ((results[piece.buffer or "input"][piece.lo : piece.hi], piece) for piece in self._pieces)
        return sum(int(np.count_nonzero(array != self._want(piece, epoch))) for array, piece in found)

    def _operation(self, piece: Piece) -> Reduction | Literal[""]:
        return "" if piece.source is not None else piece.operation or self._elements.operation

    def _want(self, piece: Piece, epoch: int) -> Numbers:
        if piece.source is None:
            return self._reducing(piece).reduced(self._base(piece), epoch)
        return self._elements.coded(self._base(piece) + self._elements.more(epoch))

    def _reducing(self, piece: Piece) -> Elements:
        """The elements with the reduction of a piece."""
        if not piece.ranks:
            return self._elements
        operation = piece.operation or self._elements.operation
        return replace(self._elements, operation=operation, ranks=len(piece.ranks))

    def _inputs(self, piece: Piece) -> int:
        """The number of inputs that are summed in each element of a piece."""
        return self._reducing(piece).ranks if self._operation(piece) == "sum" else 1

    def _base(self, piece: Piece) -> Numbers:
        """The elements of a piece, without the addend of an epoch."""
        length = piece.hi - piece.lo
        if piece.source is not None:
            return self._elements.input(piece.source, length, piece.start)
        if piece.ranks:
            return _total(self._reducing(piece), length, piece.start, piece.ranks)
        if self._total is None:
            raise ValueError("a piece that is a reduction needs that of all inputs")
        return self._total[piece.start : piece.start + length]


@lru_cache(maxsize=64)
def _total(elements: Elements, length: int, start: int, ranks: tuple[int, ...]) -> Numbers:
    """The same for all ranks of a worker that reduce together."""
    return elements.total(length, start, ranks)
