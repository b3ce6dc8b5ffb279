"""Constants of the RoCEv2 wire format: opcodes, header sizes, offsets, syndromes.

Sources: InfiniBand Architecture Specification vol. 1 (chapter 9 and annex A17), Linux rxe_hdr.h and rxe_opcode.h,
Wireshark packet-infiniband.c. Offsets count from the first byte of an untagged Ethernet frame with a plain IP header:
the constants are for IPv4, LAYOUTS has both versions.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
ATOMIC_BYTES: Final = 28
ATOMIC_ACK_BYTES: Final = 8
DETH_BYTES: Final = 8
IMM_BYTES: Final = 4
AETH_BYTES: Final = 4
CNP_BYTES: Final = 16  # reserved, zero
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
# DSCP by kind of packet, with the defaults of NIC testers (OTG): data in the lossless class, answers (ACK, NAK, CNP)
# in the class with the highest priority. Only data is ECN-capable.
DSCP_DATA: Final = 24
DSCP_ANSWER: Final = 48
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
}
EXTRA_BYTES: Final[Mapping[int, int]] = {
    opcode: sum(EXTENSION_BYTES[name] for name in names) for opcode, names in EXTENSIONS.items()
}
HEADERS_ONLY: Final = frozenset({READ_REQUEST, ACK, ATOMIC_ACK, COMPARE_SWAP, FETCH_ADD, CNP})  # never with payload

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
