"""The result of a collective in a rank's array, checked after every iteration: every element is compared.

In:  the pattern's pieces, and the inputs of the ranks, which can be computed.
Out: counts of wrong elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from heddle.endpoints.elements import Elements, Numbers
from heddle.traffic.collectives import Piece
from heddle.traffic.collectives.pattern import Buffer, Reduction

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
        """The number of wrong elements."""
        return sum(
            int(np.count_nonzero(results[piece.buffer or "input"][lo : lo + len(want)] != want))
            for piece in self._pieces
            for lo, want in self._wanted(piece, epoch)
        )

    def _wanted(self, piece: Piece, epoch: int) -> Iterator[tuple[int, Numbers]]:
        """The elements of a piece, part by part, with the first element of each."""
        elements, length = self._elements, piece.hi - piece.lo
        for at in range(0, length, _TOGETHER):
            start, count = piece.start + at, min(_TOGETHER, length - at)
            if piece.source is not None:
                want = elements.coded(elements.input(piece.source, count, start) + elements.more(epoch))
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


@lru_cache(maxsize=64)
def _total(
    elements: Elements, length: int, start: int, ranks: tuple[int, ...], operation: Reduction | Literal[""]
) -> Numbers:
    """The same for all ranks of a worker that reduce together."""
    return elements.total(length, start, ranks, operation)
