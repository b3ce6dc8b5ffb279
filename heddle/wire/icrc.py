"""The invariant CRC of RoCEv2: the last four bytes of a packet, which do not depend on changes to TTL and ECN.

CRC-32 (of Ethernet and zlib) over eight bytes of ones, in place of InfiniBand's local header, then IP, UDP, BTH and
the rest. Every field that may change in flight counts as ones: IPv4 TOS, TTL and checksum; IPv6 traffic class, flow
label and hop limit; UDP checksum; BTH byte 4 (FECN, BECN, six reserved bits). It is appended least significant byte
first. Sources: IBTA annex A17.3.3, Linux rxe_icrc.c. All bytes after BTH byte 4 are unmasked and contiguous, so a
sender keeps the state of `prefix_state` per header and needs one zlib call per packet.
"""

from __future__ import annotations

import zlib
from typing import Final, Literal

from heddle.wire.layout import BTH_BYTES, ICRC_BYTES, IPV4_BYTES, IPV6_BYTES, PROTO_UDP, UDP_BYTES

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
