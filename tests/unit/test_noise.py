"""What equal runs say about a difference, on synthetic runs with known truth; and what weaker judgements get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, variance
from typing import Final

import numpy as np
import pytest

from heddle.predict.statistics import quantile, student_p
from heddle.runs.compare import judged_once
from heddle.runs.noise import LEVEL, STEADY, chance_of, middle, outliers

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
TAILS: Final[Mapping[str, Callable[[int], Runs]]] = {
    "t3": lambda n: [*map(float, (1 + 0.01 * R.standard_t(3, n)).clip(0.1))],
    "Cauchy": lambda n: [*map(float, np.exp(0.01 * R.standard_cauchy(n)))],
    "one in ten": lambda n: [*map(float, R.normal(1, np.where(R.random(n) < 0.1, 0.1, 0.01)))],
    "one side": lambda n: [*map(float, np.exp(0.05 * R.exponential(size=n)))],
    "Pareto": lambda n: [*map(float, 1 + R.pareto(1.5, n))],
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


def test_heavy_tails_do_not_differ_more_often() -> None:
    assert false_alarms(differs, TAILS, 3000) <= LEVEL
    singles = [differs(draw(1), draw(n)) for draw in TAILS.values() for n in (5, 10) for _ in range(200)]
    assert fmean(singles) <= LEVEL * 1.2  # its deviation is 0.4 %; a single run has no spread of its own
    assert false_alarms(range_alone, TAILS, 1500) > 2 * LEVEL


@pytest.mark.parametrize(("few", "many"), [(2, 10), (3, 3), (3, 10), (5, 5), (5, 10)])
def test_a_tight_set_beside_a_wide_one_of_equal_mean_does_not_differ(few: int, many: int) -> None:
    """Of the two-sample tests with one spread, or of ranks, this is the known weakness (Behrens and Fisher)."""
    wrong, ranked = 0, 0
    for case in range(800):
        wide = [*map(float, np.exp(R.normal(0, (0.02, 0.05, 0.2)[case % 3], few)))]
        tight = [*map(float, np.exp(R.normal(0, 0.01, many)))]
        wrong += differs(wide, tight)
        ranked += range_alone(wide, tight)
    assert wrong / 800 <= LEVEL * 1.5  # Welch's freedom is approximate for few runs; the deviation is 0.8 %
    assert few > 3 or ranked / 800 > LEVEL * 1.5, "this data would show a judgement by ranks"


@pytest.mark.parametrize("runs", [4, 7, 8, 12])
def test_of_equal_runs_at_most_1_in_20_pairs_is_said_to_differ(runs: int) -> None:
    """The p of a pair is exact for every distribution, so also for two modes."""
    draws = [*TIMES.values(), *TAILS.values()]
    wrong, others = 0, 0
    for case in range(2000):
        group = draws[case % len(draws)](runs)
        found = chance_of(group[0], group[1], [group], counted=False)
        wrong += found is not None and found.p <= LEVEL
        rest = group[2:]
        others += abs(group[0] - group[1]) > quantile(runs - 3) * math.sqrt(2 * variance(rest))
    assert wrong / 2000 <= LEVEL * 1.2  # the deviation of this share is 0.5 %
    assert others / 2000 > LEVEL * 1.2, "this data would show a judgement by the normal spread of the others"


def modes(share: float, spread: float) -> Callable[[np.random.Generator, int], Runs]:
    return lambda draw, n: [*map(float, np.where(draw.random(n) < share, 0.6, 1) * draw.normal(1, spread, n))]


def zeros(share: float) -> Callable[[np.random.Generator, int], Runs]:
    return lambda draw, n: [*map(float, np.where(draw.random(n) < share, 0, draw.poisson(500, n)))]


@pytest.mark.parametrize(
    ("draw", "sizes", "counted", "most"),
    [
        # What was measured for each, and 2.5 deviations of 600 cases.
        (modes(0.5, 0.001), (1, 3), False, 0.125),
        (modes(0.5, 0.001), (2, 2), False, 0.125),
        (modes(0.2, 0.01), (1, 5), False, 0.08),
        (modes(0.5, 0.001), (3, 10), False, 0.16),
        (zeros(0.5), (2, 2), True, 0.125),
        (modes(0.5, 0.01), (3, 3), False, 0.05),
        (modes(0.5, 0.01), (3, 8), False, 0.11),
        (modes(0.5, 0.01), (5, 5), False, 0.05),
        (modes(0.5, 0.01), (10, 10), False, 0.06),
        (zeros(0.2), (1, 3), True, 0.11),
        (zeros(0.2), (1, 5), True, 0.09),
        (zeros(0.2), (5, 5), True, 0.05),
        (zeros(0.8), (3, 3), True, 0.05),
    ],
)
def test_two_modes_and_zeros_differ_by_chance_no_more_often_than_the_page_says(
    draw: Callable[[np.random.Generator, int], Runs], sizes: tuple[int, int], counted: bool, most: float
) -> None:
    own, wrong = np.random.default_rng(3), 0
    for _ in range(600):
        one, other = (draw(own, n) for n in sizes)
        wrong += differs(one, other, counted=counted)
    assert wrong / 600 <= most + 2.5 * math.sqrt(most * (1 - most) / 600)


@pytest.mark.parametrize("runs", [4, 7, 8, 12])
@pytest.mark.parametrize("draw", [modes(0.5, 0.001), modes(0.2, 0.01), zeros(0.2)])
def test_pairs_of_two_modes_differ_in_at_most_1_of_20_cases(
    runs: int, draw: Callable[[np.random.Generator, int], Runs]
) -> None:
    own, wrong = np.random.default_rng(runs), 0
    for _ in range(300):
        group = draw(own, runs)
        found = chance_of(group[0], group[1], [group], counted=False)
        wrong += found is not None and found.p <= LEVEL
    assert wrong / 300 <= LEVEL + 2.5 * math.sqrt(LEVEL * (1 - LEVEL) / 300)


def test_the_p_of_a_pair_is_its_share_of_all_pairs() -> None:
    group = [0.90, 1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.15]
    chances = {p: chance_of(*p, [group], counted=False) for p in ((0.9, 1.15), (1.0, 1.01), (0.9, 1.05))}
    assert [found and round(28 * found.p) for found in chances.values()] == [1, 24, 2]
    ends = chances[0.9, 1.15]
    assert ends is not None and ends.p <= LEVEL and "1 of 28 pairs of equal runs" in ends.words


@pytest.mark.parametrize("change", [1.05, 0.95])
def test_a_change_of_5_percent_is_found_with_five_runs_of_1_percent_spread(change: float) -> None:
    pairs = [[[*map(float, R.normal(mean, 0.01 * mean, 5))] for mean in (1, change)] for _ in range(500)]
    assert sum(differs(*pair) for pair in pairs) / 500 >= 0.95
    logs = [[[math.log(each) for each in runs] for runs in pair] for pair in pairs]
    assert sum(self_including(pair[0][0], pair[1][0], pair) for pair in logs) / 500 < 0.95, "single runs do not show it"


def test_ten_runs_of_each_with_little_spread_show_less_than_3_percent() -> None:
    for _ in range(100):
        one, other = ([*map(float, R.normal(mean, 0.0005, 10))] for mean in (1, 0.971))
        assert math.log(one[0] / other[0]) < STEADY + 0.004 and differs(one, other)


FAST, SLOW = [0.0100, 0.0116, 0.0104], [0.0011, 0.0011, 0.0046]


def test_all_of_one_above_all_of_the_other_by_a_factor_of_2_is_no_noise() -> None:
    for one, other in ((FAST, SLOW), (SLOW, FAST)):
        for a in one:
            for b in other:
                found = chance_of(a, b, [one, other], counted=False)
                assert found is not None and found.p == pytest.approx(0.064, abs=0.001) and found.unsure
                assert judged_once(a, b, [one, other], counted=False)[0] == "unknown"
                assert f"all of {'A' if one is FAST else 'B'} are higher" in found.words
                assert "a factor of 6.01 apart" in found.words and "4 runs of each show it" in found.words
    assert not self_including(FAST[0], SLOW[2], [FAST, SLOW]), "without logarithms, the slow ones have no weight"
    single = chance_of(FAST[0], SLOW[0], [FAST[:1], SLOW], counted=False)
    assert single is not None and single.p > LEVEL and single.unsure, "one run against three is not known, not noise"
    overlap = chance_of(FAST[0], SLOW[0], [FAST, [*SLOW, 0.0110]], counted=False)
    assert overlap is not None and overlap.p > LEVEL and not overlap.unsure


@pytest.mark.parametrize("runs", range(3, 9))
def test_one_of_two_equal_runs_that_is_an_outlier_is_never_called_noise(runs: int) -> None:
    zeros = [0.0] * (runs - 1)
    verdict, why = judged_once(0, 1e6, [[*zeros, 1e6]])
    assert verdict == "unknown", why
    assert not self_including(0, 1e6, [[*zeros, 1e6]]), "A and B in their own spread made it noise"
    if runs > 4:
        equal = [1.0 + 0.001 * at for at in range(runs - 1)]
        found = chance_of(1.0, 0.01, [[*equal, 0.01]], counted=False)
        assert found is not None and found.unsure and found.p == pytest.approx(2 / runs)  # runs - 1 of all pairs
        assert "B is an outlier" in found.words
        usual = chance_of(equal[0], equal[1], [[*equal, 0.01]], counted=False)
        assert usual is not None and not usual.unsure
        assert not self_including(1.0, 0.01, [[*equal, 0.01]])


def test_small_counts_have_at_least_the_spread_of_a_poisson_process() -> None:
    assert judged_once(0, 1, [[0] * 4, [1] * 4])[0] != "differs"
    assert judged_once(0, 20, [[0] * 5, [20] * 5])[0] == "differs"
    assert judged_once(0.5, 0.6, [[0.5] * 5, [0.6] * 5], counted=False)[0] == "differs"
    assert judged_once(0.5, 0.505, [[0.5] * 5, [0.505] * 5], counted=False)[0] == "noise", "no spread: that of STEADY"


def test_an_outlier_of_eight_runs_is_named_and_is_not_called_noise() -> None:
    named, near, wrong = 0, 0, 0
    for case in range(1200):
        runs = [*map(float, R.normal(1, 0.01, 8))]
        wrong += bool(outliers(runs, counted=False))
        usual = runs[case % 8]
        runs[case % 8] = usual * (1.1, 0.9, 100, 0.01)[case % 4]
        named += outliers(runs, counted=False) == [case % 8]
        runs[case % 8] = usual * (1.05, 0.95)[case % 2]
        near += outliers(runs, counted=False) == [case % 8]
    # Grubbs' test, the best for one outlier, names 70 % of those of 5 deviations if it is wrong in 5 % of all groups.
    assert named / 1200 >= 0.97 and near / 1200 >= 0.55 and wrong / 1200 <= LEVEL * 1.2
    two = outliers([1, 1.01, 0.99, 1.005, 1.002, 0.01, 0.011, 1.001, 0.997], counted=False)
    assert sorted(two) == [5, 6], "one does not hide the other"
    group = [1.0, 1.01, 0.99, 1.002, 0.998, 1.005, 0.995, 0.01]
    others = [1.001 * each for each in group[:-1]]
    odd, plain = (chance_of(a, others[0], [group, others], counted=False) for a in (0.01, 1.0))
    assert odd is not None and odd.unsure and odd.p > LEVEL and "A is an outlier" in odd.words
    assert plain is not None and not plain.unsure


def test_without_equal_runs_nothing_is_known() -> None:
    few: list[list[Runs]] = [[], [[]], [[], []], [[1.0], []], [[1.0], [2.0]], [[1.0, 2.0]]]
    assert chance_of(1e-300, 1e300, [[1e-300] * 3, [1e300] * 3], counted=False) is not None
    few += [[[math.inf, 1.0, 2.0], [1.0, 2.0, 3.0]], [[math.nan] * 4]]
    for groups in few:
        assert chance_of(1.0, 2.0, groups, counted=False) is None


def test_one_run_that_spoils_a_mean_does_not_hide_a_difference() -> None:
    one, other = [1.0, 1.01, 0.99, 1.02, 0.98, 1.005], [0.9, 0.91, 0.89, 0.92, 0.905, 1e-6]
    assert differs(one, other) and differs(other, one)
    five = chance_of(one[0], other[0], [one[:5], [*other[:4], 1e-6]], counted=False)
    assert five is not None and five.unsure and "all of A are higher" in five.words, "outliers do not hide a gap"
    assert not differs(one, [*other[:-1], 1.03, 1.04])


def test_students_t_is_as_printed() -> None:
    """NIST/SEMATECH e-Handbook 1.3.6.7.2."""
    printed = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 7: 2.365, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {freedom: round(quantile(freedom), 3) for freedom in printed} == printed
    assert student_p(2.132, 4) == pytest.approx(0.1, rel=1e-3) and student_p(0, 3) == 1


@pytest.mark.parametrize("runs", range(2, 9))
def test_one_far_run_of_two_groups_is_never_called_noise(runs: int) -> None:
    equal, others = [1.0 + 0.001 * at for at in range(runs)], [1.0005 + 0.001 * at for at in range(runs - 1)]
    for one, other, counted in (
        ([0.0] * runs, [1e6, *[0.0] * (runs - 1)], True),
        ([1.0] * runs, [0.01, *[1.0] * (runs - 1)], False),
        (equal, [0.01, *others], False),
    ):
        for a, b, groups in ((one[0], other[0], [one, other]), (other[0], one[0], [other, one])):
            verdict, why = judged_once(a, b, groups, counted=counted)
            assert verdict == "unknown", (groups, why)
        usual = chance_of(one[0], other[-1], [one, other], counted=counted)
        assert usual is not None and (usual.verdict == "unknown" or runs > 5), "its mean is shown, so it counts, too"
        if runs > 2:
            assert "one of B is far" in judged_once(one[0], other[0], [one, other], counted=counted)[1] or runs > 3


def test_where_groups_decide_they_say_which_is_higher() -> None:
    one, other = [108.0, 109, 110, 111, 112, 110, 109, 100], [101.0] * 8
    found = chance_of(one[-1], other[-1], [one, other], counted=False)
    assert found is not None and found.p <= LEVEL and found.means is not None and found.means[0] > 108
    assert found.verdict == "unknown" and "A is an outlier" in found.words and "the other way round" in found.words
    usual = chance_of(one[0], other[0], [one, other], counted=False)
    assert usual is not None and usual.verdict == "differs" and "other way" not in usual.words
    assert middle([4.0, 4.0]) == 4.0 and middle([0.1, 10.0], counted=False) == 1.0
