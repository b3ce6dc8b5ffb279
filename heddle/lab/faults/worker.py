"""The process of a fault that must be kept going: a link that flaps, errors that grow, a storm of pause frames.

It runs in a namespace of the lab, so `down` ends it with the lab. It also ends by itself when the record of its fault
is gone (__main__.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.process import end_all, start_of
from heddle.lab.faults.record import SetFault, runs

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Going = Callable[[float], bool]  # sleeps for these seconds; False when the fault is to end
_PATIENCE_S: Final = 2.0


def start_worker(lab: Lab, fault: SetFault, node: str) -> SetFault:
    """Start the process of a fault in a node's namespace; returns the fault with it."""
    lab.require_here(f"fault {fault.kind}")
    argv = ["nsenter", f"--net={lab.handle(node).netns}", sys.executable, "-P", "-m", __package__]
    env = {**os.environ, "PYTHONPATH": str(resources.HERE.python_path)}
    quiet = subprocess.DEVNULL
    made = subprocess.Popen(
        [*argv, lab.name, fault.kind, fault.where], env=env, stdin=quiet, stdout=quiet, stderr=quiet,
        start_new_session=True,
    )  # fmt: skip
    return replace(fault, worker=(made.pid, start_of(made.pid) or 0))


def end_worker(fault: SetFault) -> None:
    """End the process of a fault, if it still runs."""
    if fault.worker is None or not runs(fault.worker):
        return
    try:
        fd = os.pidfd_open(fault.worker[0])
    except ProcessLookupError:
        return
    if runs(fault.worker):
        end_all([fd], _PATIENCE_S)
    else:
        os.close(fd)
