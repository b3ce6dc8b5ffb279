"""Two processes that make sure that no gate stays closed: the agent, and a keeper that watches it.

The keeper is forked from the agent and inherits its sockets and maps. It opens overdue gates. When the agent dies, or
is unresponsive for half a second, the keeper forks another agent. When the keeper dies or is unresponsive, the agent
forks another keeper. So killing one of them, even repeatedly, costs only a few milliseconds.

Killing both at the same moment leaves gates closed, since the kernel has no timer that would open one. Packets behind
them wait until a run starts both processes again, at its beginning or while it runs (see control.restart). New packets
bypass them: when a gate is 300 ms overdue, the egress program sends the packets of its class to another queue. The
programs also end a storm of the watchdog, when its end is 300 ms overdue.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from heddle.base.problems import HeddleError, trouble
from heddle.switch.pfc import control
from heddle.switch.pfc.agent import Agent, Ended, quiet_signals
from heddle.switch.pfc.gates import of_lab
from heddle.switch.pfc.loop import loop_code
from heddle.switch.pfc.world import AGENT, KEEPER, LOG, AgentConfig, World, enter_any
from heddle.switch.queues.cells import LabQueues

_LOOK_MS: Final = 50
_LOOKS_AT_SPACES: Final = 20
_OVERDUE_NS: Final = 100_000_000
_SILENT_NS: Final = 500_000_000
_SILENT_LOOKS: Final = 5  # in a row, since suspending the machine stops agent and keeper alike
_AWAIT_LOCK_S: Final = 5.0
_SHORT_LIFE_S: Final = 0.2
_OOM_SCORE: Final = b"-900"
_NICE: Final = -20

Role = Literal["agent", "keeper"]
_PRIORITIES: Final[Mapping[Role, int]] = {"agent": 2, "keeper": 1}  # of SCHED_RR


class _Become(BaseException):
    """Raised in a freshly forked process, to unwind its parent's stack frames and take the other role."""

    def __init__(self, role: Role, other: int) -> None:
        super().__init__()
        self.role: Role = role
        self.other = other  # pidfd of its parent


def main() -> int:
    """Read the layout, start both processes, and return the caller's exit code. Errors are printed to stderr."""
    try:
        layout = AgentConfig.from_json(sys.stdin.read())
        world = _world(layout)
    except HeddleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(trouble(error), file=sys.stderr)
        return 3
    ready, tell = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(tell)
        if os.read(ready, 1):
            return 0
        print(f"the PFC agent died at its start; see {layout.directory / LOG} for the reason", file=sys.stderr)
        return 3
    os.close(ready)
    world.tell = tell
    try:
        _detach()
        return _live(world)
    except Exception:
        world.log.say("defect", traceback.format_exc())
        return 1


def _live(world: World) -> int:
    """Run as agent or keeper, whichever is needed, until asked to end."""
    role: Role = "agent"
    other: int | None = None
    while True:
        try:
            world.await_lock(AGENT if role == "agent" else KEEPER, _AWAIT_LOCK_S)
            if role == "agent" or other is None:
                be_agent(world, other)
            else:
                be_keeper(world, other)
        except _Become as become:
            role, other = become.role, become.other
            continue
        except Ended:
            pass
        world.close()
        return 0


def be_agent(world: World, keeper: int | None) -> None:
    """Run as the agent until asked to end. keeper: pidfd; None when there is no keeper yet."""
    world.page.sign(AGENT)
    agent = Agent(world)
    quiet_signals(world.page.end)
    signal.signal(signal.SIGHUP, lambda *_: agent.reload())
    try:
        agent.begin(first=keeper is None)
        while True:
            if keeper is None:
                keeper = _fork(world, "keeper", agent)
                world.report_ready(b"")
            agent.run(keeper)
            os.close(keeper)
            keeper = None
            _reap()
            world.log.say("keeper", "the keeper has died; started another one")
    except Ended:
        agent.end()


def be_keeper(world: World, agent: int) -> None:
    """Run as the keeper until asked to end. agent: pidfd."""
    quiet_signals(world.page.end)
    world.page.sign(KEEPER)
    world.report_ready(b"1")
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    looks, silent, born = 0, 0, 0.0
    while True:
        died = bool(poll.poll(_LOOK_MS))
        looks += 1
        if looks % _LOOKS_AT_SPACES == 0:
            for node in world.lost():
                world.close_node(node)
            if not world.spaces:
                world.page.end()
        if world.page.ending:
            return
        now = world.page.keeper_ns = time.monotonic_ns()
        overdue = _open_overdue(world, now)
        silent = silent + 1 if now - world.page.heartbeat_ns > _SILENT_NS else 0
        if overdue:
            world.log.say("overdue", f"{overdue} gates were overdue by 100 ms; the keeper opened them")
        if not died and silent < _SILENT_LOOKS:
            continue
        if died and time.monotonic() - born < _SHORT_LIFE_S:  # if agents keep dying at once, fork less often
            time.sleep(_LOOK_MS / 1000)
            if time.monotonic() - born < _SHORT_LIFE_S:
                continue
        why = "has died" if died else "is unresponsive"
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent, signal.SIGKILL)
        poll.poll(1000)
        world.log.say("agent", f"the agent {why}; started another one")
        poll.unregister(agent)
        os.close(agent)
        _reap()
        world.page.heartbeat_ns, silent = time.monotonic_ns(), 0
        agent, born = _fork(world, "agent", None), time.monotonic()
        poll.register(agent, select.POLLIN)


def _open_overdue(world: World, now: int) -> int:
    """Open the overdue gates; return their number."""
    until = world.queues.agent["until_ns"].copy()  # the agent writes concurrently: read once, not twice
    found = ((until != 0) & (until < now - _OVERDUE_NS)).nonzero()[0].tolist()
    for index in found:
        world.open_gate(index, now)
    return len(found)


def _fork(world: World, role: Role, agent: Agent | None) -> int:
    """Fork a process for that role, retrying until it works; return its pidfd. In the new process, raise _Become."""
    me = os.pidfd_open(os.getpid())
    while True:
        try:
            pid = os.fork()
            break
        except OSError as error:
            world.log.say("fork", f"cannot fork the {role}, retrying: {error.strerror}")
            time.sleep(0.1)
    if pid == 0:
        _hurry(role)
        if agent is not None:
            agent.close()
        raise _Become(role, me)
    os.close(me)
    return os.pidfd_open(pid)


def _reap() -> None:
    """Reap the children that have ended; no other code does it."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _world(layout: AgentConfig) -> World:
    """Open everything, with enough descriptors, from inside a namespace of the lab, where `down` finds this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    enter_any(layout.spaces)  # first of all: until this process holds its locks, nothing else would find it
    loop_code()
    queues, gates = LabQueues.pinned(layout.fabric), of_lab(layout.spaces)
    control.stop(layout.fabric.name)  # only now: the lab is without an agent for milliseconds
    return World(layout, queues, gates)


def _hurry(role: Role) -> None:
    """Run with a higher priority than ordinary processes, and the agent than the keeper.

    Otherwise a freshly started process could keep this one's CPU for a long time.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITIES[role]))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _detach() -> None:
    """Become a daemon: no terminal, directory or streams, high priority, and the last victim of the OOM killer."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
    _hurry("agent")
    gc.collect()
    gc.freeze()
    gc.disable()
