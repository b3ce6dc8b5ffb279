"""Describe a frame in one line: RoCEv2 with its fields, and the other protocols of a fabric (BGP, ND, ARP, ICMP, ...).

In:  an Ethernet frame, or its first bytes.
Out: Dissected. `dissect` raises nothing: a truncated or malformed frame is described as far as it can be parsed.
The layers past VLAN tags, MPLS labels and tunnels, to the last header that carries others, are Layers: mirrors
(ERSPAN), overlays (VXLAN, Geneve) and provider networks wrap RoCEv2 packets. What is read is what tshark reads; what is
encrypted or rare has a name (`UNREAD`).
Made for thousands of frames a second. scapy (roce.py) reads every field, but takes a hundred times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from heddle.base.families import from_ipv6
from heddle.wire import layout as wire
from heddle.wire.layout import ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTO_UDP

# A protocol as one number: an Ethernet type, or an IP protocol or a UDP port behind these offsets.
ETHERNET: Final = -1
FRAGMENT: Final = -2  # of an IP packet, but not its first
MALFORMED: Final = -3
IP: Final = 0x10000
UDP: Final = 0x20000
_MPLS_TYPE: Final = 0x8847
_DEEPEST: Final = 24  # headers: more is an attack on the reader
_SNAP: Final = b"\xaa\xaa\x03\0\0\0"
_FIRST_TYPE: Final = 0x0600  # below, the field is a length
_TYPE = struct.Struct(">H")
_PPP_TYPES: Final[Mapping[int, int]] = {0x0021: ETHERTYPE_IPV4, 0x0057: ETHERTYPE_IPV6}
_NSH_TYPES: Final[Mapping[int, int]] = {1: ETHERTYPE_IPV4, 2: ETHERTYPE_IPV6, 3: ETHERNET, 5: _MPLS_TYPE}
_GPE_TYPES: Final[Mapping[int, int]] = {1: ETHERTYPE_IPV4, 2: ETHERTYPE_IPV6, 3: ETHERNET, 4: 0x894F, 5: _MPLS_TYPE}
_IPV6_OPTIONS: Final = frozenset({0, 43, 60, 135, 139, 140})
_ROUTING, _IPV6_FRAGMENT, _SEGMENTS = 43, 44, 4

# What may carry RoCEv2 and is not read.
UNREAD: Final[Mapping[int, str]] = {
    0x88E5: "MACsec", 0x8903: "FabricPath",
    IP + 50: "ESP", IP + 108: "IPComp", IP + 115: "L2TPv3",
    UDP + 1701: "L2TP", UDP + 2152: "GTP-U", UDP + 4500: "ESP", UDP + 6080: "GUE", UDP + 37008: "TZSP",
    UDP + 51820: "WireGuard",
}  # fmt: skip


@dataclass(slots=True)
class Layers:
    """Where a frame's innermost packet is.

    protocol: of what is at offset `at`: an Ethernet type, or IP + its number, or UDP + destination port.
    eth_at, ip_at: the last Ethernet header, and the last IP header behind it; ip_at is 0 if there is none.
    tags: PCPs of the VLAN tags between these two, outermost first. tunnels: names, outermost first.
    """

    frame: bytes
    protocol: int = ETHERNET
    at: int = 0
    eth_at: int = 0
    ip_at: int = 0
    tags: tuple[int, ...] = ()
    tunnels: tuple[str, ...] = ()

    def inside(self, tunnel: str) -> None:
        """Note a tunnel; labels and options of one tunnel may name it several times."""
        if self.tunnels[-1:] != (tunnel,):
            self.tunnels += (tunnel,)


def layers_of(frame: bytes) -> Layers:
    """Read the headers of a frame. IndexError or struct.error if it ends within a header."""
    found = Layers(frame)
    for _ in range(_DEEPEST):
        reader = _READERS.get(found.protocol)
        if reader is None:
            return found
        found.protocol, found.at = reader(found, found.at)
    found.protocol = MALFORMED
    return found


_Next = tuple[int, int]
_Reader = Callable[[Layers, int], _Next]


def _type_at(frame: bytes, at: int) -> int:
    return int(_TYPE.unpack_from(frame, at)[0])


def _ethernet(found: Layers, at: int) -> _Next:
    found.eth_at, found.ip_at, found.tags = at, 0, ()
    kind = _type_at(found.frame, at + 12)
    if kind < _FIRST_TYPE and found.frame[at + 14 : at + 20] == _SNAP:
        return _type_at(found.frame, at + 20), at + 22
    return kind, at + 14


def _vlan(found: Layers, at: int) -> _Next:
    if found.ip_at:  # a frame without addresses in an IP packet
        found.ip_at, found.tags = 0, ()
    found.tags += (found.frame[at] >> 5,)
    return _type_at(found.frame, at + 2), at + 4


def _ip(found: Layers, at: int) -> None:
    if found.ip_at:  # directly in another IP packet, whose tags are not its own
        found.tags = ()
    found.ip_at = at


def _ipv4(found: Layers, at: int) -> _Next:
    frame, head = found.frame, found.frame[at]
    _ip(found, at)
    protocol = frame[at + 9]
    if head >> 4 != 4 or head & 0x0F < 5 or len(frame) < at + 20:
        return MALFORMED, at
    return FRAGMENT if _type_at(frame, at + 6) & 0x1FFF else IP + protocol, at + 4 * (head & 0x0F)


def _ipv6(found: Layers, at: int) -> _Next:
    frame, protocol = found.frame, found.frame[at + 6]
    if frame[at] >> 4 != 6:
        return MALFORMED, at
    _ip(found, at)
    at += 40
    while protocol in _IPV6_OPTIONS or protocol == _IPV6_FRAGMENT:
        if protocol == _IPV6_FRAGMENT and _type_at(frame, at + 2) & 0xFFF8:
            return FRAGMENT, at
        if protocol == _ROUTING and frame[at + 2] == _SEGMENTS:
            found.inside("SRv6")
        protocol, at = frame[at], at + (8 if protocol == _IPV6_FRAGMENT else 8 * (frame[at + 1] + 1))
    return IP + protocol, at


def _authenticated(found: Layers, at: int) -> _Next:
    return IP + found.frame[at], at + 4 * (found.frame[at + 1] + 2)


def _udp_layer(found: Layers, at: int) -> _Next:
    return UDP + _type_at(found.frame, at + 2), at + 8


def _fixed(name: str, size: int, inner: int | None = None) -> _Reader:
    """A header of `size` bytes. inner: what follows; None: its last two bytes are the Ethernet type."""

    def read(found: Layers, at: int) -> _Next:
        if name:
            found.inside(name)
        return _type_at(found.frame, at + size - 2) if inner is None else inner, at + size

    return read


def _mpls(found: Layers, at: int) -> _Next:
    found.inside("MPLS")
    frame = found.frame
    while not frame[at + 2] & 1:
        at += 4
    at += 4
    inner = {4: ETHERTYPE_IPV4, 6: ETHERTYPE_IPV6}.get(frame[at] >> 4)
    if inner is not None:
        return inner, at
    # A pseudowire: its payload has no type. A control word of 4 bytes, which starts with 0, may precede a frame.
    word = not frame[at] >> 4 and _type_at(frame, at + 16) in _READERS and _type_at(frame, at + 12) not in _READERS
    return ETHERNET, at + 4 * word


def _gre(found: Layers, at: int) -> _Next:
    flags, kind = _type_at(found.frame, at), _type_at(found.frame, at + 2)
    size = 4 + 4 * (bool(flags & 0xC000) + bool(flags & 0x2000) + bool(flags & 0x1000))
    found.inside("ERSPAN" if kind in _ERSPAN else "GRE")
    if kind == _ERSPAN2 and not flags & 0x1000:  # type I has neither sequence number nor header
        return ETHERNET, at + size
    return kind, at + size


def _erspan3(found: Layers, at: int) -> _Next:
    return ETHERNET, at + 12 + 8 * (found.frame[at + 11] & 1)


_ERSPAN2, _ERSPAN3 = 0x88BE, 0x22EB
_ERSPAN: Final = (_ERSPAN2, _ERSPAN3)


def _geneve(found: Layers, at: int) -> _Next:
    found.inside("Geneve")
    return _type_at(found.frame, at + 2), at + 8 + 4 * (found.frame[at] & 0x3F)


def _gpe(found: Layers, at: int) -> _Next:
    found.inside("VXLAN-GPE")
    return _GPE_TYPES.get(found.frame[at + 3], MALFORMED), at + 8


def _nsh(found: Layers, at: int) -> _Next:
    found.inside("NSH")
    return _NSH_TYPES.get(found.frame[at + 3], MALFORMED), at + 4 * (found.frame[at + 1] & 0x3F)


def _pppoe(found: Layers, at: int) -> _Next:
    found.inside("PPPoE")
    return _PPP_TYPES.get(_type_at(found.frame, at + 6), MALFORMED), at + 8


def _trill(found: Layers, at: int) -> _Next:
    found.inside("TRILL")
    return ETHERNET, at + 6 + 4 * (_type_at(found.frame, at) >> 6 & 0x1F)


_VXLAN: Final = _fixed("VXLAN", 8, ETHERNET)
_READERS: Final[Mapping[int, _Reader]] = {
    ETHERNET: _ethernet,
    **dict.fromkeys((0x8100, 0x88A8, 0x9100, 0x9200, 0x9300), _vlan),
    ETHERTYPE_IPV4: _ipv4,
    ETHERTYPE_IPV6: _ipv6,
    _MPLS_TYPE: _mpls,
    0x8848: _mpls,
    0x6558: _fixed("", 0, ETHERNET),
    0x8864: _pppoe,
    0x88E7: _fixed("PBB", 4, ETHERNET),
    0x8909: _fixed("CMD", 8),
    0x8926: _fixed("VN-Tag", 6),
    0x892F: _fixed("HSR", 6),
    0x893F: _fixed("E-Tag", 8),
    0x894F: _nsh,
    0x22F3: _trill,
    _ERSPAN2: _fixed("ERSPAN", 8, ETHERNET),
    _ERSPAN3: _erspan3,
    IP + 4: _fixed("IP in IP", 0, ETHERTYPE_IPV4),
    IP + 41: _fixed("IP in IP", 0, ETHERTYPE_IPV6),
    IP + 47: _gre,
    IP + 51: _authenticated,
    IP + 97: _fixed("EtherIP", 2, ETHERNET),
    IP + 137: _mpls,
    IP + 143: _fixed("Ethernet in IP", 0, ETHERNET),
    IP + PROTO_UDP: _udp_layer,
    UDP + 4789: _VXLAN,
    UDP + 8472: _VXLAN,  # Linux's default
    UDP + 4790: _gpe,
    UDP + 6081: _geneve,
    UDP + 6635: _mpls,
}


ROCE_V1: Final = "RoCE v1"  # the kind of its packets
ROCE_TRIMMED: Final = "RoCE trimmed"  # by a switch: its first bytes, without ICRC
ROCE_CUT: Final = "RoCE cut"  # port 4791, but the capture has not enough of the packet
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
_MOST_NAMED: Final = 3  # VLAN tags and tunnels of a packet
_MOST_MESSAGES: Final = 16  # of BGP, that a line names
_NAMES: Final[Mapping[int, str]] = {**UNREAD, 0x88CC: "LLDP"}

_TCP = struct.Struct(">HHIIBB")
_BTH = struct.Struct(">BBHII")


Field = str | int | bool


@dataclass(frozen=True, slots=True)
class Dissected:
    """The description of a frame's innermost packet. src and dst are IP addresses if it has any, else MAC addresses.

    kind:   the protocol under which it is counted: `RoCE data`, `RoCE ACK`, `BGP`, ...
    text:   the rest of its line.
    fields: of RoCE packets: opcode, qpn (of the destination), psn, ack_request, payload_bytes, sport, ecn, dscp, fecn,
            becn; ACKs and NAKs also have syndrome and msn, READ requests read_bytes, and packets with VLAN tags their
            pcp, outermost first (`3`, `0/3`). RoCE v1 has opcode, qpn and psn.
    ip_at:  of RoCEv2 packets: the offset of the IP header; 0 of all others. opcode: of RoCEv2 packets, as a number.
    tunnel: what carries the packet, outermost first: `VXLAN`, `GRE / MPLS`; empty without.
    pauses: of pause frames: class (`all` in IEEE 802.3 PAUSE) and quanta.
    """

    kind: str
    src: str
    dst: str
    text: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    ip_at: int = 0
    opcode: int = -1
    tunnel: str = ""
    pauses: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Packet:
    """The innermost packet: its headers, its addresses, and the offset of its payload."""

    layers: Layers
    data: bytes
    at: int
    src: str
    dst: str
    tos: int = 0

    def described(
        self, kind: str, text: str = "", fields: Mapping[str, Field] | None = None, opcode: int = -1
    ) -> Dissected:
        ip_at = self.layers.ip_at if opcode >= 0 else 0
        tunnel = " / ".join(self.layers.tunnels[:_MOST_NAMED])
        return Dissected(kind, self.src, self.dst, text, fields or {}, ip_at, opcode, tunnel)


def dissect(frame: bytes, wire_bytes: int = 0) -> Dissected:
    """Describe one frame. wire_bytes: its length on the wire, if the capture may have cut it; 0: not known."""
    try:
        return _described(layers_of(frame), wire_bytes)
    except (struct.error, IndexError):
        known = len(frame) >= 12
        return Dissected("other", _mac(frame[6:12]) if known else "?", _mac(frame[:6]) if known else "?", "cut short")


def _described(found: Layers, wire_bytes: int) -> Dissected:
    packet, protocol = _packet(found), found.protocol
    if protocol >= UDP:
        return _udp(packet, protocol - UDP, wire_bytes)
    if protocol in _PARSERS:
        return _PARSERS[protocol](packet)
    if protocol in _NAMES:
        return packet.described(_NAMES[protocol], "not read" if protocol in UNREAD else "")
    if protocol == FRAGMENT:
        at = 8 * (int.from_bytes(found.frame[found.ip_at + 6 : found.ip_at + 8], "big") & 0x1FFF)
        return packet.described("other", "IPv6 fragment" if packet.src.count(":") else f"IPv4 fragment at byte {at}")
    if protocol == MALFORMED:
        return packet.described("other", "malformed headers")
    said = f"IP protocol {protocol - IP}" if protocol >= IP else f"Ethernet type {protocol:#06x}"
    return packet.described("other", said)


def _packet(found: Layers) -> _Packet:
    frame, at = found.frame, found.ip_at
    if not at:
        mac = found.eth_at
        return _Packet(found, frame, found.at, _mac(frame[mac + 6 : mac + 12]), _mac(frame[mac : mac + 6]))
    if frame[at] >> 4 == 4:
        _, tos, _, _, _, _, _, _, src, dst = wire.IPV4_HEADER.unpack_from(frame, at)
        return _Packet(found, frame, found.at, _dotted(src), _dotted(dst), tos)
    head, _, _, _, src, dst = wire.IPV6_HEADER.unpack_from(frame, at)
    return _Packet(found, frame, found.at, _ipv6_text(src), _ipv6_text(dst), head >> 20 & 0xFF)


def _icmp(packet: _Packet) -> Dissected:
    kind = packet.data[packet.at]
    return packet.described("ICMP", _ICMP.get(kind, f"type {kind}"))


def _icmp6(packet: _Packet) -> Dissected:
    kind = packet.data[packet.at]
    if kind in _ND:
        return packet.described("ND", _ND[kind])
    return packet.described("ICMPv6", _ICMP6.get(kind, f"type {kind}"))


def _udp(packet: _Packet, dport: int, wire_bytes: int) -> Dissected:
    sport, _, size, _ = wire.UDP_HEADER.unpack_from(packet.data, packet.at - wire.UDP_BYTES)
    if UDP + dport in UNREAD:
        return packet.described(UNREAD[UDP + dport], "not read")
    if dport != wire.ROCE_PORT:
        return packet.described("UDP", f"ports {sport} > {dport}, {size - wire.UDP_BYTES} B")
    if 0 < size < _LEAST_ROCE:
        return packet.described("UDP", f"port {dport}, {size - wire.UDP_BYTES} B: too short for RoCEv2")
    if len(packet.data) < packet.at + wire.BTH_BYTES:
        return packet.described(ROCE_CUT, f"port {dport}, cut before the BTH")
    return _roce(packet, sport, size, trimmed=_trimmed(packet, size, wire_bytes))


def _trimmed(packet: _Packet, udp_bytes: int, wire_bytes: int) -> bool:
    """Whether a switch has cut the packet: between switches its IP length is less than that of UDP behind it, at a host
    the frame is shorter than its IP length (docs/queues.md).
    """
    ip = packet.layers.ip_at
    v6 = packet.data[ip] >> 4 == 6
    size = int.from_bytes(packet.data[ip + 4 : ip + 6]) + wire.IPV6_BYTES if v6 else _type_at(packet.data, ip + 2)
    return ip + size < packet.at - wire.UDP_BYTES + udp_bytes or 0 < wire_bytes < ip + size


def _roce(packet: _Packet, sport: int, udp_bytes: int, *, trimmed: bool) -> Dissected:
    at = packet.at
    opcode, flags, _, qpn_word, psn_word = _BTH.unpack_from(packet.data, at)
    payload = udp_bytes - _LEAST_ROCE - wire.EXTRA_BYTES.get(opcode, 0) - (flags >> 4 & 3)
    name, ecn = wire.OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}"), _ECN[packet.tos & wire.ECN_MASK]
    fields: dict[str, Field] = {
        "opcode": name,
        "qpn": qpn_word & wire.QPN_MASK,
        "psn": psn_word & wire.PSN_MASK,
        "ack_request": bool(psn_word >> 31),
        "payload_bytes": max(payload, 0),
        "sport": sport,
        "ecn": ecn,
        "dscp": packet.tos >> 2,
        "fecn": bool(qpn_word >> 31),
        "becn": bool(qpn_word >> 30 & 1),
    }
    if packet.layers.tags:
        fields["pcp"] = "/".join(map(str, packet.layers.tags[:_MOST_NAMED]))
    words = [f"qp {fields['qpn']:<8} psn {fields['psn']:<8} {fields['payload_bytes']:>4} B", name]
    kind = ROCE_TRIMMED if trimmed else "RoCE data" if opcode in wire.EXTENSIONS else "RoCE other"
    behind = at + wire.BTH_BYTES
    if trimmed:
        words.append("trimmed")
    elif opcode == wire.CNP:
        kind = "RoCE CNP"
    elif opcode == wire.ACK and len(packet.data) < behind + wire.AETH_BYTES:
        kind, words = ROCE_CUT, [*words, "cut before the AETH"]
    elif opcode == wire.ACK:
        (word,) = wire.WORD.unpack_from(packet.data, behind)
        syndrome, msn = word >> 24, word & wire.PSN_MASK
        fields |= {"syndrome": syndrome, "msn": msn}
        kind = _ANSWERS.get(syndrome & wire.SYNDROME_KIND, "RoCE other")
        reserved = "reserved " if kind == "RoCE other" else ""
        words += [f"msn {msn}"] if kind == "RoCE ACK" else [f"msn {msn}", f"{reserved}syndrome {syndrome:#04x}"]
    elif opcode == wire.READ_REQUEST and len(packet.data) >= behind + wire.RETH_BYTES:
        fields["read_bytes"] = wire.RETH.unpack_from(packet.data, behind)[2]
    words += [word for word, said in (("ack?", fields["ack_request"]), ("becn", fields["becn"])) if said]
    words += [] if ecn == "not-ect" else ["CE" if ecn == "ce" else ecn]
    return packet.described(kind, "  ".join(words), fields, opcode)


def _roce_v1(packet: _Packet) -> Dissected:
    """InfiniBand's transport behind a global route header (GRH) of 40 bytes, which has IPv6's layout."""
    *_, source, destination = wire.IPV6_HEADER.unpack_from(packet.data, packet.at)
    opcode, _, _, qpn_word, psn_word = _BTH.unpack_from(packet.data, packet.at + wire.IPV6_HEADER.size)
    fields: dict[str, Field] = {
        "opcode": wire.OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}"),
        "qpn": qpn_word & wire.QPN_MASK,
        "psn": psn_word & wire.PSN_MASK,
    }
    text = f"qp {fields['qpn']:<8} psn {fields['psn']:<8} {fields['opcode']}"
    return replace(packet, src=from_ipv6(source), dst=from_ipv6(destination)).described(ROCE_V1, text, fields)


_LEAST_ROCE: Final = wire.UDP_BYTES + wire.BTH_BYTES + wire.ICRC_BYTES
_ANSWERS: Final = {0x00: "RoCE ACK", wire.RNR_NAK: "RoCE RNR", wire.NAK_SEQUENCE & wire.SYNDROME_KIND: "RoCE NAK"}


def _tcp(packet: _Packet) -> Dissected:
    sport, dport, _, _, offset, flags = _TCP.unpack_from(packet.data, packet.at)
    said = "+".join(name for bit, name in _TCP_FLAGS if flags & bit)
    if _BGP_PORT in (sport, dport):
        messages = _bgp(packet.data, packet.at + 4 * (offset >> 4))
        return packet.described("BGP", messages or f"TCP {said}")
    return packet.described("TCP", f"ports {sport} > {dport} {said}".rstrip())


def _bgp(data: bytes, at: int) -> str:
    """The types of the messages at the start of a segment; empty if it does not start with a message."""
    names: list[str] = []
    while data[at : at + 16] == _BGP_MARKER and len(data) >= at + 19 and len(names) < _MOST_MESSAGES:
        size, kind = int.from_bytes(data[at + 16 : at + 18], "big"), data[at + 18]
        names.append(_BGP_TYPES.get(kind, f"type {kind}"))
        at += max(size, 19)
    return ", ".join(names)


def _arp(packet: _Packet) -> Dissected:
    frame, at = packet.data, packet.at
    operation, asks, wanted = frame[at + 7], frame[at + 14 : at + 18], frame[at + 24 : at + 28]
    if len(wanted) < 4:
        raise IndexError
    if operation == 1:
        return packet.described("ARP", f"who has {_dotted(wanted)}? tell {_dotted(asks)}")
    return packet.described("ARP", f"{_dotted(asks)} is at {_mac(frame[at + 8 : at + 14])}")


def _pause(packet: _Packet) -> Dissected:
    """IEEE 802.3 PAUSE, and 802.1Qbb's priority flow control: classes, and quanta of 512 bit times for each."""
    operation, first = struct.unpack_from(">HH", packet.data, packet.at)
    if operation == 0x0101:
        quanta = struct.unpack_from(">8H", packet.data, packet.at + 4)
        pauses = tuple((str(c), quanta[c]) for c in _PFC_CLASSES if first >> c & 1)
        said = ", ".join(f"class {c}: {count} quanta" for c, count in pauses)
        return replace(packet.described("PFC", said or "no class"), pauses=pauses)
    if operation == 0x0001:
        return replace(packet.described("PAUSE", f"{first} quanta"), pauses=(("all", first),))
    return packet.described("other", f"MAC control {operation:#06x}")


_PARSERS: Final[Mapping[int, Callable[[_Packet], Dissected]]] = {
    IP + 1: _icmp, IP + 6: _tcp, IP + 58: _icmp6, 0x0806: _arp, 0x8808: _pause, wire.ETHERTYPE_ROCE_V1: _roce_v1,
}  # fmt: skip


@lru_cache(maxsize=4096)  # formatting an address takes longer than parsing the rest of its packet
def _ipv6_text(address: bytes) -> str:
    return str(IPv6Address(address))


@lru_cache(maxsize=4096)
def _dotted(address: bytes) -> str:
    return f"{address[0]}.{address[1]}.{address[2]}.{address[3]}"


def _mac(address: bytes) -> str:
    return address.hex(":")
