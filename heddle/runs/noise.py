"""Whether noise explains that two runs differ, judged by runs that are equal to them, and outliers among those.

In:  a figure of both runs, and of the runs equal to each; A and B are members of these groups.
Out: Chance: the probability p of such a difference if there is none; outliers.
- Scale: positive figures by their logarithms, so that spread is a share of the value; counts, and figures with zeros,
  by 2 sqrt(x + 3/8), where a Poisson process has a deviation of 1 (F. J. Anscombe, Biometrika 35, 1948).
- Two groups, of A and of B: the means by Welch's t (Biometrika 34, 1947). Where all of A are above all of B, or one has
  a single run: by Student's t with the pooled deviation, or Welch's if that is larger, and 2 (smaller - 1) degrees of
  freedom. With five runs of each or more, also the ranks: Mann and Whitney's exact test with ties (Ann. Math. Stat. 18,
  1947); p is then twice the smaller one (Bonferroni). tests/unit/test_noise.py measures how often this is wrong.
- One group, as A and B are equal: |a - b| / (s sqrt 2) by Student's t, where s is of the others, without A and B.
- Spread is never less than that of a Poisson process, for counts; where equal runs show none at all, than STEADY.
- Outliers: the generalised ESD test (B. Rosner, Technometrics 25, 1983) at OUTLYING.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Final

import numpy as np

from heddle.predict.statistics import student_p

STEADY: Final = 0.03  # of tests/bench/steady.py: what two identical runs may differ by
LEVEL: Final = 0.05  # p of a difference that noise does not explain
OUTLYING: Final = 0.02
_STEADY_DEVIATION: Final = STEADY / 1.96 / math.sqrt(2)
_FREEDOM: Final = 2  # degrees of freedom of a spread: three runs of A or of B, or two of each
_TIED: Final = 6  # runs that show no spread at all must be so many
_APART: Final = 1 / 4  # a gap between A and B, as a share of the range of all, that noise is not said to explain


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
    if not any(groups) or not all(map(math.isfinite, (one, other, *(value for group in groups for value in group)))):
        return None
    groups = groups if len(groups) == 1 else [group or [end] for group, end in zip(groups, (one, other), strict=True)]
    logs = not counted and min(one, other, *map(min, groups)) > 0
    ends, parts = _scaled([one, other], logs=logs), [_scaled(group, logs=logs) for group in groups]
    means = ends if len(parts) == 1 else [fmean(part) for part in parts]
    apart = abs(means[0] - means[1])
    said = f"a factor of {math.exp(min(apart, 700)):.3g} apart; " if logs else ""
    if len(parts) == 1:
        others = parts[0]
        for end in ends:
            if end in others:
                others.remove(end)
        squares = variance(others) if len(others) > 1 else 0.0
        if not squares and len(others) < _TIED:
            return None
        p = _p(apart, 2, squares, len(others) - 1, logs=logs)
        alone = max(_gap([end], [*others, far]) for end, far in (ends, ends[::-1]))
        return Chance(p, f"{said}{len(others)} other equal runs: {_text(p)}", alone >= 2 * _APART)
    found = _of_groups(parts[0], parts[1], logs=logs)
    if found is None:
        return None
    gap = _gap(*parts)
    higher = f", all of {'A' if means[0] > means[1] else 'B'} are higher" if gap > 0 else ""
    strange = any(
        end in (group[at] for at in outliers(group, counted=counted))
        for end, group in zip((one, other), groups, strict=True)
    )
    whose = "; A or B is an outlier among its equal runs" if strange else ""
    words = f"{said}{len(parts[0])} and {len(parts[1])} equal runs: {_text(found)}{higher}{whose}"
    return Chance(found, words, strange or (gap >= _APART and apart > STEADY))


def _text(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def _of_groups(one: Sequence[float], other: Sequence[float], *, logs: bool) -> float | None:
    """p of two groups that do not differ; None if they are too few to know their spread."""
    sizes, freedom = (len(one), len(other)), len(one) + len(other) - 2
    spreads = [variance(part) if len(part) > 1 else 0.0 for part in (one, other)]
    pooled = sum((size - 1) * each for size, each in zip(sizes, spreads, strict=True)) / max(1, freedom)
    if freedom < _FREEDOM or (not pooled and sum(sizes) < _TIED):
        return None
    apart, share = abs(fmean(one) - fmean(other)), 1 / sizes[0] + 1 / sizes[1]
    welch = sum(each / size for size, each in zip(sizes, spreads, strict=True))
    if _gap(one, other) > 0 or min(sizes) == 1:
        p = _p(apart, share, max(pooled, welch / share), 2 * (min(sizes) - 1) or freedom, logs=logs)
    else:
        freedom_of = sum((each / size) ** 2 / (size - 1) for size, each in zip(sizes, spreads, strict=True))
        p = _p(apart, share, welch / share, int(welch**2 / freedom_of) if freedom_of else freedom, logs=logs)
    if 2 * 2 / math.comb(sum(sizes), sizes[0]) <= LEVEL:
        p = min(1.0, 2 * min(p, rank_p(one, other)))
    return p if logs and pooled else max(p, _p(apart, share, 0.0, freedom, logs=logs))


def _gap(one: Sequence[float], other: Sequence[float]) -> float:
    """The gap between two groups as a share of the range of both; 0 where they overlap."""
    low, high = min(*one, *other), max(*one, *other)
    gap = max(min(one) - max(other), min(other) - max(one))
    return max(0.0, gap / (high - low)) if high > low else 0.0


def rank_p(one: Sequence[float], other: Sequence[float]) -> float:
    """Mann and Whitney's exact two-sided p; equal values have their mean rank.

    Counts the choices of len(one) ranks by their sum.
    """
    every = np.sort(np.array([*one, *other]))
    ranks = [int(np.searchsorted(every, each) + np.searchsorted(every, each, "right")) + 1 for each in (*one, *other)]
    total = sum(ranks)
    ways = np.zeros((len(one) + 1, total + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    sums = ways[-1] / ways[-1].sum()
    middle = len(one) * (len(every) + 1)
    far = abs(sum(ranks[: len(one)]) - middle)
    return float(sums[np.abs(np.arange(total + 1) - middle) >= far].sum())


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
        if p * (len(rest) + 1) <= OUTLYING:
            found = out.copy()
    return found
