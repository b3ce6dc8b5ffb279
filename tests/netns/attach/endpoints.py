"""Namespaces of a user, and what programs in them send: for tests of attached devices."""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from heddle.base.process import run
from heddle.kernel import netlink as nl
from heddle.kernel.namespace import NETNS_DIR, inside
from heddle.wire.layout import TOS_DATA
from heddle_plugins.attach.devices import Device, devices

ROCE, UET = 4791, 4793
PAYLOAD: Final = 64
_WAIT_S: Final = 20.0


@contextmanager
def namespaces(*names: str) -> Iterator[None]:
    """Namespaces for a with block."""
    try:
        for name in names:
            run(["ip", "netns", "add", name])
        yield
    finally:
        for name in names:
            run(["ip", "netns", "del", name], check=False)


def path(name: str) -> Path:
    """Of a namespace."""
    return NETNS_DIR / name


def seen(space: Path) -> dict[str, Device]:
    """The devices there."""
    with nl.RouteSocket(space) as netlink:
        return devices(netlink)


def ip(space: str, words: str, *, check: bool = True) -> str:
    """The output of a command of `ip` in a namespace."""
    return run(["ip", "-n", space, *words.split()], check=check).out


def udp(space: Path, source: str, port: int = 0) -> socket.socket:
    """A UDP socket there, which waits where its buffer is full."""
    with inside(space):
        found = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    found.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS_DATA)
    found.settimeout(_WAIT_S)
    found.bind((source, port))
    return found


def bth(qpn: int, psn: int) -> bytes:
    """A SEND_ONLY of RC, with a payload, and place for an ICRC that no switch reads."""
    return struct.pack("!BBHII", 4, 0, 0xFFFF, qpn, psn) + bytes(PAYLOAD)


def send_roce(space: Path, source: str, target: str, qpns: Sequence[int], packets: int) -> None:
    """So many packets in all, in turn on these queue pairs, each with a source port of its own."""
    sockets = [udp(space, source, 49152 + number) for number, _ in enumerate(qpns)]
    try:
        for number in range(packets):
            at = number % len(qpns)
            sockets[at].sendto(bth(qpns[at], number), (target, ROCE))
    finally:
        for each in sockets:
            each.close()


def raw(space: str, device: str, frames: Sequence[bytes]) -> None:
    """Frames as they are, out of a device."""
    with inside(path(space)), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sends:
        sends.bind((device, 0))
        for frame in frames:
            sends.send(frame)


def ping(space: str, target: str, size: int = 56) -> bool:
    """Whether an answer comes."""
    argv = ["ip", "netns", "exec", space, "ping", "-c", "1", "-W", "3", "-M", "do", "-s", str(size), target]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0
