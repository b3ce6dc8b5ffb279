"""Swift: a window that follows a target delay, and CNPs.

Algorithm: Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020,
algorithm 1 and section 3.5 (target delay with flow scaling). For an acknowledgement of n packets with delay d:

    d < target:  window += ai n / window   (window >= 1), or += ai n  (window < 1)
    else:        window *= max(1 - beta (d - target) / d, 1 - max_mdf)   at most once per round trip
    target = base_target + max(0, min(a / sqrt(window) + b, fs_range)) + propagation of the QP's path,
             a = fs_range / (1 / sqrt(fs_min_cwnd) - 1 / sqrt(fs_max_cwnd)),  b = -a / sqrt(fs_max_cwnd)

For a loss, which a NAK or a timeout shows, the window is multiplied by 1 - max_mdf, at most once per round trip; after
retx_reset_threshold timeouts without an acknowledgement between them it is min_cwnd.
A window below one packet is a rate: one packet per delay / window. A larger window is not paced. The delay is that from
sending a packet to its acknowledgement. It includes the time that the receiver delays an acknowledgement.
CNPs are not part of the paper: a CNP counts as a delay of twice the target, so it multiplies the window by
max(1 - beta / 2, 1 - max_mdf), at most once per round trip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Final, Self

from heddle.endpoints.congestion.ratecontrol import FAR_NS, CnpRule, ControlOptions
from heddle.traffic.tunables import Tunable
from heddle.wire.layout import DSCP_ANSWER

_NS_PER_US: Final = 1000
_CEILING: Final = 4096.0  # packets


@dataclass(frozen=True, slots=True)
class SwiftRule:
    """Parameters in emulated nanoseconds and packets. frame_bits: of a full packet on the wire."""

    base_ns: int
    fs_ns: int
    fs_min: float
    fs_max: float
    ai: float
    beta: float
    max_mdf: float
    least: float
    resets: int
    frame_bits: int

    def target_ns(self, window: float) -> float:
        """The target delay with this window, without propagation."""
        a = self.fs_ns / (1 / sqrt(self.fs_min) - 1 / sqrt(self.fs_max))
        return self.base_ns + max(0.0, min(a / sqrt(window) - a / sqrt(self.fs_max), float(self.fs_ns)))


class SwiftControl:
    """The window of one queue pair, packets: from rule.least to 4,096. rtt_ns: propagation of its path, both ways."""

    __slots__ = ("_decreased_at", "_delay", "_line", "_rtt", "_rule", "_timeouts", "window")

    deadline_ns: ClassVar[int] = FAR_NS

    def __init__(self, rule: SwiftRule, line_bps: float, rtt_ns: int) -> None:
        self._rule, self._line, self._rtt = rule, line_bps, rtt_ns
        self._delay = rule.base_ns + rtt_ns  # the last sample; before the first one, the target
        # What the line carries within the target delay.
        self.window = min(_CEILING, max(1.0, line_bps * self._delay / 1e9 / rule.frame_bits))
        self._decreased_at = -FAR_NS
        self._timeouts = 0  # since the last acknowledgement

    @property
    def rate_bps(self) -> float:
        """A window per delay, at most the line rate; the line rate before the first decrease, which limits nothing."""
        if self._decreased_at == -FAR_NS:
            return self._line
        return min(self._line, self.window * self._rule.frame_bits * 1e9 / max(1, self._delay))

    def sent(self, size: int, now_ns: int) -> None:
        """Sending changes nothing."""

    def notified(self, now_ns: int) -> None:
        """Decrease the window as for twice the target delay."""
        self._decrease(1.0 - self._rule.beta / 2, now_ns)

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        """Increase the window below the target delay, decrease it above."""
        rule, self._timeouts = self._rule, 0
        if delay_ns is None or packets < 1:
            return
        self._delay = max(1, delay_ns)
        target = rule.target_ns(self.window) + self._rtt
        if self._delay < target:
            step = rule.ai * packets
            self.window = min(_CEILING, self.window + (step / self.window if self.window >= 1 else step))
        else:
            self._decrease(1.0 - rule.beta * (self._delay - target) / self._delay, now_ns)

    def lost(self, timed_out: bool, now_ns: int) -> None:
        """Decrease the window; after several timeouts in a row, to the smallest one."""
        self._timeouts = self._timeouts + 1 if timed_out else 0
        if self._timeouts >= self._rule.resets:
            self.window, self._decreased_at = self._rule.least, now_ns
        else:
            self._decrease(0.0, now_ns)

    def expire(self, now_ns: int) -> None:
        """It has no timers."""

    def _decrease(self, factor: float, now_ns: int) -> None:
        if now_ns - self._decreased_at < self._delay:
            return
        self._decreased_at = now_ns
        self.window = max(self._rule.least, self.window * max(factor, 1.0 - self._rule.max_mdf))


@dataclass(frozen=True, slots=True)
class Swift:
    """Swift with the parameters of one run."""

    rule: SwiftRule
    cnp: CnpRule

    coalesced: ClassVar[bool] = False
    about: ClassVar[str] = "a window that follows delay and CNPs"
    options: ClassVar[type[ControlOptions]] = ControlOptions
    windowed: ClassVar[bool] = True
    compiled: ClassVar[bool] = False
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("base_target", 4, 0.1, 10000, "us", "target delay of a large window, without propagation", whole=False),
        Tunable("fs_range", 4, 0, 10000, "us", "what small windows add to the target at most", whole=False),
        Tunable("fs_min_cwnd", 0.1, 0.001, 1, "packets", "window with the largest target", whole=False),
        Tunable("fs_max_cwnd", 100, 2, 4096, "packets", "window with the smallest target", whole=False),
        Tunable("ai", 1, 0.001, 100, "packets", "additive increase per delay", whole=False),
        Tunable("beta", 0.8, 0.01, 1, "", "multiplicative decrease", whole=False),
        Tunable("max_mdf", 0.5, 0.01, 0.99, "", "largest decrease in one step, and that after a loss", whole=False),
        Tunable("min_cwnd", 0.01, 0.001, 1, "packets", "smallest window", whole=False),
        Tunable("retx_reset_threshold", 5, 1, 255, "", "timeouts in a row that set the smallest window"),
        Tunable("min_time_between_cnps", 4, 0, 4095, "us", "shortest time between two CNPs of a queue pair"),
        Tunable("cnp_dscp", DSCP_ANSWER, 0, 63, "", "DSCP of CNPs"),
    )

    @classmethod
    def of(cls, values: Mapping[str, float], k: int, frame_bytes: int) -> Self:
        """Hardware units scaled by k."""

        def time(name: str) -> int:
            return round(values[name] * _NS_PER_US * k)

        rule = SwiftRule(
            time("base_target"), time("fs_range"), values["fs_min_cwnd"], values["fs_max_cwnd"], values["ai"],
            values["beta"], values["max_mdf"], values["min_cwnd"], int(values["retx_reset_threshold"]), 8 * frame_bytes,
        )  # fmt: skip
        return cls(rule, CnpRule(time("min_time_between_cnps"), int(values["cnp_dscp"])))

    def control(self, line_bps: float, rtt_ns: int) -> SwiftControl:
        """The window of one queue pair. Its target has the propagation of its own path (section 3.5)."""
        return SwiftControl(self.rule, line_bps, rtt_ns)
