"""What a collective is made of: transfers, what they leave in the ranks' arrays, and the protocol of every pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]  # elements [lo, hi); an empty one is not sent at all
NOTHING: Span = (0, 0)
ALIGN: Final = 4  # float32 elements in 16 bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One step of one rank: a range of what it has to send, and a range of its array that is written by another.

    put:    the element of the receiver's array at which what is sent begins.
    reduce: what arrives is added to the array; otherwise it replaces what was there.
    after:  earlier steps that must have arrived as a whole before this one's range is sent.
    """

    step: int
    send_to: int
    send: Span
    recv_from: int
    recv: Span
    put: int
    reduce: bool = False
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [lo, hi) of a rank's array at the end: those from `start` on of one rank's input, or of all inputs' sum.

    source: that rank; None is the sum.
    """

    lo: int
    hi: int
    source: int | None
    start: int


class Pattern(Protocol):
    """A collective by one algorithm.

    in_place: a rank has one array, its input, which it sends from and receives into, and sends a range of it once
              everything that earlier steps put there has arrived. Otherwise it sends from its input and receives into
              another array, and only `after` makes a transfer wait.
    redop, root: as nccl-tests prints them; `none` where nothing is added up.
    """

    collective: str
    algorithm: str
    in_place: bool
    redop: str
    root: int

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """What `rank` does for an array of `count` elements, in the order of steps; no step is there twice."""

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """What is in a rank's array when it is done: pieces in order, without gaps."""

    def busbw_factor(self, ranks: int) -> float:
        """busbw / algbw, as nccl-tests derives it (doc/PERFORMANCE.md)."""

    def receivers(self, ranks: int) -> int:
        """How many ranks take in data at the same time, each busbw_factor x its array."""

    def whole(self, ranks: int, count: int) -> int:
        """How many of `count` elements are used, after nccl-tests' rounding (GetCollByteCount); 0 if too few."""

    def connections(self, ranks: int) -> int:
        """How many pairs `peers` has."""

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """All (sender, receiver) pairs that carry anything, in order: shape (connections, 2)."""

    def alike(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """A label for each of these pairs: equal where as many transfers of each length go from the one to the other.

        It spares whoever counts bytes the programs of all ranks. count: elements of a rank's array.
        """


def whole_chunks(ranks: int, count: int) -> int:
    """Elements used where each rank has a chunk of its own: chunks are equal, and whole multiples of 16 bytes.

    nccl-tests 2.19, src/alltoall.cu and src/gather.cu: (count/nranks) & ~(16/eltSize - 1) for each rank.
    """
    return ranks * (count // ranks // ALIGN * ALIGN)


def chunk_range(index: int, ranks: int, count: int) -> Span:
    """Elements of chunk `index`: as even as whole elements allow; empty when there are fewer elements than ranks."""
    return index * count // ranks, (index + 1) * count // ranks


def chunk_lengths(ranks: int, count: int) -> NDArray[np.int64]:
    """How many elements each chunk has: shape (ranks,)."""
    ends = np.array([index * count // ranks for index in range(ranks + 1)], dtype=np.int64)
    lengths: NDArray[np.int64] = np.diff(ends)
    return lengths
