"""The order of packet sequence numbers (PSNs) of one direction: losses, late numbers, repetitions, new connections."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from heddle.wire.layout import psn_after

_RESTART: Final = 1 << 16  # a jump that far is a new connection on the same number, not a loss
_NEAR: Final = 1 << 12  # so is a shorter one, to the start of a message: no sender has that many packets under way
_numbers = partial(array, "q")

Range = tuple[int, int]  # how far its start is ahead of the last number, and how many numbers it has


@dataclass(slots=True)
class PsnOrder:
    """The packet sequence numbers of one direction, in the order in which they passed.

    gaps: jumps ahead, and missing: numbers that have not passed at all so far; late: numbers of a gap that passed later
    (reordered before this port, or lost before it and sent again); repeated: numbers that passed before; restarts:
    jumps, in either direction, that look like another connection on the same QP number. A hole among the last 65,536
    numbers takes 16 bytes.
    """

    first: int | None = None
    last: int = 0
    gaps: int = 0
    missing: int = 0
    late: int = 0
    repeated: int = 0
    restarts: int = 0
    _at: int = 0  # `last`, without its wraps
    _starts: array[int] = field(default_factory=_numbers)  # of the holes, ascending and without wraps
    _sizes: array[int] = field(default_factory=_numbers)

    def between(self, psn: int) -> int:
        """How many numbers are between the last one and this; negative when this is not ahead."""
        return 0 if self.first is None else psn_after(psn, self.last) - 1

    def add(self, psn: int, lost: Sequence[Range] | None = None, *, starts: bool = True, span: int = 1) -> bool:
        """Take the next number; whether it is ahead of all before.

        lost: the numbers in between that had to pass here; None: all. starts: the packet starts a message.
        span: the numbers that it takes if it is late.
        """
        if self.first is None:
            self.first = self.last = psn
            return True
        step, far = psn_after(psn, self.last), _NEAR if starts else _RESTART
        if step > 0:
            lost = [(1, step - 1)] if lost is None else lost
            count = sum(numbers for _, numbers in lost)
            if count > far:
                self._restart()
            elif count:
                self._skipped(lost, count)
        elif self._filled(self._at + step, span):
            return False
        elif -step > far:
            self._restart()
        else:
            self.repeated += 1
            return False
        self.last, self._at = psn, self._at + step
        return True

    def _restart(self) -> None:
        self.restarts += 1
        del self._starts[:], self._sizes[:]

    def _skipped(self, lost: Sequence[Range], count: int) -> None:
        self.gaps += 1
        self.missing += count
        old = bisect_right(self._starts, self._at - _RESTART)  # a number that far behind is a new connection's
        del self._starts[:old], self._sizes[:old]
        for start, numbers in lost:
            self._starts.append(self._at + start)
            self._sizes.append(numbers)

    def _filled(self, at: int, span: int) -> bool:
        index = bisect_right(self._starts, at) - 1
        if index < 0 or at >= self._starts[index] + self._sizes[index]:
            return False
        before = at - self._starts[index]
        span = min(span, self._sizes[index] - before)
        after = self._sizes[index] - before - span
        rest = [(start, size) for start, size in ((at - before, before), (at + span, after)) if size]
        self._starts[index : index + 1] = _numbers([start for start, _ in rest])
        self._sizes[index : index + 1] = _numbers([size for _, size in rest])
        self.missing -= span
        self.late += 1
        return True
