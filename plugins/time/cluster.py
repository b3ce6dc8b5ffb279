"""Hours of a cluster: jobs arrive, wait, get NICs, run beside each other, meet failures, and end.

In:  LoadedCluster. Out: ClusterResult: what happened to each job, the use of NICs and links, fragmentation.
The model, whose assumptions are printed:
- A job sends a vector of bits over links in each iteration, on the real routed paths of its NICs (clustershape.py).
- Alone, an iteration takes its time of `predict --time`, and its computation after that.
- Jobs beside each other progress at max-min fair shares of their speed alone: a job needs bits / time alone of a link,
  and a full link slows its jobs equally. One sends while another computes, as far as possible. This is no bound of a
  job's time: with `predict --time`, whose flows share links, one of many flows is faster beside one of few.
- Between two events (arrival, start, end, failure, repair) rates are constant. Paths are routed again after a failure.
- A job with a NIC that is down ends, and waits again, before later jobs. It starts again at its last checkpoint, or at
  its beginning if it has none. A job whose NICs are up but have no path waits until they have one.
- The queue is first come, first served; with backfill, later jobs pass those that do not fit.
Starts, checkpoints and routing take no time. Memory: the jobs that run or wait, and a row for each that has ended.
"""

from __future__ import annotations

import heapq
import math
from array import array
from bisect import insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I64, Bools
from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Role
from heddle.offline.wires import Trouble, Wires, trouble_of, wires_of
from heddle_plugins.time.clusterfile import JobArrival, JobKind, LoadedCluster
from heddle_plugins.time.clusterplaces import PLACERS, Ground
from heddle_plugins.time.clustershape import JobShapes, Shape
from heddle_plugins.time.clusterspec import Draw
from heddle_plugins.time.maxmin import Incidence, max_min

_SAME: Final = 1e-12  # relative difference of times that count as one event
_PASSED: Final = 1_000  # waiting jobs that backfill looks at
_SPANS: Final = 5_000  # attempts of jobs that pictures and traces show
_POINTS: Final = 4_096  # of curves over time
_MOST_FAILURES: Final = 1_000_000
ENDED, RUNNING, WAITING, ARRIVES = range(4)
STATES: Final = ("ended", "running", "waiting", "not arrived")
_Fault = tuple[float, int, str, str, bool]  # seconds, a number, down or drain, where, whether it begins


@dataclass(slots=True, order=True)
class _Waiting:
    """A job that waits or runs. whole, left: iterations, NaN before its first start. alone_s: of what it did."""

    number: int
    arrival: JobArrival = field(compare=False)
    since_s: float = field(compare=False)
    whole: float = field(compare=False, default=float("nan"))
    left: float = field(compare=False, default=float("nan"))
    start_s: float = field(compare=False, default=float("nan"))
    waited_s: float = field(compare=False, default=0.0)
    ran_s: float = field(compare=False, default=0.0)
    alone_s: float = field(compare=False, default=0.0)
    lost: float = field(compare=False, default=0.0)
    restarts: int = field(compare=False, default=0)


@dataclass(slots=True, eq=False)
class _Running:
    """An attempt. done: iterations of it; counted: those whose bits are in the sums of links. rate: iterations/s."""

    job: _Waiting
    slots: I64
    shape: Shape
    begin_s: float
    racks: int
    least: int
    alone_s: float
    done: float = 0.0
    counted: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True)
class Span:
    """An attempt of a job: its NICs from begin to end. arrived_s: since when it waited. failed: a failure ended it."""

    number: int
    name: str
    slots: I64
    arrived_s: float
    begin_s: float
    end_s: float
    failed: bool


@dataclass(frozen=True)
class Event:
    """A failure or a repair."""

    at_s: float
    what: str


class UseCurve:
    """Values over time, as steps: each holds until the next. With too many points, every other one is left out."""

    def __init__(self) -> None:
        self.points: list[tuple[float, int, int]] = []
        self._every = self._skipped = 0

    def add(self, at_s: float, used: int, waiting: int, *, last: bool = False) -> None:
        """From this time on. last: no point follows, so this one is kept."""
        if self.points and self.points[-1][0] == at_s:
            self.points.pop()
        elif self._skipped < self._every and not last:
            self._skipped += 1
            return
        self._skipped = 0
        self.points.append((at_s, used, waiting))
        if len(self.points) > _POINTS:
            self.points = self.points[::2]
            self._every = 2 * self._every + 1


class Records:
    """A row for each job, as columns; seconds, iterations."""

    COLUMNS: Final = (
        "number", "ranks", "state", "arrived_s", "started_s", "ended_s", "waited_s", "ran_s", "slowdown", "iterations",
        "restarts", "lost",
    )  # fmt: skip

    def __init__(self) -> None:
        self.names: list[str] = []
        self._columns = {name: array("d") for name in self.COLUMNS}

    def add(self, name: str, *values: float) -> None:
        """One more job. values: in the order of COLUMNS."""
        self.names.append(name)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> F64:
        """(jobs,): one column."""
        return np.frombuffer(self._columns[name], dtype=np.float64) if self.names else np.zeros(0)

    def in_order(self) -> I64:
        """Rows in the order of arrival."""
        return np.argsort(self.column("number"), kind="stable")


@dataclass
class ClusterResult:
    """What happened. seconds: until the last job ended, or the duration. use: (ports,), bits by what a link can carry.

    nic_use: share of NICs and time with a job. spread: racks of jobs beyond the least that they need, by all their
    racks, mean over time. stranded: NICs that are free while a job waits, as a share of all, mean over that time.
    """

    cluster: LoadedCluster
    wires: Wires
    jobs: Records
    seconds: float
    nic_use: float
    use: F64
    spread: float
    stranded: float
    waiting_s: float
    sent: float
    spans: list[Span]
    more_spans: bool
    events: list[Event]
    curve: UseCurve
    box: str
    mode: str
    waves: bool
    shapes: int
    changes: int


class ClusterSimulation:
    """One simulation of a cluster."""

    def __init__(self, cluster: LoadedCluster, observer: Observer) -> None:
        self._cluster, self._observer = cluster, observer
        self._wires = wires_of(cluster.fabric)
        self._capacity = self._wires.rate * cluster.fabric.policy.k
        self._shapes, self._ground = JobShapes(cluster, self._wires), Ground.of(cluster.fabric, cluster.slots)
        self._placer, self._random = PLACERS[cluster.spec.placement], np.random.default_rng(cluster.spec.seed)
        nics = len(cluster.slots)
        self._free, self._up = np.ones(nics, dtype=bool), np.ones(nics, dtype=bool)
        self._most = self._ground.most
        self._queue: deque[_Waiting] = deque()
        self._running: list[_Running] = []
        self._now, self._trouble = 0.0, Trouble()
        self._set: Counter[tuple[str, str]] = Counter()
        self._bits = np.zeros(len(self._wires.ports))
        self._used = self._racks = self._least = 0
        self._nic_s = self._racks_s = self._extra_s = self._stranded_s = self._waiting_s = self._sent = 0.0
        self._records, self._curve, self._changes = Records(), UseCurve(), 0
        self._spans: list[Span] = []
        self._more = False
        self._events: list[Event] = []
        self._failures = _failures(cluster)

    def run(self) -> ClusterResult:
        """Until all jobs have ended, or the duration is over. InputError for jobs that cannot run on these NICs."""
        cluster, observer = self._cluster, self._observer
        observer.begin("alone", len(cluster.sizes))
        for number, (kind, ranks) in enumerate(cluster.sizes[:64]):
            self._alone_s(kind, self._place(np.arange(len(self._free)), ranks))
            observer.advance("alone", number + 1)
        observer.end("alone")
        observer.begin("jobs", cluster.jobs)
        until = cluster.spec.duration or float("inf")
        arrivals = enumerate(cluster.arrivals())
        coming = next(arrivals, None)
        failure = next(self._failures, None)
        while True:
            ends = [self._now + (each.job.left - each.done) / each.rate for each in self._running if each.rate]
            moments = [until, coming[1].at_s if coming else float("inf"), min(ends, default=float("inf"))]
            if failure is not None and (coming or self._running or self._queue):
                moments.append(failure[0])
            if (moment := min(moments)) == float("inf"):
                break
            self._advance(moment)
            changed = self._end_jobs()
            if moment >= until:
                break
            while failure is not None and failure[0] <= self._now:
                self._fault(*failure)
                failure, changed = next(self._failures, None), True
            while coming and coming[1].at_s <= self._now:
                self._queue.append(_Waiting(coming[0], coming[1], self._now))
                coming = next(arrivals, None)
            if self._start_jobs() or changed:
                self._share()
            self._curve.add(self._now, self._used, len(self._queue))
        self._curve.add(self._now, self._used, len(self._queue), last=True)
        self._rest(coming[1:] if coming else (), arrivals)
        observer.end("jobs")
        return self._result()

    # time

    def _advance(self, moment: float) -> None:
        step = moment - self._now
        for each in self._running:
            each.done += each.rate * step
        self._nic_s += step * self._used
        self._racks_s += step * self._racks
        self._extra_s += step * (self._racks - self._least)
        if self._queue:
            self._waiting_s += step
            self._stranded_s += step * int((self._free & self._up).sum())
        self._now = moment

    def _share(self) -> None:
        """Rates of all jobs, by max-min fairness over the links that two of them use."""
        self._changes += 1
        running = [each for each in self._running if np.isfinite(each.shape.alone_s)]
        for each in self._running:
            each.rate = 0.0
        if not running:
            return
        many = [len(each.shape.links) for each in running]
        link = np.concatenate([each.shape.links for each in running])
        flow = np.repeat(np.arange(len(running)), many)
        share = np.concatenate([each.shape.bits / each.shape.alone_s for each in running])
        both = np.flatnonzero(np.bincount(link, minlength=len(self._capacity))[link] > 1)
        paths = Incidence(
            flow[both].astype(np.int32), link[both].astype(np.int32), share[both], len(running), len(self._capacity)
        )
        for each, part in zip(running, max_min(paths, self._capacity, np.ones(len(running))).tolist(), strict=True):
            each.rate = part / each.shape.alone_s

    # jobs

    def _place(self, free: I64, ranks: int) -> I64:
        found = np.asarray(self._placer(self._ground, free, ranks, self._random))
        if found.shape != (ranks,) or len(np.intersect1d(found, free)) < ranks:
            why = f"did not return {ranks} of the {len(free)} free NICs, each once"
            raise InputError(Problem(self._cluster.file, f"placement: {self._cluster.spec.placement}", why, "fix it"))
        return found

    def _alone_s(self, kind: JobKind, slots: I64) -> float:
        """Seconds of an iteration on these NICs when nothing has failed. InputError without a path."""
        seconds = self._shapes.of(kind, slots, Trouble()).alone_s
        if not math.isfinite(seconds):
            why = f"has flows without a path, with {len(slots):,} ranks and all of the fabric"
            raise InputError(kind.job.problem(*kind.job.runs, why, "use a fabric whose NICs reach each other"))
        return seconds

    def _start_jobs(self) -> bool:
        """Start what fits, in order."""
        started, tried = False, 0
        free = np.flatnonzero(self._free & self._up)
        waits: deque[_Waiting] = deque()
        while self._queue and len(free) > 1:
            job = self._queue.popleft()
            if job.arrival.ranks <= len(free):
                self._start(job, self._place(free, job.arrival.ranks))
                free, started = np.flatnonzero(self._free & self._up), True
                continue
            waits.append(job)
            tried += 1
            if not self._cluster.spec.backfill or tried == _PASSED:
                break
        self._queue.extendleft(reversed(waits))
        return started

    def _start(self, job: _Waiting, slots: I64) -> None:
        arrival = job.arrival
        alone_s = self._alone_s(arrival.kind, slots)
        shape = self._shapes.of(arrival.kind, slots, self._trouble)
        if math.isnan(job.left):
            job.whole = job.left = arrival.iterations or arrival.lasts_s / alone_s
            job.start_s = self._now
        job.waited_s += self._now - job.since_s
        racks = self._ground.racks_of(slots)
        least = -(-arrival.ranks // self._most)
        self._free[slots] = False
        self._used += len(slots)
        self._racks += racks
        self._least += least
        self._running.append(_Running(job, slots, shape, self._now, racks, least, alone_s))

    def _stop(self, run: _Running, *, failed: bool) -> None:
        """Free its NICs, and count what it did."""
        job = run.job
        self._count(run)
        self._free[run.slots] = True
        self._used -= len(run.slots)
        self._racks -= run.racks
        self._least -= run.least
        job.ran_s += self._now - run.begin_s
        job.alone_s += run.done * run.alone_s
        if len(self._spans) < _SPANS:
            name = job.arrival.name
            self._spans.append(Span(job.number, name, run.slots, job.since_s, run.begin_s, self._now, failed))
        else:
            self._more = True

    def _count(self, run: _Running) -> None:
        """Add the bits of the iterations since the last change of its paths."""
        many = run.done - run.counted
        self._bits[run.shape.links] += many * run.shape.bits
        self._sent += many * run.shape.sent
        run.counted = run.done

    def _end_jobs(self) -> bool:
        """End the jobs that have done all iterations; whether there were any."""
        least = self._now * 1e-15  # a time that does not change the clock
        done = [
            each for each in self._running
            if each.done >= each.job.left * (1 - _SAME) or each.job.left - each.done <= least * each.rate
        ]  # fmt: skip
        for each in done:
            each.done = each.job.left
            self._stop(each, failed=False)
            self._record(each.job, ENDED, self._now)
        if done:
            self._running = [each for each in self._running if each not in done]
            self._observer.advance("jobs", len(self._records))
        return bool(done)

    def _record(self, job: _Waiting, state: int, end_s: float = float("nan")) -> None:
        arrival = job.arrival
        slow = job.ran_s / job.alone_s if job.alone_s else float("nan")
        self._records.add(
            arrival.name, job.number, arrival.ranks, state, arrival.at_s, job.start_s, end_s, job.waited_s, job.ran_s,
            slow, arrival.iterations or job.whole, job.restarts, job.lost,
        )  # fmt: skip

    def _rest(self, coming: tuple[JobArrival, ...], arrivals: Iterator[tuple[int, JobArrival]]) -> None:
        """Record what has not ended."""
        for each in self._running:
            self._stop(each, failed=False)
            self._record(each.job, RUNNING)
        for job in self._queue:
            job.waited_s += self._now - job.since_s
            self._record(job, WAITING)
        number = len(self._records)
        for arrival in (*coming, *(each for _, each in arrivals)):
            self._record(_Waiting(number, arrival, self._now), ARRIVES)
            number += 1

    # failures

    def _fault(self, _: float, number: int, key: str, word: str, begins: bool) -> None:
        """Set or repair a failure: jobs on NICs that are down end, and all others are routed again."""
        self._set[key, word] += 1 if begins else -1
        now = [each for each, count in self._set.items() if count > 0]
        down, drained = (sorted(word for key, word in now if key == of) for of in ("down", "drain"))
        self._trouble = trouble_of(self._cluster.fabric, down, drained)
        if len(self._events) < _SPANS:
            what = "down" if key == "down" else "drained"
            self._events.append(Event(self._now, f"{word} {what if begins else 'is repaired'}"))
        alive = self._alive()
        drained_at = {*drained}
        self._up = alive & np.array([e.first_hop.partition(":")[0] not in drained_at for e in self._cluster.slots])
        for run in [each for each in self._running if not alive[each.slots].all()]:
            self._running.remove(run)
            self._stop(run, failed=True)
            self._again(run)
        for run in self._running:
            shape = self._shapes.of(run.job.arrival.kind, run.slots, self._trouble)
            if shape is not run.shape:
                self._count(run)
                run.shape = shape

    def _alive(self) -> Bools:
        """Which NICs have a link that is up."""
        dead = self._trouble.dead
        return np.array([end.first_hop not in dead for end in self._cluster.slots], dtype=bool)

    def _again(self, run: _Running) -> None:
        """A job that a failure ended waits again: before all that arrived after it."""
        job, every = run.job, run.job.arrival.kind.checkpoint
        kept = run.done // every * every if every else 0.0
        job.lost += run.done - kept
        job.left -= kept
        job.restarts += 1
        job.since_s = self._now
        queue = [*self._queue]
        insort(queue, job)
        self._queue = deque(queue)

    def _result(self) -> ClusterResult:
        seconds = self._now
        for_all = seconds or 1.0
        return ClusterResult(
            self._cluster, self._wires, self._records, seconds, self._nic_s / (for_all * len(self._free)),
            self._bits / (self._capacity * for_all), self._extra_s / (self._racks_s or 1.0),
            self._stranded_s / ((self._waiting_s or 1.0) * len(self._free)), self._waiting_s, self._sent, self._spans,
            self._more, self._events, self._curve, self._ground.box, self._shapes.mode, self._shapes.waves,
            self._shapes.computed, self._changes,
        )  # fmt: skip


def _failures(cluster: LoadedCluster) -> Iterator[_Fault]:
    """Failures and repairs in order of time. InputError for too many."""
    heap: list[_Fault] = []
    spec, fabric = cluster.spec, cluster.fabric
    for each in spec.failures:
        key, word = ("down", each.down) if each.down else ("drain", each.drain)
        heap.append((each.at_, len(heap), key, word, True))
        if each.lasts is not None:
            heap.append((each.at_ + each.lasts, len(heap), key, word, False))
    heapq.heapify(heap)
    kinds: list[tuple[float, list[str], np.random.Generator]] = []
    if (mtbf := spec.mtbf) is not None:
        hosts = {node.name for node in fabric.hosts}
        words = {
            "link": [link.a[0] + ":" + link.a[1] for link in fabric.links if not {link.a[0], link.b[0]} & hosts],
            "nic": [end.nic for end in cluster.slots],
            "host": [node.name for node in fabric.nodes if node.role is Role.HOST],
            "switch": [node.name for node in fabric.switches],
        }
        for number, (word, names) in enumerate(words.items()):
            mean = getattr(mtbf, word)
            if mean is not None and names:
                kinds.append((mean / len(names), names, np.random.default_rng([mtbf.seed, number])))
        if (many := (spec.duration or 0.0) * sum(1 / mean for mean, _, _ in kinds)) > _MOST_FAILURES:
            why = f"makes about {many:,.0f} failures in the duration, and the limit is {_MOST_FAILURES:,}"
            raise InputError(Problem(cluster.file, "mtbf", why, "use longer times"))
    return _merged(heap, kinds, mtbf.repair if mtbf else None)


def _merged(
    heap: list[_Fault], kinds: Sequence[tuple[float, list[str], np.random.Generator]], repair: Draw | None
) -> Iterator[_Fault]:
    """Those of a list, and random ones. kinds: the mean time between failures of all of a kind, their names."""
    numbers = count(len(heap))
    for at, (mean, _, random) in enumerate(kinds):
        heapq.heappush(heap, (random.exponential(mean), next(numbers), "", str(at), True))
    while heap:
        found = heapq.heappop(heap)
        at_s, number, key, word, _ = found
        if key or repair is None:
            yield found
            continue
        mean, names, random = kinds[int(word)]
        name = names[int(random.integers(len(names)))]
        heapq.heappush(heap, (at_s + repair.one(random), next(numbers), "down", name, False))
        heapq.heappush(heap, (at_s + random.exponential(mean), next(numbers), "", word, True))
        yield at_s, number, "down", name, True
