"""Locks of this machine, not of one user: only one process builds images, or starts an engine, at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heddle.base.problems import machine_errors


@contextmanager
def locked(path: Path, kind: int, waits: Callable[[], None] | None = None) -> Iterator[int]:
    """Hold the lock file `path`; yields its file descriptor. kind: LOCK_EX or LOCK_SH of flock(2).

    waits: called once if another process holds the lock, before this one waits for it.
    A missing directory is created. Another process may remove both while this one waits. So the file is opened again
    until the locked file is the one at that path.
    """
    with machine_errors(str(path.parent)):
        while True:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                continue  # removed between the two
            try:
                if waits is not None and not _at_once(fd, kind):
                    waits()
                    waits = None
                fcntl.flock(fd, kind)
            except BaseException:
                os.close(fd)
                raise
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    break
            os.close(fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _at_once(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
