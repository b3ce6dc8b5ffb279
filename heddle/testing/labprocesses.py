"""The processes of a running lab: all in its namespaces, except the PFC agent and its keeper, which may be restarted.

In:  a Lab. Out: one LabProcess per process. Later sets are compared with the set of the fresh lab.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.process import end_all, start_of

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_PATIENCE_S: Final = 1.0  # between SIGTERM and SIGKILL
_SHOWN: Final = 60  # characters of a command


@dataclass(frozen=True, slots=True)
class LabProcess:
    """A process in a namespace of a lab. started: in clock ticks since boot, so that a reused ID is another process."""

    node: str
    pid: int
    started: int

    def text(self) -> str:
        """`process 4711 in host1 (sleep 600)`."""
        return f"process {self.pid} in {self.node}{self.command()}"

    def command(self) -> str:
        """` (sleep 600)`; empty when the process has ended."""
        try:
            words = Path("/proc", str(self.pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        line = b" ".join(words).decode(errors="replace").strip()
        return f" ({line[:_SHOWN]}{'...' if len(line) > _SHOWN else ''})" if line else ""


def processes_of(lab: Lab) -> frozenset[LabProcess]:
    """All processes in the lab's namespaces, without this one, the PFC agent and its keeper."""
    from heddle.switch.pfc import control as pfc

    nodes: dict[tuple[int, int], str] = {}
    for name, handle in lab.handles().items():
        with suppress(OSError):
            found = handle.netns.stat()
            nodes[found.st_dev, found.st_ino] = name
    agents = pfc.alive(lab.name, lab.dir)
    beside = {os.getpid(), agents.agent, agents.keeper}
    pids = [int(each.name) for each in os.scandir("/proc") if each.name.isdigit() and int(each.name) not in beside]
    return frozenset(each for pid in pids if (each := _in_lab(pid, nodes)) is not None)


def _in_lab(pid: int, nodes: dict[tuple[int, int], str]) -> LabProcess | None:
    try:
        space = Path("/proc", str(pid), "ns/net").stat()
    except OSError:
        return None
    node = nodes.get((space.st_dev, space.st_ino))
    started = start_of(pid) if node is not None else None
    return LabProcess(node, pid, started) if node is not None and started is not None else None


def end_processes(lab: Lab, processes: Collection[LabProcess]) -> None:
    """Send SIGTERM to each, then SIGKILL to those that still run; processes that have left the lab are not touched."""
    end_all(_opened(processes, processes_of(lab)), _PATIENCE_S)


def _opened(processes: Iterable[LabProcess], now: Collection[LabProcess]) -> Iterable[int]:
    for each in processes:
        with suppress(ProcessLookupError):
            fd = os.pidfd_open(each.pid)
            if each in now and start_of(each.pid) == each.started:
                yield fd
            else:
                os.close(fd)
