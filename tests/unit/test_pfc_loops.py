"""Both loops of the PFC agent, in C and in Python: the same events give the same frames, gates and deadlines."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import random
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from heddle.base.ethernet import read_pfc_frame
from heddle.base.problems import MachineError
from heddle.switch.compiled import layouts
from heddle.switch.pfc import loop as compiledloop
from heddle.switch.pfc.agent import Agent
from heddle.switch.pfc.gates import Gate, Gates
from heddle.switch.pfc.loop import DETECT, LINK, RESTORE, TICK, CompiledLoop, loop_code
from heddle.switch.pfc.world import Page, World
from heddle.switch.queues import cells
from tests.objects.shared import MACHINES, SWITCH
from tests.pfcreference import DeadlineTable, Event, ReferenceAgent, ReferenceLoop
from tests.unit import committed

CLASS: Final = 3
PORTS: Final = 4  # ids 1 to 4: two nodes of two ports
ROWS: Final = (PORTS + 1) * 8
SECOND: Final = 10**9
_numbers = itertools.count()
SLOW: Final = 1_000_000  # bit/s: the longest pause takes half a minute
HOUR: Final = 3600 * SECOND  # nothing is due by itself
KINDS: Final = {"xoff": 1, "xon": 2, "pfc": 3}
found = layouts.load()
needs_object = pytest.mark.skipif(isinstance(found, str), reason=str(found))


class Wires:
    """Sockets in place of those of namespaces: what each would send, by name, in order."""

    def __init__(self) -> None:
        self._receivers: dict[str, socket.socket] = {}
        self._open: list[socket.socket] = []

    def address(self, name: str) -> bytes:
        """20 bytes, as those of a port: the name of a socket that keeps what is sent there."""
        unique = f"\0{os.getpid():010}{next(_numbers):07}".encode()
        receiver = self._keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        receiver.bind(unique)
        self._receivers[name] = receiver
        return struct.pack("=H18s", socket.AF_UNIX, unique)

    def sender(self) -> socket.socket:
        return self._keep(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))

    def netlink(self, name: str) -> socket.socket:
        mine, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._receivers[name] = self._keep(kernel)
        return self._keep(mine)

    def _keep(self, made: socket.socket) -> socket.socket:
        self._open.append(made)
        return made

    def taken(self) -> dict[str, list[bytes]]:
        """What has been sent since the last call."""
        return {name: list(_all(receiver)) for name, receiver in self._receivers.items()}

    def close(self) -> None:
        for each in self._open:
            each.close()


def _all(receiver: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield receiver.recv(256)
        except BlockingIOError:
            return


def space(wires: Wires, node: str, ports: Sequence[str]) -> Gates:
    """The gates of one node, with other sockets."""
    made = Gates.__new__(Gates)
    made.errors = 0
    made.netlink, made.kicker, made.control = wires.netlink(f"{node} netlink"), wires.sender(), wires.sender()
    made.kick_frame = b"kick" * 15
    made.addresses = {name: wires.address(f"{node}:{name}") for name in ports}
    made.macs = {name: bytes([2, 0, 0, 0, int(node[1:]), int(name[3:])]) for name in ports}
    made.gates = {
        (name, CLASS): Gate(name, f"open {node} {name}".encode(), f"close {node} {name} now".encode()) for name in ports
    }
    return made


class Rig:
    """An agent with one of the two loops, in a world of two nodes, and a ring whose events the test writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, compiled: bool) -> None:
        self.wires = Wires()
        self.spaces = {node: space(self.wires, node, ("eth1", "eth2")) for node in ("n1", "n2")}
        self.waiting: list[Event] = []
        self.said: list[str] = []
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        self.rules: Any = np.zeros(ROWS, cells.POLICY)
        for port in range(1, PORTS + 1):
            self.rules[port * 8 + CLASS] = self._policy()
        self.queues: Any = SimpleNamespace(
            **{name: np.zeros(ROWS, cells.LAYOUTS[name]) for name in ("agent", "cells", "ingress", "gates")},
            links=np.zeros(PORTS + 1, cells.LINK), changes=0, policies=lambda: self.rules, ring=None,
            events=lambda: SimpleNamespace(read=self._read, fileno=lambda: self.doorbell),
            reconcile=lambda _: [],
        )  # fmt: skip
        self.queues.links["rate"] = SLOW
        self.queues.links["peer"] = (0, 3, 4, 1, 2)
        ports = {
            number: SimpleNamespace(
                node=f"n{1 + (number - 1) // 2}", name=f"eth{1 + (number - 1) % 2}", ref=f"p{number}"
            )
            for number in range(1, PORTS + 1)
        }
        world = SimpleNamespace(
            queues=self.queues, spaces=self.spaces, ports=ports, page=Page(),
            log=SimpleNamespace(say=lambda kind, text: self.said.append(kind)),
            gates={
                number * 8 + CLASS: (self.spaces[port.node], port.name, CLASS) for number, port in ports.items()
            },
        )  # fmt: skip
        self.world = cast(Any, world)
        self.world.open_gate = lambda index, now: World.open_gate(self.world, index, now)
        self._consume = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._hand_over)
        ring = SimpleNamespace(
            ring_buffer__consume=self._consume, ring_buffer__epoll_fd=lambda _: self.doorbell,
            ring_buffer__free=lambda _: None,
        )  # fmt: skip
        monkeypatch.setattr(compiledloop, "library", lambda: ring)
        monkeypatch.setattr(compiledloop, "open_ring", lambda *_: 1)
        self.agent = Agent(self.world) if compiled else ReferenceAgent(self.world)
        self.loop: Any = self.agent._loop
        assert isinstance(self.loop, CompiledLoop if compiled else ReferenceLoop)

    @staticmethod
    def _policy() -> Any:
        row = np.zeros(1, cells.POLICY)
        row["kind"], row["flags"], row["quanta"], row["detect_ns"], row["restore_ns"] = 2, 4, 65535, HOUR, HOUR
        return row[0]

    def _read(self) -> list[Event]:
        if self.waiting:
            os.eventfd_read(self.doorbell)
        events, self.waiting = self.waiting, []
        return events

    def _hand_over(self, _: Any) -> int:
        events = self._read()
        for event in events:
            made = layouts.PfcEventStruct(
                event.ns, event.port, KINDS[event.kind], event.number, 0, event.quanta or (0,) * 8
            )
            code: Any = found
            code.hd_pfc_event(self.loop._core, made, ctypes.sizeof(made))
        return len(events)

    def hears(self, events: Sequence[Event], wait_s: float = 0.0) -> dict[str, list[bytes]]:
        """Let the loop handle these events, and what becomes due meanwhile; return what was sent."""
        self.waiting += events
        os.eventfd_write(self.doorbell, 1)
        self.loop.push(time.monotonic_ns() + round(wait_s * SECOND), TICK, 0)
        while not any(work.kind == TICK and work.fd < 0 for work in self.loop.wait()):
            pass
        while self.waiting:  # the deadline was handled before the events
            self.loop.push(time.monotonic_ns() + SECOND // 1000, TICK, 0)
            self.loop.wait()
        return self.wires.taken()

    def state(self) -> dict[str, Any]:
        """What must be equal for both: everything without a moment that the loop itself took."""
        rows, agent = self.agent._rows, self.queues.agent
        return {
            "asked": rows.asking(), "heard": list(rows.heard), "checked": list(rows.checked),
            "watched": [each >= 0 for each in rows.waiting], "arrived": list(rows.arrived),
            "until": agent["until_ns"].tolist(), "sent": agent["pfc_sent"].tolist(),
            "closed": (agent["closed_since_ns"] != 0).tolist(), "since": self.queues.gates["since_ns"].tolist(),
            "reactions": agent["reactions"].tolist(), "deadlines": self.deadlines(),
        }  # fmt: skip

    def deadlines(self) -> list[tuple[int, int]]:
        """(kind, row) of all pending deadlines, without those by which this rig ends a wait."""
        if isinstance(self.loop, ReferenceLoop):
            return sorted(key for key in self.loop.pending if key[0] != TICK)
        assert isinstance(self.loop, CompiledLoop)
        core = self.loop._core
        return sorted(divmod(key, ROWS) for key in self.loop._heap[: core.pending] if key // ROWS != TICK)

    def close(self) -> None:
        self.agent.close()
        self.wires.close()
        os.close(self.doorbell)


def pfc(ns: int, port: int, quanta: int, number: int = CLASS) -> Event:
    return Event(ns, port, "pfc", 1 << number, tuple(quanta if at == number else 0 for at in range(8)))


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Rig, Rig]]:
    made = Rig(monkeypatch, compiled=False), Rig(monkeypatch, compiled=True)
    yield made
    for each in made:
        each.close()


@needs_object
@pytest.mark.parametrize("seed", range(4))
def test_the_same_events_give_the_same_frames_gates_and_deadlines(rigs: tuple[Rig, Rig], seed: int) -> None:
    chance = random.Random(seed)
    sent = 0
    for _ in range(60):
        now = time.monotonic_ns()
        events = []
        for _ in range(chance.randrange(1, 6)):
            port = chance.randrange(1, PORTS + 1)
            kind = chance.choice(("xoff", "xon", "pfc", "pfc", "other"))
            if kind == "pfc":
                events.append(pfc(now, port, chance.choice((0, 0, 40_000, 65_535))))
            elif kind == "other":  # a class without a gate, and one without PFC
                events.append(chance.choice((pfc(now, port, 65_535, 5), Event(now, port, "xoff", 5, ()))))
            else:
                for rig in rigs:
                    rig.queues.ingress["state"][port * 8 + CLASS] = kind == "xoff"
                events.append(Event(now, port, "xoff" if kind == "xoff" else "xon", CLASS, ()))
        depth = chance.choice((0, 4096))
        for rig in rigs:
            rig.queues.cells["depth"][:] = depth
        python, compiled = (rig.hears(events) for rig in rigs)
        assert python == compiled
        assert rigs[0].state() == rigs[1].state()
        sent += sum(map(len, python.values()))
    assert sent > 60
    frames = [
        read_pfc_frame(each) for name, each in ((n, f) for n, all_ in compiled.items() for f in all_) if len(name) == 7
    ]
    assert all(frame is None or set(frame.quanta) == {CLASS} for frame in frames)


@needs_object
def test_a_pause_ends_in_time_and_one_that_is_requested_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 Mb/s: a quantum is 512 us."""
    rig = Rig(monkeypatch, compiled=True)
    try:
        row = 8 + CLASS
        first = rig.hears([pfc(time.monotonic_ns(), 1, 600)], wait_s=0.003)  # 307 ms
        assert first["n1 netlink"] == [b"close n1 eth1 now"] and rig.queues.agent["until_ns"][row]
        after = rig.hears([], wait_s=0.5)
        assert after["n1 netlink"] == [b"open n1 eth1"] and after["n1:eth1"] == [b"kick" * 15]
        assert not rig.queues.agent["until_ns"][row] and rig.queues.agent["paused_ns"][row] > 250_000_000
        assert rig.queues.agent["reactions"][row] == 1 and rig.queues.agent["spare"].view("<u4").sum() == 1
        rig.rules["quanta"][row], rig.queues.changes = 200, 1  # 102 ms; repeated each 51 ms
        assert rig.agent._rules.load()
        rig.loop.rules_changed()
        rig.queues.ingress["state"][row] = 1
        asked = rig.hears([Event(time.monotonic_ns(), 1, "xoff", CLASS, ())], wait_s=0.23)["n1:eth1"]
        assert 2 <= len(asked) <= 6 and len(set(asked)) == 1
        rig.queues.ingress["state"][row] = 0
        resumed = rig.hears([Event(time.monotonic_ns(), 1, "xon", CLASS, ())])["n1:eth1"]
        assert [read_pfc_frame(each).quanta for each in resumed][-1:] == [{CLASS: 0}]  # type: ignore[union-attr]
        assert rig.agent._rows.asking() == [] and rig.world.page.heartbeat_ns > 0
    finally:
        rig.close()


@needs_object
def test_a_node_whose_namespace_is_gone_gets_nothing_more(rigs: tuple[Rig, Rig]) -> None:
    now = time.monotonic_ns()
    for rig in rigs:
        rig.loop.forget("n2")
        del rig.world.spaces["n2"]
        rig.world.gates = {row: gate for row, gate in rig.world.gates.items() if row < 3 * 8}
        rig.queues.ingress["state"][:] = 1
        said = rig.hears([pfc(now, 3, 65_535), Event(now, 4, "xoff", CLASS, ()), pfc(now, 2, 65_535)])
        assert {name for name, sent in said.items() if sent} == {"n1 netlink"}
    assert rigs[0].state() == rigs[1].state()


@needs_object
def test_deadlines_come_in_order_whatever_was_pushed_replaced_and_cancelled(rigs: tuple[Rig, Rig]) -> None:
    loop, timers, chance = rigs[1].loop, DeadlineTable(), random.Random(7)
    base = time.monotonic_ns() - SECOND
    for _ in range(5000):
        kind, row = chance.choice((DETECT, RESTORE, LINK)), chance.randrange(ROWS)
        if chance.random() < 0.6:
            when = base + chance.randrange(1000) * ROWS * 7 + kind * ROWS + row  # no two at one moment
            loop.push(when, kind, row)
            timers.push(when, kind, row)
        else:
            loop.cancel(kind, row)
            timers.cancel(kind, row)
    python = []
    while (due := timers.due(base + SECOND)) is not None:
        python.append(due[1:])
    compiled: list[tuple[int, int]] = []
    while len(compiled) < len(python):
        compiled += [(work.kind, work.row) for work in loop.wait()]
    assert compiled == python and len(python) > 40
    assert rigs[1].deadlines() == []


@needs_object
def test_a_signal_ends_a_wait_even_if_it_comes_before_the_system_call(rigs: tuple[Rig, Rig]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        os.kill(os.getpid(), signal.SIGUSR1)  # handled here; the pipe remembers it
        started = time.monotonic()
        assert rigs[1].loop.wait() == []
        assert time.monotonic() - started < 10
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_committed_object_is_what_its_sources_give(machine: str, tmp_path: Path) -> None:
    committed.compare_shared(SWITCH, machine, tmp_path / "built.so")


@pytest.mark.skipif(platform.machine() not in MACHINES, reason=f"no object for {platform.machine()}")
def test_the_object_can_be_used_on_this_machine() -> None:
    assert not isinstance(found, str), found


def test_without_an_object_there_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "load", lambda: "no compiled object for riscv64")
    with pytest.raises(MachineError, match="no compiled object for riscv64"):
        loop_code()
