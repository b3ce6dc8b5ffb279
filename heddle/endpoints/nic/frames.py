"""RoCEv2 frames in batches, for AF_PACKET: build them, and read them.

Memory: FrameBuffer, with the kernel's message vectors, so that one call moves all frames. One row per frame. A row
starts at an offset in a cache line (ten bytes, for IPv4) so that the bytes after Ethernet, IP, UDP and BTH start a
cache line. Immediate data and RETH keep the payload four-byte aligned, so float32 views of it are aligned.

Building: FlowHeader (one per queue pair and direction) and payload bytes become frames in a SendBatch, ready for one
sendmmsg. The constant part of all packets of a kind (addresses, lengths, checksum, opcode, destination QP) is built
once and kept as a Template, with the state of the ICRC after it. Each packet adds its PSN word, its payload and one
zlib call. As in soft-RoCE and NICs: UDP checksum 0, also in IPv6 (rxe_net.c prepare_udp_hdr; RFC 6935 allows it if
another check covers the headers, here the ICRC); IPv4 has DF and identification 0; the IPv6 flow label is 0
(prepare_ipv6_hdr), so it does not distinguish flows.

Reading: a FrameBuffer that recvmmsg filled, and the lengths that it returned, become a Received: per frame its contents
and whether it is sound. The bytes from the Ethernet type to the P_Key are the same in all packets of a flow and kind.
So they are parsed only once, to a Kind with the state of the ICRC after them, and then looked up. Received data never
raises: a frame that is truncated, oversized, garbage, a fragment, of another IP version or of an unknown opcode is
marked bad. A frame that a switch has trimmed is bad, too, but its BTH can be read: it is found before the ICRC is.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from heddle.wire import layout as wire
from heddle.wire import sack
from heddle.wire.layout import IMM_BYTES, LAYOUTS, RESIDUE, RETH_BYTES, prefix_state

LINE_BYTES: Final = 64
BATCH: Final = 64

# struct iovec and struct mmsghdr of 64-bit Linux (bits/types/struct_iovec.h, bits/socket.h).
IOVEC: Final = np.dtype([("base", "u8"), ("len", "u8")])
MMSGHDR: Final = np.dtype(
    [
        ("name", "u8"),
        ("namelen", "u4"),
        ("pad1", "u4"),
        ("iov", "u8"),
        ("iovlen", "u8"),
        ("control", "u8"),
        ("controllen", "u8"),
        ("flags", "i4"),
        ("pad2", "u4"),
        ("len", "u4"),
        ("pad3", "u4"),
    ]
)


def frame_bytes_for(mtu_bytes: int, version: int = 4) -> int:
    """The longest frame, in bytes, of a QP with this IB MTU over IPv4 or IPv6: WRITE_ONLY with immediate data."""
    return LAYOUTS[version].overhead_bytes + RETH_BYTES + IMM_BYTES + mtu_bytes


class FrameBuffer:
    """Room for `slots` frames of up to `frame_bytes` each.

    rows:    uint8 (slots, at least frame_bytes): row i is frame i, from its Ethernet header on.
    mem:     the same memory, flat; frame i starts at starts[i].
    lengths: uint64 (slots,): bytes of each frame. It *is* the kernel's iov_len: writing it sets the length.
    """

    def __init__(self, frame_bytes: int, slots: int = BATCH, version: int = 4) -> None:
        lead = LAYOUTS[version].lead_bytes
        self.slots = slots
        self.frame_bytes = frame_bytes
        self.stride = -(-(lead + frame_bytes) // LINE_BYTES) * LINE_BYTES
        room = np.zeros(slots * self.stride + LINE_BYTES, np.uint8)
        skip = -room.ctypes.data % LINE_BYTES
        self.flat: npt.NDArray[np.uint8] = room[skip : skip + slots * self.stride]
        self.rows: npt.NDArray[np.uint8] = self.flat.reshape(slots, self.stride)[:, lead:]
        self.mem = self.flat.data
        self.starts: list[int] = [slot * self.stride + lead for slot in range(slots)]
        self._iovecs = np.zeros(slots, IOVEC)
        self._iovecs["base"] = self.flat.ctypes.data + np.array(self.starts, np.uint64)
        self._iovecs["len"] = frame_bytes
        self.messages = np.zeros(slots, MMSGHDR)
        self.messages["iov"] = self._iovecs.ctypes.data + np.arange(slots, dtype=np.uint64) * np.uint64(IOVEC.itemsize)
        self.messages["iovlen"] = 1
        self.messages_at: int = self.messages.ctypes.data
        self.lengths: npt.NDArray[np.uint64] = self._iovecs["len"]

    def frame(self, slot: int) -> memoryview:
        """The bytes of frame `slot`, of its length; a view, valid until the slot is written again."""
        return self.frame_of(slot, int(self.lengths[slot]))

    def frame_of(self, slot: int, size: int) -> memoryview:
        """The first `size` bytes of a slot; a view."""
        start = self.starts[slot]
        return self.mem[start : start + size]


Payload: TypeAlias = bytes | bytearray | memoryview  # of bytes (format B); of a uint8 array, array.data
Reth: TypeAlias = tuple[int, int, int]  # virtual address (64 bits), remote key (32), length of the whole message (32)

_DONT_FRAGMENT: Final = 0x4000
_TTL: Final = 64  # in IPv6 the hop limit
_TEMPLATES_KEPT: Final = 512  # per flow; limits the memory of a sweep over many sizes

_ETH = struct.Struct(">6s6sH")
_BTH8 = struct.Struct(">BBHI")
_ICRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Template:
    """All packets of one flow with the same opcode, payload length and flags, up to their PSN.

    prefix: the bytes before the PSN word (Ethernet, IP, UDP, BTH up to the destination QP).
    state:  the ICRC's state after the prefix.
    *_at:   offsets from the frame's first byte: the PSN word, extended headers, payload, ICRC.
    """

    prefix: bytes
    state: int
    psn_at: int
    ext_at: int
    payload_at: int
    payload_bytes: int
    icrc_at: int
    frame_bytes: int


def ip_checksum(header: bytes) -> int:
    """The internet checksum (RFC 1071) of an IPv4 header whose checksum field is zero; 0 for a correct header."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


class FlowHeader:
    """The common fields of all packets from one QP to its peer: addresses, source port, traffic class, peer QPN."""

    def __init__(
        self,
        *,
        src_mac: str,
        dst_mac: str,
        src_ip: str,
        dst_ip: str,
        sport: int,
        dqpn: int,
        tos: int = 0,
    ) -> None:
        """MACs as `02:00:..`, IP addresses of one version as text; ValueError for invalid text.

        tos: DSCP << 2 | ECN, in IPv6 the traffic class.
        """
        self.src_mac = bytes.fromhex(src_mac.replace(":", ""))
        self.dst_mac = bytes.fromhex(dst_mac.replace(":", ""))
        src, dst = ipaddress.ip_address(src_ip), ipaddress.ip_address(dst_ip)
        if src.version != dst.version:
            raise ValueError(f"{src} and {dst} are of two versions of IP")
        self.layout = wire.LAYOUTS[src.version]
        self.src_ip, self.dst_ip = src.packed, dst.packed
        self.sport = sport
        self.dqpn = dqpn & wire.QPN_MASK
        self.tos = tos
        self._templates: dict[tuple[int, int], Template] = {}

    def with_dscp(self, dscp: int) -> FlowHeader:
        """The same header with another DSCP and no ECN."""
        return self.with_tos(dscp << 2)

    def with_tos(self, tos: int) -> FlowHeader:
        """The same header with another traffic class: DSCP << 2 | ECN."""
        found = copy(self)
        found.tos, found._templates = tos, {}
        return found

    def template(self, opcode: int, payload_bytes: int = 0) -> Template:
        """The template of a kind of packet; KeyError for an opcode not in wire.EXTENSIONS."""
        key = (opcode, payload_bytes)
        found = self._templates.get(key)
        if found is None:
            if len(self._templates) >= _TEMPLATES_KEPT:
                self._templates.clear()
            found = self._templates[key] = self._make(opcode, payload_bytes)
        return found

    def _make(self, opcode: int, payload_bytes: int) -> Template:
        pad = -payload_bytes % 4
        layout = self.layout
        payload_at = layout.ext_at + wire.EXTRA_BYTES[opcode]
        icrc_at = payload_at + payload_bytes + pad
        frame_bytes = icrc_at + wire.ICRC_BYTES
        qpn = (1 << 30 if opcode == wire.CNP else 0) | self.dqpn
        prefix = self._eth_ip_udp(frame_bytes) + _BTH8.pack(opcode, pad << 4, wire.DEFAULT_PKEY, qpn)
        # The headers are masked up to BTH byte 4; the destination QP goes into the state unchanged.
        state, covered = prefix_state(prefix[wire.IP_AT :].ljust(frame_bytes - wire.IP_AT, b"\0"))
        state = zlib.crc32(prefix[wire.IP_AT + covered :], state)
        at = (layout.psn_word_at, layout.ext_at, payload_at)
        return Template(prefix, state, *at, payload_bytes, icrc_at, frame_bytes)

    def _eth_ip_udp(self, frame_bytes: int) -> bytes:
        udp_bytes = frame_bytes - self.layout.udp_at
        udp = wire.UDP_HEADER.pack(self.sport, wire.ROCE_PORT, udp_bytes, 0)
        if self.layout.version == 6:
            eth = _ETH.pack(self.dst_mac, self.src_mac, wire.ETHERTYPE_IPV6)
            ip6 = (6 << 28 | self.tos << 20, udp_bytes, wire.PROTO_UDP, _TTL, self.src_ip, self.dst_ip)
            return eth + wire.IPV6_HEADER.pack(*ip6) + udp
        eth = _ETH.pack(self.dst_mac, self.src_mac, wire.ETHERTYPE_IPV4)
        ip = (wire.IPV4_NO_OPTIONS, self.tos, frame_bytes - wire.IP_AT, 0, _DONT_FRAGMENT, _TTL, wire.PROTO_UDP)
        checksum = ip_checksum(wire.IPV4_HEADER.pack(*ip, 0, self.src_ip, self.dst_ip))
        return eth + wire.IPV4_HEADER.pack(*ip, checksum, self.src_ip, self.dst_ip) + udp


class SendBatch(FrameBuffer):
    """Frames to be sent together. Every `put_*` writes whole frames into slots and sets their lengths.

    Put frames into slots 0, 1, 2, ... and pass the batch and the number of frames to PacketSocket.send.
    """

    def __init__(self, mtu_bytes: int = 4096, slots: int = BATCH, version: int = 4) -> None:
        """Room for any packet of a QP with this IB MTU (the largest payload of a packet, bytes) over IPv4 or IPv6."""
        super().__init__(frame_bytes_for(mtu_bytes, version), slots, version)
        self.mtu_bytes = mtu_bytes

    def put_packet(
        self,
        slot: int,
        flow: FlowHeader,
        opcode: int,
        psn: int,
        payload: Payload = b"",
        *,
        extension: bytes = b"",
        ackreq: bool = False,
    ) -> int:
        """Write one packet of any opcode into a slot; return the frame's length in bytes.

        extension: its extended headers, in the order and with the lengths of wire.EXTENSIONS for the opcode.
        ValueError when they have another length, or the payload is longer than the MTU. KeyError for an unknown opcode.
        """
        mem = self.mem
        start = self.starts[slot]
        size = len(payload)
        if size > self.mtu_bytes:
            raise ValueError(f"payload of {size} bytes, MTU is {self.mtu_bytes}")
        made = flow.template(opcode, size)
        if made.frame_bytes > self.frame_bytes:
            raise ValueError(f"frame of {made.frame_bytes} bytes, room is for {self.frame_bytes}: a batch of IPv4?")
        if made.ext_at + len(extension) != made.payload_at:
            raise ValueError(f"opcode {opcode:#04x} does not match the given extended headers")
        mem[start : start + made.psn_at] = made.prefix
        wire.WORD.pack_into(mem, start + made.psn_at, psn & wire.PSN_MASK | ackreq << 31)
        at = start + made.payload_at
        mem[start + made.ext_at : at] = extension
        mem[at : at + size] = payload
        return self._seal(slot, start, made)

    def put_frame(self, slot: int, frame: bytes) -> None:
        """Write a whole frame into a slot, as it is. ValueError when it is longer than the slots."""
        size = len(frame)
        if size > self.frame_bytes:
            raise ValueError(f"frame of {size} bytes, room is for {self.frame_bytes}")
        self.mem[self.starts[slot] : self.starts[slot] + size] = frame
        self.lengths[slot] = size

    def put_data(
        self,
        slot: int,
        flow: FlowHeader,
        opcode: int,
        psn: int,
        payload: Payload = b"",
        *,
        ackreq: bool = False,
        reth: Reth | None = None,
        imm: int | None = None,
    ) -> int:
        """Write one SEND or WRITE packet into a slot; return the frame's length in bytes.

        RETH and immediate data must be given if and only if the opcode has them, and the payload must fit the
        MTU: ValueError otherwise. KeyError for an unknown opcode.
        """
        extension = wire.RETH.pack(*reth) if reth is not None else b""
        if imm is not None:
            extension += wire.WORD.pack(imm)
        return self.put_packet(slot, flow, opcode, psn, payload, extension=extension, ackreq=ackreq)

    def _seal(self, slot: int, start: int, made: Template) -> int:
        """Zero the padding, add the ICRC, set the length."""
        mem = self.mem
        end = start + made.icrc_at
        pad = -made.payload_bytes % 4
        if pad:
            mem[end - pad : end] = bytes(pad)
        _ICRC.pack_into(mem, end, zlib.crc32(mem[start + made.psn_at : end], made.state))
        self.lengths[slot] = made.frame_bytes
        return made.frame_bytes

    def put_write(
        self,
        slot: int,
        flow: FlowHeader,
        psn: int,
        message: Payload,
        *,
        reth: Reth,
        imm: int,
        index: int,
        count: int,
        ack_every: int,
    ) -> None:
        """Write packets [index, index + count) of one RDMA WRITE with immediate into slots from `slot` on.

        psn: of packet `index`. All packets but the last have a payload of the batch's MTU. Every `ack_every`-th packet
        of the message and the last one request an ACK. ValueError when the packets are not in the message or the batch.
        """
        mtu = self.mtu_bytes
        packets = max(1, -(-len(message) // mtu))
        stop = index + count
        if not 0 <= index < stop <= packets or slot + count > self.slots:
            raise ValueError(f"packets {index} to {stop} of {packets} do not fit at slot {slot} of {self.slots}")
        if packets == 1:
            self.put_data(slot, flow, wire.WRITE_ONLY_IMM, psn, message, ackreq=True, reth=reth, imm=imm)
            return
        view = memoryview(message)
        for i in range(index, stop):
            last, part = i == packets - 1, view[i * mtu : (i + 1) * mtu]
            opcode = wire.WRITE_FIRST if i == 0 else wire.WRITE_LAST_IMM if last else wire.WRITE_MIDDLE
            self.put_data(
                slot + i - index, flow, opcode, psn + i - index, part, ackreq=last or (i + 1) % ack_every == 0,
                reth=reth if i == 0 else None, imm=imm if last else None,
            )  # fmt: skip

    def put_ack(self, slot: int, flow: FlowHeader, psn: int, syndrome: int, msn: int) -> int:
        """Write an ACK or NAK (depending on the syndrome) for `psn`, with the 24-bit message sequence number."""
        return self.put_packet(
            slot, flow, wire.ACK, psn, extension=wire.WORD.pack(syndrome << 24 | msn & wire.PSN_MASK)
        )

    def put_sack(self, slot: int, flow: FlowHeader, answer: sack.Sack) -> int:
        """Write a SACK; the PSN of its BTH is the cumulative one."""
        return self.put_packet(slot, flow, wire.SACK, answer.cack, extension=answer.pack())

    def put_nack(self, slot: int, flow: FlowHeader, answer: sack.Nack) -> int:
        """Write a NACK, with the PSN of the packet in its BTH, too."""
        return self.put_packet(slot, flow, wire.NACK, answer.psn, extension=answer.pack())

    def put_cnp(self, slot: int, flow: FlowHeader) -> int:
        """Write a congestion notification for the flow's destination QP: BECN set, PSN 0, 16 reserved bytes of zero."""
        return self.put_packet(slot, flow, wire.CNP, 0, extension=bytes(wire.CNP_BYTES))


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
    trimmed:     the reason for a NACK, as the DSCP says (wire/sack.py); 0: no DSCP of trimmed packets.
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
    trimmed: int = 0
    reth_at: int = _NO_HEADER
    imm_at: int = _NO_HEADER
    aeth_at: int = _NO_HEADER


NO_KIND: Final = Kind()


# DSCP of a trimmed packet -> the reason for its NACK.
TRIMMED: Final[Mapping[int, int]] = {wire.DSCP_TRIMMED: sack.TRIMMED, wire.DSCP_TRIMMED_LAST: sack.TRIMMED_LAST}


def read_kind(key: bytes, trimmed: Mapping[int, int] = TRIMMED) -> Kind:
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
    reason = trimmed.get(tos >> 2, 0)
    return Kind(frame_bytes, state, opcode, payload_at, padded - pad, src, sport, tos, ce, reason, *headers)


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
    trimmed: frame -> its bytes, for those that a switch has cut to their first bytes. They have all headers and no
    ICRC, so a wrong bit in their BTH goes unnoticed: use them only for what another packet will prove.
    """

    __slots__ = ("ackreqs", "buffer", "dqpns", "kinds", "oks", "psns", "sounds", "trimmed")

    def __init__(self, buffer: FrameBuffer) -> None:
        self.buffer = buffer
        self.oks: list[bool] = []
        self.sounds: list[bool] = []
        self.kinds: list[Kind] = []
        self.dqpns: list[int] = []
        self.psns: list[int] = []
        self.ackreqs: list[bool] = []
        self.trimmed: dict[int, int] = {}

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

    def extension(self, i: int) -> memoryview:
        """The extended headers of frame i, as bytes; a view. ValueError when the frame is not ok."""
        kind, end = self.kinds[i], self._at(i, self.kinds[i].payload_at, "header")
        return self.buffer.mem[end - wire.EXTRA_BYTES[kind.opcode] : end]

    def _at(self, i: int, offset: int, name: str) -> int:
        """The offset in the buffer of an extended header of frame i."""
        if offset < 0 or not self.oks[i]:
            raise ValueError(f"frame {i} has no {name}")
        return self.buffer.starts[i] + offset


class Parser:
    """Parses batches of one version of IP, and caches the kinds of packets, up to a limit. One per receiver.

    trimmed: DSCPs of trimmed packets, with the reasons for their NACKs.
    """

    def __init__(self, kinds: int = _KINDS_KEPT, version: int = 4, trimmed: Mapping[int, int] = TRIMMED) -> None:
        layout = wire.LAYOUTS[version]
        self._layout, self._trimmed = layout, trimmed
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
            if kind.trimmed and kind.payload_at <= size < expected:
                received.trimmed[len(received.oks)] = size
            received.oks.append(ok)
            received.sounds.append(ok and crc32(mem[start + crc_at : start + expected], kind.state) == RESIDUE)
            received.kinds.append(kind)
            received.dqpns.append(qpn_word & wire.QPN_MASK)
            received.psns.append(psn_word & wire.PSN_MASK)
            received.ackreqs.append(psn_word >> 31 == 1)
        return received

    def _learn(self, key: bytes) -> Kind:
        kind = read_kind(key, self._trimmed)
        if kind is not NO_KIND:  # garbage must not evict valid kinds
            if len(self._kinds) >= self._most:
                self._kinds.clear()
            self._kinds[key] = kind
        return kind
