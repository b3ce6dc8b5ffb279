"""Whether noise explains that two runs differ, judged by runs that are equal to them, and outliers among those.

In:  a figure of both runs, and of the runs equal to each; A and B are members of these groups.
Out: Chance: the probability p of such a difference if there is none; outliers.
- Scale: positive figures by their logarithms, so that spread is a share of the value; counts, and figures with zeros,
  by 2 sqrt(x + 3/8), where a Poisson process has a deviation of 1 (F. J. Anscombe, Biometrika 35, 1948).
- Two groups, of A and of B: Welch's t of means (Biometrika 34, 1947), which allows unequal spreads. From six runs on, a
  sixth is trimmed at each end (K. K. Yuen, Biometrika 61, 1974), so one outlier does not hide a difference. Two runs
  give one degree of freedom, at which p is never too small (M. R. Mickey and M. B. Brown, Ann. Math. Stat. 37, 1966).
- A single run against others: Student's t, and p that any of all these runs is so far from the rest (Bonferroni).
- One group, as A and B are equal: the share of its pairs that are at least as far apart as A and B. Each pair is as
  likely to be A and B, so this p is exact for every distribution; an outlier gives "unsure", never a small p.
- Spread is never less than that of a Poisson process, for counts; where equal runs show none at all, than STEADY.
- Outliers: the generalised ESD test (B. Rosner, Technometrics 25, 1983). At one level for all its steps it names one
  in too many groups of few runs; so the first step, a test for one outlier, has most of LEVEL.
tests/unit/test_noise.py measures how often all this is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, variance
from typing import Final

from heddle.predict.statistics import student_p

STEADY: Final = 0.03  # of tests/bench/steady.py: what two identical runs may differ by
LEVEL: Final = 0.05  # p of a difference that noise does not explain
_STEADY_DEVIATION: Final = STEADY / 1.96 / math.sqrt(2)
_OUTLYING: Final = (0.04, 0.01)  # of the first outlier, and of a second or third that hide one another
_FREEDOM: Final = 2  # degrees of freedom of a spread: three runs of A or of B, or two of each
_TIED: Final = 6  # runs that show no spread at all must be so many
_TRIMMED: Final = 6  # of so many runs, one at each end does not count
_APART: Final = 1 / 4  # a gap between A and B, as a share of the range of all, that noise is not said to explain
_ALONE: Final = 1 / 2  # the same between one of two equal runs and all others


@dataclass(frozen=True, slots=True)
class Chance:
    """p: of a difference of this size if there is none. words: how it was judged.

    unsure: noise is not said to explain it, whatever p. All of A are far above all of B, one of two equal runs is far
    from all others, or A or B is an outlier among its equal runs.
    """

    p: float
    words: str
    unsure: bool


def _scaled(values: Sequence[float], *, logs: bool) -> list[float]:
    return [math.log(each) if logs else 2 * math.sqrt(max(each, 0.0) + 3 / 8) for each in values]


def _p(apart: float, share: float, squares: float, freedom: int, *, logs: bool) -> float:
    """Two-sided p of a difference. squares: the variance of a value; share: that of the difference / it."""
    least = 1.0 if not logs else 0.0 if squares else _STEADY_DEVIATION
    by_spread = student_p(apart / math.sqrt(squares * share), freedom) if squares else 0.0
    return max(by_spread, math.erfc(apart / (least * math.sqrt(2 * share))) if least else 0.0)


def chance_of(one: float, other: float, groups: Sequence[Sequence[float]], *, counted: bool = True) -> Chance | None:
    """Judge two values by those of equal runs; None if these are too few. counted: packets, frames.

    groups: of A and of B, or one group that has both.
    """
    ends = (one, other)
    if not any(groups) or not all(map(math.isfinite, (*ends, *(value for group in groups for value in group)))):
        return None
    owners = [group or [end] for group, end in zip([*groups, *groups][:2], ends, strict=True)]
    logs = not counted and min(*ends, *map(min, owners)) > 0
    odd = [outliers(group, counted=counted) for group in owners]
    parts = [_scaled(group, logs=logs) for group in owners]
    usual = [[each for at, each in enumerate(part) if at not in out] for part, out in zip(parts, odd, strict=True)]
    found = _of_groups(parts, usual, logs=logs) if len(groups) > 1 else _of_pair(_scaled(ends, logs=logs), parts[0])
    if found is None:
        return None
    p, apart, words, unsure = found
    said = f"a factor of {math.exp(min(apart, 700)):.3g} apart; " if logs else ""
    strange = any(end in (group[at] for at in out) for end, group, out in zip(ends, owners, odd, strict=True))
    whose = "; A or B is an outlier among its equal runs" if strange else ""
    text = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    return Chance(p, f"{said}{words}: {text}{whose}", unsure or strange)


def _of_pair(ends: Sequence[float], group: Sequence[float]) -> tuple[float, float, str, bool] | None:
    """As _of_groups, of two of a group of equal runs."""
    others = [*group]
    for end in ends:
        if end in others:
            others.remove(end)
    if len(others) < _FREEDOM:
        return None
    a, b = ends
    far = [abs(x - y) >= abs(a - b) for x, y in combinations([a, b, *others], 2)]
    alone = max(_gap([a], [b, *others]), _gap([b], [a, *others])) >= _ALONE
    words = f"{sum(far)} of {len(far)} pairs of equal runs are at least as far apart"
    return fmean(far), abs(a - b), words, alone


def _of_groups(
    parts: Sequence[Sequence[float]], usual: Sequence[Sequence[float]], *, logs: bool
) -> tuple[float, float, str, bool] | None:
    """p of two groups if they do not differ, how far they are apart, words, whether noise is not said to explain it.

    None if they are too few to know their spread. usual: the groups without outliers.
    """
    sizes, spreads = [*map(len, parts)], [variance(part) if len(part) > 1 else 0.0 for part in parts]
    if sum(sizes) - 2 < _FREEDOM or (not any(spreads) and sum(sizes) < _TIED):
        return None
    if min(sizes) == 1:  # the single run has the spread of the others
        means, kept, freedom, tests = [*map(fmean, parts)], sizes, sum(sizes) - 2, sum(sizes)
        error = sum(spreads) * (1 + 1 / max(sizes))
    else:
        found = [_trimmed(part) for part in parts]
        means, kept, tests = [mean for mean, _, _ in found], [count for _, _, count in found], 1
        error = sum(square for _, square, _ in found)
        parted = sum(square**2 / (count - 1) for _, square, count in found)
        freedom = 1 if min(kept) == 2 else int(error**2 / parted) if parted else sum(kept) - 2
    apart, share, gap = abs(means[0] - means[1]), sum(1 / count for count in kept), _gap(*usual)
    higher = f", all of {'A' if means[0] > means[1] else 'B'} are higher" if gap > 0 else ""
    p = min(1.0, tests * _p(apart, share, error / share, freedom, logs=logs))
    return p, apart, f"{sizes[0]} and {sizes[1]} equal runs{higher}", gap >= _APART and apart > STEADY


def _trimmed(part: Sequence[float]) -> tuple[float, float, int]:
    """A trimmed mean, its squared error from the winsorized variance, and the number of values in it."""
    cut = len(part) // _TRIMMED
    kept = sorted(part)[cut : len(part) - cut]
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    return fmean(kept), (len(part) - 1) * variance(winsorized) / (len(kept) * (len(kept) - 1)), len(kept)


def _gap(one: Sequence[float], other: Sequence[float]) -> float:
    """The gap between two groups as a share of the range of both; 0 where they overlap."""
    low, high = min(*one, *other), max(*one, *other)
    gap = max(min(one) - max(other), min(other) - max(one))
    return max(0.0, gap / (high - low)) if high > low else 0.0


def outliers(values: Sequence[float], *, counted: bool = True) -> list[int]:
    """The places of outliers among some values; at most a third of them, and none among fewer than four."""
    logs = not counted and min(values, default=0) > 0
    at, left, out, found = _scaled(values, logs=logs), list(range(len(values))), list[int](), list[int]()
    while len(left) > _FREEDOM + 1 and len(out) < len(values) // 3:
        middle = fmean(at[each] for each in left)
        worst = max(left, key=lambda each: abs(at[each] - middle))
        left.remove(worst)
        out.append(worst)
        rest = [at[each] for each in left]
        squares = variance(rest)
        if not squares and len(rest) < _TIED - 1:
            continue
        p = _p(abs(at[worst] - fmean(rest)), 1 + 1 / len(rest), squares, len(rest) - 1, logs=logs)
        if p * (len(rest) + 1) <= _OUTLYING[len(out) > 1]:
            found = out.copy()
    return found
