"""The host machine during a run: use of its CPUs, and whether it was the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from heddle.base.units import format_size
from heddle.host.capacity import Cause, PacketBudget, Phase
from heddle.runs.measured import MeasuredRun, sum_known
from heddle.runs.parts.part import Card, RunPart

_MOST_LINES: Final = 8  # of causes; JSON has all of them
_BUSY: Final = "processors busy"


@dataclass(frozen=True, slots=True)
class MachineUse(RunPart):
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
        lost = sum_known(nic.socket_drops for report in measured.reports for nic in report.nics)
        return cls.of(measured.phases, lost, measured.budget)

    @property
    def budget(self) -> PacketBudget:
        """The budget that was computed before the run."""
        return PacketBudget(self.wanted_pps, self.budget_pps)

    @property
    def limited(self) -> bool:
        """True when the host CPU was or may have been the bottleneck."""
        return bool(self.unreliable)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "limited": self.limited, "over_budget": self.budget.exceeded}

    def doubts(self) -> tuple[Cause, ...]:
        return self.unreliable

    def doubt_lines(self) -> list[str]:
        """The causes; none when the host CPU was not the bottleneck."""
        if not self.unreliable:
            return []
        what = (
            f"the host CPU {'was' if any(cause.sure for cause in self.unreliable) else 'may have been'} the bottleneck"
        )
        if all(cause.cause == "stopped" for cause in self.unreliable):
            what = "a worker did not run all the time"
        sizes = dict.fromkeys(cause.size for cause in self.unreliable if cause.size is not None)
        count = len({phase.size for phase in self.phases})  # one in place, and one out of place, are of one size
        some = f" at {len(sizes)} of {count} sizes" if 0 < len(sizes) < count else ""
        lines = [f"{what}{some}: do not trust bandwidth or depths"]
        for cause in sorted(self.unreliable, key=lambda cause: not cause.sure)[:_MOST_LINES]:
            where = f"{format_size(cause.size)}: " if cause.size is not None else ""
            lines.append(f"{where}{cause.text}")
        if (more := len(self.unreliable) - _MOST_LINES) > 0:
            lines.append(f"... and {more} more, in --format json")
        if self.budget.exceeded:
            lines.append(f"as computed before the run: {self.budget}")
        return lines

    def lost(self) -> Mapping[str, int] | None:
        return None if self.socket_drops is None else {"host sockets": self.socket_drops} if self.socket_drops else {}

    def cards(self) -> tuple[Card, ...]:
        return ((_BUSY, f"{self.cpu_share:.0%}", "of this machine, mean over the run"),)
