"""Times that senders waited for a CTS, in bounded memory: a count per bucket of a logarithmic scale.

A bucket is 1/20 of a decade wide, so a percentile is at most 12 % above the exact value. The counts of several senders
can be added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

WaitCounts = tuple[tuple[int, int], ...]  # (bucket, messages), ascending
_NO_WAIT: Final = 0
_LEAST_S: Final = 1e-6  # shorter waits count as this one
_PER_DECADE: Final = 20


def bucket_of(seconds: float) -> int:
    """The bucket of a wait; 0 if there was none."""
    if seconds <= 0:
        return _NO_WAIT
    return 1 + max(0, math.ceil(_PER_DECADE * math.log10(seconds / _LEAST_S) - 1e-9))


def end_of(bucket: int) -> float:
    """The longest wait of a bucket, seconds."""
    return 0.0 if bucket == _NO_WAIT else _LEAST_S * math.pow(10, (bucket - 1) / _PER_DECADE)


class WaitRecord:
    """The waits of one sender."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One message has waited for so long; 0: its CTS was there before it."""
        self._counts[bucket_of(seconds)] += 1

    def counts(self) -> WaitCounts:
        """All waits so far."""
        return tuple(sorted(self._counts.items()))


def merged(parts: Iterable[WaitCounts]) -> WaitCounts:
    """The sum of the waits of several senders."""
    total: Counter[int] = Counter()
    for part in parts:
        for bucket, count in part:
            total[bucket] += count
    return tuple(sorted(total.items()))


def percentile(counts: WaitCounts, share: float) -> float:
    """Seconds: at least this share of the messages waited no longer; 0 for no messages. share: 0 to 1."""
    rank, below = share * sum(count for _, count in counts), 0
    for bucket, count in counts:
        below += count
        if below >= rank:
            return end_of(bucket)
    return 0.0
