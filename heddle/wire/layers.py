"""From a frame to the packet in it: past VLAN tags, MPLS labels and tunnels, to the last header that carries others.

In:  an Ethernet frame, or its first bytes. Out: Layers; IndexError or struct.error if it ends within a header.
Mirrors (ERSPAN), overlays (VXLAN, Geneve) and provider networks wrap RoCEv2 packets. What is read is what tshark reads;
what is encrypted or rare has a name (`UNREAD`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

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
    """Read the headers of a frame."""
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


def _udp(found: Layers, at: int) -> _Next:
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
    IP + PROTO_UDP: _udp,
    UDP + 4789: _VXLAN,
    UDP + 8472: _VXLAN,  # Linux's default
    UDP + 4790: _gpe,
    UDP + 6081: _geneve,
    UDP + 6635: _mpls,
}
