"""The programs between a port and a user's device, on single frames; and the queue that holds a device."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from heddle.base.families import as_ipv6
from heddle.base.process import run
from heddle.base.resources import HERE
from heddle.kernel import netlink as nl
from heddle.kernel.libbpf import Map, Program, loaded, run_on
from heddle.kernel.namespace import THIS_NAMESPACE, nameless
from heddle.switch.install import NIC_MAPS
from heddle_plugins.attach import holding
from heddle_plugins.attach.wires import APART, WIRE

DROPPED, REDIRECTED = 2, 7
GUEST, PORT, GATEWAY = (bytes.fromhex(text) for text in ("525400123456", "020400010001", "020000000009"))
SOURCE, TARGET = "10.0.0.1", "10.0.1.1"
KEY: Final = bytes(4)
UDP = struct.pack("!HHHH", 1, 2, 16, 0) + bytes(8)
ROCE = struct.pack("!HHHH", 1, 4791, 40, 0) + bytes(32)
NO_BTH = struct.pack("!HHHH", 1, 4791, 12, 0) + bytes(4)


def ipv4(source: str, target: str, payload: bytes, *, length: int | None = None, start: int = 0x45) -> bytes:
    total = 20 + len(payload) if length is None else length
    head = struct.pack("!BBHHHBBH", start, 0x63, total, 0, 0, 64, 17, 0)
    return head + socket.inet_aton(source) + socket.inet_aton(target) + payload


def frame(body: bytes, kind: int = 0x0800, target: bytes = GATEWAY) -> bytes:
    return target + GUEST + struct.pack("!H", kind) + body


def arp(sender: str) -> bytes:
    head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    return head + GUEST + socket.inet_aton(sender) + bytes(6) + socket.inet_aton("10.0.0.0")


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[Program, Program, Map, Map]]:
    """`edge`, `nic`, and their maps: without a filter, a program reads 0 as the number of its port."""
    with loaded(HERE.bpf_object("nic"), {"wired": 4}) as nic:
        wires, wired = (nic.map(name, 4, NIC_MAPS[name]) for name in ("wires", "wired"))
        with loaded(HERE.bpf_object("edge"), shared={"wires": wires}) as edge:
            yield edge.program("edge"), nic.program("nic"), wires, wired


def made(wires: Map) -> None:
    wires.update(KEY, WIRE.pack(1, 1, 4200, PORT, PORT, as_ipv6(SOURCE), *[0] * 11))


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        (frame(ipv4("10.9.9.9", TARGET, UDP)), "spoofed"),
        (frame(arp("10.7.7.7"), 0x0806, b"\xff" * 6), "spoofed"),
        (frame(struct.pack("!HH", 5, 0x0800) + ipv4(SOURCE, TARGET, UDP), 0x8100), "vlan"),
        (frame(ipv4(SOURCE, "224.0.0.5", UDP), target=bytes.fromhex("01005e000005")), "multicast"),
        (frame(ipv4(SOURCE, TARGET, UDP, length=900)), "malformed"),
        (frame(ipv4(SOURCE, TARGET, b"")), "malformed"),
        (frame(ipv4(SOURCE, TARGET, NO_BTH)), "malformed"),
        (frame(ipv4(SOURCE, TARGET, UDP, start=0x65)), "malformed"),
        (frame(bytes(40), 0x88CC), "other"),
    ],
)
def test_what_no_nic_sends_is_dropped_and_counted_apart(
    programs: tuple[Program, Program, Map, Map], sent: bytes, word: str
) -> None:
    edge, _, wires, _ = programs
    made(wires)
    assert run_on(edge, sent).retval == DROPPED
    row = WIRE.unpack(wires.lookup(KEY) or b"")
    assert row[6:11] == (0,) * 5 and dict(zip(APART, row[11:], strict=True)) == dict.fromkeys(APART, 0) | {word: 1}


def test_a_guest_keeps_its_mac_and_the_switch_sees_that_of_the_port(
    programs: tuple[Program, Program, Map, Map],
) -> None:
    edge, nic, wires, wired = programs
    made(wires)
    for body, kind, target in (
        (ipv4(SOURCE, TARGET, ROCE), 0x0800, GATEWAY), (ipv4(SOURCE, TARGET, UDP), 0x0800, GATEWAY),
        (arp(SOURCE), 0x0806, b"\xff" * 6),
    ):  # fmt: skip
        done = run_on(edge, frame(body, kind, target))
        assert done.retval == REDIRECTED and done.frame[6:12] == PORT
        assert kind != 0x0806 or done.frame[22:28] == PORT
    assert WIRE.unpack(wires.lookup(KEY) or b"")[6] == 3
    back = PORT + GATEWAY + struct.pack("!H", 0x0800) + ipv4(TARGET, SOURCE, ROCE)
    assert run_on(nic, back).retval != REDIRECTED, "the port is not attached yet"
    wired.update(KEY, struct.pack("=I", 1))
    done = run_on(nic, back)
    assert done.retval == REDIRECTED and done.frame[:6] == GUEST
    assert WIRE.unpack(wires.lookup(KEY) or b"")[8:11] == (1, len(back), 1), "one packet, which is marked CE"
    wired.update(KEY, KEY)


def test_a_device_that_is_held_loses_nothing() -> None:
    with nameless():
        for words in ("dev hdone type veth peer name hdtwo", "dev hdone up", "dev hdtwo up"):
            run(["ip", "link", "add" if "type" in words else "set", *words.split()])
        run(["ip", "addr", "add", "10.1.0.1/24", "dev", "hdone"])
        run(["ip", "neigh", "add", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "hdone"])
        sends, takes = (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        )
        with sends, takes, nl.RouteSocket(THIS_NAMESPACE, here=True) as netlink:
            takes.bind(("hdtwo", 0x0800))
            takes.settimeout(0.5)
            index = {each.name: each.ifindex for each in nl.interfaces(netlink)}["hdone"]
            holding.set_queue(netlink, index, closed=True)
            assert holding.is_held(netlink, index)
            sends.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while sent < 5000:
                    sends.sendto(bytes(1000), ("10.1.0.2", 9))
                    sent += 1
            assert 0 < sent < 5000, "the socket waits"
            with pytest.raises(TimeoutError):
                takes.recv(2048)
            holding.set_queue(netlink, index, closed=False)
            holding.kick("hdone")
            end, came = time.monotonic() + 10, 0
            while came < sent and time.monotonic() < end:
                came += len(takes.recv(2048)) > 1000
            assert came == sent and not holding.is_held(netlink, index)
