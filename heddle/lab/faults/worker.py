"""The process of a fault that must be kept going: a link that flaps, errors that grow, a storm of pause frames.

It runs in a namespace of the lab, so `down` ends it with the lab. It also ends by itself when the record of its fault
is gone (__main__.py). In a shard the record is a copy, in the directory of the shard's lab.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from heddle.base import resources
from heddle.base.process import end_all, start_of
from heddle.lab.faults.kind import NamedFault
from heddle.lab.faults.record import Process, SetFault, runs
from heddle.lab.impairments import Requested, changing
from heddle.lab.spread import nothing, only, spread

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
        return _start(lab, fault, _node_of(fault), copied=not lab.runtime.here)

    def undo(self, lab: Lab, fault: SetFault) -> None:
        _end(lab, fault, _node_of(fault), copied=not lab.runtime.here)

    def kept(self, lab: Lab, fault: SetFault) -> bool:
        """Whether the process runs. MachineError when its shard does not answer."""
        return fault.worker is not None and _runs(lab, fault.worker, _node_of(fault))


def _node_of(fault: SetFault) -> str:
    at: str = fault.values.get("port", fault.where)  # `port`: the end of a link that was chosen
    return at.partition(":")[0]


@spread(only, nodes=lambda _, node, **__: [node])
def _start(lab: Lab, fault: SetFault, node: str, *, copied: bool) -> SetFault:
    """Start the process of a fault in a node's namespace; returns the fault with it."""
    if copied:
        _keep_copy(lab, fault, (fault,))
    argv = ["nsenter", f"--net={lab.handle(node).netns}", sys.executable, "-P", "-m", __package__]
    env = {**os.environ, "PYTHONPATH": str(resources.HERE.python_path)}
    quiet = subprocess.DEVNULL
    made = subprocess.Popen(
        [*argv, lab.name, fault.kind, fault.where], env=env, stdin=quiet, stdout=quiet, stderr=quiet,
        start_new_session=True,
    )  # fmt: skip
    return replace(fault, worker=(made.pid, start_of(made.pid) or 0))


@spread(nothing, nodes=lambda _, node, **__: [node])
def _end(lab: Lab, fault: SetFault, node: str, *, copied: bool) -> None:
    """End the process of a fault, if it still runs."""
    if fault.worker is not None:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(fault.worker[0])
            if runs(fault.worker):
                end_all([fd], _PATIENCE_S)
            else:
                os.close(fd)
    if copied:
        _keep_copy(lab, fault, ())


@spread(only, nodes=lambda _, node: [node])
def _runs(lab: Lab, worker: Process, node: str) -> bool:
    return runs(worker)


def _keep_copy(lab: Lab, fault: SetFault, now: tuple[SetFault, ...]) -> None:
    """The record of a shard: what was there of a fault is replaced."""
    with changing(lab):
        record = Requested.read(lab.dir)
        replace(record, more=(*(each for each in record.more if each.key != fault.key), *now)).write(lab.dir)
