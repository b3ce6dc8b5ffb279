"""Chakra execution traces (MLCommons): a file for each rank.

In:  files of ranks 0, 1, ...; or one, which all ranks run. Out: Trace.
Nodes of one rank in the order of their dependencies: computations of their duration, collectives by group and order,
sends and receives. Files that a rank reads and writes are on ranks of storage, behind those of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from heddle.base.problems import InputError, Problem
from heddle.base.untrusted import parsed
from heddle.traffic.collectives import find_pattern
from heddle.traffic.traces.chakrafile import ChakraNode, chakra_nodes
from heddle.traffic.traces.graph import parts_of
from heddle.traffic.traces.nodes import (
    MOST_NODES,
    MOST_RANKS,
    Kind,
    Reading,
    Trace,
    TraceGroup,
    TraceNode,
    barrier,
    read_bytes,
)

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
    """A list of ranks; empty for anything else."""
    numbers = value if isinstance(value, list) else []
    fit = all(isinstance(each, int) and 0 <= each < ranks for each in numbers) and len({*numbers}) == len(numbers)
    return tuple(numbers) if fit else ()


class _Reader:
    """The nodes of one rank."""

    def __init__(self, file: str, rank: int, ranks: int, groups: Groups, reading: Reading) -> None:
        self._file, self._rank, self._ranks, self._groups, self._reading = file, rank, ranks, groups, reading
        self._ids: set[int] = set()

    def nodes(self, raw: Sequence[ChakraNode]) -> list[TraceNode]:
        """Each node, in order."""
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
        """comm_size, or tensor_size without it."""
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
