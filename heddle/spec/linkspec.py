"""Keys below `link` for what a link does to packets: `length`, `jitter`, `loss`, `corrupt`, `duplicate`, `reorder`.

In:  plain data, as the rest of the file; one value for all links, or one each for `host` and `fabric`.
Out: frozen models. Lengths in millimetres, times in nanoseconds on hardware, one way; shares of packets from 0 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from heddle.base.units import format_duration, parse_duration, parse_share
from heddle.spec.keys import Strict, wrong

NS_PER_M: Final = 5  # light in glass: 1 / (2/3 of its speed in vacuum)
_LONGEST_M: Final = 200_000
LONGEST_NS: Final = NS_PER_M * _LONGEST_M  # of a delay or jitter on hardware: 1 ms
_LENGTH: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(k?m)\s*")


def _zero(value: Any) -> bool:
    return str(value) == "0" and not isinstance(value, bool)


def read_length(value: Any) -> int:
    """Millimetres of a cable: `30m`, `2.5m`, `10km`; 0: not given."""
    if _zero(value):
        return 0
    match = None if isinstance(value, bool) else _LENGTH.fullmatch(str(value))
    if match is None:
        raise wrong("is not a length", "write the length of the cable as 30m or 2km")
    metres = Fraction(match[1]) * (1000 if match[2] == "km" else 1)
    if metres > _LONGEST_M:
        raise wrong(f"is above {_LONGEST_M // 1000}km", "write the length of the cable as 30m or 2km")
    return round(metres * 1000)


def format_length(length: int) -> str:
    """Millimetres as in a fabric file: `30m`; 0: `0`."""
    return f"{length / 1000:g}m" if length else "0"


def delay_of_length(length: int) -> int:
    """Nanoseconds that light takes through a cable of so many millimetres, rounded; at least 1 for any length."""
    return max(1, round(Fraction(length * NS_PER_M, 1000))) if length else 0


def read_jitter(value: Any) -> int:
    """0 or a duration."""
    if _zero(value):
        return 0
    hint = "write the jitter on hardware as 100ns or 1us; or 0"
    try:
        jitter = parse_duration(value)
    except ValueError as error:
        raise wrong(str(error).partition("; ")[0], hint) from None
    if jitter > LONGEST_NS:
        raise wrong(f"is above {format_duration(LONGEST_NS)}", hint)
    return jitter


def read_share(value: Any) -> float:
    """A share of packets."""
    try:
        return parse_share(value)
    except ValueError as error:
        why, _, hint = str(error).partition("; ")
        raise wrong(why, hint) from None


Length = Annotated[int, BeforeValidator(read_length)]
Jitter = Annotated[int, BeforeValidator(read_jitter)]
Share = Annotated[float, BeforeValidator(read_share)]


class LengthSpec(Strict):
    """Lengths of cables, from which the delay follows."""

    host: Length = 0
    fabric: Length = 0


class JitterSpec(Strict):
    """How much the delay varies, up and down."""

    host: Jitter = 0
    fabric: Jitter = 0


class ShareSpec(Strict):
    """A share of packets."""

    host: Share = 0.0
    fabric: Share = 0.0


def _one_for_all(read: Callable[[Any], Any]) -> BeforeValidator:
    """One value is for every link."""

    def spread(value: Any) -> Any:
        if isinstance(value, dict | Strict):
            return value
        read(value)  # an error then names the whole key, not `host` and `fabric`
        return {"host": value, "fabric": value}

    return BeforeValidator(spread)


LinkLength = Annotated[LengthSpec, _one_for_all(read_length)]
LinkJitter = Annotated[JitterSpec, _one_for_all(read_jitter)]
LinkShare = Annotated[ShareSpec, _one_for_all(read_share)]
