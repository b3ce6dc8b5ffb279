"""Removing directory trees: never through a mount, never through a link.

Containers, mmdebstrap and others mount file systems below our directories. A mount that is still there can lead to this
machine's /dev, /proc, or files of others. So the mounts are checked before anything of a tree is removed. Links are
removed and not followed, as shutil.rmtree does.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem, machine_errors

TEMPORARY: Final = Path("/var/tmp")  # noqa: S108 - directories are made by mkdtemp there; /tmp is often too small
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def mount_points() -> list[Path]:
    """Where something is mounted in this mount namespace, in the order of mounting (proc(5), mountinfo)."""
    return [_path(line.split(b" ")[4]) for line in _MOUNTS.read_bytes().splitlines()]


def origin(path: Path) -> tuple[str, Path]:
    """The file system that a path is in, and the path in it, as mountinfo names the source of a bind mount."""
    rows = (line.split(b" ") for line in _MOUNTS.read_bytes().splitlines())
    found = [(_path(row[4]), row[2].decode(), _path(row[3])) for row in rows if path.is_relative_to(_path(row[4]))]
    point, device, root = max(reversed(found), key=lambda each: len(each[0].parts))  # the last of several is on top
    return device, root / path.relative_to(point)


def _path(field: bytes) -> Path:
    return Path(os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), field)))


def remove(path: Path) -> None:
    """Remove a directory with its content; nothing when it does not exist, or is a link.

    MachineError when something is mounted at it or below it; then nothing is removed.
    """
    if path.is_symlink() or not path.exists():
        return
    real = path.resolve()
    if inside := [each for each in mount_points() if each.is_relative_to(real)]:
        why = f"is not removed, because something is mounted at {inside[-1]}"
        raise MachineError(Problem("", str(path), why, f"run umount {inside[-1]} when nothing uses it"))
    with machine_errors(str(path)), suppress(FileNotFoundError):
        shutil.rmtree(real)


Remover = Callable[[Path], None]


@contextmanager
def scratch(prefix: str, remover: Remover = remove) -> Iterator[Path]:
    """A new directory in TEMPORARY for a with block. Directories left by killed processes are removed, too."""
    sweep(prefix, remover)
    with machine_errors(str(TEMPORARY)):
        path, fd = _made(prefix)
    try:
        yield path
    finally:
        try:
            remover(path)
        finally:
            os.close(fd)


def sweep(prefix: str, remover: Remover = remove) -> None:
    """Remove scratch directories with this prefix that belong to this user and that no process has locked.

    The kernel removes a lock when the process ends that has it, whatever ended it.
    """
    for path in TEMPORARY.glob(f"{prefix}*"):
        with suppress(OSError, HeddleError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remover(path)
            finally:
                os.close(fd)


def _made(prefix: str) -> tuple[Path, int]:
    """A new directory, and a descriptor of it with the lock: while this process runs, no other removes it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=TEMPORARY))
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if path.exists():
                return path, fd
            os.close(fd)  # another process removed it before it was locked
