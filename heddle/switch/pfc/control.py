"""Priority-based flow control: start, stop and check the PFC agent of a lab.

In:  a lab whose ports have their queues and programs.
Out: two processes, agent and keeper (keeper.py), in a namespace of the lab; pfc.log in the lab's directory.
docs/queues.md describes them, and the differences from switch hardware.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from heddle.base import resources, state
from heddle.base.problems import MachineError, Problem
from heddle.base.process import dying_with_us, end_all, is_stopped, run, start_of
from heddle.base.userfiles import make_dir

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.kernel.namespace import NodeHandle

_START_S: Final = 60.0
_FILES_A_NODE: Final = 3  # two packet sockets and one netlink socket
_FILES: Final = 100  # maps, programs, streams
_PATIENCE_S: Final = 2.0
_ROUNDS: Final = 10
_SILENT_NS: Final = 3 * 10**9  # a heartbeat comes at least every 0.1 s; within a second each process replaces the other


@dataclass(frozen=True, slots=True)
class AgentState:
    """The pids of agent and keeper; None for a process that does not work. stuck: those that exist and do not work."""

    agent: int | None
    keeper: int | None
    stuck: tuple[int, ...] = ()

    def fault(self, name: str) -> str:
        """Why the agent or the keeper does not work: `is not running`; empty if it works."""
        if getattr(self, name) is not None:
            return ""
        if not self.stuck:
            return "is not running"
        return f"does not work: it is stopped or frozen (process {' or '.join(map(str, self.stuck))})"


class _Process(NamedTuple):
    """A process that the lab's map names. started: see start_of. works: it is not stopped, and its heartbeat is new."""

    pid: int
    started: int
    works: bool


def check(fabric: Fabric) -> None:
    """Check before anything is created: MachineError when the agent could not open as many files as it needs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # the agent raises its soft limit up to this hard limit
    needs = _FILES_A_NODE * len(fabric.nodes) + _FILES
    if most < needs and not _may_raise(needs):
        why = f"needs {needs} open files for {len(fabric.nodes)} nodes; the hard limit is {most}"
        raise MachineError(Problem(fabric.name, "the PFC agent", why, f"run ulimit -Hn {needs}, as root"))


def _may_raise(files: int) -> bool:
    """Try to raise the hard limit for this process and its children; return whether that worked."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, files))
    except (OSError, ValueError):
        return False
    return True


def start(lab: str, fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path | None = None) -> None:
    """Start a lab's agent and keeper, and return when they are running; those that still run are replaced.

    directory: for their log and locks; the lab's own when None. MachineError when they cannot start, with the reason.
    """
    from heddle.switch.pfc.world import AgentConfig

    place = directory or state.lab_dir(lab)
    make_dir(place)
    spaces = {node.name: handles[node.name].netns for node in fabric.nodes if node.name in handles}
    # PYTHONPATH: independent of the caller's working directory. No numpy threads: they would not survive a fork.
    argv = ["env", f"PYTHONPATH={resources.HERE.python_path}", "OPENBLAS_NUM_THREADS=1"]
    argv += [sys.executable, "-P", "-m", __package__]
    argv = dying_with_us(argv, "KILL")  # until it is in a namespace of the lab, `down` does not find it
    run(argv, stdin=AgentConfig(place, spaces, fabric).to_json(), timeout=_START_S, called="the PFC agent")


def stop(lab: str) -> None:
    """End a lab's agent and keeper, if they run; they open all gates first. MachineError when they do not end."""
    for _ in range(_ROUNDS):
        found = [each for each in _processes(lab) if each is not None]
        if not found:
            return
        _end(found)
    pids = [each.pid for each in found]
    hint = f"run kill -9 {' '.join(map(str, pids))}"
    raise MachineError(Problem(lab, "the PFC agent", f"does not end: {pids}", hint))


def alive(lab: str) -> AgentState:
    """The pids of a lab's agent and keeper."""
    both = _processes(lab)
    agent, keeper = (each.pid if each is not None and each.works else None for each in both)
    return AgentState(agent, keeper, tuple(each.pid for each in both if each is not None and not each.works))


def restart(lab: str, fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path) -> bool:
    """Start both again if neither works, which opens the gates that were left closed. False when nothing was to do.

    If only one of them died or is stopped, the other one replaces it.
    """
    if any(each is not None and each.works for each in _processes(lab)):
        return False
    start(lab, fabric, handles, directory)
    return True


def reload(lab: str) -> None:
    """Make the agent read its rules now; without this it does so within a second."""
    pid = alive(lab).agent
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def _processes(lab: str) -> tuple[_Process | None, _Process | None]:
    """Agent and keeper, from the map that only root can write; None for one that does not exist."""
    from heddle.kernel.libbpf import Map
    from heddle.switch.hashing.hashing import pin_dir
    from heddle.switch.pfc.world import Page
    from heddle.switch.queues.classes import OWNER

    pin = pin_dir(lab, OWNER) / "pulse"
    if not pin.exists():
        return None, None
    with Map.pinned(pin, 4, sizeof(Page)) as pulse:
        page = Page.from_buffer_copy(pulse.lookup(bytes(4)) or bytes(sizeof(Page)))
    return (
        _process(page.agent, page.agent_start, page.heartbeat_ns),
        _process(page.keeper, page.keeper_start, page.keeper_ns),
    )


def _process(pid: int, started: int, beat_ns: int) -> _Process | None:
    if not pid or start_of(pid) != started:
        return None
    return _Process(pid, started, not is_stopped(pid) and time.monotonic_ns() - beat_ns < _SILENT_NS)


def _end(processes: Iterable[_Process]) -> None:
    fds: list[int] = []
    for each in processes:
        with suppress(ProcessLookupError):
            fds.append(os.pidfd_open(each.pid))
            if start_of(each.pid) != each.started:  # another process has its pid by now
                os.close(fds.pop())
    end_all(fds, _PATIENCE_S)
