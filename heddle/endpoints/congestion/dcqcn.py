"""DCQCN: the sender reduces its rate for CNPs, and increases it again by a timer and a byte counter.

Algorithm: Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3; the form of
NVIDIA's adapters: their "DCQCN CC Parameters", whose names are used here. docs/cc-parameters.md has the source of
each range, default and unit.

G = dce_tcp_g / 1024, shift = rpg_gd - 10.

| event | effect |
|---|---|
| first CNP | alpha = initial_alpha_value / 1024, timers start, the rate is cut |
| every dce_tcp_rtt | alpha = G alpha + (1 - G) if a CNP has arrived since the last time, else G alpha |
| CNP | a cut, but at most one per rate_reduce_monitor_period |
| a cut | target = rate; rate = rate x max(1 - alpha / 2^shift, rpg_min_dec_fac %) |
| rpg_time_reset after a cut, and again after it | an increase: a timer event |
| rpg_byte_reset bytes after a cut, and again after it | an increase: a byte event |

With init_cr the rate and the target begin with that value, and the timer with the first packet: the time before the
first cut counts as the time after one. Without it a queue pair sends at line rate until the first CNP.

An increase adds to the target, and then sets rate = (rate + target) / 2. T and B are the numbers of timer and byte
events since the cut, including this one, F is rpg_threshold: up to max(T, B) = F nothing is added (fast recovery), then
rpg_ai_rate (additive), from min(T, B) > F on rpg_hai_rate (hyper increase).

Profiles are complete sets of parameters, from what a NIC and its operator know before a run: never the number of
senders. `default` is ours, for transfers of some hundred microseconds of the hardware: an emulated fabric carries these
in some seconds. docs/cc-parameters.md has the reason for each value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal, Self

from heddle.base.declared import Declared
from heddle.endpoints.congestion.ratecontrol import FAR_NS, CnpRule, ControlOptions, NicFacts, Profile
from heddle.traffic.tunables import Tunable
from heddle.wire.layout import DSCP_ANSWER

CongestionProfile = Literal["default", "nvidia", "meta"]
_BYTE_UNIT: Final = 64  # of rpg_byte_reset, inferred: the largest value and default, 15 bits, is then 2 MB


def _default(on: NicFacts) -> dict[str, float]:
    line = on.line_mbps
    return {
        "roce_cc_shaper_coalesce": 1,
        "init_cr": _rate(line / 12),
        "init_growth": 10,
        "rpg_time_reset": max(1, round(48 * on.frame_us + on.rtt_us)),
        "rpg_byte_reset": max(1, round(8 * on.frame_bytes / _BYTE_UNIT)),
        "rpg_threshold": 8,
        "rpg_hai_rate": _rate(line / 300),
        "rpg_ai_rate": _rate(line / 20_000),
        "rpg_gd": 10,
        "rpg_min_dec_fac": 80,
        "rate_reduce_monitor_period": max(1, round(1 + on.rtt_us)),
        "min_time_between_cnps": 2,
        "clamp_tgt_rate_after_time_inc": 0,
        "rpg_min_rate": _rate(line / 200),
    }


def _rate(mbps: float) -> int:
    """Parameters are whole numbers of Mb/s, at least 1."""
    return max(1, round(mbps))


PROFILES: Final[Mapping[CongestionProfile, Callable[[NicFacts], Profile]]] = {
    "default": lambda on: Profile("default", _default(on)),
    "nvidia": lambda on: Profile("nvidia"),
    "meta": lambda on: Profile("meta", ecn_factor=2),  # the difference is in the switches
}


@dataclass(frozen=True, slots=True)
class DcqcnOptions(ControlOptions):
    """What users choose of DCQCN alone."""

    congestion_profile: Annotated[CongestionProfile, Declared(
        "parameters of DCQCN: default (settles in short runs), nvidia, or meta (with doubled ECN thresholds)",
        "Congestion", word="cc_profile", unlike="is not a profile of dcqcn",
    )] = "default"  # fmt: skip

    def profile(self, on: NicFacts) -> Profile:
        return PROFILES[self.congestion_profile](on)


_FRACTION: Final = 1024  # fixed-point numbers have 10 bits of fraction
_US: Final = 1000
_MBPS: Final = 1e6
_LONG_US: Final = (1 << 32) - 1
DEST_IP: Final = 1  # values of roce_cc_shaper_coalesce, as in NVIDIA's tools
SOURCE_QP: Final = 2


@dataclass(frozen=True, slots=True)
class DcqcnRule:
    """Parameters as the state machine uses them: emulated nanoseconds and bit/s.

    keep: G. cut_divisor: alpha is divided by it before it cuts the rate. least_factor: of one cut.
    start_bps, first_bps, byte_reset: 0 for none. growth: factor of a timer event before the first CNP.
    coalesce: queue pairs to one address share a reaction point.
    """

    keep: float
    alpha_ns: int
    first_alpha: float
    first_bps: float
    least_factor: float
    min_bps: float
    cut_divisor: float
    cut_ns: int
    clamp: bool
    clamp_after_time: bool
    time_ns: int
    byte_reset: int
    threshold: int
    ai_bps: float
    hai_bps: float
    start_bps: float = 0.0
    growth: float = 1.0
    coalesce: bool = False


def power(base: float, exponent: int) -> float:
    """base^exponent by squaring: the same rounding in every language. exponent >= 0."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


class DcqcnControl:
    """A reaction point: of one queue pair, or of all to one address. alpha, target_bps: its state, for tests."""

    __slots__ = (
        "_alpha_at",
        "_byte_events",
        "_bytes",
        "_cut_at",
        "_last_cut",
        "_line",
        "_rule",
        "_seen",
        "_time_at",
        "_time_events",
        "alpha",
        "rate_bps",
        "target_bps",
    )  # fmt: skip

    window: ClassVar[float] = math.inf

    def __init__(self, rule: DcqcnRule, line_bps: float) -> None:
        self._rule, self._line = rule, line_bps
        self.rate_bps = self.target_bps = min(line_bps, rule.start_bps or line_bps)
        self.alpha = 0.0
        self._seen = False  # a CNP since alpha was last updated
        self._alpha_at = FAR_NS  # when alpha is updated next; FAR_NS before the first CNP
        self._cut_at = FAR_NS  # when the rate is cut for a CNP that has arrived
        self._last_cut = -FAR_NS
        self._time_at = FAR_NS  # the next event of the increase timer
        self._bytes = self._byte_events = self._time_events = 0

    @property
    def deadline_ns(self) -> int:
        """The next cut, or the next event of the timer if it can increase the rate."""
        timer = self._time_at if self.rate_bps < self._line else FAR_NS
        return min(timer, self._cut_at)

    def notified(self, now_ns: int) -> None:
        """Count a CNP; cut the rate now, or as soon as the last cut is long enough ago."""
        self.expire(now_ns)
        if self._alpha_at == FAR_NS:
            self.alpha = self._rule.first_alpha
            self._alpha_at = now_ns + self._rule.alpha_ns
            if self._rule.first_bps:
                self.rate_bps = self.target_bps = min(self._line, self._rule.first_bps)
        else:
            self._seen = True
        if self._cut_at == FAR_NS:
            self._cut_at = max(now_ns, self._last_cut + self._rule.cut_ns)
            self.expire(now_ns)

    def sent(self, size: int, now_ns: int) -> None:
        """Count bytes: every `byte_reset` of them since the last cut are an increase."""
        self.expire(now_ns)
        if self._time_at == FAR_NS and self.rate_bps < self._line:  # the first packet
            self._time_at = now_ns + self._rule.time_ns
        if self._time_at == FAR_NS or not self._rule.byte_reset:
            return
        self._bytes += size
        while self._bytes >= self._rule.byte_reset:
            self._bytes -= self._rule.byte_reset
            self._byte_events += 1
            self._increase()

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        """Acknowledgements say nothing about marks."""

    def lost(self, timed_out: bool, now_ns: int) -> None:
        """Losses change nothing: only CNPs reduce the rate."""

    def expire(self, now_ns: int) -> None:
        """Apply alpha updates, cuts and timer events up to now, in order of time, in this order at equal times."""
        rule = self._rule
        while (at := min(self._alpha_at, self._cut_at, self._time_at)) <= now_ns:
            if at == self._alpha_at and self._seen:
                self.alpha = rule.keep * self.alpha + (1.0 - rule.keep)
                self._seen = False
                self._alpha_at += rule.alpha_ns
            elif at == self._alpha_at:
                updates = (min(now_ns, self._cut_at, self._time_at) - at) // rule.alpha_ns + 1
                self.alpha *= power(rule.keep, updates)
                self._alpha_at += updates * rule.alpha_ns
            elif at == self._cut_at:
                self._cut(at)
            else:
                self._time_events += 1
                self._time_at += rule.time_ns
                if self._alpha_at == FAR_NS and rule.growth > 1.0:
                    self.rate_bps = self.target_bps = min(self._line, self.rate_bps * rule.growth)
                else:
                    self._increase()

    def _cut(self, at: int) -> None:
        rule = self._rule
        first = self._time_at == FAR_NS
        increased = self._byte_events > 0 or (self._time_events > 0 and rule.clamp_after_time)
        if first or rule.clamp or increased:
            self.target_bps = self.rate_bps
        factor = max(1.0 - self.alpha / rule.cut_divisor, rule.least_factor)
        self.rate_bps = max(rule.min_bps, self.rate_bps * factor)
        self._bytes = self._byte_events = self._time_events = 0
        self._cut_at, self._last_cut, self._time_at = FAR_NS, at, at + rule.time_ns

    def _increase(self) -> None:
        rule = self._rule
        # Without a byte counter, the timer counts for both: one additive step, then hyper increase.
        bytes_ = self._byte_events if rule.byte_reset else self._time_events - 1
        if min(self._time_events, bytes_) > rule.threshold:
            self.target_bps += rule.hai_bps
        elif max(self._time_events, bytes_) > rule.threshold:
            self.target_bps += rule.ai_bps
        self.target_bps = min(self._line, self.target_bps)
        # Half of a tiny difference may round to nothing: then the target is reached.
        rate = (self.rate_bps + self.target_bps) / 2
        self.rate_bps = self.target_bps if self.target_bps - rate < 1.0 else rate


@dataclass(frozen=True, slots=True)
class Dcqcn:
    """DCQCN with the parameters of one run."""

    rule: DcqcnRule
    cnp: CnpRule

    about: ClassVar[str] = "receivers report marks by CNPs, senders slow down"
    options: ClassVar[type[ControlOptions]] = DcqcnOptions
    windowed: ClassVar[bool] = False
    compiled: ClassVar[bool] = True
    tunables: ClassVar[tuple[Tunable, ...]] = (
        Tunable("dce_tcp_g", 1019, 0, 1023, "", "weight of the old alpha in each update, in 1/1024"),
        Tunable("dce_tcp_rtt", 1, 1, 131071, "us", "time between updates of alpha"),
        Tunable("initial_alpha_value", 1023, 1, 1023, "", "alpha at the first CNP, in 1/1024"),
        Tunable("init_cr", 0, 0, 0, "Mb/s", "rate of the first packets; 0: the line rate", line=True),
        Tunable("init_growth", 0, 0, 100, "%", "growth of the rate at each timer event before the first CNP"),
        Tunable("roce_cc_shaper_coalesce", SOURCE_QP, DEST_IP, SOURCE_QP, "", "one rate per destination (1) or QP (2)"),
        Tunable("rate_to_set_on_first_cnp", 0, 0, 0, "Mb/s", "rate at the first CNP; 0: the line rate", line=True),
        Tunable("rpg_min_dec_fac", 50, 0, 100, "%", "least share of the rate that one cut leaves"),
        Tunable("rpg_min_rate", 1, 1, 0, "Mb/s", "lowest rate of a queue pair", line=True),
        Tunable("rpg_gd", 11, 10, 11, "", "a cut is alpha / 2^(rpg_gd - 10)"),
        Tunable("rate_reduce_monitor_period", 4, 1, _LONG_US, "us", "shortest time between two cuts"),
        Tunable("clamp_tgt_rate", 0, 0, 1, "", "if 1, every cut sets the target to the rate"),
        Tunable("clamp_tgt_rate_after_time_inc", 1, 0, 1, "", "if 1, so does every cut after a timer event"),
        Tunable("rpg_time_reset", 300, 1, 131071, "us", "time between timer events"),
        Tunable("rpg_byte_reset", 32767, 0, 32767, "x 64 bytes", "bytes between byte events; 0: no byte counter"),
        Tunable("rpg_threshold", 1, 1, 31, "", "events of fast recovery before the target increases"),
        Tunable("rpg_ai_rate", 5, 1, 0, "Mb/s", "additive increase of the target", line=True),
        Tunable("rpg_hai_rate", 50, 1, 0, "Mb/s", "hyper increase of the target", line=True),
        Tunable("min_time_between_cnps", 4, 0, 4095, "us", "shortest time between two CNPs of a queue pair"),
        Tunable("cnp_dscp", DSCP_ANSWER, 0, 63, "", "DSCP of CNPs"),
    )

    @property
    def coalesced(self) -> bool:
        """Whether queue pairs to one address share a reaction point."""
        return self.rule.coalesce

    @classmethod
    def of(cls, values: Mapping[str, float], k: int, frame_bytes: int) -> Self:
        """Hardware units scaled by k. DCQCN does not need the packet size."""
        v = values

        def time(name: str) -> int:
            return int(v[name]) * _US * k

        def rate(name: str) -> float:
            return v[name] * _MBPS / k

        rule = DcqcnRule(
            start_bps=rate("init_cr"), growth=1.0 + v["init_growth"] / 100,
            coalesce=v["roce_cc_shaper_coalesce"] == DEST_IP,
            keep=v["dce_tcp_g"] / _FRACTION, alpha_ns=time("dce_tcp_rtt"),
            first_alpha=v["initial_alpha_value"] / _FRACTION, first_bps=rate("rate_to_set_on_first_cnp"),
            least_factor=v["rpg_min_dec_fac"] / 100, min_bps=rate("rpg_min_rate"),
            cut_divisor=2.0 ** (v["rpg_gd"] - 10), cut_ns=time("rate_reduce_monitor_period"),
            clamp=bool(v["clamp_tgt_rate"]), clamp_after_time=bool(v["clamp_tgt_rate_after_time_inc"]),
            time_ns=time("rpg_time_reset"), byte_reset=int(v["rpg_byte_reset"]) * _BYTE_UNIT,
            threshold=int(v["rpg_threshold"]), ai_bps=rate("rpg_ai_rate"), hai_bps=rate("rpg_hai_rate"),
        )  # fmt: skip
        return cls(rule, CnpRule(time("min_time_between_cnps"), int(v["cnp_dscp"])))

    def control(self, line_bps: float, rtt_ns: int) -> DcqcnControl:
        """A reaction point. DCQCN does not need the delay."""
        return DcqcnControl(self.rule, line_bps)
