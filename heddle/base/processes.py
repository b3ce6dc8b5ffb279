"""Which process a pid means, since pids are used again with another start; and the end of processes."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_START_FIELD: Final = 19  # starttime of proc(5), counted behind the command's closing parenthesis
_KILLED_S: Final = 10.0  # to wait for a process that was killed: it may be in a system call


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when there is no such process, or it has ended."""
    try:
        fields = (
            Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])


def end_all(pidfds: Iterable[int], patience_s: float) -> None:
    """End processes: SIGTERM, and SIGKILL where one runs `patience_s` later. Waits for them, and closes the pidfds."""
    left = list(pidfds)
    for number, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, _KILLED_S)):
        for fd in left:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
                signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped process handles no other signal
        left = _still_running(left, seconds)
    for fd in left:
        os.close(fd)


def _still_running(pidfds: Iterable[int], seconds: float) -> list[int]:
    """Wait at most `seconds` for these processes to end; the pidfds of the others, still open."""
    left, poll = set(pidfds), select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    end = time.monotonic() + seconds
    while left and (rest := end - time.monotonic()) > 0:
        for fd, _ in poll.poll(rest * 1000):
            poll.unregister(fd)
            os.close(fd)
            left.discard(fd)
    return sorted(left)
