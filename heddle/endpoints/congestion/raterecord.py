"""The sending rate of one queue pair over time, in bounded memory.

In:  rates with their times. Out: steps: from this time on, this rate.
Steps that are closer than the resolution become one, which keeps the last rate. When there are too many steps, the
resolution is halved.
"""

from __future__ import annotations

from typing import Final

FINEST_NS: Final = 1_000_000
_LEAST_STEPS: Final = 16
_MOST_STEPS: Final = 1024
_ALL_STEPS: Final = 1 << 17  # of all queue pairs of a worker together

RateSteps = tuple[tuple[int, float], ...]  # (CLOCK_MONOTONIC in nanoseconds, bit/s), ascending


def steps_for(qps: int) -> int:
    """The largest number of steps of each of so many queue pairs."""
    return max(_LEAST_STEPS, min(_MOST_STEPS, _ALL_STEPS // max(1, qps)))


class RateRecord:
    """Steps of one queue pair. most: their largest number, at least 2."""

    __slots__ = ("_ends", "_most", "_rates", "_resolution")

    def __init__(self, most: int) -> None:
        self._most = most
        self._resolution = FINEST_NS
        self._ends: list[int] = []
        self._rates: list[float] = []

    def add(self, now_ns: int, rate_bps: float) -> None:
        """The rate is `rate_bps` from now on."""
        if self._rates and self._rates[-1] == rate_bps:
            return
        if self._ends and now_ns - self._ends[-1] < self._resolution:
            self._rates[-1] = rate_bps
            return
        self._ends.append(now_ns)
        self._rates.append(rate_bps)
        while len(self._ends) > self._most:
            self._resolution *= 2
            self._merge()

    def steps(self) -> RateSteps:
        """All steps so far."""
        return tuple(zip(self._ends, self._rates, strict=True))

    def _merge(self) -> None:
        ends: list[int] = []
        rates: list[float] = []
        for end, rate in zip(self._ends, self._rates, strict=True):
            if ends and end - ends[-1] < self._resolution:
                rates[-1] = rate
            else:
                ends.append(end)
                rates.append(rate)
        self._ends, self._rates = ends, rates
