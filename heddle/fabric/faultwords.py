"""Faults of links as a user types them: values of one fault, and a fault with its ports for one run.

In:  `--loss 1/256` of `./inv fault`, key by key, or `rtsw1:eth3,loss=1/256` of `./inv run --fault`.
Out: LinkFault, and RunFault. InputError with every wrong value. Which ports a lab has is checked later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.units import format_duration, parse_duration, parse_share
from heddle.fabric.linkfault import LinkFault
from heddle.spec.linkspec import LONGEST_NS

TIMES: Final = ("delay", "jitter")
SHARES: Final = ("loss", "corrupt", "duplicate", "reorder")
EXAMPLE: Final = "PORT,loss=1/256"
_HINT: Final = "write the time on hardware, as 500ns or 10us: Heddle multiplies it by k"


def _time(text: str) -> int:
    """Nanoseconds on hardware; ValueError as of the other readers."""
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{str(error).partition('; ')[0]}; {_HINT}") from None
    if found > LONGEST_NS:
        raise ValueError(f"is above {format_duration(LONGEST_NS)}; {_HINT}")
    return found


_READERS: Final[Mapping[str, Callable[[str], int] | Callable[[str], float]]] = {
    **dict.fromkeys(TIMES, _time),
    **dict.fromkeys(SHARES, parse_share),
}
_SHOWN: Final = 40  # letters of a wrong value


@dataclass(frozen=True, slots=True)
class RunFault:
    """A fault for one run. ports: names and patterns, as typed."""

    ports: tuple[str, ...]
    fault: LinkFault


def read_fault(given: Mapping[str, str], clear: str, named: Callable[[str, str], tuple[str, str]]) -> LinkFault:
    """The fault with these values. clear: the hint where every value is 0.

    named: key and value -> where and what of a Problem, as the user wrote them.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        try:
            values[f"{key}_ns" if key in TIMES else key] = _READERS[key](text)
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            problems.append(Problem(*named(key, text[:_SHOWN]), why, hint))
    if problems:
        raise InputError(*problems)
    fault = LinkFault(**values)
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem(*named(key, given[key]), why, hint))
    if not fault:
        where, _ = named(*next(iter(given.items())))
        raise InputError(Problem("", where or "fault", "sets nothing: every value is 0", clear))
    return fault


def parse_run_fault(text: str) -> RunFault:
    """`PORT[,PORT...],KEY=VALUE[,KEY=VALUE...]`; InputError with the reason."""
    where = f"--fault {text}"
    words = [word.strip() for word in text.split(",") if word.strip()]
    ports = tuple(word for word in words if "=" not in word)
    given: dict[str, str] = {}
    problems: list[Problem] = []
    for key, _, value in (word.partition("=") for word in words if "=" in word):
        if key not in _READERS:
            problems.append(Problem(where, key or "=", "is not a fault of a link", did_you_mean(key, _READERS)))
        elif key in given:
            problems.append(Problem(where, key, "has two values", "write each of them once"))
        given[key] = value
    if not words:
        raise InputError(Problem("", "--fault", "has an empty value", f"write --fault {EXAMPLE}"))
    if not ports:
        problems.append(Problem("", where, "names no port", f"write --fault {EXAMPLE}"))
    if not given and not problems:
        problems.append(Problem("", where, "sets no fault", f"write --fault {EXAMPLE}"))
    if problems:
        raise InputError(*problems)
    return RunFault(ports, read_fault(given, "leave it out", lambda key, value: (where, f"{key}={value}")))


def parse_run_faults(texts: Sequence[str]) -> tuple[RunFault, ...]:
    """All of a run; InputError with every error."""
    found: list[RunFault] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            found.append(parse_run_fault(text))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return tuple(found)
