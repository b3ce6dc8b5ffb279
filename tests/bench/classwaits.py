"""How long packets of control and of a full lossless class wait for the same port, three hops from host to host."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from heddle.fabric.wiring import Node
from heddle.kernel.namespace import inside
from heddle.traffic.flow import Flow
from tests.netns.static_fabric import StaticLab, address, dropping, roce_frame, static_fabric

from . import Figure, at_most

_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_ETH_P_ALL: Final = 3
_LOSSLESS, _CONTROL = 24, 48  # DSCP
_PAYLOAD_AT: Final = 14 + 20 + 8 + 12 + 16
_SAMPLES: Final = 500
_FILLING_S: Final = 0.5  # until the queue is full
_STAMP: Final = struct.Struct("!q")


# Three hosts in each of two racks, and one path between them.
_KEYS: Final[dict[str, Any]] = {"weights": (1,), "hosts_per_rack": 3, "link": {"host": "1gbit", "fabric": "20mbit"}}


def _flow_of(lab: StaticLab, source: Node) -> Flow:
    """From a host of the first rack to the last host of the second."""
    there = lab.fabric.hosts[-1]
    ends = (source.name, there.name, address(source), address(there))
    return Flow(*ends, sport=0xC000 + source.index, qpn=source.index, first_hop=source.ports[0].peer_ref)


@contextmanager
def _mouth(lab: StaticLab, source: Node, dscp: int, payload: int) -> Iterator[tuple[socket.socket, bytearray]]:
    """A socket that sends what it is given out of a host's port, and a frame of a class to be sent."""
    port = source.ports[0]
    peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    with inside(lab.handle(source.name).netns):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with wire:
        wire.bind((port.name, 0))
        yield wire, bytearray(roce_frame(_flow_of(lab, source), payload, port.mac, peer.mac, dscp=dscp))


def figures() -> Iterator[Figure]:
    """The 99th percentile of both, and their ratio."""
    queues: dict[str, Any] = dropping("400KB")
    with static_fabric("flow", queues=queues, **_KEYS) as lab:
        stop, there = threading.Event(), lab.fabric.hosts[-1]
        with inside(lab.handle(there.name).netns):
            ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))

        def speak(source: Node, dscp: int, payload: int, pause: float) -> None:
            with _mouth(lab, source, dscp, payload) as (wire, frame):
                while not stop.is_set():
                    _STAMP.pack_into(frame, _PAYLOAD_AT, time.clock_gettime_ns(time.CLOCK_REALTIME))
                    wire.send(frame)
                    time.sleep(pause)

        crowd = [(lab.fabric.hosts[0], _LOSSLESS, 4000, 0.001), (lab.fabric.hosts[1], _CONTROL, 64, 0.004)]
        senders = [threading.Thread(target=speak, args=each) for each in crowd]
        with ear:
            ear.bind((there.ports[0].name, _ETH_P_ALL))
            ear.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 25)
            ear.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            ear.settimeout(1.0)
            for sender in senders:
                sender.start()
            try:
                waits = _waits(ear)
            finally:
                stop.set()
                for sender in senders:
                    sender.join()
    control, lossless = (float(np.percentile(waits[dscp], 99)) / 1e6 for dscp in (_CONTROL, _LOSSLESS))
    yield Figure("a full lossless class: wait, 99th percentile", lossless, "ms")
    yield at_most("control beside it: wait, 99th percentile", control / lossless, "x", 0.1, "the lossless class's")


def _waits(ear: socket.socket) -> dict[int, list[int]]:
    """DSCP -> nanoseconds from a host's socket to the other host's port."""
    waits: dict[int, list[int]] = {_LOSSLESS: [], _CONTROL: []}
    began = time.monotonic()
    while min(map(len, waits.values())) < _SAMPLES:
        data, more, _, _ = ear.recvmsg(256, 64)
        dscp = data[15] >> 2
        if time.monotonic() - began < _FILLING_S or dscp not in waits or len(data) < _PAYLOAD_AT + _STAMP.size:
            continue
        seconds, nanoseconds = struct.unpack("=qq", more[0][2])
        waits[dscp].append(seconds * 10**9 + nanoseconds - _STAMP.unpack_from(data, _PAYLOAD_AT)[0])
    return waits
