"""NSCC, the window control of Ultra Ethernet's senders: marks and delay together choose one of four quadrants.

Source: uet-htsim, the simulator of the Ultra Ethernet Consortium (uec.cpp). The delay of a packet is what its round
trip has beyond that of an idle path. T is the target delay:

| | delay < T | delay >= T |
|---|---|---|
| not marked | proportional increase, by T - delay; fast increase after a window without delay | fair increase |
| marked | nothing: the packet's path is to be left | multiplicative decrease |

Decrease: window *= max(1 - gamma (avg - T) / avg, 1 - max_md), if the mean delay `avg` is above T, at most once per
round trip as in htsim. The text of the specification decreases for each acknowledgement.
Increases are gathered, and applied each `adjust` packets or round trip: window += gathered / window.
Quick adapt, each network_rtt + T: after a trimmed packet, a loss, or a delay of qa_threshold T, if less than the
largest window / qa_gate arrived in that time, the window becomes what arrived; answers to the packets that were then in
flight change nothing. A trimmed packet also takes its own bytes from the window.

With A = line rate x network_rtt / 150,000 bytes (100 Gb/s x 12 us) and packets as units, per window of answers:
proportional increase ai A (T - delay) / 12 us, fair increase fi A, fast increase fi_scale A; eta A each round trip.
Delay is counted from base_rtt, or from the least round trip of the queue pair if that is shorter. The largest window
and the periods follow network_rtt: without link.delay, an idle emulated path has a round trip of some packet times.
A base that is measured alone would be too large for a queue pair that began behind others, and give it more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from heddle.base.problems import InputError, Problem
from heddle.endpoints.congestion.ratecontrol import FAR_NS, CnpRule, ControlOptions, NicFacts, Profile
from heddle.traffic.tunables import Tunable
from heddle.wire.layout import DSCP_ANSWER

REFERENCE_BYTES: Final = 150_000
REFERENCE_US: Final = 12.0
LEAST_PACKETS: Final = 4  # of the target delay: a queue of fewer is noise of the sources
IDLE_FRAMES: Final = 6  # times of a full frame in the round trip of an idle network: each link takes one


def _base_us(on: NicFacts) -> float:
    """The reference's bandwidth-delay product at this line rate, and the propagation."""
    return 8 * REFERENCE_BYTES / on.line_mbps + on.rtt_us


@dataclass(frozen=True, slots=True)
class NsccOptions(ControlOptions):
    """Nothing of its own but what follows from the NIC: network_rtt, and the target for it."""

    def profile(self, on: NicFacts) -> Profile:
        given = dict(self.congestion_set)
        base = given.get("network_rtt") or _base_us(on)
        target = given.get("target") or base * (0.75 if on.trims else 1.0)
        least = LEAST_PACKETS * on.frame_us
        if target < least:
            name = "target" if given.get("target") else "network_rtt"
            why = f"gives a target delay of {target:.3g} us, below {LEAST_PACKETS} packet times, {least:.3g} us"
            hint = f"use --cc-set target={least:.2g} or more, or a smaller --set link.mtu"
            raise InputError(Problem("", f"--cc-set {name}={given.get(name, base):.10g}", why, hint))
        idle = on.rtt_us + IDLE_FRAMES * on.frame_us
        return Profile(values={"network_rtt": base, "base_rtt": idle, "target": target, "fast_delay": base / 12})


@dataclass(frozen=True, slots=True)
class NsccRule:
    """Parameters in emulated nanoseconds and in packets. frame_bits: of a full packet. unit_ns: 12 us, emulated."""

    network_ns: int
    base_ns: int
    target_ns: int
    fast_ns: int
    unit_ns: int
    frame_bits: int
    ai: float
    fi: float
    fi_scale: float
    eta: float
    gamma: float
    max_md: float
    ewma: float
    adjust: float
    qa_threshold: float
    qa_gate: float
    most: float
    least: float


class NsccControl:
    """The window of one queue pair, packets. avg_ns: the mean delay."""

    __slots__ = (
        "_achieved", "_adjusted_at", "_arrived", "_base", "_decreased_at", "_fast", "_fast_count", "_gathered",
        "_ignored", "_line", "_marked", "_most", "_qa_at", "_rtt", "_rule", "_scale", "_to_ignore", "_triggered",
        "avg_ns", "window",
    )  # fmt: skip

    deadline_ns: ClassVar[int] = FAR_NS

    def __init__(self, rule: NsccRule, line_bps: float) -> None:
        self._rule, self._line = rule, line_bps
        bdp_bits = line_bps * rule.network_ns / 1e9
        self._scale = bdp_bits / 8 / REFERENCE_BYTES
        self._most = max(rule.least, rule.most * bdp_bits / rule.frame_bits)
        self.window = self._most
        self._base = self._rtt = rule.base_ns  # the least round trip so far; the last one
        self.avg_ns = 0.0
        self._gathered = 0.0  # increases to apply, packets squared
        self._arrived = 0.0  # packets since they were applied
        self._fast, self._fast_count = False, 0.0
        self._adjusted_at = self._decreased_at = -FAR_NS
        self._achieved, self._qa_at, self._triggered = 0.0, 0, False  # of quick adapt: packets of its time, its end
        self._to_ignore = self._ignored = 0.0
        self._marked = False  # a CNP since the last acknowledgement

    @property
    def rate_bps(self) -> float:
        """A window per round trip, at most the line rate. For the record: no packet waits for it."""
        return min(self._line, self.window * self._rule.frame_bits * 1e9 / max(1, self._rtt))

    def sent(self, size: int, now_ns: int) -> None:
        """Sending changes nothing."""

    def expire(self, now_ns: int) -> None:
        """It has no timers: all its times are looked at when an answer arrives."""

    def notified(self, now_ns: int) -> None:
        """A CNP: where no SACK tells marks, the next acknowledgement counts as that of a marked packet."""
        self._marked = True

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        """An ACK, of a transport without SACKs."""
        marked, self._marked = self._marked, False
        self.answered(packets, delay_ns, marked, int(self.window), now_ns)

    def answered(self, packets: int, delay_ns: int | None, marked: bool, in_flight: int, now_ns: int) -> None:
        """Choose the quadrant. Without a delay of its own, an answer has the mean one."""
        rule = self._rule
        self._achieved += packets
        self._arrived += packets
        if self._ignored < self._to_ignore:
            self._ignored += packets
        delay = self.avg_ns
        if delay_ns is not None:
            self._rtt = max(1, delay_ns)
            self._base = min(self._base, self._rtt)
            delay = self._rtt - self._base
            self._average(delay, marked)
        if self._quick_adapt(False, marked, delay, in_flight, now_ns):
            return
        if marked:
            self._fast, self._fast_count = False, 0.0
            if delay >= rule.target_ns:
                self._decrease(now_ns)
        elif delay >= rule.target_ns:
            self._gathered += rule.fi * self._scale * packets
        elif not self._fast_increase(packets, delay):
            self._gathered += rule.ai * self._scale * packets * (rule.target_ns - delay) / rule.unit_ns
        self._bound()
        if self._arrived > rule.adjust or now_ns - self._adjusted_at > rule.network_ns:
            self._adjust(now_ns)

    def trimmed(self, last_hop: bool, in_flight: int, now_ns: int) -> None:
        """A trimmed packet: its queue was full. last_hop makes no difference, as there is no credit of receivers."""
        self._ignored += 1
        self._average(self._rule.network_ns, True)
        self._triggered = True
        if not self._quick_adapt(True, True, 0, in_flight, now_ns):
            self.window -= 1
        self._bound()

    def lost(self, timed_out: bool, now_ns: int) -> None:
        """A packet is lost: without it, the window is one smaller, and quick adapt looks at once."""
        self._triggered = True
        self.window -= 1
        self._bound()

    def _average(self, delay: float, marked: bool) -> None:
        """A high delay without a mark is that of a queue which is already served: it counts as little."""
        if not marked and delay > self._rule.target_ns:
            delay = self._rule.network_ns / 4
        self.avg_ns += self._rule.ewma * (delay - self.avg_ns)

    def _quick_adapt(self, is_loss: bool, skip: bool, delay: float, in_flight: float, now_ns: int) -> bool:
        """Whether it has acted, or answers are still to be ignored."""
        rule, done = self._rule, False
        if self._ignored < self._to_ignore and skip:
            done = True
        elif now_ns > self._qa_at:
            found = self._triggered or is_loss or delay > rule.qa_threshold * rule.target_ns
            if self._qa_at and found and self._achieved < self._most / rule.qa_gate:
                self.window = max(self._achieved, rule.least)
                self._to_ignore, self._ignored = in_flight, 0.0
                self._triggered, done = False, True
            self._achieved, self._qa_at = 0.0, now_ns + rule.network_ns + rule.target_ns
        if done:
            self._gathered = self._arrived = 0.0
        return done

    def _fast_increase(self, packets: int, delay: float) -> bool:
        if delay >= self._rule.fast_ns:
            self._fast, self._fast_count = False, 0.0
            return False
        self._fast_count += packets
        self._fast = self._fast or self._fast_count > self.window
        if self._fast:
            self.window += self._rule.fi_scale * self._scale * packets
        return self._fast

    def _decrease(self, now_ns: int) -> None:
        rule = self._rule
        if self.avg_ns > rule.target_ns and now_ns - self._decreased_at > rule.network_ns:
            factor = 1.0 - rule.gamma * (self.avg_ns - rule.target_ns) / self.avg_ns
            self.window *= max(factor, 1.0 - rule.max_md)
            self._decreased_at = now_ns

    def _adjust(self, now_ns: int) -> None:
        self.window += self._gathered / self.window
        if now_ns - self._adjusted_at >= self._rule.network_ns:
            self.window += self._rule.eta * self._scale
            self._adjusted_at = now_ns
        self._gathered = self._arrived = 0.0
        self._bound()

    def _bound(self) -> None:
        self.window = min(self._most, max(self._rule.least, self.window))


@dataclass(frozen=True, slots=True)
class Nscc:
    """NSCC with the parameters of one run."""

    rule: NsccRule
    cnp: CnpRule

    coalesced: ClassVar[bool] = False
    about: ClassVar[str] = "UEC"
    options: ClassVar[type[ControlOptions]] = NsccOptions
    windowed: ClassVar[bool] = True
    compiled: ClassVar[bool] = False
    selective: ClassVar[bool] = True
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("network_rtt", 12, 0.1, 10000, "us", "round trip for which windows are made", whole=False),
        Tunable("base_rtt", 6, 0, 10000, "us", "round trip of an idle path, at most: more is delay", whole=False),
        Tunable("target", 9, 0.1, 10000, "us", "target delay T of queues", whole=False),
        Tunable("fast_delay", 1, 0, 10000, "us", "a smaller delay counts as none", whole=False),
        Tunable("ai", 4, 0, 100, "packets", "proportional increase for a T - delay of 12 us", whole=False),
        Tunable("fi", 5, 0, 100, "packets", "fair increase", whole=False),
        Tunable("fi_scale", 0.25, 0, 10, "", "fast increase, per packet", whole=False),
        Tunable("eta", 0.15, 0, 100, "packets", "increase of each round trip", whole=False),
        Tunable("gamma", 0.8, 0, 1, "", "multiplicative decrease", whole=False),
        Tunable("max_md", 0.5, 0.01, 0.99, "", "largest decrease in one step", whole=False),
        Tunable("ewma", 0.0125, 0.0001, 1, "", "weight of a sample in the mean delay", whole=False),
        Tunable("adjust", 8, 1, 4096, "packets", "acknowledged before increases are applied"),
        Tunable("qa_threshold", 4, 0, 1000, "", "delay, in T, for quick adapt", whole=False),
        Tunable("qa_gate", 8, 1, 4096, "", "quick adapt acts below the largest window / qa_gate"),
        Tunable("max_window", 1.5, 0.1, 100, "", "largest window, in line rate x network_rtt", whole=False),
        Tunable("min_window", 1, 1, 4096, "packets", "smallest window", whole=False),
        Tunable("min_time_between_cnps", 0, 0, 4095, "us", "shortest time between two CNPs; srd sends SACKs instead"),
        Tunable("cnp_dscp", DSCP_ANSWER, 0, 63, "", "DSCP of CNPs"),
    )

    @classmethod
    def of(cls, values: Mapping[str, float], k: int, frame_bytes: int) -> Self:
        """Hardware units scaled by k."""

        def time(us: float) -> int:
            return round(us * 1e3 * k)

        v = values
        network, base, target, fast = (time(v[name]) for name in ("network_rtt", "base_rtt", "target", "fast_delay"))
        rule = NsccRule(
            network, base, target, fast, time(REFERENCE_US), 8 * frame_bytes, v["ai"], v["fi"], v["fi_scale"], v["eta"],
            v["gamma"], v["max_md"], v["ewma"], v["adjust"], v["qa_threshold"], v["qa_gate"], v["max_window"],
            v["min_window"],
        )  # fmt: skip
        return cls(rule, CnpRule(time(v["min_time_between_cnps"]), int(v["cnp_dscp"])))

    def control(self, line_bps: float, rtt_ns: int) -> NsccControl:
        """The window of one queue pair."""
        return NsccControl(self.rule, line_bps)
