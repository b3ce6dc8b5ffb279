"""Packets by hand: RoCEv2 frames of any opcode, field by field, right or deliberately wrong, as scapy layers.

In:  a Recipe (craftfields.py reads it from what a user chose), and the addresses at both ends.
Out: packets. InputError for a packet that the link does not take, or that has no ICRC.
Loading scapy takes a third of a second: import this module where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from heddle.base.problems import InputError, Problem
from heddle.wire import layout as wire
from heddle.wire.roce import BTH, EXTENDED

PAYLOAD_BYTES: Final = 32  # of a packet without --payload that is not a FIRST or MIDDLE
LAYERS: Final[Mapping[str, type[Packet]]] = {
    **{each.__name__: each for each in (Ether, IP, IPv6, UDP, BTH, *EXTENDED.values())},
    "Raw": Raw,
}
ICRC_RIGHT: Final = "right"  # of an ICRC
ICRC_WRONG: Final = "wrong"
_WIDE: Final = 240  # characters of a header's line
_ANSWERS: Final = frozenset({wire.ACK, wire.ATOMIC_ACK, wire.CNP})


@dataclass(frozen=True, slots=True)
class FieldSetting:
    """A field and its value. layers: names of headers, of which a packet has at most one. typed: for errors."""

    typed: str
    layers: tuple[str, ...]
    field: str
    value: Any


@dataclass(frozen=True, slots=True)
class PacketEnds:
    """The addresses, and the defaults of what depends on the fabric and the responder. mtu: of a link, in bytes."""

    src_mac: str
    dst_mac: str
    src_ip: str
    dst_ip: str
    mtu: int
    ib_mtu: int
    qpn: int
    psn: int
    rkey: int
    va: int
    sport: int
    nic: str = ""

    @property
    def ip_name(self) -> str:
        """`IP` or `IPv6`."""
        return "IPv6" if ip_address(self.src_ip).version == 6 else "IP"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Packets to craft. opcodes: in turn; the whole turn `count` times. payload, tos: None for the default.

    dscp, ecn: parts of the IPv4 TOS byte or IPv6 traffic class. icrc: `right`, `wrong` or a number.
    """

    opcodes: tuple[int, ...]
    settings: tuple[FieldSetting, ...]
    payload: bytes | None
    dscp: int | None
    ecn: int | None
    icrc: str | int
    count: int

    def number(self, field: str) -> int | None:
        """The value that was chosen for a field of the BTH or of the RETH; None: the default."""
        return next((int(each.value) for each in self.settings if each.field == field), None)

    def packets(self, ends: PacketEnds) -> list[Any]:
        """The packets as scapy layers. InputError when one is longer than the link allows, or has no ICRC."""
        self._check_version(ends)
        chosen = self.number("psn")
        psn = ends.psn if chosen is None else chosen
        made = []
        for opcode, payload, total in [*self._turn(ends)] * self.count:
            packet = self._packet(opcode, psn, payload, total, ends)
            made.append(packet)
            psn += max(1, -(-total // ends.ib_mtu)) if opcode == wire.READ_REQUEST else 1
            if (size := len(bytes(packet)) - wire.ETH_BYTES) > ends.mtu:
                why = f"is {size} bytes of IP, and the MTU of {ends.nic} is {ends.mtu}"
                hint = f"use --payload or --length of {ends.mtu - size + len(payload)} bytes or less"
                raise InputError(Problem("", opcode_name(opcode), why, hint))
        return made

    def _check_version(self, ends: PacketEnds) -> None:
        """InputError for fields of the other version of IP."""
        other = "IP" if ends.ip_name == "IPv6" else "IPv6"
        wrong = [each.typed for each in self.settings if each.layers == (other,)]
        names, hint = {"IP": "IPv4", "IPv6": "IPv6"}, f"use a field of {ends.ip_name}"
        if wrong:
            why = f"is a field of {names[other]}, and this fabric has {names[ends.ip_name]}"
            raise InputError(*(Problem("", typed, why, hint) for typed in wrong))

    def _turn(self, ends: PacketEnds) -> Iterator[tuple[int, bytes, int]]:
        """Each packet of a turn: its opcode, its payload, and the bytes of its message."""
        chosen, start = self.number("dmalen"), 0
        kinds = [opcode_name(opcode) for opcode in self.opcodes]
        for number, (opcode, kind) in enumerate(zip(self.opcodes, kinds, strict=True)):
            if "_FIRST" in kind or "_ONLY" in kind:
                start = number
            end = next((at for at in range(number, len(kinds)) if "_LAST" in kinds[at]), number)
            whole = sum("_FIRST" in each or "_MIDDLE" in each for each in kinds[start : end + 1]) * ends.ib_mtu
            one = PAYLOAD_BYTES if self.payload is None else len(self.payload)
            total = whole + one if chosen is None else chosen
            if self.payload is not None or opcode in wire.HEADERS_ONLY or opcode not in wire.EXTENSIONS:
                yield opcode, b"" if opcode in wire.HEADERS_ONLY else self.payload or b"", total
                continue
            size = ends.ib_mtu if "_FIRST" in kind or "_MIDDLE" in kind else max(0, total - whole)
            yield opcode, bytes(at % 255 + 1 for at in range(min(size, ends.ib_mtu))), total

    def _packet(self, opcode: int, psn: int, payload: bytes, total: int, ends: PacketEnds) -> Any:
        answer = opcode in _ANSWERS or "READ_RESPONSE" in opcode_name(opcode)
        tos = wire.TOS_ANSWER if opcode in _ANSWERS else wire.TOS_DATA
        if self.dscp is not None:
            tos = self.dscp << 2 | tos & wire.ECN_MASK
        if self.ecn is not None:
            tos = tos & ~wire.ECN_MASK | self.ecn
        packet = Ether(src=ends.src_mac, dst=ends.dst_mac)
        if ends.ip_name == "IP":
            packet /= IP(src=ends.src_ip, dst=ends.dst_ip, tos=tos, id=0, flags="DF")
        else:
            packet /= IPv6(src=ends.src_ip, dst=ends.dst_ip, tc=tos, fl=0, hlim=64)
        packet /= UDP(sport=ends.sport, dport=wire.ROCE_PORT, chksum=0)
        packet /= BTH(opcode=opcode, dqpn=ends.qpn, psn=psn & wire.PSN_MASK, ackreq=not answer, becn=opcode == wire.CNP)
        for name in wire.EXTENSIONS.get(opcode, ()):
            defaults = {"rkey": ends.rkey, "va": ends.va, "dmalen": total}
            kind = EXTENDED[name]
            packet /= kind(**{key: value for key, value in defaults.items() if key in fields_of(kind)})
        if payload:
            packet /= Raw(payload)
        for each in self.settings:
            layer = next((name for name in each.layers if LAYERS[name] in packet), "")
            if layer and each.field != "psn":  # the first PSN; the others follow
                packet[LAYERS[layer]].setfieldval("hlim" if (layer, each.field) == ("IPv6", "ttl") else each.field,
                                                   each.value)  # fmt: skip
        self._seal(packet)
        return packet

    def _seal(self, packet: Any) -> None:
        """Fix the ICRC's value, if it is not the right one, or chosen by its field."""
        bth = packet[BTH]
        if isinstance(self.icrc, int):
            bth.icrc = self.icrc
        elif bth.icrc is None:
            try:
                right = int.from_bytes(bytes(packet)[-wire.ICRC_BYTES :], "big")
            except ValueError as error:
                why, hint = f"cannot be computed: the packet is {error}", "give it as a number: --icrc 0x12345678"
                raise InputError(Problem("", f"--icrc {self.icrc}", why, hint)) from None
            bth.icrc = right ^ 0xFFFFFFFF if self.icrc == ICRC_WRONG else right


def opcode_name(opcode: int) -> str:
    """`RC_RDMA_WRITE_ONLY`, or the number of an opcode without a name."""
    return wire.OPCODE_NAMES.get(opcode, f"opcode {opcode:#04x}")


def layers_as_data(packet: Any) -> dict[str, dict[str, Any]]:
    """Each header of a packet -> its fields, as numbers and texts."""
    found: dict[str, dict[str, Any]] = {}
    while packet:
        fields = {}
        for each in packet.fields_desc:
            value = packet.getfieldval(each.name)
            if isinstance(value, bytes):
                value = value.hex()
            fields[each.name] = value if isinstance(value, int | str | None) else str(value)
        found[type(packet).__name__] = fields
        packet = packet.payload
    return found


def layers_as_text(packet: Any) -> list[str]:
    """Each header of a packet on a line, with its fields as scapy writes them."""
    lines = []
    while packet:
        fields = (f"{each.name}={each.i2repr(packet, packet.getfieldval(each.name))}" for each in packet.fields_desc)
        lines.append(f"{type(packet).__name__:<6} {' '.join(fields)}"[:_WIDE])
        packet = packet.payload
    return lines


def fields_of(kind: type[Packet]) -> dict[str, Any]:
    """The fields of a header, by name."""
    return {each.name: each for each in kind.fields_desc}
