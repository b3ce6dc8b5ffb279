"""Named parameters that a run may set: name, default, range, unit.

Parameters of controllers are values of the hardware.

In:  names and numbers of `run --cc-set` and `run --admission-set`. Out: a complete set of values, or InputError with
every wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from heddle.base.declared import Wrong
from heddle.base.problems import Problems, did_you_mean

SETTING: Final = "NAME=NUMBER"


def settings_from(
    flag: str, given: Sequence[str], number: Callable[[str], float], example: str, wrong: Wrong
) -> tuple[tuple[str, float], ...]:
    """`NAME=NUMBER` texts as pairs; the last value of a name counts. number: ValueError for a text that is none."""
    found: dict[str, float] = {}
    for text in given:
        name, _, digits = text.partition("=")
        try:
            value = number(digits)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            wrong(f"{flag} {text}", f"is not {SETTING}", f"write {flag} {example}")
        else:
            found[name] = value
    return tuple(found.items())


def pairs(values: Sequence[tuple[str, float]]) -> Sequence[str]:
    """The texts of `settings_from`."""
    return [f"{name}={number:.15g}" for name, number in values]


@dataclass(frozen=True, slots=True)
class Tunable:
    """One parameter. low, high: the smallest and largest value. unit: of the hardware; empty: a plain number.

    line: the largest value is the line rate of the hardware, in Mb/s, instead of `high`. whole: no fraction is allowed.
    """

    name: str
    default: float
    low: float
    high: float
    unit: str
    text: str
    line: bool = False
    whole: bool = True


def values_of(
    kind: str,
    tunables: Sequence[Tunable],
    given: Sequence[tuple[str, float]],
    line_mbps: float = 0.0,
    flag: str = "--cc-set",
) -> dict[str, float]:
    """All parameters of a controller or of admission: the given ones, and defaults.

    kind, flag: its name and its option, for error texts. line_mbps: the hardware's line rate. InputError for unknown
    names and for values out of range, with range and default.
    """
    problems = Problems()
    known = {each.name: each for each in tunables}
    values = {each.name: each.default for each in tunables}
    for name, value in given:
        what = f"{flag} {name}={value:.10g}"
        tunable = known.get(name)
        if tunable is None:
            hint = did_you_mean(name, known)
            problems.add(where="", what=what, why=f"is not a parameter of {kind}", hint=hint)
            continue
        high = line_mbps if tunable.line else tunable.high
        unit = f" {tunable.unit}" if tunable.unit else ""
        default = f"the default is {tunable.default:.10g}{unit}: {tunable.text}"
        if not tunable.low <= value <= high:
            of_line = " (the line rate)" if tunable.line else ""
            why = f"is outside {tunable.low:.10g} to {high:.10g}{unit}{of_line}"
            problems.add(where="", what=what, why=why, hint=default)
        elif tunable.whole and value != int(value):
            problems.add(where="", what=what, why="is not a whole number", hint=default)
        values[name] = value
    problems.raise_if_any()
    return values


@dataclass(frozen=True, slots=True)
class Control:
    """The congestion control of a job, as its options and its fabric give it.

    values: all parameters, in hardware units. settings: those that the user set, in words. ecn_factor: the switches'
    ECN thresholds are multiplied by it. windowed: it measures the delay of each acknowledgement. compiled: the compiled
    loop has it. selective: it learns from the answer to each packet, where the transport has one.
    """

    name: str
    values: Mapping[str, float]
    settings: str
    profile: str
    ecn_factor: int
    windowed: bool
    compiled: bool
    selective: bool = False


def described(values: Mapping[str, float], tunables: Sequence[Tunable]) -> str:
    """The values that differ from the defaults, as `name=value`; empty when all are defaults."""
    return ", ".join(f"{t.name}={values[t.name]:g}" for t in tunables if values[t.name] != t.default)
