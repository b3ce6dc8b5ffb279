"""RoCEv2 as scapy layers, to build, read and teach it: BTH, RETH, ImmDt, AETH, DETH, atomics, CNP, SACK, NACK, ICRC.

    from scapy.all import IP, UDP, Ether
    from heddle.wire.roce import BTH, RETH, icrc_ok
    p = Ether() / IP(dst="10.0.0.2") / UDP(sport=50000) / BTH(opcode="RC_RDMA_WRITE_ONLY", dqpn=17) / RETH(va=1) / b"hi"
    p = Ether(bytes(p)); p.show(); icrc_ok(p)

When a packet is built, padding, pad count and ICRC are added after the payload unless given. When it is read, they are
fields of the BTH, so only the payload follows the last header. UDP's port and its checksum (0, as NICs send it) are set
automatically. Field names are those of scapy.contrib.roce, which may be loaded before or after this module: from the
import of this module on, these layers read port 4791. Importing scapy takes a second, so import this module where it is
used. Reliable datagrams (RD) and XRC are not supported.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, Final

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    Field,
    IntField,
    ShortField,
    XBitField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_top_down

from heddle.wire import layout as wire
from heddle.wire.layout import icrc
from heddle.wire.sack import REASONS

OPCODES: Final[dict[int, str]] = dict(wire.OPCODE_NAMES)
_AETH_KINDS: Final = {0: "ACK", 1: "RNR_NAK", 3: "NAK"}


class _Behind(Field):  # type: ignore[misc]
    """A field of the BTH whose bytes are at the packet's end: BTH.post_build writes them, so addfield adds nothing."""

    def addfield(self, pkt: Any, s: Any, val: Any) -> Any:
        return s


class _IcrcField(_Behind):
    """The last four bytes of the packet, read as a big-endian number, as in scapy.contrib.roce."""

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, int]:
        if len(s) < wire.ICRC_BYTES:
            raise ValueError("no room for an ICRC")
        return s[: -wire.ICRC_BYTES], int.from_bytes(s[-wire.ICRC_BYTES :], "big")

    def i2repr(self, pkt: Any, x: int | None) -> str:
        return "None" if x is None else f"{x:#010x}"


class _PadField(_Behind):
    """The 0 to 3 bytes before the ICRC that pad the payload to a multiple of four bytes."""

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, bytes]:
        kept = len(s) - int(pkt.padcount)
        if kept < 0:
            raise ValueError("more padding than packet")
        return s[:kept], s[kept:]


class _Header(Packet):  # type: ignore[misc]
    """A header of the InfiniBand transport: the opcode in the BTH defines the headers that follow."""

    def guess_payload_class(self, payload: bytes) -> Any:
        below, depth = self, 0
        while below is not None and not isinstance(below, BTH):
            below, depth = below.underlayer, depth + 1
        following = wire.EXTENSIONS.get(below.opcode, ())[depth:] if below is not None else ()
        return EXTENDED[following[0]] if following else conf.raw_layer


class BTH(_Header):
    """Base transport header, 12 bytes, and the packet's tail: `pad` and `icrc`."""

    name = "BTH"
    fields_desc: ClassVar[list[Any]] = [
        ByteEnumField("opcode", wire.SEND_ONLY, OPCODES),
        BitField("solicited", 0, 1),
        BitField("migreq", 0, 1),
        BitField("padcount", None, 2),
        BitField("version", 0, 4),
        XShortField("pkey", wire.DEFAULT_PKEY),
        BitField("fecn", 0, 1),
        BitField("becn", 0, 1),
        BitField("resv6", 0, 6),
        XBitField("dqpn", 0, 24),
        BitField("ackreq", 0, 1),
        BitField("resv7", 0, 7),
        BitField("psn", 0, 24),
        _IcrcField("icrc", None),
        _PadField("pad", None),
    ]

    def post_dissect(self, s: bytes) -> bytes:
        """Disable scapy's cache of the packet's bytes: it would not include the bytes after the payload."""
        self.raw_packet_cache = None
        return s

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Add pad count, padding and ICRC, each unless given."""
        count = -len(pay) % 4 if self.padcount is None else self.padcount
        pkt = pkt[:1] + bytes([pkt[1] & 0xCF | count << 4]) + pkt[2:]
        body = pkt + pay + (bytes(count) if self.pad is None else self.pad)
        if self.icrc is not None:
            return body + struct.pack("!I", self.icrc)
        return body + self._icrc(body)

    def _icrc(self, body: bytes) -> bytes:
        """The ICRC over these bytes and the IP and UDP headers of the layers below; zero without such layers."""
        udp = self.underlayer
        ip = udp.underlayer if isinstance(udp, UDP) else None
        below = {IP: _ipv4_bytes, IPv6: _ipv6_bytes}.get(type(ip))
        if below is None:
            return bytes(wire.ICRC_BYTES)
        size = wire.UDP_BYTES + len(body) + wire.ICRC_BYTES
        udp_header = struct.pack("!HHHH", udp.sport, udp.dport, size if udp.len is None else udp.len, 0)
        return icrc(below(ip, size) + udp_header + body + bytes(wire.ICRC_BYTES))

    def mysummary(self) -> str:
        """`RC_RDMA_WRITE_ONLY qp 0x11 psn 5`."""
        return f"{OPCODES.get(self.opcode, self.opcode)} qp {self.dqpn:#x} psn {self.psn}"


def _ipv4_bytes(ip: Any, size: int) -> bytes:
    """The header that an IP layer will build over `size` bytes (the ICRC does not depend on its checksum)."""
    header = IP(**ip.fields)
    header.proto, header.chksum = ip.proto, 0
    if header.len is None:
        header.len = len(IP(options=ip.options)) + size
    return bytes(header)


def _ipv6_bytes(ip: Any, size: int) -> bytes:
    header = IPv6(**ip.fields)
    header.nh = ip.nh
    if header.plen is None:
        header.plen = size
    return bytes(header)


class RETH(_Header):
    """RDMA extended header: target address of a WRITE or READ, and the length of the whole message (bytes)."""

    name = "RETH"
    fields_desc: ClassVar[list[Any]] = [XLongField("va", 0), XIntField("rkey", 0), IntField("dmalen", 0)]


class ImmDt(_Header):
    """Immediate data: four bytes for the receiver's completion."""

    name = "ImmDt"
    fields_desc: ClassVar[list[Any]] = [XIntField("data", 0)]


class AETH(_Header):
    """ACK header: the syndrome in its parts (kind; credits, timer or NAK code) and the message sequence number."""

    name = "AETH"
    fields_desc: ClassVar[list[Any]] = [
        BitField("resv", 0, 1),
        BitEnumField("kind", 0, 2, _AETH_KINDS),
        BitField("value", 31, 5),
        BitField("msn", 0, 24),
    ]

    @property
    def syndrome(self) -> int:
        """All eight bits: 0x1f is ACK without credit limit, 0x60 is NAK for a PSN out of sequence."""
        return int(self.resv) << 7 | int(self.kind) << 5 | int(self.value)


def aeth(syndrome: int, msn: int) -> AETH:
    """An ACK header from the whole syndrome byte."""
    return AETH(resv=syndrome >> 7, kind=syndrome >> 5 & 3, value=syndrome & 0x1F, msn=msn)


class DETH(_Header):
    """Datagram header: queue key and source QP."""

    name = "DETH"
    fields_desc: ClassVar[list[Any]] = [XIntField("qkey", 0), XByteField("resv", 0), XBitField("sqpn", 0, 24)]


class AtomicETH(_Header):
    """Atomic request: compare and swap, or fetch and add (in `swap`)."""

    name = "AtomicETH"
    fields_desc: ClassVar[list[Any]] = [
        XLongField("va", 0),
        XIntField("rkey", 0),
        XLongField("swap", 0),
        XLongField("compare", 0),
    ]


class AtomicAckETH(_Header):
    """The memory contents before the atomic operation."""

    name = "AtomicAckETH"
    fields_desc: ClassVar[list[Any]] = [XLongField("before", 0)]


class CNP(_Header):
    """Congestion notification: sixteen reserved bytes; its BTH has BECN set."""

    name = "CNP"
    fields_desc: ClassVar[list[Any]] = [XLongField("reserved1", 0), XLongField("reserved2", 0)]


class SETH(_Header):
    """Selective acknowledgement: what has arrived beyond the cumulative PSN (sack.py)."""

    name = "SETH"
    fields_desc: ClassVar[list[Any]] = [
        BitField("kind", 0, 4),
        BitField("next", 0, 5),
        BitField("flags", 0, 7),
        ShortField("ack_psn_off", 0),  # signed, as sack_off
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        XByteField("resv8", 0),
        XBitField("cack_psn", 0, 24),
        BitField("cc_type", 0, 4),
        BitField("cc_flags", 0, 4),
        ByteField("mpr", 0),
        ShortField("sack_off", 0),
        XLongField("bitmap", 0),
    ]


class NETH(_Header):
    """Negative acknowledgement: a packet that did not arrive whole, and why (sack.py)."""

    name = "NETH"
    fields_desc: ClassVar[list[Any]] = [
        BitField("kind", 0, 4),
        BitField("next", 0, 5),
        BitField("resv7", 0, 7),
        ByteEnumField("reason", 1, dict(REASONS)),
        XByteField("vendor", 0),
        XIntField("entropy", 0),
        XShortField("spdcid", 0),
        XShortField("dpdcid", 0),
        XByteField("resv8", 0),
        XBitField("nack_psn", 0, 24),
        BitField("cc_type", 0, 4),
        BitField("cc_flags", 0, 4),
        XByteField("resv8b", 0),
        XShortField("tx_ts", 0),
    ]


def cnp(dqpn: int) -> Any:
    """A congestion notification for a QP: a receiver sends it after a packet with congestion experienced (CE)."""
    return BTH(dqpn=dqpn) / CNP()


def icrc_ok(packet: Any) -> bool:
    """Whether a packet (a scapy packet with IP or IPv6, or the bytes of an Ethernet frame) has the correct ICRC.

    Also False for packets without an ICRC: other protocols, truncated packets.
    """
    if isinstance(packet, bytes | bytearray | memoryview):
        packet = Ether(bytes(packet))
    layer = packet.getlayer(IP) or packet.getlayer(IPv6)
    if layer is None or BTH not in layer:
        return False
    data = bytes(layer)
    size = int.from_bytes(data[2:4], "big") if layer.version == 4 else 40 + int.from_bytes(data[4:6], "big")
    data = data[:size]  # without Ethernet padding
    try:
        return len(data) == size and data[-wire.ICRC_BYTES :] == icrc(data)
    except ValueError:
        return False


EXTENDED: Final[dict[str, type[_Header]]] = {
    "reth": RETH,
    "imm": ImmDt,
    "aeth": AETH,
    "atomic": AtomicETH,
    "atomic_ack": AtomicAckETH,
    "deth": DETH,
    "cnp": CNP,
    "seth": SETH,
    "neth": NETH,
}

# First entry for the port, so that scapy.contrib.roce, loaded before or after, does not take precedence.
UDP.payload_guess = [({"dport": wire.ROCE_PORT}, BTH), *UDP.payload_guess]
bind_top_down(UDP, BTH, dport=wire.ROCE_PORT, chksum=0)
bind_top_down(BTH, AETH, opcode=wire.ACK)
bind_top_down(BTH, DETH, opcode=wire.UD_SEND_ONLY)
bind_top_down(BTH, CNP, opcode=wire.CNP, becn=1)
bind_top_down(BTH, SETH, opcode=wire.SACK)
bind_top_down(BTH, NETH, opcode=wire.NACK)
