"""Many deadlines on one kernel timer, in nanoseconds: epoll's own timeouts are whole milliseconds."""

from __future__ import annotations

import ctypes
import heapq
import os
from typing import Final

from heddle.kernel.libc import libc

libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_CLOCK_MONOTONIC: Final = 1
_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_S: Final = 10**9


class Timers:
    """A heap of (ns of CLOCK_MONOTONIC, kind, index).

    Entries are never removed early: the caller of `due` checks whether a deadline is still valid.
    """

    def __init__(self) -> None:
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._spec = (ctypes.c_long * 4)()  # struct itimerspec: interval, then the moment
        self._heap: list[tuple[int, int, int]] = []
        self._armed = 0

    def fileno(self) -> int:
        """The descriptor, readable once the earliest deadline has passed."""
        return int(self._fd)

    def push(self, when: int, kind: int, index: int) -> None:
        """Add a deadline."""
        heapq.heappush(self._heap, (when, kind, index))

    def due(self, now: int) -> tuple[int, int, int] | None:
        """Remove and return the earliest deadline that has passed; None when there is none."""
        if self._heap and self._heap[0][0] <= now:
            return heapq.heappop(self._heap)
        return None

    def arm(self) -> None:
        """Set the kernel's timer to the earliest deadline; call it before waiting."""
        first = max(1, self._heap[0][0]) if self._heap else 0
        if first != self._armed:
            self._spec[2], self._spec[3] = divmod(first, _S)
            libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)
            self._armed = first

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
