"""The loop of the PFC agent in Python: what heddle/switch/compiled/pfcloop.c does, for tests that compare the two."""

from __future__ import annotations

import ctypes
import select
import struct
import time
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from heddle.base.ethernet import CLASSES
from heddle.kernel.libbpf import KINDS, Map, library, open_ring
from heddle.switch.pfc.agent import PAUSED, ROUNDS, Agent
from heddle.switch.pfc.loop import EXPIRE, REFRESH, Work
from heddle.switch.pfc.world import Page, World

_S: Final = 10**9
_EVENT: Final = struct.Struct("=QIBBxx8H")
_Sample = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


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


def waiting_events(ring: Map) -> list[Event]:
    """The events of a lab that were not read yet. Only one process at a time may read: the position is in the map."""
    found: list[Event] = []

    def take(_: Any, data: int, size: int) -> int:
        ns, port, kind, number, *quanta = _EVENT.unpack(ctypes.string_at(data, size)[: _EVENT.size])
        found.append(Event(ns, port, KINDS[kind], number, tuple(quanta)))
        return 0

    callback = _Sample(take)  # libbpf keeps the pointer
    reader = open_ring(ring, callback, None)
    try:
        assert library().ring_buffer__consume(reader) >= 0
    finally:
        library().ring_buffer__free(reader)
    return found


class DeadlineTable:
    """Deadlines in ns of CLOCK_MONOTONIC, at most one for each (kind, index)."""

    def __init__(self) -> None:
        self.pending: dict[tuple[int, int], int] = {}

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""
        self.pending[kind, index] = when

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""
        self.pending.pop((kind, index), None)

    def due(self, now: int) -> tuple[int, int, int] | None:
        """Remove and return the earliest deadline that has passed; None when there is none."""
        first = min(((when, *key) for key, when in self.pending.items()), default=None)
        if first is None or first[0] > now:
            return None
        del self.pending[first[1:]]
        return first


class ReferenceLoop(DeadlineTable):
    """The loop in Python, for events and deadlines; it watches no other descriptors."""

    def __init__(
        self, page: Page, events: int, take: Callable[[], None], hot: Mapping[int, Callable[[int, int], None]]
    ) -> None:
        """events: their descriptor. take: handles all of them. hot: kind of deadline -> handler (index, now)."""
        super().__init__()
        self._page, self._events, self._take, self._hot = page, events, take, hot

    def add(self, fd: int) -> None:
        """Nothing: no other descriptor becomes readable in these tests."""

    def rules_changed(self) -> None:
        """Nothing: handlers in Python read the rules themselves."""

    def forget(self, node: str) -> None:
        """Nothing: handlers in Python look into World."""

    def close(self) -> None:
        """Nothing: it has no descriptors of its own."""

    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that."""
        while True:
            now = self._page.heartbeat_ns = monotonic_ns()
            works = []
            while (due := self.due(now)) is not None:
                _, kind, index = due
                if (handler := self._hot.get(kind)) is not None:
                    handler(index, now)
                else:
                    works.append(Work(-1, kind, index))
            if works:
                return works
            left = max(0.0, (min(self.pending.values()) - monotonic_ns()) / _S)
            if select.select([self._events], [], [], left)[0]:
                self._take()


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
