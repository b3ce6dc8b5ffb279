"""Connection matrices of htsim (`.cm`, `.tm`): connections with a start, or with a trigger that an earlier one fires.

In:  one file. Out: Trace.
Source: ConnectionMatrix::load of ultraethernet/uet-htsim (sim/datacenter/connection_matrix.cpp). Starts are
picoseconds. A start becomes a computation of the sender. A trigger becomes a dependency; to another node, a message of
4 bytes carries it. A multishot trigger starts its connections in the order of the file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.traffic.traces import MOST_RANKS, Reading, Trace
from heddle_plugins.readers.traces.graph import (
    MOST_NODES,
    NUMBER,
    TraceNode,
    parts_of,
    read_lines,
)

_HEADER: Final = ("Nodes", "Connections", "Triggers", "Failures")
_ENDS: Final = re.compile(rf"({NUMBER})->({NUMBER})")
_NUMBERS: Final = ("id", "size", "trigger", "send_done_trigger", "recv_done_trigger", "prio")
_TYPES: Final = ("oneshot", "multishot", "barrier")
_START: Final = re.compile(rf"{NUMBER}(?:\.[0-9]{{0,18}})?(?:e\+?[0-9]{{1,2}})?")
_MOST_WORDS: Final = 64  # of a line
_PICOSECOND: Final = 1e-12


@dataclass(frozen=True, slots=True)
class TimedFlow:
    """Bytes from one node to another: numbers["size"]. numbers: also the triggers that start it or that it fires."""

    where: str
    src: int
    dst: int
    start_s: float
    numbers: Mapping[str, int]

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"{self.src}->{self.dst}"


def read(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of a file. InputError."""
    reader = _Reader(files[0], reading)
    for number, line in enumerate(read_lines(files[0]), start=1):
        words = line.split(maxsplit=_MOST_WORDS)
        if words and not words[0].startswith("#"):
            reader.take(f"{files[0]}:{number}", words)
    return reader.trace()


class _Reader:
    def __init__(self, file: str, reading: Reading) -> None:
        self._file, self._reading = file, reading
        self._header: dict[str, int] = {}
        self._connections: list[TimedFlow] = []
        self._triggers: dict[int, tuple[str, int]] = {}  # id -> type, count of a barrier
        self._failures = 0

    def take(self, where: str, words: Sequence[str]) -> None:
        first, more = words[0], words[1:]
        if first in _HEADER:
            if len(more) != 1 or not re.fullmatch(NUMBER, more[0]):
                raise InputError(Problem(where, " ".join(words)[:60], "is not a number"))
            self._header[first] = int(more[0])
        elif (cut := _ENDS.fullmatch(first)) is not None:
            self._connection(where, int(cut[1]), int(cut[2]), more)
        elif first == "trigger":
            self._trigger(where, more)
        elif first == "failure":
            self._failures += 1
        else:
            hint = f"lines begin with {', '.join(_HEADER)}, S->D, trigger or failure"
            raise InputError(Problem(where, first[:60], "is not known in a connection matrix", hint))

    def _connection(self, where: str, src: int, dst: int, words: Sequence[str]) -> None:
        ranks, what = self._header.get("Nodes", 0), f"{src}->{dst}"
        if not 2 <= ranks <= MOST_RANKS or max(src, dst) >= ranks or src == dst:
            raise InputError(Problem(where, what, f"is not between two of {ranks} nodes", "check the line Nodes"))
        if len(self._connections) == MOST_NODES:
            raise InputError(Problem(where, what, f"is beyond {MOST_NODES} connections, the most"))
        numbers: dict[str, int] = {}
        start, left = -1.0, list(words)
        while left:
            word = left.pop(0)
            if word == "msg":  # the number of a message, which may be missing
                if left and left[0].isdecimal():
                    left.pop(0)
                continue
            value = left.pop(0) if left else ""
            if word == "start" and _START.fullmatch(value):
                start = float(value)
            elif word in _NUMBERS and re.fullmatch(NUMBER, value):
                numbers[word] = int(value)
            else:
                hint = f"keys are start, {', '.join(_NUMBERS)} and msg, each with a number"
                raise InputError(
                    Problem(where, what, f"has {word[:20]} {value[:20]}".rstrip() + ", which is not known", hint)
                )
        if (start >= 0) == ("trigger" in numbers):
            raise InputError(Problem(where, what, "needs either a start or a trigger", "write start 0"))
        if "size" not in numbers:
            raise InputError(Problem(where, what, "has no size", "write size BYTES"))
        if "prio" in numbers:
            self._reading.notes["priorities are left out"] += 1
        self._connections.append(TimedFlow(where, src, dst, max(0.0, start) * _PICOSECOND, numbers))

    def _trigger(self, where: str, words: Sequence[str]) -> None:
        values = {key: int(value) for key, value in pairwise(words) if re.fullmatch(NUMBER, value)}
        kinds = [word for word in words if word in _TYPES]
        if not values.get("id") or len(kinds) != 1 or values["id"] in self._triggers:
            why = "needs an id of its own, and one of oneshot, multishot and barrier"
            raise InputError(Problem(where, f"trigger {' '.join(words)[:60]}", why))
        self._triggers[values["id"]] = kinds[0], values.get("count", 0)

    def trace(self) -> Trace:
        found = (len(self._connections), len(self._triggers), self._failures)
        for key, number in zip(_HEADER[1:], found, strict=True):
            if self._header.get(key, 0) != number:
                why = f"does not fit the number of lines, which is {number}"
                raise InputError(Problem(self._file, f"{key} {self._header.get(key, 0)}", why))
        if not self._connections:
            raise InputError(Problem(self._file, "the matrix", "has no connections"))
        if self._failures:
            self._reading.notes["failures of links are left out; use the fault option"] += self._failures
        return TimedFlows(self._file, self._header["Nodes"], self._connections, self._triggers).trace(self._reading)


@dataclass(frozen=True)
class TimedFlows:
    """All connections of a file. triggers: id -> type, and the count of a barrier."""

    file: str
    ranks: int
    connections: Sequence[TimedFlow]
    triggers: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    def trace(self, reading: Reading) -> Trace:
        """The trace. InputError for triggers that do not fit."""
        programs: list[list[TraceNode]] = [[] for _ in range(self.ranks)]
        firing, turns = self._firing(), Counter[int]()
        for number, each in enumerate(self.connections):
            deps = [f"t{each.start_s!r}"] if each.start_s else []
            for node, operation in self._fired(each, firing, turns):
                told = operation
                if node != each.src:  # another node sends a message by which this one learns of it
                    tag, word = -1 - number, f"{each.what} trigger"
                    told = f"{operation} {number}"
                    programs[node].append(
                        TraceNode(told, each.where, word, (operation,), "send", 0.0, 4, each.src, tag)
                    )
                    programs[each.src].append(TraceNode(told, each.where, word, (), "receive", 0.0, 4, node, tag))
                deps.append(told)
            size = each.numbers["size"]
            sent, received = f"s{number}", f"r{number}"
            programs[each.src].append(
                TraceNode(sent, each.where, each.what, tuple(deps), "send", 0.0, size, each.dst, number)
            )
            programs[each.dst].append(
                TraceNode(received, each.where, each.what, (), "receive", 0.0, size, each.src, number)
            )
        for rank, nodes in enumerate(self._delays()):
            programs[rank] += nodes
        return Trace(self.ranks, parts_of(programs, reading, acknowledged=True))

    def _delays(self) -> list[list[TraceNode]]:
        """Each sender's starts as computations, one after the other."""
        starts: dict[int, set[float]] = defaultdict(set)
        for each in self.connections:
            if each.start_s:
                starts[each.src].add(each.start_s)
        found: list[list[TraceNode]] = [[] for _ in range(self.ranks)]
        for src, times in starts.items():
            before, last = 0.0, ()
            for time in sorted(times):
                key = f"t{time!r}"
                found[src].append(TraceNode(key, self.file, f"start of node {src}", last, "compute", time - before))
                before, last = time, (key,)  # type: ignore[assignment]
        return found

    def _firing(self) -> Mapping[int, list[tuple[int, str]]]:
        """Of each trigger: at which node it is fired, and by which operation there, once for each of its firings."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for number, each in enumerate(self.connections):
            for key, node, letter in (("send_done_trigger", each.src, "s"), ("recv_done_trigger", each.dst, "r")):
                if trigger := each.numbers.get(key, 0):
                    found[trigger].append((node, f"{letter}{number}"))
        return found

    def _fired(
        self, each: TimedFlow, firing: Mapping[int, list[tuple[int, str]]], turns: Counter[int]
    ) -> Sequence[tuple[int, str]]:
        """What a connection with a trigger waits for. turns: how many connections each trigger has started."""
        if not (trigger := each.numbers.get("trigger", 0)):
            return ()
        if trigger not in self.triggers:
            raise InputError(Problem(each.where, each.what, f"names trigger {trigger}, which no line declares"))
        kind, count = self.triggers[trigger]
        fired, turn = firing.get(trigger, []), turns[trigger]
        turns[trigger] += 1
        if kind == "multishot" and turn < len(fired):  # the first firing starts the first connection, and so on
            return fired[turn : turn + 1]
        if kind == "multishot" or len(fired) != (count if kind == "barrier" else 1):
            why = f"waits for {kind} trigger {trigger}, which is fired {len(fired)} times"
            raise InputError(Problem(each.where, each.what, why, "let each connection be started once"))
        return fired
