"""The values of faults that are set by name: flags of `./inv fault KIND`, and `KEY=VALUE` of `./inv run --fault`.

In:  texts. Out: values; ValueError with the reason, `; ` and a hint. Which kind takes which: heddle/lab/faults/.
Times are wall time here, whatever k is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.units import format_duration, parse_duration, parse_share
from heddle.spec.faulttimes import LEAST_NS

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
