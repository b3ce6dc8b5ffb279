"""The key `link.delay` of a fabric file: the propagation delay of a link of the emulated hardware.

In:  plain data, as the rest of the file. Out: DelaySpec, frozen; nanoseconds on hardware, one way.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator

from heddle.base.units import format_duration, parse_duration
from heddle.spec.keys import Strict, wrong

SHAPE: Final = "shape"
_LONGEST_NS: Final = 10**6  # 200 km of fibre


def read_delay(value: Any) -> int | Literal["shape"]:
    """`shape`, 0, or a duration."""
    if value == SHAPE:
        return "shape"
    if str(value) == "0" and not isinstance(value, bool):
        return 0
    try:
        delay = parse_duration(value)
    except ValueError as error:
        why, _, _ = str(error).partition("; ")
        raise wrong(why, "write a delay on hardware as 500ns or 1us; or 0, or shape") from None
    if delay > _LONGEST_NS:
        hint = "write the delay on hardware: Heddle multiplies it by k; try 1us, or shape"
        raise wrong(f"is above {format_duration(_LONGEST_NS)}", hint)
    return delay


Delay = Annotated[int | Literal["shape"], BeforeValidator(read_delay)]


def _one_for_all(value: Any) -> Any:
    """One value sets the delay of every link."""
    if isinstance(value, dict | DelaySpec):
        return value
    read_delay(value)  # an error then names the whole key, not `host` and `fabric`
    return {"host": value, "fabric": value}


class DelaySpec(Strict):
    """Delays of host links and of links between switches. `shape`: that of the fabric's shape; 0: none is modelled."""

    host: Delay = SHAPE
    fabric: Delay = SHAPE


LinkDelay = Annotated[DelaySpec, BeforeValidator(_one_for_all)]
