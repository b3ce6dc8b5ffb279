"""The values of faults that are set by name: flags of `./inv fault KIND`, and `KEY=VALUE` of `./inv run --fault`.

In:  texts. Out: values; ValueError with the reason, `; ` and a hint. Which kind takes which: heddle/lab/faults/.
Times are wall time, whatever k is. Times of a fault in a run (`from=2s`, `to=4s`, `every=5s`: when it begins and ends,
whether it comes again) count from the run's first barrier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_duration, parse_duration, parse_share

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


_MOST_NS: Final = 600 * 10**9


@dataclass(frozen=True, slots=True)
class FaultSetting:
    """One value. read: from its text. example: in hints."""

    help: str
    read: Callable[[str], Any]
    example: str


def _share(text: str) -> float:
    """Of a rate, of a time or of packets; so the reasons of `parse_share`, which are for packets, do not fit."""
    try:
        share = parse_share(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError("is not a share above 0% and below 100%; write it as 10%, 1/4 or 0.005")
    return share


def _time(text: str) -> int:
    found = parse_duration(text)
    if not LEAST_NS <= found <= _MOST_NS:
        raise ValueError(f"is not from {format_duration(LEAST_NS)} to {format_duration(_MOST_NS)}; write 500ms or 2s")
    return found


def _class(text: str) -> int:
    if text not in {str(number) for number in range(8)}:
        raise ValueError("is not a class; write a number from 0 to 7")
    return int(text)


SETTINGS: Final[Mapping[str, FaultSetting]] = {
    "rate": FaultSetting("slow-link, slow-host: share of the rate that is left; else: share of packets", _share, "10%"),
    "period": FaultSetting("flap: from one failure to the next", _time, "2s"),
    "duty": FaultSetting("flap: the share of the period for which the link is down", _share, "50%"),
    "ramp": FaultSetting("bit-errors: the time until the rate is reached", _time, "10s"),
    "host": FaultSetting("misroute: the host whose packets go wrong", str, "host3"),
    "time": FaultSetting("pfc-storm: how long it lasts", _time, "5s"),
    "class": FaultSetting("pfc-storm: the traffic class that is paused", _class, "3"),
}
