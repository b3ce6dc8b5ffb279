"""Time of jobs on a network, by events: between two events, rates are max-min fair and constant.

In:  the Course of each job (its passes, when it begins, how often it repeats), flows on links, capacities of links.
Out: Timing: begin and end of each job, seconds of its iterations, bits on each link, seconds in which each was full.
A queue pair sends one message after the other. A message is at its receiver a delay after its last bit has left, and
then begins what waits for it. Not modelled: queues and their limits, acknowledgements, losses, work on data.
Equal tasks in a row are computed once while nothing else happens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I64, Bools
from heddle.base.problems import CheckError, Problem
from heddle_plugins.time.maxmin import Incidence, max_min
from heddle_plugins.time.pauses import paused_rates
from heddle_plugins.time.tasks import Tasks

_NO_MESSAGE: Final = (np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), np.zeros(0))
_SAME: Final = 1e-9  # relative difference of two times that count as one event
_KEPT: Final = 4096  # sets of flows whose rates are kept
_MANY: Final = 1 << 14  # flows beyond which they are not kept


@dataclass(frozen=True)
class Course:
    """When a job runs. passes: its tasks, one set after the other. after: the number of another job, or -1.

    repeat: how often the passes run; 0: until all other jobs have ended.
    """

    name: str
    passes: Sequence[Tasks]
    start_s: float = 0.0
    after: int = -1
    repeat: int = 1


@dataclass(frozen=True)
class NetworkState:
    """A network from a time on. capacity: (links,) bit/s; limit: (flows,) bit/s, the most that a flow sends.

    xoff: bits from which a link is paused. flight: (flows,) the most bits that wait in switches, 0 for flows that pause
    no link; None: no link is paused.
    """

    paths: Incidence
    capacity: F64
    limit: F64
    from_s: float = 0.0
    xoff: float = 0.0
    flight: F64 | None = None


@dataclass
class Timing:
    """The result. begins, ends: of each job, in seconds; no end in the background.

    iterations: of each job and pass, of the last repetition: its begin, then the end of each iteration as a mean over
    ranks. lasts: the same for the last rank of each. bits, full_s: (links,). at_most: steps with many flows take so
    many times the seconds here at most. unsettled: sets of flows whose pauses do not settle. no_pauses: some sets had
    too many flows for pauses. mixed: sets with a paused link whose flows wait at different links. packets: times that a
    packet crossed a link, of a PacketEngine. ring: the links of a deadlock of pauses, which ended it: no time counts.
    """

    begins: list[float | None]
    ends: list[float | None]
    iterations: list[list[list[float]]]
    lasts: list[list[list[float]]]
    bits: F64
    full_s: F64
    seconds: float = 0.0
    events: int = 0
    at_most: float = 1.0
    unsettled: int = 0
    no_pauses: bool = False
    mixed: int = 0
    packets: int = 0
    ring: tuple[int, ...] = ()


class RunningPass:
    """A pass of a job that runs."""

    def __init__(self, tasks: Tasks, since: float) -> None:
        many = len(tasks.flows)
        self.tasks, self.left = tasks, many
        self.needs, self.times, self.parts = list(tasks.needs), list(tasks.times), [0] * many
        self.begun, self.marks = [0.0] * many, dict[int, tuple[F64, int]]()
        self.of_end = {task: at for at, ends in enumerate(tasks.ends) for task in ends}
        self.ended: list[list[float]] = [[] for _ in tasks.ends]
        self.since = since


class Engine:
    """One simulation. states: the network, and what it becomes at later times. log: keep the times of all messages.

    watch: a job; `marks` then has its begin and its end, each with the bits that every flow has carried until then.
    many: flows of a wave beyond which their rates are not computed one by one; its time is between bounds then, which
    are equal for flows with equal bits.
    """

    def __init__(
        self, states: Sequence[NetworkState], courses: Sequence[Course], *, log: bool = False, watch: int = -1,
        many: int = _MANY,
    ) -> None:  # fmt: skip
        self._state, self._courses, self._many = states[0], courses, many
        flows, links = self._state.paths.flows, self._state.paths.links
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._changes = 0
        self._passes: list[RunningPass | None] = [None] * len(courses)
        self._begun = [0] * len(courses)  # passes so far
        self._job = np.full(flows, -1, dtype=np.int32)  # whose message a flow carries; -1: none
        self._task = np.full(flows, -1, dtype=np.int32)
        self._rest, self._sent, self._size = np.zeros(flows), np.zeros(flows), np.zeros(flows)
        self._waits = np.zeros(flows, dtype=bool)
        self._queues: dict[int, deque[tuple[int, int, float]]] = {}
        self._rates: dict[bytes, tuple[F64, Bools]] = {}
        self._now = 0.0
        self._log: list[tuple[I64, F64, F64, F64]] | None = [] if log else None
        self._since = np.zeros(flows)
        self._watch, self.marks = watch, list[tuple[float, F64]]()
        self.times = Timing(
            [None] * len(courses), [None] * len(courses), [[[] for _ in each.passes] for each in courses],
            [[[] for _ in each.passes] for each in courses],
            np.zeros(links), np.zeros(links),
        )  # fmt: skip
        for state in states[1:]:
            self._at(state.from_s, partial(self._becomes, state))
        for number, each in enumerate(courses):
            if each.after < 0:
                self._at(each.start_s, partial(self._next_pass, number))

    def run(self) -> Timing:
        """Until all jobs that end have ended. CheckError when one cannot."""
        while not self._over():
            self._step()
            self.times.events += 1
        self.times.bits += self._state.paths.load(self._sent - self._rest)
        self.times.seconds = self._now
        return self.times

    @property
    def messages(self) -> tuple[I64, F64, F64, F64]:
        """Columns of all messages, by their ends: flow, bits, begin and end of its bits in seconds."""
        flow, bits, begin, end = zip(*self._log or [_NO_MESSAGE], strict=True)
        return np.concatenate(flow), np.concatenate(bits), np.concatenate(begin), np.concatenate(end)

    def _over(self) -> bool:
        return all(end is not None for end, each in zip(self.times.ends, self._courses, strict=True) if each.repeat)

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time_s, self._count, event))

    def _becomes(self, state: NetworkState) -> None:
        self.times.bits += self._state.paths.load(self._sent - self._rest)
        self._sent = self._rest.copy()
        self._state = state
        self._rates.clear()
        self._changes += 1

    def _step(self) -> None:
        """Go to the next event: flows that end, or what the heap has."""
        active = np.flatnonzero(self._job >= 0)
        until = self._heap[0][0] if self._heap else np.inf
        if len(active):
            rates, full = self._rates_of(active)
            rest = self._rest[active]
            lasts = np.divide(rest, rates, out=np.full(len(rest), np.inf), where=rates > 0)
            lasts[np.isinf(rates)] = 0.0
            least = float(lasts.min())
            if not np.isfinite(min(least, until)):
                raise self._endless(self._job[active].tolist(), "a flow has no path, or a link without a rate")
            step = min(least, max(0.0, until - self._now))
            self.times.full_s[full] += step
            done = lasts <= step * (1 + _SAME)
            self._rest[active] = rest - np.where(done, rest, rates * step)
            self._now += step
            if done.any():
                self._flows_end(active[done])
        elif self._heap:
            self._now = until
        else:
            waiting = [job for job, end in enumerate(self.times.ends) if end is None]
            raise self._endless(waiting, "its operations wait for each other")
        while self._heap and self._heap[0][0] <= self._now * (1 + 1e-15):
            heapq.heappop(self._heap)[2]()

    def _endless(self, jobs: Sequence[int], why: str) -> CheckError:
        names = ", ".join(sorted({self._courses[job].name or "the job" for job in jobs}))
        return CheckError(Problem("", names, f"never ends: {why}"))

    def _rates_of(self, active: I64) -> tuple[F64, Bools]:
        """The rates of the active flows, and which links are full.

        Many flows of one wave alone take as long as the link with the most to carry, at least. At most they take as if
        each had as many bits as the largest: then all that this link has are equal, and max-min keeps it full.
        """
        state, many = self._state, len(active) > self._many
        wave = self._task[active] if many else active
        if many and wave[0] == wave[-1] and (wave == wave[0]).all() and np.isinf(state.limit[active]).all():
            rest = self._rest[active]
            with np.errstate(divide="ignore", invalid="ignore"):
                seconds = np.nan_to_num(state.paths.load(self._rest) / state.capacity, posinf=np.inf)
            longest = float(seconds.max())
            same = np.zeros(len(self._rest))
            same[active] = float(rest.max())
            with np.errstate(divide="ignore", invalid="ignore"):
                most = float(np.nan_to_num(state.paths.load(same) / state.capacity, posinf=np.inf).max())
            self.times.at_most = max(self.times.at_most, most / longest if np.isfinite(longest) else 1.0)
            return rest / longest, seconds >= longest * (1 - 1e-9)
        flight = None if many or state.flight is None else np.where(
            self._waits[active], state.flight[active], np.minimum(state.flight[active], self._size[active])
        )  # fmt: skip
        self.times.no_pauses |= many and state.flight is not None
        key = b"" if many else active.tobytes() + (b"" if flight is None else flight.tobytes())
        if key and key in self._rates:
            return self._rates[key]
        own = state.paths.only(active)
        if flight is None:
            rates = max_min(own, state.capacity, state.limit[active])
        else:
            rates, settled, mixed = paused_rates(own, state.capacity, state.limit[active], state.xoff, flight)
            self.times.unsettled += not settled
            self.times.mixed += mixed
        load = own.load(np.where(np.isfinite(rates), rates, 0.0))
        full: Bools = (load > 0) & (load >= state.capacity * (1 - 1e-9))
        if key:
            if len(self._rates) >= _KEPT:
                self._rates.clear()
            self._rates[key] = rates, full
        return rates, full

    # passes and tasks

    def _next_pass(self, job: int) -> None:
        course = self._courses[job]
        turn = self._begun[job]
        if turn == 0:
            self.times.begins[job] = self._now
        if job == self._watch and turn in (0, course.repeat * len(course.passes)):
            self.marks.append((self._now, self._sent - self._rest))
        if course.repeat and turn == course.repeat * len(course.passes):
            self.times.ends[job] = self._now
            self._passes[job] = None
            for number, each in enumerate(self._courses):
                if each.after == job:
                    self._at(self._now + each.start_s, partial(self._next_pass, number))
            return
        self._begun[job] += 1
        running = self._passes[job] = RunningPass(course.passes[turn % len(course.passes)], self._now)
        for task, needs in enumerate(running.tasks.needs):
            if not needs:
                self._free(job, running, task)

    def _free(self, job: int, running: RunningPass, task: int) -> None:
        """All that a task waited for is there."""
        compute = running.tasks.compute_s[task]
        running.begun[task] = self._now
        if compute:
            self._at(self._now + compute, partial(self._sends, job, running, task))
        else:
            self._sends(job, running, task)

    def _sends(self, job: int, running: RunningPass, task: int) -> None:
        flows, bits = running.tasks.flows[task], running.tasks.bits[task]
        if not len(flows):
            self._released(job, running, task)
            return
        running.parts[task] = len(flows)
        self._changes += 1
        if running.times[task] > 1 and not (self._job >= 0).any():
            running.marks[task] = self.times.full_s.copy(), self._changes
        busy = self._job[flows] >= 0
        for flow, amount in zip(flows[busy].tolist(), bits[busy].tolist(), strict=True):
            self._queues.setdefault(flow, deque()).append((job, task, amount))
            self._waits[flow] = True
        own = flows[~busy]
        self._job[own], self._task[own] = job, task
        self._rest[own] = self._size[own] = bits[~busy]
        self._since[own] = self._now
        self._sent[own] += bits[~busy]

    def _flows_end(self, flows: I64) -> None:
        jobs, tasks = self._job[flows], self._task[flows]
        self._job[flows] = self._task[flows] = -1
        if self._log is not None:
            self._log.append((flows, self._size[flows], self._since[flows], np.full(len(flows), self._now)))
        for flow in flows[self._waits[flows]].tolist():
            queue = self._queues[flow]
            job, task, amount = queue.popleft()
            self._waits[flow] = bool(queue)
            self._job[flow], self._task[flow], self._rest[flow] = job, task, amount
            self._size[flow], self._since[flow] = amount, self._now
            self._sent[flow] += amount
        both, many = np.unique(jobs.astype(np.int64) << 32 | tasks, return_counts=True)
        for each, count in zip(both.tolist(), many.tolist(), strict=True):
            self._part_ends(each >> 32, each & 0xFFFFFFFF, count)

    def _part_ends(self, job: int, task: int, count: int) -> None:
        """Some flows of a task have carried its bits."""
        if (running := self._passes[job]) is None:
            return
        running.parts[task] -= count
        if running.parts[task]:
            return
        last = running.begun[task] + running.tasks.compute_s[task]
        last_time = task in running.of_end and running.times[task] == 1
        sent = self._now if last_time else last + (self._now - last) / running.tasks.messages[task]
        after = sent + running.tasks.delay_s[task]
        self._at(max(self._now, after), partial(self._released, job, running, task))

    def _released(self, job: int, running: RunningPass, task: int) -> None:
        """What waits for a task may begin; or the task begins again."""
        tasks = running.tasks
        running.times[task] -= 1
        if (left := running.times[task]) > 0:
            period = self._now - running.begun[task]
            until = self._heap[0][0] if self._heap else np.inf
            full_s, changes = running.marks.pop(task, (self.times.full_s, -1))
            quiet = changes == self._changes and not (self._job >= 0).any()  # nothing else has begun meanwhile
            skip = min(left, int(min((until - self._now) / period, left)) if period else left) if quiet else 0
            if skip:
                self._sent[tasks.flows[task]] += skip * tasks.bits[task]
                self.times.full_s += skip * (self.times.full_s - full_s)
                self._now += skip * period
                running.times[task] -= skip
            if running.times[task] > 0:
                self._free(job, running, task)
                return
        if task in running.of_end:
            running.ended[running.of_end[task]].append(self._now)
        for other in tasks.after[task]:
            running.needs[other] -= 1
            if not running.needs[other]:
                self._free(job, running, other)
        running.left -= 1
        if not running.left:
            turn = (self._begun[job] - 1) % len(self._courses[job].passes)
            means = [sum(each) / len(each) for each in running.ended if each]
            self.times.iterations[job][turn] = [running.since, *means]
            self.times.lasts[job][turn] = [running.since, *(max(each) for each in running.ended if each)]
            self._next_pass(job)
