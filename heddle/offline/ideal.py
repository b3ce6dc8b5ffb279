"""The ideal iteration of a job: its own schedule on NICs alone, as a bound for measured times.

In:  a plan. Out: seconds (emulated) of an iteration, for a size.
An event simulation. A NIC sends one message after the other at its rate, in the order in which they are ready. The
receiver's NIC takes them at its rate, in the order of their first bits. Between them is the propagation of the path.
Copies inside a host pass their sender's link one after the other, and no NIC (endpoints/worker.py).
It assumes that nothing else takes time: no queue, no loss, no acknowledgement, no window, no work on data. All ranks
begin together. It is not the shortest possible time: another order of messages may be shorter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from heddle.endpoints.connections import part_sizes
from heddle.offline.columns import cutting_of
from heddle.traffic.plan import Plan
from heddle.traffic.schedule import Key, Local, Schedule, Send, build_schedule

_ITERATIONS: Final = 5  # that are timed: in the first ones, ranks that send or receive less can get ahead
_LEAST: Final = 2
_USUAL_MESSAGES: Final = 40_000  # in all iterations: about a second of simulation
_MOST_MESSAGES: Final = 400_000  # with the least number of iterations


class _At(NamedTuple):
    """A rank in an iteration."""

    iteration: int
    rank: int


class NicLimits(NamedTuple):
    """What limits messages. nics: the NIC of each rank; rates_bps: of each rank's NIC.

    wire_bytes: of a message, by its length. delays_s: from rank to rank, one way. inside_bps: of pairs without a delay,
    which copy inside their host.
    """

    nics: Sequence[str]
    rates_bps: Sequence[float]
    wire_bytes: Callable[[int], int]
    delays_s: Mapping[tuple[int, int], float]
    inside_bps: float = 0.0


class Simulation:
    """Iterations of ranks with these schedules. ends: the end of each iteration, by rank."""

    def __init__(self, schedules: Sequence[Schedule], links: NicLimits, iterations: int) -> None:
        self._schedules, self._links, self._iterations = schedules, links, iterations
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        self._sends, self._takes = dict.fromkeys(links.nics, 0.0), dict.fromkeys(links.nics, 0.0)  # when it is free
        self._copies: dict[int, float] = {}  # by rank, when its link inside the host is free
        self._needs: dict[_At, list[int]] = {}
        self._missing: dict[_At, int] = {}
        self._early: dict[_At, list[Key]] = {}
        self.ends: list[list[float]] = [[] for _ in schedules]
        for rank in range(len(schedules)):
            self._begin(_At(0, rank), 0.0)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, event))

    def _begin(self, at: _At, now: float) -> None:
        schedule = self._schedules[at.rank]
        needs = self._needs[at] = [len(action.needs) for action in schedule.actions]
        self._missing[at] = schedule.operations
        free = [index for index, many in enumerate(needs) if not many]
        self._done(at, [key for index in free for key in self._start(at, index, now)], now)
        self._done(at, self._early.pop(at, []), now)
        if not schedule.operations:
            self._end(at, now)

    def _done(self, at: _At, keys: Sequence[Key], now: float) -> None:
        """Receives or computations are done: start what waited for them."""
        done = [*keys]
        while done:
            self._missing[at] -= 1
            for index in self._schedules[at.rank].waiting.get(done.pop(), ()):
                self._needs[at][index] -= 1
                if not self._needs[at][index]:
                    done += self._start(at, index, now)
        if keys and not self._missing[at]:
            self._end(at, now)

    def _end(self, at: _At, now: float) -> None:
        self.ends[at.rank].append(now)
        del self._needs[at], self._missing[at]
        if at.iteration + 1 < self._iterations:
            self._begin(_At(at.iteration + 1, at.rank), now)

    def _start(self, at: _At, index: int, now: float) -> Sequence[Key]:
        """Begin a computation or a message; return what takes no time."""
        action, links = self._schedules[at.rank].actions[index], self._links
        if isinstance(action, Local):
            return (action.key,)
        if not isinstance(action, Send):
            if not action.seconds:
                return (action.key,)
            self._at(now + action.seconds, lambda then: self._done(at, (action.key,), then))
            return ()
        there = _At(at.iteration, action.peer)
        if (at.rank, action.peer) not in links.delays_s:
            ends = max(now, self._copies.get(at.rank, 0.0)) + 8 * (action.hi - action.lo) / links.inside_bps
            self._copies[at.rank] = ends
            self._at(ends, lambda then: self._taken(there, action.key, then))
            return ()
        nic, bits = links.nics[at.rank], 8 * links.wire_bytes(action.hi - action.lo)
        begin = max(now, self._sends[nic])
        self._sends[nic] = begin + bits / links.rates_bps[at.rank]
        delay = links.delays_s[at.rank, action.peer]
        last = self._sends[nic] + delay
        self._at(begin + delay, lambda then: self._take(there, action.key, bits, last, then))
        return ()

    def _take(self, at: _At, key: Key, bits: float, last: float, now: float) -> None:
        """The first bit of a message is at its receiver. last: when its last bit is there."""
        nic = self._links.nics[at.rank]
        self._takes[nic] = max(last, max(now, self._takes[nic]) + bits / self._links.rates_bps[at.rank])
        self._at(self._takes[nic], lambda then: self._taken(at, key, then))

    def _taken(self, at: _At, key: Key, now: float) -> None:
        if at in self._needs:
            self._done(at, (key,), now)
        else:
            self._early.setdefault(at, []).append(key)


def ideal_seconds(plan: Plan, size: int) -> float | None:
    """Seconds of an iteration of one size: the mean over ranks and timed iterations, as in the table of a run.

    None: with too many messages for a simulation. size: bytes, of the plan's.
    """
    options, pattern = plan.options, plan.pattern
    count = size // pattern.element_bytes
    schedules = [build_schedule(pattern, plan.size, rank, count, options.chunk) for rank in range(plan.size)]
    messages = max(1, sum(len(each.actions) for each in schedules))
    warmup = min(1, options.warmup)
    usual = max(_LEAST, min(_ITERATIONS, _USUAL_MESSAGES // messages - warmup))
    timed = min(usual, options.iters, _MOST_MESSAGES // messages - warmup)
    if timed < 1:
        return None
    found = []
    delays = {(qp.flow.src_rank, qp.flow.dst_rank): qp.rtt_s / 2 for qp in plan.qps if qp.index == 0}
    for members in plan.communicators:
        ends = [plan.endpoints[rank] for rank in members]
        number = {rank: place for place, rank in enumerate(members)}
        own = {(number[a], number[b]): delay for (a, b), delay in delays.items() if a in number and b in number}
        nics, rates_bps = [end.nic for end in ends], [end.rate_bps for end in ends]
        links = NicLimits(nics, rates_bps, _wire_bytes(plan), own, plan.inside_bps)
        for each in Simulation(schedules, links, warmup + timed).ends:
            found.append((each[-1] - (each[0] if warmup else 0.0)) / timed)
    return sum(found) / len(found)


def _wire_bytes(plan: Plan) -> Callable[[int], int]:
    cut = cutting_of(plan)

    @cache
    def wire_bytes(length: int) -> int:
        parts = [size for _, size in part_sizes(length, cut.qps)] if cut.qp_mode == "split" else [length]
        return int(cut.frames(np.array(parts, dtype=np.int64)).sum())

    return wire_bytes
