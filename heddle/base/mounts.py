"""Removing directory trees: never through a mount, never through a link.

Containers, mmdebstrap and others mount things below directories that are ours. One such mount that was left, or is not
yet gone, can lead to this machine's /dev, /proc, or files of others; so what is mounted is looked at before anything
of a tree is removed. Links are removed and not followed: that is how shutil.rmtree works.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem, machine_errors

TEMPORARY: Final = Path("/var/tmp")  # noqa: S108 - directories are made by mkdtemp there; /tmp is often too small
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A line of proc(5)'s mountinfo. root: what of its file system is to be seen at `target`."""

    number: int
    parent: int
    device: str
    root: Path
    target: Path
    kind: str

    def shows_itself(self, others: Sequence[Mount]) -> bool:
        """True for a directory that is mounted over itself; taking that away changes nothing that is to be seen."""
        below = next((each for each in others if each.number == self.parent), None)
        if below is None or not self.target.is_relative_to(below.target):
            return False
        return self.device == below.device and self.root == below.root / self.target.relative_to(below.target)


def mounts() -> list[Mount]:
    """All that is mounted, in the order of mounting."""
    found = []
    for line in _MOUNTS.read_bytes().splitlines():
        fields, _, source = line.partition(b" - ")
        number, parent, device, root, target = fields.split(b" ")[:5]
        kind = source.split(b" ")[0].decode()
        found.append(Mount(int(number), int(parent), device.decode(), _path(root), _path(target), kind))
    return found


def _path(field: bytes) -> Path:
    return Path(os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), field)))


def remove(path: Path) -> None:
    """Remove a directory with all in it; nothing when it is not there, or is a link.

    MachineError when something is mounted at it or below it: then all of it stays.
    """
    if path.is_symlink() or not path.exists():
        return
    real = path.resolve()
    if inside := [each.target for each in mounts() if each.target.is_relative_to(real)]:
        why = f"is not removed: something is mounted at {inside[-1]}"
        raise MachineError(Problem("", str(path), why, f"umount {inside[-1]}, when nothing needs it any more"))
    with machine_errors(str(path)), suppress(FileNotFoundError):
        shutil.rmtree(real)


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A directory of our own in TEMPORARY for the length of a with block; what a killed one left there goes, too."""
    _sweep(prefix)
    with machine_errors(str(TEMPORARY)):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=TEMPORARY))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # as long as this process lives, nobody else sweeps it
        yield path
    finally:
        try:
            remove(path)
        finally:
            os.close(fd)


def _sweep(prefix: str) -> None:
    """Remove what is named so, is this user's, and nobody holds any more."""
    for path in TEMPORARY.glob(f"{prefix}*"):
        with suppress(OSError, HeddleError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(path)
            finally:
                os.close(fd)
