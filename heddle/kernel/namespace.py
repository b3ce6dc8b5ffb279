"""Entering network namespaces from Python, a thread at a time.

`setns` moves only the calling thread, so threads may each stand in another namespace; a socket opened inside stays
there for life. Files below /proc/sys/net also follow the thread that opens them.
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
from heddle.kernel.uapi import CLONE_NEWNET

NETNS_DIR: Final = Path("/run/netns")

_ANEW: Final = "./inv down takes the lab away, ./inv up makes it anew"


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`; OSError when the kernel refuses."""
    if libc.setns(fd, kind) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def inside(netns: Path) -> Iterator[None]:
    """Stand in `netns` for the length of a with block, this thread only."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            there = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MachineError(Problem("", netns.name, "is no namespace here", _ANEW)) from None
        try:
            try:
                setns(there, CLONE_NEWNET)
            except PermissionError:
                raise MachineError(Problem("", netns.name, "cannot be entered", "this needs root")) from None
            except OSError as error:  # a plain file: its namespace was unmounted
                why, hint = f"cannot be entered: {error.strerror}", _ANEW
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
    """Stand in a new network namespace without a name for the length of a with block, this thread only.

    It is gone when the block is left and all sockets opened in it are closed. MachineError when the kernel refuses.
    """
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.unshare(CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise MachineError(Problem("", "a network namespace", f"cannot be made: {reason}", "this needs root"))
        try:
            yield
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(home)
