"""Build RoCEv2 frames in batches, for AF_PACKET.

In:  FlowHeader (one per queue pair and direction) and payload bytes.
Out: frames in a SendBatch, ready for one sendmmsg.
The constant part of all packets of a kind (addresses, lengths, checksum, opcode, destination QP) is built once and kept
as a Template, with the state of the ICRC after it. Each packet adds its PSN word, its payload and one zlib call.
As in soft-RoCE and NICs: UDP checksum 0, also in IPv6 (rxe_net.c prepare_udp_hdr; RFC 6935 allows it if another check
covers the headers, here the ICRC); IPv4 has DF and identification 0; the IPv6 flow label is 0 (prepare_ipv6_hdr), so it
does not distinguish flows. parse.py reads frames.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from copy import copy
from dataclasses import dataclass
from typing import Final, TypeAlias

from heddle.endpoints.nic.framebuffer import BATCH, FrameBuffer, frame_bytes_for
from heddle.wire import layout as wire
from heddle.wire.icrc import prefix_state

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

    def put_cnp(self, slot: int, flow: FlowHeader) -> int:
        """Write a congestion notification for the flow's destination QP: BECN set, PSN 0, 16 reserved bytes of zero."""
        return self.put_packet(slot, flow, wire.CNP, 0, extension=bytes(wire.CNP_BYTES))
