"""Packets by hand: RoCEv2 frames of any opcode, field by field, right or deliberately wrong, as scapy layers.

In:  what a user typed (words of OPTIONS, and `BTH.pkey` = value, as a Recipe), and the addresses at both ends.
Out: packets. InputError with all errors: an unknown name, a value that does not fit its field, a field that the opcode
does not have, a packet that the link does not take, or that has no ICRC.
Loading scapy takes a third of a second: import this module where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

from scapy.fields import Field, IP6Field, IPField, MACField, PacketListField, _BitField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from heddle.base.problems import InputError, Problem, Problems, did_you_mean, nearest
from heddle.wire import layout as wire
from heddle.wire.roce import BTH, EXTENDED

MOST_PACKETS: Final = 1000
ECN: Final = {"not-ect": 0, "ect1": 1, "ect0": 2, "ce": 3}
# Option -> the headers that may carry it, and its field there. dscp and ecn are parts of one byte.
OPTIONS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "qpn": (("BTH",), "dqpn"),
    "psn": (("BTH",), "psn"),
    "rkey": (("RETH", "AtomicETH"), "rkey"),
    "va": (("RETH", "AtomicETH"), "va"),
    "length": (("RETH",), "dmalen"),
    "imm": (("ImmDt",), "data"),
    "sport": (("UDP",), "sport"),
    "ttl": (("IP", "IPv6"), "ttl"),
}
_BYTES: Final = frozenset({("BTH", "pad"), ("Raw", "load")})
_SPECIAL_BITS: Final = {("BTH", "icrc"): 32}
_EXTENDED: Final = frozenset(kind.__name__ for kind in EXTENDED.values())
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*")


def read_recipe(chosen: Mapping[str, Any]) -> Recipe:
    """Parse what a user chose; None and missing words are defaults. InputError with all errors.

    Words: those of OPTIONS, opcode (names or numbers, several with commas), payload, dscp, ecn, icrc, count, and set: a
    mapping, or a list of texts `FIELD=VALUE`.
    """
    problems = Problems()
    opcodes = tuple(_opcodes(chosen.get("opcode"), problems))
    settings = [*_option_settings(chosen, problems), *_set_settings(chosen.get("set") or (), opcodes, problems)]
    for each in settings:
        _check_carried(each, opcodes, problems)
    payload = _payload(chosen.get("payload"), opcodes, problems)
    dscp = _ranged("--dscp", chosen.get("dscp"), 63, "a DSCP has 6 bits", problems)
    ecn = _ecn(chosen.get("ecn"), problems)
    icrc = _icrc(chosen.get("icrc"), problems)
    least = f"send 1 to {MOST_PACKETS} packets"
    count = _ranged("--count", chosen.get("count"), MOST_PACKETS, least, problems)
    if count is not None and not 0 < count * max(1, len(opcodes)) <= MOST_PACKETS:
        problems.add(where="", what=f"--count {count}", why=f"is {count * len(opcodes)} packets", hint=least)
    problems.raise_if_any()
    return Recipe(opcodes, tuple(settings), payload, dscp, ecn, icrc, 1 if count is None else count)


def _opcodes(given: Any, problems: Problems) -> Iterator[int]:
    words: Iterable[Any] = ["RC_RDMA_WRITE_ONLY"] if given is None else [given] if isinstance(given, int) else given
    numbers = {name: opcode for opcode, name in wire.OPCODE_NAMES.items()}
    for word in words.split(",") if isinstance(words, str) else words:
        name = str(word).strip().upper()
        found = next((numbers[each] for each in (name, f"RC_{name}") if each in numbers), None)
        if found is None:
            try:
                found = int(str(word), 0)
            except ValueError:
                hint = (
                    _meant(name, numbers)
                    or _meant(f"RC_{name}", numbers)
                    or "run ./inv craft --list to list all opcodes"
                )
                problems.add(where="", what=f"--opcode {word}", why="is not an opcode", hint=hint)
                continue
        if not 0 <= found <= 0xFF:
            problems.add(where="", what=f"--opcode {word}", why="does not fit 8 bits", hint="use 0x00 to 0xff")
            continue
        yield found


def _meant(word: str, names: Iterable[str]) -> str:
    """A hint with the most similar name, in any case; empty if there is none."""
    by_key = {name.lower(): name for name in names}
    near = nearest(word, by_key)
    return f"did you mean {by_key[near]}?" if near else ""


def _option_settings(chosen: Mapping[str, Any], problems: Problems) -> Iterator[FieldSetting]:
    for word, (layers, field) in OPTIONS.items():
        if (value := chosen.get(word)) is not None:
            typed = f"--{word} {value}"
            found = _value(typed, layers[0], field, value, problems)
            if found is not None:
                yield FieldSetting(typed, layers, field, found)


def _set_settings(given: Any, opcodes: Sequence[int], problems: Problems) -> Iterator[FieldSetting]:
    rows = [(str(key), value) for key, value in given.items()] if isinstance(given, Mapping) else [
        (text.partition("=")[0].strip(), text.partition("=")[2].strip() if "=" in text else None) for text in given
    ]  # fmt: skip
    for name, value in rows:
        typed = f"--set {name}={value}" if value is not None else f"--set {name}"
        if value is None:
            problems.add(where="", what=typed, why="has no value", hint="write --set BTH.pkey=0x8001")
            continue
        layer, dot, field = name.rpartition(".")
        owners = [
            each for each, kind in LAYERS.items() if field in fields_of(kind) and layer.lower() in ("", each.lower())
        ]
        if not owners:
            names = [f"{each}.{one}" for each, kind in LAYERS.items() for one in fields_of(kind)]
            hint = _meant(name, names) or "run ./inv craft --list to list all fields"
            problems.add(where="", what=typed, why="names no field", hint=hint)
            continue
        carried = [each for each in owners if each not in _EXTENDED or each in _headers(opcodes)]
        owners = owners if dot else carried or owners
        if not dot and len({*owners} - {"IPv6"}) > 1 and not _same_option(owners, field):
            hint = "use one of " + ", ".join(f"{each}.{field}" for each in owners)
            problems.add(where="", what=typed, why=f"is a field of {len(owners)} headers", hint=hint)
            continue
        found = _value(typed, owners[0], field, value, problems)
        if found is not None:
            yield FieldSetting(typed, tuple(owners), field, found)


def _same_option(owners: Sequence[str], field: str) -> bool:
    """Whether the same field is in headers that no packet has together."""
    return any(field == name and {*owners} <= {*layers} for layers, name in OPTIONS.values())


def _field(layer: str, field: str) -> Any:
    found = fields_of(LAYERS[layer])[field]
    return getattr(found, "fld", found)  # scapy wraps a field that depends on another one


def bits_of(layer: str, field: str) -> int | None:
    """The width of a field of a number; None for addresses, bytes and lists."""
    found = _field(layer, field)
    if isinstance(found, MACField | IPField | IP6Field | PacketListField) or (layer, field) in _BYTES:
        return None
    if (layer, field) in _SPECIAL_BITS:
        return _SPECIAL_BITS[layer, field]
    return (
        abs(int(found.size))
        if isinstance(found, _BitField)
        else 8 * int(found.sz)
        if isinstance(found, Field)
        else None
    )


def _value(typed: str, layer: str, field: str, value: Any, problems: Problems) -> Any:
    """The value as scapy takes it; None with a problem when the field cannot have it."""
    found, bits = _field(layer, field), bits_of(layer, field)
    if (layer, field) in _BYTES:
        return _bytes(typed, value, problems)
    if bits is None:
        return _address(typed, found, str(value), problems)
    names = {str(name): number for name, number in getattr(found, "s2i", {}).items()}
    try:
        number = names[value] if value in names else value if isinstance(value, int) else int(str(value), 0)
    except ValueError:
        hint = did_you_mean(str(value), names) if names else "write 5 or 0x5"
        problems.add(where="", what=typed, why="is not a number", hint=hint)
        return None
    if not 0 <= number < 1 << bits:
        why = f"does not fit {layer}.{field}, a field of {bits} bit{'s' * (bits > 1)}"
        problems.add(where="", what=typed, why=why, hint=f"use 0 to {(1 << bits) - 1:#x}")
        return None
    return number


def _address(typed: str, field: Any, value: str, problems: Problems) -> str | None:
    if isinstance(field, MACField):
        right, example = bool(re.fullmatch(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", value)), "02:00:00:00:00:01"
    elif isinstance(field, IPField | IP6Field):
        version, example = (4, "10.0.0.1") if isinstance(field, IPField) else (6, "fd00::1")
        try:
            right = ip_address(value).version == version
        except ValueError:
            right = False
    else:
        problems.add(where="", what=typed, why="cannot be set: the field is a list", hint="choose another field")
        return None
    if not right:
        problems.add(where="", what=typed, why="is not an address of this field", hint=f"write {example}")
    return value if right else None


def _bytes(typed: str, value: Any, problems: Problems) -> bytes | None:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if str(value).startswith("0x"):
        if _HEX.fullmatch(str(value)):
            return bytes.fromhex(str(value)[2:])
        problems.add(where="", what=typed, why="is not bytes in hexadecimal", hint="write two digits a byte: 0x01ff")
        return None
    return str(value).encode()


def _headers(opcodes: Sequence[int]) -> set[str]:
    return {EXTENDED[name].__name__ for opcode in opcodes for name in wire.EXTENSIONS.get(opcode, ())}


def _check_carried(setting: FieldSetting, opcodes: Sequence[int], problems: Problems) -> None:
    if not opcodes or not {*setting.layers} <= _EXTENDED or {*setting.layers} & _headers(opcodes):
        return
    carriers = [
        name for opcode, name in wire.OPCODE_NAMES.items()
        if name.startswith(("RC_", "UD_", "CNP", "SACK", "NACK"))
        and _headers([opcode]) & {*setting.layers}
    ]  # fmt: skip
    names = " and ".join(dict.fromkeys(map(opcode_name, opcodes)))
    why = f"is a field of {' or '.join(setting.layers)}, which {names} {'do' if len(opcodes) > 1 else 'does'} not carry"
    problems.add(where="", what=setting.typed, why=why, hint=f"opcodes with it: {', '.join(carriers)}")


def _payload(given: Any, opcodes: Sequence[int], problems: Problems) -> bytes | None:
    if given is None:
        return None
    typed = f"--payload {given}"
    if opcodes and all(opcode in wire.HEADERS_ONLY for opcode in opcodes):
        names = " and ".join(dict.fromkeys(map(opcode_name, opcodes)))
        hint = "choose a SEND, a WRITE or a READ response"
        problems.add(where="", what=typed, why=f"has no place: {names} never carries a payload", hint=hint)
        return None
    return _bytes(typed, given, problems)


def _ranged(flag: str, value: Any, most: int, hint: str, problems: Problems) -> int | None:
    if value is None:
        return None
    try:
        number = int(str(value), 0)
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        problems.add(where="", what=f"{flag} {value}", why=f"is not a number from 0 to {most}", hint=hint)
        return None
    return number


def _ecn(given: Any, problems: Problems) -> int | None:
    if given is None:
        return None
    if (word := str(given).lower()) not in ECN:
        problems.add(where="", what=f"--ecn {given}", why="is not a codepoint of ECN", hint=did_you_mean(word, ECN))
    return ECN.get(word)


def _icrc(given: Any, problems: Problems) -> str | int:
    if given is None or given in (ICRC_RIGHT, ICRC_WRONG):
        return given or ICRC_RIGHT
    found = _ranged("--icrc", given, 0xFFFFFFFF, "use right, wrong, or a number as 0x12345678", problems)
    return ICRC_RIGHT if found is None else found


def field_rows() -> list[tuple[str, str, str]]:
    """Every field that can be set: `BTH.psn`, its width, and the option that sets it."""
    by_field = {f"{layer}.{field}": f"--{word}" for word, (layers, field) in OPTIONS.items() for layer in layers}
    by_field |= {"IPv6.hlim": "--ttl", "IP.tos": "--dscp, --ecn", "IPv6.tc": "--dscp, --ecn", "BTH.opcode": "--opcode",
                 "BTH.icrc": "--icrc", "Raw.load": "--payload"}  # fmt: skip
    rows = []
    for layer, kind in LAYERS.items():
        for field in fields_of(kind):
            if not isinstance(_field(layer, field), PacketListField):
                bits, name = bits_of(layer, field), f"{layer}.{field}"
                width = (
                    "bytes"
                    if (layer, field) in _BYTES
                    else "address"
                    if bits is None
                    else f"{bits} bit{'s' * (bits > 1)}"
                )
                rows.append((name, width, by_field.get(name, "")))
    return rows


PAYLOAD_BYTES: Final = 32  # of a packet without --payload that is not a FIRST or MIDDLE
LAYERS: Final[Mapping[str, type[Packet]]] = {
    **{each.__name__: each for each in (Ether, IP, IPv6, UDP, BTH, *EXTENDED.values())},
    "Raw": Raw,
}
ICRC_RIGHT: Final = "right"  # of an ICRC
ICRC_WRONG: Final = "wrong"
_WIDE: Final = 240  # characters of a header's line
_ANSWERS: Final = frozenset({wire.ACK, wire.ATOMIC_ACK, wire.CNP, wire.SACK, wire.NACK})


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
