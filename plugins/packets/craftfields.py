"""What a user chose for packets by hand, by option or by scapy's own name of a field, and the Recipe that it makes.

In:  values by the words of OPTIONS, and `BTH.pkey` = value. Numbers as `5` or `0x5`.
Out: Recipe; InputError with all errors: a field whose header the opcode does not carry, a value that does not fit its
     field, an unknown name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from scapy.fields import Field, IP6Field, IPField, MACField, PacketListField, _BitField

from heddle.base.problems import Problems, did_you_mean, nearest
from heddle.wire import layout as wire
from heddle.wire.roce import EXTENDED
from heddle_plugins.packets.crafted import ICRC_RIGHT, ICRC_WRONG, LAYERS, FieldSetting, Recipe, fields_of, opcode_name

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
        if name.startswith(("RC_", "UD_", "CNP"))
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
