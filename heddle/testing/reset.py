"""Between two tests: make a lab as fresh as after `up`, or report what prevents it.

In:  a Lab, and the processes that it had when it was fresh: all in its namespaces, except the PFC agent and its keeper,
which may be restarted.
Out: ResetResult. Undone without a warning: links that are down, drains, faults of links, hashing and thresholds that
were set live, counters, kept runs. Reported: processes that were left, which are ended, and damage, after which the lab
must be built again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.problems import HeddleError, Problem
from heddle.base.process import end_all, start_of
from heddle.base.tables import many

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_PATIENCE_S: Final = 1.0  # between SIGTERM and SIGKILL
_COMMAND: Final = 60  # characters of a command that are shown
_SECONDS: Final = 30.0  # for routes to come back after a fault
_SHOWN: Final = 3
# The checks of `validate` that read and send nothing: a lab that passes them is configured as its fabric file.
_CHECKED: Final = (
    "sysctls", "hashing", "queues", "offloads", "order", "programs", "thresholds", "faults", "links", "daemons", "bgp",
    "routes", "reachability", "pauses",
)  # fmt: skip


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
        return f" ({line[:_COMMAND]}{'...' if len(line) > _COMMAND else ''})" if line else ""


def processes_of(lab: Lab) -> frozenset[LabProcess]:
    """All processes in the lab's namespaces, without this one, the PFC agent and its keeper."""
    from heddle.switch.pfc import control as pfc

    nodes: dict[tuple[int, int], str] = {}
    for name, handle in lab.handles().items():
        with suppress(OSError):
            found = handle.netns.stat()
            nodes[found.st_dev, found.st_ino] = name
    agents = pfc.alive(lab.name)
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


@dataclass(frozen=True, slots=True)
class ResetResult:
    """ended: processes that were left in the lab's nodes, as texts. damage: what could not be undone, a line each."""

    ended: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()


def reset(lab: Lab, fresh: Collection[LabProcess]) -> ResetResult:
    """Undo what a test has done to the lab. It raises nothing: an error is reported as damage."""
    from heddle.checks.validate import validate
    from heddle.lab.health import restore_configured

    try:
        if lost := lost_parts(lab, fresh):
            return ResetResult(damage=tuple(lost))
        extra = sorted(processes_of(lab).difference(fresh), key=lambda each: (each.node, each.pid))
        texts = tuple(each.text() for each in extra)
        end_processes(lab, extra)
        restore_configured(lab, _SECONDS)
        if wrong := [f"{each.name}: {each.detail}" for each in validate(lab, _CHECKED) if not each.ok]:
            return ResetResult(texts, tuple(wrong))
        _clear(lab)
    except HeddleError as error:
        return ResetResult(damage=tuple(map(_first_line, error.problems)))
    return ResetResult(texts)


def lost_parts(lab: Lab, fresh: Collection[LabProcess]) -> list[str]:
    """Parts that were destroyed by hand, one line each: the lab, some of its nodes, or processes of a fresh lab."""
    from heddle.base import state

    record = state.read_record(lab.name)
    if record is None or record.phase != "running":
        return [f"lab {lab.name} was taken down"]
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        return list(map(_first_line, lost))
    gone = frozenset(fresh) - processes_of(lab)
    return [_ended_text(gone)] if gone else []


def _clear(lab: Lab) -> None:
    """Counters and kept runs. An error when a run is still in progress: it holds the lock."""
    from heddle.base import mounts as trees
    from heddle.base import owners
    from heddle.base.userfiles import as_caller
    from heddle.switch import counters
    from heddle.switch.queues.cells import LabQueues

    with owners.lock(lab.name), LabQueues.pinned(lab.fabric) as live:
        live.forget()
        counters.clear(lab.fabric)
        if (lab.dir / "runs").is_dir():
            with as_caller(lab.dir):
                trees.remove(lab.dir / "runs")


def _ended_text(gone: Collection[LabProcess]) -> str:
    nodes = sorted({each.node for each in gone})
    some = ", ".join(nodes[:_SHOWN]) + (f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else "")
    return f"{many(len(gone), 'process')} of the lab ended, in {some}"


def _first_line(problem: Problem) -> str:
    return str(problem).partition("\n")[0]
