"""Matrix: bytes for each pair of ranks. Every rank sends all its cells at once, and may receive from several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives.parameters import ParameterRange
from heddle.traffic.collectives.pattern import Pattern, Piece, ReceiveStep, SendStep, Step

Cell = tuple[int, int, int]  # sender, receiver, bytes


@lru_cache(maxsize=64)
def cells_of(text: str) -> tuple[Cell, ...]:
    """The cells of `0,1,65536;1,0,4096`: sender, receiver, bytes; by sender, then receiver. InputError for others.

    Also the lines of a CSV file without its first line.
    """
    found: dict[tuple[int, int], int] = {}
    for number, row in enumerate(text.replace(";", "\n").split("\n"), 1):
        words = row.split(",")
        if not all(word.strip().isdecimal() for word in words) or len(words) != 3:
            raise _wrong(number, row, "is not SRC,DST,BYTES: two ranks and a whole number of bytes")
        src, dst, size = map(int, words)
        if src == dst:
            raise _wrong(number, row, "has one rank at both ends")
        if (src, dst) in found:
            raise _wrong(number, row, f"is the second cell of {src} to {dst}")
        found[src, dst] = size
    return tuple((*pair, size) for pair, size in sorted(found.items()))


def _wrong(number: int, row: str, why: str) -> InputError:
    return InputError(Problem("", f"--matrix, row {number}: {row.strip()[:40]}", why, "write rows as 0,1,65536"))


@dataclass(frozen=True)
class PairMatrix(Pattern):
    """A rank's input has the cells of its receivers, one after the other, and its output those of its senders."""

    collective = "matrix"
    algorithm = "direct"

    matrix: Annotated[str, ParameterRange("bytes for each pair of ranks, as SRC,DST,BYTES;...")] = "0,1,4096"

    def unfit(self, ranks: int) -> str:
        """A cell of a rank that does not exist; nothing to send."""
        if not self.cells():
            return f"has no cell with a whole {self.dtype}"
        most = max(max(src, dst) for src, dst, _ in cells_of(self.matrix))
        return f"has a cell of rank {most}: ranks are 0 to {ranks - 1}" if most >= ranks else ""

    def cells(self) -> list[Cell]:
        """Sender, receiver, whole elements; no empty ones."""
        found = [(src, dst, size // self.element_bytes) for src, dst, size in cells_of(self.matrix)]
        return [each for each in found if each[2]]

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        """Step r: the cell of sender r. Everything at once."""
        sends: list[Step] = []
        receives: list[Step] = []
        sent = received = 0
        before: Counter[int] = Counter()  # receiver -> elements of the senders so far
        for src, dst, length in self.cells():
            if src == rank:
                sends.append(SendStep(src, dst, (sent, sent + length), before[dst]))
                sent += length
            if dst == rank:
                receives.append(ReceiveStep(src, src, (received, received + length)))
                received += length
            before[dst] += length
        return [*sends, *receives]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        """The cells of its senders, in their order."""
        pieces = []
        at = 0
        starts: Counter[int] = Counter()  # sender -> elements to the receivers before
        for src, dst, length in self.cells():
            if dst == rank:
                pieces.append(Piece(at, at + length, src, starts[src]))
                at += length
            starts[src] += length
        return pieces

    def at_once(self, ranks: int) -> int:
        """All."""
        return ranks

    def whole(self, ranks: int, count: int) -> int:
        """Elements of the busiest rank: the most that one sends or receives, whatever the requested size."""
        busy: Counter[tuple[str, int]] = Counter()
        for src, dst, length in self.cells():
            busy["sends", src] += length
            busy["receives", dst] += length
        return max(busy.values(), default=0)

    def busbw_factor(self, ranks: int) -> float:
        """1: busbw is the rate of the busiest rank."""
        return 1.0
