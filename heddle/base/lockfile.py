"""Lock files that no other user can open, and so not lock: their mode is 0600.

A lock file exists while a process has it, and names that process: its ID, its start and its work. The kernel removes
the lock (flock) when the process ends, whatever ended it; then the next process takes over the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.base.process import start_of

_MODE: Final = 0o600
_ORPHANS_S: Final = 2.0  # time for the children of a killed holder to release the lock
_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that has a lock. started: see start_of. work: what it does with the lock, or empty."""

    pid: int
    started: int
    work: str = ""

    @property
    def alive(self) -> bool:
        """Whether that process still runs."""
        return start_of(self.pid) == self.started


Busy = Callable[[LockHolder | None], HeddleError]  # the error when another process, if it is known, has the lock


@contextmanager
def held(path: Path, busy: Busy, *, seconds: float = 0.0, work: str = "") -> Iterator[None]:
    """Have a lock for a with block; its directory exists. `busy` makes the error when it is not free in `seconds`.

    If the holder was killed just as it started a command, its child has a copy of the lock until that command begins.
    So the lock of a process that has ended is waited for in any case. OSError when the file cannot be opened.
    """
    began = time.monotonic()
    while (fd := try_lock(path, work)) is None:
        holder = holder_of(path)
        patience = seconds if holder is None or holder.alive else max(seconds, _ORPHANS_S)
        if path.exists() and time.monotonic() - began > patience:
            raise busy(holder)
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # still locked: a process that opened the file meanwhile compares inodes and tries again
        os.close(fd)


def try_lock(path: Path, work: str = "") -> int | None:
    """Lock a file that its holder removes; None while another process has it, or has removed it just now."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if stat.S_IMODE(found.st_mode) != _MODE:  # of an older Heddle, or of another umask
            os.fchmod(fd, _MODE)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.lstat().st_ino == found.st_ino:
            _sign(fd, work)
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def holder_of(path: Path) -> LockHolder | None:
    """The process that a lock file names; None when there is no file, or its process has not signed it yet."""
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split(maxsplit=2)
        return LockHolder(int(words[0]), int(words[1]), "".join(words[2:]).strip())
    except (OSError, ValueError, IndexError):
        return None


def late(path: Path, seconds: float) -> Busy:
    """For `held`: a MachineError that names the process which has had the lock for so long."""

    def error(holder: LockHolder | None) -> MachineError:
        who = f"process {holder.pid}" if holder is not None else "another process"
        hint = f"end it if it hangs: kill {holder.pid}" if holder is not None else "try again"
        return MachineError(Problem("", str(path), f"has been locked for {seconds:g} s by {who}", hint))

    return error


def _sign(fd: int, work: str) -> None:
    pid = os.getpid()
    with suppress(OSError):  # on a full disk the lock works too; only the holder's name is missing
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{pid} {start_of(pid) or 0} {work}\n".encode(), 0)
