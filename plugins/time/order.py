"""The order of transfers that follows from operations, for patterns without a closed form, and of the parts of a job.

In:  as for closed forms (runs.py). Out: runs, and the seconds until the last computation ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np

from heddle.base.problems import InputError, Problem
from heddle.traffic.collectives.pattern import Buffer, ComputeStep, Pattern, Ranges, ReceiveStep, SendStep, Step
from heddle.traffic.sequence import PartSequence
from heddle_plugins.time.runs import FORMS, FORWARDED, PACED, Run, Time, forwarded

MOST_OPERATIONS: Final = 400_000
DIGITS: Final = 12  # of seconds: sums of the same computations in another order are equal
Ordered = tuple[list[Run], float]


class _Sent(NamedTuple):
    """A transfer. forwards: it passes on whole received transfers, message by message."""

    begin: Time
    src: int
    dst: int
    elements: int
    forwards: bool


class _Operation(NamedTuple):
    rank: int
    each: Step
    needs: tuple[int, ...]
    forwards: bool


def derived(pattern: Pattern, ranks: int, count: int, width: int) -> Ordered:
    """By operations: a send begins when all has arrived that it waits for. InputError: too many, or a circle."""
    programs: list[list[Step]] = []
    operations = 0
    for rank in range(ranks):
        programs.append(pattern.program(ranks, rank, count))
        operations += len(programs[-1])
        if operations > MOST_OPERATIONS:
            why = f"has more than {MOST_OPERATIONS:,} operations with {ranks:,} ranks, and no closed form"
            raise InputError(Problem("", pattern.typed, why, "use fewer --ranks, or another --algorithm"))
    paced = isinstance(pattern, PACED)
    operated = [[*_with_needs(rank, each, paced=paced, streams=pattern.streams)] for rank, each in enumerate(programs)]
    sent, end_s, left = _in_order(operated)
    if left:
        why = f"has {left:,} operations that wait for each other, or for a transfer that is not sent"
        raise InputError(Problem("", pattern.typed, why, "correct its steps"))
    runs: list[Run] = []
    by_message = isinstance(pattern, FORWARDED)
    by: Callable[[_Sent], Any] = (lambda each: each.elements) if by_message else (lambda each: each.begin)
    before: tuple[Time, set[tuple[int, int]]] = (Time(), set())
    for key, group in groupby(sorted(sent, key=by), key=by):
        begins, src, dst, elements, forwards = zip(*group, strict=True)
        ends, lengths = (np.array(src), np.array(dst)), np.array(elements, dtype=np.int64)
        if by_message:
            runs += forwarded(*ends, np.array([each.wave for each in begins]), key, width)
        else:
            pairs = set(zip(src, dst, strict=True))
            busy = (key.after_s, key.wave - 1) == before[0] and pairs <= before[1]
            follows = busy and all(forwards) and bool((lengths > width).all())
            runs.append(Run(key, 1, *ends, lengths, follows=follows))
            before = key, pairs
    return runs, end_s


def _with_needs(rank: int, program: Sequence[Step], *, paced: bool, streams: bool) -> Iterator[_Operation]:
    """The operations of a rank without its receives, each with the steps that it waits for.

    streams: a send waits for no transfer, only for its first message, which is left out.
    """
    written: defaultdict[Buffer, Ranges] = defaultdict(Ranges)
    steps: set[int] = set()
    for each in program:
        if not isinstance(each, ComputeStep) and each.span[0] >= each.span[1]:
            continue
        if isinstance(each, ReceiveStep):
            written[each.buffer].add(each.span, each.step)
            steps.add(each.step)
            continue
        needs = set[int]() if paced else steps.intersection(each.after)
        forwards = False
        if isinstance(each, SendStep):
            read = written[each.buffer].overlapping(each.span)
            forwards = not needs and all(span == each.span for span, _ in read)
            needs.update(step for _, step in read if not streams)
        else:
            steps.add(each.step)
        yield _Operation(rank, each, tuple(needs), forwards)


def _in_order(programs: Sequence[Sequence[_Operation]]) -> tuple[list[_Sent], float, int]:
    """When each send begins if transfers take no time; when the last computation ends; how many never begin."""
    starting: list[tuple[_Operation, Time]] = []
    missing: list[int] = []  # by number of an operation that waits
    begins: dict[int, Time] = {}
    waiting: defaultdict[tuple[int, int], list[tuple[int, _Operation]]] = defaultdict(list)  # by rank and step
    for operation in (each for program in programs for each in program):
        if not operation.needs:
            starting.append((operation, Time()))
            continue
        begins[len(missing)] = Time()
        for step in operation.needs:
            waiting[operation.rank, step].append((len(missing), operation))
        missing.append(len(operation.needs))
    found: list[_Sent] = []
    end_s = 0.0
    while starting:
        (rank, each, _, forwards), begin = starting.pop()
        done, end = (rank, each.step), begin
        if isinstance(each, SendStep):
            found.append(_Sent(begin, rank, each.to, each.span[1] - each.span[0], forwards))
            done, end = (each.to, each.step), begin._replace(wave=begin.wave + 1)
        elif isinstance(each, ComputeStep):
            end = _computed(begin, each.seconds)
            end_s = max(end_s, end.after_s)
        for number, operation in waiting.pop(done, ()):
            missing[number] -= 1
            begins[number] = max(begins[number], end)
            if not missing[number]:
                starting.append((operation, begins.pop(number)))
    return found, end_s, len(begins)


def _computed(begin: Time, seconds: float) -> Time:
    return Time(round(begin.after_s + seconds, DIGITS)) if seconds else begin


def sequence(pattern: PartSequence, width: int) -> Ordered:
    """By parts, each in the order of its own pattern; equal ones are computed once.

    A part begins when all its ranks may begin it, and ends for all at the same time.
    """
    ends: list[dict[int, Time]] = []
    computed: dict[int, Time] = {}
    cached: dict[tuple[Pattern, int, int], Ordered] = {}
    found: list[Run] = []
    end_s = 0.0
    for part in pattern.parts:
        begins = {
            rank: max((ends[at][rank] for at in part.after if rank in ends[at]), default=Time()) for rank in part.ranks
        }
        if part.pattern is None:
            for rank in part.ranks:
                own = max(begins[rank], computed.get(rank, Time()))
                computed[rank] = begins[rank] = _computed(own, part.seconds)
                end_s = max(end_s, computed[rank].after_s)
            ends.append(begins)
            continue
        begin, members = max(begins.values()), np.array(part.ranks, dtype=np.int32)
        key = part.pattern, len(members), part.size_bytes
        if key not in cached:
            count = part.pattern.whole(len(members), part.size_bytes // part.pattern.element_bytes)
            cached[key] = ordered(part.pattern, len(members), count, width)
        moved = [
            each._replace(
                begin=Time(begin.after_s + each.begin.after_s, each.begin.wave + begin.wave * (not each.begin.after_s)),
                src=members[each.src],
                dst=members[each.dst],
            )
            for each in cached[key][0]
        ]
        found += moved
        end_s = max(end_s, begin.after_s + cached[key][1])
        ends.append(dict.fromkeys(part.ranks, max([begin, *(each.end for each in moved)])))
    return found, end_s


def ordered(pattern: Pattern, ranks: int, count: int, width: int) -> Ordered:
    """By parts, by a closed form, or by operations."""
    if isinstance(pattern, PartSequence):
        return sequence(pattern, width)
    form = FORMS.get(type(pattern))
    return ([*form.runs(pattern, ranks, count, width)], 0.0) if form else derived(pattern, ranks, count, width)
