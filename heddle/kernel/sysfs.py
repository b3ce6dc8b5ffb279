"""The files of a namespace's network devices, below /sys/class/net, without a process or a mount point.

A mounted sysfs shows the devices of the network namespace in which it was mounted, to every reader (sysfs_get_tree,
fs/sysfs/mount.c). So fsopen(2) and fsmount(2) create a sysfs of the namespace itself. It has no mount point, and the
kernel removes it when its descriptor is closed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libc import libc
from heddle.kernel.namespace import inside

# The same numbers on every architecture (include/uapi/asm-generic/unistd.h); since Linux 5.2.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC, _FSCONFIG_CMD_CREATE = 1, 1, 6
_NET: Final = "class/net"


@contextmanager
def net_devices(netns: Path) -> Iterator[int]:
    """A descriptor of /sys/class/net of `netns`, for the duration of a with block: open files with `dir_fd`.

    MachineError when the kernel refuses, or the namespace does not exist.
    """
    with inside(netns):
        found = _opened(netns.name)
    try:
        yield found
    finally:
        os.close(found)


def _opened(where: str) -> int:
    context = _call(where, _FSOPEN, b"sysfs", _FSOPEN_CLOEXEC)
    try:
        _call(where, _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        root = _call(where, _FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        return os.open(_NET, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    finally:
        os.close(root)


def _call(where: str, number: int, *arguments: object) -> int:
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        why = f"cannot be mounted: {os.strerror(ctypes.get_errno())}"
        raise MachineError(Problem(where, "sysfs", why, "use Linux 5.2 or newer, and run as root"))
    return result
