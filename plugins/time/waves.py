"""Waves: the transfers of a communicator that are under way at the same time, as columns.

In:  a pattern, ranks, elements of a rank's array, bytes of a message. Out: waves, in their order.
A transfer is in the first wave in which all that it sends has arrived. Credits are not payload, and are left out.
- Whole transfers are levels: a rank sends when it has received all of the transfers that it needs. In rings that is
  exact, since every link is busy all the time.
- Chains and trees forward message by message, so message m of a transfer is m waves after its first one.
- A pipeline of servers (`Pattern.streams`) is one wave: the first message of each hop is left out.
- Rounds of an all-to-all limit what is under way. They have no data to wait for, so all are one wave.
- Computations and transfers do not overlap. Waves are in the order of the computations before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from heddle.base.arrays import I32, I64, Bools
from heddle.base.problems import InputError, Problem
from heddle.base.units import format_size
from heddle.traffic.collectives.pattern import Pattern
from heddle.traffic.sequence import PartSequence
from heddle_plugins.time.order import DIGITS, MOST_OPERATIONS, derived, ordered
from heddle_plugins.time.runs import FORMS, Run

MOST_BYTES: Final = 1 << 30
_ROW_BYTES, _WORK_BYTES = 25, 28  # of a row that is kept; of a row while its wave is computed
_FEW_BYTES: Final = 4 << 20  # of objects, whatever the pattern


@dataclass(frozen=True, eq=False)
class Wave:
    """Transfers that are under way at the same time; the next wave begins when they have arrived.

    src, dst: (transfers,) ranks of the communicator, int32; each pair is there once, in order. bytes: (transfers,)
    payload, int64. inside: (transfers,) whether both ranks are on one host. messages: of the transfer that has most.
    times: so many equal waves follow one another. compute_s: seconds of computation before each of them. follows: its
    messages follow those of the wave before on the same links, so the latency of the paths does not count again; of a
    wave with several messages, only what it exceeds the time of all of them but one. A last wave without transfers has
    computations at the end.
    """

    src: I32
    dst: I32
    bytes: I64
    inside: Bools
    messages: int
    times: int = 1
    compute_s: float = 0.0
    follows: bool = False

    def equals(self, other: Wave) -> bool:
        """Whether all but `times` is equal."""
        return (self.messages, self.compute_s, self.follows) == (other.messages, other.compute_s, other.follows) and (
            np.array_equal(self.src, other.src)
            and np.array_equal(self.dst, other.dst)
            and np.array_equal(self.bytes, other.bytes)
        )


def waves_of(
    pattern: Pattern, ranks: int, count: int, chunk: int, hosts: Sequence[int] = (), *, derive: bool = False
) -> tuple[Wave, ...]:
    """The waves of one iteration of a pattern that fits the ranks. count: elements of an array. chunk: bytes.

    hosts: a number for each rank, if ranks of one host copy inside it. derive: from the operations, also where there
    is a closed form. InputError for what is too large.
    """
    if (need := memory_of(pattern, ranks)) > MOST_BYTES:
        why = f"needs {format_size(need)} of memory for its transfers between {ranks:,} ranks"
        hint = f"the limit is {format_size(MOST_BYTES)}; use fewer --ranks, or --split into smaller communicators"
        raise InputError(Problem("", pattern.typed, why, hint))
    width = max(1, chunk // pattern.element_bytes)
    runs, end_s = (derived if derive else ordered)(pattern, ranks, count, width)
    made = _waves(runs, ranks, width, pattern.element_bytes, np.array(hosts, dtype=np.int64))
    return tuple(_joined(made, end_s))


def memory_of(pattern: Pattern, ranks: int) -> int:
    """The most bytes that `waves_of` needs."""
    if isinstance(pattern, PartSequence):
        each = [_rows(part.pattern, len(part.ranks)) for part in pattern.parts if part.pattern is not None]
        rows, most = sum(rows for rows, _ in each), sum(most for _, most in each)
    else:
        rows, most = _rows(pattern, ranks)
    return rows * _ROW_BYTES + most * _WORK_BYTES + _FEW_BYTES


def _rows(pattern: Pattern, ranks: int) -> tuple[int, int]:
    """The most rows of all waves, and of those that are computed at once."""
    form = FORMS.get(type(pattern))
    return form.rows(pattern, ranks) if form else (MOST_OPERATIONS, 8 * MOST_OPERATIONS)


def _waves(runs: Iterable[Run], ranks: int, width: int, element_bytes: int, hosts: I64) -> Iterator[Wave]:
    """The waves of runs, in order."""
    before_s = 0.0
    in_order = sorted((run for run in runs if run.times > 0 and len(run.src)), key=lambda run: run.begin)
    for after_s, together in groupby(in_order, key=lambda run: run.begin.after_s):
        starting = defaultdict[int, list[Run]](list)
        edges = set[int]()
        for run in together:
            starting[run.begin.wave].append(run)
            edges.update((run.begin.wave, run.end.wave))
        active: list[Run] = []
        for begin, end in pairwise(sorted(edges)):
            active = [run for run in active if run.end.wave > begin] + starting[begin]
            wave, times = _wave(active, ranks, width, element_bytes, hosts) if active else None, end - begin
            if wave is not None and after_s > before_s:
                yield replace(wave, compute_s=round(after_s - before_s, DIGITS))
                before_s, times = after_s, times - 1
            if wave is not None and times:
                yield wave if times == 1 else replace(wave, times=times)


def _wave(runs: Sequence[Run], ranks: int, width: int, element_bytes: int, hosts: I64) -> Wave | None:
    """One wave; None if all transfers are empty."""
    ends = (_column([run.src for run in runs]), _column([run.dst for run in runs]))
    src, dst = (each.astype(np.int32, copy=False) for each in ends)
    elements = _column([run.elements for run in runs])
    most = max(int(run.messages(width).max()) for run in runs)
    pairs = src.astype(np.int64)
    pairs *= ranks
    pairs += dst
    if not elements.all() or (pairs[1:] <= pairs[:-1]).any():
        full = np.flatnonzero(elements)
        order = full[np.argsort(pairs[full], kind="stable")]
        first = np.flatnonzero(np.diff(pairs[order], prepend=-1))
        if not len(first):
            return None
        if len(first) < len(order):
            messages = _column([run.messages(width) for run in runs])
            most = int(np.add.reduceat(messages[order], first).max())
        elements = np.add.reduceat(elements[order], first)
        src, dst = src[order][first], dst[order][first]
    inside = hosts[src] == hosts[dst] if len(hosts) else np.zeros(len(src), dtype=np.bool_)
    return Wave(src, dst, elements * element_bytes, inside, most, follows=all(run.follows for run in runs))


def _column(parts: Sequence[I64]) -> I64:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _joined(waves: Iterable[Wave], end_s: float) -> Iterator[Wave]:
    """Equal ones that follow one another as one, and the computations at the end."""
    last: Wave | None = None
    computed_s = 0.0
    for wave in waves:
        computed_s += wave.compute_s
        if last is not None and last.equals(wave):
            last = replace(last, times=last.times + wave.times)
            continue
        if last is not None:
            yield last
        last = wave
    if last is not None:
        yield last
    if (rest := round(end_s - computed_s, DIGITS)) > 0:
        none = np.empty(0, dtype=np.int32)
        yield Wave(none, none, none.astype(np.int64), none.astype(np.bool_), 0, compute_s=rest)
