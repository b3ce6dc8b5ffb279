"""Each pair of ranks has its own number of bytes (matrix: all at once), or share of a chunk (all-to-all-v)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from heddle.base.declared import Declared
from heddle.base.problems import InputError
from heddle.traffic import matrixrows
from heddle.traffic.collectives.all_to_all import StaggeredAllToAll, before, deltas
from heddle.traffic.collectives.pattern import CREDIT_BYTES, GROUP, Pattern, Piece, ReceiveStep, SendStep, Step

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
        return _cells_of(self.matrix, ranks, self.element_bytes)

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

    cells = _cells_of(matrix, ranks, element_bytes)
    both = np.sort(np.concatenate([cells.src * ranks + cells.dst, cells.dst * ranks + cells.src]))
    return np.stack(np.divmod(both[np.diff(both, prepend=-1) > 0], ranks), axis=1)


@lru_cache(maxsize=8)
def _cells_of(matrix: str, ranks: int, element_bytes: int) -> _Cells:
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


_SKEW: Final = re.compile(r"skew(?::([0-9]{1,9}))?(?::([0-9]{1,3}))?")
_USUAL_SKEW: Final = 4
_WHOLE: Final = 1000  # a skewed share is a number of thousandths
_LARGEST_SHARE: Final = 1 << 20


def read_counts(typed: str) -> str:
    """`skew:SEED:MAX` with both numbers, or rows as those of a matrix, without named ones. ValueError, InputError."""
    if found := _SKEW.fullmatch(typed.strip()):
        most = int(found[2] or _USUAL_SKEW)
        if not most:
            raise ValueError("has a skew of 0; write skew:0:1 for equal shares, or a larger number")
        return f"skew:{int(found[1] or 0)}:{most}"
    if not matrixrows.names_ranks(typed):
        raise ValueError(
            "is neither skew:SEED:MAX nor rows nor a .csv file; write rows as 0,1,3;1,0,1: from, to, share"
        )
    with _as_counts():
        return matrixrows.check_matrix(typed)


@contextmanager
def _as_counts() -> Iterator[None]:
    """Errors of rows name the flag that has them here."""
    try:
        yield
    except InputError as error:
        problems = (replace(each, what=each.what.replace("--matrix", "--counts", 1)) for each in error.problems)
        raise InputError(*problems) from None


@dataclass(frozen=True)
class StaggeredAllToAllV(StaggeredAllToAll):
    """The rounds of an all-to-all, with a share of a chunk for each pair, as mixtures of experts send.

    nccl-tests' alltoallv_perf (2.19, src/alltoallv.cu) takes a factor from 0 to 1 for each pair: that part of the chunk
    size/n is sent. Here, too, shares do not depend on the size. As there, algbw is size / time and the factor of busbw
    is (n-1)/n: with equal shares both are those of an all-to-all. Outputs have the data of all senders in their order,
    without gaps, and inputs that for all receivers. counts: bound, as `read_counts` and `bound` return it.
    """

    collective = "all-to-all-v"
    algorithm = "staggered"
    once = True
    as_sends = False  # its bus bandwidth is not that of its longest message

    counts: Annotated[str, Declared(
        "shares of pairs: skew:SEED:MAX (MAX: the busiest receiver's data / the idlest one's), "
        "or rows as 0,1,3;1,0,1, or a .csv file of them", GROUP,
        reads=read_counts, typed="skew:0:4", words=["skew", "skew:"],
    )] = "skew:0:4"  # fmt: skip

    @property
    def typed(self) -> str:
        return f"--counts {self.counts if len(self.counts) <= 40 else self.counts[:37] + '...'}"

    @property
    def by_rank(self) -> bool:
        return not self.counts.startswith("skew")

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> StaggeredAllToAllV:
        if not self.by_rank:
            return self
        with _as_counts():
            return replace(self, counts=matrixrows.bound_rows(self.counts, endpoints, (1,)))

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        length, starts, puts = _laid_out(self.counts, ranks, count // ranks)
        steps: list[Step] = []
        for step, delta in enumerate(deltas(ranks)):
            to, source = (rank + delta) % ranks, (rank - delta) % ranks
            lo, put = int(starts[rank, to]), int(puts[source, rank])
            out, into = int(length[rank, to]), int(length[source, rank])
            after, nearly = before(step)
            if out:
                steps.append(SendStep(step, to, (lo, lo + out), int(puts[rank, to]), after=after, nearly=nearly))
            if into:
                steps.append(ReceiveStep(step, source, (put, put + into)))
        return steps

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        length, starts, puts = (each[:, rank].tolist() for each in _laid_out(self.counts, ranks, count // ranks))
        pieces = enumerate(zip(length, starts, puts, strict=True))
        return [Piece(put, put + many, source, start) for source, (many, start, put) in pieces if many]

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """All pairs of a skew; those with a row."""
        return Pattern.routes(self, ranks) if self.by_rank else super().routes(ranks)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None in a skew."""
        return Pattern.credits(self, ranks) if self.by_rank else super().credits(ranks)

    def connections(self, ranks: int) -> int:
        return Pattern.connections(self, ranks) if self.by_rank else super().connections(ranks)

    def receivers(self, ranks: int) -> int:
        return Pattern.receivers(self, ranks) if self.by_rank else super().receivers(ranks)

    def sent_by(self, ranks: int, rank: int, count: int) -> Iterator[tuple[int, int]]:
        """One range to each receiver; then credits."""
        return Pattern.sent_by(self, ranks, rank, count)

    def pair_labels(self, ranks: int, count: int, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """By the length of the data, or of a credit."""
        import numpy as np

        at = pairs[:, 0], pairs[:, 1]
        data, length = _shares(self.counts, ranks)[0][at] > 0, _laid_out(self.counts, ranks, count // ranks)[0][at]
        return np.where(data, length, CREDIT_BYTES // self.element_bytes)


@lru_cache(maxsize=8)
def _shares(counts: str, ranks: int) -> tuple[NDArray[np.int64], int]:
    """By sender and receiver, and the one that stands for a whole chunk."""
    import numpy as np

    if not counts.startswith("skew"):
        src, dst, amount = matrixrows.cells_of(counts, ranks)
        found = np.zeros((ranks, ranks), dtype=np.int64)
        found[src, dst] = amount
        whole = int(found.max())
        if whole > _LARGEST_SHARE:  # share x elements must fit in 64 bits
            found, whole = -(-found * _LARGEST_SHARE // whole), _LARGEST_SHARE
        return found, whole
    _, seed, most = counts.split(":")
    random = np.random.default_rng(int(seed))
    # Evenly spread on a logarithmic scale, so that few ranks are popular, as experts are.
    popular = float(most) ** -(random.permutation(ranks) / max(1, ranks - 1))
    return np.tile(np.ceil(_WHOLE * popular).astype(np.int64), (ranks, 1)), _WHOLE


@lru_cache(maxsize=8)
def _laid_out(counts: str, ranks: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """By sender and receiver: elements, their start in the sender's input, and in the receiver's output.

    A share is at least one element, so that the pairs do not depend on the size.
    """
    import numpy as np

    shares, whole = _shares(counts, ranks)
    length = -(-shares * width // whole)
    return length, np.cumsum(length, axis=1) - length, np.cumsum(length, axis=0) - length
