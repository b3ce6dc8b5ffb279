"""An MSCCL program, executed once with sets of inputs instead of numbers, before anything starts.

In:  Algorithm (mscclfile.py).
Out: Programs: the operations of each rank, with chunks instead of elements. InputError for a program that stops
     (naming what waits for what), sends and receives that do not fit, a chunk without value, an input that is reduced
     twice, steps whose order is not defined, and a result that is not that of the collective.

A value is a bit set: bit g * chunks + c is chunk c of the input of GPU g. A received message has a place of its own in
`scratch` (its mailbox); a step of the program then copies or reduces it, in the order of its thread block. A send reads
a copy where the program writes its chunks again later: NICs may need them for longer than GPUs do.
Not modelled: channels have no limit of messages under way (NCCL's have 8 slots), and a chunk is not cut into slices.
"""

from __future__ import annotations

import base64
import zlib
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

from heddle.base.declared import Declared
from heddle.base.files import read_regular, real
from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives.bases import ReducingPattern
from heddle.traffic.collectives.pattern import (
    GROUP,
    MAX_STEPS,
    Buffer,
    ComputeStep,
    LocalStep,
    Piece,
    ReceiveStep,
    Reduction,
    SendStep,
    Step,
    known,
)
from heddle_plugins.readers.mscclfile import (
    MAX_BYTES,
    WRITES,
    Algorithm,
    Block,
    BlockStep,
    Chunks,
    Letter,
    read_algorithm,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heddle.traffic.flow import Endpoint

LOCAL_STEPS: Final = 1 << 20  # while a program runs, local steps are numbered from here on
_BUFFERS: Final[dict[Letter, Buffer]] = {"i": "input", "o": "output", "s": "scratch"}
_MOST_IN_CHAIN: Final = 8  # steps of a circle that an error shows
Cell = tuple[Buffer, int]  # one chunk
Programs = tuple[tuple[Step, ...], ...]  # the operations of each rank, in an order in which they can run


class _Message(NamedTuple):
    """On its way. step, at: of the receiver. past: of the send."""

    step: int
    at: int
    values: list[int]
    sent: BlockStep
    past: int


@dataclass(slots=True)
class _Cell:
    """What is in one chunk, the step that wrote it last, and the steps that have read it since."""

    value: int
    writer: int  # -1: it was there before
    readers: list[int] = field(default_factory=list)


class _Thread:
    """A thread block on its way. past: the steps of all GPUs that come before its next one, as a bit set.

    front: the operations of its rank that its next one waits for.
    """

    def __init__(self, block: Block) -> None:
        self.block, self.at, self.past = block, 0, 0
        self.front: frozenset[int] = frozenset()

    @property
    def next(self) -> BlockStep | None:
        return self.block.steps[self.at] if self.at < len(self.block.steps) else None


class Machine:
    """Runs an algorithm. reduction: that of steps that reduce. file: for errors."""

    def __init__(self, algorithm: Algorithm, reduction: Reduction, file: str) -> None:
        self._a, self._reduction, self._file = algorithm, reduction, file
        self._threads = {key: _Thread(block) for key, block in algorithm.blocks.items()}
        self._ended: dict[tuple[int, int, int], tuple[int, frozenset[int]]] = {}  # step -> what came before; its front
        self._ways: defaultdict[tuple[int, int, int], deque[_Message]] = defaultdict(deque)  # source, to, channel
        self._cells: list[dict[Cell, _Cell]] = [{} for _ in range(algorithm.ranks)]
        self._order: list[BlockStep] = []  # as they ran; their index is their bit
        self._programs: list[list[Step]] = [[] for _ in range(algorithm.ranks)]
        self._steps, self._locals = [0] * algorithm.ranks, [LOCAL_STEPS] * algorithm.ranks
        self._mail = [algorithm.sizes[gpu]["s"] for gpu in range(algorithm.ranks)]
        self._alias = self._mail[:]  # where i and o are, if they are the same memory
        self._writers: list[defaultdict[Cell, list[tuple[int, int, int]]]] = [
            defaultdict(list) for _ in range(algorithm.ranks)
        ]
        for step in (step for block in algorithm.blocks.values() for step in block.steps if step.kind in WRITES):
            for more in range(step.count):
                self._writers[step.gpu][self._cell(step.gpu, step.dst, more)].append(
                    (step.gpu, step.block, step.number)
                )
        for gpu in range(algorithm.ranks):
            self._fill(gpu)

    def run(self) -> Programs:
        """Run all steps, and check the result."""
        moved = True
        while moved:
            moved = False
            for thread in self._threads.values():
                while (step := thread.next) is not None and not self._waits(thread, step):
                    self._do(thread, step)
                    moved = True
        self._check_end()
        for gpu in range(self._a.ranks):
            self._check_result(gpu)
        return tuple(tuple(self._numbered(gpu)) for gpu in range(self._a.ranks))

    def _numbered(self, gpu: int) -> Iterator[Step]:
        """The operations of a rank. Numbers of local steps follow those of its messages."""
        many = self._steps[gpu] + self._locals[gpu] - LOCAL_STEPS
        if many > (limit := MAX_STEPS - self._a.ranks):
            raise InputError(
                Problem(self._file, f"gpu {gpu}", f"has {many} messages and local steps; the limit is {limit}")
            )

        def number(step: int) -> int:
            return step if step < LOCAL_STEPS else step - LOCAL_STEPS + self._steps[gpu]

        for each in self._programs[gpu]:
            if isinstance(each, LocalStep):
                yield replace(each, step=number(each.step), after=tuple(map(number, each.after)))
            else:
                yield replace(each, after=tuple(map(number, each.after))) if isinstance(each, SendStep) else each

    # memory

    def _cell(self, gpu: int, place: Chunks, more: int) -> Cell:
        """Where a chunk is. In place, input and output are the same memory, or one is a part of the other."""
        at = place.at + more
        if not self._a.in_place or place.buffer == "s":
            return _BUFFERS[place.buffer], at
        part = self._a.chunks // self._a.ranks
        if (place.buffer, self._a.collective) in (("i", "all-gather"), ("o", "reduce-scatter")):
            at += gpu * part
        return "scratch", self._alias[gpu] + at

    def _fill(self, gpu: int) -> None:
        """The input. In place, it is copied into the common memory."""
        a = self._a
        chunks = a.chunks // a.ranks if a.collective in ("all-gather", "gather") else a.chunks
        if a.sizes[gpu]["i"] > chunks:
            why = f"has {a.sizes[gpu]['i']} chunks of input, but {a.collective} has {chunks}"
            raise InputError(Problem(self._file, f"gpu {gpu}", why, "correct i_chunks or nchunksperloop"))
        if a.in_place:
            first = self._cell(gpu, Chunks("i", 0), 0)
            self._mail[gpu] += a.chunks
            self._local(gpu, ("input", 0), first, chunks, frozenset(), "")
        for chunk in range(chunks):
            self._cells[gpu][self._cell(gpu, Chunks("i", chunk), 0)] = _Cell(1 << gpu * a.chunks + chunk, -1)

    def _read(self, step: BlockStep, past: int) -> list[int]:
        found = []
        for more in range(step.count):
            cell = self._cells[step.gpu].get(self._cell(step.gpu, step.src, more))
            if cell is None:
                raise InputError(
                    step.problem(f"reads chunk {step.src.at + more} of {step.src.buffer}, which has no value")
                )
            self._ordered(step, past, cell.writer, f"reads chunk {step.src.at + more} of {step.src.buffer}")
            cell.readers.append(len(self._order))
            found.append(cell.value)
        return found

    def _write(self, step: BlockStep, past: int, values: list[int]) -> None:
        cells = self._cells[step.gpu]
        for more, value in enumerate(values):
            at = self._cell(step.gpu, step.dst, more)
            if (old := cells.get(at)) is not None:
                for each in (old.writer, *old.readers):
                    self._ordered(step, past, each, f"writes chunk {step.dst.at + more} of {step.dst.buffer}")
            cells[at] = _Cell(value, len(self._order))

    def _ordered(self, step: BlockStep, past: int, other: int, does: str) -> None:
        """InputError if the other step may also run later."""
        if other >= 0 and other != len(self._order) and not past >> other & 1:
            why = f"{does}, and {self._order[other].name} uses it, too; nothing says which comes first"
            raise InputError(step.problem(why, "add depid, deps and hasdep"))

    def _added(self, step: BlockStep, old: list[int], new: list[int]) -> list[int]:
        for mine, other in zip(old, new, strict=True):
            if twice := mine & other:
                gpu, chunk = divmod((twice & -twice).bit_length() - 1, self._a.chunks)
                raise InputError(step.problem(f"reduces chunk {chunk} of the input of gpu {gpu} a second time"))
        return [mine | other for mine, other in zip(old, new, strict=True)]

    # steps

    def _waits(self, thread: _Thread, step: BlockStep) -> str:
        """What a step waits for; empty if it can run."""
        if step.after is not None and (step.gpu, *step.after) not in self._ended:
            return f"gpu {step.gpu}, tb {step.after[0]}, step {step.after[1]}"
        if step.receives and not self._ways[self._way_in(thread.block)]:
            return f"a send of gpu {thread.block.receives_from} on channel {thread.block.channel}"
        return ""

    @staticmethod
    def _way_in(block: Block) -> tuple[int, int, int]:
        return block.receives_from, block.gpu, block.channel

    def _do(self, thread: _Thread, step: BlockStep) -> None:
        past, front = thread.past, thread.front
        if step.after is not None:
            before, ends = self._ended[(step.gpu, *step.after)]
            past, front = past | before, front | ends
        if step.receives:
            message = self._ways[self._way_in(thread.block)].popleft()
            past |= message.past
            front = self._received(thread, step, message, past, front)
        elif step.kind == "s":
            front = self._send(thread, step, self._cell(step.gpu, step.src, 0), self._read(step, past), past, front)
        elif step.kind in ("cpy", "re"):
            front = self._moved(step, past, front)
        past |= 1 << len(self._order)
        self._order.append(step)
        thread.at, thread.past, thread.front = thread.at + 1, past, front
        self._ended[step.gpu, step.block, step.number] = past, front

    def _received(
        self, thread: _Thread, step: BlockStep, message: _Message, past: int, front: frozenset[int]
    ) -> frozenset[int]:
        """Use a message: reduce the chunks of `src` into it, copy it to `dst`, send it on."""
        gpu, values = step.gpu, message.values
        where: Cell = "scratch", message.at
        if len(values) != step.count:
            why = f"receives {step.count} chunks, but {message.sent.name} sends {len(values)}"
            raise InputError(step.problem(why, "correct cnt, or the order of sends and receives on this channel"))
        front |= {message.step}
        if step.kind.startswith("rr"):
            values = self._added(step, self._read(step, past), values)
            front = self._local(gpu, self._cell(gpu, step.src, 0), where, step.count, front, self._reduction)
        if step.kind != "rrs":
            self._write(step, past, values)
            front = self._local(gpu, where, self._cell(gpu, step.dst, 0), step.count, front, "")
        return self._send(thread, step, where, values, past, front) if step.sends else front

    def _moved(self, step: BlockStep, past: int, front: frozenset[int]) -> frozenset[int]:
        """Copy or reduce within the GPU."""
        values = self._read(step, past)
        if step.kind == "re":
            old = self._read(replace(step, src=step.dst), past)
            values = self._added(step, old, values)
        self._write(step, past, values)
        ends = self._cell(step.gpu, step.src, 0), self._cell(step.gpu, step.dst, 0)
        return self._local(step.gpu, *ends, step.count, front, self._reduction if step.kind == "re" else "")

    def _local(
        self, gpu: int, source: Cell, to: Cell, count: int, front: frozenset[int], reduce: Reduction | Literal[""]
    ) -> frozenset[int]:
        number = self._locals[gpu]
        self._locals[gpu] += 1
        span = source[1], source[1] + count
        after = tuple(sorted(front))
        self._programs[gpu].append(LocalStep(number, span, to[1], source[0], to[0], reduce, after))
        return frozenset({number})

    def _send(
        self, thread: _Thread, step: BlockStep, source: Cell, values: list[int], past: int, front: frozenset[int]
    ) -> frozenset[int]:
        """Give a message its number and mailbox at the receiver. What follows needs not wait for it."""
        to, gpu = thread.block.sends_to, step.gpu
        if step.kind == "s" and self._written_later(step):
            copy: Cell = "scratch", self._mail[gpu]
            self._mail[gpu] += step.count
            front = self._local(gpu, source, copy, step.count, front, "")
            source = copy
        number, at = self._steps[to], self._mail[to]
        self._steps[to] += 1
        self._mail[to] += step.count
        span = source[1], source[1] + step.count
        self._programs[gpu].append(SendStep(number, to, span, at, source[0], tuple(sorted(front))))
        self._programs[to].append(ReceiveStep(number, gpu, (at, at + step.count), "scratch"))
        way = gpu, to, thread.block.channel
        self._ways[way].append(_Message(number, at, values, step, past | 1 << len(self._order)))
        return front

    def _written_later(self, step: BlockStep) -> bool:
        """Whether a step of the GPU that has not run yet writes what this one sends."""
        cells = (self._cell(step.gpu, step.src, more) for more in range(step.count))
        return any(each not in self._ended for cell in cells for each in self._writers[step.gpu].get(cell, ()))

    # the end

    def _check_end(self) -> None:
        """InputError for steps that wait forever, and for messages that no step receives."""
        chain: list[BlockStep] = []
        thread = next((each for each in self._threads.values() if each.next is not None), None)
        problems = []
        while thread is not None and (step := thread.next) is not None and step not in chain:
            chain.append(step)
            waits, thread = self._waits(thread, step), self._awaited(thread, step)
            problems.append(step.problem(f"waits forever for {waits}"))
        if problems:
            raise InputError(*problems[:_MOST_IN_CHAIN])
        for (_, to, channel), messages in self._ways.items():
            if messages:
                why = f"sends to gpu {to} on channel {channel}, which does not receive it"
                raise InputError(messages[0].sent.problem(why))

    def _awaited(self, thread: _Thread, step: BlockStep) -> _Thread | None:
        """The thread block that a step waits for; None for a send that is in no thread block."""
        if step.after is not None and (step.gpu, *step.after) not in self._ended:
            return self._threads[step.gpu, step.after[0]]
        way = self._way_in(thread.block)
        senders = (
            each for each in self._threads.values() if (each.block.gpu, each.block.sends_to, each.block.channel) == way
        )
        return next(senders, None)

    def _check_result(self, gpu: int) -> None:
        """InputError for the first chunk of the result that is not that of the collective; in place, copy it."""
        a, cells = self._a, self._cells[gpu]
        pieces = wanted(a, gpu)
        for piece in pieces:
            for more in range(piece.hi - piece.lo):
                sources = range(a.ranks) if piece.source is None else [piece.source]
                want = sum(1 << source * a.chunks + piece.start + more for source in sources)
                cell = cells.get(self._cell(gpu, Chunks("o", piece.lo), more))
                if cell is None or cell.value != want:
                    raise InputError(self._wrong(gpu, piece.lo + more, cell, want))
        if a.in_place and pieces:
            front = frozenset().union(*(each.front for key, each in self._threads.items() if key[0] == gpu))
            self._local(gpu, self._cell(gpu, Chunks("o", 0), 0), ("output", 0), pieces[-1].hi, front, "")

    def _wrong(self, gpu: int, chunk: int, cell: _Cell | None, want: int) -> Problem:
        what = f"chunk {chunk} of the result of gpu {gpu}"
        if cell is None or cell.writer < 0:
            hint = f"{self._a.collective} needs {self._named(want)} there"
            return Problem(self._file, what, "is written by no step", hint)
        step, missing, more = self._order[cell.writer], want & ~cell.value, cell.value & ~want
        why = f"leaves {what} without {self._named(missing)}" if missing else f"adds {self._named(more)} to {what}"
        return step.problem(why, f"{self._a.collective} needs {self._named(want)} there")

    def _named(self, value: int) -> str:
        """`chunk 3 of the inputs of gpus 0, 1, 2`."""
        found = [divmod(bit, self._a.chunks) for bit in range(value.bit_length()) if value >> bit & 1]
        gpus = [str(gpu) for gpu, chunk in found if chunk == found[0][1]]
        return (
            f"chunk {found[0][1]} of the input{'s' * (len(gpus) > 1)} of gpu{'s' * (len(gpus) > 1)} {', '.join(gpus)}"
        )


def wanted(algorithm: Algorithm, gpu: int) -> list[Piece]:
    """The result of a GPU by the definition of the collective, in chunks. Roots are GPU 0."""
    chunks, ranks = algorithm.chunks, algorithm.ranks
    part = chunks // ranks
    parts = [(source * part, (source + 1) * part, source) for source in range(ranks)]
    of_root = () if gpu else (0,)
    found: Mapping[str, list[Piece]] = {
        "all-reduce": [Piece(0, chunks, None, 0)],
        "all-gather": [Piece(*each, 0) for each in parts],
        "reduce-scatter": [Piece(0, part, None, gpu * part)],
        "all-to-all": [Piece(*each, gpu * part) for each in parts],
        "broadcast": [Piece(0, chunks, 0, 0)],
        "reduce": [Piece(0, chunks, None, 0) for _ in of_root],
        "gather": [Piece(*each, 0) for _ in of_root for each in parts],
        "scatter": [Piece(0, part, 0, gpu * part)],
    }
    return found[algorithm.collective]


_BOUND: Final = "|"  # between the name of a file and its compressed text
_FACTORS: Final = {"broadcast": 1.0, "reduce": 1.0}
_REDUCING: Final = ("all-reduce", "reduce-scatter", "reduce")


def file_of(msccl: str) -> list[str]:
    """The name of the file, as typed."""
    return [msccl.partition(_BOUND)[0]]


def is_msccl_file(typed: str) -> bool:
    """Whether it is a name, without the text of a file."""
    return bool(typed) and _BOUND not in typed


@dataclass(frozen=True)
class MscclProgram(ReducingPattern):
    """A program of an XML file, for a fixed number of ranks. msccl: the name of the file; after `bound` its text.

    The file is read once and checked before anything starts. Then its text is a parameter, so workers need no file.
    """

    collective = "msccl"
    algorithm = "xml"
    replaces = False
    of_file = "msccl"

    msccl: Annotated[str, Declared(
        "MSCCL XML file with the program of all ranks", GROUP, reads=str, value="FILE", writes=file_of,
        assistants=False,
    )] = ""  # fmt: skip

    @property
    def typed(self) -> str:
        return f"--msccl {file_of(self.msccl)[0]}"

    def bound(self, endpoints: Sequence[Endpoint], sizes: Sequence[int]) -> MscclProgram:
        """With the text of its file, checked."""
        if not self.msccl:
            hint = "use --msccl FILE"
            raise InputError(Problem("", "--collective msccl", "needs the XML file of a program", hint))
        found = self
        if is_msccl_file(self.msccl):
            packed = base64.b85encode(zlib.compress(_read(self.msccl), 9)).decode()
            found = replace(self, msccl=self.msccl + _BOUND + packed)
        found._compiled()
        return found

    def _compiled(self) -> Programs:
        return _compiled(self.msccl, self.operation)

    @property
    def _program(self) -> Algorithm:
        return _algorithm(self.msccl)

    @property
    def redop(self) -> Reduction | Literal["none"]:
        return self.operation if self._program.collective in _REDUCING else "none"

    def busbw_factor(self, ranks: int) -> float:
        usual = (ranks - 1) / ranks
        return 2 * usual if self._program.collective == "all-reduce" else _FACTORS.get(self._program.collective, usual)

    def unfit(self, ranks: int) -> str:
        if ranks != self._program.ranks:
            return f"is a program for {self._program.ranks} ranks, not {ranks}; use --ranks {self._program.ranks}"
        if self.redop == "avg":
            return "has no average; use --op sum"
        return "" if self.redop == "none" else super().unfit(ranks)

    def whole(self, ranks: int, count: int) -> int:
        return count // self._program.chunks * self._program.chunks

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        width = count // self._program.chunks
        return [_scaled(each, width) for each in self._compiled()[rank]]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        width = count // self._program.chunks
        pieces = wanted(self._program, rank)
        return [Piece(each.lo * width, each.hi * width, each.source, each.start * width) for each in pieces]

    def credits(self, ranks: int) -> NDArray[np.int64]:
        """As `Pattern.credits`, with chunks instead of elements."""
        import numpy as np

        masks = known(self._compiled())
        found = [(dst, src) for src, dst in self.routes(ranks).tolist() if not masks[src] >> dst & 1]
        return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)

    def routes(self, ranks: int) -> NDArray[np.int64]:
        import numpy as np

        pairs = {
            (each.source, rank)
            for rank, steps in enumerate(self._compiled())
            for each in steps
            if isinstance(each, ReceiveStep)
        }
        return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _scaled(step: Step, width: int) -> Step:
    """With elements instead of chunks. width: elements of a chunk."""
    if isinstance(step, ComputeStep):
        return step
    span = step.span[0] * width, step.span[1] * width
    return replace(step, span=span) if isinstance(step, ReceiveStep) else replace(step, span=span, put=step.put * width)


def _read(file: str) -> bytes:
    try:
        return read_regular(real(file), MAX_BYTES)
    except OSError as error:
        hint = "check the path; in a workload file it is relative to that file"
        raise InputError(Problem("", f"--msccl {file}", f"cannot be read: {error.strerror}", hint)) from None


@lru_cache(maxsize=8)
def _algorithm(bound: str) -> Algorithm:
    """The algorithm of a bound text; of the name of a file, too, before it is bound."""
    name, mark, packed = bound.partition(_BOUND)
    return read_algorithm(zlib.decompress(base64.b85decode(packed)) if mark else _read(name), name)


@lru_cache(maxsize=8)
def _compiled(bound: str, operation: Reduction) -> Programs:
    return Machine(_algorithm(bound), operation, file_of(bound)[0]).run()
