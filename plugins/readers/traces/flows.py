"""HPCC's `flow.txt`: flows with a start. Files with the end .txt are of HPCC or SimAI, which the first line tells.

In:  one file: the number of flows, then `SRC DST PG DPORT BYTES START_S` for each. Out: Trace; a node is a rank.
Source: ReadFlowInput of alibaba-edu/High-Precision-Congestion-Control (simulation/scratch/third.cc), which reads no
more than that number of flows. Starts count from the first flow's, since HPCC's runs begin at 2 s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.traffic.readers import MOST_SIZE
from heddle.traffic.traces import MOST_RANKS, Reading, Trace
from heddle_plugins.readers.traces import simai
from heddle_plugins.readers.traces.graph import LONGEST_S, MOST_PARTS, NUMBER, read_lines
from heddle_plugins.readers.traces.htsim import TimedFlow, TimedFlows

_START: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,18})?(?:e[-+]?[0-9]{1,2})?")
_COLUMNS: Final = ("SRC", "DST", "PG", "DPORT", "BYTES", "START_S")
_LOSSLESS: Final = 3  # the priority group of HPCC's flows


def read(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of a file. InputError."""
    file, lines = files[0], read_lines(files[0])
    at, first = next(((at, line.split()) for at, line in enumerate(lines, 1) if line.strip()), (1, [""]))
    if simai.is_workload(first[0]):
        return simai.read(files, reading)
    if len(first) != 1 or not re.fullmatch(NUMBER, first[0]):
        why = "is neither a workload of SimAI nor a list of flows of HPCC"
        hint = f"the first begins with {simai.POLICIES[1]}, the second with the number of its flows"
        raise InputError(Problem(f"{file}:{at}", "the file", why, hint))
    count = int(first[0])
    if not 0 < count <= MOST_PARTS:
        why = f"are not 1 to {MOST_PARTS}, the most that are read"
        raise InputError(Problem(f"{file}:{at}", f"{count} flows", why, "use a shorter file"))
    found: list[TimedFlow] = []
    for number, line in enumerate(lines[at:], at + 1):
        if line.strip() and len(found) < count:
            found.append(_flow(f"{file}:{number}", line.split(maxsplit=len(_COLUMNS)), reading))
        elif line.strip():
            reading.notes["lines behind the flows are left out"] += 1
    if len(found) < count:
        why = f"are in line {at}, but the file ends after {len(found)}"
        raise InputError(Problem(f"{file}:{len(lines)}", f"{count} flows", why, "check that the file is complete"))
    first_s = min(each.start_s for each in found)
    if first_s:
        reading.notes[f"start is taken for 0: {first_s:g} s, of the first flow"] = 1
        found = [TimedFlow(each.where, each.src, each.dst, each.start_s - first_s, each.numbers) for each in found]
    ranks = max(reading.ranks or 0, 1 + max(max(each.src, each.dst) for each in found))
    return TimedFlows(file, ranks, found).trace(reading)


def _flow(where: str, words: Sequence[str], reading: Reading) -> TimedFlow:
    def wrong(what: str, why: str, hint: str = "") -> InputError:
        return InputError(Problem(where, what[:60], why, hint))

    if len(words) != len(_COLUMNS):
        raise wrong(" ".join(words), f"has {len(words)} columns", f"a flow is {' '.join(_COLUMNS)}")
    for name, word in zip(_COLUMNS[:5], words, strict=False):
        if not re.fullmatch(NUMBER, word):
            raise wrong(f"{name} {word}", "is not a number")
    src, dst, group, _, size = map(int, words[:5])
    if max(src, dst) >= MOST_RANKS or src == dst:
        raise wrong(f"{src} {dst}", f"are not two nodes below {MOST_RANKS}, the most that have ranks")
    if not 0 < size <= MOST_SIZE:
        raise wrong(f"BYTES {size}", f"is not 1 to {MOST_SIZE}")
    if not _START.fullmatch(words[5]) or float(words[5]) > LONGEST_S:
        raise wrong(f"START_S {words[5]}", f"is not a time from 0 to {LONGEST_S:g} s")
    if group != _LOSSLESS:
        reading.notes[f"priority groups other than {_LOSSLESS} are left out"] += 1
    return TimedFlow(where, src, dst, float(words[5]), {"size": size})
