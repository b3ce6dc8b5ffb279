"""Whether the host CPU, not the fabric, was the bottleneck of one phase of a run: arithmetic on readings.

In:  readings of the machine before and after the phase; the time that each worker ran, and waited for a processor.
Out: Phase: shares of time by processor and worker, and the causes why its figures are not those of the fabric.
The busy share of a processor is 1 - idle. It includes softirqs, other processes, and the time that a hypervisor took.
/proc/stat counts in steps of 10 ms. In a phase shorter than 0.2 s one step is more than the margin of 5 %, so processor
time is not judged there. Counts of lost packets are exact, and are judged in every phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from heddle.host.capacity import TICK_S, MachineReading, OwnTime

FULL: Final = 0.95  # of the time: a processor or worker that was busy for longer had no time to spare
WAITED: Final = 0.2  # of the time: a worker that waited for a processor for longer sent its packets late
TOOK_PART: Final = 0.05  # of the packets: a processor that handled fewer was busy with something else than the run
_NAMED: Final = 0.01
STOPPED: Final = 0.01  # of the time: a worker that was stopped for longer
LEAST_S: Final = TICK_S / (1 - FULL)

CauseKind = Literal["processor", "worker", "stopped", "backlog", "sockets", "tunnel"]


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """A processor in a phase. busy, softirq, stolen: shares of the time, 0 to 1. packets: share of all packets.

    softirq: of interrupts and softirqs, which forward packets. stolen: in which a hypervisor ran something else. user,
    system: in programs, and in the kernel for them; records of older versions do not have these. All are part of busy,
    and together they may be less: the kernel samples them by its tick, and measures idle time.
    """

    number: int
    busy: float
    packets: float
    softirq: float = 0.0
    stolen: float = 0.0
    user: float = 0.0
    system: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """A worker in a phase, until its last rank was done. Shares of the time, 0 to 1.

    busy: it ran; softirqs that interrupted it are included. waited: it was runnable and had no processor. stopped: it
    was neither, though a wait of its own had ended (capacity.Absences); 0 in records of older versions.
    """

    seconds: float
    busy: float
    waited: float
    stopped: float = 0.0

    @classmethod
    def between(cls, before: OwnTime, after: OwnTime, stopped_s: float = 0.0) -> WorkerUse:
        """The use between two readings of one process. stopped_s: of its absences."""
        seconds = max(1e-9, after.at_s - before.at_s)
        ran, waited = after.ran_s - before.ran_s, after.waited_s - before.waited_s
        return cls(seconds, ran / seconds, waited / seconds, stopped_s / seconds)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why figures are unreliable. size: of the phase, bytes; None: the whole run. number: of the processor or worker.

    sure: the host CPU was the bottleneck; otherwise it may have been.
    """

    cause: CauseKind
    size: int | None
    number: int | None
    sure: bool
    text: str


@dataclass(frozen=True, slots=True)
class Phase:
    """All iterations of one size. cpu, stolen: busy and stolen shares of all processors together, 0 to 1.

    processors: those that handled packets. judged: the phase was long enough to judge processor time.
    """

    size: int
    seconds: float
    cpu: float
    processors: tuple[ProcessorUse, ...]
    workers: tuple[WorkerUse, ...]
    backlog_drops: int
    judged: bool
    stolen: float = 0.0

    @classmethod
    def between(cls, size: int, before: MachineReading, after: MachineReading, workers: Sequence[WorkerUse]) -> Phase:
        """The phase between two readings. Processors that went online or offline in it are left out."""
        seconds = max(1e-9, after.at_s - before.at_s)
        common = [number for number in before.processors if number in after.processors]
        pairs = [(number, before.processors[number], after.processors[number]) for number in common]
        handled = {number: new.packets - old.packets for number, old, new in pairs}
        busy = {number: min(1.0, max(0.0, 1 - (new.idle_s - old.idle_s) / seconds)) for number, old, new in pairs}
        stolen = {number: max(0.0, new.stolen_s - old.stolen_s) / seconds for number, old, new in pairs}
        total = max(1, sum(handled.values()))
        return cls(
            size=size,
            seconds=seconds,
            cpu=sum(busy.values()) / max(1, len(busy)),
            processors=tuple(
                ProcessorUse(
                    n,
                    busy[n],
                    handled[n] / total,
                    max(0.0, new.softirq_s - old.softirq_s) / seconds,
                    stolen[n],
                    max(0.0, new.user_s - old.user_s) / seconds,
                    max(0.0, new.system_s - old.system_s) / seconds,
                )
                for n, old, new in pairs
                if handled[n]
            ),
            workers=tuple(workers),
            backlog_drops=after.backlog_drops - before.backlog_drops,
            judged=seconds >= LEAST_S,
            stolen=sum(stolen.values()) / max(1, len(stolen)),
        )

    def causes(self) -> tuple[Cause, ...]:
        """Why the host CPU was or may have been the bottleneck; empty when no reading shows it."""
        found = [*self._processors(), *self._workers()] if self.judged else []
        found += self._stopped()
        if self.backlog_drops:
            text = f"{self.backlog_drops} packets lost in its backlog: raise net.core.netdev_max_backlog"
            found.append(Cause("backlog", self.size, None, sure=True, text=text))
        return tuple(found)

    def _processors(self) -> list[Cause]:
        return [
            Cause(
                "processor", self.size, use.number, sure=False,
                text=f"processor {use.number}: {use.busy:.0%} busy ({use.softirq:.0%} in softirqs{_stolen(use)}),"
                f" {use.packets:.0%} of the packets passed it",
            )
            for use in self.processors
            if use.busy > FULL and use.packets >= TOOK_PART
        ]  # fmt: skip

    def _workers(self) -> list[Cause]:
        found = []
        for number, use in enumerate(self.workers):
            if use.busy + use.waited > FULL or use.waited > WAITED:
                text = f"worker {number}: {use.busy:.0%} running, {use.waited:.0%} waiting for a processor"
                sure = use.busy + use.waited > FULL
                found.append(Cause("worker", self.size, number, sure=sure, text=text))
        return found

    def _stopped(self) -> list[Cause]:
        """Judged in every phase: the time is not from /proc/stat."""
        return [
            Cause(
                "stopped", self.size, number, sure=True,
                text=f"worker {number}: for {use.stopped * use.seconds:.2g} s of {use.seconds:.2g} s it was stopped, or"
                " this machine was",
            )
            for number, use in enumerate(self.workers)
            if use.stopped > STOPPED
        ]  # fmt: skip


def _stolen(use: ProcessorUse) -> str:
    """Named when it was more than a hundredth: another machine on the same hardware is the cause then."""
    return f", {use.stolen:.0%} taken by the hypervisor" if use.stolen >= _NAMED else ""
