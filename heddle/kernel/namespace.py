"""Nodes as names and network namespaces, and how Python enters a namespace, per thread.

`setns` moves only the calling thread, so each thread may be in another namespace. A socket stays in the namespace in
which it was opened. Files below /proc/sys/net also belong to the namespace of the thread that opens them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libc import libc
from heddle.kernel.uapi import CLONE_NEWNET


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """A node of a running lab."""

    name: str
    netns: Path  # /run/netns/heddle-zone-rtsw1


NETNS_DIR: Final = Path("/run/netns")
THIS_NAMESPACE: Final = Path("/proc/thread-self/ns/net")  # that of the calling thread

_DOWN_UP: Final = "run ./inv down, then ./inv up"


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`; OSError when the kernel refuses."""
    if libc.setns(fd, kind) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def inside(netns: Path) -> Iterator[None]:
    """Enter `netns` for the duration of a with block, with this thread only."""
    home = os.open(THIS_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            there = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MachineError(Problem("", netns.name, "is not a namespace here", _DOWN_UP)) from None
        try:
            try:
                setns(there, CLONE_NEWNET)
            except PermissionError:
                raise MachineError(Problem("", netns.name, "cannot be entered", "run as root")) from None
            except OSError as error:  # a plain file: its namespace was unmounted
                why, hint = f"cannot be entered: {error.strerror}", _DOWN_UP
                raise MachineError(Problem("", netns.name, why, hint)) from None
        finally:
            os.close(there)
        try:
            yield
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(home)


@contextmanager
def nameless() -> Iterator[None]:
    """Enter a new, unnamed network namespace for the duration of a with block, with this thread only.

    The kernel removes it after the block, once all sockets opened in it are closed. MachineError when the kernel
    refuses.
    """
    home = os.open(THIS_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise MachineError(Problem("", "a network namespace", f"cannot be created: {reason}", "run as root"))
        try:
            yield
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(home)
