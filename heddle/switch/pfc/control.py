"""Priority-based flow control: the agent of a lab, which sends pause frames and obeys those that come.

In:  a lab whose ports have their queues and programs.
Out: two processes, agent and keeper (keeper.py), standing in a namespace of the lab; pfc.log beside its record.
docs/queues.md says what they do, and where it differs from what a switch's hardware does.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
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
_FILES_A_NODE: Final = 3  # two packet sockets and one of netlink
_FILES: Final = 100  # maps, programs, streams
_PATIENCE_S: Final = 2.0
_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class AgentState:
    """Who of the two runs, by pid."""

    agent: int | None
    keeper: int | None


def check(fabric: Fabric) -> None:
    """Before anything is made: MachineError where the agent could not have as many open files as it needs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # it raises its own limit, up to this one
    needs = _FILES_A_NODE * len(fabric.nodes) + _FILES
    if most < needs and not _may_raise(needs):
        why = f"needs {needs} open files for {len(fabric.nodes)} nodes, and {most} are the hard limit here"
        raise MachineError(Problem(fabric.name, "the PFC agent", why, f"ulimit -Hn {needs}, as root"))


def _may_raise(files: int) -> bool:
    """Whether this process, and so its children, may raise the hard limit; that is tried, and stays."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, files))
    except (OSError, ValueError):
        return False
    return True


def start(lab: str, fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path | None = None) -> None:
    """Start a lab's agent and keeper, and return when they are at work; what ran before is ended first.

    directory: for their log and locks; the lab's own when None. MachineError says what the machine lacks.
    """
    from heddle.base.process import run
    from heddle.switch.pfc.world import AgentConfig

    place = directory or state.lab_dir(lab)
    stop(lab, place)
    place.mkdir(parents=True, exist_ok=True)
    spaces = {node.name: handles[node.name].netns for node in fabric.nodes if node.name in handles}
    # The project's modules, wherever the caller stands; and no threads of numpy's, which would not survive a fork.
    argv = ["env", f"PYTHONPATH={resources.HERE.python_path}", "OPENBLAS_NUM_THREADS=1"]
    argv += [sys.executable, "-P", "-m", __package__]
    run(argv, stdin=AgentConfig(place, spaces, fabric).to_json(), timeout=_START_S)


def stop(lab: str, directory: Path | None = None) -> None:
    """End a lab's agent and keeper; they open all gates first. Nothing when none runs. MachineError when they stay."""
    place = directory or state.lab_dir(lab)
    for _ in range(_ROUNDS):
        found = [pid for pid in _pids(place) if pid is not None]
        if not found:
            return
        _end(found)
    raise MachineError(Problem(lab, "the PFC agent", f"does not end: {found}", f"kill -9 {' '.join(map(str, found))}"))


def alive(lab: str, directory: Path | None = None) -> AgentState:
    """Whether a lab's agent and keeper run."""
    return AgentState(*_pids(directory or state.lab_dir(lab)))


def mend(lab: str, fabric: Fabric, handles: Mapping[str, NodeHandle], directory: Path) -> bool:
    """Start both anew where neither runs, which opens gates that were left closed; False when there was no need for it.

    One of the two alone starts the other by itself.
    """
    from heddle.switch.queues.portqueues import Setup

    if any(pid is not None for pid in _pids(directory)) or not Setup.of(fabric).gated:
        return False
    start(lab, fabric, handles, directory)
    return True


def reload(lab: str, directory: Path | None = None) -> None:
    """Have the agent read its rules now; it would within a second by itself."""
    pid = alive(lab, directory).agent
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGHUP)


def _pids(place: Path) -> tuple[int | None, int | None]:
    from heddle.switch.pfc.world import AGENT, KEEPER, holder

    return holder(place, AGENT), holder(place, KEEPER)


def _end(pids: list[int]) -> None:
    """SIGTERM to all of them, SIGKILL to who stays."""
    fds: list[int] = []
    for pid in pids:
        with suppress(ProcessLookupError):
            fds.append(os.pidfd_open(pid))
    for number, patience in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, 10.0)):
        for fd in fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
                signal.pidfd_send_signal(fd, signal.SIGCONT)  # a stopped one hears nothing else
        end = time.monotonic() + patience
        while fds and time.monotonic() < end:
            fds = [fd for fd in fds if not _ended(fd)]
            time.sleep(0.005)
    for fd in fds:
        os.close(fd)


def _ended(fd: int) -> bool:
    """Whether the process behind a pidfd has ended; closes the descriptor then."""
    if not select.select([fd], [], [], 0)[0]:
        return False
    os.close(fd)
    return True
