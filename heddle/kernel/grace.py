"""RCU's grace period for user space: wait until the kernel has handled every packet that was in flight."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

from heddle.base.problems import MachineError, Problem
from heddle.kernel.libc import libc

_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}  # the system call's number
_MEMBARRIER_CMD_GLOBAL: Final = 1


def grace() -> None:
    """Return when the kernel has finished all packets that it was handling at the time of the call (synchronize_rcu).

    MachineError when the kernel does not offer this to user space.
    """
    number = _MEMBARRIER.get(platform.machine())
    if number is not None and libc.syscall(number, _MEMBARRIER_CMD_GLOBAL, 0, 0) == 0:
        return
    why = os.strerror(ctypes.get_errno()) if number is not None else f"is not known on {platform.machine()}"
    hint = "boot without nohz_full, or set routing.ecmp in the fabric file and run ./inv down, then ./inv up"
    raise MachineError(Problem("kernel", "membarrier", f"{why}: a switch cannot be changed while packets pass", hint))
