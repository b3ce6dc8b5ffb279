"""Chakra execution traces (MLCommons): a file for each rank.

In:  files of ranks 0, 1, ...; or one, which all ranks run. Out: Trace.
Nodes of one rank in the order of their dependencies: computations of their duration, collectives by group and order,
sends and receives. Files that a rank reads and writes are on ranks of storage, behind those of the trace.
Formats: schema/protobuf/et_def.proto and storage.proto of Chakra 1.0.0 and later (the encoding of Protocol Buffers is
in their guide, protobuf.dev, "Encoding"); the feeder's JSON (`workload_graph`); and the messages as JSON, one after the
other, as the jsonizer writes them. Unknown fields are skipped.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.untrusted import check_values, parsed
from heddle.traffic.collectives import find_pattern
from heddle.traffic.traces import MOST_RANKS, Reading, Trace
from heddle_plugins.readers.traces.graph import (
    LARGEST_TEXT,
    MOST_NODES,
    Kind,
    TraceGroup,
    TraceNode,
    barrier,
    parts_of,
    read_bytes,
)

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
    lists = (plain.get(key) for key in ("ctrldeps", "datadeps"))
    node.control, node.data = (
        [_whole(each, -1) for each in (found if isinstance(found, list) else ())] for found in lists
    )
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


def _named(value: Any, names: Sequence[str]) -> int:
    return names.index(value) if isinstance(value, str) and value in names else _whole(value, 0)


def _whole(value: Any, default: int) -> int:
    """A whole number of 64 bits in JSON, also one that is a string; otherwise the default."""
    if isinstance(value, str):
        value = _of_message(value)
    return int(value) if isinstance(value, int | float) and -_LARGEST <= value < _LARGEST else default


_METADATA, _LOAD, _STORE, _COMPUTE, _SEND, _RECEIVE, _COLLECTIVE, _STORAGE, _DATA = range(1, 10)  # TYPES
_LOADER, _CHECKPOINT, _KV = 1, 2, 3  # DATA_OPS
# By CollectiveCommType: Heddle's name, and whether comm_size is one of `ranks` shares of what --size counts.
_COLLECTIVES: Final[Mapping[str, tuple[str, bool]]] = {
    "ALL_REDUCE": ("all-reduce", False),
    "REDUCE": ("reduce", False),
    "ALL_GATHER": ("all-gather", True),
    "GATHER": ("gather", True),
    "SCATTER": ("scatter", False),
    "BROADCAST": ("broadcast", False),
    "ALL_TO_ALL": ("all-to-all", False),
    "REDUCE_SCATTER": ("reduce-scatter", False),
    "REDUCE_SCATTER_BLOCK": ("reduce-scatter", False),
    "BARRIER": ("barrier", False),
}
_GROUPS: Final = "process_group"  # in the name of the metadata node in which PyTorch lists all groups
_MOST_DEPS: Final = 1 << 24  # of all files
_NAME: Final = 64  # characters of a group's name

Groups = Mapping[str, tuple[int, ...]]


def read(files: Sequence[str], reading: Reading) -> Trace:
    """The trace of files in the order of their ranks. InputError."""
    ranks = reading.ranks or 1 if len(files) == 1 else len(files)
    raw: list[list[ChakraNode]] = []
    deps = 0
    for name in files:
        raw.append(chakra_nodes(name))
        deps += sum(len(node.control) + len(node.data) for node in raw[-1])
        if sum(map(len, raw)) * (ranks // len(files)) > MOST_NODES:
            raise InputError(Problem(name, "the trace", f"has more than {MOST_NODES} nodes", "use a shorter one"))
        if deps > _MOST_DEPS:
            raise InputError(
                Problem(name, "the trace", f"has more than {_MOST_DEPS} dependencies", "use a shorter one")
            )
    if not any(raw):
        raise InputError(Problem(files[0], "the trace", "has no nodes", "check that it is a trace of Chakra"))
    if not 2 <= ranks <= MOST_RANKS:
        why = f"has {ranks} ranks; the limit is {MOST_RANKS}" if ranks > 1 else "is of one rank"
        hint = "name all files by their prefix, as gpt for gpt.0.et and so on, or set ranks: all run this one"
        raise InputError(Problem(files[0], "the trace", why, hint))
    groups = dict(_torch_groups(raw, ranks))
    if reading.groups:
        groups |= _given_groups(reading.groups, ranks)
    programs = []
    for rank in range(ranks):
        at = rank % len(files)
        programs.append(_Reader(files[at], rank, ranks, groups, reading).nodes(raw[at]))
    if any(node.peer >= ranks and node.kind in ("read", "write") for nodes in programs for node in nodes):
        reading.notes["rank behind those of the trace is storage"] += reading.storage
        return Trace(ranks + reading.storage, parts_of(programs, reading, acknowledged=True), reading.storage)
    return Trace(ranks, parts_of(programs, reading, acknowledged=True))


def _torch_groups(raw: Sequence[Sequence[ChakraNode]], ranks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The groups in metadata of PyTorch: a list of {pg_name, ranks}, in which no ranks mean all."""
    everyone = tuple(range(ranks))
    for node in (node for nodes in raw for node in nodes if node.type == _METADATA and _GROUPS in node.name):
        text = node.inputs[node.inputs.find("[{") : node.inputs.rfind("}]") + 2]
        try:
            found = parsed(text.encode())
        except ValueError:
            continue
        for each in found:
            named = each.get("ranks") if isinstance(each, dict) else [None]
            if members := _ranks(named, ranks) if named else everyone:
                yield str(each.get("pg_name"))[:_NAME], members


def _given_groups(name: str, ranks: int) -> Groups:
    """The groups of a file: {"0": [0, 1], "1": [2, 3]}."""
    try:
        found = parsed(read_bytes(name))
    except ValueError:
        found = None
    groups = {key[:_NAME]: _ranks(value, ranks) for key, value in found.items()} if isinstance(found, dict) else {}
    if not groups or not all(groups.values()):
        why = f'does not map names to lists of ranks from 0 to {ranks - 1}, as {{"0": [0, 1]}}'
        raise InputError(Problem(name, "the groups", why))
    return groups


def _ranks(value: Any, ranks: int) -> tuple[int, ...]:
    numbers = value if isinstance(value, list) else []
    fit = all(isinstance(each, int) and 0 <= each < ranks for each in numbers) and len({*numbers}) == len(numbers)
    return tuple(numbers) if fit else ()


class _Reader:
    """The nodes of one rank."""

    def __init__(self, file: str, rank: int, ranks: int, groups: Groups, reading: Reading) -> None:
        self._file, self._rank, self._ranks, self._groups, self._reading = file, rank, ranks, groups, reading
        self._ids: set[int] = set()

    def nodes(self, raw: Sequence[ChakraNode]) -> list[TraceNode]:
        self._ids = {each.id for each in raw}
        if any(each.of_torch for each in raw):
            self._ids.clear()  # the converter puts the order into the data dependencies
            self._note("traces of PyTorch have their callers as control dependencies, which are left out")
        return [self._node(each) for each in raw]

    def _note(self, text: str) -> None:
        self._reading.notes[text] += 1

    def _wrong(self, node: ChakraNode, why: str, hint: str = "") -> InputError:
        return InputError(Problem(self._file, f"node {node.id}", why, hint))

    def _node(self, raw: ChakraNode) -> TraceNode:
        control = [each for each in raw.control if each in self._ids]
        if self._ids and len(control) < len(raw.control):
            self._note("nodes have a control dependency on a node that is not there")
        node = TraceNode(raw.id, self._file, f"node {raw.id}", (*control, *raw.data))
        if raw.type == _COLLECTIVE:
            return self._collective(raw, node)
        if raw.type in (_SEND, _RECEIVE):
            return self._transfer(raw, node)
        if raw.type in (_STORAGE, _DATA):
            return self._data(raw, node)
        if raw.type in (_LOAD, _STORE):
            self._note("memory nodes are left out")
        elif raw.type > _DATA:
            self._note("nodes of an unknown type are left out")
        if raw.type != _COMPUTE:
            return node
        if raw.micros <= 0 and raw.number("num_ops"):
            self._note("computations have operations but no duration, and take no time")
        return replace(node, kind="compute", seconds=self._seconds(raw))

    def _seconds(self, raw: ChakraNode) -> float:
        if not 0 <= raw.micros < 1e12:
            raise self._wrong(raw, f"takes {raw.micros:g} us")
        return raw.micros * 1e-6

    def _size(self, raw: ChakraNode) -> int:
        size = raw.number("comm_size", raw.number("tensor_size"))
        if size < 0:
            raise self._wrong(raw, f"has {size} bytes")
        return size

    def _collective(self, raw: ChakraNode, node: TraceNode) -> TraceNode:
        kind = raw.attributes.get("comm_type")
        if kind is None:
            if raw.attributes.get("is_cpu_op"):
                return replace(
                    node, kind="compute", seconds=self._seconds(raw)
                )  # the call on the CPU; another node is its kernel
            self._note("collectives without comm_type are left out")
            return node
        names = [*_COLLECTIVES]
        name = (
            str(kind) if kind in names else names[number] if 0 <= (number := raw.number("comm_type", -1)) < 10 else ""
        )
        if not name:
            self._note("collectives of an unknown comm_type are left out")
            return node
        group = self._group(raw)
        wanted, shared = _COLLECTIVES[name]
        size = self._size(raw) * (len(group.ranks) if shared else 1)
        if wanted == "barrier":
            pattern, size = barrier()
        else:
            pattern = find_pattern(wanted)
        return replace(node, kind="collective", size=size, pattern=pattern, group=group)

    def _group(self, raw: ChakraNode) -> TraceGroup:
        name = str(raw.attributes.get("pg_name") or "")[:_NAME]
        ranks = self._groups.get(name) or tuple(range(self._ranks))
        if name and name not in self._groups:
            self._note("collectives name a group of unknown ranks, which is taken as all")
        dimensions = raw.attributes.get("involved_dim")
        if isinstance(dimensions, list) and not all(dimensions):
            self._note("collectives use some of a simulator's dimensions, which are taken as all")
        if self._rank not in ranks:
            why = f"is of group {name}, to which rank {self._rank} does not belong"
            raise self._wrong(raw, why, "set trace_groups to a file with the ranks of each group")
        return TraceGroup(name, ranks)

    def _transfer(self, raw: ChakraNode, node: TraceNode) -> TraceNode:
        ends = [raw.number(name, self._rank) for name in ("comm_src", "comm_dst")]
        kind: Kind = "send" if raw.type == _SEND else "receive"
        own, peer = ends if kind == "send" else ends[::-1]
        if own != self._rank or peer == self._rank or not 0 <= peer < self._ranks:
            word = "sends" if kind == "send" else "receives"
            raise self._wrong(raw, f"{word} from rank {ends[0]} to rank {ends[1]}, but is of rank {self._rank}")
        return replace(node, kind=kind, size=self._size(raw), peer=peer, tag=raw.number("comm_tag"))

    def _data(self, raw: ChakraNode, node: TraceNode) -> TraceNode:
        """Nodes of storage and data: to storage, or to the rank that comm_dst names."""
        kind, size = raw.file
        if raw.type == _DATA and raw.data_op in (_LOADER, _CHECKPOINT, _KV):
            kind, size = "read" if raw.data_op == _LOADER else "write", self._size(raw)
        if kind not in ("read", "write") or not size:
            self._note("nodes of storage and data without bytes only keep their order")
            return node
        peer = raw.number("comm_src" if kind == "read" else "comm_dst", self._rank)
        if peer == self._rank or not 0 <= peer < self._ranks:
            peer = self._ranks + self._rank % self._reading.storage
        return replace(node, kind="read" if kind == "read" else "write", size=size, peer=peer)
