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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base import resources, state
from heddle.base.problems import MachineError, Problem

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.kernel.handle import NodeHandle

_START_S: Final = 60.0
_FILES_A_NODE: Final = 3  # two packet sockets and one netlink socket
_FILES: Final = 100  # maps, programs, streams
_PATIENCE_S: Final = 2.0
_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class AgentState:
    """The pids of agent and keeper; None for a process that does not run."""

    agent: int | None
    keeper: int | None


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
    """Start a lab's agent and keeper, and return when they are running; first end those that still run.

    directory: for their log and locks; the lab's own when None. MachineError when they cannot start, with the reason.
    """
    from heddle.base.process import run
    from heddle.switch.pfc.world import AgentConfig

    place = directory or state.lab_dir(lab)
    stop(lab, place)
    place.mkdir(parents=True, exist_ok=True)
    spaces = {node.name: handles[node.name].netns for node in fabric.nodes if node.name in handles}
    # PYTHONPATH: independent of the caller's working directory. No numpy threads: they would not survive a fork.
    argv = ["env", f"PYTHONPATH={resources.HERE.python_path}", "OPENBLAS_NUM_THREADS=1"]
    argv += [sys.executable, "-P", "-m", __package__]
    run(argv, stdin=AgentConfig(place, spaces, fabric).to_json(), timeout=_START_S)


def stop(lab: str, directory: Path | None = None) -> None:
    """End a lab's agent and keeper, if they run; they open all gates first. MachineError when they do not end."""
    place = directory or state.lab_dir(lab)
    for _ in range(_ROUNDS):
        found = [pid for pid in _pids(place) if pid is not None]
        if not found:
            return
        _end(found)
    hint = f"run kill -9 {' '.join(map(str, found))}"
    raise MachineError(Problem(lab, "the PFC agent", f"does not end: {found}", hint))


def alive(lab: str, directory: Path | None = None) -> AgentState:
    """The pids of a lab's agent and keeper."""
    return AgentState(*_pids(directory or state.lab_dir(lab)))


def restart(lab: str, fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path) -> bool:
    """Start both again if neither runs, which opens the gates that were left closed. False when nothing was to do.

    If only one of them died, the other one starts it again.
    """
    from heddle.switch.queues.portqueues import Setup

    if any(pid is not None for pid in _pids(directory)) or not Setup.of(fabric).gated:
        return False
    start(lab, fabric, handles, directory)
    return True


def reload(lab: str, directory: Path | None = None) -> None:
    """Make the agent read its rules now; without this it does so within a second."""
    pid = alive(lab, directory).agent
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def _pids(place: Path) -> tuple[int | None, int | None]:
    from heddle.switch.pfc.world import AGENT, KEEPER, holder

    return holder(place, AGENT), holder(place, KEEPER)


def _end(pids: Iterable[int]) -> None:
    from heddle.base.process import end_all

    fds: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError):
            fds.append(os.pidfd_open(pid))
    end_all(fds, _PATIENCE_S)
