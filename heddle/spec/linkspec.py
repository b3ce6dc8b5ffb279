"""Keys below `link` of a fabric file: rates, delays, and what a link does to packets.

In:  plain data, as the rest of the file. `delay`, `length` and each kind of impairments.py take one value for all
links, or one each for `host` and `fabric`.
Out: LinkSpec, frozen. Rates in bit/s, lengths in millimetres, times in nanoseconds on hardware, one way; shares of
packets from 0 to 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, create_model, model_validator

from heddle.base.units import format_duration, parse_duration, parse_share
from heddle.spec.impairments import KINDS, LONGEST_NS
from heddle.spec.keys import Rate, Size, Strict, Takes, at, reading, wrong

SLOWEST_BPS: Final = 10**6
FASTEST_BPS: Final = 10**10
SHAPE: Final = "shape"
_NS_PER_M: Final = 5  # light in glass: 1 / (2/3 of its speed in vacuum)
_LONGEST_M: Final = LONGEST_NS // _NS_PER_M
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
    return max(1, round(Fraction(length * _NS_PER_M, 1000))) if length else 0


def _read_time(value: Any, hint: str, hint_above: str) -> int:
    """0 or a duration. hint_above: for one that is too long."""
    if _zero(value):
        return 0
    with reading(hint):
        found = parse_duration(value)
    if found > LONGEST_NS:
        raise wrong(f"is above {format_duration(LONGEST_NS)}", hint_above)
    return found


def read_delay(value: Any) -> int | Literal["shape"]:
    """`shape`, 0, or a duration."""
    if value == SHAPE:
        return "shape"
    hint_above = "write the delay on hardware: Heddle multiplies it by k; try 1us, or shape"
    return _read_time(value, "write a delay on hardware as 500ns or 1us; or 0, or shape", hint_above)


def _read_share(value: Any) -> float:
    with reading():
        return parse_share(value)


def _time_reader(key: str) -> Callable[[Any], int]:
    hint = f"write the {key} on hardware as 100ns or 1us; or 0"
    return lambda value: _read_time(value, hint, hint)


_DURATION: Final = PlainSerializer(
    lambda value: format_duration(value) if isinstance(value, int) else value, when_used="json"
)
_TIME: Final = f"`0`, or a time up to {format_duration(LONGEST_NS)}"
Delay = Annotated[int | Literal["shape"], BeforeValidator(read_delay), _DURATION, Takes(f"`shape`, {_TIME}")]
_IN_FILES: Final = PlainSerializer(format_length, when_used="json")
Length = Annotated[
    int, BeforeValidator(read_length), _IN_FILES, Takes(f"`0`, or a length up to {_LONGEST_M // 1000}km")
]


class DelaySpec(Strict):
    """Delays of host links and of links between switches. 0: none is modelled; `shape`: that of the fabric's shape."""

    host: Delay = 0
    fabric: Delay = 0


class LengthSpec(Strict):
    """Lengths of cables, from which the delay follows."""

    host: Length = 0
    fabric: Length = 0


def _one_for_all(read: Callable[[Any], Any]) -> BeforeValidator:

    def spread(value: Any) -> Any:
        if isinstance(value, dict | Strict):
            return value
        read(value)  # an error then names the whole key, not `host` and `fabric`
        return {"host": value, "fabric": value}

    return BeforeValidator(spread)


def _impairments() -> Mapping[str, Any]:
    """Key -> type and default, for each kind but the delay, which all fabrics have."""
    found: dict[str, Any] = {}
    for key, kind in KINDS.items():
        if key == "delay":
            continue
        read: Callable[[Any], Any] = _time_reader(key) if kind.unit == "time" else _read_share
        value_type: Any = Annotated[float, BeforeValidator(read), Takes("a share: `1/256`, `0.5%`, `0.005`")]
        if kind.unit == "time":
            value_type = Annotated[int, BeforeValidator(read), _DURATION, Takes(_TIME)]
        none = 0 if kind.unit == "time" else 0.0
        pair: Any = create_model(
            f"{key.title()}Spec", __base__=Strict, host=(value_type, none), fabric=(value_type, none)
        )
        found[key] = (Annotated[pair, _one_for_all(read)], Field(pair(), description=kind.help))
    return found


_LinkRate = Annotated[Rate, Field(ge=SLOWEST_BPS, le=FASTEST_BPS)]


class _Links(Strict):
    """Rates in bit/s of a frame's bytes from Ethernet header to ICRC; mtu is the IP MTU in bytes."""

    host: Rate = Field(
        default=100 * 10**6,
        ge=SLOWEST_BPS,
        le=FASTEST_BPS,
        description="rate of each direction of a host's link, in bytes from Ethernet header to ICRC",
    )
    fabric: Rate = Field(
        default=100 * 10**6, ge=SLOWEST_BPS, le=FASTEST_BPS, description="the same of a link between switches"
    )
    mtu: Size = Field(
        default=4200, ge=1280, le=65535, description="IP MTU of all links; at least `roce.ib_mtu` + 64 (IPv6: + 84)"
    )
    delay: Annotated[DelaySpec, _one_for_all(read_delay)] = Field(
        DelaySpec(),
        description="propagation delay on hardware, one way; multiplied by k here. `shape`: the usual values of the"
        " shape",
    )
    length: Annotated[LengthSpec, _one_for_all(read_length)] = Field(
        LengthSpec(),
        description="length of the cable, another way to write its delay, at 5 ns per metre. It replaces `0` or"
        " `shape`",
    )
    delay_at: Literal["host", "link"] = Field(
        "host", description="`host`: the receiving NIC takes frames later. `link`: packets wait on each link (netem)"
    )


if TYPE_CHECKING:
    _ImpairedLinks = _Links
else:
    _ImpairedLinks = create_model("_ImpairedLinks", __base__=_Links, **_impairments())


class LinkSpec(_ImpairedLinks):
    """The group `link`; a key for each kind of fault is between `delay_at` and `exceptions`."""

    exceptions: dict[str, _LinkRate] = Field(
        default={},
        description='links with another rate, by node or port: `{spine2: 50mbit, "leaf1:eth3": 10mbit}`. A port'
        " overrides a node; of two entries the lower rate counts",
    )

    @model_validator(mode="after")
    def _delays_agree(self) -> LinkSpec:
        for word in ("host", "fabric"):
            if getattr(self.length, word) and getattr(self.delay, word) not in (0, SHAPE):
                why = "and link.delay both set the delay of these links"
                hint = "remove one: a cable has 5 ns per metre"
                raise at(f"link.length.{word}", why, hint, given=[f"link.delay.{word}"])
        delayed = any((self.length.host, self.length.fabric, self.delay.host, self.delay.fabric))
        if self.delay_at == "link":
            if not delayed:
                raise at("link.delay_at", "has no effect: no link has a delay", "set link.delay or link.length")
            return self
        for key in (key for key, kind in KINDS.items() if kind.by == "netem" and key != "delay"):
            own = getattr(self, key)
            if own.host or own.fabric:
                why = "needs packets that wait on the link: link.delay_at is host"
                raise at(f"link.{key}", why, "set link.delay_at: link", given=["link.delay_at"])
        return self
