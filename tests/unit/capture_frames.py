"""Frames and totals for tests of captures."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.capturefile import CapturedPacket
from heddle.wire.conversations import CaptureTotals
from heddle.wire.dissect import dissect

START_NS = 1_700_000_000_123_456_000


def taken(frames: Sequence[bytes], port: str = "") -> CaptureTotals:
    """The totals of these frames, at one port and 1 ns apart."""
    totals = CaptureTotals()
    for number, frame in enumerate(frames, 1):
        totals.add(CapturedPacket(number, port, START_NS + number, None, len(frame), frame), dissect(frame))
    return totals


def packet(opcode: int, psn: int, **more: Any) -> bytes:
    """A RoCEv2 frame with a right ICRC. more: tos, qpn, and extended headers as scapy's layers."""
    ip = IP(src="10.0.0.1", dst="10.0.1.1", tos=more.get("tos", 2))
    behind = more.get("behind", b"12345678")
    return bytes(Ether() / ip / UDP(sport=50000) / roce.BTH(opcode=opcode, dqpn=more.get("qpn", 7), psn=psn) / behind)


def v1_frame() -> bytes:
    """A frame of RoCE v1, as an adapter of that version sends it."""
    grh = struct.pack(">IHBB16s16s", 6 << 28, 20, 0x1B, 64, bytes(10) + b"\xff\xff\x0a\0\0\1", bytes(15) + b"\2")
    bth = struct.pack(">BBHII", wire.SEND_ONLY, 0, 0xFFFF, 9, 77)
    return bytes(6) + b"\2\0\0\0\0\1" + b"\x89\x15" + grh + bth + bytes(8)
