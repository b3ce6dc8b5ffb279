"""One rank's part of one collective, cut into messages: what waits for what.

In:  a pattern, the number of ranks, a rank, an element count, the message size.
Out: Schedule: sends and receives, and for each send the receives that must have been applied before it may go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traffic.collectives import Pattern
from traffic.options import ELEMENT_BYTES

Key = tuple[int, int]  # (step, index of the message within the step): the same at sender and receiver


@dataclass(frozen=True, slots=True)
class Send:
    """Elements [lo, hi) to `peer`, once all of `needs` have been applied."""

    key: Key
    peer: int
    lo: int
    hi: int
    needs: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Receive:
    """Elements [lo, hi) from `peer`, to be added (`reduce`) or copied."""

    key: Key
    peer: int
    lo: int
    hi: int
    reduce: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """All messages of one rank for one size."""

    sends: tuple[Send, ...]
    receives: dict[Key, Receive]
    waiting: dict[Key, tuple[int, ...]]  # receive -> indices of the sends that wait for it


def build_schedule(pattern: Pattern, ranks: int, rank: int, count: int, chunk: int) -> Schedule:
    """Cut every transfer into messages of at most `chunk` bytes; transfers of nothing are left out."""
    program = pattern.program(ranks, rank, count)
    receives: dict[Key, Receive] = {}
    sends: list[Send] = []
    for transfer in program:
        for key, lo, hi in _pieces(transfer.step, transfer.send, chunk):
            # The last earlier step that wrote into this range is the one to wait for: what it wrote was built on the
            # ones before it.
            overlapping = [r for r in receives.values() if r.lo < hi and lo < r.hi and r.key[0] < transfer.step]
            latest = max((r.key[0] for r in overlapping), default=-1)
            needs = tuple(r.key for r in overlapping if r.key[0] == latest)
            sends.append(Send(key, transfer.send_to, lo, hi, needs))
        for key, lo, hi in _pieces(transfer.step, transfer.recv, chunk):
            receives[key] = Receive(key, transfer.recv_from, lo, hi, transfer.reduce)
    waiting: dict[Key, list[int]] = {}
    for index, send in enumerate(sends):
        for need in send.needs:
            waiting.setdefault(need, []).append(index)
    return Schedule(tuple(sends), receives, {key: tuple(found) for key, found in waiting.items()})


def _pieces(step: int, span: tuple[int, int], chunk: int) -> Iterator[tuple[Key, int, int]]:
    lo, hi = span
    width = chunk // ELEMENT_BYTES
    for index, start in enumerate(range(lo, hi, width)):
        yield (step, index), start, min(start + width, hi)
