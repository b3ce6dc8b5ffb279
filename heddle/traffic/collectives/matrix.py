"""Matrix: bytes for each pair of ranks. Every rank sends all its cells at once, and may receive from several ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

from heddle.base.declared import Declared
from heddle.base.files import read_regular, real
from heddle.base.problems import InputError, Problem, Problems
from heddle.base.units import parse_size
from heddle.traffic.collectives.parameters import GROUP
from heddle.traffic.collectives.pattern import Pattern, Piece, ReceiveStep, SendStep, Step

_MATRIX_BYTES: Final = 1 << 24
Cell = tuple[int, int, int]  # sender, receiver, bytes


def read_matrix(typed: str) -> str:
    """The rows of `--matrix`, sorted, with bytes as whole numbers. InputError with every wrong row.

    typed: a .csv file, or rows as `0,1,64K;1,0,4096`. As in the matrices of `predict`, lines that begin with # are
    comments, and rows of one pair add up.
    """
    text = typed
    if in_file := typed.lower().endswith(".csv"):
        try:
            text = read_regular(real(typed), _MATRIX_BYTES).decode()
        except (OSError, UnicodeDecodeError) as error:
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is not text in UTF-8"
            raise InputError(Problem("", f"--matrix {typed}", why, "name a .csv file")) from None
    found: Counter[tuple[int, int]] = Counter()
    problems = Problems()
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        row = [word.strip() for word in line.split(",")]
        if not line.strip() or line.startswith("#") or row == ["src", "dst", "bytes"]:
            continue
        if why := _add(found, row):
            where, what = (f"{typed}:{number}", "") if in_file else ("", f"--matrix, row {number}: ")
            problems.add(where=where, what=what + line.strip()[:40], why=why, hint="write rows as 0,1,65536")
    problems.raise_if_any()
    return ";".join(f"{src},{dst},{size}" for (src, dst), size in sorted(found.items()))


def _add(found: Counter[tuple[int, int]], row: Sequence[str]) -> str:
    """Add a row; what is wrong with it."""
    if len(row) != 3 or not all(word.isdecimal() for word in row[:2]):
        return "is not SRC,DST,BYTES: two ranks and a number of bytes"
    src, dst = map(int, row[:2])
    if src == dst:
        return "has one rank at both ends"
    try:
        found[src, dst] += parse_size(row[2])
    except ValueError as error:
        return f"has no number of bytes: {error}"
    return ""


@lru_cache(maxsize=64)
def cells_of(text: str) -> tuple[Cell, ...]:
    """The cells of a text that `read_matrix` returned: sender, receiver, bytes."""
    found = [tuple(map(int, row.split(","))) for row in text.split(";") if row]
    return tuple((src, dst, size) for src, dst, size in found)


@dataclass(frozen=True)
class PairMatrix(Pattern):
    """A rank's input has the cells of its receivers, one after the other, and its output those of its senders."""

    collective = "matrix"
    algorithm = "direct"

    matrix: Annotated[str, Declared(
        "bytes for each pair of ranks: a .csv file with the columns src,dst,bytes, or rows as 0,1,64K;1,0,4K", GROUP,
        reads=read_matrix, typed="0,1,4096", value="FILE",
    )] = "0,1,4096"  # fmt: skip

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
