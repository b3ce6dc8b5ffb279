"""Locks of this machine, not of one user: only one process builds images, or starts an engine, at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from heddle.base.problems import machine_errors


@contextmanager
def locked(path: Path, kind: int) -> Iterator[int]:
    """Hold the lock file `path`; yields its file descriptor. kind: LOCK_EX or LOCK_SH of flock(2).

    A missing directory is created. Another process may remove both while this one waits. So the file is opened again
    until the locked file is the one at that path.
    """
    with machine_errors(str(path.parent)):
        while True:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # removed between the two
            fcntl.flock(fd, kind)
            with suppress(FileNotFoundError):
                if path.stat().st_ino == os.fstat(fd).st_ino:
                    break
            os.close(fd)
    try:
        yield fd
    finally:
        os.close(fd)
