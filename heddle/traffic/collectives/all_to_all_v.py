"""Uneven all-to-all: the rounds of an all-to-all, with a share of a chunk for each pair, as mixtures of experts send.

nccl-tests' alltoallv_perf (2.19, src/alltoallv.cu) takes a factor from 0 to 1 for each pair: that part of the chunk
size/n is sent. Here, too, shares do not depend on the size. As there, algbw is size / time and the factor of busbw is
(n-1)/n: with equal shares both are those of an all-to-all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final

from heddle.base.declared import Declared
from heddle.base.problems import InputError
from heddle.traffic import matrixrows
from heddle.traffic.collectives.all_to_all import StaggeredAllToAll, before, deltas
from heddle.traffic.collectives.parameters import GROUP
from heddle.traffic.collectives.pattern import CREDIT_BYTES, Pattern, Piece, ReceiveStep, SendStep, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint

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
    """Outputs have the data of all senders in their order, without gaps, and inputs that for all receivers.

    counts: bound, as `read_counts` and `bound` return it.
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
        length, starts, puts = _laid(self.counts, ranks, count // ranks)
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
        """The data from each rank, in their order."""
        length, starts, puts = (each[:, rank].tolist() for each in _laid(self.counts, ranks, count // ranks))
        pieces = enumerate(zip(length, starts, puts, strict=True))
        return [Piece(put, put + many, source, start) for source, (many, start, put) in pieces if many]

    def routes(self, ranks: int) -> NDArray[np.int64]:
        """All pairs of a skew; those with a row."""
        return Pattern.routes(self, ranks) if self.by_rank else super().routes(ranks)

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """None in a skew."""
        return Pattern.credits(self, ranks) if self.by_rank else super().credits(ranks)

    def connections(self, ranks: int) -> int:
        """One for each pair in `peers`."""
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
        data, length = _shares(self.counts, ranks)[0][at] > 0, _laid(self.counts, ranks, count // ranks)[0][at]
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
def _laid(counts: str, ranks: int, width: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """By sender and receiver: elements, their start in the sender's input, and in the receiver's output.

    A share is at least one element, so that the pairs do not depend on the size.
    """
    import numpy as np

    shares, whole = _shares(counts, ranks)
    length = -(-shares * width // whole)
    return length, np.cumsum(length, axis=1) - length, np.cumsum(length, axis=0) - length
