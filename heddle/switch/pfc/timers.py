"""Many deadlines on one timer of the kernel, by nanoseconds: epoll's own time-outs are whole milliseconds."""

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

    What was pushed stays: who takes it out looks whether it still counts.
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
        """Readable once the earliest deadline is there."""
        return int(self._fd)

    def push(self, when: int, kind: int, index: int) -> None:
        """Add a deadline."""
        heapq.heappush(self._heap, (when, kind, index))

    def due(self, now: int) -> tuple[int, int, int] | None:
        """Take out the earliest deadline that is there; None when there is none."""
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
        """Silence the descriptor."""
        self._armed = 0
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set to another moment meanwhile

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
