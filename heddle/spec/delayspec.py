"""What `link.delay` of a fabric file may say: how long a bit takes over a link of the hardware that is meant.

In:  plain data, as the rest of the file. Out: DelaySpec, frozen; nanoseconds of hardware, one way.
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
        raise wrong(why, "write a delay of the hardware as 500ns or 1us; or 0, or shape") from None
    if delay > _LONGEST_NS:
        hint = "it is that of the hardware, and multiplied by k; try 1us, or shape"
        raise wrong(f"is above {format_duration(_LONGEST_NS)}", hint)
    return delay


Delay = Annotated[int | Literal["shape"], BeforeValidator(read_delay)]


def _one_for_all(value: Any) -> Any:
    """A delay of every link may be written without naming the links."""
    if isinstance(value, dict | DelaySpec):
        return value
    read_delay(value)  # what is wrong with it is wrong with the whole key
    return {"host": value, "fabric": value}


class DelaySpec(Strict):
    """Of links of hosts, and of links between switches. `shape`: as the shape has it; 0: none is modelled."""

    host: Delay = 0
    fabric: Delay = 0


LinkDelay = Annotated[DelaySpec, BeforeValidator(_one_for_all)]
