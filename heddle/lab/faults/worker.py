"""The process of a fault that must be kept going: a link that flaps, errors that grow, a storm of pause frames.

It runs in a namespace of the lab, so `down` ends it with the lab. It also ends by itself when the record of its fault
is gone (__main__.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.process import end_all, start_of
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import SetFault, runs

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

Going = Callable[[float], bool]  # sleeps for these seconds; False when the fault is to end
_PATIENCE_S: Final = 2.0


class KeptFault(NamedFault):
    """A kind of fault with a process, which `undo` of a subclass ends first."""

    @abstractmethod
    def work(self, lab: Lab, fault: SetFault, going: Going) -> bool:
        """Keep the fault going, in that process; True when it has ended by itself."""

    def apply(self, lab: Lab, fault: SetFault) -> SetFault:
        """Start the process, in the namespace of the fault's node."""
        at = fault.values.get("port", fault.where)  # `port`: the end of a link that was chosen
        return start_worker(lab, fault, at.partition(":")[0])

    def undo(self, lab: Lab, fault: SetFault) -> None:
        """End the process."""
        end_worker(fault)


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
