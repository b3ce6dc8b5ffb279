"""A flood of equal frames over one path, and when the kernel of the receiving host had each of them."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Final, Protocol

from heddle.fabric.model import Fabric
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from tests.netns.static_fabric import roce_frame, some_flows

_SO_RCVBUFFORCE, _SO_TIMESTAMPNS, _ETH_P_ALL = 33, 35, 3  # ETH_P_ALL has each frame before the NIC's programs
_NANOSECONDS: Final = 1_000_000_000


class _Lab(Protocol):
    @property
    def fabric(self) -> Fabric: ...
    def handle(self, node: str) -> NodeHandle: ...


@dataclass(frozen=True, slots=True)
class Flood:
    """size: of one frame, in bytes. began: before the first one was sent. arrivals: seconds, in order, as `began`."""

    size: int
    began: float
    arrivals: tuple[float, ...]


def flood(lab: _Lab, count: int) -> Flood:
    """Send `count` RoCE frames of 4 KB at once, from a host to one in another rack."""
    flow = some_flows(lab.fabric, 1)[0]
    port = lab.fabric.by_name[flow.src].ports[0]
    frame = roce_frame(flow, 4096, port.mac, lab.fabric.by_name[port.peer_node].port(port.peer_port).mac)
    with inside(lab.handle(flow.dst).netns):
        ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    with inside(lab.handle(flow.src).netns):
        mouth = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with ear, mouth:
        ear.bind((lab.fabric.by_name[flow.dst].ports[0].name, _ETH_P_ALL))
        ear.settimeout(5.0)
        ear.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        ear.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        mouth.bind((port.name, 0))
        began = time.time()
        for _ in range(count):
            mouth.send(frame)
        arrivals: list[float] = []
        while len(arrivals) < count:
            data, ancillary, _, _ = ear.recvmsg(1 << 16, 64)
            if len(data) == len(frame):
                seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2])
                arrivals.append(seconds + nanoseconds / _NANOSECONDS)
    return Flood(len(frame), began, tuple(arrivals))
