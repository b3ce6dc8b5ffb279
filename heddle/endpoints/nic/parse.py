"""Read RoCEv2 frames in batches, from AF_PACKET.

In:  a FrameBuffer that recvmmsg filled, and the lengths that it returned.
Out: Received: per frame its contents and whether it is sound.
The bytes from the Ethernet type to the P_Key are the same in all packets of a flow and kind. So they are parsed only
once, to a Kind with the state of the ICRC after them, and then looked up. Received data never raises: a frame that is
truncated, oversized, garbage, a fragment, of another IP version or of an unknown opcode is marked bad.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from heddle.endpoints.nic.framebuffer import FrameBuffer
from heddle.endpoints.nic.frames import Reth, ip_checksum
from heddle.wire import layout as wire
from heddle.wire.icrc import RESIDUE, prefix_state

_KEY_AT: Final = 12  # the Ethernet type; MAC addresses are not checked
_KINDS_KEPT: Final = 4096
_KINDS_OF_QP: Final = 8  # of a queue pair: first, middle, last and only packets, marked or not
_BTH_IN_KEY: Final = 4  # bytes 0 to 3 of the BTH are the key's last
_NO_FRAME: Final = -1
_NO_HEADER: Final = -1
_FRAGMENT_BITS: Final = 0x3FFF  # more fragments, and the offset

_KEY = struct.Struct(">HBBHHHBBHIIHHHHBBH")  # Ethernet type, IPv4, UDP, BTH bytes 0-3
_KEY6 = struct.Struct(">HIHBB16s16sHHHHBBH")  # the same with IPv6
# For both: source address, traffic class, source port, frame bytes, BTH's opcode and flags.
_Fields = tuple[int, int, int, int, int, int]

# The offset of each extended header of an opcode, after the BTH.
_OFFSETS: Final = {
    (opcode, name): sum(wire.EXTENSION_BYTES[before] for before in names[:place])
    for opcode, names in wire.EXTENSIONS.items()
    for place, name in enumerate(names)
}


@dataclass(frozen=True, slots=True)
class Kind:
    """The common properties of packets of one flow, opcode, length and marking.

    frame_bytes: the only valid length of such a frame (without Ethernet's padding); -1 if it is not a RoCEv2 packet.
    state:       of the ICRC, after BTH byte 4.
    src:         address as an integer, of 32 or 128 bits.
    payload_at:  offset from the frame's first byte; payload_bytes is without padding.
    *_at:        offset of an extended header, or _NO_HEADER.
    """

    frame_bytes: int = _NO_FRAME
    state: int = 0
    opcode: int = _NO_FRAME
    payload_at: int = wire.EXT_AT
    payload_bytes: int = 0
    src: int = 0
    sport: int = 0
    tos: int = 0
    ce: bool = False
    reth_at: int = _NO_HEADER
    imm_at: int = _NO_HEADER
    aeth_at: int = _NO_HEADER


NO_KIND: Final = Kind()


def read_kind(key: bytes) -> Kind:
    """Parse the bytes from the Ethernet type to the P_Key; NO_KIND when they do not belong to a RoCEv2 packet."""
    fields = _read_ipv4(key) if len(key) == _KEY.size else _read_ipv6(key)
    if fields is None:
        return NO_KIND
    src, tos, sport, frame_bytes, opcode, flags = fields
    # The low four bits of the flags are the transport version; only zero exists.
    if flags & 0x0F or opcode not in wire.EXTRA_BYTES:
        return NO_KIND
    ext_at = _KEY_AT + len(key) - _BTH_IN_KEY + wire.BTH_BYTES
    payload_at = ext_at + wire.EXTRA_BYTES[opcode]
    padded = frame_bytes - wire.ICRC_BYTES - payload_at
    pad = flags >> 4 & 3
    if padded % 4 or padded < pad or (padded and opcode in wire.HEADERS_ONLY):
        return NO_KIND
    # The state does not depend on BTH byte 4, which counts as ones, nor on the bytes after it, which are added later.
    state, _ = prefix_state(key[wire.IP_AT - _KEY_AT :].ljust(ext_at + wire.ICRC_BYTES - wire.IP_AT, b"\0"))
    ce = tos & wire.ECN_MASK == wire.ECN_CE
    offsets = (_OFFSETS.get((opcode, name)) for name in ("reth", "imm", "aeth"))
    headers = (_NO_HEADER if offset is None else ext_at + offset for offset in offsets)
    return Kind(frame_bytes, state, opcode, payload_at, padded - pad, src, sport, tos, ce, *headers)


def _read_ipv4(key: bytes) -> _Fields | None:
    (ethertype, version, tos, total, _, fragment, _, protocol, _, src, _, *rest) = _KEY.unpack(key)
    (sport, dport, udp_bytes, _, opcode, flags, _) = rest
    if (
        ethertype != wire.ETHERTYPE_IPV4
        or version != wire.IPV4_NO_OPTIONS
        or protocol != wire.PROTO_UDP
        or dport != wire.ROCE_PORT
    ):
        return None
    if (
        fragment & _FRAGMENT_BITS
        or udp_bytes != total - wire.IPV4_BYTES
        or ip_checksum(key[wire.IP_AT - _KEY_AT : wire.UDP_AT - _KEY_AT])
    ):
        return None
    return src, tos, sport, wire.IP_AT + total, opcode, flags


def _read_ipv6(key: bytes) -> _Fields | None:
    """Parse an IPv6 key, with UDP directly after the IPv6 header; a fragment has a header in between: None."""
    (ethertype, first, size, protocol, _, src, _, sport, dport, udp_bytes, _, opcode, flags, _) = _KEY6.unpack(key)
    if ethertype != wire.ETHERTYPE_IPV6 or first >> 28 != 6 or protocol != wire.PROTO_UDP or dport != wire.ROCE_PORT:
        return None
    if udp_bytes != size:
        return None
    frame_bytes = wire.LAYOUTS[6].udp_at + size
    return int.from_bytes(src, "big"), first >> 20 & 0xFF, sport, frame_bytes, opcode, flags


class Received:
    """A batch of parsed frames, in order of arrival.

    Lists, one entry per frame:
    sounds:  headers consistent with the received length, and a correct ICRC. Do not trust any field of other frames.
    oks:     the same without the ICRC.
    kinds:   the parsed headers before the QP number.
    dqpns, psns, ackreqs: the rest of the BTH.
    """

    __slots__ = ("ackreqs", "buffer", "dqpns", "kinds", "oks", "psns", "sounds")

    def __init__(self, buffer: FrameBuffer) -> None:
        self.buffer = buffer
        self.oks: list[bool] = []
        self.sounds: list[bool] = []
        self.kinds: list[Kind] = []
        self.dqpns: list[int] = []
        self.psns: list[int] = []
        self.ackreqs: list[bool] = []

    def __len__(self) -> int:
        return len(self.kinds)

    def payload(self, i: int) -> memoryview:
        """The payload of frame i, without padding; a view into the buffer. Empty when the frame is not ok."""
        kind = self.kinds[i]
        start = self.buffer.starts[i] + kind.payload_at
        return self.buffer.mem[start : start + (kind.payload_bytes if self.oks[i] else 0)]

    def reth(self, i: int) -> Reth:
        """Virtual address, remote key and message length of frame i; ValueError when it has no RETH."""
        va, rkey, dma_bytes = wire.RETH.unpack_from(self.buffer.mem, self._at(i, self.kinds[i].reth_at, "reth"))
        return va, rkey, dma_bytes

    def imm(self, i: int) -> int:
        """The immediate data of frame i as a 32-bit number; ValueError when it has none."""
        value: int = wire.WORD.unpack_from(self.buffer.mem, self._at(i, self.kinds[i].imm_at, "imm"))[0]
        return value

    def aeth(self, i: int) -> tuple[int, int]:
        """Syndrome and message sequence number of frame i; ValueError when it has no AETH."""
        word: int = wire.WORD.unpack_from(self.buffer.mem, self._at(i, self.kinds[i].aeth_at, "aeth"))[0]
        return word >> 24, word & wire.PSN_MASK

    def _at(self, i: int, offset: int, name: str) -> int:
        """The offset in the buffer of an extended header of frame i."""
        if offset < 0 or not self.oks[i]:
            raise ValueError(f"frame {i} has no {name}")
        return self.buffer.starts[i] + offset


class Parser:
    """Parses batches of one version of IP, and caches the kinds of packets, up to a limit. One per receiver."""

    def __init__(self, kinds: int = _KINDS_KEPT, version: int = 4) -> None:
        layout = wire.LAYOUTS[version]
        self._layout = layout
        # The key, the QPN word, the PSN word.
        self._head = struct.Struct(f">{layout.dqpn_word_at - _KEY_AT}sII")
        self._most = kinds
        self._kinds: dict[bytes, Kind] = {}

    def expect(self, qps: int) -> None:
        """Make the cache large enough for `qps` queue pairs. A full cache is cleared, and kinds are parsed again."""
        self._most = max(self._most, _KINDS_OF_QP * qps)

    def parse(self, buffer: FrameBuffer, lengths: Sequence[int]) -> Received:
        """Parse the first len(lengths) frames of a buffer. lengths: the true lengths of the frames, in bytes.

        The result refers to the buffer and is valid until the buffer is written again.
        """
        received = Received(buffer)
        room, mem, crc32, known = buffer.frame_bytes, buffer.mem, zlib.crc32, self._kinds.get
        # A frame too short for these bytes has bytes of an older frame there; the check of its length detects that.
        heads = self._head.iter_unpack(buffer.rows[: len(lengths), _KEY_AT : self._layout.ext_at].tobytes())
        crc_at = self._layout.dqpn_word_at + 1  # BTH byte 4 is the last byte that the ICRC counts as ones
        for size, start, (key, qpn_word, psn_word) in zip(lengths, buffer.starts, heads, strict=False):
            kind = known(key) or self._learn(key)
            expected = kind.frame_bytes
            ok = (size == expected or expected < size == wire.MIN_ETHERNET) and 0 < expected <= room
            received.oks.append(ok)
            received.sounds.append(ok and crc32(mem[start + crc_at : start + expected], kind.state) == RESIDUE)
            received.kinds.append(kind)
            received.dqpns.append(qpn_word & wire.QPN_MASK)
            received.psns.append(psn_word & wire.PSN_MASK)
            received.ackreqs.append(psn_word >> 31 == 1)
        return received

    def _learn(self, key: bytes) -> Kind:
        kind = read_kind(key)
        if kind is not NO_KIND:  # garbage must not evict valid kinds
            if len(self._kinds) >= self._most:
                self._kinds.clear()
            self._kinds[key] = kind
        return kind
