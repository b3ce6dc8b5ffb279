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
from numpy.typing import NDArray

from heddle.traffic.collectives import Piece

Floats = NDArray[np.float32]

_INPUT_VALUES: Final = 256  # inputs are 0 to 255
_EPOCH_VALUES: Final = 31  # inputs differ between epochs, so that a stale array cannot pass the check
_EXACT: Final = 1 << 24  # whole numbers up to this one are exact in float32
_MOST_IN_BLOCK: Final = 1024  # elements: one packet of 4 KiB


def rank_input(rank: int, count: int, start: int = 0) -> Floats:
    """Elements of a rank's input from index `start` on: whole numbers from 0 to 255 that differ by rank and index.

    Sums of 2,048 ranks are still exact in float32.
    """
    index = np.arange(start, start + count, dtype=np.uint32)
    mixed = (index + np.uint32(rank * 40503 & 0xFFFFFFFF)) * np.uint32(2654435761)
    return ((mixed >> np.uint32(21)) & np.uint32(0xFF)).astype(np.float32)


def more_in(epoch: int) -> np.float32:
    """The number that an epoch adds to every element of every rank's input."""
    return np.float32(epoch % _EPOCH_VALUES)


def block_elements(inputs: int) -> int:
    """Elements of a block: the largest power of two with an exact sum, if each element is a sum of `inputs` inputs.

    At most 1,024, at least 1: with more than 58,867 inputs even a single element may be inexact.
    """
    most = _EXACT // (inputs * (_INPUT_VALUES - 1 + _EPOCH_VALUES - 1))
    return min(_MOST_IN_BLOCK, 1 << max(0, most.bit_length() - 1))


class Expected:
    """The correct content of one rank's array for one size.

    total: the sum of all ranks' inputs, without the addend of an epoch; ValueError if a piece needs it and it is None.
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
        # By block: its first element; its sum in epoch 0; the increase of the sum if every input increases by 1.
        self._starts = np.concatenate([*starts, np.empty(0, np.intp)])
        self._sums = np.concatenate([*sums, np.empty(0, np.float32)])
        self._adds = np.concatenate([*adds, np.empty(0, np.float32)])
        self._end = max((piece.hi for piece in pieces), default=0)

    def wrong_blocks(self, array: Floats, epoch: int) -> int:
        """The number of blocks with a wrong sum: each has at least one wrong element."""
        if not len(self._starts):
            return 0
        found = np.add.reduceat(array[: self._end], self._starts)
        return int(np.count_nonzero(found != self._sums + more_in(epoch) * self._adds))

    def wrong_elements(self, array: Floats, epoch: int) -> int:
        """The number of wrong elements."""
        wrong = 0
        for piece in self._pieces:
            want = self._base(piece) + np.float32(self._inputs(piece)) * more_in(epoch)
            wrong += int(np.count_nonzero(array[piece.lo : piece.hi] != want))
        return wrong

    def _inputs(self, piece: Piece) -> int:
        """The number of inputs that are summed in each element of a piece."""
        return self._ranks if piece.source is None else 1

    def _base(self, piece: Piece) -> Floats:
        """The elements of a piece, without the addend of an epoch."""
        length = piece.hi - piece.lo
        if piece.source is not None:
            return rank_input(piece.source, length, piece.start)
        if self._total is None:
            raise ValueError("a piece that is a sum needs the sum of all inputs")
        return self._total[piece.start : piece.start + length]
