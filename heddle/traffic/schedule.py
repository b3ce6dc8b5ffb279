"""One rank's part of one collective, cut into messages with their dependencies: the only input of the ranks' engine.

In:  a pattern, the number of ranks, a rank, an element count, the message size.
Out: Schedule: sends, receives and computations in bytes of named buffers, and what each of them waits for.
An iteration ends when all are done. A send is done when it was posted: where that is too early for the sender, the
receiver's credit is one of its receives (collectives/pattern.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from heddle.traffic.collectives.pattern import (
    NEARLY_BYTES,
    Buffer,
    ComputeStep,
    LocalStep,
    Pattern,
    Ranges,
    ReceiveStep,
    Reduction,
    SendStep,
    Span,
)

MESSAGE_BITS: Final = 12  # bits of the immediate, for a message's index within its step
MAX_MESSAGES: Final = 1 << MESSAGE_BITS

Key = tuple[int, int]  # (step, index of the message within the step): the same at sender and receiver


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes [lo, hi) of a buffer to `peer`, to byte `put` of its buffer and up, once all of `needs` are done.

    turn: its number among the messages to that peer, in the order of the steps.
    """

    key: Key
    peer: int
    lo: int
    hi: int
    put: int
    needs: tuple[Key, ...]
    turn: int
    buffer: Buffer = "input"


@dataclass(frozen=True, slots=True)
class Receive:
    """Bytes [lo, hi) of a buffer from `peer`: combined with the old values by `reduce`, or copied if it is empty.

    divide: then divide by this number, after the last receive of these bytes.
    """

    key: Key
    peer: int
    lo: int
    hi: int
    reduce: Reduction | Literal[""]
    buffer: Buffer = "output"
    divide: int = 1

    @property
    def range(self) -> tuple[Buffer, int, int]:
        """The bytes that it writes."""
        return self.buffer, self.lo, self.hi


class Divisors:
    """The divisor of each receive of one iteration: of receives that average the same bytes, only the last divides."""

    def __init__(self, receives: Mapping[Key, Receive]) -> None:
        self._missing = Counter(each.range for each in receives.values() if each.divide > 1)

    def of(self, receive: Receive) -> int:
        """The divisor of the next receive that is complete."""
        if receive.divide > 1:
            self._missing[receive.range] -= 1
        return 1 if self._missing[receive.range] else receive.divide


@dataclass(frozen=True, slots=True)
class Compute:
    """Work that takes `seconds`, once all of `needs` are done."""

    key: Key
    seconds: float
    needs: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Local:
    """Copy or reduce bytes [lo, hi) of a buffer into another, from byte `put` on, once all of `needs` are done."""

    key: Key
    lo: int
    hi: int
    put: int
    needs: tuple[Key, ...]
    buffer: Buffer
    into: Buffer
    reduce: Reduction | Literal[""]


Action = Send | Compute | Local


@dataclass(frozen=True, slots=True)
class Schedule:
    """All operations of one rank for one size. actions: its sends, computations and local steps, in order.

    waiting: receive, computation or local step -> indices of the actions that wait for it. messages: peer -> number of
    messages to it. buffers: bytes of each buffer.
    """

    actions: tuple[Action, ...]
    receives: dict[Key, Receive]
    waiting: dict[Key, tuple[int, ...]]
    messages: Mapping[int, int]
    buffers: Mapping[Buffer, int]

    @property
    def sends(self) -> tuple[Send, ...]:
        """The actions that send."""
        return tuple(each for each in self.actions if isinstance(each, Send))

    @property
    def operations(self) -> int:
        """The number of operations that an iteration waits for: all but sends."""
        return len(self.receives) + len(self.actions) - sum(self.messages.values())


def build_schedule(pattern: Pattern, ranks: int, rank: int, count: int, chunk: int) -> Schedule:
    """Cut every transfer into messages of at most `chunk` bytes; empty transfers are omitted."""
    program = pattern.operations(ranks, rank, count)
    size, width = pattern.element_bytes, chunk // pattern.element_bytes
    receives: dict[Key, Receive] = {}
    actions: list[Action] = []
    messages: Counter[int] = Counter()
    buffers: Counter[Buffer] = Counter()
    for piece in pattern.result(ranks, rank, count):
        at = pattern.buffer_of(piece)
        buffers[at] = max(buffers[at], piece.hi * size)
        if piece.source == rank:
            buffers["input"] = max(buffers["input"], (piece.start + piece.hi - piece.lo) * size)
    before: dict[int, ReceiveStep | ComputeStep | LocalStep] = {}  # by step
    written: defaultdict[Buffer, Ranges] = defaultdict(Ranges)  # by receives so far, with their steps
    for each in program:
        if isinstance(each, ComputeStep):
            actions.append(Compute((each.step, 0), each.seconds, tuple(_all(each, before, width))))
            before[each.step] = each
            continue
        lo, hi = each.span
        if lo >= hi:
            continue
        buffers[each.buffer] = max(buffers[each.buffer], hi * size)
        if isinstance(each, ReceiveStep):
            for key, start, end in _pieces(each.step, each.span, width):
                receives[key] = Receive(
                    key, each.source, start * size, end * size, each.reduce, each.buffer, each.divide
                )
            before[each.step] = each
            written[each.buffer].add(each.span, each.step)
            continue
        if isinstance(each, LocalStep):
            put, needs = each.put * size, tuple(_all(each, before, width))
            buffers[each.into] = max(buffers[each.into], put + (hi - lo) * size)
            actions.append(Local((each.step, 0), lo * size, hi * size, put, needs, each.buffer, each.into, each.reduce))
            before[each.step] = each
            continue
        # Whole steps are searched first, since there are far more messages than steps.
        whole = _all(each, before, width) + _nearly_all(each, before, width, max(1, NEARLY_BYTES // chunk))
        partly = written[each.buffer].overlapping(each.span)
        for key, start, end in _pieces(each.step, each.span, width):
            waits = dict.fromkeys((*whole, *(need for t in partly for need in _messages_in(t, start, end, width))))
            put = (each.put + start - lo) * size
            turn = messages[each.to]
            actions.append(Send(key, each.to, start * size, end * size, put, tuple(waits), turn, each.buffer))
            messages[each.to] += 1
    waiting: dict[Key, list[int]] = {}
    for index, action in enumerate(actions):
        for need in action.needs:
            waiting.setdefault(need, []).append(index)
    found = {key: tuple(indices) for key, indices in waiting.items()}
    return Schedule(tuple(actions), receives, found, messages, buffers)


def messages_of(elements: int, chunk: int, element_bytes: int) -> int:
    """The number of messages of at most `chunk` bytes for a range of elements."""
    return -(-elements * element_bytes // chunk)


def _all(
    each: SendStep | ComputeStep | LocalStep, before: Mapping[int, ReceiveStep | ComputeStep | LocalStep], width: int
) -> list[Key]:
    """Every message, computation or local step of the steps `after`."""
    found: list[Key] = []
    for step in each.after:
        t = before.get(step)
        if isinstance(t, ReceiveStep):
            found += [key for key, _, _ in _pieces(step, t.span, width)]
        elif t is not None:
            found.append((step, 0))
    return found


def _nearly_all(
    send: SendStep, before: Mapping[int, ReceiveStep | ComputeStep | LocalStep], width: int, last: int
) -> list[Key]:
    """The messages of the receives `nearly` without the last ones."""
    receives = (each for step in send.nearly if isinstance(each := before.get(step), ReceiveStep))
    return [key for each in receives for key, _, _ in [*_pieces(each.step, each.span, width)][:-last]]


def _messages_in(written: tuple[Span, int], lo: int, hi: int, width: int) -> Iterator[Key]:
    """The messages of a received range, with its step, that write into elements [lo, hi)."""
    (start, end), step = written
    if max(start, lo) < min(end, hi):
        for index in range((max(lo, start) - start) // width, (min(hi, end) - 1 - start) // width + 1):
            yield (step, index)


def _pieces(step: int, span: Span, width: int) -> Iterator[tuple[Key, int, int]]:
    lo, hi = span
    for index, start in enumerate(range(lo, hi, width)):
        yield (step, index), start, min(start + width, hi)
