"""From the nodes of each rank to one list of parts, each after those that it waits for.

In:  for each rank its nodes (TraceNode). Out: tuple[Part, ...] in an order without circles.
InputError names the nodes: for a dependency that is missing, for circles, and for a send, a receive or a collective
without its counterpart.

A receive waits for nothing, since receives are always posted. What waits for a receive also waits for all that the
receive waits for. What a rank waits for is part of Part.after, which holds for all ranks of both parts.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple

from heddle.base.files import open_regular, real
from heddle.base.problems import InputError, Problem, Problems
from heddle.traffic.collectives import Pattern, find_pattern, patterns
from heddle.traffic.readers import MOST_SIZE
from heddle.traffic.sequence import Part
from heddle.traffic.traces import Reading

MOST_NODES: Final = 1 << 20  # of all ranks
MOST_PARTS: Final = 1 << 16
LONGEST_S: Final = 86_400.0  # of one computation
LARGEST_FILE: Final = 1 << 28  # uncompressed
LARGEST_TEXT: Final = 1 << 26
_MOST_LINES: Final = 1 << 22
_MOST_RATIO, _ANY_RATIO = 128, 1 << 24  # of gzip, for files that unpack to more bytes than the second
NUMBER: Final = r"[0-9]{1,18}"
LEAST_BYTES: Final = 4  # what a message has that only says that something has ended
_COMPRESSED: Final = b"\x1f\x8b"  # the first bytes of gzip

Key = int | str
# nothing: only an order. write, read: bytes to and from rank `peer`, which has no node for it.
Kind = Literal["nothing", "compute", "send", "receive", "collective", "write", "read"]


class TraceGroup(NamedTuple):
    """A communicator: its name in the trace, and its ranks."""

    name: str
    ranks: tuple[int, ...]


_NO_GROUP: Final = TraceGroup("", ())


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One operation of one rank.

    key: unique among the nodes of the rank. where: its file, or file and line. what: its name there. deps: keys of
    nodes of the same rank. seconds: of a computation, on hardware, not scaled. size: bytes, not scaled; of a collective
    as --size counts them.
    """

    key: Key
    where: str
    what: str
    deps: tuple[Key, ...] = ()
    kind: Kind = "nothing"
    seconds: float = 0.0
    size: int = 0
    peer: int = -1
    tag: int = 0
    pattern: Pattern | None = None
    group: TraceGroup = _NO_GROUP


def size_of(reading: Reading, node: TraceNode, pattern: Pattern, ranks: int) -> int:
    """The bytes that a pattern sends for the node's; 0 for none. InputError for too many."""
    if not node.size:
        reading.notes["operations with 0 bytes are left out"] += 1
        return 0
    scaled = max(int(node.size * reading.size_scale), min(node.size, LEAST_BYTES))
    if scaled > MOST_SIZE:
        raise InputError(Problem(node.where, node.what, f"has {scaled} bytes", "use a smaller scale"))
    count = pattern.whole(ranks, scaled // pattern.element_bytes)
    if not count:
        reading.notes["sizes are below the least of their collective, and raised to it"] += 1
        count = 1
        while not pattern.whole(ranks, count):
            count *= 2
        count = pattern.whole(ranks, count)
    return count * pattern.element_bytes


def seconds_of(reading: Reading, node: TraceNode) -> float:
    """The time of a computation. InputError for one that is too long."""
    found = float(node.seconds * reading.time_scale)
    if not 0 <= found <= LONGEST_S:
        raise InputError(Problem(node.where, node.what, f"takes {found:g} s", "use a smaller time_scale"))
    return found


def transfer() -> Pattern:
    """The pattern of two ranks of which the first sends to the second."""
    return find_pattern("broadcast", "chain")


def barrier() -> tuple[Pattern, int]:
    """A barrier, and its bytes."""
    return find_pattern("barrier" if any(name == "barrier" for name, _ in patterns()) else "all-reduce"), LEAST_BYTES


def read_bytes(name: str, most: int = LARGEST_FILE) -> bytes:
    """A file's bytes, uncompressed, at most so many; InputError with the reason."""
    try:
        with open_regular(real(name)) as file:
            data = file.read(most + 1)
            if data[:2] == _COMPRESSED:
                most = min(most, max(_ANY_RATIO, _MOST_RATIO * len(data)))
                file.seek(0)
                with gzip.open(file) as unpacked:
                    data = unpacked.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(Problem(name, "the trace", f"is damaged gzip data: {error}")) from None
    except OSError as error:
        raise InputError(Problem(name, "the trace", f"cannot be read: {error.strerror or error}")) from None
    if len(data) > most:
        packed = f"; it unpacks to at most {_MOST_RATIO} times its size" if most < LARGEST_TEXT else ""
        raise InputError(Problem(name, "the trace", f"is larger than {most >> 20} MiB, the limit{packed}"))
    return data


def read_lines(name: str) -> list[str]:
    """A text's lines; InputError with the reason."""
    data = read_bytes(name, LARGEST_TEXT)
    if data.count(b"\n") > _MOST_LINES:
        raise InputError(Problem(name, "the trace", f"has more than {_MOST_LINES} lines, the limit"))
    return data.decode("utf-8", "replace").split("\n")


_MANY: Final = 16  # parts that one part waits for, before a part without time gathers them
_KEPT: Final = 512  # parts that are known to be behind one
_SHOWN: Final = 10  # problems, and nodes of a circle

_Place = tuple[int, int]  # rank, and number of the node in its file
_Order = list[tuple[int, tuple[int, ...]]]  # nodes of a rank by number, each with those that it waits for
_Waits = frozenset[int]  # numbers of parts
_NONE: Final[_Waits] = frozenset()


def parts_of(programs: Sequence[Sequence[TraceNode]], reading: Reading, *, acknowledged: bool) -> tuple[Part, ...]:
    """All parts of a trace. acknowledged: a send ends when its receiver has all data, not when it was posted."""
    return _Builder(programs, reading, acknowledged).parts()


class _Builder:
    def __init__(self, programs: Sequence[Sequence[TraceNode]], reading: Reading, acknowledged: bool) -> None:
        self._programs, self._reading, self._acknowledged = programs, reading, acknowledged
        self._found: list[Part] = []
        self._at: list[str] = []  # file of each part
        self._turns: list[int] = []  # and its place there
        self._turn = 0  # of the node at hand
        self._of: dict[_Place, int] = {}  # the part of each node that shares one
        self._used: list[set[int]] = []  # of each rank the nodes for which others wait
        self._behind: dict[int, _Waits] = {}  # what has ended when a part has ended, other than at its receiver

    def parts(self) -> tuple[Part, ...]:
        orders: list[_Order] = []
        for rank, nodes in enumerate(self._programs):
            before = self._programs[rank - 1] if rank else ()
            same = len(before) == len(nodes) and all(
                one.key == two.key and one.deps == two.deps for one, two in zip(before, nodes, strict=True)
            )
            orders.append(orders[-1] if rank and same else self._order(rank))
        self._used = [{dep for _, deps in order for dep in deps} for order in orders]
        self._transfers()
        self._collectives()
        for rank, order in enumerate(orders):
            self._rank(rank, order)
        return self._sorted()

    def _order(self, rank: int) -> _Order:
        """The nodes of a rank in an order without circles, each with those that it waits for."""
        nodes, problems = self._programs[rank], Problems()
        numbers: dict[Key, int] = {}
        for number, node in enumerate(nodes):
            if numbers.setdefault(node.key, number) != number and len(problems.found) < _SHOWN:
                problems.add(where=node.where, what=node.what, why="is there twice")
        waits: dict[int, tuple[int, ...]] = {}
        for number, node in enumerate(nodes):
            for dep in node.deps:
                if dep not in numbers and len(problems.found) < _SHOWN:
                    why = f"waits for {dep}, which is not in the trace of rank {rank}"
                    problems.add(where=node.where, what=node.what, why=why)
            waits[number] = tuple(dict.fromkeys(numbers[dep] for dep in node.deps if dep in numbers))
        problems.raise_if_any()
        try:
            return [(number, waits[number]) for number in TopologicalSorter(waits).static_order()]
        except CycleError as error:
            circle = [nodes[number] for number in error.args[1]]
            raise InputError(_circle([(each.where, each.what) for each in circle])) from None

    def _transfers(self) -> None:
        """A part for each send with its receive: matched by sender, receiver and tag, in their order."""
        sends: dict[tuple[int, int, int], list[_Place]] = defaultdict(list)
        receives: dict[tuple[int, int, int], list[_Place]] = defaultdict(list)
        problems = Problems()
        for rank, nodes in enumerate(self._programs):
            for number, node in enumerate(nodes):
                if node.kind == "send":
                    sends[rank, node.peer, node.tag].append((rank, number))
                elif node.kind == "receive":
                    receives[node.peer, rank, node.tag].append((rank, number))
        for (src, dst, tag), there in sends.items():
            here = receives.get((src, dst, tag), [])
            for place, other in zip(there, here, strict=False):
                node = self._node(place)
                if node.size != self._node(other).size:
                    self._reading.notes["receives have another size than their send, whose size counts"] += 1
                self._of[place] = self._of[other] = self._part(node, (src, dst), place[1])
            for place in there[len(here) :]:
                self._single(problems, self._node(place), "receive", f"from rank {src} with tag {tag} at rank {dst}")
        for (src, dst, tag), here in receives.items():
            for place in here[len(sends.get((src, dst, tag), [])) :]:
                self._single(problems, self._node(place), "send", f"to rank {dst} with tag {tag} at rank {src}")
        problems.raise_if_any()

    def _collectives(self) -> None:
        """A part for each collective: matched by group, in the order of each rank."""
        calls: dict[TraceGroup, dict[int, list[_Place]]] = defaultdict(lambda: defaultdict(list))
        problems = Problems()
        for rank, nodes in enumerate(self._programs):
            for number, node in enumerate(nodes):
                if node.kind == "collective":
                    calls[node.group][rank].append((rank, number))
        for group, by_rank in calls.items():
            name = f"group {group.name}" if group.name else "the group of all ranks"
            longest = max(by_rank.values(), key=len)
            for rank in group.ranks:
                if missing := longest[len(by_rank[rank]) :]:
                    self._single(problems, self._node(missing[0]), "counterpart", f"in {name} at rank {rank}")
            for same in zip(*by_rank.values(), strict=False):
                self._collective(group, same, problems)
        problems.raise_if_any()

    def _collective(self, group: TraceGroup, same: Sequence[_Place], problems: Problems) -> None:
        nodes = [self._node(place) for place in same]
        first = nodes[0]
        if (other := next((each for each in nodes if each.pattern != first.pattern), None)) is not None:
            names = [each.pattern.collective for each in (first, other) if each.pattern is not None]
            why = f"is {names[0]}, but {other.what} of {other.where} is {names[-1]}: both have the same place in order"
            if len(problems.found) < _SHOWN:
                problems.add(where=first.where, what=first.what, why=why)
            return
        if len({each.size for each in nodes}) > 1:
            self._reading.notes["collectives have other sizes at other ranks, of which the largest counts"] += 1
            first = max(nodes, key=lambda each: each.size)
        if len(group.ranks) < 2:
            self._reading.notes["collectives of one rank send nothing"] += 1
            return
        part = self._part(first, group.ranks, same[0][1])
        self._of.update(dict.fromkeys(same, part))

    def _single(self, problems: Problems, node: TraceNode, what: str, place: str) -> None:
        if len(problems.found) < _SHOWN:
            problems.add(where=node.where, what=node.what, why=f"has no {what} {place}")

    def _node(self, place: _Place) -> TraceNode:
        return self._programs[place[0]][place[1]]

    def _part(self, node: TraceNode, ranks: tuple[int, ...], turn: int) -> int:
        """The number of a new part that sends; -1 if it would send nothing."""
        self._turn = turn
        pattern = node.pattern or transfer()
        size = size_of(self._reading, node, pattern, len(ranks))
        return self._add(Part(node.what, ranks, pattern, size), node.where) if size else -1

    def _add(self, part: Part, where: str) -> int:
        if len(self._found) == MOST_PARTS:
            why = f"has more than {MOST_PARTS} operations that send or compute"
            raise InputError(Problem(where, "the trace", why, "use a shorter trace, or fewer ranks"))
        self._found.append(part)
        self._at.append(where)
        self._turns.append(self._turn)
        return len(self._found) - 1

    def _rank(self, rank: int, order: _Order) -> None:
        """What the parts of a rank wait for."""
        done: dict[int, _Waits] = {}  # what the end of a node waits for
        for number, deps in order:
            every = _NONE.union(*(done[dep] for dep in deps))
            waits = every - _NONE.union(*(self._behind.get(part, _NONE) for part in every))
            node, self._turn = self._programs[rank][number], number
            found = self._end(node, (rank, number), waits)
            if node.kind not in ("nothing", "receive") and found != waits and len(every) <= _KEPT:
                self._behind.update(dict.fromkeys(found, every))
            if len(found) > _MANY:
                found = frozenset((self._add(Part("", (rank,), after=tuple(found)), node.where),))
            done[number] = found

    def _end(self, node: TraceNode, place: _Place, waits: _Waits) -> _Waits:
        """What waits for the end of a node; its part waits for `waits`."""
        rank = place[0]
        if node.kind == "compute":
            return self._compute(node, rank, waits)
        if node.kind in ("write", "read"):
            return self._file(node, rank, waits)
        part = self._of.get(place, -1)
        if part < 0:
            return waits
        if node.kind == "receive":
            return waits | {part}
        self._after(part, waits)
        if node.kind == "send" and self._acknowledged and place[1] in self._used[rank]:
            return self._answer(part, node.where)
        return frozenset((part,))

    def _compute(self, node: TraceNode, rank: int, waits: _Waits) -> _Waits:
        if not (seconds := seconds_of(self._reading, node)):
            return waits
        return frozenset((self._add(Part(node.what, (rank,), seconds=seconds, after=tuple(waits)), node.where),))

    def _file(self, node: TraceNode, rank: int, waits: _Waits) -> _Waits:
        """A write and its answer; or a request, and what is read."""
        ends = (rank, node.peer)
        part = self._part(node, ends if node.kind == "write" else ends[::-1], self._turn)
        if part < 0:
            return waits
        if node.kind == "write":
            self._after(part, waits)
            return self._answer(part, node.where)
        request = Part(f"{node.what} request", ends, transfer(), LEAST_BYTES, after=tuple(waits))
        self._after(part, frozenset((self._add(request, node.where),)))
        return frozenset((part,))

    def _answer(self, part: int, where: str) -> _Waits:
        """The message by which a sender learns that all has arrived."""
        sent = self._found[part]
        answer = Part(f"{sent.name} answer", sent.ranks[::-1], transfer(), LEAST_BYTES, after=(part,))
        return frozenset((self._add(answer, where),))

    def _after(self, part: int, waits: _Waits) -> None:
        self._found[part] = replace(self._found[part], after=self._found[part].after + tuple(waits))

    def _sorted(self) -> tuple[Part, ...]:
        """In the order of the files, where each part follows those that it waits for."""
        found = self._found
        graph = TopologicalSorter(dict(enumerate(each.after for each in found)))
        ready: list[tuple[int, int]] = []  # a heap
        order: list[int] = []
        try:
            graph.prepare()
        except CycleError as error:
            raise InputError(_circle([(self._at[each], found[each].name) for each in error.args[1]])) from None
        while graph.is_active():
            for free in graph.get_ready():
                heappush(ready, (self._turns[free], free))
            order.append(heappop(ready)[1])
            graph.done(order[-1])
        users = Counter(before for each in found for before in each.after)
        number: dict[int, int] = {}
        parts: list[Part] = []
        for each in order:
            part = found[each]
            after = tuple(sorted({number[before] for before in part.after}))
            if part.pattern is None and len(after) == 1 and users[part.after[0]] == 1:
                last = parts[after[0]]
                if last.pattern is None and last.ranks == part.ranks:  # one computation, since no other part is between
                    number[each] = after[0]
                    parts[after[0]] = replace(last, seconds=last.seconds + part.seconds)
                    continue
            number[each] = len(parts)
            parts.append(replace(part, after=after))
        return tuple(parts)


def _circle(nodes: Sequence[tuple[str, str]]) -> Problem:
    """The problem with nodes of which each waits for the one before it; the last is the first again."""
    names = [what if where == nodes[0][0] else f"{what} of {where}" for where, what in reversed(nodes)]
    if len(names) > _SHOWN:
        names[_SHOWN - 1 : -1] = ["..."]
    return Problem(nodes[0][0], nodes[0][1], f"waits for itself: {' after '.join(names)}", "remove one of them")
