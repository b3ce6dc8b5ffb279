"""SACK and NACK: acknowledgements of single packets, with PSNs of 24 bits (MRC) or 32 bits (UET).

MRC (OCP, Multipath Reliable Connection) has them as the extended headers SETH and NETH, UET (Ultra Ethernet) as the
headers ACK_CC and NACK of its packet delivery sublayer. The fields are the same. Their places differ, and MRC adds the
entropy value of the packet that is answered. Big-endian; the first 16 bits, from the highest one:

| PSN | type | next | flags |
|---|---|---|---|
| 24 bits | 4 | 5 | 7 |
| 32 bits | 5 | 4 | 7 |

Layouts as in two independent open implementations of each, not checked against the documents. One of them writes 2 as
cc_type of an MRC NACK, the other 0: any value is read. The meaning of MRC's flags is not public: bit 0x20 is read as in
UET, the packet was marked. Heddle's own endpoints send both headers after an ordinary BTH, on RoCEv2's port.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from heddle.wire.layout import PSN_MASK

PsnBits = Literal[24, 32]
BITMAP: Final = 64  # packets that the bitmap of a SACK covers
TRIMMED: Final = 1
TRIMMED_LAST: Final = 2
REASONS: Final[Mapping[int, str]] = {
    TRIMMED: "trimmed", TRIMMED_LAST: "trimmed at the last hop", 3: "trimmed ACK", 6: "no bitmap", 7: "no buffer",
    0x0A: "no resource", 0x0B: "PSN out of window", 0x19: "unexpected",
}  # fmt: skip
MARKED: Final = 0x20
_FORMS: Final[Mapping[PsnBits, tuple[int, struct.Struct, struct.Struct]]] = {  # bits of `following`, SACK, NACK
    24: (5, struct.Struct(">HhIHHIBBhQ"), struct.Struct(">HBBIHHIBBH")),
    32: (4, struct.Struct(">HhIHHBBhQQ"), struct.Struct(">HBBIHHI")),
}


def _head(bits: PsnBits, kind: int, following: int, flags: int) -> int:
    return (kind << _FORMS[bits][0] | following) << 7 | flags


def _parts(bits: PsnBits, head: int) -> tuple[int, int, int]:
    width = _FORMS[bits][0]
    return head >> 7 + width, head >> 7 & (1 << width) - 1, head & 0x7F


def _mask(bits: PsnBits) -> int:
    return (1 << bits) - 1


@dataclass(frozen=True, slots=True)
class Sack:
    """A selective acknowledgement.

    cack: all packets up to this PSN have arrived. ack: minus cack, the packet that is answered. base: minus cack, the
    packet of bit 0 of the bitmap, in which a 1 is a packet that has arrived. Both differences have 16 bits, signed.
    entropy: of the answered packet, with 24 bits only. state: of congestion control, with 32 bits only. mpr: packets
    that the receiver can track, in units of 128.
    """

    cack: int
    ack: int = 0
    base: int = 1
    bitmap: int = 0
    entropy: int = 0
    flags: int = 0
    kind: int = 0
    following: int = 0
    source: int = 0
    target: int = 0
    cc_type: int = 0
    cc_flags: int = 0
    mpr: int = 0
    state: int = 0

    @property
    def marked(self) -> bool:
        """Whether the answered packet arrived with congestion experienced (CE)."""
        return bool(self.flags & MARKED)

    def psns(self) -> Iterator[int]:
        """The PSNs beyond `cack` that have arrived, as offsets from it: those of the bitmap, and the answered one."""
        bits, base = self.bitmap, self.base
        while bits:
            low = bits & -bits
            yield base + low.bit_length() - 1
            bits ^= low
        if self.ack > 0:
            yield self.ack

    def pack(self, bits: PsnBits = 24) -> bytes:
        """The header: 28 bytes with PSNs of 24 bits, 32 bytes with 32. struct.error for a value that is too large."""
        head = _head(bits, self.kind, self.following, self.flags)
        control = self.cc_type << 4 | self.cc_flags
        form, ends, cack = _FORMS[bits][1], (self.source, self.target), self.cack & _mask(bits)
        if bits == 24:
            return form.pack(head, self.ack, self.entropy, *ends, cack, control, self.mpr, self.base, self.bitmap)
        return form.pack(head, self.ack, cack, *ends, control, self.mpr, self.base, self.bitmap, self.state)

    @classmethod
    def unpack(cls, data: bytes | memoryview, bits: PsnBits = 24) -> Self:
        """From the first bytes of `data`; struct.error when there are too few."""
        entropy = state = 0
        if bits == 24:
            head, ack, entropy, source, target, cack, control, mpr, base, bitmap = _FORMS[bits][1].unpack_from(data)
            cack &= PSN_MASK
        else:
            head, ack, cack, source, target, control, mpr, base, bitmap, state = _FORMS[bits][1].unpack_from(data)
        kind, following, flags = _parts(bits, head)
        return cls(
            cack, ack, base, bitmap, entropy, flags, kind, following, source, target, control >> 4, control & 15, mpr,
            state,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Nack:
    """A negative acknowledgement of the packet `psn`. reason: of REASONS.

    entropy, cc_type, cc_flags, sent: with 24 bits only; sent: the packet's transmit timestamp, 16 bits of 128 ns.
    payload: with 32 bits only.
    """

    psn: int
    reason: int = TRIMMED
    entropy: int = 0
    vendor: int = 0
    flags: int = 0
    kind: int = 0
    following: int = 0
    source: int = 0
    target: int = 0
    cc_type: int = 0
    cc_flags: int = 0
    sent: int = 0
    payload: int = 0

    def pack(self, bits: PsnBits = 24) -> bytes:
        """The header: 20 bytes with PSNs of 24 bits, 16 bytes with 32. struct.error for a value that is too large."""
        head = _head(bits, self.kind, self.following, self.flags)
        start, ends, psn = (head, self.reason, self.vendor), (self.source, self.target), self.psn & _mask(bits)
        if bits == 24:
            control = self.cc_type << 4 | self.cc_flags
            return _FORMS[bits][2].pack(*start, self.entropy, *ends, psn, control, 0, self.sent)
        return _FORMS[bits][2].pack(*start, psn, *ends, self.payload)

    @classmethod
    def unpack(cls, data: bytes | memoryview, bits: PsnBits = 24) -> Self:
        """From the first bytes of `data`; struct.error when there are too few."""
        entropy = control = sent = payload = 0
        if bits == 24:
            head, reason, vendor, entropy, source, target, psn, control, _, sent = _FORMS[bits][2].unpack_from(data)
            psn &= PSN_MASK
        else:
            head, reason, vendor, psn, source, target, payload = _FORMS[bits][2].unpack_from(data)
        kind, following, flags = _parts(bits, head)
        return cls(
            psn, reason, entropy, vendor, flags, kind, following, source, target, control >> 4, control & 15, sent,
            payload,
        )  # fmt: skip
