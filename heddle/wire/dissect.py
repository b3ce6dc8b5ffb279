"""Describe a frame in one line: RoCEv2 with its fields, and the other protocols of a fabric (BGP, ND, ARP, ICMP, ...).

In:  an Ethernet frame, or its first bytes.
Out: Dissected. Nothing raises: a truncated or malformed frame is described as far as it can be parsed.
Made for thousands of frames a second. scapy (heddle/wire/roce.py) reads every field, but takes a hundred times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from heddle.base.families import from_ipv6
from heddle.wire import layout as wire

ROCE_V1: Final = "RoCE v1"  # the kind of its packets
_BGP_PORT: Final = 179
_BGP_MARKER: Final = b"\xff" * 16
_BGP_TYPES: Final = {1: "OPEN", 2: "UPDATE", 3: "NOTIFICATION", 4: "KEEPALIVE", 5: "ROUTE-REFRESH"}
_TCP_FLAGS: Final = ((0x02, "SYN"), (0x01, "FIN"), (0x04, "RST"), (0x10, "ACK"))
_ICMP: Final = {0: "echo reply", 3: "unreachable", 5: "redirect", 8: "echo request", 11: "time exceeded"}
_ICMP6: Final = {
    1: "unreachable", 2: "packet too big", 3: "time exceeded", 128: "echo request", 129: "echo reply",
    130: "MLD query", 131: "MLD report", 132: "MLD done", 143: "MLD report",
}  # fmt: skip
_ND: Final = {
    133: "router solicitation", 134: "router advertisement", 135: "neighbour solicitation",
    136: "neighbour advertisement", 137: "redirect",
}  # fmt: skip
_ECN: Final = ("not-ect", "ect1", "ect0", "ce")
_PFC_CLASSES: Final = range(8)
_IPV6_EXTENSIONS: Final = frozenset({0, 43, 60})  # hop by hop, routing, destination
_IPV6_FRAGMENT: Final = 44

_TCP = struct.Struct(">HHIIBB")
_BTH = struct.Struct(">BBHII")


Field = str | int | bool


@dataclass(frozen=True, slots=True)
class Dissected:
    """The description of a frame. src and dst are IP addresses if it has any, else MAC addresses.

    kind:   the protocol under which it is counted: `RoCE data`, `RoCE ACK`, `BGP`, ...
    text:   the rest of its line.
    fields: of RoCE packets: opcode, qpn (of the destination), psn, ack_request, payload_bytes, sport, ecn, fecn, becn;
            ACKs and NAKs also have syndrome and msn. RoCE v1 has opcode, qpn and psn.
    ip_at:  of RoCEv2 packets: the offset of the IP header; 0 of all others.
    """

    kind: str
    src: str
    dst: str
    text: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    ip_at: int = 0


@dataclass(frozen=True, slots=True)
class _Packet:
    """An IP packet: its addresses, and the offsets of its header and its payload."""

    data: bytes
    ip_at: int
    at: int
    src: str
    dst: str
    tos: int

    def described(self, kind: str, text: str = "", fields: Mapping[str, Field] | None = None) -> Dissected:
        return Dissected(kind, self.src, self.dst, text, fields or {}, self.ip_at if fields else 0)


def dissect(frame: bytes) -> Dissected:
    """Describe one frame."""
    try:
        return _ethernet(frame)
    except (struct.error, IndexError):
        known = len(frame) >= 12
        return Dissected("other", _mac(frame[6:12]) if known else "?", _mac(frame[:6]) if known else "?", "cut short")


def _ethernet(frame: bytes) -> Dissected:
    at, ethertype = 14, int.from_bytes(frame[12:14], "big")
    while ethertype in (0x8100, 0x88A8) and len(frame) >= at + 4:  # VLAN tags
        ethertype = int.from_bytes(frame[at + 2 : at + 4], "big")
        at += 4
    if ethertype == 0x0800:
        return _ipv4(frame, at)
    if ethertype == 0x86DD:
        return _ipv6(frame, at)
    src, dst = _mac(frame[6:12]), _mac(frame[:6])
    if ethertype in _WITHOUT_IP:
        return _WITHOUT_IP[ethertype](frame, at, src, dst)
    if ethertype == 0x88CC:
        return Dissected("LLDP", src, dst)
    if len(frame) < 14:
        raise IndexError
    return Dissected("other", src, dst, f"Ethernet type {ethertype:#06x}")


def _ipv4(frame: bytes, at: int) -> Dissected:
    head, tos, _, _, fragment, _, protocol, _, src, dst = wire.IPV4_HEADER.unpack_from(frame, at)
    packet = _Packet(frame, at, at + 4 * (head & 0x0F), _dotted(src), _dotted(dst), tos)
    if fragment & 0x1FFF:
        return packet.described("other", f"IPv4 fragment at byte {8 * (fragment & 0x1FFF)}")
    return _transport(packet, protocol)


def _ipv6(frame: bytes, at: int) -> Dissected:
    head, _, protocol, _, src, dst = wire.IPV6_HEADER.unpack_from(frame, at)
    ip_at, at = at, at + wire.IPV6_HEADER.size
    while protocol in _IPV6_EXTENSIONS:
        protocol, at = frame[at], at + 8 * (frame[at + 1] + 1)
    packet = _Packet(frame, ip_at, at, _ipv6_text(src), _ipv6_text(dst), head >> 20 & 0xFF)
    if protocol == _IPV6_FRAGMENT:
        return packet.described("other", "IPv6 fragment")
    return _transport(packet, protocol)


def _transport(packet: _Packet, protocol: int) -> Dissected:
    if protocol == 17:
        return _udp(packet)
    if protocol == 6:
        return _tcp(packet)
    if protocol in (1, 58):
        kind = packet.data[packet.at]
        if protocol == 58 and kind in _ND:
            return packet.described("ND", _ND[kind])
        names = _ICMP if protocol == 1 else _ICMP6
        return packet.described("ICMP" if protocol == 1 else "ICMPv6", names.get(kind, f"type {kind}"))
    return packet.described("other", f"IP protocol {protocol}")


def _udp(packet: _Packet) -> Dissected:
    sport, dport, size, _ = wire.UDP_HEADER.unpack_from(packet.data, packet.at)
    if dport == wire.ROCE_PORT:
        return _roce(packet, sport, size)
    return packet.described("UDP", f"ports {sport} > {dport}, {size - wire.UDP_BYTES} B")


def _roce(packet: _Packet, sport: int, udp_bytes: int) -> Dissected:
    at = packet.at + wire.UDP_BYTES
    opcode, flags, _, qpn_word, psn_word = _BTH.unpack_from(packet.data, at)
    payload = (
        udp_bytes
        - wire.UDP_BYTES
        - wire.BTH_BYTES
        - wire.EXTRA_BYTES.get(opcode, 0)
        - wire.ICRC_BYTES
        - (flags >> 4 & 3)
    )
    name, ecn = wire.OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}"), _ECN[packet.tos & wire.ECN_MASK]
    fields: dict[str, Field] = {
        "opcode": name,
        "qpn": qpn_word & wire.QPN_MASK,
        "psn": psn_word & wire.PSN_MASK,
        "ack_request": bool(psn_word >> 31),
        "payload_bytes": max(payload, 0),
        "sport": sport,
        "ecn": ecn,
        "fecn": bool(qpn_word >> 31),
        "becn": bool(qpn_word >> 30 & 1),
    }
    words = [f"qp {fields['qpn']:<8} psn {fields['psn']:<8} {fields['payload_bytes']:>4} B", name]
    kind = "RoCE data" if opcode in wire.EXTENSIONS else "RoCE other"
    if opcode == wire.CNP:
        kind = "RoCE CNP"
    elif opcode == wire.ACK:
        syndrome, msn = _aeth(packet.data, at + wire.BTH_BYTES)
        fields |= {"syndrome": syndrome, "msn": msn}
        kind = _ANSWERS.get(syndrome & wire.SYNDROME_KIND, "RoCE ACK")
        words += [f"msn {msn}"] if kind == "RoCE ACK" else [f"msn {msn}", f"syndrome {syndrome:#04x}"]
    words += [word for word, said in (("ack?", fields["ack_request"]), ("becn", fields["becn"])) if said]
    words += [] if ecn == "not-ect" else ["CE" if ecn == "ce" else ecn]
    return packet.described(kind, "  ".join(words), fields)


def _roce_v1(frame: bytes, at: int, src: str, dst: str) -> Dissected:
    """InfiniBand's transport behind a global route header (GRH) of 40 bytes, which has IPv6's layout."""
    *_, source, destination = wire.IPV6_HEADER.unpack_from(frame, at)
    opcode, _, _, qpn_word, psn_word = _BTH.unpack_from(frame, at + wire.IPV6_HEADER.size)
    fields: dict[str, Field] = {
        "opcode": wire.OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}"),
        "qpn": qpn_word & wire.QPN_MASK,
        "psn": psn_word & wire.PSN_MASK,
    }
    text = f"qp {fields['qpn']:<8} psn {fields['psn']:<8} {fields['opcode']}"
    return Dissected(ROCE_V1, from_ipv6(source), from_ipv6(destination), text, fields)


_ANSWERS: Final = {0x00: "RoCE ACK", wire.RNR_NAK: "RoCE RNR", wire.NAK_SEQUENCE & wire.SYNDROME_KIND: "RoCE NAK"}


def _aeth(data: bytes, at: int) -> tuple[int, int]:
    """Syndrome and message sequence number."""
    (word,) = wire.WORD.unpack_from(data, at)
    return word >> 24, word & wire.PSN_MASK


def _tcp(packet: _Packet) -> Dissected:
    sport, dport, _, _, offset, flags = _TCP.unpack_from(packet.data, packet.at)
    said = "+".join(name for bit, name in _TCP_FLAGS if flags & bit)
    if _BGP_PORT in (sport, dport):
        messages = _bgp(packet.data[packet.at + 4 * (offset >> 4) :])
        return packet.described("BGP", messages or f"TCP {said}")
    return packet.described("TCP", f"ports {sport} > {dport} {said}".rstrip())


def _bgp(stream: bytes) -> str:
    """The types of the messages at the start of a segment; empty if it does not start with a message."""
    names, at = [], 0
    while stream[at : at + 16] == _BGP_MARKER and len(stream) >= at + 19:
        size, kind = int.from_bytes(stream[at + 16 : at + 18], "big"), stream[at + 18]
        names.append(_BGP_TYPES.get(kind, f"type {kind}"))
        at += max(size, 19)
    return ", ".join(names)


def _arp(frame: bytes, at: int, src: str, dst: str) -> Dissected:
    operation, asks, wanted = frame[at + 7], frame[at + 14 : at + 18], frame[at + 24 : at + 28]
    if len(wanted) < 4:
        raise IndexError
    if operation == 1:
        return Dissected("ARP", src, dst, f"who has {_dotted(wanted)}? tell {_dotted(asks)}")
    return Dissected("ARP", src, dst, f"{_dotted(asks)} is at {_mac(frame[at + 8 : at + 14])}")


def _pause(frame: bytes, at: int, src: str, dst: str) -> Dissected:
    """IEEE 802.3 PAUSE, and 802.1Qbb's priority flow control: classes, and quanta of 512 bit times for each."""
    operation = int.from_bytes(frame[at : at + 2], "big")
    if operation == 0x0101:
        enabled, *quanta = struct.unpack_from(">9H", frame, at + 2)
        said = ", ".join(f"class {c}: {quanta[c]} quanta" for c in _PFC_CLASSES if enabled >> c & 1)
        return Dissected("PFC", src, dst, said or "no class")
    if operation == 0x0001:
        return Dissected("PAUSE", src, dst, f"{int.from_bytes(frame[at + 2 : at + 4], 'big')} quanta")
    return Dissected("other", src, dst, f"MAC control {operation:#06x}")


# What is parsed of the frames without an IP header, by Ethernet type.
_WITHOUT_IP: Final[Mapping[int, Callable[[bytes, int, str, str], Dissected]]] = {
    0x0806: _arp,
    0x8808: _pause,
    wire.ETHERTYPE_ROCE_V1: _roce_v1,
}


@lru_cache(maxsize=4096)  # formatting an address takes longer than parsing the rest of its packet
def _ipv6_text(address: bytes) -> str:
    return str(IPv6Address(address))


@lru_cache(maxsize=4096)
def _dotted(address: bytes) -> str:
    return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}"


def _mac(address: bytes) -> str:
    return address.hex(":")
