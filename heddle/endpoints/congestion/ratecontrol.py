"""The interface of congestion control: how fast one queue pair may send, and how a receiver reports marks.

Pure: in are events with their times, out are a rate, a window and the time of the next timer. Times are integer
nanoseconds of one monotonic clock that never goes back, rates are bit/s of frame bytes. pacing.py connects these
objects to the ends of any transport.

A controller is one file in this directory and one line of CONTROLLERS (controlled.py). What users choose of it is in
its `options`, a ControlOptions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Protocol, Self

from heddle.base.declared import Declared, Wrong
from heddle.traffic.tunables import SETTING, Tunable, pairs, settings_from

FAR_NS: Final = 1 << 62  # later than any time: no timer runs
FINEST_NS: Final = 1_000_000
_LEAST_STEPS: Final = 16
_MOST_STEPS: Final = 1024
_ALL_STEPS: Final = 1 << 17  # of all queue pairs of a worker together

RateSteps = tuple[tuple[int, float], ...]  # (CLOCK_MONOTONIC in nanoseconds, bit/s), ascending


class SendControl(Protocol):
    """The rate and window of one sending queue pair, or of all to one address."""

    @property
    def rate_bps(self) -> float:
        """The rate now, from the smallest rate to the line rate: of packets that leave one by one, or of the window."""

    @property
    def window(self) -> float:
        """The number of packets that may be unacknowledged; infinite if the controller has no window.

        From 1 on, packets of a window leave at once. Below 1, one packet may be unacknowledged, at the rate.
        """

    @property
    def deadline_ns(self) -> int:
        """The time at which rate or window change if nothing happens until then; call `expire` then. FAR_NS: never."""

    def sent(self, size: int, now_ns: int) -> None:
        """A frame of `size` bytes leaves."""

    def notified(self, now_ns: int) -> None:
        """A CNP has arrived."""

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        """An acknowledgement of so many packets has arrived.

        delay_ns: from sending the newest of them to now; None if one of them was sent more than once.
        """

    def lost(self, timed_out: bool, now_ns: int) -> None:
        """Packets are lost: the receiver requests them, or no acknowledgement has arrived in time (`timed_out`)."""

    def expire(self, now_ns: int) -> None:
        """Apply all timers up to now."""


@dataclass(frozen=True, slots=True)
class CnpRule:
    """How a receiver reports marks. gap_ns: the shortest time between two CNPs of a queue pair. dscp: of CNPs."""

    gap_ns: int
    dscp: int


class Notifier:
    """The notification point of one queue pair: a CNP for the first mark, then at most one per gap.

    A mark within the gap after a CNP makes the next CNP due at the end of the gap (Zhu et al., "Congestion Control for
    Large-Scale RDMA Deployments", SIGCOMM 2015, section 3.1).
    """

    __slots__ = ("_gap", "_next", "deadline_ns", "due")

    def __init__(self, gap_ns: int) -> None:
        self._gap = gap_ns
        self._next = 0  # no CNP before this time
        self.due = False
        self.deadline_ns = FAR_NS

    def marked(self, now_ns: int) -> None:
        """A marked packet has arrived."""
        if self.due or self.deadline_ns != FAR_NS:
            return
        if now_ns >= self._next:
            self._become_due(now_ns)
        else:
            self.deadline_ns = self._next

    def expire(self, now_ns: int) -> None:
        """Make a delayed CNP due if its time has come."""
        if self.deadline_ns <= now_ns:
            self._become_due(now_ns)

    def sent(self) -> None:
        """The CNP that was due has left."""
        self.due = False

    def _become_due(self, now_ns: int) -> None:
        self.due, self.deadline_ns, self._next = True, FAR_NS, now_ns + self._gap


@dataclass(frozen=True, slots=True)
class NicFacts:
    """The emulated hardware: line rate in Mb/s, bytes of a full frame, the longest round trip in us."""

    line_mbps: float
    frame_bytes: int
    rtt_us: float

    @property
    def frame_us(self) -> float:
        """The time of a full frame at line rate."""
        return 8 * self.frame_bytes / self.line_mbps


@dataclass(frozen=True, slots=True)
class Profile:
    """A set of parameters. values: those that differ from the tunables. ecn_factor: for Kmin and Kmax of switches."""

    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    ecn_factor: int = 1


def _congestion_set(texts: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
    return settings_from("--cc-set", texts, float, "rpg_time_reset=100", wrong)


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """What users choose of every congestion control: values of its tunables. One with more choices has a subclass."""

    congestion_set: Annotated[tuple[tuple[str, float], ...], Declared(
        "parameter of the congestion control in hardware units; can be repeated", "Congestion", word="cc_set",
        value=SETTING, gathers=_congestion_set, writes=pairs,
    )] = ()  # fmt: skip

    def profile(self, on: NicFacts) -> Profile:
        """The set of parameters that these options choose."""
        return Profile()


class Congestion(Protocol):
    """One kind of congestion control with its parameters. Frozen: all queue pairs of a run have the same."""

    about: ClassVar[str]  # what it does, for the help of --cc
    tunables: ClassVar[tuple[Tunable, ...]]
    options: ClassVar[type[ControlOptions]]
    windowed: ClassVar[bool]  # measures the delay of each acknowledgement
    compiled: ClassVar[bool]  # the compiled loop has it

    @classmethod
    def of(cls, values: Mapping[str, float], k: int, frame_bytes: int) -> Self:
        """From a complete set of values in hardware units.

        k: rates are divided by it, times multiplied. frame_bytes: of a full packet.
        """

    @property
    def cnp(self) -> CnpRule:
        """The rule of receivers."""

    @property
    def coalesced(self) -> bool:
        """Whether all queue pairs of a NIC to one address share a `SendControl`."""

    def control(self, line_bps: float, rtt_ns: int) -> SendControl:
        """The control of one sending queue pair of a NIC with this rate. rtt_ns: its path's propagation, both ways."""


def steps_for(qps: int) -> int:
    """The largest number of steps of each of so many queue pairs."""
    return max(_LEAST_STEPS, min(_MOST_STEPS, _ALL_STEPS // max(1, qps)))


class RateRecord:
    """The sending rate of one queue pair over time, in bounded memory. most: largest number of steps, at least 2.

    A step says: from this time on, this rate. Steps that are closer than the resolution become one, which keeps the
    last rate. When there are too many steps, the resolution is halved.
    """

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
