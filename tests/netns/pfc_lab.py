"""A static fabric with its PFC agent, and what tests of it do: load classes, pause ports, look into the shared maps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from heddle.base.ethernet import pfc_frame
from heddle.kernel.namespace import inside
from heddle.switch.pfc import control as pfc
from heddle.switch.queues.cells import LabQueues
from tests.machine import meanwhile, until
from tests.netns.port_pair import first_in_line
from tests.netns.sockets import packet_socket
from tests.netns.static_fabric import StaticLab, address, static_fabric

LOSSLESS = 3
TOS = {LOSSLESS: 24 << 2, 0: 0}  # DSCP 24 is of class 3
PAYLOAD = 3900
RATE = "25mbit"
_PORT = 9999


@dataclass
class PfcLab:
    """lab: namespaces and ports. queues: its maps. place: where the agent's log and locks are."""

    lab: StaticLab
    queues: LabQueues
    place: Path

    def row(self, ref: str, number: int = LOSSLESS) -> int:
        """The maps' row of a class of a port: `rtsw1:eth3`."""
        node, port = ref.split(":")
        return self.queues.ids[node, port] * 8 + number

    def down_port(self, host: str) -> str:
        """The switch's port that leads to a host."""
        return self.lab.fabric.by_name[host].ports[0].peer_ref

    def agent(self) -> pfc.AgentState:
        """Who runs."""
        return pfc.alive(self.lab.name)

    def start(self) -> None:
        """Restart agent and keeper."""
        pfc.start(self.lab.name, self.lab.fabric, self.lab.handles(), self.place)

    def kill_both(self) -> None:
        """Kill agent and keeper, so that neither sees the other go."""
        state = self.agent()
        assert state.agent is not None
        assert state.keeper is not None
        os.kill(state.agent, signal.SIGSTOP)
        os.kill(state.keeper, signal.SIGKILL)
        os.kill(state.agent, signal.SIGKILL)
        until(lambda: self.agent() == pfc.AgentState(None, None))

    def log(self) -> str:
        """What the two have written."""
        return (self.place / "pfc.log").read_text()

    def closed(self, ref: str, number: int = LOSSLESS) -> bool:
        """Whether a gate is closed, as the agent has it."""
        return bool(self.queues.agent["until_ns"][self.row(ref, number)])

    def out(self, ref: str, number: int = LOSSLESS) -> int:
        """Packets of a class that have left by a port."""
        return int(self.queues.cells["out_packets"][self.row(ref, number)])

    def rate(self, ref: str, seconds: float, number: int = LOSSLESS) -> float:
        """Packets a second of a class out of a port, measured for so long."""
        before, start = self.out(ref, number), time.monotonic()
        time.sleep(seconds)
        return (self.out(ref, number) - before) / (time.monotonic() - start)

    def drops(self) -> int:
        """Packets that the programs have dropped, of any cause, in the whole lab."""
        return int(self.queues.cells["drops"].sum())

    def at_rest(self) -> bool:
        """Whether nothing of the lossless class waits anywhere, by any counter."""
        books = (self.queues.cells["depth"], self.queues.ingress["occupancy"], self.queues.transit)
        return not any(each[LOSSLESS::8].any() for each in books)

    def overdue_ms(self) -> float:
        """By how much a gate is closed past its time, the worst of all; 0 when none is."""
        until = self.queues.agent["until_ns"].copy()  # the agent writes meanwhile
        closed = until[until != 0].astype(np.int64)
        return max(0.0, (time.monotonic_ns() - int(closed.min())) / 1e6) if len(closed) else 0.0

    @contextlib.contextmanager
    def loading(self, flows: Sequence[tuple[str, str, int]], every: float = 0) -> Iterator[None]:
        """Flows (source, destination, class) of UDP, each as fast as the source's port takes it.

        every: seconds between two packets, at least.
        """

        def send(wire: socket.socket, spot: tuple[str, int]) -> None:
            try:
                wire.sendto(bytes(PAYLOAD), spot)
                time.sleep(every)
            except OSError:
                time.sleep(0.002)  # paused for long, or its port is down

        with contextlib.ExitStack() as stack:
            for name in {destination for _, destination, _ in flows}:
                sink = stack.enter_context(self._datagrams(name))
                sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # full at once: only the port matters
                sink.bind(("", _PORT))
            for source, destination, number in flows:
                wire = stack.enter_context(self._datagrams(source))
                wire.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS[number])
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 30_000)
                wire.settimeout(0.05)
                spot = (address(self.lab.fabric.by_name[destination]), _PORT)
                stack.enter_context(meanwhile(partial(send, wire, spot)))
            yield

    def _datagrams(self, host: str) -> socket.socket:
        with inside(self.lab.handle(host).netns):
            return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def pause(self, at: str, quanta: int, vector: Sequence[int] = (LOSSLESS,)) -> None:
        """Have a port send one pause frame. at: a host, whose port leads to its switch, or a port as `rtsw1:eth3`."""
        node, _, name = at.partition(":")
        port = next(each for each in self.lab.fabric.by_name[node].ports if name in ("", each.name))
        self.put(port.ref, pfc_frame(bytes.fromhex(port.mac.replace(":", "")), dict.fromkeys(vector, quanta)))

    def put(self, ref: str, frame: bytes) -> None:
        """Put a frame on the wire of a port."""
        node, _, name = ref.partition(":")
        with packet_socket(self.lab.handle(node).netns, name) as wire:
            wire.send(frame)

    @contextlib.contextmanager
    def pausing(self, at: str, quanta: int = 65535, every: float = 0.05) -> Iterator[None]:
        """A port that pauses its peer for ever; `at` as in `pause`."""
        self.pause(at, quanta)
        with meanwhile(lambda: self.pause(at, quanta), every):
            yield


@contextlib.contextmanager
def pfc_lab(place: Path, **keys: Any) -> Iterator[PfcLab]:
    """A static fabric of 25 Mbit/s links, its agent at work, for the length of a with block."""
    with first_in_line(), static_fabric(**({"link": {"host": RATE, "fabric": RATE}} | keys)) as lab:
        place.mkdir(parents=True, exist_ok=True)
        if Path("/dev/net/tun").exists():  # a device without a MAC is no port
            lab.ip("rtsw1", "tuntap", "add", "dev", "tun0", "mode", "tun")
        try:
            with LabQueues.pinned(lab.fabric) as queues:
                found = PfcLab(lab, queues, place)
                found.start()
                yield found
        finally:
            pfc.stop(lab.name)
