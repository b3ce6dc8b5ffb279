"""Traces and workload texts of other tools, read as one list of parts.

In:  what a user typed: a file, several, or the prefix of Chakra's file for each rank. Out: Trace. InputError.
Formats are parts of plugins (kind `trace`), by the ends of their files' names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from heddle.base.files import absent, is_file, real
from heddle.base.plugins import Registry
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.traffic.sequence import Part

MOST_RANKS: Final = 1 << 14
_PER_RANK: Final = ("et", "json")  # of Chakra: PREFIX.0.et, PREFIX.1.et and so on


@dataclass(frozen=True)
class Reading:
    """How a trace is read.

    size_scale, time_scale: factors of all sizes and times. ranks: the number that the user wants; None: that of the
    trace. storage: how many ranks are storage, for reads and writes of files. groups: JSON file with the ranks of each
    communicator. skip_idle: ranks that neither send nor receive are left out, and the others numbered again. notes:
    counts what was left out or changed.
    """

    size_scale: Fraction = Fraction(1)
    time_scale: Fraction = Fraction(1)
    ranks: int | None = None
    storage: int = 1
    groups: str = ""
    skip_idle: bool = False
    notes: Counter[str] = field(default_factory=Counter)

    def noted(self) -> list[str]:
        """The notes, each with its number."""
        return [f"{number} {text}" for text, number in self.notes.items()]


@dataclass(frozen=True)
class Trace:
    """A trace as read. ranks: with those of storage, which are the last."""

    ranks: int
    parts: tuple[Part, ...]
    storage: int = 0


def _fits(_: str, found: Any) -> str:
    return "" if callable(found) else f"{found!r} is not a function"


FORMATS: Final[Registry[Callable[[Sequence[str], Reading], Trace]]] = Registry("trace", {}, _fits)


def trace_ends() -> tuple[str, ...]:
    """The ends of the names of traces, as `.goal`."""
    return tuple(f".{end}" for end in FORMATS)


def _end(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).suffix[1:]


def is_trace(typed: str) -> bool:
    """Whether it names a file of one of the formats, by its end."""
    return _end(typed) in FORMATS


def trace_files(typed: str) -> list[str]:
    """The files of a name: itself; or those of all ranks, as `gpt.0.et` and so on for `gpt.et` or `gpt`."""
    cut = re.fullmatch(r"(.*?)(\.(?:et|json)(?:\.gz)?)?", typed, re.IGNORECASE | re.DOTALL)
    if cut is None or is_file(real(typed), typed):
        return [typed]
    names = (f"{cut[1]}.{rank}{cut[2] or '.et'}" for rank in range(MOST_RANKS))
    found: list[str] = []
    for name in names:
        if not is_file(real(name), name):
            break
        found.append(name)
    return found or [typed]


def read_trace(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of files of one format. InputError."""
    formats = list(dict.fromkeys(map(_end, files)))
    if (unknown := next((name for name in files if _end(name) not in FORMATS), None)) is not None:
        why, hint = "has a name with an unknown end", did_you_mean(f".{_end(unknown)}", trace_ends())
        if absent(real(unknown)):
            why = f"does not exist, and {Path(unknown).name}.0.et does not, either"
            hint = "check the path; a prefix of JSON files has their end: gpt.json for gpt.0.json and so on"
        raise InputError(Problem(unknown, "the trace", why, hint))
    if len(formats) > 1 or (len(files) > 1 and formats[0] not in _PER_RANK):
        why = "is one of several files, but only Chakra has one for each rank"
        raise InputError(Problem(files[1], "the trace", why, "name one file, or use a job for each"))
    trace = FORMATS[formats[0]](files, reading)
    if all(part.pattern is None for part in trace.parts):
        why = "has no operation that sends" + "".join(f"; {note}" for note in reading.noted())
        raise InputError(Problem(files[0], "the trace", why))
    return _busy(trace, reading) if reading.skip_idle else trace


def _busy(trace: Trace, reading: Reading) -> Trace:
    """Without the ranks that neither send nor receive."""
    busy = sorted({rank for part in trace.parts if part.pattern is not None for rank in part.ranks})
    number = {rank: place for place, rank in enumerate(busy)}
    ranks = [tuple(number[rank] for rank in part.ranks if rank in number) for part in trace.parts]
    place = [*accumulate((bool(each) for each in ranks), initial=0)]  # only computations are left out
    parts = (
        replace(part, ranks=own, after=tuple(place[each] for each in part.after))
        for part, own in zip(trace.parts, ranks, strict=True)
        if own
    )
    if len(busy) < trace.ranks:
        reading.notes["ranks that neither send nor receive are left out"] += trace.ranks - len(busy)
    return replace(trace, ranks=len(busy), parts=tuple(parts), storage=min(trace.storage, len(busy)))
