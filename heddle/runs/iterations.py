"""Statistics of the iterations of a size, as `-I 1` of nccl-tests prints them (src/util.cu, 2.19).

In:  the time of each iteration, which is that of its slowest rank. Out: IterationStats, in microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev


@dataclass(frozen=True, slots=True)
class IterationStats:
    """Of the iterations of one size. Percentiles are nearest ranks, and the deviation is that of the population."""

    skipped: int
    min_us: float
    max_us: float
    avg_us: float
    p50_us: float
    p95_us: float
    p99_us: float
    stdev_us: float

    @property
    def cv_pct(self) -> float:
        """The deviation in percent of the mean."""
        return 100 * self.stdev_us / self.avg_us if self.avg_us > 0 else 0.0


def stats_of(times_us: Sequence[float], skip: int = 0) -> IterationStats | None:
    """The statistics without the first `skip` iterations; None when none is left."""
    times = sorted(times_us[skip:])
    if not times:
        return None

    def percentile(percent: int) -> float:
        return times[math.ceil(len(times) * percent / 100) - 1]

    middle = times[len(times) // 2]
    return IterationStats(
        skip, times[0], times[-1], fmean(times), middle, percentile(95), percentile(99), pstdev(times)
    )
