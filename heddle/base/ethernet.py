"""Constants of Ethernet and its priorities that several rooms use, and PFC frames.

With a PFC frame a port asks its peer to pause some classes (IEEE 802.1Q annex 36, formerly 802.1Qbb): a MAC control
frame to 01:80:C2:00:00:01, which no bridge forwards. EtherType 0x8808, opcode 0x0101, a vector with a bit for each of
the eight classes, and eight times in quanta of 512 bit times of the link. If the bit of a class is clear, its time has
no meaning. Time 0 means: resume.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CLASSES: Final = 8  # priorities of 802.1Q; a PFC frame has a bit and a time for each
DSCPS: Final = 64
# DSCP by kind of packet, with the defaults of NIC testers (OTG): data in the lossless class, answers (ACK, NAK, CNP)
# in the class with the highest priority.
DSCP_DATA: Final = 24
DSCP_ANSWER: Final = 48
DSCP_REPEATED: Final = 8  # packets that selective repeat sends again, in a fabric that trims
HEADER: Final = 14  # bytes of an Ethernet header, part of every depth and threshold
MAX_QUANTA: Final = 0xFFFF
QUANTUM_BITS: Final = 512  # 802.1Q, clause 36: times are in units of 512 bit times of the port
LARGEST_PFC_MTU: Final = 60_000  # a closed gate refuses what it counts as 65,535 bytes, and a packet must be less
PFC_ADDRESS: Final = bytes.fromhex("0180c2000001")
MAC_CONTROL: Final = 0x8808  # EtherType of MAC control frames
PFC_OPCODE: Final = 0x0101  # priority-based flow control; 0x0001 is the older PAUSE of a whole link
PFC_FRAME_BYTES: Final = 60  # the Ethernet minimum, without the checksum
_LAYOUT: Final = struct.Struct("!6s6sHHH8H")


@dataclass(frozen=True, slots=True)
class PfcFrame:
    """The contents of a frame: source MAC, and quanta for the classes whose bit is set."""

    source: bytes
    quanta: Mapping[int, int]


def pfc_frame(source: bytes, quanta: Mapping[int, int]) -> bytes:
    """Build a frame of 60 bytes. source: MAC, 6 bytes. quanta: class -> 0..65535. ValueError if one is out of range."""
    if len(source) != len(PFC_ADDRESS):
        raise ValueError(f"a MAC of {len(source)} bytes")
    times = [0] * CLASSES
    vector = 0
    for number, time in quanta.items():
        if not 0 <= number < CLASSES or not 0 <= time <= MAX_QUANTA:
            raise ValueError(f"class {number} for {time} quanta")
        vector |= 1 << number
        times[number] = time
    return _LAYOUT.pack(PFC_ADDRESS, source, MAC_CONTROL, PFC_OPCODE, vector, *times).ljust(PFC_FRAME_BYTES, b"\0")


def read_pfc_frame(frame: bytes) -> PfcFrame | None:
    """Parse a frame; None when it is not a PFC frame, or truncated."""
    if len(frame) < _LAYOUT.size:
        return None
    address, source, ethertype, opcode, vector, *times = _LAYOUT.unpack_from(frame)
    if (address, ethertype, opcode) != (PFC_ADDRESS, MAC_CONTROL, PFC_OPCODE):
        return None
    return PfcFrame(source, {number: time for number, time in enumerate(times) if vector >> number & 1})


def quanta_ns(quanta: int, rate_bps: int) -> int:
    """Duration of `quanta` on a link of that rate, in ns."""
    return quanta * QUANTUM_BITS * 10**9 // rate_bps
