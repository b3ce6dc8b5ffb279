"""The parts of a collective: transfers, the final content of the ranks' arrays, and the base of every pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Span = tuple[int, int]  # elements [lo, hi); an empty range is not sent
NOTHING: Span = (0, 0)
ALIGN: Final = 4  # float32 elements in 16 bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One step of one rank: a range that it sends, and a range of its array that another rank writes.

    put:    the first element of the receiver's array that this range is written to.
    reduce: received data is added to the array; otherwise it replaces the old values.
    after:  earlier steps that must have arrived completely before this step's range is sent.
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
    """Elements [lo, hi) of a rank's array at the end: a copy from `start` on of one rank's input, or of the sum of all.

    source: that rank; None: the sum.
    """

    lo: int
    hi: int
    source: int | None
    start: int


class Pattern:
    """A collective with one algorithm. The defaults are those of patterns in which every rank has its own chunk.

    in_place: a rank sends from its input array and receives into it. It sends a range once all data that earlier steps
              put there has arrived. Otherwise it sends from its input and receives into another array, and only
              `after` makes a transfer wait.
    redop, root: as nccl-tests prints them; `none` if nothing is reduced. by_chunk: its `count` is that of a chunk, one
    of the array's `ranks` parts (common.cu prints `paramcount`).
    """

    collective: ClassVar[str]
    algorithm: ClassVar[str]
    in_place: ClassVar[bool] = False
    redop: ClassVar[str] = "none"
    root: ClassVar[int] = -1
    by_chunk: ClassVar[bool] = False

    def program(self, ranks: int, rank: int, count: int) -> list[Transfer]:
        """The transfers of `rank` for an array of `count` elements, in the order of steps; steps are unique."""
        raise NotImplementedError

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The final content of a rank's array: pieces in order, without gaps."""
        raise NotImplementedError

    def busbw_factor(self, ranks: int) -> float:
        """busbw / algbw, as nccl-tests derives it (doc/PERFORMANCE.md)."""
        return (ranks - 1) / ranks

    def receivers(self, ranks: int) -> int:
        """How many ranks receive data at the same time, each busbw_factor x its array."""
        return ranks

    def at_once(self, ranks: int) -> int:
        """How many steps a rank may receive at once: steps [i n, (i + 1) n) never wait for each other."""
        return 1

    def whole(self, ranks: int, count: int) -> int:
        """How many of `count` elements are used, after nccl-tests' rounding (GetCollByteCount); 0 if too few.

        Chunks are equal, and multiples of 16 bytes. nccl-tests 2.19, src/alltoall.cu and src/gather.cu:
        (count/nranks) & ~(16/eltSize - 1) for each rank.
        """
        return ranks * (count // ranks // ALIGN * ALIGN)

    def connections(self, ranks: int) -> int:
        """The number of pairs in `peers`."""
        raise NotImplementedError

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """All (sender, receiver) pairs that carry data, in order: shape (connections, 2)."""
        raise NotImplementedError

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """A label for each of these pairs: equal labels mean equal numbers of transfers of each length.

        With labels, code that counts bytes need not compute the programs of all ranks. count: elements of an array.
        """
        raise NotImplementedError


def chunk_range(index: int, ranks: int, count: int) -> Span:
    """Elements of chunk `index`: as even as whole elements allow; empty when there are fewer elements than ranks."""
    return index * count // ranks, (index + 1) * count // ranks


def chunk_lengths(ranks: int, count: int) -> NDArray[np.int64]:
    """How many elements each chunk has: shape (ranks,)."""
    import numpy as np

    ends = np.array([index * count // ranks for index in range(ranks + 1)], dtype=np.int64)
    lengths: NDArray[np.int64] = np.diff(ends)
    return lengths
