"""What this machine can carry, and what its processors did: readings of /proc, and a few milliseconds of arithmetic.

A run is judged by these readings: whether the host CPU was the bottleneck.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

# Total cost of one 4 KB data packet (built, shaped, forwarded three times, checked, summed), in units of the time that
# zlib takes for a CRC over 4 KB: of rings in `zone` with 16 QPs, at the highest rates that two processors carry.
# Compiled NICs took 34 to 38 from 50 to 125 Mb/s a link; Python's 56 at 100 Mb/s, and 80 at 50 (./inv bench budget).
PACKET_COST_CRCS: Final[Mapping[bool, float]] = {True: 40.0, False: 60.0}  # compiled NICs, and Python's

SWITCH_MB: Final = 40  # resident memory of one switch's zebra and bgpd
RESERVE_MB: Final = 512  # for hosts, workers and verbs
ENOUGH_MB: Final = 1024  # free memory that doctor asks of a machine

TICK_S: Final = 0.01  # the unit of /proc/stat: USER_HZ is 100 on every architecture that runs Heddle

_STAT: Final = Path("/proc/stat")
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUPS: Final = Path("/sys/fs/cgroup")
_LIMITS: Final = (
    (_CGROUPS / "memory.events", _CGROUPS / "memory.max"),
    (_CGROUPS / "memory/memory.oom_control", _CGROUPS / "memory/memory.limit_in_bytes"),
)
_SOFTNET: Final = Path("/proc/net/softnet_stat")
ABSENT_S: Final = 0.1  # shorter absences do not count: clocks of the kernel and of a hypervisor differ by some ms
_LOOK_S: Final = 0.05
_SCHEDSTAT: Final = Path("/proc/self/schedstat")  # of the main thread: ns that it ran, ns that it waited, ...
_PROCESSES: Final = Path("/proc")
# The kernel forwards packets of workers, sometimes in ksoftirqd (nice 0), which must have priority over workers.
WORKER_NICE: Final = 5
_LOWEST: Final = 19  # of priorities
_CPU_FIELD: Final = 12  # of a line of softnet_stat: its processor, since Linux 5.10


@dataclass(frozen=True, slots=True)
class Processor:
    """One processor since boot.

    idle_s: seconds without work. A kernel that stops its tick on idle processors measures them and does not sample
    (tick_sched.idle_sleeptime): they do not include interrupts, softirqs, or stolen time.
    packets: those that its softirqs passed to the network stack, in any namespace (softnet_data.processed).
    softirq_s: seconds in interrupts and softirqs, which forward packets; some kernels only sample them.
    stolen_s: seconds in which it had work, and a hypervisor ran something else.
    user_s, system_s: seconds in programs, and in the kernel for them; sampled by the kernel's tick. nice_s: those of
    user_s in programs with a nice value above 0.
    """

    idle_s: float
    packets: int
    softirq_s: float = 0.0
    stolen_s: float = 0.0
    user_s: float = 0.0
    system_s: float = 0.0
    nice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineReading:
    """All processors at one moment. at_s: CLOCK_MONOTONIC. backlog_drops: see `backlog_drops`.

    lower_s: see `lower_seconds`.
    """

    at_s: float
    processors: Mapping[int, Processor]
    backlog_drops: int
    lower_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnTime:
    """This process at one moment: CLOCK_MONOTONIC; seconds since its start in which it ran, and waited."""

    at_s: float
    ran_s: float
    waited_s: float


def read() -> MachineReading:
    """Read the counters."""
    return parse_reading(time.monotonic(), _STAT.read_text(), _SOFTNET.read_text(), lower_seconds())


def lower_seconds(proc: Path = _PROCESSES, own: int | None = None) -> float:
    """Seconds of user code in programs of a lower priority than workers, with their ended children. They give way.

    proc: of the processes, as far as this one sees them. own: nice value of this process.
    """
    workers, ticks = min(_LOWEST, (os.getpriority(os.PRIO_PROCESS, 0) if own is None else own) + WORKER_NICE), 0
    for path in proc.glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # proc(5): from the third field on; a name may have any bytes
            fields = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            # Time of user code, with that of ended children: /proc/stat counts no other by its nice value.
            ticks += int(fields[11]) + int(fields[13]) if int(fields[16]) > workers else 0
    return ticks * TICK_S


def parse_reading(at_s: float, stat: str, softnet: str, lower_s: float = 0.0) -> MachineReading:
    """Parse the texts of /proc/stat and /proc/net/softnet_stat. lower_s: of `lower_seconds`."""
    seconds: dict[int, list[float]] = {}
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            seconds[int(name[3:])] = [int(field) * TICK_S for field in fields]
    packets: dict[int, int] = {}
    lost = 0
    # One line for each online processor, in order; since Linux 5.10 each line has its number.
    for number, line in zip(sorted(seconds), softnet.splitlines(), strict=False):
        columns = [int(word, 16) for word in line.split()]
        packets[columns[_CPU_FIELD] if len(columns) > _CPU_FIELD else number] = columns[0]
        lost += columns[1]
    found = {}
    for cpu in sorted(seconds):
        user, nice, system, idle, iowait, irq, softirq, stolen = seconds[cpu][:8]  # proc(5)
        found[cpu] = Processor(
            idle + iowait, packets.get(cpu, 0), irq + softirq, stolen, user_s=user + nice, system_s=system,
            nice_s=nice,
        )  # fmt: skip
    return MachineReading(at_s, found, lost, lower_s)


def backlog_drops() -> int:
    """Packets that the machine's CPUs have dropped because netdev_max_backlog was reached, since boot.

    A packet that crosses a veth waits in the receiving CPU's backlog; the machine loses these packets, and no
    namespace counts them.
    """
    return sum(int(line.split()[1], 16) for line in _SOFTNET.read_text().splitlines())


def own_time() -> OwnTime:
    """Read the times of this process. waited_s is 0 where the kernel does not count it (CONFIG_SCHED_INFO)."""
    try:
        waited = int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except OSError:
        waited = 0.0
    return OwnTime(time.monotonic(), time.process_time(), waited)


class Absences:
    """The time in which this process should have run, and the kernel neither ran it nor had it wait for a processor.

    A process that is stopped (SIGSTOP, a freezer, a limit of its group) has no other trace: /proc/PID/schedstat counts
    only the time that a process is runnable. seconds: of all absences; clock: unit tests set their own.
    """

    def __init__(self, clock: Callable[[], OwnTime] = own_time) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds = 0.0

    def look(self, now_s: float, due_s: float) -> None:
        """Call after each wait. due_s: when it should have ended; now_s: when it has (CLOCK_MONOTONIC)."""
        if now_s - due_s < ABSENT_S and now_s - self._last.at_s < _LOOK_S:
            return  # to read the clock takes longer than a packet
        then, self._last = self._last, self._clock()
        used = self._last.ran_s - then.ran_s + self._last.waited_s - then.waited_s
        if (absent := now_s - due_s - used) >= ABSENT_S:
            self.seconds += absent


def crc_seconds() -> float:
    """Seconds that zlib needs for a CRC over 4 KB now: the best of five measurements of 1 ms."""
    block = bytes(4096)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            zlib.crc32(block)
        best = min(best, (time.perf_counter() - start) / 200)
    return best


def budget_pps(*, compiled: bool, cost_crcs: float | None = None) -> int:
    """Data packets per second that all processors together carry end to end, with compiled NICs or Python's.

    cost_crcs: of a transport with a cost of its own.
    """
    return int(len(os.sched_getaffinity(0)) / ((cost_crcs or PACKET_COST_CRCS[compiled]) * crc_seconds()))


@dataclass(frozen=True, slots=True)
class PacketBudget:
    """Data packets a second: those that all senders make at line rate, and those that this machine carries."""

    wanted_pps: int
    budget_pps: int

    @property
    def exceeded(self) -> bool:
        """Whether more is wanted than can be carried."""
        return self.wanted_pps > self.budget_pps

    def __str__(self) -> str:
        return f"{self.wanted_pps:,} packets/s at line rate, and this machine carries about {self.budget_pps:,}"


def memory_bytes(sizes: Sequence[int], ranks: int, workers: int, in_place: bool = True) -> int:
    """Bytes of the arrays of a run: an input and two buffers a rank, all sums a worker, and a reserve.

    in_place: ranks receive into the buffer that they send from; otherwise they have two buffers more.
    """
    return (3 if in_place else 5) * max(sizes) * ranks + workers * (sum(sizes) + 5 * max(sizes))


def free_bytes() -> int:
    """Bytes that the kernel can give without swapping or killing processes: MemAvailable, and the room in cgroups."""
    words = next(line.split() for line in _MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return min([int(words[1]) * 1024, *cgroup_rooms()])


def cgroup_rooms(groups: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Bytes that are left below the limit of each memory cgroup of this process, of version 1 or 2; none without one.

    In a container the root of the mount is its own cgroup. Pages of files that the kernel can drop count as free.
    """
    for line in _lines(groups):
        number, kinds, path = line.split(":", 2)
        old = "memory" in kinds.split(",")
        if not old and number != "0":
            continue
        root = mount / "memory" if old else mount
        limit, usage = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        own = root / path.lstrip("/")
        for place in (own, *own.parents):
            if not place.is_relative_to(root):
                break
            with suppress(OSError, ValueError):  # no such cgroup here, or no limit: `max`
                most, used = (int((place / name).read_text()) for name in (limit, usage))
                stat = dict(row.split() for row in _lines(place / "memory.stat"))
                yield max(0, most - used + int(stat.get("total_inactive_file" if old else "inactive_file", 0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def memory_kills() -> tuple[int, int]:
    """How many processes the kernel has ended at the memory limit of this container, and the limit in bytes; 0: none.

    Of the control group at the root of this mount namespace: oom_kill of memory.oom_control in version 1, of
    memory.events in version 2 (Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).
    """
    for counts, limit in _LIMITS:
        try:
            words = dict(line.split() for line in counts.read_text().splitlines())
            return int(words["oom_kill"]), int(limit.read_text())
        except (OSError, ValueError, KeyError):  # the other version; or `max`: no limit
            continue
    return 0, 0


def wanted_pps(rates_bps: list[int], payload: int, overhead: int) -> int:
    """Data packets a second when all these NICs send at line rate; payload and overhead in bytes a packet."""
    return int(sum(rates_bps) / (8 * (payload + overhead)))


FULL: Final = 0.95  # of the time: a processor or worker that was busy for longer had no time to spare
WAITED: Final = 0.2  # of the time: a worker that waited for a processor for longer sent its packets late
TOOK_PART: Final = 0.05  # of the packets: a processor that handled fewer was busy with something else than the run
_NAMED: Final = 0.01
STOPPED: Final = 0.01  # of the time: a worker that was stopped for longer
LEAST_S: Final = TICK_S / (1 - FULL)
LEAST_WAITED_S: Final = 0.004  # in a phase shorter than that: about one slice of another process (EEVDF: 3 ms)

CauseKind = Literal["processor", "worker", "stopped", "backlog", "sockets", "tunnel"]


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """A processor in a phase. busy, softirq, stolen: shares of the time, 0 to 1. packets: share of all packets.

    softirq: of interrupts and softirqs, which forward packets. stolen: in which a hypervisor ran something else. user,
    system: in programs, and in the kernel for them; records of older versions do not have these. All are part of busy,
    and together they may be less: the kernel samples them by its tick, and measures idle time. Time of programs with a
    lower priority than workers is in none of them.
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
        # Which processor a program used is known of all with a nice value together.
        niced = {number: max(0.0, new.nice_s - old.nice_s) for number, old, new in pairs}
        gave_way = min(1.0, max(0.0, after.lower_s - before.lower_s) / max(TICK_S, sum(niced.values())))
        free = {number: new.idle_s - old.idle_s + gave_way * niced[number] for number, old, new in pairs}
        busy = {number: min(1.0, max(0.0, 1 - free[number] / seconds)) for number, _, _ in pairs}
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
                    max(0.0, new.user_s - old.user_s - gave_way * niced[n]) / seconds,
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
        found = [*(self._processors() if self.judged else []), *self._workers()]
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
        """Waiting is judged in every phase: the kernel measures it in nanoseconds."""
        found = []
        for number, use in enumerate(self.workers):
            sure = use.busy + use.waited > FULL
            late = use.waited > WAITED and (self.judged or use.waited * use.seconds >= LEAST_WAITED_S)
            if late or (sure and self.judged):
                text = f"worker {number}: {use.busy:.0%} running, {use.waited:.0%} waiting for a processor"
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
