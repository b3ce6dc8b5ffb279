"""What the agent waits for: events of the programs, deadlines, and descriptors.

All deadlines are on one kernel timer, in nanoseconds: epoll's own timeouts are whole milliseconds. ReferenceLoop is the
loop in Python; compiledloop.py has the one in C.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Final, NamedTuple

from heddle.kernel.libc import libc
from heddle.switch.pfc.world import Page

libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
# Kinds of deadlines. The compiled loop handles the first two itself, and sets DETECT, too.
REFRESH, EXPIRE, DETECT, RESTORE, LINK, TICK, RELOAD = range(7)
KINDS: Final = 7
_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_S: Final = 10**9


def new_timer() -> int:
    """A timer of the kernel on CLOCK_MONOTONIC: a descriptor, readable after it has expired. OSError without one."""
    fd = int(libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd


class Deadlines(ABC):
    """What the agent's parts need of deadlines: those of Python, or of the compiled loop."""

    @abstractmethod
    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""

    @abstractmethod
    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""


class Timers(Deadlines):
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


class Work(NamedTuple):
    """Something for the agent to do: fd is readable; or, when it is -1, a deadline of that kind and row has passed."""

    fd: int
    kind: int
    row: int


class Loop(Deadlines):
    """Deadlines, events and descriptors of one agent."""

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def add(self, fd: int) -> None:
        """Report when this descriptor is readable."""
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Report it no more; do it before it is closed."""
        self._epoll.unregister(fd)

    @abstractmethod
    def wait(self) -> list[Work]:
        """Handle events, REFRESH and EXPIRE until there is other work; return that. Empty when a signal came."""

    def rules_changed(self) -> None:  # handlers in Python read the rules themselves
        """Use the rules as they are now."""

    def forget(self, node: str) -> None:  # handlers in Python look into World
        """Use the sockets of this node no more."""

    def close(self) -> None:
        """Close its own descriptors."""
        self._epoll.close()


class ReferenceLoop(Loop):
    """The loop in Python."""

    def __init__(
        self, page: Page, events: int, take: Callable[[], None], hot: Mapping[int, Callable[[int, int], None]]
    ) -> None:
        """events: their descriptor. take: handles all of them. hot: kind of deadline -> handler (index, now)."""
        super().__init__()
        self._page, self._take, self._hot = page, take, hot
        self._timers = Timers()
        self._events, self._timer = events, self._timers.fileno()
        self.add(self._events)
        self.add(self._timer)

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
        super().close()
        self._timers.close()
