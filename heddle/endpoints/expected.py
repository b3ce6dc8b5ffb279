"""What a collective must leave in a rank's array, checked after every iteration.

In:  the pattern's pieces, and the inputs of the ranks, which can be computed.
Out: counts of what is not right. In every iteration but the last of a size the sum of each block of elements is
compared, in the last one every element.

All values are whole numbers. A block is so short that its sum is below 2^24, so float32 gives it exactly, in any order
of addition. Equal sums do not prove equal elements: two errors in one block can cancel out, and so can two elements
that changed places. A sum takes about 0.15 us for each 4 KiB of the array (numpy 2, one core at 3 GHz). A ring
all-reduce sends nearly two data packets for these 4 KiB, so this is below 1 % of what the packets cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.traffic.collectives import Piece

Floats = NDArray[np.float32]

_INPUT_VALUES: Final = 256  # inputs are 0 to 255
_EPOCH_VALUES: Final = 31  # inputs differ from epoch to epoch, so that a stale array cannot pass the check
_EXACT: Final = 1 << 24  # whole numbers up to this one are exact in float32
_MOST_IN_BLOCK: Final = 1024  # elements: one packet of 4 KiB


def rank_input(rank: int, count: int, start: int = 0) -> Floats:
    """Elements from `start` on of a rank's input: whole numbers from 0 to 255 that differ by rank and place.

    Sums of 2,048 ranks are still exact in float32.
    """
    index = np.arange(start, start + count, dtype=np.uint32)
    mixed = (index + np.uint32(rank * 40503 & 0xFFFFFFFF)) * np.uint32(2654435761)
    return ((mixed >> np.uint32(21)) & np.uint32(0xFF)).astype(np.float32)


def more_in(epoch: int) -> np.float32:
    """What is added to every element of every rank's input in an epoch."""
    return np.float32(epoch % _EPOCH_VALUES)


def block_elements(inputs: int) -> int:
    """Elements of a block: the largest power of two whose sum is exact where each is a sum of so many inputs.

    At most 1,024, at least 1: of more than 58,867 inputs a single sum may be inexact in any case.
    """
    most = _EXACT // (inputs * (_INPUT_VALUES - 1 + _EPOCH_VALUES - 1))
    return min(_MOST_IN_BLOCK, 1 << max(0, most.bit_length() - 1))


class Expected:
    """The right content of one rank's array for one size.

    total: the sum of all ranks' inputs, without what an epoch adds; ValueError when a piece needs it and it is None.
    """

    def __init__(self, pieces: Sequence[Piece], ranks: int, total: Floats | None) -> None:
        self._pieces, self._ranks, self._total = pieces, ranks, total
        starts, sums, adds = [], [], []
        for piece in pieces:
            inputs = self._inputs(piece)
            offsets = np.arange(0, piece.hi - piece.lo, block_elements(inputs), dtype=np.intp)
            if len(offsets):
                starts.append(piece.lo + offsets)
                sums.append(np.add.reduceat(self._base(piece), offsets))
                adds.append(np.diff(offsets, append=piece.hi - piece.lo).astype(np.float32) * np.float32(inputs))
        # By block: its first element; its sum in epoch 0; what each 1 that an epoch adds to every input makes of it.
        self._starts = np.concatenate([*starts, np.empty(0, np.intp)])
        self._sums = np.concatenate([*sums, np.empty(0, np.float32)])
        self._adds = np.concatenate([*adds, np.empty(0, np.float32)])
        self._end = max((piece.hi for piece in pieces), default=0)

    def wrong_blocks(self, array: Floats, epoch: int) -> int:
        """How many blocks have another sum than they must: in each of them one element or more is not right."""
        if not len(self._starts):
            return 0
        found = np.add.reduceat(array[: self._end], self._starts)
        return int(np.count_nonzero(found != self._sums + more_in(epoch) * self._adds))

    def wrong_elements(self, array: Floats, epoch: int) -> int:
        """How many elements are not what they must be."""
        wrong = 0
        for piece in self._pieces:
            want = self._base(piece) + np.float32(self._inputs(piece)) * more_in(epoch)
            wrong += int(np.count_nonzero(array[piece.lo : piece.hi] != want))
        return wrong

    def _inputs(self, piece: Piece) -> int:
        """How many inputs each element of a piece is the sum of."""
        return self._ranks if piece.source is None else 1

    def _base(self, piece: Piece) -> Floats:
        """The elements of a piece in an epoch that adds nothing."""
        length = piece.hi - piece.lo
        if piece.source is not None:
            return rank_input(piece.source, length, piece.start)
        if self._total is None:
            raise ValueError("a piece that is a sum needs the sum of all inputs")
        return self._total[piece.start : piece.start + length]
