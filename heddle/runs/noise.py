"""Noise of figures: intervals of means of iterations, and of single values whose spread equal runs show.

In:  values of runs; a StoredRun.
Out: half-widths of 95 % intervals; the outcomes of the runs beside a run that repeat it.
Iterations of two runs: Welch's test (B. L. Welch, Biometrika 34, 1947). Counts have one value a run (marks, drops,
pauses), so their spread is measured over equal runs. It is not computed from the count: of eight equal runs on a fabric
of 8 hosts, the variance of marks and pauses was 0.4 to 11 times their mean, and a Poisson process has 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final

from heddle.runs.runsettings import settings_of
from heddle.runs.store import History

if TYPE_CHECKING:
    from heddle.runs.outcome import RunOutcome
    from heddle.runs.runrecord import RunHeader
    from heddle.runs.stored import StoredRun

# Quantiles of Student's t, 97.5 %, by degrees of freedom: NIST/SEMATECH e-Handbook, 1.3.6.7.2.
_T: Final = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (120, 1.980), (10**9, 1.960),
)  # fmt: skip
_LOOKED_AT: Final = 50  # the latest runs: no more are kept by default
LEAST_FREEDOM: Final = 2  # degrees of freedom of a spread: three equal runs, or two of each kind


def quantile(freedom: float) -> float:
    """Student's t, 97.5 %. For the next smaller degree of freedom in the table: doubt counts as noise."""
    return next((t for degrees, t in reversed(_T) if degrees <= freedom), _T[0][1])


def interval(one: Sequence[float], other: Sequence[float]) -> float:
    """Half of the 95 % interval of the difference of two means, by Welch's test."""
    parts = [variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True))
    return quantile(freedom) * math.sqrt(total)


@dataclass(frozen=True, slots=True)
class RunSpread:
    """How much values of equal runs differ. deviation: the standard deviation; freedom: its degrees of freedom."""

    deviation: float
    freedom: int

    @property
    def apart(self) -> float:
        """Half of the 95 % interval of the difference of two single values."""
        return quantile(self.freedom) * self.deviation * math.sqrt(2)


def spread_of(groups: Sequence[Sequence[float]]) -> RunSpread | None:
    """The pooled spread of groups of equal runs; None with fewer than LEAST_FREEDOM degrees of freedom.

    Pooled: the values of every group are taken to spread equally around the mean of their own group.
    """
    freedom = sum(len(each) - 1 for each in groups if each)
    if freedom < LEAST_FREEDOM:
        return None
    squares = sum((value - fmean(each)) ** 2 for each in groups if each for value in each)
    return RunSpread(math.sqrt(squares / freedom), freedom)


def equal_runs(run: StoredRun) -> Mapping[Path, RunOutcome]:
    """By directory, the run itself and its repetitions; empty for a run without an outcome.

    Equal: all settings and sizes, and the state of the fabric. Left out: runs where the host CPU was or may have been
    the bottleneck.
    """
    mine = run.record.outcome
    if mine is None:
        return {}
    found = {run.path: mine}
    wanted = settings_of(run, with_fabric=True, with_around=True)
    for other in History(run.lab, run.path.parent).newest(_LOOKED_AT):
        outcome = None if other.damage else other.record.outcome
        if outcome is None or outcome.machine.limited or other.path in found:
            continue
        if _about(other.record.header) != _about(run.record.header) or _state(outcome) != _state(mine):
            continue
        if settings_of(other, with_fabric=True, with_around=True) == wanted:
            found[other.path] = outcome
    return found


def _about(header: RunHeader) -> RunHeader:
    """The header without its time."""
    return replace(header, when="")


def _state(outcome: RunOutcome) -> str:
    return "" if outcome.fabric_state is None else outcome.fabric_state.word
