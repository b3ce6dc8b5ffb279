"""Evenness, dependence, entropy and the arithmetic of chance: against tables, enumeration and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heddle.predict.flowarrays import FlowArrays
from heddle.predict.statistics import (
    DEPENDENT,
    EVEN,
    INDEPENDENT,
    TOO_FEW,
    UNEVEN,
    chi_square_p,
    dependence,
    entropy_bits,
    evenness,
    evenness_of_groups,
    max_over_mean,
    tuple_entropy,
    upper_gamma,
)


@pytest.mark.parametrize(
    ("value", "degrees", "p"),
    [(3.841459, 1, 0.05), (10.827566, 1, 0.001), (15.507313, 8, 0.05), (29.588298, 10, 0.001), (124.342113, 100, 0.05)],
)
def test_chi_square_is_as_in_the_printed_tables(value: float, degrees: int, p: float) -> None:
    assert chi_square_p(value, degrees) == pytest.approx(p, rel=1e-5)


@pytest.mark.parametrize("x", [0.01, 0.5, 1.0, 3.0, 20.0])
def test_the_incomplete_gamma_function_has_its_closed_forms(x: float) -> None:
    assert upper_gamma(1, x) == pytest.approx(math.exp(-x), rel=1e-12)
    assert upper_gamma(3, x) == pytest.approx(math.exp(-x) * (1 + x + x * x / 2), rel=1e-12)
    assert upper_gamma(0.5, x) == pytest.approx(math.erfc(math.sqrt(x)), rel=1e-12)


def test_a_thousand_random_flows_on_sixteen_links_have_an_mmr_of_one_point_two_three() -> None:
    random = np.random.default_rng(1)
    drawn = [max_over_mean(np.bincount(random.integers(0, 16, 1000), minlength=16)) or 0.0 for _ in range(2000)]
    assert float(np.mean(drawn)) == pytest.approx(1.23, abs=0.02)


def test_mmr_of_nothing_is_unknown() -> None:
    assert max_over_mean([0, 0]) is None
    assert max_over_mean([]) is None
    assert max_over_mean([3, 1]) == 1.5


def test_fair_dice_are_even_and_loaded_ones_are_not() -> None:
    random = np.random.default_rng(2)
    fair = np.bincount(random.integers(0, 6, 6000), minlength=6)
    assert evenness(fair).verdict == EVEN
    assert evenness(fair).degrees == 5
    assert evenness([1400, *[920] * 5]).verdict == UNEVEN


def test_links_that_should_get_more_are_even_when_they_do() -> None:
    counts = [1010, 1990]
    assert evenness(counts).verdict == UNEVEN
    weighted = evenness(counts, [1, 2])
    assert weighted.verdict == EVEN
    assert weighted.mmr == pytest.approx(1.010 * 2 / (1.010 + 0.995))


@pytest.mark.parametrize("counts", [[0, 0, 0], [16], [4, 0], [16, 0, 0, 0, 0, 0, 0, 0], [7, 2]])
def test_too_few_flows_are_neither_even_nor_uneven(counts: list[int]) -> None:
    assert evenness(counts).verdict == TOO_FEW


def test_the_error_rate_of_a_verdict_is_as_stated() -> None:
    random = np.random.default_rng(3)
    wrong = sum(evenness(random.multinomial(400, [1 / 8] * 8), alpha=0.05).verdict == UNEVEN for _ in range(2000))
    assert 60 < wrong < 140


def test_each_switch_costs_a_degree_of_freedom_and_an_idle_one_all_of_its() -> None:
    result = evenness_of_groups([([50, 50, 50, 50], None), ([20, 30], None), ([0, 0, 0], None)])
    assert result.degrees == 3 + 1
    assert result.chi_square == pytest.approx(2.0)
    assert result.links == 9


def test_choices_that_know_nothing_of_each_other_are_independent() -> None:
    random = np.random.default_rng(4)
    result = dependence(random.integers(0, 4, 4000), random.integers(0, 4, 4000))
    assert result.verdict == INDEPENDENT
    assert result.degrees == 9
    assert result.bits < 4 * result.by_chance


def test_a_choice_that_repeats_the_last_one_is_dependent_and_tells_all_its_bits() -> None:
    first = np.arange(4000) % 4
    result = dependence(first, first * 7)
    assert result.verdict == DEPENDENT
    assert result.bits == pytest.approx(2.0)


def test_few_flows_say_nothing_about_dependence() -> None:
    assert dependence([0, 1, 2, 3], [0, 1, 2, 3]).verdict == TOO_FEW
    assert dependence([0] * 500, [1] * 500).verdict == TOO_FEW
    assert dependence([], []).verdict == TOO_FEW


def test_entropy_counts_what_a_hash_can_tell_apart() -> None:
    assert entropy_bits([1, 1, 1, 1]) == 2.0
    assert entropy_bits([4, 0]) == 0.0
    four = np.full(4, 1, dtype=np.uint32)
    ports = np.array([49152, 49152, 49153, 49152], dtype=np.uint32)
    seen = tuple_entropy(FlowArrays(four, four, ports, four * np.uint32(4791), np.arange(4, dtype=np.uint32)))
    assert (seen.flows, seen.distinct) == (4, 2)
    assert seen.bits == pytest.approx(entropy_bits([3, 1]))


def test_one_link_that_hardly_anything_is_due_to_makes_a_test_worthless() -> None:
    weights = [0.001, *[1.0] * 5]
    assert evenness([0, *[100] * 5], weights).verdict == TOO_FEW
    assert evenness([1, *[100] * 5], [0.03, *[1.0] * 5]).verdict == EVEN


def test_information_by_chance_is_what_independent_choices_show() -> None:
    random = np.random.default_rng(3)
    found = [dependence(random.integers(0, 4, 500), random.integers(0, 4, 500)) for _ in range(300)]
    assert found[0].by_chance == pytest.approx(9 / (1000 * math.log(2)))
    assert np.mean([each.bits for each in found]) == pytest.approx(found[0].by_chance, rel=0.1)
