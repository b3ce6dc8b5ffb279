"""GOAL texts, as ATLAHS and LogGOPSim read them: sends, receives and computations of each rank.

    num_ranks 2
    rank 0 {
      l1: calc 2000
      l2: send 64b to 1 tag 7
      l2 requires l1
    }
In:  one file. Out: Trace. Times are nanoseconds. A send ends when it was posted, as in the LogGOPS model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.traffic.traces import MOST_RANKS, Reading, Trace
from heddle_plugins.readers.traces.graph import (
    MOST_NODES,
    NUMBER,
    Key,
    Kind,
    TraceNode,
    parts_of,
    read_lines,
)

_LABEL: Final = r"[A-Za-z][A-Za-z0-9_]{0,63}"
_RANKS: Final = re.compile(rf"num_ranks\s+({NUMBER})")
_RANK: Final = re.compile(rf"rank\s+({NUMBER})\s*{{")
_TRANSFER: Final = re.compile(
    rf"(?:({_LABEL})\s*:\s*)?(send|recv)\s+({NUMBER})\s*b\s+(to|from)\s+(-1|{NUMBER})"
    rf"(?:\s+tag\s+(-1|{NUMBER}))?(?:\s+cpu\s+{NUMBER})?(?:\s+nic\s+{NUMBER})?"
)
_COMPUTE: Final = re.compile(rf"(?:({_LABEL})\s*:\s*)?calc\s+({NUMBER})(?:\s+cpu\s+{NUMBER})?(?:\s+nic\s+{NUMBER})?")
_AFTER: Final = re.compile(rf"({_LABEL})\s+(i?requires)\s+({_LABEL})")
_COMMENT: Final = re.compile(r"//.*|/\*.*?\*/|/\*.*")
_MOST_DEPS: Final = 1 << 22
_STATEMENT: Final = re.compile(r"[^;{}]*{|}|[^;{}]+")


def read(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of a file. InputError."""
    reader = _Reader(files[0], reading)
    for number, line in enumerate(_uncommented(read_lines(files[0])), start=1):
        for statement in _STATEMENT.finditer(line):
            if text := statement[0].strip():
                reader.take(f"{files[0]}:{number}", text)
    return reader.trace()


def _uncommented(lines: Sequence[str]) -> Iterator[str]:
    """The lines without comments; one in /* */ may have several lines."""
    inside = False
    for line in lines:
        _, end, tail = line.partition("*/") if inside else ("", "*/", line)
        inside = inside and not end
        comments = _COMMENT.findall(tail) if end else []
        yield _COMMENT.sub(" ", tail) if end else ""
        inside = inside or any(each.startswith("/*") and not each.endswith("*/") for each in comments)


class _Reader:
    """Takes one statement after the other."""

    def __init__(self, file: str, reading: Reading) -> None:
        self._file, self._reading = file, reading
        self._programs: list[dict[str, TraceNode]] = []  # empty before num_ranks
        self._rank = -1  # whose block is open
        self._closed: set[int] = set()
        self._nodes = self._count = 0  # of all ranks: operations and dependencies
        self._deps: defaultdict[str, list[Key]] = defaultdict(list)

    def take(self, where: str, text: str) -> None:
        """One statement, or the beginning or the end of a block."""
        if not self._programs:
            self._begin(where, text)
        elif self._rank < 0:
            self._open(where, text, len(self._programs))
        elif text == "}":
            nodes = self._programs[self._rank]
            nodes |= {key: replace(nodes[key], deps=tuple(deps)) for key, deps in self._deps.items()}
            self._deps.clear()
            self._closed.add(self._rank)
            self._rank = -1
        elif (cut := _AFTER.fullmatch(text)) is not None:
            self._depends(where, text, cut)
        else:
            self._operation(where, text)

    def trace(self) -> Trace:
        if not self._programs or self._rank >= 0:
            why = "has no num_ranks" if not self._programs else f"ends inside of rank {self._rank}"
            raise InputError(Problem(self._file, "the trace", why, "check that the file is complete"))
        programs = [[*nodes.values()] for nodes in self._programs]
        return Trace(len(programs), parts_of(programs, self._reading, acknowledged=False))

    def _begin(self, where: str, text: str) -> None:
        cut = _RANKS.fullmatch(text)
        if cut is None or not 2 <= int(cut[1]) <= MOST_RANKS:
            hint = f"the first line of a GOAL text is num_ranks N, 2 to {MOST_RANKS}"
            raise InputError(Problem(where, text[:60], "is not a number of ranks", hint))
        self._programs = [{} for _ in range(int(cut[1]))]

    def _open(self, where: str, text: str, ranks: int) -> None:
        cut = _RANK.fullmatch(text)
        if cut is None or int(cut[1]) >= ranks or int(cut[1]) in self._closed:
            why = "opens no block of a rank" if cut is None else f"is not one of {ranks} ranks, or is there twice"
            raise InputError(Problem(where, text[:60], why, f"write rank N {{ for each rank, 0 to {ranks - 1}"))
        self._rank = int(cut[1])

    def _depends(self, where: str, text: str, cut: re.Match[str]) -> None:
        """An order of two operations. `irequires` waits for a beginning; all that has begun has been posted here."""
        nodes, (later, word, earlier) = self._programs[self._rank], cut.groups()
        if missing := [label for label in (later, earlier) if label not in nodes]:
            why = f"names {missing[0]}, which no line before it has in rank {self._rank}"
            raise InputError(Problem(where, text[:60], why, "write an operation before what requires it"))
        deps: Collection[Key] = (earlier,)
        if word == "irequires" and nodes[earlier].kind != "send":
            self._reading.notes["irequires of a receive or a computation is taken as what that waits for"] += 1
            deps = dict.fromkeys(self._deps[earlier])
        self._deps[later] += deps  # of the block at hand
        self._count += len(deps)
        if self._count > _MOST_DEPS:
            hint = "use a shorter one"
            raise InputError(Problem(where, "the trace", f"has more than {_MOST_DEPS} dependencies", hint))

    def _operation(self, where: str, text: str) -> None:
        nodes = self._programs[self._rank]
        label, kind, seconds, size, peer, tag = self._fields(where, text)
        key = label or f"{len(nodes)}."  # no label has a dot
        what = f"{label or kind} of rank {self._rank}"
        if key in nodes:
            raise InputError(Problem(where, text[:60], f"has label {label} of another operation", "use another label"))
        if self._nodes == MOST_NODES:
            raise InputError(Problem(where, "the trace", f"has more than {MOST_NODES} operations", "use a shorter one"))
        self._nodes += 1
        nodes[key] = TraceNode(key, where, what, (), kind, seconds, size, peer, tag)

    def _fields(self, where: str, text: str) -> tuple[str, Kind, float, int, int, int]:
        if (cut := _COMPUTE.fullmatch(text)) is not None:
            return cut[1] or "", "compute", int(cut[2]) * 1e-9, 0, -1, 0
        cut = _TRANSFER.fullmatch(text)
        if cut is None or (cut[2] == "send") != (cut[4] == "to"):
            hint = "operations are: calc NS, send Bb to RANK [tag T], recv Bb from RANK [tag T]; A requires B"
            raise InputError(Problem(where, text[:60], "is not an operation", hint))
        peer, tag = int(cut[5]), int(cut[6] or 0)
        if peer < 0 or tag < 0:
            why = "receives from any rank, or with any tag, which only a running program decides"
            raise InputError(Problem(where, text[:60], why, "name the rank and the tag"))
        if peer >= len(self._programs) or peer == self._rank:
            raise InputError(Problem(where, text[:60], f"names rank {peer}, which is not another one of the trace"))
        return cut[1] or "", "send" if cut[2] == "send" else "receive", 0.0, int(cut[3]), peer, tag
