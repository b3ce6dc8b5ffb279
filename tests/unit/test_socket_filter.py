"""What the socket of a NIC takes: RoCE for its own MAC and queue pairs. The kernel runs the filters here."""

from __future__ import annotations

import socket

import pytest

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.packetsocket import _filter, attach_filter
from heddle.wire import layout as wire

OWN = "02:04:00:03:00:01"
ADDRESSES = {4: ("10.0.0.1", "10.0.1.1"), 6: ("fd00::1", "fd00::2")}
QPNS = range(0x100, 0x200)


def frame(version: int, mac: str, qpn: int = 0x123) -> bytes:
    src, dst = ADDRESSES[version]
    flow = FlowHeader(src_mac="02:00:00:00:00:01", dst_mac=mac, src_ip=src, dst_ip=dst, sport=50000, dqpn=qpn)
    batch = SendBatch(1024, slots=1, version=version)
    batch.put_data(0, flow, wire.SEND_ONLY, 7, b"data")
    return bytes(batch.frame(0))


def passes(version: int, sent: bytes, qpns: range | None, *, foreign: bool) -> bool:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        attach_filter(far, _filter(version, qpns, bytes.fromhex(OWN.replace(":", "")), foreign))
        far.setblocking(False)
        try:
            near.send(sent)
            return far.recv(65536) == sent
        except (BlockingIOError, PermissionError):  # a filter of a local socket refuses with EPERM
            return False


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("qpns", [None, QPNS])
@pytest.mark.parametrize(
    ("mac", "taken", "counted"),
    [
        (OWN, True, False), ("02:00:00:00:00:99", False, True), ("02:04:00:03:00:02", False, True),
        ("02:04:00:04:00:01", False, True), ("ff:ff:ff:ff:ff:ff", True, False), ("01:00:5e:00:00:01", True, False),
        ("33:33:00:00:00:01", True, False),
    ],
)  # fmt: skip
def test_frames_for_another_mac_are_counted_and_not_taken(
    version: int, qpns: range | None, mac: str, taken: bool, counted: bool
) -> None:
    assert passes(version, frame(version, mac), qpns, foreign=False) == taken
    assert passes(version, frame(version, mac), qpns, foreign=True) == counted
    if qpns is not None:  # of another rank of a NIC that is shared
        for foreign in (False, True):
            assert not passes(version, frame(version, mac, 0x200), qpns, foreign=foreign)


@pytest.mark.parametrize("version", [4, 6])
def test_what_is_not_roce_is_neither_taken_nor_counted(version: int) -> None:
    for mac in (OWN, "02:00:00:00:00:99"):
        other = bytearray(frame(version, mac))
        other[wire.LAYOUTS[version].udp_at + 3] ^= 1  # the destination port
        assert not passes(version, bytes(other), None, foreign=False)
        assert not passes(version, bytes(other), None, foreign=True)


@pytest.mark.parametrize("version", [4, 6])
def test_the_filter_of_a_shared_nic_takes_its_own_range_of_qp_numbers(version: int) -> None:
    found = [passes(version, frame(version, OWN, qpn), QPNS, foreign=False) for qpn in (0xFF, 0x100, 0x1FF, 0x200)]
    assert found == [False, True, True, False]
    src, dst = ADDRESSES[version]
    batch = SendBatch(0, slots=1, version=version)  # a CNP has a bit set beside the number of its queue pair
    batch.put_cnp(0, FlowHeader(src_mac=OWN, dst_mac=OWN, src_ip=src, dst_ip=dst, sport=50000, dqpn=0x100))
    assert passes(version, bytes(batch.frame(0)), QPNS, foreign=False)
