"""Many deadlines on one kernel timer, in nanoseconds: epoll's own timeouts are whole milliseconds."""

from __future__ import annotations

import ctypes
import heapq
import os
from typing import Final, Protocol

from heddle.kernel.libc import libc

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


class Deadlines(Protocol):
    """What the agent's parts need of deadlines: those of Python, or of the compiled loop."""

    def push(self, when: int, kind: int, index: int) -> None:
        """Set a deadline, in place of an earlier one of the same kind and index."""

    def cancel(self, kind: int, index: int) -> None:
        """Remove a deadline, if there is one."""


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
