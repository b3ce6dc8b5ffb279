"""One rank's part of one collective, cut into messages with their dependencies.

In:  a pattern, the number of ranks, a rank, an element count, the message size.
Out: Schedule: sends and receives, and for each send the receives that must be applied before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from heddle.traffic.collectives import Pattern, Transfer
from heddle.traffic.readers import ELEMENT_BYTES

MESSAGE_BITS: Final = 12  # bits of the immediate, for a message's index within its step
MAX_MESSAGES: Final = 1 << MESSAGE_BITS

Key = tuple[int, int]  # (step, index of the message within the step): the same at sender and receiver


@dataclass(frozen=True, slots=True)
class Send:
    """Send elements [lo, hi) to `peer`, to its element `put` and up, once all of `needs` are applied.

    turn: its number among the messages to that peer, in the order of the steps.
    """

    key: Key
    peer: int
    lo: int
    hi: int
    put: int
    needs: tuple[Key, ...]
    turn: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Elements [lo, hi) from `peer`: added (`reduce`) or copied."""

    key: Key
    peer: int
    lo: int
    hi: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """All messages of one rank for one size. messages: peer -> number of messages to it."""

    sends: tuple[Send, ...]
    receives: dict[Key, Receive]
    waiting: dict[Key, tuple[int, ...]]  # receive -> indices of the sends that wait for it
    messages: Mapping[int, int]


def build_schedule(pattern: Pattern, ranks: int, rank: int, count: int, chunk: int) -> Schedule:
    """Cut every transfer into messages of at most `chunk` bytes; empty transfers are omitted."""
    program = pattern.program(ranks, rank, count)
    receives: dict[Key, Receive] = {}
    sends: list[Send] = []
    messages: Counter[int] = Counter()
    for at, transfer in enumerate(program):
        # By the contract of patterns, a range waits for all data that earlier steps put into it. Whole transfers are
        # searched first, since there are far more messages than steps.
        before = program[:at] if pattern.in_place else ()
        earlier = [t for t in before if t.step < transfer.step and _overlap(t.recv, transfer.send)]
        whole = [key for t in program if t.step in transfer.after for key, _, _ in _pieces(t.step, t.recv, chunk)]
        for key, lo, hi in _pieces(transfer.step, transfer.send, chunk):
            needs = dict.fromkeys((*whole, *(need for t in earlier for need in _messages_in(t, lo, hi, chunk))))
            put = transfer.put + lo - transfer.send[0]
            sends.append(Send(key, transfer.send_to, lo, hi, put, tuple(needs), messages[transfer.send_to]))
            messages[transfer.send_to] += 1
        for key, lo, hi in _pieces(transfer.step, transfer.recv, chunk):
            receives[key] = Receive(key, transfer.recv_from, lo, hi, transfer.reduce)
    waiting: dict[Key, list[int]] = {}
    for index, send in enumerate(sends):
        for need in send.needs:
            waiting.setdefault(need, []).append(index)
    return Schedule(tuple(sends), receives, {key: tuple(found) for key, found in waiting.items()}, messages)


def messages_of(span: tuple[int, int], chunk: int) -> int:
    """The number of messages of at most `chunk` bytes for a range of elements."""
    lo, hi = span
    return -(-(hi - lo) * ELEMENT_BYTES // chunk)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return max(a[0], b[0]) < min(a[1], b[1])


def _messages_in(transfer: Transfer, lo: int, hi: int, chunk: int) -> Iterator[Key]:
    """The received messages of a transfer that write into elements [lo, hi)."""
    start, end = transfer.recv
    if _overlap((start, end), (lo, hi)):
        width = chunk // ELEMENT_BYTES
        for index in range((max(lo, start) - start) // width, (min(hi, end) - 1 - start) // width + 1):
            yield (transfer.step, index)


def _pieces(step: int, span: tuple[int, int], chunk: int) -> Iterator[tuple[Key, int, int]]:
    lo, hi = span
    width = chunk // ELEMENT_BYTES
    for index, start in enumerate(range(lo, hi, width)):
        yield (step, index), start, min(start + width, hi)
