"""A file of Chakra's nodes, as Protocol Buffers or JSON.

In:  a file's name. Out: ChakraNode for each node, in order; InputError with the byte and the node at which it ends.
Formats: schema/protobuf/et_def.proto and storage.proto of Chakra 1.0.0 and later; the feeder's JSON (`workload_graph`);
and the messages as JSON, one after the other, as the jsonizer writes them. Unknown fields are skipped.
The encoding of Protocol Buffers is in their guide (protobuf.dev, "Encoding").
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.untrusted import check_values
from heddle.traffic.traces.nodes import LARGEST_TEXT, MOST_NODES, read_bytes

Span = tuple[int, int]  # bytes [lo, hi) of the data
Value = int | Span  # of a varint and of fixed widths: unsigned; of bytes, strings and messages: where they are
_WIDTHS: Final = {1: 8, 5: 4}  # wire type -> bytes of fixed width
MOST_MESSAGE: Final = 1 << 24  # bytes
MOST_FIELDS: Final = 1 << 23  # of a file, with those of messages in messages


class Counted(bytes):
    """The bytes of a file. left: how many fields may still be read from it."""

    left = MOST_FIELDS


class TruncatedError(ValueError):
    """The data ends early, or is not of this format. offset: of the first byte that is not understood."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"byte {offset}")
        self.offset = offset


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of 64 bits, and the offset behind it."""
    value = shift = 0
    for offset in range(at, min(end, at + 10)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, offset + 1
        shift += 7
    raise TruncatedError(at)


def messages(data: bytes) -> Iterator[Span]:
    """The messages of a stream, each with its length before it."""
    at = 0
    while at < len(data):
        length, start = varint(data, at, len(data))
        if length > MOST_MESSAGE or start + length > len(data):
            raise TruncatedError(at)
        at = start + length
        yield start, at


def fields(data: Counted, span: Span) -> Iterator[tuple[int, Value]]:
    """Each field of a message, in order, as number and value."""
    at, end = span
    while at < end:
        began = at
        data.left -= 1
        if data.left < 0:
            raise TruncatedError(at)
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(data, at, end)
            yield number, value
            continue
        length = _WIDTHS.get(kind, -1)
        if kind == 2:
            length, at = varint(data, at, end)
        if length < 0 or number == 0 or at + length > end:
            raise TruncatedError(began)
        yield number, (at, at + length) if kind == 2 else int.from_bytes(data[at : at + length], "little")
        at += length


def repeated(data: bytes, value: Value) -> Iterator[int]:
    """The numbers of a repeated varint field: one, or all of a packed one."""
    if isinstance(value, int):
        yield value
        return
    at, end = value
    while at < end:
        number, at = varint(data, at, end)
        yield number


def text(data: bytes, value: Value) -> str:
    """A string; a wrong type gives an empty one."""
    return "" if isinstance(value, int) else data[value[0] : value[1]].decode("utf-8", "replace")


def signed(value: int, bits: int) -> int:
    """A number in two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def zigzag(value: int) -> int:
    """A number of type sint32 or sint64."""
    return value >> 1 ^ -(value & 1)


def real(value: int, width: int) -> float:
    """A float or a double. width: its bytes."""
    found: float = struct.unpack("<d" if width == 8 else "<f", value.to_bytes(width, "little"))[0]
    return found


TYPES: Final = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "DATA_OP_NODE",
)  # fmt: skip
DATA_OPS: Final = ("DATA_OP_UNKNOWN", "DATA_OP_DATALOADER", "DATA_OP_CHECKPOINT", "DATA_OP_KV_TRANSFER")
_FS_OPS: Final = (
    "FS_OP_UNKNOWN", "FS_OP_OPEN", "FS_OP_CLOSE", "FS_OP_READ", "FS_OP_WRITE", "FS_OP_PREAD", "FS_OP_PWRITE",
)  # fmt: skip
_LARGEST: Final = 1 << 63
_MOST_VALUES: Final = 1 << 22  # of a file of JSON
_BITS: Final = {7: 32, 9: 64}  # of AttributeProto: two's complement in a varint, or in a fixed width
_FIXED_BITS: Final = {23: 32, 25: 64}


@dataclass(slots=True)
class ChakraNode:
    """A node. type, data_op: numbers of TYPES and DATA_OPS. file: what it does with a file, and the bytes of that."""

    id: int = -1
    name: str = ""
    type: int = 0
    control: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    micros: float = 0.0
    inputs: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    file: tuple[str, int] = ("", 0)
    data_op: int = 0

    @property
    def of_torch(self) -> bool:
        """Whether PyTorch's converter wrote it: its control dependency is then the caller, not an order."""
        return "rf_id" in self.attributes or "op_schema" in self.attributes

    def number(self, name: str, default: int = 0) -> int:
        """A whole number among the attributes."""
        return _whole(self.attributes.get(name), default)


def chakra_nodes(name: str) -> list[ChakraNode]:
    """All nodes of a file. InputError."""
    data = Counted(read_bytes(name))
    if data.lstrip()[:1] in (b"{", b"[") and len(data) > LARGEST_TEXT:
        why, hint = f"is JSON of more than {LARGEST_TEXT >> 20} MiB, the limit", "use the protobuf form, PREFIX.0.et"
        raise InputError(Problem(name, "the trace", why, hint))
    return _from_json(name, data) if data.lstrip()[:1] in (b"{", b"[") else list(_from_protobuf(name, data))


def _from_protobuf(name: str, data: Counted) -> Iterator[ChakraNode]:
    last = "before its first node"
    try:
        for index, span in enumerate(messages(data)):
            if index > MOST_NODES:
                raise InputError(Problem(name, "the trace", f"has more than {MOST_NODES} nodes", "use a shorter one"))
            if index == 0 and _is_metadata(data, span):
                continue
            node = ChakraNode()
            for number, value in fields(data, span):
                _set(node, data, number, value)
            node.id = max(node.id, 0)  # the default of a number is not written
            yield node
            last = f"after node {node.id}"
    except TruncatedError as error:
        why = f"ends or is damaged at byte {error.offset} of {len(data)}, {last}"
        why = why if data.left >= 0 else f"has more than {MOST_FIELDS} fields, {last}"
        raise InputError(Problem(name, "the trace", why, "copy the file again, or check that it is a trace")) from None


def _is_metadata(data: Counted, span: Span) -> bool:
    """Whether it is a GlobalMetadata: only a version and attributes."""
    return all(number in (1, 2) and not isinstance(value, int) for number, value in fields(data, span))


def _set(node: ChakraNode, data: Counted, number: int, value: Value) -> None:
    """Take one field of a Node."""
    if number == 2:
        node.name = text(data, value)
    elif number in (4, 5):
        (node.control if number == 4 else node.data).extend(repeated(data, value))
    elif isinstance(value, int):
        if number == 1:
            node.id = value
        elif number == 3:
            node.type = value
        elif number == 7:
            node.micros = float(value)
        elif number == 12:
            node.data_op = value
    elif number == 8:
        node.inputs = next((text(data, each) for at, each in fields(data, value) if at == 1), "")
    elif number == 10:
        _attribute(node, data, value)
    elif number == 11:
        details = (each for at, each in fields(data, value) if at == 10 and not isinstance(each, int))
        for detail in details:
            known = {at: each for at, each in fields(data, detail) if isinstance(each, int)}
            node.file = _file_op(known.get(1, 0)), known.get(5, 0)


def _attribute(node: ChakraNode, data: Counted, span: Span) -> None:
    name: str = ""
    found: Any = None
    for number, value in fields(data, span):
        if number == 1:
            name = text(data, value)
        elif not isinstance(value, int):
            if number == 29:
                found = text(data, value)
            elif number == 28:  # BoolList
                lists = (each for at, each in fields(data, value) if at == 1)
                found = [bool(each) for one in lists for each in repeated(data, one)]
        elif number in (15, 17):
            found = zigzag(value)
        elif number in (3, 5):
            found = real(value, 8 if number == 3 else 4)
        else:
            bits = _BITS.get(number) or _FIXED_BITS.get(number)
            found = signed(value, bits) if bits else value
    node.attributes[name] = found


def _file_op(number: int) -> str:
    """`read`, `write`, or empty for an operation without bytes."""
    name = _FS_OPS[number] if number < len(_FS_OPS) else ""
    return "read" if name.endswith("READ") else "write" if name.endswith("WRITE") else ""


def _from_json(name: str, data: bytes) -> list[ChakraNode]:
    text, at, found = data.decode("utf-8", "replace"), 0, []
    decoder = json.JSONDecoder()
    try:
        check_values(data, _MOST_VALUES)
        while (start := re.compile(r"\s*").match(text, at).end()) < len(text):  # type: ignore[union-attr]
            value, at = decoder.raw_decode(text, start)
            found.append(value)
    except (ValueError, RecursionError) as error:
        line = text.count("\n", 0, getattr(error, "pos", at)) + 1
        why = getattr(error, "msg", "it is too deep, or has too large a number, or too many values")
        raise InputError(Problem(f"{name}:{line}", "the trace", f"is not JSON: {why}")) from None
    graph = found[0].get("workload_graph") if len(found) == 1 and isinstance(found[0], dict) else found
    if isinstance(found[0], dict) and "nodes" in found[0]:
        hint = "convert it: chakra_trace_link, then chakra_converter PyTorch"
        raise InputError(Problem(name, "the trace", "is one of PyTorch, not of Chakra", hint))
    if graph is found and isinstance(found[0], list):
        graph = found[0]
    nodes = [_json_node(each) for each in graph if isinstance(each, dict)] if isinstance(graph, list) else []
    return [node for node in nodes if node.id >= 0]  # the others are metadata of the file


def _json_node(keys: Mapping[str, Any]) -> ChakraNode:
    node, plain = ChakraNode(), {key.lower().replace("_", ""): value for key, value in keys.items()}
    node.id = _whole(plain.get("id"), 0 if "nodetype" in plain or "type" in plain else -1)
    node.name = str(plain.get("name", ""))
    node.type = _named(plain.get("type", plain.get("nodetype")), TYPES)
    node.control, node.data = (_list(plain.get(key)) for key in ("ctrldeps", "datadeps"))
    micros = plain.get("durationmicros", plain.get("runtime", 0))
    node.micros = float(micros) if isinstance(micros, int | float) and micros < _LARGEST else float(_whole(micros, 0))
    inputs = plain.get("inputs")
    node.inputs = str(inputs.get("values", "")) if isinstance(inputs, dict) else ""
    node.attributes = dict(keys)
    for each in plain["attr"] if isinstance(plain.get("attr"), list) else ():
        if isinstance(each, dict):
            values = [value for key, value in each.items() if key not in ("name", "docString", "doc_string")]
            node.attributes[str(each.get("name"))] = _of_message(values[0]) if values else None
    node.data_op = _named(plain.get("dataop"), DATA_OPS)
    storage = plain.get("storage")
    if isinstance(storage, dict) and isinstance(detail := storage.get("fs"), dict):
        size = _whole(detail.get("size_bytes", detail.get("sizeBytes")), 0)
        node.file = _file_op(_named(detail.get("op"), _FS_OPS)), size
    return node


def _of_message(value: Any) -> Any:
    """A value of a message in JSON: long numbers are strings, and lists are groups."""
    if isinstance(value, dict):
        return value.get("values")
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value) else value


def _list(value: Any) -> list[int]:
    return [_whole(each, -1) for each in value] if isinstance(value, list) else []


def _named(value: Any, names: Sequence[str]) -> int:
    return names.index(value) if isinstance(value, str) and value in names else _whole(value, 0)


def _whole(value: Any, default: int) -> int:
    """A whole number of 64 bits in JSON, also one that is a string; otherwise the default."""
    if isinstance(value, str):
        value = _of_message(value)
    return int(value) if isinstance(value, int | float) and -_LARGEST <= value < _LARGEST else default
