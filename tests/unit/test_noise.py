"""What equal runs say about a difference, on synthetic runs with known truth; and what weaker judgements get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Final

import numpy as np
import pytest

from heddle.predict.statistics import quantile, student_p
from heddle.runs.compare import judged_once
from heddle.runs.noise import LEVEL, STEADY, chance_of, outliers, rank_p

Runs = list[float]
Judge = Callable[[Runs, Runs], bool]
R: Final = np.random.default_rng(50)
TIMES: Final[Mapping[str, Callable[[int], Runs]]] = {
    "normal, 1 %": lambda n: [*map(float, R.normal(1, 0.01, n))],
    "normal, 20 %": lambda n: [*map(float, R.normal(1, 0.2, n).clip(0.1))],
    "lognormal": lambda n: [*map(float, np.exp(R.normal(0, 0.5, n)))],
    "ties": lambda n: [*map(float, R.normal(1, 0.01, n).round(2))],
    "two modes": lambda n: [*map(float, np.where(R.random(n) < 0.3, 1, 0.6) * R.normal(1, 0.01, n))],
}
COUNTS: Final[Mapping[str, Callable[[int], Runs]]] = {
    "rare": lambda n: [*map(float, R.poisson(0.3, n))],
    "Poisson": lambda n: [*map(float, R.poisson(100, n))],
    "wide": lambda n: [*map(float, R.poisson(R.gamma(2, 50, n)))],
    "many zeros": lambda n: [*map(float, np.where(R.random(n) < 0.8, 0, R.poisson(500, n)))],
}
SIZES: Final = ((1, 5), (2, 2), (3, 3), (3, 8), (5, 5), (10, 10))


def differs(one: Runs, other: Runs, *, counted: bool = False) -> bool:
    found = chance_of(one[0], other[0], [one, other], counted=counted)
    return found is not None and found.p <= LEVEL


def self_including(one: float, other: float, groups: Sequence[Runs]) -> bool:
    """The judgement that this one replaced: the pooled spread of groups that have A and B as members."""
    freedom = sum(len(each) - 1 for each in groups)
    squares = sum((value - fmean(each)) ** 2 for each in groups for value in each)
    return abs(other - one) > quantile(freedom) * math.sqrt(2 * squares / freedom)


def range_alone(one: Runs, other: Runs) -> bool:
    return min(one) > max(other) or min(other) > max(one)


def false_alarms(judge: Judge, draws: Mapping[str, Callable[[int], Runs]], cases: int) -> float:
    every = [(draw, sizes) for draw in draws.values() for sizes in SIZES]
    wrong = sum(judge(draw(n), draw(m)) for draw, (n, m) in every for _ in range(cases // len(every)))
    return wrong / (cases // len(every) * len(every))


def test_of_runs_that_do_not_differ_at_most_1_in_20_is_said_to() -> None:
    assert false_alarms(differs, TIMES, 3000) <= LEVEL
    assert false_alarms(lambda one, other: differs(one, other, counted=True), COUNTS, 2400) <= LEVEL
    assert false_alarms(range_alone, TIMES, 1500) > LEVEL, "this data would show a judgement that is too quick"


def test_of_equal_runs_at_most_1_in_20_pairs_is_said_to_differ() -> None:
    """Without the two modes: of few runs, the others are often all of one mode."""
    draws = [TIMES[name] for name in ("normal, 1 %", "lognormal", "ties")]
    wrong, few = 0, 0
    for case in range(2400):
        group = draws[case % len(draws)](8)
        found = chance_of(group[0], group[1], [group], counted=False)
        wrong += found is not None and found.p <= LEVEL
        spread = fmean([abs(each - fmean(group)) for each in group])
        few += abs(group[0] - group[1]) > 2 * spread
    assert wrong / 2400 <= LEVEL * 1.2  # the deviation of this share is 0.45 %
    assert few / 2400 > LEVEL * 1.2, "this data would show a judgement that takes the mean deviation for the limit"


@pytest.mark.parametrize("change", [1.05, 0.95])
def test_a_change_of_5_percent_is_found_with_five_runs_of_1_percent_spread(change: float) -> None:
    pairs = [[[*map(float, R.normal(mean, 0.01 * mean, 5))] for mean in (1, change)] for _ in range(500)]
    assert sum(differs(*pair) for pair in pairs) / 500 >= 0.95
    logs = [[[math.log(each) for each in runs] for runs in pair] for pair in pairs]
    assert sum(self_including(pair[0][0], pair[1][0], pair) for pair in logs) / 500 < 0.95, "single runs do not show it"


def test_ten_runs_of_each_with_little_spread_show_less_than_3_percent() -> None:
    for _ in range(100):
        one, other = ([*map(float, R.normal(mean, 0.0005, 10))] for mean in (1, 0.971))
        assert math.log(one[0] / other[0]) < STEADY + 0.002 and differs(one, other)


FAST, SLOW = [0.0100, 0.0116, 0.0104], [0.0011, 0.0011, 0.0046]


def test_all_of_one_above_all_of_the_other_by_a_factor_of_2_is_no_noise() -> None:
    for one, other in ((FAST, SLOW), (SLOW, FAST)):
        for a in one:
            for b in other:
                found = chance_of(a, b, [one, other], counted=False)
                assert found is not None and found.p == pytest.approx(0.02, abs=0.001)
                assert f"all of {'A' if one is FAST else 'B'} are higher" in found.words
    assert not self_including(FAST[0], SLOW[2], [FAST, SLOW]), "without logarithms, the slow ones have no weight"
    single = chance_of(FAST[0], SLOW[0], [FAST[:1], SLOW], counted=False)
    assert single is not None and single.p > LEVEL and single.unsure, "one run against three is not known, not noise"
    overlap = chance_of(FAST[0], SLOW[0], [FAST, [*SLOW, 0.0110]], counted=False)
    assert overlap is not None and overlap.p > LEVEL and not overlap.unsure


@pytest.mark.parametrize("runs", range(3, 9))
def test_two_equal_runs_are_judged_without_themselves(runs: int) -> None:
    zeros = [0.0] * (runs - 1)
    verdict, why = judged_once(0, 1e6, [[*zeros, 1e6]])
    assert verdict == ("differs" if runs == 8 else "unknown"), why  # six others without any spread are enough
    assert not self_including(0, 1e6, [[*zeros, 1e6]]), "A and B in their own spread made it noise"
    if runs > 4:
        equal = [1.0 + 0.001 * at for at in range(runs - 1)]
        found = chance_of(1.0, 0.01, [[*equal, 0.01]], counted=False)
        assert found is not None and found.p < 0.001
        assert not self_including(1.0, 0.01, [[*equal, 0.01]])


def test_small_counts_have_at_least_the_spread_of_a_poisson_process() -> None:
    assert judged_once(0, 1, [[0] * 4, [1] * 4])[0] != "differs"
    assert judged_once(0, 20, [[0] * 5, [20] * 5])[0] == "differs"
    assert judged_once(0.5, 0.6, [[0.5] * 5, [0.6] * 5], counted=False)[0] == "differs"
    assert judged_once(0.5, 0.505, [[0.5] * 5, [0.505] * 5], counted=False)[0] == "noise", "no spread: that of STEADY"


def test_an_outlier_of_eight_runs_is_named_and_is_not_called_noise() -> None:
    named, wrong = 0, 0
    for case in range(400):
        runs = [*map(float, R.normal(1, 0.01, 8))]
        wrong += bool(outliers(runs, counted=False))
        runs[case % 8] *= (1.1, 0.9, 100, 0.01)[case % 4]
        named += outliers(runs, counted=False) == [case % 8]
    assert named / 400 >= 0.95 and wrong / 400 <= LEVEL
    two = outliers([1, 1.01, 0.99, 1.005, 1.002, 0.01, 0.011, 1.001, 0.997], counted=False)
    assert sorted(two) == [5, 6], "one does not hide the other"
    group = [1.0, 1.01, 0.99, 1.002, 0.998, 1.005, 0.995, 0.01]
    others = [1.001 * each for each in group[:-1]]
    strange, usual = (chance_of(a, others[0], [group, others], counted=False) for a in (0.01, 1.0))
    assert strange is not None and strange.unsure and strange.p > LEVEL and "A or B is an outlier" in strange.words
    assert usual is not None and not usual.unsure


def test_without_equal_runs_nothing_is_known() -> None:
    few: list[list[Runs]] = [[], [[]], [[], []], [[1.0], []], [[1.0], [2.0]], [[1.0, 2.0]]]
    assert chance_of(1e-300, 1e300, [[1e-300] * 3, [1e300] * 3], counted=False) is not None
    few += [[[math.inf, 1.0, 2.0], [1.0, 2.0, 3.0]], [[math.nan] * 4]]
    for groups in few:
        assert chance_of(1.0, 2.0, groups, counted=False) is None


def test_the_ranks_decide_where_one_run_spoils_the_means() -> None:
    one, other = [1.0, 1.01, 0.99, 1.02, 0.98], [0.9, 0.91, 0.89, 0.92, 1e-6]
    assert differs(one, other)
    assert not differs(one, [*other[:-1], 1.03])


def test_students_t_and_the_exact_ranks_are_as_printed() -> None:
    """NIST/SEMATECH e-Handbook 1.3.6.7.2; Mann and Whitney by counting all choices."""
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {freedom: round(quantile(freedom), 3) for freedom in printed} == printed
    assert student_p(2.132, 4) == pytest.approx(0.1, rel=1e-3) and student_p(0, 3) == 1
    assert rank_p([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    for one, other in (([1, 3, 3], [2, 3, 5, 7]), ([0, 0, 0], [0, 1, 1]), ([2, 2], [2, 2])):
        every = np.array([*one, *other])
        ranks = [float((every < each).sum() + ((every == each).sum() + 1) / 2) for each in every]
        far = abs(sum(ranks[: len(one)]) - len(one) * (len(every) + 1) / 2)
        chosen = [*combinations(ranks, len(one))]
        count = sum(abs(sum(each) - len(one) * (len(every) + 1) / 2) >= far - 1e-9 for each in chosen)
        assert rank_p(one, other) == pytest.approx(count / len(chosen))
