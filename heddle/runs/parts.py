"""The parts of a run's outcome: its queues, the host machine, congestion control, admission and slow hosts.

A part is what one mechanism did in the run. It is a frozen value with `lines()` for the table and `to_json()` for the
document. A new part is a value with its function of MeasuredRun (`of_run`), a field of RunParts and a line of parts_of:
table, document, run.json and stored runs follow from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from heddle.base.units import format_bytes, format_size
from heddle.endpoints.admission.waits import WaitCounts, merged, percentile
from heddle.host.capacity import PacketBudget
from heddle.host.saturation import Cause, Phase
from heddle.runs.measured import MeasuredRun, sum_known
from heddle.traffic.admission import ADMISSION_TUNABLES
from heddle.traffic.tunables import described, values_of

if TYPE_CHECKING:
    from heddle.runs.rates import Rates


@dataclass(frozen=True, slots=True)
class QueueUse:
    """Totals of one run over all ports and classes.

    drops: cause -> packets. pauses: pause frames sent by switches, including those that end a pause. paused_ports:
    ports whose gate was closed at some time; paused_hosts: those of hosts among them; paused_ms: the sum of their
    pauses. deepest: maximum bytes of any egress queue of a switch; deepest_at: its port and class. Queues of hosts do
    not count: they hold what sockets send, which is no congestion. bucket_ms: of the series that is kept.
    """

    marks: int
    drops: Mapping[str, int]
    pauses: int
    paused_ports: int
    paused_hosts: int
    paused_ms: float
    storms: int
    deepest: int
    deepest_at: str
    bucket_ms: float

    @property
    def dropped(self) -> int:
        """Packets, of all causes."""
        return sum(self.drops.values())

    def to_json(self) -> dict[str, Any]:
        """`queues` of the run's document."""
        return {
            "marks": self.marks, "drops": self.dropped, "drops_by_cause": dict(self.drops),
            "pfc_sent": self.pauses, "paused_ports": self.paused_ports, "paused_hosts": self.paused_hosts,
            "paused_ms": self.paused_ms, "storms": self.storms,
            "deepest": self.deepest, "deepest_at": self.deepest_at, "bucket_ms": self.bucket_ms,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """One line of the table's footer, or two."""
        deepest = (
            f"deepest {format_bytes(self.deepest)} at {self.deepest_at}" if self.deepest else "no packet ever waited"
        )
        causes = ", ".join(self.drops)
        counts = [
            f"{self.marks:,} marked" if self.marks else "",
            f"{self.dropped:,} dropped ({causes})" if causes else "",
        ]
        lines = ["; ".join([deepest, ", ".join(each for each in counts if each) or "nothing marked or dropped"])]
        if self.pauses or self.paused_ports:
            ports = f"{self.paused_ports} port{'' if self.paused_ports == 1 else 's'}"
            hosts = f", {self.paused_hosts} of them of hosts" if self.paused_hosts else ""
            storms = f"; {self.storms} storm{'' if self.storms == 1 else 's'}" if self.storms else ""
            lines.append(
                f"{self.pauses:,} pause frames; {ports} paused{hosts}, {self.paused_ms:,.0f} ms in all{storms}"
            )
        return [f"#queues   : {line}" for line in lines]


MARK: Final = "#UNRELIABLE:"
_MOST_LINES: Final = 8  # of causes; JSON has all of them


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Use of the machine during the sizes of a run, and the verdict. Shares are of the time, 0 to 1.

    cpu_share: of all CPUs. worker_share: CPU time of the busiest worker, of one CPU. waited_share: the worker that
    waited longest for a CPU. backlog_drops: of the whole machine. unreliable: reasons why the host CPU was or may have
    been the bottleneck; empty if it was not.
    """

    cpu_share: float
    worker_share: float
    waited_share: float
    backlog_drops: int  # /proc/net/softnet_stat
    socket_drops: int | None  # None: the hosts' own stack does not report them
    wanted_pps: int
    budget_pps: int
    phases: tuple[Phase, ...] = ()
    unreliable: tuple[Cause, ...] = ()

    @classmethod
    def of(cls, phases: Sequence[Phase], socket_drops: int | None, budget: PacketBudget) -> Self:
        """Combine the phases of a run. Means are weighted by the length of a phase."""
        causes = [cause for phase in phases for cause in phase.causes()]
        if socket_drops:
            text = f"{socket_drops} packets lost at its sockets"
            causes.append(Cause("sockets", None, None, sure=True, text=text))
        total = sum(phase.seconds for phase in phases)
        workers = [*zip(*(phase.workers for phase in phases), strict=True)]
        times = [max(1e-9, sum(use.seconds for use in uses)) for uses in workers]
        return cls(
            cpu_share=sum(phase.cpu * phase.seconds for phase in phases) / total,
            worker_share=max(sum(u.busy * u.seconds for u in uses) / t for uses, t in zip(workers, times, strict=True)),
            waited_share=max(
                sum(u.waited * u.seconds for u in uses) / t for uses, t in zip(workers, times, strict=True)
            ),
            backlog_drops=sum(phase.backlog_drops for phase in phases),
            socket_drops=socket_drops,
            wanted_pps=budget.wanted_pps,
            budget_pps=budget.budget_pps,
            phases=tuple(phases),
            unreliable=tuple(causes),
        )

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self:
        """From the end of a run."""
        lost = sum_known(nic.socket_drops for report in measured.reports for nic in report.nics)
        return cls.of(measured.phases, lost, measured.budget)

    @property
    def limited(self) -> bool:
        """True when the host CPU was or may have been the bottleneck."""
        return bool(self.unreliable)

    @property
    def overrun(self) -> bool:
        """True when it certainly was: a worker had no idle time, or packets were lost."""
        return any(cause.sure for cause in self.unreliable)

    @property
    def budget(self) -> PacketBudget:
        """The budget that was computed before the run."""
        return PacketBudget(self.wanted_pps, self.budget_pps)

    def to_json(self) -> dict[str, Any]:
        """`machine` of the run's document."""
        return {**asdict(self), "limited": self.limited, "over_budget": self.budget.exceeded}

    def lines(self) -> list[str]:
        """Lines of the table, directly below its rows; none when the host CPU was not the bottleneck."""
        if not self.unreliable:
            return []
        what = f"the host CPU {'was' if self.overrun else 'may have been'} the bottleneck"
        if all(cause.cause == "stopped" for cause in self.unreliable):
            what = "a worker did not run all the time"
        sizes = dict.fromkeys(cause.size for cause in self.unreliable if cause.size is not None)
        some = f" at {len(sizes)} of {len(self.phases)} sizes" if 0 < len(sizes) < len(self.phases) else ""
        lines = [f"{MARK} {what}{some}: do not trust bandwidth or depths"]
        for cause in sorted(self.unreliable, key=lambda cause: not cause.sure)[:_MOST_LINES]:
            where = f"{format_size(cause.size)}: " if cause.size is not None else ""
            lines.append(f"{MARK} {where}{cause.text}")
        if (more := len(self.unreliable) - _MOST_LINES) > 0:
            lines.append(f"{MARK} ... and {more} more, in --format json")
        if self.budget.exceeded:
            lines.append(f"{MARK} as computed before the run: {self.budget}")
        return lines


@dataclass(frozen=True, slots=True)
class CongestionUse:
    """Congestion control in one run. parameters: all of them, in hardware units; settings: those that were set.

    slowed: queue pairs whose rate was below the line rate at some time, of `qps`. least_bps: the lowest rate of any,
    at least_at.
    """

    controller: str
    parameters: Mapping[str, float]
    settings: str
    cnps_sent: int
    cnps_received: int
    slowed: int
    qps: int
    least_bps: float
    least_at: str
    profile: str = ""

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> CongestionUse | None:
        """From the end of a run; None without congestion control."""
        from heddle.endpoints.congestion.controlled import congestion_of
        from heddle.runs.rates import rates_of_run

        control, rates = congestion_of(measured.plan), rates_of_run(measured)
        if control is None or rates is None:
            return None
        sums = measured.counters
        use = use_of_rates(
            rates, control.values, described(control.values, control.tunables), sums["cnps_sent"], sums["cnps_received"]
        )
        return replace(use, profile=measured.plan.options.congestion_profile)

    def to_json(self) -> dict[str, Any]:
        """`congestion` of the run's document, without the rates of each queue pair."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Lines of the table's footer."""
        slowed = f"{self.slowed} of {self.qps} QPs slowed, down to {self.least_bps / 1e6:.3g} Mb/s ({self.least_at})"
        cnps = f"{self.cnps_sent:,} CNPs sent, {self.cnps_received:,} received"
        lines = [f"{cnps}; {slowed if self.slowed else 'no QP slowed'}"]
        set_ = [f"set: {self.settings}"] if self.settings else []
        profile = [f"profile {self.profile}"] if self.profile else []
        if set_ or profile:
            lines.append("; ".join([*profile, *set_]))
        return [f"#{self.controller:<9s}: {line}" for line in lines]


def use_of_rates(
    rates: Rates, parameters: Mapping[str, float], settings: str, cnps_sent: int, cnps_received: int
) -> CongestionUse:
    """The sums of a run."""
    least = [float(each.rates_bps.min(initial=each.qp.line_bps)) for each in rates.courses]
    slowed = sum(1 for each, rate in zip(rates.courses, least, strict=True) if rate < each.qp.line_bps)
    at = min(range(len(least)), key=least.__getitem__)
    return CongestionUse(
        rates.controller, parameters, settings, cnps_sent, cnps_received, slowed, len(least), least[at],
        rates.courses[at].qp.name,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """How long messages waited for their CTS, in seconds of the emulation.

    at_once: messages of `messages` whose CTS was there before them; they count as 0. Percentiles are the ends of
    buckets, at most 12 % too high. longest: the end of the last bucket.
    """

    messages: int
    at_once: int
    p50_s: float
    p90_s: float
    longest_s: float

    @classmethod
    def of(cls, counts: WaitCounts) -> WaitFigures:
        """From the waits of all senders."""
        at_once = dict(counts).get(0, 0)
        return cls(
            sum(count for _, count in counts), at_once,
            percentile(counts, 0.5), percentile(counts, 0.9), percentile(counts, 1.0),
        )  # fmt: skip

    def text(self) -> str:
        """`wait for CTS: P50 1.2 ms, P90 3 ms, longest 9 ms; 12 of 960 messages did not wait`."""
        p50, p90, longest = (_time(each) for each in (self.p50_s, self.p90_s, self.longest_s))
        free = f"{self.at_once:,} of {self.messages:,} messages did not wait"
        return f"wait for CTS: P50 {p50}, P90 {p90}, longest {longest}; {free}"


def _time(seconds: float) -> str:
    return "0" if not seconds else f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


@dataclass(frozen=True, slots=True)
class AdmissionUse:
    """Admission in one run. parameters: all of them; settings: those that were set. budget_bytes: in flight to a
    receiver, at most.

    on: False for a run that has slow hosts only. cts_path: why the paths of CTS packets are not part of the proof.
    slow: host -> share of its NIC's rate at which its ranks process data.
    """

    on: bool
    parameters: Mapping[str, float]
    settings: str
    cts_class: str
    budget_bytes: int
    text: str
    cts_sent: int
    cts_received: int
    cts_resent: int
    waits: WaitFigures | None
    slow: Mapping[str, float]
    cts_path: str = ""

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> AdmissionUse | None:
        """From the end of a run; None without admission and slow hosts."""
        options, counted = measured.plan.options, measured.counters
        slow = dict(options.slow)
        admission = options.admitted
        if admission is None:
            return cls(False, {}, "", "", 0, "", 0, 0, 0, None, slow) if slow else None
        values = values_of("admission", ADMISSION_TUNABLES, options.admission_set, flag="--admission-set")
        waits = WaitFigures.of(merged(end.waits for report in measured.reports for end in report.qps))
        return cls(
            True, values, described(values, ADMISSION_TUNABLES), admission.cts_class, admission.budget_bytes,
            admission.text(), counted["cts_sent"], counted["cts_received"], counted["cts_resent"], waits, slow,
            _NO_PROOF,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """`admission` of the run's document."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Lines of the table's footer."""
        lines = []
        if self.on and self.waits is not None:
            again = f", {self.cts_resent:,} of them again" if self.cts_resent else ""
            cts = f"{self.cts_sent:,} CTS sent{again}, {self.cts_received:,} received, in the {self.cts_class} class"
            lines += [self.text, f"{cts}; their paths are not proven", self.waits.text()]
            if self.settings:
                lines.append(f"set: {self.settings}")
        lines = [f"#admission: {line}" for line in lines]
        if self.slow:
            hosts = ", ".join(f"{host} at {share:.3g}" for host, share in self.slow.items())
            why = "senders wait for its CTS" if self.on else "no admission, so this holds no sender back"
            lines.append(f"#slow     : processes data at this share of its NIC's rate: {hosts}; {why}")
        return lines


_NO_PROOF: Final = (
    "CTS packets share the counters of acknowledgements, in the reverse direction of the first queue pair of a "
    "connection, so their paths are not proven"
)


class RunPart(Protocol):
    """What one mechanism did in a run."""

    def lines(self) -> list[str]:
        """Lines of the table's footer."""

    def to_json(self) -> dict[str, Any]:
        """Its key of the run's document."""


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run; None for a mechanism that the run did not use. `queues` is recorded while it runs."""

    machine: MachineUse
    queues: QueueUse | None = None
    congestion: CongestionUse | None = None
    admission: AdmissionUse | None = None

    def parts(self) -> dict[str, RunPart | None]:
        """By name, in the order of the table."""
        return {each.name: getattr(self, each.name) for each in fields(RunParts)}


def parts_of(measured: MeasuredRun) -> dict[str, Any]:
    """The parts of a run that follow from what the workers reported."""
    makers = {"machine": MachineUse.of_run, "congestion": CongestionUse.of_run, "admission": AdmissionUse.of_run}
    return {name: make(measured) for name, make in makers.items()}
