"""The loop of the PFC agent in Python: what heddle/switch/compiled/pfcloop.c does, for tests that compare the two."""

from __future__ import annotations

import ctypes
import heapq
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from heddle.base.ethernet import CLASSES
from heddle.kernel.libbpf import Map, library
from heddle.kernel.libc import libc
from heddle.kernel.ringbuffer import KINDS, open_ring
from heddle.switch.pfc.agent import ROUNDS, Agent
from heddle.switch.pfc.loop import EXPIRE, REFRESH, RELOAD, Work, new_timer
from heddle.switch.pfc.pauses import PAUSED
from heddle.switch.pfc.world import Page, World

libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_TFD_TIMER_ABSTIME: Final = 1
_S: Final = 10**9
_EVENT: Final = struct.Struct("=QIBBxx8H")


class Event(NamedTuple):
    """An event, with its time (ns, CLOCK_MONOTONIC). number: the class; for `pfc` the vector of lossless classes.

    xoff, xon: an ingress port's occupancy crossed a threshold; its peer must pause or resume. pfc: a pause frame
    arrived by `port`; quanta by class, 0: resume.
    """

    ns: int
    port: int
    kind: str
    number: int
    quanta: tuple[int, ...]


class Events:
    """The reader of the ring buffer. Only one process at a time may read: the read position is in the map."""

    def __init__(self, ring: Map) -> None:
        self._found: list[Event] = []
        self._callback = _Sample(self._take)  # libbpf keeps the pointer
        self._ring: int | None = open_ring(ring, self._callback, None)

    def fileno(self) -> int:
        """The descriptor for select, poll and epoll: readable when events wait."""
        return int(library().ring_buffer__epoll_fd(self._ring))

    def read(self) -> list[Event]:
        """All waiting events."""
        assert library().ring_buffer__consume(self._ring) >= 0
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Unmap the ring, once."""
        if self._ring:
            library().ring_buffer__free(self._ring)
        self._ring = None

    def _take(self, _: Any, data: int, size: int) -> int:
        ns, port, kind, number, *quanta = _EVENT.unpack(ctypes.string_at(data, size)[: _EVENT.size])
        self._found.append(Event(ns, port, KINDS[kind], number, tuple(quanta)))
        return 0


_Sample = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def waiting_events(ring: Map) -> list[Event]:
    """The events of a lab that were not read yet."""
    reader = Events(ring)
    try:
        return reader.read()
    finally:
        reader.close()


class Timers:
    """Deadlines in ns of CLOCK_MONOTONIC, at most one for each (kind, index). A signal handler may push at any time.

    Most pauses end before any of their deadlines. So `cancel` leaves the entry in the heap, where it is skipped, and
    `arm` leaves the kernel's timer where it is if that is early enough: one that expires for nothing now and then costs
    less than two settings per pause.
    """

    def __init__(self) -> None:
        self._fd = new_timer()
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval, then the moment
        self._heap: list[tuple[int, int, int]] = []
        self._valid: dict[tuple[int, int], int] = {}
        self._armed = 0  # 0: not set, or its expiry has been read

    def fileno(self) -> int:
        """The descriptor, readable once the earliest deadline has passed."""
        return self._fd

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""
        self._valid[kind, index] = when
        heapq.heappush(self._heap, (when, kind, index))

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""
        self._valid.pop((kind, index), None)

    def due(self, now: int) -> tuple[int, int, int] | None:
        """Remove and return the earliest deadline that has passed; None when there is none."""
        while self._heap and self._heap[0][0] <= now:
            when, kind, index = heapq.heappop(self._heap)
            if self._valid.get((kind, index)) == when:
                del self._valid[kind, index]
                return when, kind, index
        return None

    def arm(self) -> None:
        """Make the kernel's timer expire no later than the earliest deadline; call it before waiting."""
        first = self._first()
        if first and not 0 < self._armed <= first:
            self._spec[2], self._spec[3] = divmod(first, _S)
            libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)
            self._armed = first

    def _first(self) -> int:
        """The earliest deadline, at least 1; 0 when there is none."""
        while self._heap:
            when, kind, index = self._heap[0]
            if self._valid.get((kind, index)) == when:
                return max(1, when)
            # A signal handler may have pushed an earlier one since: only what is no deadline is thrown away.
            entry = heapq.heappop(self._heap)
            if self._valid.get(entry[1:]) == entry[0]:
                heapq.heappush(self._heap, entry)
        return 0

    def rang(self) -> None:
        """Reset the descriptor after it became readable."""
        self._armed = 0
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # the timer was set to another time meanwhile

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class ReferenceLoop:
    """The loop in Python."""

    def __init__(
        self, page: Page, events: int, take: Callable[[], None], hot: Mapping[int, Callable[[int, int], None]]
    ) -> None:
        """events: their descriptor. take: handles all of them. hot: kind of deadline -> handler (index, now)."""
        self._epoll = select.epoll()
        self._page, self._take, self._hot = page, take, hot
        self._timers = Timers()
        self._events, self._timer = events, self._timers.fileno()
        self.add(self._events)
        self.add(self._timer)

    def add(self, fd: int) -> None:
        """Report when this descriptor is readable."""
        self._epoll.register(fd, select.EPOLLIN)

    def rules_changed(self) -> None:
        """Nothing: handlers in Python read the rules themselves."""

    def forget(self, node: str) -> None:
        """Nothing: handlers in Python look into World."""

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""
        self._timers.push(when, kind, index)
        if kind == RELOAD:  # from a signal handler, which may interrupt a wait: the kernel's timer ends it
            self._timers.arm()

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""
        self._timers.cancel(kind, index)

    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that."""
        timers, hot = self._timers, self._hot
        while True:
            now = self._page.heartbeat_ns = monotonic_ns()
            works = []
            while (due := timers.due(now)) is not None:
                _, kind, index = due
                if (handler := hot.get(kind)) is not None:
                    handler(index, now)
                else:
                    works.append(Work(-1, kind, index))
            if works:
                return works
            timers.arm()
            for fd, _ in self._epoll.poll():
                if fd == self._events:
                    self._take()
                elif fd == self._timer:
                    timers.rang()
                else:
                    works.append(Work(fd, 0, 0))
            if works:
                return works

    def close(self) -> None:
        """Close its own descriptors."""
        self._epoll.close()
        self._timers.close()


class ReferenceAgent(Agent):
    """An agent whose loop and whose handlers of events and of the first two kinds of deadlines are in Python."""

    _events: Any

    def __init__(self, world: World) -> None:
        self._hot: dict[int, Callable[[int, int], None]] = {}
        super().__init__(world)
        self._hot |= {REFRESH: self._refresh, EXPIRE: self._expire}

    def _new_loop(self) -> Any:
        queues: Any = self._world.queues  # the tests' own, which have the events that they write
        self._events = queues.events()
        return ReferenceLoop(self._world.page, self._events.fileno(), self._take_events, self._hot)

    def _take_events(self) -> None:
        # A frame that is sent in one round is an event of its receiver in the next: one wake-up serves both.
        for _ in range(ROUNDS):
            events = self._events.read()
            if not events:
                return
            for event in events:
                if event.kind == "pfc":
                    number, vector = 0, event.number
                    while vector:
                        if vector & 1:
                            self._hear(event.port * CLASSES + number, event.quanta[number], event.ns)
                        number, vector = number + 1, vector >> 1
                else:
                    self._pauses.settle(event.port * CLASSES + event.number, time.monotonic_ns())

    def _hear(self, index: int, quanta: int, heard: int) -> None:
        """Obey a pause frame for one class of one port. heard: arrival time, ns. quanta: 0 means Xon."""
        if index not in self._world.gates or not self._rules.pfc[index]:
            return
        if not quanta:
            if self._until[index]:
                self._open(index, time.monotonic_ns())
            return
        self._rows.heard[index] = heard
        if self._rows.storming[index]:
            return
        until = heard + int(quanta * self._rules.quantum_ns[index // CLASSES])
        if self._until[index]:  # already closed: the newest frame sets the end
            self._until[index] = until
            if until < self._rows.checked[index]:
                self._watch(index, until)
            return
        now = time.monotonic_ns()
        if until <= now:  # the pause was over before this process read the frame
            return
        space, port, number = self._world.gates[index]
        # Before the kernel closes the gate: if this process is killed in between, the gate is recorded as closed.
        self._until[index] = until
        self._since[index] = now
        space.close(port, number)
        self._rows.arrived[index], self._rows.shut[index] = heard, time.monotonic_ns()
        self._watch(index, until)
        self._watchdog.closed(index, now)

    def _expire(self, index: int, now: int) -> None:
        until = int(self._until[index])
        if until > now:  # the pause was extended meanwhile
            self._watch(index, until)
        elif until:
            self._open(index, now)

    def _refresh(self, index: int, now: int) -> None:
        """Repeat or end a pause, when half of it is over."""
        pauses = self._pauses
        pauses._asked[index] = 0
        if pauses._state[index] == PAUSED and self._rules.pfc[index]:
            pauses._ask(index, now)
        else:
            pauses._send(index, False)
