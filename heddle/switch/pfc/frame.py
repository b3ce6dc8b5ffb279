"""PFC frames: how a port asks its peer to pause some classes (IEEE 802.1Q annex 36, formerly 802.1Qbb).

A MAC control frame to 01:80:C2:00:00:01, which no bridge forwards: EtherType 0x8808, opcode 0x0101, a vector with a
bit for each of the eight classes, and eight times in quanta of 512 bit times of the link. If the bit of a class is
clear, its time has no meaning. Time 0 means: resume.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.ethernet import CLASSES, MAX_QUANTA, QUANTUM_BITS

ADDRESS: Final = bytes.fromhex("0180c2000001")
ETHERTYPE: Final = 0x8808  # MAC control
OPCODE: Final = 0x0101  # priority-based flow control; 0x0001 is the older PAUSE of a whole link
FRAME_BYTES: Final = 60  # the Ethernet minimum, without the checksum
_LAYOUT: Final = struct.Struct("!6s6sHHH8H")


@dataclass(frozen=True, slots=True)
class PfcFrame:
    """The contents of a frame: source MAC, and quanta for the classes whose bit is set."""

    source: bytes
    quanta: Mapping[int, int]


def build(source: bytes, quanta: Mapping[int, int]) -> bytes:
    """Build a frame of 60 bytes. source: MAC, 6 bytes. quanta: class -> 0..65535. ValueError if one is out of range."""
    if len(source) != len(ADDRESS):
        raise ValueError(f"a MAC of {len(source)} bytes")
    times = [0] * CLASSES
    vector = 0
    for number, time in quanta.items():
        if not 0 <= number < CLASSES or not 0 <= time <= MAX_QUANTA:
            raise ValueError(f"class {number} for {time} quanta")
        vector |= 1 << number
        times[number] = time
    return _LAYOUT.pack(ADDRESS, source, ETHERTYPE, OPCODE, vector, *times).ljust(FRAME_BYTES, b"\0")


def parse(frame: bytes) -> PfcFrame | None:
    """Parse a frame; None when it is not a PFC frame, or truncated."""
    if len(frame) < _LAYOUT.size:
        return None
    address, source, ethertype, opcode, vector, *times = _LAYOUT.unpack_from(frame)
    if (address, ethertype, opcode) != (ADDRESS, ETHERTYPE, OPCODE):
        return None
    return PfcFrame(source, {number: time for number, time in enumerate(times) if vector >> number & 1})


def quanta_ns(quanta: int, rate_bps: int) -> int:
    """Duration of `quanta` on a link of that rate, in ns."""
    return quanta * QUANTUM_BITS * 10**9 // rate_bps
