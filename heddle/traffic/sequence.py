"""The pattern of a job that runs several parts in each iteration: it composes the programs of their patterns.

In:  parts, as a workload file's `steps`, or an importer of traces, states them. Their text is an option of a job
     (`RunOptions.steps`): plain data. Its times are those of hardware until `bound_steps` multiplies them by k.
Out: a Pattern of all ranks of the job.
Each part has ranges of its own in the buffers of its ranks, and numbers of its own for its steps. Where a later part
waits for it, a computation of no time marks its end at a rank: all its receives and computations are done, and its
sends are posted. Sends of the later part wait for that mark. Computations of a rank never overlap, as on one stream of
a GPU: each also waits for the one before it in the list.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from heddle.base.declared import options_of
from heddle.base.problems import InputError, Problem
from heddle.base.units import format_size
from heddle.traffic.collectives import Pattern, Piece, find_pattern
from heddle.traffic.collectives.pattern import (
    OFFSET_BITS,
    ComputeStep,
    DType,
    LocalStep,
    ReceiveStep,
    SendStep,
    Span,
    Step,
)


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that some ranks of a job do in an iteration: a collective or transfer, or a computation.

    ranks: of the job; their order is that of the pattern's own ranks. pattern: what they run; None: each of them
    computes for `seconds` (emulated time). size_bytes: of a rank's array, as --size. after: indices of earlier parts;
    a rank begins its sends, or its computation, when it has done those of them in which it takes part. (Receives are
    always posted.)
    """

    name: str
    ranks: tuple[int, ...]
    pattern: Pattern | None = None
    size_bytes: int = 0
    seconds: float = 0.0
    after: tuple[int, ...] = ()


def parts_text(parts: Sequence[Part], note: str = "") -> str:
    """Parts as text. The type of elements is not in it: a job has one for all its parts. note: as in `steps_text`."""
    return _dumped({"parts": [_plain(part) for part in parts], "note": note})


def steps_text(steps: Sequence[Mapping[str, Any]] | Sequence[Part], note: str = "") -> str:
    """The option `steps` of a job: parts, or the steps of a file, with times of hardware. note: for the run's head."""
    plain = [_plain(each) if isinstance(each, Part) else each for each in steps]
    return _dumped({"steps": plain, "note": note})


def _dumped(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _plain(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {"name": part.name, "ranks": part.ranks}
    if part.pattern is not None:
        pattern = part.pattern
        found |= {"collective": pattern.collective, "algorithm": pattern.algorithm, "size": part.size_bytes}
        values = {each.name: (getattr(pattern, each.name), each.usual) for each in options_of(type(pattern))}
        parameters = {name: value for name, (value, usual) in values.items() if name != "dtype" and value != usual}
        found |= {"parameters": parameters} if parameters else {}
    if part.seconds:
        found["seconds"] = part.seconds
    return found | ({"after": part.after} if part.after else {})


@lru_cache(maxsize=8)
def parts_of(text: str, dtype: DType) -> tuple[Part, ...]:
    """The parts of a text of `parts_text`, with elements of a type. InputError for another text."""
    try:
        return tuple(
            Part(
                str(each["name"]), tuple(map(int, each["ranks"])), pattern_of(each, dtype), int(each.get("size", 0)),
                float(each.get("seconds", 0.0)), tuple(map(int, each.get("after", ()))),
            )
            for each in json.loads(text)["parts"]
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(Problem("", "steps", f"are damaged: {error!r}", "run the workload again")) from None


def note_of(text: str) -> str:
    """What a user should know of the parts of a text; empty if nothing."""
    return str(json.loads(text).get("note", ""))


def pattern_of(step: Mapping[str, Any], dtype: DType) -> Pattern | None:
    """The pattern of a step in plain data; None: it computes. InputError for wrong parameters."""
    if "collective" not in step:
        return None
    parameters = {**step.get("parameters", {}), "dtype": dtype}
    return find_pattern(step["collective"], step.get("algorithm", ""), **parameters)


STEPS: Final = "steps"
_ALIGN: Final = 16  # elements
_SHOWN: Final = 16  # steps that a table names


class _Placed(NamedTuple):
    """A part, the elements of a rank's array, and where it begins: its first step, its first element of each buffer.

    end: the step that marks its end. waited: whether a later part waits for it.
    """

    part: Part
    elements: int
    step: int
    at: int
    end: int
    waited: bool


@dataclass(frozen=True)
class PartSequence(Pattern):
    """Parts in one iteration. Sizes are those of the parts: the element count of a method has no effect.

    Its size is what the busiest rank sends or receives, so busbw is the rate of that rank over the whole iteration.
    """

    collective = STEPS
    algorithm = "list"
    replaces = False
    steps: str = ""
    hosts: tuple[str, ...] = ()  # of each rank, where that matters to a part

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return _hosted(self.steps, self.dtype, self.hosts)

    def hosted(self, hosts: Sequence[str]) -> PartSequence:
        return replace(self, hosts=tuple(hosts))

    def unfit(self, ranks: int) -> str:
        """The first part that its ranks do not fit."""
        found = ((part.pattern, part.pattern.unfit(len(part.ranks))) for part in self.parts if part.pattern is not None)
        return next((f"have {each.algorithm} {each.collective}, which {why}" for each, why in found if why), "")

    @property
    def note(self) -> str:
        """What a user should know of them, as the factor of their sizes."""
        return note_of(self.steps)

    def lines(self) -> Iterator[str]:
        """The parts in words, those of one step together; the first ones only."""
        together = [[*found] for _, found in groupby(self.parts, lambda part: replace(part, ranks=(), after=()))]
        for first, *more in together[:_SHOWN]:
            many = f"{1 + len(more)} groups of " * bool(more) + f"{len(first.ranks)} rank{'s' * (len(first.ranks) > 1)}"
            if first.pattern is None:
                what = f"compute for {1e3 * first.seconds:.4g} ms"
            else:
                pattern = first.pattern
                size = pattern.whole(len(first.ranks), first.size_bytes // pattern.element_bytes)
                name = f"{pattern.algorithm} {pattern.collective}"
                name = "transfer" if pattern.collective == "broadcast" and len(first.ranks) == 2 else name
                what = f"{name} of {format_size(size * pattern.element_bytes)}"
            yield f"{first.name}: {what}, {many}" if first.name else f"{what}, {many}"
        if len(together) > _SHOWN:
            yield f"and {len(together) - _SHOWN} more"
        if self.note:
            yield self.note

    @property
    def typed(self) -> str:
        return STEPS

    @property
    def by_rank(self) -> bool:
        """Always: parts name ranks of the job."""
        return True

    def added(self, ranks: int) -> int:
        return max((p.pattern.added(len(p.ranks)) for p in self.parts if p.pattern is not None), default=1)

    def reductions(self, ranks: int, count: int) -> Sequence[Piece]:
        return [
            replace(each, lo=at + each.lo, hi=at + each.hi, start=at + each.start, ranks=part.ranks)
            for part, elements, _, at, *_ in _placed(self)
            if part.pattern is not None
            for each in part.pattern.reductions(len(part.ranks), elements)
        ]

    def program(self, ranks: int, rank: int, count: int) -> list[Step]:
        return [*_programs(self, ranks)[rank]]

    def result(self, ranks: int, rank: int, count: int) -> Sequence[Piece]:
        return [piece for placed in _placed(self) if rank in placed.part.ranks for piece in _pieces(placed, rank)]

    def busbw_factor(self, ranks: int) -> float:
        return 1.0

    def whole(self, ranks: int, count: int) -> int:
        """Elements that the busiest rank sends or receives."""
        sent, received = Counter[int](), Counter[int]()
        for rank, program in enumerate(_programs(self, ranks)):
            for each in program:
                if isinstance(each, SendStep):
                    sent[rank] += each.span[1] - each.span[0]
                    received[each.to] += each.span[1] - each.span[0]
        return max([*sent.values(), *received.values()], default=0)

    def held(self, ranks: int, count: int) -> int:
        return max((placed.at + _room(placed.part.pattern, len(placed.part.ranks), placed.elements)[1]
                    for placed in _placed(self)), default=0)  # fmt: skip

    def serial(self, ranks: int, count: int) -> tuple[int, int, float]:
        found = [
            (*p.part.pattern.serial(len(p.part.ranks), p.elements)[:2], 0.0) if p.part.pattern is not None
            else (0, 0, p.part.seconds)
            for p in _placed(self)
        ]  # fmt: skip
        elements, steps, seconds = zip(*found, strict=True)
        return sum(elements), sum(steps), sum(seconds)

    def computing(self, rank: int) -> float:
        return sum(part.seconds for part in self.parts if part.pattern is None and rank in part.ranks)

    def most_steps(self, ranks: int) -> int:
        """Steps of the rank that has most, with those of credits."""
        return max((placed.end for placed in _placed(self)), default=0) + 1 + ranks

    def too_large(self, ranks: int) -> str:
        """More bytes than an address can number."""
        size, most = self.held(ranks, 0) * self.element_bytes, 1 << OFFSET_BITS
        return f"need {size:,} bytes of one rank's memory; the limit is {most:,}" if size > most else ""


@lru_cache(maxsize=4)
def _hosted(steps: str, dtype: DType, hosts: tuple[str, ...]) -> tuple[Part, ...]:
    found = []
    for part in parts_of(steps, dtype):
        on = [hosts[rank] for rank in part.ranks] if hosts else []
        found.append(part if part.pattern is None or not on else replace(part, pattern=part.pattern.hosted(on)))
    return tuple(found)


@lru_cache(maxsize=4096)
def _room(pattern: Pattern | None, ranks: int, count: int) -> tuple[int, int]:
    """The number of steps that a pattern uses, and the elements of its largest buffer."""
    steps = end = 0
    if pattern is None:
        return 0, 0
    for rank in range(ranks):
        for each in pattern.program(ranks, rank, count):
            steps = max(steps, each.step + 1)
            end = max(end, 0 if isinstance(each, ComputeStep) else each.span[1])
            if isinstance(each, LocalStep):
                end = max(end, each.put + each.span[1] - each.span[0])
        for piece in pattern.result(ranks, rank, count):
            end = max(end, piece.hi, 0 if piece.source is None else piece.start + piece.hi - piece.lo)
    return steps, -(-end // _ALIGN) * _ALIGN


@lru_cache(maxsize=8)
def _placed(sequence: PartSequence) -> tuple[_Placed, ...]:
    """The parts one after the other. Those without a common rank may have the same steps and elements."""
    waited = {index for part in sequence.parts for index in part.after}
    steps, ends, found = Counter[int](), Counter[int](), []
    for index, part in enumerate(sequence.parts):
        pattern, ranks = part.pattern, len(part.ranks)
        count = 0 if pattern is None else pattern.whole(ranks, part.size_bytes // pattern.element_bytes)
        step, at = (max(used[rank] for rank in part.ranks) for used in (steps, ends))
        more, length = _room(pattern, ranks, count)
        for rank in part.ranks:
            steps[rank], ends[rank] = step + more + 1, at + length
        found.append(_Placed(part, count, step, at, step + more, index in waited))
    return tuple(found)


@lru_cache(maxsize=2)
def _programs(sequence: PartSequence, ranks: int) -> list[list[Step]]:
    """The operations of all ranks, without credits."""
    found: list[list[Step]] = [[] for _ in range(ranks)]
    marks: list[dict[int, int]] = [{} for _ in range(ranks)]  # by rank: part -> the step that marks its end
    computed: list[tuple[int, ...]] = [()] * ranks  # by rank: its last computation
    for index, placed in enumerate(_placed(sequence)):
        for place, rank in enumerate(placed.part.ranks):
            begins = tuple(marks[rank][each] for each in placed.part.after if each in marks[rank])
            if placed.part.pattern is None:
                found[rank].append(ComputeStep(placed.end, placed.part.seconds, (*begins, *computed[rank])))
                computed[rank], marks[rank][index] = (placed.end,), placed.end
                continue
            own = [*_moved(placed, placed.part.pattern, place, begins)]
            found[rank] += own
            if placed.waited:
                done = (each.step for each in own if not isinstance(each, SendStep))
                found[rank].append(ComputeStep(placed.end, 0.0, (*begins, *done)))
                marks[rank][index] = placed.end
    return found


def _moved(placed: _Placed, pattern: Pattern, place: int, begins: tuple[int, ...]) -> Iterator[Step]:
    """The operations of one rank in one part, with the numbers of the job."""
    ranks, step = placed.part.ranks, placed.step

    def moved(span: Span) -> Span:
        return span[0] + placed.at, span[1] + placed.at

    for each in pattern.program(len(ranks), place, placed.elements):
        number = each.step + step
        if isinstance(each, ReceiveStep):
            yield ReceiveStep(number, ranks[each.source], moved(each.span), each.buffer, each.reduce, each.divide)
            continue
        after = (*begins, *(before + step for before in each.after))
        if isinstance(each, ComputeStep):
            yield ComputeStep(number, each.seconds, after)
            continue
        span, put = moved(each.span), each.put + placed.at
        if isinstance(each, LocalStep):
            yield LocalStep(number, span, put, each.buffer, each.into, each.reduce, after)
        else:
            nearly = tuple(before + step for before in each.nearly)
            yield SendStep(number, ranks[each.to], span, put, each.buffer, after, nearly)


def _pieces(placed: _Placed, rank: int) -> Iterator[Piece]:
    part, at = placed.part, placed.at
    if part.pattern is None:
        return
    for piece in part.pattern.result(len(part.ranks), part.ranks.index(rank), placed.elements):
        reduced: tuple[int, ...] = ()
        operation = piece.operation
        if piece.source is None:
            reduced = tuple(part.ranks[each] for each in piece.ranks) or part.ranks
            operation = operation or (part.pattern.redop if part.pattern.redop != "none" else "")
        yield Piece(
            piece.lo + at, piece.hi + at, None if piece.source is None else part.ranks[piece.source],
            piece.start + at, reduced, operation, part.pattern.buffer_of(piece),
        )  # fmt: skip
