"""The interface of congestion control: how fast one queue pair may send, how a receiver reports marks, and their ends.

Controllers are pure: in are events with their times, out are a rate, a window and the time of the next timer. Times are
integer nanoseconds of one monotonic clock that never goes back, rates are bit/s of frame bytes.

A controller is one file in this directory and one line of CONTROLLERS (controlled.py). What users choose of it is in
its `options`, a ControlOptions.

PacedSender and NotifyingReceiver apply it to the ends of any transport: the sender waits between packets, the receiver
sends CNPs. They pass everything else on to the end that they control. So a transport needs no line of code for
congestion control, and a run without it has no extra work.

Pacing: a shaper has one rate, and the turns of its queue pairs: of one, or of all to one address. A frame of n bytes
moves the next turn by 8 n / rate. A queue pair takes a turn when it has a frame, so none is kept for an idle one.
Timers of the NIC are as late as epoll's (1 ms) and the time between two passes (1 ms); frames that became due in that
time leave together. At the line rate there is no pacing, since the port sets the pace. Timers of the transport stop
while its packets wait, as while the port is paused: the packet that asks for an acknowledgement may be one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Protocol, Self, runtime_checkable

from heddle.base.declared import Declared, Wrong
from heddle.endpoints.nic.frames import Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, QpEnd, QpInfo, WrappedEnd
from heddle.traffic.tunables import SETTING, Tunable, pairs, settings_from
from heddle.wire import layout as wire
from heddle.wire.sack import TRIMMED_LAST, Nack, Sack

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


@runtime_checkable
class SelectiveControl(SendControl, Protocol):
    """A control that learns from single packets, where the transport answers them by SACK and NACK.

    It does not let requested packets pass its window, but for those that a timeout or a NAK has declared lost.
    """

    def answered(self, packets: int, delay_ns: int | None, marked: bool, in_flight: int, now_ns: int) -> None:
        """A SACK has arrived, of a packet that was marked or not, which acknowledges so many packets.

        in_flight: packets that are not acknowledged, and will not be retransmitted.
        """

    def trimmed(self, last_hop: bool, in_flight: int, now_ns: int) -> None:
        """A NACK has arrived: a switch has trimmed a packet."""


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
    """The emulated hardware: line rate in Mb/s, bytes of a full frame, the longest round trip in us.

    trims: switches trim its packets.
    """

    line_mbps: float
    frame_bytes: int
    rtt_us: float
    trims: bool = False

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


_PER_S: Final = 1_000_000_000
LATE_NS: Final = 500  # added to deadlines: seconds as floats must not be rounded to an earlier nanosecond
CATCH_UP_NS: Final = 2_000_000  # how long after its time a frame still does not delay the next one


def to_ns(seconds: float) -> int:
    """Nanoseconds of a time in seconds."""
    return round(seconds * _PER_S)


def to_seconds(ns: int) -> float:
    """A deadline in seconds that is not before `ns`."""
    return NEVER if ns >= FAR_NS else (ns + LATE_NS) / _PER_S


class SendTimes:
    """When the unacknowledged packets of a sender left, by PSN: for the delays of their acknowledgements.

    An acknowledgement of packets of which one was sent more than once gives no delay: it is not known which copy it
    answers (Karn and Partridge, SIGCOMM 1987), and the others may have waited at the receiver for that one.
    """

    __slots__ = ("_beyond", "_sent")

    def __init__(self, first: int) -> None:
        self._sent: dict[int, int | None] = {}  # PSN -> when it was sent, None when not for the first time
        self._beyond = first  # one past the highest PSN sent

    def add(self, psn: int, now_ns: int) -> None:
        """A packet leaves."""
        fresh = wire.psn_after(psn, self._beyond) >= 0
        self._sent[psn] = now_ns if fresh else None
        if fresh:
            self._beyond = (psn + 1) & wire.PSN_MASK

    def acknowledge(self, psn: int, now_ns: int) -> tuple[int, int | None]:
        """Remove all packets up to `psn`; return their number, and the delay of the newest in ns if it is known."""
        done = [each for each in self._sent if wire.psn_after(psn, each) >= 0]
        once = [at for each in done if (at := self._sent.pop(each)) is not None]
        return len(done), now_ns - once[-1] if once and len(once) == len(done) else None

    def select(self, sack: Sack, now_ns: int) -> tuple[int, int | None]:
        """Remove all packets that a SACK reports; return their number, and the delay of the one that it answers."""
        at = self._sent.get(sack.cack + sack.ack & wire.PSN_MASK)
        packets, _ = self.acknowledge(sack.cack, now_ns)
        for offset in sack.psns():
            packets += self._sent.pop(sack.cack + offset & wire.PSN_MASK, 0) != 0
        return packets, None if at is None else now_ns - at


class Shaper:
    """A rate and the queue pairs that share it. frame_bits: of a full frame. steps: of the record of the rate.

    Turns are numbers of bits: a turn begins when the frames of all earlier turns have left at the rate. Only the last
    one that left has a time, so turns that wait follow every change of the rate.
    """

    __slots__ = ("_done", "_frame_bits", "_line", "_record", "_start", "_tail", "control", "users")

    def __init__(self, control: SendControl, line_bps: float, frame_bits: int, steps: int) -> None:
        self.control, self._line, self._frame_bits = control, line_bps, frame_bits
        self.users = 0
        self._start, self._done = -FAR_NS, 0  # time and turn of the frame that left last
        self._tail = 0  # the next free turn
        self._record = RateRecord(steps)

    @property
    def paced(self) -> bool:
        """Whether packets leave one by one: at the line rate the port sets the pace, and else a window from 1 on."""
        return self.control.rate_bps < self._line and not 1 <= self.control.window < math.inf

    def take_turn(self) -> int:
        """The next free turn, for a full frame."""
        self._tail += self._frame_bits
        return self._tail - self._frame_bits

    def time_of(self, turn: int) -> int:
        """When a turn begins at the rate that holds now."""
        return self._start + int((turn - self._done) * _PER_S / self.control.rate_bps)

    def left(self, turn: int, at: int, bits: int, now_ns: int) -> None:
        """The frame of a turn that was due `at` has left; it had so many bits."""
        self._tail += bits - self._frame_bits
        if turn >= self._done:
            self._done, self._start = turn, max(at, now_ns - CATCH_UP_NS)

    def record(self, now_ns: int) -> None:
        """The rate may have changed."""
        self._record.add(now_ns, self.control.rate_bps)

    def rates(self) -> RateSteps:
        """The share of one queue pair over time; below the line rate all have the same."""
        return tuple((at, rate if rate >= self._line else rate / self.users) for at, rate in self._record.steps())


class PacedSender(WrappedEnd):
    """A sending end whose packets leave at the rate of its shaper and within the window of its congestion control."""

    __slots__ = (
        "_at", "_cnps", "_control", "_due", "_psn_at", "_selective", "_shaper", "_since", "_times", "_turn", "_urgent",
        "_waits",
    )  # fmt: skip

    def __init__(self, end: QpEnd, shaper: Shaper, qp: QpInfo) -> None:
        super().__init__(end)
        self._shaper, self._control = shaper, shaper.control
        shaper.users += 1
        self._times = SendTimes(qp.psn) if self._control.window != math.inf else None
        self._psn_at = qp.flow.layout.psn_word_at
        self._selective = self._control if isinstance(self._control, SelectiveControl) else None
        self._urgent = 0  # requested packets that may pass the window of a selective control
        self._cnps = 0
        self._turn = -1  # its turn at the shaper; -1: none
        self._waits = False  # for the time of its turn
        self._since = 0  # when it began to wait
        self._at = self._due = -FAR_NS  # when its turn begins; when to look again

    @property
    def ready(self) -> bool:
        return not self._waits and self._sendable

    @property
    def deadline(self) -> float:
        return to_seconds(self._due) if self._waits else self._end.deadline

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        now_ns, control, taken = to_ns(now), self._control, 0
        while taken < limit and self.ready:
            control.expire(now_ns)
            most = min(limit - taken, int(min(limit, self._room)))
            paced = self._shaper.paced
            if paced and not self._has_turn(now_ns):
                break
            count = self._end.take(batch, slot + taken, 1 if paced else most, now)
            if not count:
                break
            self._left(batch, slot + taken, count, now_ns)
            taken += count
        return taken

    def _has_turn(self, now_ns: int) -> bool:
        """Take a turn if it has none; whether it has begun."""
        if self._turn < 0:
            self._turn = self._shaper.take_turn()
        self._schedule(now_ns)
        return not self._waits

    def _left(self, batch: SendBatch, slot: int, count: int, now_ns: int) -> None:
        """Account for the frames in these slots."""
        size, shaper = int(batch.lengths[slot : slot + count].sum()), self._shaper
        self._urgent = max(0, self._urgent - count)  # they go first
        if self._times is not None:
            for each in range(slot, slot + count):
                word = wire.WORD.unpack_from(batch.mem, batch.starts[each] + self._psn_at)[0]
                self._times.add(word & wire.PSN_MASK, now_ns)
        self._control.sent(size, now_ns)
        if self._turn >= 0:
            shaper.left(self._turn, self._at, 8 * size, now_ns)
            self._turn = -1
            if shaper.paced and self._sendable:
                self._has_turn(now_ns)
        shaper.record(now_ns)

    def _schedule(self, now_ns: int) -> None:
        """Compute the time of its turn from the rate that holds now."""
        if not self._shaper.paced:
            self._turn = -1
        waits = False
        if self._turn >= 0:
            self._at = self._shaper.time_of(self._turn)
            self._due = min(self._at, self._control.deadline_ns)
            waits = self._at > now_ns
        if waits and not self._waits:
            self._since = now_ns
        elif self._waits and not waits:
            self._end.hold((now_ns - self._since) / _PER_S)
        self._waits = waits

    @property
    def _sendable(self) -> bool:
        return self._room >= 1 and self._end.ready

    @property
    def _room(self) -> float:
        if self._times is None:
            return math.inf
        requested = self._end.requested
        if self._selective is not None:
            requested = min(requested, self._urgent)
        return max(max(1, int(self._control.window)) - self._end.in_flight, requested)

    def receive(self, got: Received, index: int, now: float) -> bool:
        opcode, now_ns = got.kinds[index].opcode, to_ns(now)
        if opcode == wire.CNP:
            self._cnps += 1
            self._control.notified(now_ns)
            self._changed(now_ns)
            return True
        taken = self._end.receive(got, index, now)
        if self._times is not None and taken and opcode in (wire.SACK, wire.NACK):
            self._single(got, index, now_ns)
            self._changed(now_ns)
        elif self._times is not None and opcode == wire.ACK and taken:
            syndrome, _ = got.aeth(index)
            if syndrome == wire.NAK_SEQUENCE:
                self._urgent += 1
                self._control.lost(False, now_ns)
            elif not syndrome & wire.SYNDROME_KIND:
                packets, delay_ns = self._times.acknowledge(got.psns[index], now_ns)
                if packets:
                    self._control.acknowledged(packets, delay_ns, now_ns)
            self._changed(now_ns)
        return taken

    def _single(self, got: Received, index: int, now_ns: int) -> None:
        """The answer to a single packet: a control that has no ear for it takes it for an ACK, or for a NAK."""
        assert self._times is not None  # noqa: S101
        control, selective, answer = self._control, self._selective, got.extension(index)
        if got.kinds[index].opcode == wire.SACK:
            sack = Sack.unpack(answer)
            packets, delay_ns = self._times.select(sack, now_ns)
            if packets and selective is not None:
                selective.answered(packets, delay_ns, sack.marked, self._end.in_flight, now_ns)
            elif packets:
                control.acknowledged(packets, delay_ns, now_ns)
        elif selective is not None:
            selective.trimmed(Nack.unpack(answer).reason == TRIMMED_LAST, self._end.in_flight, now_ns)
        else:
            control.lost(False, now_ns)

    def _changed(self, now_ns: int) -> None:
        """The rate may have changed."""
        if self._waits:
            self._schedule(now_ns)
        self._shaper.record(now_ns)

    def expire(self, now: float) -> None:
        """Apply timers of the end and of the control, and find out whether it is time for the next packet."""
        now_ns = to_ns(now)
        if not self._waits and self._end.deadline <= now:
            before = self._end.in_flight
            self._end.expire(now)
            if self._end.in_flight < before:  # it was the timer of an answer
                self._urgent = self._end.requested
                self._control.lost(True, now_ns)
        self._control.expire(now_ns)
        self._changed(now_ns)

    def counters(self) -> Mapping[str, int]:
        return {**self._end.counters(), "cnps_received": self._cnps}

    def rates(self) -> RateSteps:
        """Its share of the shaper's rate over time."""
        return self._shaper.rates()


class NotifyingReceiver(WrappedEnd):
    """A receiving end that answers marked packets with CNPs. silent: it sends none, as its SACKs report marks."""

    __slots__ = ("_cnps", "_flow", "_notifier", "_silent")

    def __init__(self, end: QpEnd, rule: CnpRule, qp: QpInfo, silent: bool = False) -> None:
        super().__init__(end)
        self._silent = silent
        self._notifier = Notifier(rule.gap_ns)
        self._flow = qp.flow.with_dscp(rule.dscp)
        self._cnps = 0

    @property
    def answering(self) -> bool:
        return self._notifier.due or self._end.answering

    @property
    def deadline(self) -> float:
        return min(self._end.deadline, to_seconds(self._notifier.deadline_ns))

    def answer(self, batch: SendBatch, slot: int) -> None:
        if not self._notifier.due:
            self._end.answer(batch, slot)
            return
        batch.put_cnp(slot, self._flow)
        self._notifier.sent()
        self._cnps += 1

    def receive(self, got: Received, index: int, now: float) -> bool:
        taken = self._end.receive(got, index, now)
        if taken and got.kinds[index].ce and not self._silent:
            self._notifier.marked(to_ns(now))
        return taken

    def expire(self, now: float) -> None:
        super().expire(now)
        self._notifier.expire(to_ns(now))

    def counters(self) -> Mapping[str, int]:
        return {**self._end.counters(), "cnps_sent": self._cnps}
