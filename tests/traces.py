"""Traces that tests write: nodes of Chakra byte by byte, and what reading them gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.sequence import Part
from heddle.traffic.traces import Reading, Trace, read_trace, trace_files

INTEGERS = {  # of AttributeProto: how a number is encoded
    "int32_val": 7, "int64_val": 9, "uint32_val": 11, "uint64_val": 13, "sint32_val": 15, "sint64_val": 17,
    "fixed32_val": 19, "fixed64_val": 21, "sfixed32_val": 23, "sfixed64_val": 25,
}  # fmt: skip
MATRIX = """Nodes 4
Connections 4
Triggers 2
0->1 id 1 start 1e6 size 4000 send_done_trigger 1 prio 3
0->2 id 2 trigger 1 size 8000 recv_done_trigger 2 msg
3->1 id 3 start 2000000.0 size 4000
3->0 id 4 trigger 2 size 4000
trigger id 1 oneshot
trigger id 2 barrier count 1
"""
ZONE = load_fabric("zone").fabric
COMP, SEND, RECV, COLL = 4, 5, 6, 7


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: int | str, kind: str = "int64_val") -> bytes:
    if isinstance(value, str):
        return block(10, block(1, name.encode()) + block(29, value.encode()))
    field = INTEGERS[kind]
    if kind.startswith("sint"):
        value = value << 1 ^ value >> 63
    if "fixed" in kind:
        width = 4 if kind.endswith("32_val") else 8
        coded = varint(field << 3 | (5 if width == 4 else 1)) + (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    else:
        coded = number(field, value)
    return block(10, block(1, name.encode()) + coded)


def node(key: int, kind: int, deps: Sequence[int] = (), micros: int = 0, more: bytes = b"", **values: Any) -> bytes:
    deps_coded = block(5, b"".join(map(varint, deps))) if deps else b""
    data = number(1, key) + block(2, b"a node") + number(3, kind) + deps_coded + number(7, micros) + more
    return data + b"".join(attribute(name, value) for name, value in values.items())


def et(nodes: Iterable[bytes]) -> bytes:
    return b"".join(varint(len(each)) + each for each in (block(1, b"0.0.4"), *nodes))


def chakra(place: Path, *ranks: Sequence[bytes]) -> list[str]:
    for rank, nodes in enumerate(ranks):
        (place / f"x.{rank}.et").write_bytes(et(nodes))
    return trace_files(str(place / "x.et"))


def written(place: Path, name: str, text: str) -> list[str]:
    (place / name).write_text(text)
    return [str(place / name)]


def read(files: Sequence[str], **keys: Any) -> tuple[Trace, list[str]]:
    reading = Reading(**keys)
    return read_trace(files, reading), reading.noted()


def refused(files: Sequence[str], **keys: Any) -> str:
    with pytest.raises(InputError) as error:
        read(files, **keys)
    return str(error.value).replace(str(Path(files[0]).parent) + "/", "")


def told(part: Part) -> tuple[str, tuple[int, ...], int, float, tuple[int, ...]]:
    name = part.pattern.collective if part.pattern else "compute"
    return name, part.ranks, part.size_bytes, round(part.seconds, 9), part.after
