"""Constants of the RoCEv2 wire format (opcodes, header sizes, offsets, syndromes), and its invariant CRC.

Sources: InfiniBand Architecture Specification vol. 1 (chapter 9 and annex A17), Linux rxe_hdr.h and rxe_opcode.h,
Wireshark packet-infiniband.c. Offsets count from the first byte of an untagged Ethernet frame with a plain IP header:
the constants are for IPv4, LAYOUTS has both versions.

ICRC: the last four bytes of a packet, which do not depend on changes to TTL and ECN. CRC-32 (of Ethernet and zlib) over
eight bytes of ones, in place of InfiniBand's local header, then IP, UDP, BTH and the rest. Every field that may change
in flight counts as ones: IPv4 TOS, TTL and checksum; IPv6 traffic class, flow label and hop limit; UDP checksum; BTH
byte 4 (FECN, BECN, six reserved bits). It is appended least significant byte first. Sources: IBTA annex A17.3.3, Linux
rxe_icrc.c. All bytes after BTH byte 4 are unmasked and contiguous, so a sender keeps the state of `prefix_state` per
header and needs one zlib call per packet.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from heddle.base import ethernet

ROCE_PORT: Final = 4791
ETHERTYPE_IPV4: Final = 0x0800
ETHERTYPE_IPV6: Final = 0x86DD
ETHERTYPE_ROCE_V1: Final = 0x8915
PROTO_TCP: Final = 6
PROTO_UDP: Final = 17
IPV4_NO_OPTIONS: Final = 0x45  # version 4, five words

ETH_BYTES: Final = 14
IPV4_BYTES: Final = 20
IPV6_BYTES: Final = 40
UDP_BYTES: Final = 8
TCP_BYTES: Final = 32  # with timestamps, as Linux sends them
BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
ATOMIC_BYTES: Final = 28
ATOMIC_ACK_BYTES: Final = 8
DETH_BYTES: Final = 8
IMM_BYTES: Final = 4
AETH_BYTES: Final = 4
CNP_BYTES: Final = 16  # reserved, zero
SETH_BYTES: Final = 28  # of a SACK; its layout and that of a NACK is in sack.py
NETH_BYTES: Final = 20  # of a NACK
ICRC_BYTES: Final = 4

IP_AT: Final = ETH_BYTES
UDP_AT: Final = IP_AT + IPV4_BYTES
BTH_AT: Final = UDP_AT + UDP_BYTES  # 42
DQPN_WORD_AT: Final = BTH_AT + 4  # FECN, BECN, 6 reserved bits, then the destination QP number (24 bits)
EXT_AT: Final = BTH_AT + BTH_BYTES  # 54: extended headers, or payload when there are none
OVERHEAD_BYTES: Final = EXT_AT + ICRC_BYTES  # of a packet without extended headers
IPV4_HEADER: Final = struct.Struct(">BBHHHBBH4s4s")
IPV6_HEADER: Final = struct.Struct(">IHBB16s16s")
UDP_HEADER: Final = struct.Struct(">HHHH")
RETH: Final = struct.Struct(">QII")
WORD: Final = struct.Struct(">I")
MIN_ETHERNET: Final = 60  # shorter frames may arrive with padding after the IP packet


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The offsets of a frame's headers in one version of IP; UDP and everything after it is the same in both.

    lead_bytes: the offset in a cache line at which a frame should start, so that the bytes after its BTH start one.
    """

    version: int
    ethertype: int
    udp_at: int
    dqpn_word_at: int
    psn_word_at: int
    ext_at: int
    overhead_bytes: int
    lead_bytes: int


def _layout(version: int, ethertype: int, ip_bytes: int) -> FrameLayout:
    udp_at = IP_AT + ip_bytes
    bth_at = udp_at + UDP_BYTES
    ext_at = bth_at + BTH_BYTES
    return FrameLayout(version, ethertype, udp_at, bth_at + 4, bth_at + 8, ext_at, ext_at + ICRC_BYTES, -ext_at % 64)


LAYOUTS: Final[Mapping[int, FrameLayout]] = {
    4: _layout(4, ETHERTYPE_IPV4, IPV4_BYTES),
    6: _layout(6, ETHERTYPE_IPV6, IPV6_BYTES),
}

PSN_MASK: Final = 0xFFFFFF
PSN_HALF: Final = 0x800000  # a larger difference of two PSNs is one in the other direction
QPN_MASK: Final = 0xFFFFFF
DEFAULT_PKEY: Final = 0xFFFF
ECN_MASK: Final = 0x03  # of the IPv4 TOS byte, and of the IPv6 traffic class
ECN_CE: Final = 0x03
ECT0: Final = 0x02
DSCP_DATA: Final = ethernet.DSCP_DATA  # only data is ECN-capable
DSCP_ANSWER: Final = ethernet.DSCP_ANSWER
DSCP_REPEATED: Final = ethernet.DSCP_REPEATED
DSCP_TRIMMED: Final = 12  # what a switch has cut to its first bytes; the defaults of queues.trimming
DSCP_TRIMMED_LAST: Final = 16  # the same, by the last switch of the path
TOS_DATA: Final = DSCP_DATA << 2 | ECT0
TOS_ANSWER: Final = DSCP_ANSWER << 2

# Reliable connection (RC). Unreliable connection (UC) has the same opcodes plus 0x20, without reads and atomics;
# unreliable datagram (UD) plus 0x60, sends only.
RC: Final = 0x00
UC: Final = 0x20
UD: Final = 0x60
SEND_FIRST: Final = 0x00
SEND_MIDDLE: Final = 0x01
SEND_LAST: Final = 0x02
SEND_LAST_IMM: Final = 0x03
SEND_ONLY: Final = 0x04
SEND_ONLY_IMM: Final = 0x05
WRITE_FIRST: Final = 0x06
WRITE_MIDDLE: Final = 0x07
WRITE_LAST: Final = 0x08
WRITE_LAST_IMM: Final = 0x09
WRITE_ONLY: Final = 0x0A
WRITE_ONLY_IMM: Final = 0x0B
READ_REQUEST: Final = 0x0C
READ_RESPONSE_FIRST: Final = 0x0D
READ_RESPONSE_MIDDLE: Final = 0x0E
READ_RESPONSE_LAST: Final = 0x0F
READ_RESPONSE_ONLY: Final = 0x10
ACK: Final = 0x11
ATOMIC_ACK: Final = 0x12
COMPARE_SWAP: Final = 0x13
FETCH_ADD: Final = 0x14
UD_SEND_ONLY: Final = UD + SEND_ONLY
UD_SEND_ONLY_IMM: Final = UD + SEND_ONLY_IMM
CNP: Final = 0x81  # the value that NICs send; IB_OPCODE_CNP of Linux ib_pack.h, 0x80, is the base of the group

SACK: Final = 0xDC  # as MRC numbers them (sack.py)
NACK: Final = 0xDD

# Opcode -> its name in ib_pack.h and scapy.contrib.roce, and the extended headers that follow the BTH, in order.
_RC_OPCODES: Final[Mapping[int, tuple[str, tuple[str, ...]]]] = {
    SEND_FIRST: ("SEND_FIRST", ()),
    SEND_MIDDLE: ("SEND_MIDDLE", ()),
    SEND_LAST: ("SEND_LAST", ()),
    SEND_LAST_IMM: ("SEND_LAST_WITH_IMMEDIATE", ("imm",)),
    SEND_ONLY: ("SEND_ONLY", ()),
    SEND_ONLY_IMM: ("SEND_ONLY_WITH_IMMEDIATE", ("imm",)),
    WRITE_FIRST: ("RDMA_WRITE_FIRST", ("reth",)),
    WRITE_MIDDLE: ("RDMA_WRITE_MIDDLE", ()),
    WRITE_LAST: ("RDMA_WRITE_LAST", ()),
    WRITE_LAST_IMM: ("RDMA_WRITE_LAST_WITH_IMMEDIATE", ("imm",)),
    WRITE_ONLY: ("RDMA_WRITE_ONLY", ("reth",)),
    WRITE_ONLY_IMM: ("RDMA_WRITE_ONLY_WITH_IMMEDIATE", ("reth", "imm")),
    READ_REQUEST: ("RDMA_READ_REQUEST", ("reth",)),
    READ_RESPONSE_FIRST: ("RDMA_READ_RESPONSE_FIRST", ("aeth",)),
    READ_RESPONSE_MIDDLE: ("RDMA_READ_RESPONSE_MIDDLE", ()),
    READ_RESPONSE_LAST: ("RDMA_READ_RESPONSE_LAST", ("aeth",)),
    READ_RESPONSE_ONLY: ("RDMA_READ_RESPONSE_ONLY", ("aeth",)),
    ACK: ("ACKNOWLEDGE", ("aeth",)),
    ATOMIC_ACK: ("ATOMIC_ACKNOWLEDGE", ("aeth", "atomic_ack")),
    COMPARE_SWAP: ("COMPARE_SWAP", ("atomic",)),
    FETCH_ADD: ("FETCH_ADD", ("atomic",)),
}
# All opcodes that Heddle reads; it does not read others (RD, XRC).
_OPCODES: Final[Mapping[int, tuple[str, tuple[str, ...]]]] = {
    **{opcode: (f"RC_{name}", extensions) for opcode, (name, extensions) in _RC_OPCODES.items()},
    **{UC + op: (f"UC_{name}", found) for op, (name, found) in _RC_OPCODES.items() if op <= WRITE_ONLY_IMM},
    UD_SEND_ONLY: ("UD_SEND_ONLY", ("deth",)),
    UD_SEND_ONLY_IMM: ("UD_SEND_ONLY_WITH_IMMEDIATE", ("deth", "imm")),
    CNP: ("CNP", ("cnp",)),
    SACK: ("SACK", ("seth",)),
    NACK: ("NACK", ("neth",)),
}
OPCODE_NAMES: Final[Mapping[int, str]] = {opcode: name for opcode, (name, _) in _OPCODES.items()}
EXTENSIONS: Final[Mapping[int, tuple[str, ...]]] = {opcode: extensions for opcode, (_, extensions) in _OPCODES.items()}
EXTENSION_BYTES: Final[Mapping[str, int]] = {
    "reth": RETH_BYTES,
    "imm": IMM_BYTES,
    "aeth": AETH_BYTES,
    "atomic": ATOMIC_BYTES,
    "atomic_ack": ATOMIC_ACK_BYTES,
    "deth": DETH_BYTES,
    "cnp": CNP_BYTES,
    "seth": SETH_BYTES,
    "neth": NETH_BYTES,
}
EXTRA_BYTES: Final[Mapping[int, int]] = {
    opcode: sum(EXTENSION_BYTES[name] for name in names) for opcode, names in EXTENSIONS.items()
}
HEADERS_ONLY: Final = frozenset(
    {READ_REQUEST, ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD, CNP, SACK, NACK}
)  # never with payload

# AETH syndromes (IBTA vol. 1, table 44; Linux rxe_hdr.h).
# A plain ACK contains the credit count; 31 means no credit limit.
ACK_NO_LIMIT: Final = 0x1F
RNR_NAK: Final = 0x20
NAK_SEQUENCE: Final = 0x60
NAK_INVALID: Final = 0x61
NAK_ACCESS: Final = 0x62
SYNDROME_KIND: Final = 0xE0  # 0x00 ACK, 0x20 receiver not ready, 0x60 NAK


def psn_after(psn: int, reference: int) -> int:
    """How far a PSN of 24 bits is ahead of another one, of any size; negative when it is behind."""
    return (psn - reference + PSN_HALF & PSN_MASK) - PSN_HALF


ONES: Final = b"\xff" * 8
# The CRC over a packet *with* its ICRC is this constant, so a receiver does not need to read the field.
RESIDUE: Final = 0x2144DF1C
_BTH_MASKED: Final = 4  # the byte of the BTH that counts as ones


def masked_headers(packet: bytes | bytearray | memoryview) -> bytes:
    """IP and UDP headers and BTH bytes 0-4 of an IP packet, with the fields that may change in flight set to ones.

    `packet` starts at its IP header. ValueError unless it is IPv4 or IPv6 with UDP directly followed by a BTH.
    """
    version = packet[0] >> 4 if packet else 0
    ip_bytes = {4: (packet[0] & 0x0F) * 4, 6: IPV6_BYTES}.get(version, 0) if packet else 0
    need = ip_bytes + UDP_BYTES + BTH_BYTES + ICRC_BYTES
    if ip_bytes < IPV4_BYTES or len(packet) < need:
        raise ValueError(f"not a RoCEv2 packet: IP version {version}, {len(packet)} bytes")
    head = bytearray(packet[: ip_bytes + UDP_BYTES + _BTH_MASKED + 1])
    if version == 4:
        protocol = head[9]
        head[1] = head[8] = head[10] = head[11] = 0xFF
    else:
        protocol = head[6]
        head[0] |= 0x0F
        head[1] = head[2] = head[3] = head[7] = 0xFF
    if protocol != PROTO_UDP:
        raise ValueError(f"not a RoCEv2 packet: IP protocol {protocol}")
    head[ip_bytes + 6] = head[ip_bytes + 7] = 0xFF
    head[-1] = 0xFF
    return bytes(head)


def prefix_state(packet: bytes | bytearray | memoryview) -> tuple[int, int]:
    """The CRC state after BTH byte 4, and the number of bytes of the packet it covers; ValueError as masked_headers."""
    head = masked_headers(packet)
    return zlib.crc32(ONES + head), len(head)


def icrc(packet: bytes | bytearray | memoryview) -> bytes:
    """The four ICRC bytes, in wire order, of an IP packet whose last four bytes are the ICRC or a placeholder for it.

    Lengths in the headers already count the ICRC, and nothing follows it. ValueError as masked_headers.
    """
    state, covered = prefix_state(packet)
    return zlib.crc32(packet[covered:-ICRC_BYTES], state).to_bytes(ICRC_BYTES, "little")


IcrcVerdict = Literal["right", "wrong", "zero", "cut", "unchecked"]


def verdict(frame: bytes, ip_at: int) -> IcrcVerdict:
    """Whether the ICRC of a captured RoCEv2 packet is right. ip_at: the offset of its IP header in `frame`.

    The IP header has the packet's length, so padding and a frame check sequence behind it do not matter. zero: wrong,
    and all four bytes are 0, as in a capture on the sender where the NIC adds them. cut: the capture has not all bytes
    of the packet. unchecked: options, extension headers or a fragment.
    """
    packet = memoryview(frame)[ip_at:]
    if len(packet) < IPV4_BYTES:
        return "cut"
    if packet[0] >> 4 == 4:
        size, extra = int.from_bytes(packet[2:4], "big"), packet[0] & 0x0F != 5 or packet[6] & 0x3F or packet[7]
    else:
        size, extra = IPV6_BYTES + int.from_bytes(packet[4:6], "big"), packet[6] != PROTO_UDP
    if extra:
        return "unchecked"
    if len(packet) < size:
        return "cut"
    try:
        state, covered = prefix_state(packet[:size])
    except ValueError:
        return "unchecked"
    if zlib.crc32(packet[covered:size], state) == RESIDUE:
        return "right"
    return "wrong" if any(packet[size - ICRC_BYTES : size]) else "zero"
