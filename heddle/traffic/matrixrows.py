"""Traffic matrices: files and rows of bytes for each pair of ranks, and matrices that have a name.

In:  what a user typed: `matrix.csv`, `shift:4`, or rows as `0,1,64K;1,0,4K`; the ranks of a job.
Out: one text of rows by rank number, sorted, with bytes as whole numbers; and such a text as columns.
InputError with file and line of every wrong row. The same for live runs and for predictions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from heddle.base.files import open_regular, real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean, nearest
from heddle.base.units import parse_size
from heddle.traffic.readers import MOST_SIZE

if TYPE_CHECKING:
    from heddle.base.arrays import I64
    from heddle.traffic.flow import Endpoint

# Named matrices, and the number that each of them takes.
NAMED: Final[Mapping[str, str]] = {
    "all-to-all": "",
    "permutation": "[:SEED]",
    "shift": ":N",
    "incast": ":N",
}
_COLUMNS: Final = ("src", "dst", "bytes")
NUMBERED: Final = re.compile(r"([a-z-]+)(?::([0-9]{1,9}))?")
_SLICE: Final = re.compile(r"([0-9]{1,7}):([0-9]{1,7})(?::([0-9]{1,7}))?")
_AS_ROWS: Final = "write rows as 0,1,1M: from, to, bytes"
_MOST_PROBLEMS: Final = 20  # per matrix: an error in a column is in every row
_MOST_NAMES: Final = 4096  # names to compare with an unknown word
_ROW_BYTES: Final = 6  # of a file: the minimum of a row
_READ_BYTES: Final = 250  # memory per row while the file is read


@dataclass(frozen=True, slots=True)
class Named:
    """A named matrix: `shift`, its number, and the bytes of each pair."""

    name: str
    number: int
    bytes: int


def is_matrix_file(typed: str) -> bool:
    """Whether it names a file with rows."""
    return typed.lower().endswith(".csv")


def names_ranks(typed: str) -> bool:
    """Whether there are rows that name ranks of the whole job, not only named matrices."""
    return is_matrix_file(typed) or any(row.count(",") > 1 for row in typed.split(";"))


def names_bytes(typed: str) -> bool:
    """Whether bytes are part of what is typed, so that no size is needed."""
    return is_matrix_file(typed) or "," in typed


def slice_of(text: str, most: int) -> range | None:
    """`0:16:2` (from, to, step) as numbers below `most`; None if it is no slice."""
    cut = _SLICE.fullmatch(text)
    if cut is None or not int(cut[3] or 1) or int(cut[2]) > most:
        return None
    return range(int(cut[1]), int(cut[2]), int(cut[3] or 1))


def check_matrix(typed: str) -> str:
    """What is typed, if its form is right; a file is read when the ranks are known. ValueError or InputError."""
    if not is_matrix_file(typed):
        if not (typed := typed.strip(" ;\n")):
            raise ValueError(f"has no rows; {_AS_ROWS}")
        _Rows(_inline).read(typed.replace(";", "\n").split("\n"))
    return typed


def bound_rows(typed: str, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> str:
    """The rows by rank number, those of one pair added up; then named matrices, each with the bytes of a pair.

    sizes: of a run; a named matrix without bytes takes the only one.
    """
    if is_matrix_file(typed):
        lines = _lines(typed)
        order = _header(typed, lines)
        rows = _Rows(lambda line: (f"{typed}:{line}", ""), endpoints, order)
    else:
        lines, rows = typed.replace(";", "\n").split("\n"), _Rows(_inline, endpoints)
    src, dst, amount = summed(*rows.read(lines))
    named = [each if each.bytes else Named(each.name, each.number, _only(typed, sizes)) for each in rows.named]
    if not len(src) and not named:
        where = (typed, "the matrix") if is_matrix_file(typed) else ("", f"--matrix {typed[:40]}")
        raise InputError(Problem(*where, "sends nothing", _AS_ROWS))
    pairs = zip(src.tolist(), dst.tolist(), amount.tolist(), strict=True)
    return ";".join([f"{a},{b},{c}" for a, b, c in pairs] + [f"{n.name}:{n.number},{n.bytes}" for n in named])


def _only(typed: str, sizes: Sequence[int]) -> int:
    if len(sizes) > 1:
        why = "has the bytes of each pair, so several sizes are not possible"
        raise InputError(Problem("", f"--matrix {typed[:40]}", why, "use one --size"))
    return sizes[0]


@lru_cache(maxsize=16)
def parts_of(bound: str) -> tuple[str, tuple[Named, ...]]:
    """The rows of a text that `bound_rows` returned, and its named matrices."""
    at = next(iter(re.finditer(r"[a-z]", bound)), None)
    rows = bound if at is None else bound[: at.start()]
    named = []
    for word in bound[len(rows) :].split(";") if at else ():
        name, number, amount = re.split("[:,]", word)
        named.append(Named(name, int(number), int(amount)))
    return rows, tuple(named)


@lru_cache(maxsize=8)
def cells_of(bound: str, ranks: int) -> tuple[I64, I64, I64]:
    """Columns of senders, receivers and bytes, by sender, then receiver, of a text that `bound_rows` returned."""
    import numpy as np

    rows, named = parts_of(bound)
    table = np.fromstring(rows.replace(";", ","), dtype=np.int64, sep=",").reshape(-1, 3).T
    found = [table, *(np.stack(_pairs_of(each, ranks)) for each in named)]
    return summed(*np.concatenate(found, axis=1))


def _pairs_of(matrix: Named, ranks: int) -> tuple[I64, I64, I64]:
    import numpy as np

    from heddle.traffic.collectives.permutation import cycle

    src = np.arange(ranks, dtype=np.int64)
    if matrix.name == "all-to-all":
        src = np.repeat(src, ranks - 1)
        dst = (src + np.tile(np.arange(1, ranks), ranks)) % ranks
    elif matrix.name == "permutation":
        dst = np.array(cycle(ranks, matrix.number), dtype=np.int64)
    elif matrix.name == "shift":
        dst = (src + matrix.number) % ranks
    else:
        src = src[1 : matrix.number + 1]
        dst = np.zeros_like(src)
    return src, dst, np.full(len(src), matrix.bytes, dtype=np.int64)


def unfit(bound: str, ranks: int) -> str:
    """The reason why a named matrix is not possible among so many ranks, `reason; hint`; empty if it is."""
    for each in parts_of(bound)[1]:
        if each.name == "shift" and each.number % ranks == 0:
            return f"makes each of the {ranks} ranks send to itself; try shift:1"
        if each.name == "incast" and each.number >= ranks:
            why = f"needs {each.number + 1} ranks, one of which receives, but there are {ranks}"
            return f"{why}; try incast:{ranks - 1}"
    return ""


def summed(src: I64, dst: I64, amount: I64) -> tuple[I64, I64, I64]:
    """Sorted by sender, then receiver; rows of one pair added up, empty ones removed."""
    import numpy as np

    if not len(src):
        return src, dst, amount
    order = np.lexsort((dst, src))
    src, dst, amount = src[order], dst[order], amount[order]
    first = np.flatnonzero(np.concatenate([[True], (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])]))
    total = np.add.reduceat(amount, first)
    there = total > 0
    return src[first][there], dst[first][there], total[there]


def _free_bytes() -> int:
    from heddle.host.capacity import free_bytes  # help and completion read this module, and no matrix

    return free_bytes()


def _lines(name: str) -> list[str]:

    path = real(name)
    try:
        if (rows := path.stat().st_size // _ROW_BYTES) * _READ_BYTES > (free := _free_bytes()):
            why = f"has up to {rows:,} rows: {rows * _READ_BYTES / 1e9:.0f} GB, but {free / 1e9:.1f} GB are free"
            raise InputError(Problem("", name, why, "sum up rows, or use a part of them"))
        with open_regular(path) as file:
            return file.read().decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        hint = "check the path; in a workload file it is relative to that file"
        raise InputError(Problem("", f"--matrix {name}", "does not exist", hint)) from None
    except IsADirectoryError:
        raise InputError(Problem("", name, "is a directory", "name the .csv file in it")) from None
    except UnicodeDecodeError:
        raise InputError(Problem(name, "the file", "is not UTF-8 text", "save it as UTF-8")) from None
    except OSError as error:
        raise InputError(Problem("", name, f"cannot be read: {error.strerror}")) from None


def _header(name: str, lines: list[str]) -> list[int]:
    """The place of each column, by the first row, which is made empty. InputError for other columns."""
    at = next((i for i, line in enumerate(lines) if _says(line)), None)
    head = [word.strip().lower() for word in lines[at].split(",")] if at is not None else []
    if sorted(head) != sorted(_COLUMNS) or at is None:
        why = f"has the columns {', '.join(head) or '(none)'}"
        raise InputError(Problem(f"{name}:{(at or 0) + 1}", "the first line", why, f"write {','.join(_COLUMNS)}"))
    lines[at] = ""
    return [head.index(column) for column in _COLUMNS]


def _says(line: str) -> bool:
    """False for an empty line and for a comment, which begins with #."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _inline(row: int) -> tuple[str, str]:
    return "", f"--matrix row {row}: "


class _Rows:
    """Reads rows, and collects their errors. named: the named matrices among them.

    place: of a row's number, where it is and what comes before its value. Without endpoints ranks are not looked up.
    """

    def __init__(
        self,
        place: Callable[[int], tuple[str, str]],
        endpoints: Sequence[Endpoint] | None = None,
        order: Sequence[int] = (0, 1, 2),
    ) -> None:
        self._place, self._order = place, order
        self.named: list[Named] = []
        self._lookup = endpoints is not None
        self._ranks = len(endpoints or ())
        self._problems = Problems()
        self._by_name: dict[str, int] = {}
        self._several: set[str] = set()
        for each in endpoints or ():
            for name in (each.nic, each.host):
                if name in self._by_name:
                    self._several.add(name)
                self._by_name.setdefault(name, each.rank)
        self._hosts = tuple(dict.fromkeys(each.host for each in endpoints or ()))

    def read(self, lines: Sequence[str]) -> tuple[I64, I64, I64]:
        """Columns of ranks and bytes. InputError with the first problems, and the number of the others."""
        import numpy as np

        if (table := self._numbers(lines)) is None:
            rows = [row for number, line in enumerate(lines, 1) if _says(line) for row in self._row(number, line)]
            found = self._problems.found
            if (hidden := len(found) - _MOST_PROBLEMS) > 0:
                del found[_MOST_PROBLEMS:]
                where = found[0].where.rpartition(":")[0]
                what = "the file" if where else "--matrix"
                self._problems.add(where=where, what=what, why=f"has {hidden} more problems like these")
            self._problems.raise_if_any()
            table = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
        return table[:, 0], table[:, 1], table[:, 2]

    def _numbers(self, lines: Sequence[str]) -> I64 | None:
        """The table, if all rows are right and have numbers only: much quicker than row by row."""
        import numpy as np

        if len(lines) < _MOST_NAMES:
            return None
        try:
            table = np.loadtxt(lines, dtype=np.int64, delimiter=",", comments="#", ndmin=2)
        except ValueError:
            return None
        if table.shape[1] != len(_COLUMNS) or table.min() < 0:
            return None
        table = table[:, list(self._order)]
        right = (table[:, :2] < self._ranks).all() and (table[:, 0] != table[:, 1]).all()
        return table if right and table[:, 2].max() <= MOST_SIZE else None

    def _row(self, number: int, line: str) -> Iterable[tuple[int, int, int]]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < len(_COLUMNS) and not cells[0][:1].isdigit() and not self._place(number)[0]:
            self._name(number, cells)
        elif len(cells) != len(_COLUMNS):
            self._wrong(number, line.strip()[:60], f"has {len(cells)} values", _AS_ROWS)
        else:
            return self._cells(number, *(cells[i] for i in self._order))
        return ()

    def _name(self, number: int, cells: Sequence[str]) -> None:
        """A named matrix, with or without the bytes of a pair."""
        found = NUMBERED.fullmatch(cells[0])
        name, given = (found[1], int(found[2] or 0)) if found else ("", 0)
        hint = why = ""
        if found is None or name not in NAMED:
            near = nearest(cells[0].partition(":")[0], NAMED)
            why = "is neither a named matrix nor a .csv file"
            hint = f"did you mean {near}?" if near else f"allowed: {', '.join(NAMED)}, or a file that ends in .csv"
        elif NAMED[name] == "" and given:
            why, hint = "takes no number", f"write {name}"
        elif NAMED[name] == ":N" and not given:
            why, hint = "needs a number of at least 1", f"write {name}:4"
        if why:
            self._problems.add(where="", what=f"--matrix {cells[0]}", why=why, hint=hint)
            return
        self.named.append(Named(name, given, self._bytes(number, cells[1]) if len(cells) > 1 else 0))

    def _cells(self, number: int, src: str, dst: str, amount: str) -> Iterator[tuple[int, int, int]]:

        senders, receivers = self._rank(number, "src", src), self._rank(number, "dst", dst)
        size = self._bytes(number, amount)
        many = len(senders) * len(receivers)
        if many > _MOST_NAMES and many * _READ_BYTES > _free_bytes():
            self._wrong(number, f"{src} to {dst}", f"has {many:,} pairs, which need more memory than is free")
            return
        if self._lookup and senders[0] >= 0 and not set(senders).isdisjoint(receivers):
            self._wrong(number, f"{src} to {dst}", "has one rank at both ends", "remove the row, or use other ranks")
            return
        for one in senders:
            for other in receivers:
                yield one, other, size

    def _wrong(self, row: int, what: str, why: str, hint: str = "") -> None:
        where, before = self._place(row)
        self._problems.add(where=where, what=before + what, why=why, hint=hint)

    def _rank(self, row: int, column: str, text: str) -> Sequence[int]:
        if not self._lookup:
            return (-1,)
        if text.isdecimal() and text.isascii():
            if int(text) < self._ranks:
                return (int(text),)
            self._wrong(row, f"{column}: {text}", "is not a rank of this job", f"ranks are 0 to {self._ranks - 1}")
        elif _SLICE.fullmatch(text):
            if found := slice_of(text, self._ranks):
                return found
            hint = f"ranks are 0 to {self._ranks - 1}: write from, to (the one after the last) and step, as 0:8:2"
            self._wrong(row, f"{column}: {text}", "has no ranks, or more than this job", hint)
        elif text in self._several:
            hint = "write a rank" if ":" in text else f"write one of its NICs, as {text}:eth1, or a rank"
            self._wrong(row, f"{column}: {text}", "has several ranks", hint)
        elif text in self._by_name:
            return (self._by_name[text],)
        else:
            few = len(self._hosts) <= _MOST_NAMES
            hint = did_you_mean(text, self._hosts) if few else "write a host as host7, a rank as 6"
            self._wrong(row, f"{column}: {text or 'nothing'}", "is neither a rank nor a host with a rank", hint)
        return (-1,)

    def _bytes(self, row: int, text: str) -> int:
        if text.isdecimal() and text.isascii() and len(text) < 14:
            value = int(text)
        else:
            try:
                value = parse_size(text)
            except ValueError as error:
                why, _, hint = str(error).partition("; ")
                why = "is below 0" if text.startswith("-") else why
                self._wrong(row, f"bytes: {text or 'nothing'}", why, hint)
                return 0
        if value > MOST_SIZE:
            self._wrong(row, f"bytes: {text}", "is above 1 TiB")
        return value
