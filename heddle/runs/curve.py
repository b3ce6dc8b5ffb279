"""busbw over size as a curve, and the comparison of the shapes of two curves.

In:  stored runs, or what nccl-tests wrote: its text, or its JSON of version 3 (`-J`).
Out: Shapes: each curve divided by its own largest busbw. InputError with file, line, reason and what to try.
Heights are not compared: a fabric of Heddle is slower than hardware by k, and latencies of hosts are not scaled. The
shape says from which size on the bandwidth is used. The text of nccl-tests is read by the names of its columns, so that
`-I 1`, `-S 1` and older versions are read, too. Other programs may write anything before its lines. Of a size that was
measured several times (`-N`) the curve has the mean. Out of place comes first; in place, where there is no other.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import fmean
from typing import Any, Final, NoReturn

from heddle.base.files import read_regular, real
from heddle.base.problems import InputError, Problem
from heddle.base.tables import many
from heddle.base.untrusted import check_values
from heddle.runs.ncclnames import collective_of
from heddle.runs.runrecord import Unfit, unfit
from heddle.runs.stored import StoredRun


@dataclass(frozen=True, slots=True)
class BusbwCurve:
    """busbw: size in bytes -> GB/s, at least one above 0. collective: empty, and ranks: 0, where it is not known.

    k: the scale of an emulated run; 0 for hardware. unfit: why no verdict rests on it; empty for one that is fit.
    """

    name: str
    collective: str
    ranks: int
    busbw: Mapping[int, float]
    k: int = 0
    unfit: str = ""

    @classmethod
    def of_run(cls, run: StoredRun) -> BusbwCurve:
        """The measured sizes of a run. InputError when it has none."""
        record = run.record
        if not record.rows:
            raise run.unusable(f"it has no measured size: {record.why_not_done}")
        busbw, found = {row.size: row.busbw for row in record.rows}, unfit(record)
        why = "" if found is None else found.why
        return cls(run.what, record.options.collective, len(record.ranks), busbw, record.k, why)

    def half_size(self, largest: float) -> int:
        """The first size with at least half of a bandwidth."""
        return next(size for size, value in sorted(self.busbw.items()) if value >= largest / 2)


@dataclass(frozen=True, slots=True)
class ShapePoint:
    """A size of both curves: GB/s, and the share of the largest busbw of its own curve."""

    size: int
    a: float
    b: float
    a_share: float
    b_share: float

    @property
    def apart(self) -> float:
        """The difference of the shares, B - A."""
        return self.b_share - self.a_share


@dataclass(frozen=True, slots=True)
class Shapes:
    """Two curves at their common sizes. half_sizes: where each first has half of its largest busbw."""

    a: BusbwCurve
    b: BusbwCurve
    points: tuple[ShapePoint, ...]
    half_sizes: tuple[int, int]
    left_out: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether both curves are of right data, and of paths that nothing contradicts."""
        found = [Unfit.read(each.unfit) for each in (self.a, self.b)]
        return all(each is None or each.kind == "unreliable" for each in found)

    @property
    def farthest(self) -> ShapePoint:
        """Where the shapes differ most."""
        return max(self.points, key=lambda each: abs(each.apart))

    def to_json(self) -> dict[str, Any]:
        """The document of `./inv compare` with a file."""
        return {
            **{
                name: {key: value for key, value in asdict(each).items() if key != "busbw"} | {"k": each.k or None}
                for name, each in (("a", self.a), ("b", self.b))
            },
            "ok": self.ok,
            "compared": "shape",
            "sizes": [{**asdict(each), "apart": each.apart} for each in self.points],
            "half_of_largest_bytes": {"a": self.half_sizes[0], "b": self.half_sizes[1]},
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


def shapes_of(a: BusbwCurve, b: BusbwCurve) -> Shapes:
    """Lay two curves beside each other. InputError for different collectives, and without a common size."""
    what = f"{a.name} and {b.name}"
    if a.collective and b.collective and a.collective != b.collective:
        why = f"have different collectives ({a.collective}, {b.collective}): their shapes are not comparable"
        raise InputError(Problem("", what, why, "compare two runs of the same collective"))
    common = sorted(a.busbw.keys() & b.busbw.keys())
    if not common:
        low, high = min(a.busbw), max(a.busbw)
        hint = f"measure the sizes of the first: -b {low} -e {high} -f 2"
        raise InputError(Problem("", what, "have no size in common", hint))
    tops = [max(each.busbw[size] for size in common) for each in (a, b)]
    if min(tops) <= 0:
        raise InputError(Problem("", what, "have no common size with a busbw above 0", "measure larger sizes"))
    points = tuple(
        ShapePoint(size, a.busbw[size], b.busbw[size], a.busbw[size] / tops[0], b.busbw[size] / tops[1])
        for size in common
    )
    at_common = [BusbwCurve(each.name, "", 0, {size: each.busbw[size] for size in common}) for each in (a, b)]
    halves = [each.half_size(top) for each, top in zip(at_common, tops, strict=True)]
    left_out = tuple(sorted(a.busbw.keys() ^ b.busbw.keys()))
    return Shapes(a, b, points, (halves[0], halves[1]), left_out, tuple(_notes(a, b, common)))


def _notes(a: BusbwCurve, b: BusbwCurve, common: list[int]) -> list[str]:
    notes = [f"no verdict rests on {each.name}: {each.unfit}" for each in (a, b) if each.unfit]
    if a.ranks and b.ranks and a.ranks != b.ranks:
        notes.append(f"the numbers of ranks differ ({a.ranks}, {b.ranks}): more ranks need larger sizes")
    notes += [f"{each.name} does not say its collective" for each in (a, b) if not each.collective]
    if len(common) == 1:
        notes.append("one common size has no shape: measure several")
    return notes


_MOST: Final = 64 << 20  # bytes of a file
_VERSION: Final = 3
_LINES: Final = 1 << 20  # of a file, at most
_WIDEST: Final = 1 << 14  # characters of a line that are read
_NAME: Final = re.compile(r"# Collective test starting: (\S+)")
_RANK: Final = re.compile(r"#\s+Rank\s+(\d+)")
_TOTAL: Final = re.compile(r"#\s+Out of bounds values\s*:\s*(\d{1,18})\b")
_HEAD: Final = re.compile(r"#\s+size\s.*")
# Where a row starts, whatever another program wrote before it: size, count, type, redop. A prefix has no such words.
_ROW: Final = re.compile(r"(?<![\w.])\d{1,19}\s{1,40}\d{1,19}\s{1,40}[a-z]\w{0,20}\s{1,40}[a-z]\w{0,20}(?!\S)")
_BARE_ROW: Final = re.compile(r"\s*\d+(\s+\d|\s*$)")  # without a prefix; it may be cut, or of a table without a type
_LOGS: Final = ("log", "message", "msg", "MESSAGE")  # keys of Docker, fluentd, zap and journald
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BUSBW: Final = "busbw"
_CHECKED: Final = "#wrong"
_AGAIN: Final = "run nccl-tests again with its output to a file, or with -J FILE.json"


def read_curve(typed: str) -> BusbwCurve:
    """The curve of a file."""
    try:
        data = read_regular(real(typed), _MOST)
    except OSError as error:
        raise InputError(Problem("", typed, f"cannot be read: {error.strerror}", "name another file")) from None
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # of a shell that writes UTF-16
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    if not text.strip():
        _refuse(typed, "is empty", _AGAIN)
    first = text.lstrip().partition("\n")[0]
    return _of_json(typed, text) if first.startswith("{") and _logged(first) is first else _of_text(typed, text)


def _refuse(what: str, why: str, hint: str, where: str = "") -> NoReturn:
    raise InputError(Problem(where, what, why, hint))


def _of_json(typed: str, text: str) -> BusbwCurve:
    try:
        check_values(text.encode(errors="replace"))
    except ValueError as error:
        _refuse(typed, str(error), "measure fewer sizes in one run")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        why = f"is no JSON document: {getattr(error, 'msg', error)} (column {getattr(error, 'colno', 1)})"
        _refuse("the file", why, "a run that was ended leaves half a file: run it again", f"{typed}:{line}")
    if not isinstance(data, dict) or "version" not in data or not isinstance(data.get("results"), list):
        _refuse(typed, "is JSON, but not of nccl-tests: it has no version, or no results", _AGAIN)
    if data["version"] != _VERSION:
        why = f"has version {data['version']!r} of nccl-tests' JSON, and only {_VERSION} is read"
        _refuse(typed, why, "use nccl-tests 2.19, or its text output")
    points: defaultdict[int, list[float]] = defaultdict(list)
    wrong = 0
    for number, row in enumerate(data["results"]):
        try:
            figures = row["out_of_place"] or row["in_place"]
            points[int(row["size"])].append(float(figures["bus_bw"]))
            wrong += sum(_count(side.get("nwrong")) for name in ("out_of_place", "in_place") if (side := row.get(name)))
        except (AttributeError, TypeError, KeyError, ValueError, OverflowError):
            _refuse(f"results[{number}]", "has no size, or no bus_bw", _AGAIN, typed)
    arguments = data.get("args")
    config = data.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    program = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    total = outside.get("count") if isinstance(outside := data.get("out_of_bounds"), dict) else 0
    return _curve(typed, points, program, len(devices) if isinstance(devices, list) else 0, max(wrong, _count(total)))


def _of_text(typed: str, text: str) -> BusbwCurve:
    if text.count("\n") >= _LINES:
        _refuse(typed, f"has more than {_LINES} lines", "name a file with the output of nccl-tests only")
    lines = [_COLOUR.sub("", _logged(line)[:_WIDEST]) for line in text.split("\n")]
    head, names = next(((line, found) for line in lines if (found := _columns(line))), ("", []))
    if not names:
        why = "has no table of nccl-tests: no line has # and the names size, time, algbw and busbw"
        _refuse(typed, why, _AGAIN)
    bare = _BARE_ROW.match if head.lstrip().startswith("#") else _ROW.search
    points: defaultdict[int, list[float]] = defaultdict(list)
    wrong = 0
    for number, line in enumerate(lines, 1):
        if row := _ROW.search(line) or bare(line):
            size, busbw, more = _row(f"{typed}:{number}", line[row.start() :].split(), names)
            points[size].append(busbw)
            wrong += more
    program = next((match[1] for line in lines if (match := _NAME.search(line))), "")
    total = sum(int(match[1]) for line in lines if (match := _TOTAL.search(line)))
    ranks = len({match[1] for line in lines if (match := _RANK.search(line))})
    return _curve(typed, points, program, ranks, max(wrong, total))


def _logged(line: str) -> str:
    """The text in a line of a logger that writes JSON, as Docker's `{"log": "...", "stream": "stdout"}`."""
    if not line.startswith("{") or len(line) > _WIDEST:
        return line
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    values = map(found.get, _LOGS) if isinstance(found, dict) else ()
    return next((each for each in values if isinstance(each, str)), line)


def _columns(line: str) -> list[str]:
    found = _HEAD.search(line)
    words = found[0].lstrip("# ").replace("cputime", "time").split() if found else []  # of `-C 1`
    return words if {"time", "algbw", _BUSBW} <= {*words} else []


def _row(where: str, words: Sequence[str], names: Sequence[str]) -> tuple[int, float, int]:
    """Size, busbw and wrong elements of a row. One without its first group of columns (a replay) has others in their
    place.
    """
    at = names.index(_BUSBW)
    group = names[at - 2 :]
    half = len(group) // (2 if group.count(_BUSBW) > 1 else 1)
    if len(words) < at - 2 + half:
        hint = "the output was cut: delete this line, or run it again"
        _refuse("the row", f"has {len(words)} columns, and {len(names)} are named above", hint, where)
    found = [words[at], *words[at + half : at + half + 1]]
    value = next((each for each in found if each != "N/A"), "")
    wrong = names.index(_CHECKED) if _CHECKED in names else len(words)
    try:
        return int(words[0]), float(value), sum(map(_count, (*words[wrong : wrong + 1], *words[wrong + half :][:1])))
    except ValueError:
        _refuse("the row", f"has no number for size or busbw: {words[0]}, {value or 'N/A'}", _AGAIN, where)


def _count(value: Any) -> int:
    """A number of wrong elements, `1e+06`, too; 0 for what was not checked."""
    try:
        return max(0, int(float(value)))
    except (TypeError, ValueError, OverflowError):
        return 0


def _curve(typed: str, points: Mapping[int, Sequence[float]], program: str, ranks: int, wrong: int) -> BusbwCurve:
    means = {size: fmean(values) for size, values in sorted(points.items())}
    if not means:
        _refuse(typed, "has no measured size", _AGAIN)
    if not all(map(isfinite, means.values())):
        _refuse(typed, "has a busbw that is not a finite number", _AGAIN)
    if max(means.values()) <= 0:
        _refuse(typed, "has no busbw above 0", "measure larger sizes, with more than one rank")
    unfit = many(wrong, "wrong element") if wrong else ""
    return BusbwCurve(typed, collective_of(program), ranks, means, unfit=unfit)
