"""Depth is exact for whatever else hosts send: what the kernel cuts behind the queue, fragments, and tagged frames."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest

from heddle.kernel.namespace import inside
from tests.netns.queue_traffic import Rack, rack
from tests.netns.static_fabric import address

pytestmark = pytest.mark.root

LINK = {"host": "100mbit", "fabric": "100mbit"}
_UDP_SEGMENT = 103
_IP_MTU_DISCOVER, _IP_PMTUDISC_DONT = 10, 0


def sockets(made: Rack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """A socket on the first host, and one on the last that is bound to a port of its."""
    first, last = made.lab.fabric.hosts[0], made.lab.fabric.hosts[-1]
    with inside(made.lab.handle(first.name).netns):
        source = socket.socket(socket.AF_INET, kind)
    with inside(made.lab.handle(last.name).netns):
        sink = socket.socket(socket.AF_INET, kind)
    sink.bind((address(last), 0))
    source.settimeout(10)
    sink.settimeout(10)
    return source, sink


def test_tcp_segmented_on_egress_is_counted_to_the_byte() -> None:
    size = 3 << 20
    with rack(link=LINK) as made:
        source, sink = sockets(made, socket.SOCK_STREAM)
        with source, sink:
            sink.listen()
            source.connect(sink.getsockname())
            sender = threading.Thread(target=source.sendall, args=(bytes(size),))
            sender.start()
            taken, _ = sink.accept()
            with taken:
                left = size
                while left:
                    left -= len(taken.recv(min(left, 1 << 20)))
            sender.join()
        made.at_rest()
        cell = made.cell(0)
        segment = max(port.mtu for port in made.lab.fabric.hosts[0].ports) - 52  # IPv4, TCP and its time stamps
        assert cell["in_packets"] >= size // segment and cell["in_bytes"] > size


@pytest.mark.deep
def test_segmented_and_fragmented_udp_is_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        source, sink = sockets(made, socket.SOCK_DGRAM)
        with source, sink:
            source.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DONT)
            for size in (0, 1000):
                before = int(made.cell(0)["in_packets"])
                source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
                with contextlib.suppress(OSError):  # EIO: this kernel cuts none for a port without checksums
                    for _ in range(10):
                        source.sendto(bytes(30_000), sink.getsockname())
                    time.sleep(0.05)
                    assert made.cell(0)["in_packets"] >= before + 10 * (30 if size else 7)
                made.at_rest()


@pytest.mark.deep
def test_tagged_frames_are_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        before = int(made.queues.cells["in_packets"].sum())
        with made.wire() as wire:
            for number in range(50):
                tags = ((0x8100,), (0x88A8, 0x8100))[number % 2]
                tagged = b"".join(struct.pack("!HH", tag, 5) for tag in tags)
                wire.send(b"\xff" * 6 + b"\2" * 6 + tagged + b"\x08\x00" + bytes(100))
        made.at_rest()
        assert made.queues.cells["in_packets"].sum() >= before + 50
