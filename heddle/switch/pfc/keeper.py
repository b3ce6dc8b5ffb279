"""Two processes that see to it that no gate stays closed: the agent, and a keeper that waits for it to fail.

The keeper is forked from the agent and has its sockets and maps. It opens gates that are closed past their time, and
when the agent dies, or does not turn for half a second, it forks another. When the keeper dies, or does not turn, the
agent forks another keeper. Killing one of them, again and again, so costs nothing but a few milliseconds.

Killing both at the same moment leaves gates closed, since the kernel has no timer that would open one: what waits
behind them waits until a run starts both anew, at its beginning or while it goes on (see __init__.mend). What comes
goes around them: the program at egress gives packets of a class whose gate is 300 ms past its time to another queue.
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
from heddle.switch.pfc.agent import Agent, Ended, quiet_signals
from heddle.switch.pfc.gates import of_lab
from heddle.switch.pfc.world import AGENT, KEEPER, LOG, AgentConfig, World, stand

_LOOK_MS: Final = 50
_LOOKS_AT_SPACES: Final = 20
_OVERDUE_NS: Final = 100_000_000
_SILENT_NS: Final = 500_000_000
_SILENT_LOOKS: Final = 5  # in a row: a machine that was suspended stops both, and neither is to blame
_AWAIT_LOCK_S: Final = 5.0
_SHORT_LIFE_S: Final = 0.2
_OOM_SCORE: Final = b"-900"
_NICE: Final = -20

Role = Literal["agent", "keeper"]
_PRIORITIES: Final[Mapping[Role, int]] = {"agent": 2, "keeper": 1}  # of SCHED_RR


class _Become(BaseException):
    """A freshly forked process unwinds its parent's frames with this, and goes on as the other of the two."""

    def __init__(self, role: Role, other: int) -> None:
        super().__init__()
        self.role: Role = role
        self.other = other  # pidfd of its parent


def main() -> int:
    """Read the layout, be at work, and let the caller go on; its exit code. What is wrong is on stderr."""
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
        print(f"the PFC agent has died at once; {layout.directory / LOG} says why", file=sys.stderr)
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
    """Agent or keeper, whatever is needed, until somebody ends it."""
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
    """The agent's life, until it is to end. keeper: pidfd; None when there is none yet."""
    world.page.heartbeat_ns = time.monotonic_ns()
    agent = Agent(world)
    quiet_signals(world.page.end)
    signal.signal(signal.SIGHUP, lambda *_: agent.reload())
    try:
        agent.begin(anew=keeper is None)
        while True:
            if keeper is None:
                keeper = _fork(world, "keeper", agent)
                world.told(b"")
            agent.run(keeper)
            os.close(keeper)
            keeper = None
            _reap()
            world.log.say("keeper", "the keeper has died; another has its place")
    except Ended:
        agent.end()


def be_keeper(world: World, agent: int) -> None:
    """The keeper's life, until it is to end. agent: pidfd."""
    quiet_signals(world.page.end)
    world.told(b"1")
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    looks, silent, born = 0, 0, 0.0
    while True:
        died = bool(poll.poll(_LOOK_MS))
        looks += 1
        if looks % _LOOKS_AT_SPACES == 0:
            for node in world.lost():
                world.let_go(node)
            if not world.spaces:
                world.page.end()
        if world.page.ending:
            return
        now = world.page.keeper_ns = time.monotonic_ns()
        overdue = _open_overdue(world, now)
        silent = silent + 1 if now - world.page.heartbeat_ns > _SILENT_NS else 0
        if overdue:
            world.log.say("overdue", f"{overdue} gates were closed 100 ms past their time; the keeper opened them")
        if not died and silent < _SILENT_LOOKS:
            continue
        if died and time.monotonic() - born < _SHORT_LIFE_S:  # one that dies again and again is not made again at once
            time.sleep(_LOOK_MS / 1000)
            if time.monotonic() - born < _SHORT_LIFE_S:
                continue
        why = "has died" if died else "does not turn"
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(agent, signal.SIGKILL)
        poll.poll(1000)
        world.log.say("agent", f"the agent {why}; another has its place")
        poll.unregister(agent)
        os.close(agent)
        _reap()
        world.page.heartbeat_ns, silent = time.monotonic_ns(), 0
        agent, born = _fork(world, "agent", None), time.monotonic()
        poll.register(agent, select.POLLIN)


def _open_overdue(world: World, now: int) -> int:
    """Open gates that are closed past their time; how many."""
    until = world.queues.agent["until_ns"].copy()  # the agent writes meanwhile: one look, not two
    found = ((until != 0) & (until < now - _OVERDUE_NS)).nonzero()[0].tolist()
    for index in found:
        world.open_gate(index, now)
    return len(found)


def _fork(world: World, role: Role, agent: Agent | None) -> int:
    """Another process in that role; its pidfd. In it _Become is raised. OSError when the kernel has no process left."""
    me = os.pidfd_open(os.getpid())
    while True:
        try:
            pid = os.fork()
            break
        except OSError as error:
            world.log.say("fork", f"no {role} can be made, and is tried again: {error.strerror}")
            time.sleep(0.1)
    if pid == 0:
        _hurry(role)
        if agent is not None:
            agent.close()
        raise _Become(role, me)
    os.close(me)
    return os.pidfd_open(pid)


def _reap() -> None:
    """The end of a child is nobody else's to read."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _world(layout: AgentConfig) -> World:
    """Everything that is needed, with descriptors enough, from within a namespace of the lab: `down` finds it there."""
    from heddle.switch.queues.cells import LabQueues

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    stand(layout.spaces)  # before all else: until it holds its locks nothing else would find it
    return World(layout, LabQueues.pinned(layout.fabric), of_lab(layout.spaces))


def _hurry(role: Role) -> None:
    """Before all ordinary processes, and the agent before the keeper: a fresh one would have its processor for long."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITIES[role]))
    except OSError:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, _NICE)


def _detach() -> None:
    """A daemon: no terminal, no directory, no streams; quick, and the last to go when memory runs out."""
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
