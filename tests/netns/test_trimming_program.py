"""Packet trimming, packet by packet, by BPF_PROG_TEST_RUN: which packets are cut, to what, and how they are counted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from heddle.kernel.libbpf import TestRun
from heddle.switch.queues.classes import row
from heddle.wire.dissect import dissect
from tests.netns.queue_bench import LOSSY, PAUSING, SHOT, Bench, bench, drops
from tests.netns.sockets import checksum

QUEUE, TRIMMED, LAST_HOP, SIZE = 5, 12, 16, 256
DATA: Final = 4 << 2 | 2
FULL: Final = 2_000_000
POLICY: Final = replace(LOSSY, ecn=False, trim_size=SIZE, trim_dscp=TRIMMED, trim_queue=QUEUE)
REDIRECT: Final = 7  # to its port again, where the kernel takes the new length
COUNTS: Final = ("trims", "trim_sent", "trim_bytes")


@pytest.fixture
def port() -> Iterator[Bench]:
    """A port whose classes trim into class 5, except that class; its buffer has room."""
    with bench(queues={"lossless": [], "trimming": {"queue": QUEUE}}) as made:
        trims_into(made, POLICY)
        yield made


def trims_into(port: Bench, policy: object, *, last_hop: bool = False) -> None:
    """All classes but that of trimmed packets have this policy."""
    assert isinstance(policy, type(POLICY))
    port.policy(replace(policy, last_hop=last_hop))
    own = row(0, QUEUE) * 2 + port.queues.half
    port.queues.rules["trim"][own] = 0


def roce(tos: int = DATA, size: int = 1000, opcode: int = 0x07, dport: int = 4791) -> bytes:
    """A UDP datagram of so many bytes of IP over IPv4, with a BTH."""
    udp = struct.pack("!4HBB10x", 49152, dport, size - 20, 0, opcode, 0)
    head = struct.pack("!BBHHHBBH8s", 0x45, tos, size, 7, 0x4000, 64, 17, 0, bytes((10, 0, 0, 1, 10, 0, 0, 2)))
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return bytes(12) + b"\x08\x00" + head + udp + bytes(size - 20 - len(udp))


def roce6(tos: int = DATA, size: int = 1000, flow: int = 0xABCDE) -> bytes:
    """The same over IPv6."""
    udp = struct.pack("!4HBB10x", 49152, 4791, size - 40, 0, 0x07, 0)
    head = struct.pack("!IHBB32s", 6 << 28 | tos << 20 | flow, size - 40, 17, 64, bytes(32))
    return bytes(12) + b"\x86\xdd" + head + udp + bytes(size - 40 - len(udp))


def inside(frame: bytes, segments: int, tos: int = DATA) -> bytes:
    """A frame's packet inside an IPv6 header, with a segment routing header where there are segments."""
    packet, kind = frame[14:], 4 if frame[12:14] == b"\x08\x00" else 41
    routing = struct.pack("!8B", kind, 2 * segments, 4, 0, 0, 0, 0, 0) + bytes(16 * segments) if segments else b""
    behind = 43 if segments else kind
    head = struct.pack("!IHBB32s", 6 << 28 | tos << 20 | 0x12345, len(routing + packet), behind, 64, bytes(32))
    return bytes(12) + b"\x86\xdd" + head + routing + packet


def offered(port: Bench, frame: bytes, number: int = 0, depth: int = FULL) -> TestRun:
    """Offer a packet to a class whose queue is that deep, while the switch has room for others."""
    port.hold(number, depth)
    port.queues.switches["used"][0] = port.queues.switches["shared_used"][0] = 100_000
    return port.enqueue(frame, 2)


def counted(port: Bench, number: int = 0) -> tuple[int, ...]:
    return tuple(int(port.cell(number)[name]) for name in COUNTS)


def test_a_refused_packet_is_cut_and_leaves_by_the_trim_queue(port: Bench) -> None:
    done, whole = offered(port, roce()), roce()
    assert (done.retval, done.priority) == (REDIRECT, 0x10000 | QUEUE + 1 << 4)
    ip = done.frame[14:34]
    assert len(done.frame) == 14 + SIZE and checksum(ip) == 0
    assert (ip[1], struct.unpack_from("!H", ip, 2)[0]) == (TRIMMED << 2 | DATA & 3, SIZE)
    assert (done.frame[:15], done.frame[18:24], done.frame[26:]) == (whole[:15], whole[18:24], whole[26 : 14 + SIZE])
    assert counted(port) == (1, 1, 1000 - SIZE) and not drops(port, 0)
    own = port.cell(QUEUE)
    assert (own["depth"], own["in_packets"], own["in_bytes"]) == (14 + SIZE, 1, 14 + SIZE)
    assert port.cell(0)["in_packets"] == 0 and port.queues.switches["drops"][0] == 0
    assert port.queues.switches["used"][0] == 100_000 + 14 + SIZE
    assert port.queues.ingress["occupancy"][row(1, QUEUE)] == 14 + SIZE


def test_a_header_of_ipv6_and_those_around_another_one_are_cut_too(port: Bench) -> None:
    done = offered(port, roce6())
    assert done.frame == roce6(TRIMMED << 2 | 2)[:18] + struct.pack("!H", SIZE - 40) + roce6()[20 : 14 + SIZE]
    for inner in (roce(), roce6()):
        for segments in (0, 1, 3):
            frame = inside(inner, segments)
            at = len(frame) - len(inner) + 14
            done = offered(port, frame)
            assert len(done.frame) == 14 + SIZE
            outer, length = done.frame[14:18], struct.unpack_from("!H", done.frame, 18)[0]
            assert (int.from_bytes(outer) >> 20 & 0xFF, int.from_bytes(outer) & 0xFFFFF) == (TRIMMED << 2 | 2, 0x12345)
            assert length == SIZE - 40
            left = 14 + SIZE - at
            if inner[12:14] == b"\x08\x00":
                head = done.frame[at : at + 20]
                assert checksum(head) == 0 and (head[1], int.from_bytes(head[2:4])) == (TRIMMED << 2 | 2, left)
                assert done.frame[at + 20 :] == inner[34 : 14 + left]
            else:
                assert int.from_bytes(done.frame[at : at + 4]) == 6 << 28 | (TRIMMED << 2 | 2) << 20 | 0xABCDE
                assert int.from_bytes(done.frame[at + 4 : at + 6]) == left - 40
                assert done.frame[at + 40 :] == inner[54 : 14 + left]


@pytest.mark.parametrize("build", [roce, roce6])
def test_the_port_to_a_host_leaves_the_original_length_and_puts_it_back(port: Bench, build: object) -> None:
    make = roce if build is roce else roce6
    trims_into(port, replace(POLICY, trim_dscp=LAST_HOP), last_hop=True)
    here = offered(port, make())
    assert here.frame == make(LAST_HOP << 2 | 2)[: 14 + SIZE]
    trims_into(port, POLICY)
    between = offered(port, make()).frame
    assert between != make(TRIMMED << 2 | 2)[: 14 + SIZE] and dissect(between).kind == "RoCE trimmed"
    trims_into(port, POLICY, last_hop=True)
    onward = port.enqueue(between, 2)
    assert onward.frame == make(TRIMMED << 2 | 2)[: 14 + SIZE] and onward.priority == 0x10000 | QUEUE + 1 << 4


WHOLE: Final = {
    "short": roce(size=SIZE), "exempt": roce(tos=2), "trimmed": roce(tos=TRIMMED << 2),
    "trimmed at the last hop": roce(tos=LAST_HOP << 2), "ACK": roce(opcode=0x11), "CNP": roce(opcode=0x81),
    "NACK of MRC": roce(opcode=0xDD), "TCP": roce()[:23] + b"\x06" + roce()[24:],
    "fragment": roce()[:20] + b"\x20\x00" + roce()[22:], "options": b"".join((roce()[:14], b"\x46", roce()[15:])),
    "no room for a BTH": inside(roce6(), 10), "ARP": bytes(12) + b"\x08\x06" + bytes(1000),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_other_packets_are_dropped_whole(port: Bench, name: str) -> None:
    number = QUEUE if name.startswith("trimmed") else 6 if name == "ARP" else 0
    done = offered(port, WHOLE[name], number)
    assert (done.retval, done.frame) == (SHOT, WHOLE[name])
    assert counted(port, number) == (0, 0, 0) and drops(port, number) == {"threshold": 1}


def test_nothing_is_cut_where_there_is_room_or_the_action_is_drop_or_pfc_refuses(port: Bench) -> None:
    assert offered(port, roce(), depth=0).frame == roce()
    trims_into(port, replace(POLICY, trim_size=0, trim_dscp=0, trim_queue=0))
    assert offered(port, roce()).retval == SHOT
    port.policy(replace(PAUSING, trim_size=SIZE, trim_dscp=TRIMMED, trim_queue=QUEUE))
    port.queues.ingress["occupancy"][row(1, 0)] = 100_000
    assert offered(port, roce(), depth=0).retval == SHOT
    assert counted(port) == (0, 0, 0) and drops(port, 0) == {"threshold": 1, "headroom": 1}


def test_trims_are_those_sent_and_those_that_the_trim_queue_refused(port: Bench) -> None:
    """The trim queue takes what the dynamic threshold leaves it; each other trim is a drop of the class it came in."""
    port.hold(0, FULL)
    port.queues.switches["used"][0] = port.queues.switches["shared_used"][0] = LOSSY.shared - 100_000
    for _ in range(1000):
        port.enqueue(roce(), 2)
    own = port.cell(QUEUE)
    trims, sent, cut = counted(port)
    assert trims == 1000 and 0 < sent < 1000 and cut == sent * (1000 - SIZE)
    assert drops(port, 0) == {"trim": 1000 - sent} and port.cell(0)["drop_bytes"] == (1000 - sent) * 1014
    assert own["in_packets"] == sent and own["depth"] == sent * (14 + SIZE) and not drops(port, QUEUE)
    assert port.queues.switches["drops"][0] == 1000 - sent


def test_a_packet_that_a_full_buffer_refuses_fits_when_it_is_trimmed(port: Bench) -> None:
    port.hold(0, 0)
    port.queues.switches["used"][0] = LOSSY.buffer - 500
    assert len(port.enqueue(roce(), 2).frame) == 14 + SIZE and counted(port) == (1, 1, 1000 - SIZE)


def test_marks_stay_and_are_counted_once(port: Bench) -> None:
    for ecn in (0, 1, 2, 3):
        assert offered(port, roce(4 << 2 | ecn)).frame[15] == TRIMMED << 2 | ecn
    assert (port.cell(0)["ce_in"], port.cell(QUEUE)["ce_in"]) == (0, 1)
