"""Conditions on observed values, as lab.yml writes them.

| written | holds for |
|---|---|
| 16, fixed, true | an equal value; for texts without regard to case |
| "<= 1.3" | this and less; also <, >, >=; the number may be a size, as in "<= 150KB" |
| "12 to 20" | values between, both limits included |
| "!= qpn" | a different value |
| [flow, e-ecmp] | one of these |
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.units import parse_size

Fact = str | int | float | bool
Written = Fact | list[Fact]

_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_DIFFERENT: Final = "!="
_COMPARED: Final = re.compile(r"(<=|>=|<|>)\s*(\S+)")
_RANGE: Final = re.compile(r"(\S+)\s+to\s+(\S+)")


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, as written."""

    written: Written

    def __post_init__(self) -> None:
        """ValueError with the reason when a limit is not a number."""
        if isinstance(self.written, str):
            _limits(self.written)

    def holds(self, value: Fact) -> bool:
        """Whether a value meets it. A value that is not a number meets no limit."""
        if isinstance(self.written, list):
            return any(_equal(value, each) for each in self.written)
        if not isinstance(self.written, str):
            return _equal(value, self.written)
        limits = _limits(self.written)
        if limits:
            number = number_of(value)
            return number is not None and all(_ORDER[sign](number, limit) for sign, limit in limits)
        if self.written.startswith(_DIFFERENT):
            return not _equal(value, self.written.removeprefix(_DIFFERENT).strip())
        return _equal(value, self.written)

    def text(self) -> str:
        """As a person reads it: `one of flow, e-ecmp`."""
        if isinstance(self.written, list):
            return "one of " + ", ".join(map(fact_text, self.written))
        return fact_text(self.written)


def number_of(value: Fact) -> float | None:
    """A number or a size in bytes; None for other texts, and for true and false."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        number = float(value)
    except ValueError:
        try:
            return float(parse_size(value.replace(" ", "")))
        except ValueError:
            return None
    return number if math.isfinite(number) else None


def fact_text(value: Fact) -> str:
    """`yes` and `no` for true and false; numbers with at most 6 digits that count."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _equal(value: Fact, wanted: Fact) -> bool:
    if isinstance(wanted, bool) or isinstance(value, bool):
        return fact_text(value) == fact_text(wanted) or value is wanted
    one, other = number_of(value), number_of(wanted)
    if one is not None and other is not None:
        return one == other  # AS numbers of two switches may differ by one
    return str(value).strip().lower() == str(wanted).strip().lower()


def _limits(text: str) -> list[tuple[str, float]]:
    """The limits that a text sets, as sign and number; none where it is compared as a whole."""
    if match := _COMPARED.fullmatch(text.strip()):
        return [(match[1], _number(match[2]))]
    if match := _RANGE.fullmatch(text.strip()):
        return [(">=", _number(match[1])), ("<=", _number(match[2]))]
    return []


def _number(text: str) -> float:
    number = number_of(text)
    if number is None:
        raise ValueError(f"compares with {text}, which is not a number or a size")
    return number
