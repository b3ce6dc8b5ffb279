"""Ranges of a buffer that steps write: which of them overlap another range."""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter

_Span = tuple[int, int]


class Ranges:
    """Ranges of elements [lo, hi), each with the number of its step.

    They are sorted, by the power of two above their length: none is far before a range that it overlaps. So the
    ranges that overlap one are found without looking at all.
    """

    def __init__(self) -> None:
        self._sorted: dict[int, list[tuple[int, int, int, int]]] = {}  # (lo, number, hi, step)
        self._count = 0

    def add(self, span: _Span, step: int) -> None:
        """A range of a step."""
        lo, hi = span
        insort(self._sorted.setdefault((hi - lo).bit_length(), []), (lo, self._count, hi, step))
        self._count += 1

    def overlapping(self, span: _Span) -> list[tuple[_Span, int]]:
        """The ranges that share elements with this one, with their steps, in the order in which they were added."""
        found: list[tuple[int, _Span, int]] = []
        for bits, ranges in self._sorted.items():
            at = bisect_left(ranges, (span[0] - (1 << bits),))
            while at < len(ranges) and ranges[at][0] < span[1]:
                lo, number, hi, step = ranges[at]
                if max(lo, span[0]) < min(hi, span[1]):
                    found.append((number, (lo, hi), step))
                at += 1
        return [(each, step) for _, each, step in sorted(found, key=itemgetter(0))]
