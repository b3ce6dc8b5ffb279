"""Packet sockets at ports of namespaces: whole frames in and out, past every protocol of the kernel."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from heddle.kernel.namespace import inside
from tests.machine import meanwhile

ETH_P_ALL: Final = 3
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33


def packet_socket(
    netns: Path, port: str, protocol: int = 0, *, seconds: float | None = None, send: int = 0, receive: int = 0
) -> socket.socket:
    """A socket at a port. protocol: of frames that it receives. seconds: that a call waits; 0: none, None: any time.

    send, receive: bytes of its buffers, also beyond the limits of the kernel; 0: as the kernel has them.
    """
    with inside(netns):
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.bind((port, protocol))
    made.settimeout(seconds)
    for option, size in ((_SO_SNDBUFFORCE, send), (_SO_RCVBUFFORCE, receive)):
        if size:
            made.setsockopt(socket.SOL_SOCKET, option, size)
    return made


@contextmanager
def taking(made: socket.socket, take: Callable[[bytes, Any], object]) -> Iterator[None]:
    """Give each frame that comes, and where it is from, to a function, in a thread, for a with block."""
    made.settimeout(0.05)

    def step() -> None:
        with suppress(TimeoutError):
            take(*made.recvfrom(65536))

    with made, meanwhile(step):
        yield


def waiting(made: socket.socket) -> Iterator[tuple[bytes, Any]]:
    """The frames that have come to a socket with `seconds=0`, and where each is from."""
    with suppress(BlockingIOError):
        while True:
            yield made.recvfrom(65536)


def checksum(head: bytes) -> int:
    """RFC 1071, of an IPv4 header whose own checksum is 0; 0 of one that is right."""
    total: int = sum(struct.unpack(f"!{len(head) // 2}H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
