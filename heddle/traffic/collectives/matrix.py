"""Matrix: bytes for each pair of ranks. Every rank sends all its cells at once, and may receive from several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

from heddle.base.declared import Declared
from heddle.traffic import matrixrows
from heddle.traffic.collectives.parameters import GROUP
from heddle.traffic.collectives.pattern import CREDIT_BYTES, Pattern, Piece, ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint


class _Cells(NamedTuple):
    """Columns of the cells that are not empty, by sender, then receiver. length: in elements.

    start: in the sender's input. put: in the receiver's output.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    length: NDArray[np.int64]
    start: NDArray[np.int64]
    put: NDArray[np.int64]


@dataclass(frozen=True)
class PairMatrix(Pattern):
    """A rank's input has the cells of its receivers, one after the other, and its output those of its senders.

    Its methods are for a matrix of numbers, as `bound` returns it.
    """

    collective = "matrix"
    algorithm = "direct"
    replaces = False
    once = True

    matrix: Annotated[str, Declared(
        "bytes for each pair of ranks: rows as 0,1,64K;1,0,4K, a .csv file of them, "
        "or all-to-all, permutation:SEED, shift:N, incast:N (--size each)", GROUP,
        reads=matrixrows.check_matrix, typed="0,1,4096", value="MATRIX", words=list(matrixrows.NAMED),
    )] = "0,1,4096"  # fmt: skip

    @property
    def typed(self) -> str:
        """`--matrix shift:4`."""
        return f"--matrix {self.matrix if len(self.matrix) <= 40 else self.matrix[:37] + '...'}"

    @property
    def by_rank(self) -> bool:
        return matrixrows.names_ranks(self.matrix)

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> PairMatrix:
        """With ranks instead of a file and of names of hosts, and with the bytes of named matrices."""
        return replace(self, matrix=matrixrows.bound_rows(self.matrix, endpoints, sizes))

    def unfit(self, ranks: int) -> str:
        """Nothing to send; a named matrix for other numbers of ranks."""
        rows, named = matrixrows.parts_of(self.matrix)
        if why := matrixrows.unfit(self.matrix, ranks):
            return why
        whole = any(each.bytes >= self.element_bytes for each in named) or (rows and len(self._cells(ranks).src))
        return "" if whole else f"has no cell with a whole {self.dtype}"

    def _cells(self, ranks: int) -> _Cells:
        return _laid(self.matrix, ranks, self.element_bytes)

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Step r: the cell of sender r. Everything at once."""
        cells = self._cells(ranks)
        sends: list[Step] = []
        receives: list[Step] = []
        for src, dst, length, start, put in _rows(cells, cells.src == rank):
            sends.append(SendStep(src, dst, (start, start + length), put))
        for src, _, length, _, put in _rows(cells, cells.dst == rank):
            receives.append(ReceiveStep(src, src, (put, put + length)))
        return [*sends, *receives]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The cells of its senders, in their order."""
        cells = self._cells(ranks)
        mine = _rows(cells, cells.dst == rank)
        return [Piece(put, put + length, src, start) for src, _, length, start, put in mine]

    def at_once(self, ranks: int) -> int:
        return ranks

    def whole(self, ranks: int, count: int) -> int:
        """Elements of the busiest rank: the most that one sends or receives, whatever the requested size."""
        cells = self._cells(ranks)
        ends = (cells.start, cells.put)
        return max((int((end + cells.length).max()) for end in ends), default=0) if len(cells.src) else 0

    def busbw_factor(self, ranks: int) -> float:
        """1: busbw is the rate of the busiest rank."""
        return 1.0

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        cells = self._cells(ranks)
        return np.stack([cells.src, cells.dst], axis=1)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """From every receiver that does not send to its sender."""
        import numpy as np

        there, back = self._numbers(ranks)
        return np.stack(np.divmod(np.setdiff1d(back, there), ranks), axis=1)

    def peers(self, ranks: int) -> NDArray[np.int64]:
        """The pairs with cells, in both directions."""
        return _peers(self.matrix, ranks, self.element_bytes)

    def _numbers(self, ranks: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each pair with a cell as one number, and the opposite pair."""
        cells = self._cells(ranks)
        return cells.src * ranks + cells.dst, cells.dst * ranks + cells.src

    def connections(self, ranks: int) -> int:
        """One for each pair in each direction, if all ranks send to all others."""
        everything = any(each.name == "all-to-all" for each in matrixrows.parts_of(self.matrix)[1])
        return ranks * (ranks - 1) if everything else len(self._cells(ranks).src) + len(self.credits(ranks))

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the cell, or of a credit."""
        import numpy as np

        cells = self._cells(ranks)
        known, wanted = cells.src * ranks + cells.dst, pairs @ [ranks, 1]
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[at] == wanted, cells.length[at], CREDIT_BYTES // self.element_bytes)


def _rows(cells: _Cells, chosen: NDArray[np.bool_]) -> list[list[int]]:
    import numpy as np

    found: list[list[int]] = np.stack(cells, axis=1)[chosen].tolist()
    return found


@lru_cache(maxsize=8)
def _peers(matrix: str, ranks: int, element_bytes: int) -> NDArray[np.int64]:
    import numpy as np

    cells = _laid(matrix, ranks, element_bytes)
    both = np.sort(np.concatenate([cells.src * ranks + cells.dst, cells.dst * ranks + cells.src]))
    return np.stack(np.divmod(both[np.diff(both, prepend=-1) > 0], ranks), axis=1)


@lru_cache(maxsize=8)
def _laid(matrix: str, ranks: int, element_bytes: int) -> _Cells:
    import numpy as np

    src, dst, size = matrixrows.cells_of(matrix, ranks)
    there = size >= element_bytes
    src, dst, length = src[there], dst[there], size[there] // element_bytes
    start, put = np.empty_like(length), np.empty_like(length)
    for offset, ends in ((start, src), (put, dst)):
        order = np.argsort(ends, kind="stable")
        before = np.cumsum(length[order]) - length[order]
        first = np.searchsorted(ends[order], ends[order])
        offset[order] = before - before[first]
    return _Cells(src, dst, length, start, put)
