"""Whether noise explains that two runs differ, judged by runs that are equal to them, and outliers among those.

In:  a figure of both runs, and of the runs equal to each; A and B are members of these groups.
Out: Chance: the probability p of such a difference if there is none, and means of the groups; outliers.
- Scale: positive figures by their logarithms, so that spread is a share of the value; counts, and figures with zeros,
  by 2 sqrt(x + 3/8), where a Poisson process has a deviation of 1 (F. J. Anscombe, Biometrika 35, 1948).
- Two groups, of A and of B: Welch's t of means (Biometrika 34, 1947), which allows unequal spreads. From six runs on, a
  sixth is trimmed at each end (K. K. Yuen, Biometrika 61, 1974), so one outlier does not hide a difference. Two runs
  give one degree of freedom, at which p is never too small (M. R. Mickey and M. B. Brown, Ann. Math. Stat. 37, 1966).
- A single run against others: Student's t, and p that any of all these runs is so far from the rest (Bonferroni).
- One group, as A and B are equal: the share of its pairs that are at least as far apart as A and B. Each pair is as
  likely to be A and B, so this p is exact for every distribution; an outlier gives "unsure", never a small p.
- One run far from all others may be a mistake or a second mode: above LEVEL, such a difference is not known.
- Spread is never less than that of a Poisson process, for counts; where equal runs show none at all, than STEADY.
- Outliers: the generalised ESD test (B. Rosner, Technometrics 25, 1983). At one level for all its steps it names one
  in too many groups of few runs; so the first step, a test for one outlier, has most of LEVEL.
tests/unit/test_noise.py measures how often all this is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Final, Literal

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
_FAR: Final = 2 / 3  # the same between any run of two groups and all others
_MOST: Final = 50  # runs of each that one is asked for


@dataclass(frozen=True, slots=True)
class Chance:
    """p: of a difference of this size if there is none. words: how it was judged.

    unsure: noise is not said to explain it, whatever p: all of A are far above all of B, or a run is far from all
    others. odd: A or B is an outlier among its equal runs. means: of both groups, on the scale of the test.
    """

    p: float
    words: str
    unsure: bool
    means: tuple[float, float] | None = None
    odd: bool = False

    @property
    def verdict(self) -> Literal["differs", "noise", "unknown"]:
        """Of A and B; the groups themselves differ if p is at most LEVEL."""
        if self.odd or (self.unsure and self.p > LEVEL):
            return "unknown"
        return "differs" if self.p <= LEVEL else "noise"


def _scaled(values: Sequence[float], *, logs: bool) -> list[float]:
    return [math.log(each) if logs else 2 * math.sqrt(max(each, 0.0) + 3 / 8) for each in values]


def _back(mean: float, *, logs: bool) -> float:
    value = math.exp(min(mean, 709.0)) if logs else max(0.0, (mean / 2) ** 2 - 3 / 8)
    return float(f"{value:.12g}")  # a mean of equal values is that value


def _p(apart: float, share: float, squares: float, freedom: int, *, logs: bool) -> float:
    """Two-sided p of a difference. squares: the variance of a value; share: that of the difference / it."""
    least = 1.0 if not logs else 0.0 if squares else _STEADY_DEVIATION
    by_spread = student_p(apart / math.sqrt(squares * share), freedom) if squares else 0.0
    return max(by_spread, math.erfc(apart / (least * math.sqrt(2 * share))) if least else 0.0)


def steady_p(one: float, other: float) -> float:
    """p of two figures, each of a single run, if equal runs differ by up to STEADY in 95 of 100 cases."""
    return _p(abs(math.log(one) - math.log(other)), 2, 0.0, 1, logs=True)


def chance_of(one: float, other: float, groups: Sequence[Sequence[float]], *, counted: bool = True) -> Chance | None:
    """Judge two values by those of equal runs; None if these are too few. counted: packets, frames.

    groups: of A and of B, or one group that has both.
    """
    ends = (one, other)
    owners = [group or [end] for group, end in zip([*groups, *groups][:2], ends, strict=False)]
    if len(groups) > 1:
        found = chance_of_groups(owners, counted=counted) if any(groups) and all(map(math.isfinite, ends)) else None
    else:
        found = _of_pair(ends, *groups, counted=counted) if any(groups) else None
    if found is None:
        return None
    pairs = zip("AB", ends, owners, strict=True)
    odd = [name for name, end, group in pairs if end in (group[at] for at in outliers(group, counted=counted))]
    whose = "".join(f"; {name} is an outlier among its equal runs" for name in odd)
    if found.means is not None and (one - other) * (found.means[0] - found.means[1]) < 0:
        whose += "; A and B themselves are the other way round"
    return replace(found, words=f"{found.words}{whose}", unsure=found.unsure or bool(odd), odd=bool(odd))


def _told(p: float, apart: float, words: str, *, logs: bool) -> str:
    said = f"a factor of {math.exp(min(apart, 700)):.3g} apart; " if logs else ""
    return f"{said}{words}: " + (f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001")


def _of_pair(ends: Sequence[float], group: Sequence[float], *, counted: bool) -> Chance | None:
    """Of two of a group of equal runs."""
    others = [*group]
    for end in ends:
        if end in others:
            others.remove(end)
    if len(others) < _FREEDOM or not all(map(math.isfinite, (*ends, *others))):
        return None
    logs = not counted and min(*ends, *others) > 0
    a, b, *rest = _scaled([*ends, *others], logs=logs)
    far = [abs(x - y) >= abs(a - b) for x, y in combinations([a, b, *rest], 2)]
    alone = max(_gap([a], [b, *rest]), _gap([b], [a, *rest])) >= _ALONE
    words = f"{sum(far)} of {len(far)} pairs of equal runs are at least as far apart"
    return Chance(fmean(far), _told(fmean(far), abs(a - b), words, logs=logs), alone)


def chance_of_groups(
    groups: Sequence[Sequence[float]], *, counted: bool = True, names: tuple[str, str] = ("A", "B")
) -> Chance | None:
    """Judge two groups of equal runs; None if these are too few to know their spread. names: of the groups."""
    if not all(groups) or not all(math.isfinite(each) for group in groups for each in group):
        return None
    logs = not counted and min(map(min, groups)) > 0
    parts = [_scaled(group, logs=logs) for group in groups]
    sizes, spreads = [*map(len, parts)], [_variance(part) if len(part) > 1 else 0.0 for part in parts]
    if sum(sizes) - 2 < _FREEDOM or (not any(spreads) and sum(sizes) < _TIED):
        return None
    if min(sizes) == 1:  # the single run has the spread of the others
        kept, freedom, tests = parts, sum(sizes) - 2, sum(sizes)
        spreads = [sum(spreads)] * 2
        error = spreads[0] * (1 + 1 / max(sizes))
    else:
        kept, tests = [_trimmed(part) for part in parts], 1
        squares = [_squared_error(part) for part in parts]
        error = sum(squares)
        parted = sum(square**2 / (len(part) - 1) for square, part in zip(squares, kept, strict=True))
        freedom = 1 if min(sizes) == 2 else int(error**2 / parted) if parted else sum(map(len, kept)) - 2
    means = [*map(fmean, kept)]
    apart, share = abs(means[0] - means[1]), sum(1 / len(part) for part in kept)
    p = min(1.0, tests * _p(apart, share, error / share, freedom, logs=logs))
    odd = [outliers(group, counted=counted) for group in groups]
    usual = [[each for at, each in enumerate(part) if at not in out] for part, out in zip(parts, odd, strict=True)]
    least = STEADY if logs else STEADY / _STEADY_DEVIATION  # what single values without any spread may differ by
    gap, words = _gap(*usual), f"{sizes[0]} and {sizes[1]} equal runs"
    words += f", all of {names[means[0] < means[1]]} are higher" if gap > 0 else ""
    over, far = gap >= _APART and apart > least, None if p <= LEVEL else _far(kept, least)
    said = _told(
        p, apart, f"{words}, one of {names[far]} is far from all others" if far is not None else words, logs=logs
    )
    if over and p > LEVEL and (more := _enough(apart, spreads, min(sizes), logs=logs)):
        said += f"; if spread and difference stay, {more} runs of each show it"
    unsure = over or far is not None
    return Chance(p, said, unsure, (_back(means[0], logs=logs), _back(means[1], logs=logs)))


def _far(groups: Sequence[Sequence[float]], least: float) -> int | None:
    """Which group has a run that is far from all others of both."""
    (low, *others, high), at = sorted(each for group in groups for each in group), None
    for end, gap in ((low, others[0] - low), (high, high - others[-1])):
        if gap > least and gap >= _FAR * (high - low):
            at = int(end in groups[1])
    return at


def _enough(apart: float, spreads: Sequence[float], least: int, *, logs: bool) -> int:
    """How many runs of each show such a difference; 0 for more than _MOST."""
    squares, total = fmean(spreads), sum(each**2 for each in spreads)
    for count in range(max(_FREEDOM, least) + 1, _MOST + 1):
        freedom = int((count - 1) * (2 * squares) ** 2 / total) if total else 2 * count - 2
        if _p(apart, 2 / count, squares, freedom, logs=logs) <= LEVEL:
            return count
    return 0


def middle(values: Sequence[float], *, counted: bool = True) -> float:
    """The mean of equal runs, as it is compared: trimmed, on the scale of the test."""
    logs = not counted and min(values) > 0
    return _back(fmean(_trimmed(_scaled(values, logs=logs))), logs=logs)


def _trimmed(part: Sequence[float]) -> list[float]:
    cut = len(part) // _TRIMMED
    return sorted(part)[cut : len(part) - cut]


def _variance(part: Sequence[float]) -> float:
    """Of a sample; 0 for equal values. statistics.variance adds fractions and takes ten times as long."""
    mean = fmean(part)
    return math.fsum((each - mean) * (each - mean) for each in part) / (len(part) - 1) if min(part) < max(part) else 0.0


def _squared_error(part: Sequence[float]) -> float:
    """Of a trimmed mean, from the winsorized variance."""
    kept, cut = _trimmed(part), len(part) // _TRIMMED
    winsorized = [kept[0]] * cut + kept + [kept[-1]] * cut
    return (len(part) - 1) * _variance(winsorized) / (len(kept) * (len(kept) - 1))


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
        squares = _variance(rest)
        if not squares and len(rest) < _TIED - 1:
            continue
        p = _p(abs(at[worst] - fmean(rest)), 1 + 1 / len(rest), squares, len(rest) - 1, logs=logs)
        if p * (len(rest) + 1) <= _OUTLYING[len(out) > 1]:
            found = out.copy()
    return found
