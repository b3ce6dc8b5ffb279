"""The arrays of a rank for one size, in place or out of place.

In:  the bytes of each buffer that the rank's operations use, and its result.
Out: buffers by name. Two epochs use them in turn: if packets were lost, a neighbour needs the bytes of the last one.
An algorithm that works in place has its data and its result in `input`. Out of place, it works in a second array, which
begins as a copy of `input`; data that no earlier operation has changed is sent from `input` itself. An algorithm with
the result in `output` has both in one array in place, as nccl-tests lays them: the input is a part of the output, or
the output one of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.elements import Elements, Numbers
from heddle.traffic.collectives import Pattern, Piece
from heddle.traffic.collectives.pattern import Buffer

Bytes = NDArray[np.uint8]


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
