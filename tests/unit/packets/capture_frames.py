"""Frames and totals for tests of captures."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.dissect import dissect
from heddle_plugins.packets.capturefile import CapturedPacket
from heddle_plugins.packets.conversations import CaptureTotals
from tests.unit.roce_samples import SAMPLES, SAMPLES6

START_NS = 1_700_000_000_123_456_000


FRAMES = [sample.frame() for sample in (*SAMPLES, *SAMPLES6)]
TIMES = [START_NS + 1000 * number for number in range(len(FRAMES))]
MAGICS = {"us": 0xA1B2C3D4, "ns": 0xA1B23C4D}
ETHERNET = 1


def pcap(frames: Sequence[bytes], order: str = "<", unit: str = "us", link: int = ETHERNET, snap: int = 65535) -> bytes:
    """A pcap as another machine's tcpdump writes it."""
    parts = [struct.pack(f"{order}IHHiIII", MAGICS[unit], 2, 4, 0, 0, snap, link)]
    for frame, time_ns in zip(frames, TIMES * (len(frames) // len(TIMES) + 1), strict=False):
        fraction = time_ns % 10**9 // (1000 if unit == "us" else 1)
        kept = frame[:snap]
        parts += [struct.pack(f"{order}IIII", time_ns // 10**9, fraction, len(kept), len(frame)), kept]
    return b"".join(parts)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = len(body) + 12
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


def pcapng(frames: Sequence[bytes], order: str = "<", resolution: int | None = None, name: bytes = b"eth7") -> bytes:
    """A pcapng with one interface. resolution: the value of if_tsresol; None: microseconds, by default."""
    options = struct.pack(f"{order}HH", 2, len(name)) + name + bytes(-len(name) % 4)
    ticks = 10**6
    if resolution is not None:
        options += struct.pack(f"{order}HHBxxx", 9, 1, resolution)
        ticks = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    parts = [
        block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(order, 1, struct.pack(f"{order}HHI", ETHERNET, 0, 0) + options + bytes(4)),
        block(order, 0x7777, b"what no one knows is passed over"),
    ]
    for frame, time_ns in zip(frames, TIMES, strict=False):
        at = time_ns * ticks // 10**9
        head = struct.pack(f"{order}IIIII", 0, at >> 32, at & 0xFFFFFFFF, len(frame), len(frame))
        flags = struct.pack(f"{order}HHI", 2, 4, 2) + bytes(4)  # epb_flags: outbound
        parts.append(block(order, 6, head + frame + bytes(-len(frame) % 4) + flags))
    return b"".join(parts)


FORMATS = {
    **{f"pcap {order} {unit}": pcap(FRAMES, order, unit) for order in "<>" for unit in MAGICS},
    **{f"pcapng {order} {res}": pcapng(FRAMES, order, res) for order in "<>" for res in (None, 9, 6, 0x80 | 30)},
}


def taken(frames: Sequence[bytes], port: str = "") -> CaptureTotals:
    """The totals of these frames, at one port and 1 ns apart."""
    totals = CaptureTotals()
    for number, frame in enumerate(frames, 1):
        totals.add(CapturedPacket(number, port, START_NS + number, None, len(frame), frame), dissect(frame))
    return totals


def tshark(path: Path, *fields: str) -> list[list[str]]:
    """What tshark says of each packet of a file: its fields."""
    wanted = [word for field in fields for word in ("-e", field)]
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-T", "fields", "-E", "separator=|", *wanted],
        check=True,
        capture_output=True,
        text=True,
    )
    return [line.split("|") for line in done.stdout.splitlines()]


def packet(opcode: int, psn: int, **more: Any) -> bytes:
    """A RoCEv2 frame with a right ICRC. more: tos, qpn, back (to the sender), extended headers as scapy's layers, and
    what its IP header has: id, ttl.
    """
    behind, qpn, ends = more.pop("behind", b"12345678"), more.pop("qpn", 7), ["10.0.0.1", "10.0.1.1"]
    src, dst = reversed(ends) if more.pop("back", False) else ends
    ip = IP(**{"src": src, "dst": dst, "tos": 2, **more})
    return bytes(Ether() / ip / UDP(sport=50000) / roce.BTH(opcode=opcode, dqpn=qpn, psn=psn) / behind)


def v1_frame() -> bytes:
    """A frame of RoCE v1, as an adapter of that version sends it."""
    grh = struct.pack(">IHBB16s16s", 6 << 28, 20, 0x1B, 64, bytes(10) + b"\xff\xff\x0a\0\0\1", bytes(15) + b"\2")
    bth = struct.pack(">BBHII", wire.SEND_ONLY, 0, 0xFFFF, 9, 77)
    return bytes(6) + b"\2\0\0\0\0\1" + b"\x89\x15" + grh + bth + bytes(8)


def _outer(proto: int, inner: bytes) -> bytes:
    return _ETHERNET + b"\x08\0" + bytes(IP(src="1.1.1.1", dst="1.1.1.2", proto=proto) / inner)


def _outer6(proto: int, inner: bytes) -> bytes:
    return _ETHERNET + b"\x86\xdd" + bytes(IPv6(src="fd00::1", dst="fd00::2", nh=proto) / inner)


def _udp(port: int, inner: bytes) -> bytes:
    return _outer(17, struct.pack(">HHHH", 50000, port, 8 + len(inner), 0) + inner)


def _typed(kind: int, inner: bytes) -> bytes:
    return _ETHERNET + kind.to_bytes(2, "big") + inner


_ETHERNET: Final = b"\2\0\0\0\0\2\2\0\0\0\0\1"
_FRAME, _FRAME6 = (next(s for s in all if "write_only_4" in s.name).frame() for all in (SAMPLES, SAMPLES6))
_IP, _IP6 = _FRAME[14:], _FRAME6[14:]
_TAG, _LABEL = b"\x60\x05\x08\0", b"\0\1\1\x40"
_NSH: Final = b"\x0f\xc2\2\3\0\0\1\xff"
# Name of a tunnel, and a frame with a RoCEv2 packet in it that tshark reads, too.
CARRIED: Final[list[tuple[str, bytes]]] = [
    ("VXLAN", _udp(4789, b"\x08\0\0\0\0\0\1\0" + _FRAME)),
    ("VXLAN", _outer6(17, struct.pack(">HHHH", 1, 4789, 16 + len(_FRAME), 0) + b"\x08\0\0\0\0\0\1\0" + _FRAME)),
    ("VXLAN-GPE", _udp(4790, b"\x0c\0\0\3\0\0\1\0" + _FRAME)),
    ("VXLAN-GPE", _udp(4790, b"\x0c\0\0\1\0\0\1\0" + _IP)),
    ("Geneve", _udp(6081, b"\0\0\x65\x58\0\0\1\0" + _FRAME)),
    ("Geneve", _udp(6081, b"\2\0\x86\xdd\0\0\1\0\1\2\3\1aaaa" + _IP6)),
    ("GRE", _outer(47, b"\0\0\x08\0" + _IP)),
    ("GRE", _outer(47, b"\xb0\0\x65\x58" + bytes(12) + _FRAME)),
    ("GRE", _outer6(47, b"\0\0\x86\xdd" + _IP6)),
    ("GRE / MPLS", _outer(47, b"\0\0\x88\x47" + _LABEL + _IP)),
    ("GRE / NSH", _outer(47, b"\0\0\x89\x4f" + _NSH + _FRAME)),
    ("ERSPAN", _outer(47, b"\0\0\x88\xbe" + _FRAME)),  # type I
    ("ERSPAN", _outer(47, b"\x10\0\x88\xbe" + bytes(4) + b"\x10\1\0\1\0\0\0\1" + _FRAME)),
    ("ERSPAN", _outer(47, b"\x10\0\x22\xeb" + bytes(4) + b"\x20\1\0\1" + bytes(8) + _FRAME)),
    ("ERSPAN", _outer(47, b"\x10\0\x22\xeb" + bytes(4) + b"\x20\1\0\1" + bytes(7) + b"\1\x20" + bytes(7) + _FRAME)),
    ("MPLS", _typed(0x8847, _LABEL + _IP)),
    ("MPLS", _typed(0x8848, b"\0\1\0\x40" * 2 + _LABEL + _IP6)),
    ("MPLS", _udp(6635, _LABEL + _IP)),
    ("MPLS", _outer(137, _LABEL + _IP)),
    ("IP in IP", _outer(4, _IP)),
    ("IP in IP", _outer(41, _IP6)),
    ("IP in IP", _outer6(41, _IP6)),
    ("SRv6 / IP in IP", _outer6(43, b"\x29\2\4" + bytes(21) + _IP6)),
    ("EtherIP", _outer(97, b"\x30\0" + _FRAME)),
    ("Ethernet in IP", _outer6(143, _FRAME)),
    ("PPPoE", _typed(0x8864, b"\x11\0\0\1" + struct.pack(">H", len(_IP) + 2) + b"\0\x21" + _IP)),
    ("PBB", _typed(0x88E7, b"\0\0\0\1" + _FRAME)),
    ("VN-Tag", _typed(0x8926, b"\0\0\0\1\x08\0" + _IP)),
    ("E-Tag", _typed(0x893F, b"\0\0\0\1\0\0\x08\0" + _IP)),
    ("CMD", _typed(0x8909, b"\1\1\0\1\0\1\x08\0" + _IP)),
    ("HSR", _typed(0x892F, b"\0\x10\0\1\x08\0" + _IP)),
    ("NSH", _typed(0x894F, _NSH + _FRAME)),
    ("TRILL", _typed(0x22F3, b"\0\1\0\1\0\2" + _FRAME)),
    ("", _typed(0x6558, _FRAME)),
    ("", _typed(0x8100, _TAG + _IP)),
    ("", _typed(0x88A8, b"\x20\6\x81\0" + _TAG + _IP)),
    ("", _typed(0x9100, b"\x20\6\x91\0\x40\7\x81\0" + _TAG + _IP)),
    ("", _typed(len(_IP) + 8, b"\xaa\xaa\3\0\0\0\x08\0" + _IP)),
    ("", _outer(51, bytes([17, 4, 0, 0]) + bytes(20) + _IP[20:])),
    ("", _outer6(0, bytes([17, 0, 1, 4, 0, 0, 0, 0]) + _IP6[40:])),
    ("", _outer6(44, bytes([17, 0, 0, 0, 0, 0, 0, 0]) + _IP6[40:])),
]
# What is named and not read: kind, and a frame.
SEALED: Final[list[tuple[str, bytes]]] = [
    ("MACsec", _typed(0x88E5, b"\0\0\0\0\0\1" + _IP)),
    ("ESP", _outer(50, b"\0\0\0\1\0\0\0\1" + _IP)),
    ("GTP-U", _udp(2152, b"\x30\xff\0\0\0\0\0\1" + _IP)),
]
