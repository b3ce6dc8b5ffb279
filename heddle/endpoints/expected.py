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

from collections.abc import Sequence
from typing import Final

import numpy as np

from heddle.endpoints.elements import EPOCH_VALUES, INPUT_VALUES, Elements, Numbers
from heddle.traffic.collectives import Piece

_EXACT: Final = 1 << 24  # whole numbers up to this one are exact in float32
_MOST_IN_BLOCK: Final = 1024  # elements: one packet of 4 KiB


def block_elements(inputs: int) -> int:
    """Elements of a block: the largest power of two with an exact sum, if each element is a sum of `inputs` inputs.

    At most 1,024, at least 1: with more than 58,867 inputs even a single element may be inexact.
    """
    most = _EXACT // (inputs * (INPUT_VALUES - 1 + EPOCH_VALUES - 1))
    return min(_MOST_IN_BLOCK, 1 << max(0, most.bit_length() - 1))


class Expected:
    """The correct content of one rank's result for one size.

    total: the reduction of all inputs, without the addend of an epoch (`Elements.total`); ValueError if a piece needs
    it and it is None.
    """

    def __init__(self, pieces: Sequence[Piece], elements: Elements, total: Numbers | None) -> None:
        self._pieces, self._elements, self._total = pieces, elements, total
        # Sums of blocks are exact for whole numbers only, and are not of stored bfloat16.
        self._by_block = elements.dtype != "bfloat16" and elements.operation != "avg"
        starts, sums, adds = [], [], []
        for piece in pieces if self._by_block else ():
            inputs = self._inputs(piece)
            offsets = np.arange(0, piece.hi - piece.lo, block_elements(inputs), dtype=np.intp)
            if len(offsets):
                starts.append(piece.lo + offsets)
                sums.append(np.add.reduceat(self._base(piece), offsets))
                adds.append(np.diff(offsets, append=piece.hi - piece.lo) * inputs)
        # By block: its first element; its sum in epoch 0; the increase of the sum if every input increases by 1.
        self._starts = np.concatenate([*starts, np.empty(0, np.intp)])
        self._sums = np.concatenate([*sums, np.empty(0, elements.stored)])
        self._adds = np.concatenate([*adds, np.empty(0, np.intp)]).astype(self._sums.dtype)
        self._end = max((piece.hi for piece in pieces), default=0)

    def wrong_blocks(self, array: Numbers, epoch: int) -> int:
        """The number of blocks with a wrong sum: each has at least one wrong element. Else that of wrong elements."""
        if not self._by_block:
            return self.wrong_elements(array, epoch)
        if not len(self._starts):
            return 0
        found = np.add.reduceat(array[: self._end], self._starts)
        return int(np.count_nonzero(found != self._sums + self._elements.more(epoch) * self._adds))

    def wrong_elements(self, array: Numbers, epoch: int) -> int:
        """The number of wrong elements."""
        return sum(
            int(np.count_nonzero(array[piece.lo : piece.hi] != self._want(piece, epoch))) for piece in self._pieces
        )

    def _want(self, piece: Piece, epoch: int) -> Numbers:
        if piece.source is None:
            return self._elements.reduced(self._base(piece), epoch)
        return self._elements.coded(self._base(piece) + self._elements.more(epoch))

    def _inputs(self, piece: Piece) -> int:
        """The number of inputs that are summed in each element of a piece."""
        return self._elements.ranks if piece.source is None and self._elements.operation == "sum" else 1

    def _base(self, piece: Piece) -> Numbers:
        """The elements of a piece, without the addend of an epoch."""
        length = piece.hi - piece.lo
        if piece.source is not None:
            return self._elements.input(piece.source, length, piece.start)
        if self._total is None:
            raise ValueError("a piece that is a reduction needs that of all inputs")
        return self._total[piece.start : piece.start + length]
