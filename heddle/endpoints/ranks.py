"""A rank: its arrays, its memory for writes of its peers, and its progress. It learns only from arriving messages.

In:  a Plan, a rank, and for each peer the QPs to it.
Out: results per size: seconds, and the number of errors in all iterations (elements.py).
Addresses on the wire identify their data (connections.py). An epoch is one iteration; it ends when all operations of
the schedule are done. A neighbour is at most one epoch ahead: its epoch needs data of this rank, or its credit
(traffic/collectives/pattern.py).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints import connections
from heddle.endpoints.elements import Elements, Expected, Numbers, RankArrays
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.reports import RankJournal, SizeResult
from heddle.traffic.collectives.pattern import Buffer, Pattern
from heddle.traffic.options import RunOptions
from heddle.traffic.schedule import Compute, Divisors, Key, Local, Receive, Schedule, build_schedule

Item = TypeVar("Item")


class Pace(Generic[Item]):
    """Messages that a slow rank has to process, one after the other, each at the same rate. bytes_per_s: that rate."""

    __slots__ = ("_rate", "_until", "_waiting")

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._until = 0.0  # when all messages so far are processed
        self._waiting: deque[tuple[float, Item]] = deque()

    @property
    def due(self) -> float:
        """When the next message is processed; NEVER if there is none."""
        return self._waiting[0][0] if self._waiting else NEVER

    def add(self, item: Item, size: float, now: float) -> None:
        """A complete message of `size` bytes."""
        self._until = max(self._until, now) + size / self._rate
        self._waiting.append((self._until, item))

    def done(self, now: float) -> Item | None:
        """The next message whose processing has ended, or None."""
        return self._waiting.popleft()[1] if self._waiting and self._waiting[0][0] <= now else None


class PostingPace(Pace[Callable[[], None]]):
    """The messages that a rank posts, when its thread has time for them (traffic/options.py).

    post_s, turn_s: time for each message, and for each `batch` of them, or a shorter rest.
    """

    __slots__ = ("_batch", "_count", "_post_s", "_turn_s")

    def __init__(self, post_s: float, turn_s: float, batch: int) -> None:
        super().__init__(1.0)
        self._post_s, self._turn_s, self._batch = post_s, turn_s, batch
        self._count = 0  # messages since the NIC had nothing to post

    def post(self, message: Callable[[], None], now: float) -> None:
        """A message, as the call that gives it to the NIC."""
        self._count = self._count + 1 if self.due < NEVER else 0
        self.add(message, self._post_s + (0.0 if self._count % self._batch else self._turn_s), now)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a rank waits for: `missing` of the `messages` of an epoch, the first of them `key` from rank `peer`."""

    epoch: int
    missing: int
    messages: int
    key: Key
    peer: int


@dataclass(slots=True)
class _Staged:
    """An incoming message: its bytes, the number of missing parts, the callback after its use, when it was complete."""

    data: NDArray[np.uint8]
    parts: int
    used: Callable[[], None] | None = None
    at: float = 0.0


class Rank:
    """Runs one rank through all sizes and iterations. It is also the `Access` of the QPs that end here.

    totals: for each size the reduction of all inputs, if the pattern reduces. wants: with admission. bytes_per_s: the
    rate at which a slow rank processes messages; it applies them and sends what depends on them later. 0: at once.
    repeat: how often it runs through all sizes; 0: again and again. inside: peers whose messages come by no NIC.
    """

    def __init__(
        self,
        options: RunOptions,
        pattern: Pattern,
        ranks: int,
        rank: int,
        rkey: int,
        links: Mapping[int, connections.Connection],
        peer_keys: Mapping[int, int],
        totals: Mapping[int, Numbers],
        clock: Callable[[], float] = time.monotonic,
        destinations: connections.Destinations | None = None,
        wants: connections.Wants | None = None,
        bytes_per_s: float = 0.0,
        repeat: int = 1,
        inside: Set[int] = frozenset(),
        posting: PostingPace | None = None,
    ) -> None:
        self.rank = rank
        self.results: list[SizeResult] = []
        self._options = options
        self._pattern = pattern
        self._elements, self._ranks = Elements.of(pattern, ranks), ranks
        self._rkey = rkey
        self._links = links
        self._peer_keys = peer_keys
        self._totals = totals
        self._clock = clock
        self._destinations = destinations
        self._wants = wants
        self._pace: Pace[tuple[int, Key]] | None = Pace(bytes_per_s) if bytes_per_s else None
        self._posting = posting
        self._epoch = -1  # of the whole run
        self._passes = options.passes(pattern)
        self._size_index = -1  # of the whole run; a size that is measured in place, too, counts twice
        self._sizes = repeat * len(self._passes) or math.inf  # that it runs through
        self._iteration = 0
        self._staged: dict[tuple[int, Key], _Staged] = {}
        self._early: list[tuple[int, Key]] = []  # complete messages of the next epoch
        self._schedules: dict[int, Schedule] = {}  # element count -> operations
        self._inside, self._announced = inside, dict[int, Schedule]()  # the same with receives by the NIC only
        self._input: Numbers = np.empty(0, np.float32)
        self._arrays = RankArrays(pattern, self._elements, rank, {}, (), in_place=pattern.in_place)
        self._expected = Expected((), self._elements, None)
        self._wrong = 0  # errors of this size, before its last iteration
        self._missing = 0
        self._beginning = False
        self._applied: set[Key] = set()  # messages of this epoch
        self._computing: list[tuple[float, Key]] = []  # a heap: when each computation ends
        self._sent: Counter[int] = Counter()  # peer -> messages of earlier epochs to it
        self._needs: list[int] = []
        self._began = 0.0
        self._ends: list[float] = []  # of the timed iterations of this size
        self.journal = RankJournal.of(ranks, len(self._passes))
        self.size_done = True  # waits for `next_size` and `begin`
        self.finished = False
        if destinations is not None:
            destinations.expect(0, self._by_nic(self._schedule(0)))

    # called by the worker

    @property
    def size(self) -> int:
        """The current size, or the one finished last, in bytes."""
        return self._passes[self._size_index % len(self._passes)][0]

    @property
    def timed(self) -> bool:
        """Whether `advance` is ever needed."""
        return (
            self._pace is not None
            or self._posting is not None
            or any(isinstance(action, Compute) and action.seconds for action in self._schedule(0).actions)
        )

    def next_size(self) -> None:
        """Create the arrays of the next size, for `begin`; set `finished` when there is none."""
        self._size_index += 1
        if self._size_index == self._sizes:
            self.finished = True
            return
        count = self._count(self._size_index)
        buffers = self._schedule(self._size_index).buffers
        pieces = self._pattern.result(self._ranks, self.rank, count)
        pieces = [replace(piece, buffer=self._pattern.buffer_of(piece)) for piece in pieces]
        in_place = self._passes[self._size_index % len(self._passes)][1]
        self._arrays = RankArrays(self._pattern, self._elements, self.rank, buffers, pieces, in_place=in_place)
        self._input = self._elements.input(self.rank, len(self._arrays.numbers("input", 0, unchanged=True)))
        self._expected = Expected(pieces, self._elements, self._totals.get(self.size))
        self._wrong = 0
        if self._destinations is not None:
            self._destinations.keep([*self._arrays])
        self._iteration = 0

    def begin(self) -> None:
        """Start the size that `next_size` has prepared; apply the messages that peers have already sent."""
        self.size_done = False
        self._begin_epoch()
        self._finish()

    @property
    def due(self) -> float:
        """When `advance` must be called; NEVER if the rank neither computes nor processes a message."""
        computed = self._computing[0][0] if self._computing else NEVER
        return min([computed, *(pace.due for pace in (self._pace, self._posting) if pace is not None)])

    def advance(self) -> None:
        """Use the messages that a slow rank has processed by now, post, and end computations, each at its time."""
        while self._posting is not None and (post := self._posting.done(self._clock())) is not None:
            post()
        while self._pace is not None and (found := self._pace.done(self._clock())) is not None:
            self._process(*found)
        while self._computing and self._computing[0][0] <= self._clock():
            self._done(heapq.heappop(self._computing)[1])

    def check(self) -> None:
        """Compare the last iteration's array with the expected one, and record the result of this size."""
        last = self._expected.wrong_elements(self._results(), self._epoch)
        lengths = tuple(np.diff([self._began, *self._ends]).tolist())
        self.results.append(SizeResult(self.size, self._ends[-1] - self._began, self._wrong + last, lengths))
        self.journal.end(self._epoch - self._options.iters + 1, self.size, self._began, self._ends)

    def _results(self) -> dict[Buffer, Numbers]:
        """The buffers with the result."""
        return {name: self._arrays.numbers(name, self._epoch) for name in self._expected.buffers}

    def waits(self) -> Waits | None:
        """What this rank waits for; None if it has finished its size, or only computes."""
        receives = self._schedule(self._size_index).receives if not self.size_done else {}
        missing = [key for key in receives if key not in self._applied]
        if not missing:
            return None
        first = min(missing)
        return Waits(self._epoch, len(missing), len(receives), first, receives[first].peer)

    # called by receiving ends of queue pairs

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """The destination of a write; None for a wrong key, or an address in no message of this or the next epoch."""
        low_bits, step, offset = connections.place_of(va)
        epoch = self._near_epoch(low_bits, 16)
        schedule = self._schedule_of(epoch) if epoch is not None else None
        if rkey != self._rkey or epoch is None or schedule is None:
            return None
        receive = self._receive_at(schedule, step, offset)
        if receive is None or offset + length > receive.hi:
            return None
        staged = self._staged.get((epoch, receive.key))
        if staged is None:
            size = receive.hi - receive.lo
            parts = len(connections.part_sizes(size, self._options.qps)) if self._options.qp_mode == "split" else 1
            staged = self._staged[(epoch, receive.key)] = _Staged(np.empty(size, np.uint8), parts)
        start = offset - receive.lo
        return staged.data.data[start : start + length]

    def arrived(self, imm: int) -> None:
        """Handle a complete message, or a complete part of one."""
        low_bits, key = connections.announced(imm)
        epoch = self._near_epoch(low_bits, connections.EPOCH_BITS)
        staged = self._staged.get((epoch, key)) if epoch is not None else None
        if staged is None or epoch is None:
            return
        staged.parts -= 1
        if not staged.parts:
            self._complete(epoch, key)

    def delivered(self, low_bits: int, key: Key, data: NDArray[np.uint8], used: Callable[[], None]) -> None:
        """Handle a complete message that was announced to `Destinations`.

        low_bits: the lower 16 of its epoch. used: called when `data` is not needed any more.
        """
        epoch = self._near_epoch(low_bits, 16)
        if epoch is None:
            raise ValueError(f"epoch {low_bits:#x} is neither this one nor the next")
        self._staged[(epoch, key)] = _Staged(data, 0, used)
        self._complete(epoch, key)

    def _complete(self, epoch: int, key: Key) -> None:
        self._staged[(epoch, key)].at = self._clock()
        if self._pace is None:
            self._process(epoch, key)
        else:
            self._pace.add((epoch, key), len(self._staged[(epoch, key)].data), self._clock())

    def _process(self, epoch: int, key: Key) -> None:
        if epoch == self._epoch and not self.size_done:
            self._apply(key)
        else:
            self._early.append((epoch, key))

    # the steps of an epoch

    def _begin_epoch(self) -> None:
        self._epoch += 1
        schedule = self._schedule(self._size_index)
        after = self._schedule_of(self._epoch + 1)
        if self._destinations is not None and after is not None:
            self._destinations.expect(self._epoch + 1, self._by_nic(after))
        source = self._arrays.begin(self._input, self._epoch)
        self._expected.copy_own(self.rank, source, self._results())
        self._needs = [len(action.needs) for action in schedule.actions]
        self._missing = schedule.operations
        self._applied.clear()
        self._divisors = Divisors(schedule.receives)
        if self._iteration == self._options.warmup:
            self._began, self._ends = self._clock(), []
        self.journal.begin(schedule, self._iteration, timed=self._iteration >= self._options.warmup)
        if self._wants is not None:
            self._wants.begin(self._epoch, self._by_nic(schedule))
        self._beginning = True
        for index in [index for index, needs in enumerate(self._needs) if needs == 0]:
            self._done(*self._start(schedule, index))
        early = [key for epoch, key in self._early if epoch == self._epoch]
        self._early = [(epoch, key) for epoch, key in self._early if epoch != self._epoch]
        for key in early:
            self._apply(key)
        self._beginning = False

    def _apply(self, key: Key) -> None:
        """Reduce or copy a complete message into its buffer."""
        receive = self._schedule(self._size_index).receives[key]
        staged = self._staged.pop((self._epoch, key))
        part = self._arrays.bytes_of(receive.buffer, self._epoch)[receive.lo : receive.hi]
        self._elements.merge(part, staged.data, receive.reduce, self._divisors.of(receive))
        if receive.peer not in self._inside:
            self.journal.used(self._epoch, key, len(staged.data), staged.at, self._clock())
        if staged.used is not None:
            staged.used()
        if self._wants is not None and receive.peer not in self._inside:
            self._wants.used(self._epoch, key)
        self._applied.add(key)
        self._done(key)

    def _done(self, *keys: Key) -> None:
        """Receives, computations or local steps are done: start what waited for them."""
        schedule, done = self._schedule(self._size_index), [*keys]
        while done:
            self._missing -= 1
            for index in schedule.waiting.get(done.pop(), ()):
                self._needs[index] -= 1
                if self._needs[index] == 0:
                    done += self._start(schedule, index)
        if not self._beginning:
            self._finish()

    def _finish(self) -> None:
        """End this epoch if all is done, and begin the next one; a rank without operations ends at once."""
        while not self._missing and not self.size_done:
            self._end_epoch()

    def _end_epoch(self) -> None:
        self._iteration += 1
        self._sent.update(self._schedule(self._size_index).messages)  # all are posted: their needs are done
        if self._iteration > self._options.warmup:
            self._ends.append(self._clock())
        if self._iteration < self._options.warmup + self._options.iters:
            # The array is overwritten soon, so this check must run inside the timed part.
            self._wrong += self._expected.wrong_elements(self._results(), self._epoch)
            self._begin_epoch()
        else:
            self.size_done = True

    def _start(self, schedule: Schedule, index: int) -> Sequence[Key]:
        """Pass a message to the QPs to its peer, or begin a computation; return what takes no time."""
        action = schedule.actions[index]
        if isinstance(action, Compute):
            if not action.seconds:
                return (action.key,)
            heapq.heappush(self._computing, (self._clock() + action.seconds, action.key))
            return ()
        source = self._arrays.bytes_of(action.buffer, self._epoch, unchanged=not action.needs)
        data = source[action.lo : action.hi]
        if isinstance(action, Local):
            into = self._arrays.bytes_of(action.into, self._epoch)
            self._elements.merge(into[action.put : action.put + len(data)], data, action.reduce)
            return (action.key,)
        va = connections.address_of(self._epoch, action.key[0], action.put)
        # Turns follow the order of the steps, not of arrivals: so each QP has the same messages in every run.
        turn = self._sent[action.peer] + action.turn
        imm = connections.announced_by(self._epoch, action.key)
        if action.peer not in self._inside:
            self.journal.posted(self._epoch, action, turn, self._clock())
        post = partial(self._links[action.peer].post, data, va, self._peer_keys[action.peer], imm, turn)
        if self._posting is None or action.buffer == "credit" or action.peer in self._inside:
            post()
        else:
            self._posting.post(post, self._clock())
        return ()

    # lookups

    def _near_epoch(self, low_bits: int, bits: int) -> int | None:
        """The epoch with these low bits, if it is this one or the next."""
        ahead = (low_bits - self._epoch) & ((1 << bits) - 1)
        return self._epoch + ahead if ahead <= 1 else None

    def _schedule_of(self, epoch: int) -> Schedule | None:
        size = epoch // (self._options.warmup + self._options.iters)
        return self._schedule(size) if 0 <= size < self._sizes else None

    def _count(self, size_index: int) -> int:
        return self._passes[size_index % len(self._passes)][0] // self._pattern.element_bytes

    def _schedule(self, size_index: int) -> Schedule:
        count, chunk = self._count(size_index), self._options.chunk
        found = self._schedules.get(count)
        if found is None:
            found = build_schedule(self._pattern, self._ranks, self.rank, count, chunk)
            self._schedules[count] = found
        return found

    def _by_nic(self, schedule: Schedule) -> Schedule:
        """Without the receives from peers inside the host."""
        if not self._inside:
            return schedule
        if (found := self._announced.get(id(schedule))) is None:  # `_schedules` keeps it alive
            receives = {key: each for key, each in schedule.receives.items() if each.peer not in self._inside}
            found = self._announced[id(schedule)] = replace(schedule, receives=receives)
        return found

    def _receive_at(self, schedule: Schedule, step: int, offset: int) -> Receive | None:
        """The message of `step` that contains byte `offset` of the array."""
        first = schedule.receives.get((step, 0))
        if first is None or offset < first.lo:
            return None
        found = schedule.receives.get((step, (offset - first.lo) // self._options.chunk))
        return found if found is not None and offset < found.hi else None
