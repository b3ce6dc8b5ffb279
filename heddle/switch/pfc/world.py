"""The state that the agent and its keeper share: sockets in every namespace, the lab's maps, a log.

All of it is created once, before the first fork, and inherited, so either process can continue alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from heddle.base.ethernet import CLASSES
from heddle.base.problems import HeddleError
from heddle.base.process import start_of
from heddle.base.userfiles import as_caller, give_to_caller
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import MapRows, Node, Port
from heddle.kernel.namespace import setns
from heddle.kernel.uapi import CLONE_NEWNET
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.classes import numbered_ports

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

LOG: Final = "pfc.log"
LOCKS: Final = "pfc.lock"  # the agent locks byte 0, the keeper byte 1: there is never a second one
AGENT, KEEPER = 0, 1
_LINES_A_SECOND: Final = 5
_CLOSING: Final = 32
_LOG_BYTES: Final = 4 << 20  # a larger log is truncated
_OWN_FILE: Final = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def _open_own(path: Path, flags: int, mode: int) -> int:
    """Open a file of the lab's directory. It belongs to the user who called sudo, and no link is followed there."""
    with as_caller(path):
        fd = os.open(path, flags | _OWN_FILE, mode)
    give_to_caller(path)
    return fd


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The ports, and the paths of their namespaces. fabric: only its nodes and ports are used, so it has no spec."""

    directory: Path
    spaces: Mapping[str, Path]
    fabric: Fabric

    def to_json(self) -> str:
        """The text that the agent reads from its standard input."""
        spaces, nodes = {node: str(path) for node, path in self.spaces.items()}, self.fabric.nodes_here
        ports = {n.name: [[p.name, p.peer_node, p.peer_port, p.rate_bps, p.mtu] for p in n.ports] for n in nodes}
        places = {name: astuple(place) for name, place in self.fabric.places.items()}
        rows = [[n.name, n.role.value, n.level, n.index, ports[n.name], places[n.name]] for n in nodes]
        return json.dumps({"lab": self.fabric.name, "directory": str(self.directory), "spaces": spaces, "nodes": rows})

    @classmethod
    def from_json(cls, text: str) -> AgentConfig:
        data: Mapping[str, Any] = json.loads(text)
        nodes, places = [], {}
        for name, role, level, index, rows, place in data["nodes"]:
            ports = (Port(name, own, "", node, peer, rate, mtu) for own, node, peer, rate, mtu in rows)
            places[name] = MapRows(*place)
            nodes.append(Node(name, Role(role), level, index, tuple(ports)))
        spaces = {node: Path(path) for node, path in data["spaces"].items()}
        fabric = Fabric(data["lab"], cast(Any, None), tuple(nodes), (), kept_places=places)
        return cls(Path(data["directory"]), spaces, fabric)


class Log:
    """Text lines for the user, at most a few of each kind per second; both processes append to one file."""

    def __init__(self, path: Path) -> None:
        self._fd = _open_own(path, os.O_WRONLY | os.O_APPEND, 0o644)
        self._seen: dict[str, tuple[int, int]] = {}

    def say(self, kind: str, text: str) -> None:
        """Write a line. Each kind has its own limit; the number of lines left out is added to the next line."""
        second = int(time.time())
        since, count = self._seen.get(kind, (second, 0))
        if since == second and count >= _LINES_A_SECOND:
            self._seen[kind] = (since, count + 1)
            return
        missed = count - _LINES_A_SECOND if since != second else 0
        more = f" (and {missed} more lines like the last)" if missed > 0 else ""
        self._seen[kind] = (second, count + 1 if since == second else 1)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):  # a full disk must not stop the agent
            if os.fstat(self._fd).st_size > _LOG_BYTES:
                os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{stamp} {os.getpid()} {kind}: {text}{more}\n".encode())


class Page(ctypes.Structure):
    """struct pulse of bpf/queue.h, in a map: both processes write it, and others see by it which of them work."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in (
        "heartbeat_ns", "ending", "keeper_ns", "agent", "agent_start", "keeper", "keeper_start", "spare",
    ))  # fmt: skip
    heartbeat_ns: int  # the agent's last one, on CLOCK_MONOTONIC
    ending: int
    keeper_ns: int
    agent: int
    agent_start: int
    keeper: int
    keeper_start: int

    def end(self) -> None:
        """Make both processes end."""
        self.ending = 1

    def sign(self, role: int) -> None:
        """Record that this process is the agent or the keeper now, and works."""
        pid, now = os.getpid(), time.monotonic_ns()
        if role == AGENT:
            self.heartbeat_ns, self.agent_start, self.agent = now, start_of(pid) or 0, pid
        else:
            self.keeper_ns, self.keeper_start, self.keeper = now, start_of(pid) or 0, pid


def enter_any(spaces: Mapping[str, Path]) -> str:
    """Enter the first namespace of the lab that exists: `down` searches them for processes. Its node, or ""."""
    for node, netns in spaces.items():
        with suppress(OSError):
            there = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
            try:
                setns(there, CLONE_NEWNET)
            finally:
                os.close(there)
            return node
    return ""


class World:
    """Everything that both processes need. OSError or MachineError when it cannot be opened."""

    def __init__(self, layout: AgentConfig, queues: LabQueues, gates: Mapping[str, Gates]) -> None:
        self.layout, self.queues = layout, queues
        self.log = Log(layout.directory / LOG)
        queues.pulse[:] = 0
        self.page = Page.from_buffer(queues.pulse.data)
        self._node = enter_any(layout.spaces)
        self.tell = -1  # a pipe to the process that waits until both are running
        self._locks = _open_own(layout.directory / LOCKS, os.O_RDWR, 0o600)
        os.fchmod(self._locks, 0o600)  # who may open it could lock it
        self.spaces: dict[str, Gates] = dict(gates)
        self.ports: dict[int, Port] = dict(numbered_ports(layout.fabric))
        self.gates: dict[int, tuple[Gates, str, int]] = {}  # row of the maps -> where, port, class
        for number, port in self.ports.items():
            space = gates.get(port.node)
            for each in range(CLASSES):
                if space is not None and (port.name, each) in space.gates:
                    self.gates[number * CLASSES + each] = (space, port.name, each)

    def report_ready(self, word: bytes) -> None:
        """Write `word` to the waiting process, if there is one, and close the pipe."""
        if self.tell >= 0:
            with suppress(OSError):
                os.write(self.tell, word)
            os.close(self.tell)
        self.tell = -1

    def lock(self, role: int) -> None:
        """Take the lock of the agent or the keeper; BlockingIOError when another process has it."""
        fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, role)

    def await_lock(self, role: int, seconds: float) -> None:
        """The same, but wait: the kernel releases the locks of a killed process shortly after it reports its end."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.lock(role)
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.005)

    def lost(self) -> list[str]:
        """The nodes whose namespaces are gone."""
        return [node for node, space in self.spaces.items() if space.gone()]

    def close_node(self, node: str) -> None:
        """Close the sockets in a node's namespace: they would keep it alive, and its end of every link."""
        space = self.spaces.pop(node)
        space.close_sockets()
        self.gates = {index: gate for index, gate in self.gates.items() if gate[0] is not space}
        if node == self._node:
            self._node = enter_any({name: each.netns for name, each in self.spaces.items()})

    def close(self) -> None:
        """Close all sockets in parallel: one by one would take seconds in a large lab, and `down` waits for it."""
        with ThreadPoolExecutor(_CLOSING) as pool:
            list(pool.map(Gates.close_sockets, self.spaces.values()))

    def qdisc_reader(self) -> Callable[[int, int], bool]:
        """A function of (port id, class): whether packets wait in that qdisc. It reads each node from the kernel once.

        A class without its own qdisc uses the port's root. True when the qdisc cannot be read.
        """
        read: dict[str, dict[tuple[str, int], int]] = {}

        def waits(port_id: int, number: int) -> bool:
            port = self.ports[port_id]
            try:
                if port.node not in read:
                    read[port.node] = self.spaces[port.node].waiting()
            except (OSError, KeyError, HeddleError):
                return True
            found = read[port.node]
            return found.get((port.name, number), found.get((port.name, -1), 0)) > 0

        return waits

    def open_gate(self, index: int, now: int) -> None:
        """Open one gate and account for the time that it was closed, in ns of CLOCK_MONOTONIC."""
        if index in self.gates:  # else its node is gone
            space, port, number = self.gates[index]
            space.open(port, number)
        table = self.queues.agent
        since = int(table["closed_since_ns"][index])
        if since:
            table["paused_ns"][index] += max(0, now - since)
        # After the kernel has opened the gate: if this process is killed in between, the gate is recorded as closed.
        table["closed_since_ns"][index] = 0
        table["until_ns"][index] = 0
        self.queues.gates["since_ns"][index] = 0  # the programs end a pause only on Xon
