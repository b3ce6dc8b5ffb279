"""Times of a fault in a run: when it begins and ends, and whether it comes again.

In:  `from=2s`, `to=4s`, `every=5s` of `./inv run --fault`.
Out: Times. InputError with every wrong value. They are wall time since the first barrier of the run, whatever k is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, parse_duration

TIMES: Final = ("from", "to", "every")
LEAST_NS: Final = 10**8  # of a period: a change takes some milliseconds, and BGP follows
_HINT: Final = "write the time since the start of the run as 500ms or 2s"


@dataclass(frozen=True, slots=True)
class Times:
    """When a fault is set, in nanoseconds. begin_ns: None for before the first packet. end_ns: None for the run's end.

    every_ns: from one beginning to the next; 0: once.
    """

    begin_ns: int | None = None
    end_ns: int | None = None
    every_ns: int = 0

    def __bool__(self) -> bool:
        """Whether it is not the whole run."""
        return self != ALWAYS

    @property
    def first(self) -> int:
        """The first beginning."""
        return self.begin_ns or 0

    @property
    def length(self) -> float:
        """Nanoseconds from a beginning to its end; endless where only the run ends it."""
        return math.inf if self.end_ns is None else self.end_ns - self.first

    def overlap(self, other: Times) -> bool:
        """Whether both are set at some time of a run without an end."""
        if self.every_ns and other.every_ns:  # at some time each phase of one meets each phase of the other
            step = math.gcd(self.every_ns, other.every_ns)
            apart = (self.first - other.first) % step
            return apart < other.length or step - apart < self.length
        if not self.every_ns and other.every_ns:
            return other.overlap(self)
        begin, end = other.first, other.first + other.length
        if self.every_ns:  # the first of them that ends after the other begins
            late = max(0, begin - self.first - int(self.length) + self.every_ns)
            return self.first + late // self.every_ns * self.every_ns < end
        return self.first < end and begin < self.first + self.length

    def text(self) -> str:
        """`from 2s to 4s, every 5s`; empty for the whole run."""
        words = [f"from {format_duration(self.begin_ns)}" if self.begin_ns else ""]
        words.append("" if self.end_ns is None else f"to {format_duration(self.end_ns)}")
        every = f", every {format_duration(self.every_ns)}" if self.every_ns else ""
        return " ".join(filter(None, words)) + every


ALWAYS: Final = Times()  # the whole run


def read_times(given: Mapping[str, str], where: str) -> Times:
    """The times with these values by the words of TIMES. where: of a Problem."""
    found: dict[str, int] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        try:
            found[key] = 0 if text == "0" else parse_duration(text)
        except ValueError as error:
            problems.append(Problem(where, f"{key}={text[:40]}", str(error).partition("; ")[0], _HINT))
    begin, end, every = (found.get(key) for key in TIMES)
    if not problems:
        if end is not None and end <= (begin or 0):
            why = f"is not after from={given.get('from', '0s')}"
            problems.append(Problem(where, f"to={given['to']}", why, "write the end of the fault, since the run began"))
        elif every is not None and end is None:
            problems.append(Problem(where, f"every={given['every']}", "needs an end", "add to=, such as from=2s,to=4s"))
        elif every is not None and every < LEAST_NS:
            why = f"is below {format_duration(LEAST_NS)}"
            problems.append(Problem(where, f"every={given['every']}", why, "use a longer period"))
        elif every is not None and end is not None and every <= end - (begin or 0):
            why = f"is not longer than the fault, {format_duration(end - (begin or 0))}"
            problems.append(Problem(where, f"every={given['every']}", why, "use a longer period, or an earlier to="))
    if problems:
        raise InputError(*problems)
    return Times(0 if every and begin is None else begin, end, every or 0)
