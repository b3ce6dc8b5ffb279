"""Statistics of path choice: is it even, is it independent, or are there too few flows for a verdict? Noise of runs.

In:  counts of flows per link, labels of choices, columns of flows; samples of two means.
Out: numbers with their verdict. A test whose expected counts are too small gives TOO_FEW, never a yes or a no.
Half-widths of 95 % intervals of means (Welch's test: B. L. Welch, Biometrika 34, 1947). runs/noise.py judges runs.
Sources: Pearson's chi-square and the G-test as in Sokal and Rohlf, "Biometry", chapter 17; the rule for small counts is
Cochran's (Biometrics 10, 1954).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import variance
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

EVEN: Final = "even"
UNEVEN: Final = "uneven"
INDEPENDENT: Final = "independent"
DEPENDENT: Final = "dependent"
TOO_FEW: Final = "too few to judge"

ALPHA: Final = 0.001  # small, since the test is made in every run: false alarms must be rare
_LEAST: Final = 5.0  # Cochran: four of five cells expect at least 5, and no cell expects less than 1
_SHARE: Final = 0.2
_NORMAL: Final = 1000  # degrees of freedom from which on t is taken as normal
_QUANTILE_STEP: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Evenness:
    """Flows over links. mmr: max/mean, None without flows. expected: the smallest expected count of a link.

    p_value: the probability that random choice is at least as uneven; None if there is nothing to compare.
    """

    flows: int
    links: int
    mmr: float | None
    chi_square: float
    degrees: int
    p_value: float | None
    expected: float
    verdict: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Dependence:
    """Dependence of two choices. bits: mutual information; by_chance: that of independent choices, on average.

    g: of the G-test; chi-square distributed with `degrees` if the choices are independent.
    """

    flows: int
    bits: float
    by_chance: float
    g: float
    degrees: int
    p_value: float | None
    expected: float
    verdict: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Entropy:
    """Shannon entropy in bits of the input of a hash; at most log2(flows). of: what is hashed."""

    flows: int
    distinct: int
    bits: float
    of: str = "5-tuples"

    @property
    def text(self) -> str:
        """`5-tuples: 4 distinct of 16, entropy 2.00 of 4.00 bits`."""
        most = math.log2(max(1, self.flows))
        return f"{self.of}: {self.distinct:,} distinct of {self.flows:,}, entropy {self.bits:.2f} of {most:.2f} bits"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def max_over_mean(loads: npt.ArrayLike) -> float | None:
    """MMR: load of the busiest link / mean load of all; None when all are empty."""
    values = np.asarray(loads, dtype=np.float64)
    total = float(values.sum()) if values.size else 0.0
    return float(values.max()) * values.size / total if total > 0 else None


def evenness_of_groups(
    groups: Sequence[tuple[npt.ArrayLike, npt.ArrayLike | None]], *, alpha: float = ALPHA
) -> Evenness:
    """Test whether switches spread their flows randomly over their links: (counts, weights) of each.

    Chi-square with links - 1 degrees of freedom. counts: flows per link; weights: the links' shares, equal by default.
    Counts must be of flows that choose independently, not of packets or bytes. ValueError for negative counts and for
    weights that are not positive.
    The hash of a switch does not determine its number of flows, so each switch has one degree of freedom less than its
    links. Switches without flows, or with a single link, do not count.
    """
    chi, degrees, flows, links = 0.0, 0, 0, 0
    expected: list[npt.NDArray[np.float64]] = []
    every: list[npt.NDArray[np.float64]] = []
    for counts, weights in groups:
        seen = np.asarray(counts, dtype=np.float64)
        share = np.ones_like(seen) if weights is None else np.asarray(weights, dtype=np.float64)
        if share.shape != seen.shape or (seen < 0).any() or (share <= 0).any():
            raise ValueError("counts must not be negative, weights must be positive, and both must have one shape")
        links += seen.size
        total = seen.sum()
        flows += int(total)
        every.append(seen / share)
        if seen.size < 2 or not total:
            continue
        hoped = total * share / share.sum()
        expected.append(hoped)
        chi += float(((seen - hoped) ** 2 / hoped).sum())
        degrees += seen.size - 1
    cells = np.concatenate(expected) if expected else np.zeros(0)
    p = chi_square_p(chi, degrees) if degrees else None
    verdict = _verdict(p, cells, alpha, EVEN, UNEVEN)
    least = float(cells.min()) if cells.size else 0.0
    mmr = max_over_mean(np.concatenate(every)) if every else None
    return Evenness(flows, links, mmr, chi, degrees, p, least, verdict)


def dependence(first: npt.ArrayLike, second: npt.ArrayLike, *, alpha: float = ALPHA) -> Dependence:
    """Test whether the choice at one tier determines the next. Both: labels (whole numbers), one per flow.

    Mutual information, and the G-test with (kinds - 1) x (kinds - 1) degrees of freedom over labels that occur.
    ValueError when the two have different lengths.
    """
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError("both choices need one label per flow")
    rows, row = np.unique(a, return_inverse=True)
    columns, column = np.unique(b, return_inverse=True)
    shape = (len(rows), len(columns))
    table = np.bincount(row.ravel() * max(1, shape[1]) + column.ravel(), minlength=shape[0] * shape[1])
    return dependence_of_table(table.reshape(shape), alpha=alpha)


def dependence_of_table(table: npt.ArrayLike, *, alpha: float = ALPHA) -> Dependence:
    """As `dependence`, for a table of counts: the number of flows with each pair of choices."""
    seen = np.asarray(table, dtype=np.float64)
    seen = seen[seen.sum(axis=1) > 0][:, seen.sum(axis=0) > 0] if seen.any() else np.zeros((0, 0))
    total = float(seen.sum())
    if not total:
        return Dependence(0, 0.0, 0.0, 0.0, 0, None, 0.0, TOO_FEW)
    hoped = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / total
    there = seen > 0
    nats = max(0.0, float((seen[there] * np.log(seen[there] / hoped[there])).sum()) / total)
    degrees = (seen.shape[0] - 1) * (seen.shape[1] - 1)
    g = 2 * total * nats
    p = chi_square_p(g, degrees) if degrees else None
    verdict = _verdict(p, hoped.ravel(), alpha, INDEPENDENT, DEPENDENT)
    # E[G] is the number of degrees of freedom: the mean for independent choices.
    by_chance = degrees / (2 * total * math.log(2))
    return Dependence(int(total), nats / math.log(2), by_chance, g, degrees, p, float(hoped.min()), verdict)


def _verdict(p: float | None, expected: npt.NDArray[np.float64], alpha: float, yes: str, no: str) -> str:
    if p is None or float(expected.min()) < 1 or float((expected < _LEAST).mean()) > _SHARE:
        return TOO_FEW
    return no if p < alpha else yes


def entropy_bits(counts: npt.ArrayLike) -> float:
    """Shannon entropy, in bits, of a distribution given by counts."""
    values = np.asarray(counts, dtype=np.float64)
    values = values[values > 0]
    if not values.size:
        return 0.0
    share = values / values.sum()
    return max(0.0, float(-(share * np.log2(share)).sum()))


def entropy_of(inputs: npt.NDArray[Any], of: str = "5-tuples") -> Entropy:
    """Entropy of the inputs of a hash: a number for each flow. of: what is hashed."""
    counts = np.unique(inputs, return_counts=True)[1]
    return Entropy(len(inputs), len(counts), entropy_bits(counts), of)


def chi_square_p(value: float, degrees: int) -> float:
    """The probability that a chi-square variable with `degrees` degrees of freedom is at least `value`.

    M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 26.4.4 and 26.4.5.
    """
    if degrees < 1 or value < 0:
        raise ValueError("chi-square must not be negative and needs at least one degree of freedom")
    if value == 0:
        return 1.0
    half, odd = value / 2, degrees % 2
    powers = (n + odd / 2 for n in range(degrees // 2))
    terms = (math.exp(n * math.log(half) - half - math.lgamma(n + 1)) for n in powers)
    return min(1.0, (math.erfc(math.sqrt(half)) if odd else 0.0) + math.fsum(terms))


def student_p(t: float, freedom: int) -> float:
    """The probability that Student's t with so many degrees of freedom is at least t from 0.

    M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    freedom = min(max(1, freedom), _NORMAL)
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = total = cosine if odd else 1.0
    for n in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (n - 1) / n
        total += term
    inside = math.sin(angle) * total
    if odd:
        inside = 2 / math.pi * (angle + (inside if freedom > 1 else 0.0))
    return max(0.0, 1.0 - inside)


def quantile(freedom: float) -> float:
    """Student's t, 97.5 %: half of a 95 % interval, in deviations."""
    low, high = 0.0, 13.0
    while high - low > _QUANTILE_STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, int(freedom)) > 0.05 else (low, middle)
    return high


def interval(one: Sequence[float], other: Sequence[float]) -> float:
    """Half of the 95 % interval of the difference of two means, by Welch's test."""
    parts = [variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True))
    return quantile(freedom) * math.sqrt(total)
