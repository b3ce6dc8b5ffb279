"""RCU's grace period for programs: wait until every packet that was under way has been handled."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Final

from heddle.base.problems import MachineError, Problem

_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}  # the system call's number
_MEMBARRIER_CMD_GLOBAL: Final = 1


def grace() -> None:
    """Return when no packet is under way that the kernel had begun to handle before (synchronize_rcu).

    MachineError where the kernel does not offer that to programs.
    """
    number = _MEMBARRIER.get(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    if number is not None and libc.syscall(number, _MEMBARRIER_CMD_GLOBAL, 0, 0) == 0:
        return
    why = os.strerror(ctypes.get_errno()) if number is not None else f"is not known on {platform.machine()}"
    hint = "boot without nohz_full, or take the lab down and up again with routing.ecmp as it should be"
    raise MachineError(Problem("kernel", "membarrier", f"{why}: a switch cannot be changed while packets pass", hint))
