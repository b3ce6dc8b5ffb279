"""Interference of jobs: which iterations count, and what is said where jobs hardly or never ran at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow
from heddle.runs.timeline import Iterations, Messages, Timeline
from heddle.runs.together import Interference, WorkloadResult
from tests.unit import run_samples as samples

SIZE: Final = 1 << 16
Spans = Sequence[tuple[float, float]]


def job(name: str, spans: Spans, run: str = "0001", wrong: int = 0) -> RunRecord:
    """A run of two ranks with these iterations, in seconds; the second rank ends a little earlier."""
    rows = [
        (rank, SIZE, epoch, begin, end - 0.01 * rank) for epoch, (begin, end) in enumerate(spans) for rank in (0, 1)
    ]
    rank, size, epoch, begin, end = (np.array(column) for column in zip(*rows, strict=True))
    none = np.zeros(0, np.int64)
    nothing = Messages(none, none, none, none, none, np.zeros(0), np.zeros(0), np.zeros(0))
    courses = {"slowest": ("ranks", Timeline(Iterations(rank, size, epoch, begin, end), nothing))}
    us = 1e6 * float((end - begin).mean())
    row = SizeRow(SIZE, us, SIZE / us / 1e3, 1.5 * SIZE / us / 1e3, wrong)
    last = spans[-1][1]
    return replace(samples.result(), job=name, id=run, rows=(row,), courses=courses, span_s=(spans[0][0], last))


def evenly(seconds: float, count: int, start: float = 0.0) -> Spans:
    return [(start + seconds * at, start + seconds * (at + 1)) for at in range(count)]


def measured(a: Spans, b: Spans, alone: float = 1.0, wrong: int = 0) -> Interference:
    """Job a, of three repeats; alone its iterations take so many seconds."""
    repeats = []
    for at in range(3):
        own = [job("a", evenly(alone * (1 + at / 1000), 4), f"{at}1"), job("b", b, f"{at}2", wrong if at == 1 else 0)]
        repeats.append((own, WorkloadResult("w", (job("a", a, f"{at}3"), job("b", b, f"{at}4")))))
    return WorkloadResult.compared(repeats).interference[0]


def test_iterations_after_the_other_job_ended_do_not_count() -> None:
    beside, after = evenly(2.0, 5), evenly(1.0, 15, 10.0)
    found = measured([*beside, *after], evenly(1.0, 10))
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert (found.share, found.others) == (0.25, ("b",))
    assert found.verdict.startswith("differs: ") and "25% of its iterations ran beside these" in found.lines()[1]
    every = sum(end - begin for begin, end in (*beside, *after)) / 20
    assert 1 / every == pytest.approx(0.8), "the mean over all iterations would be far from it"


def test_one_that_ends_later_than_the_other_job_does_not_count_either() -> None:
    found = measured(evenly(2.0, 5), evenly(1.0, 9))
    assert found.share == pytest.approx(0.8) and found.ratio == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(
    ("b", "said"),
    [
        (evenly(0.5, 1), "not known beside b (runs 03, 13, 23): in no iteration all of these ran for 90% of the time"),
        (evenly(1.0, 4, 50.0), "no other job ran at the same time"),
    ],
)
def test_where_no_iteration_ran_beside_the_other_job_there_is_no_figure(b: Spans, said: str) -> None:
    found = measured(evenly(1.0, 20), b)
    assert found.ratio is None and found.share == 0 and said in found.lines()[0]


def test_a_repeat_without_such_an_iteration_does_not_count() -> None:
    repeats = [
        ([job("a", evenly(1, 4)), job("b", b)], WorkloadResult("w", (job("a", evenly(2, 9)), job("b", b))))
        for b in (evenly(0.5, 1), evenly(1, 30), evenly(1.001, 30))
    ]
    found = WorkloadResult.compared(repeats).interference[0]
    assert (len(found.together), len(found.alone)) == (2, 3) and found.ratio == pytest.approx(0.5, rel=0.01)


def test_equal_times_are_noise_and_no_verdict_rests_on_wrong_data() -> None:
    usual = measured(evenly(1.001, 20), evenly(1.0, 30))
    assert usual.verdict.startswith("noise: ")
    wrong = job("b", evenly(1.0, 30), "12", wrong=7)
    assert wrong.wrong == 7
    repeats = [
        ([job("a", evenly(1, 4)), wrong], WorkloadResult("w", (job("a", evenly(2, 9)), job("b", evenly(1, 30)))))
    ] * 3
    found = WorkloadResult.compared(repeats)
    assert found.interference[1].verdict == "no verdict: run 12: 7 wrong elements" and found.wrong == 21


def test_a_pause_of_the_other_job_between_its_iterations_does_not_count() -> None:
    slow, fast = [(0.0, 2.0), (7.0, 9.0)], evenly(1.0, 5, 2.0)
    found = measured(sorted([*slow, *fast]), slow)
    assert found.ratio == pytest.approx(0.5, rel=0.01) and found.share == pytest.approx(2 / 7)
    assert "29% of its iterations ran beside these (45% of its time)" in found.lines()[1]
    assert "all of those alone are higher" in found.verdict, "there is no A"
    within = measured(evenly(2.0, 4), [(2.0 * at, 2.0 * at + 0.5) for at in range(4)])
    assert within.ratio is None and "b" in within.others and within.busy == pytest.approx(0.25, abs=0.01)


def test_others_are_those_of_all_repeats_and_a_bandwidth_of_0_is_not_known() -> None:
    repeats = [
        ([job("a", evenly(1, 4)), job("b", b)], WorkloadResult("w", (job("a", evenly(2, 9)), job("b", b))))
        for b in (evenly(1, 30), evenly(1.001, 30), evenly(1, 3, 50.0))
    ]
    assert "beside b (" in WorkloadResult.compared(repeats).interference[0].lines()[0]
    none = job("a", evenly(1, 4))
    none = replace(none, rows=(replace(none.rows[0], busbw=0.0),))
    found = WorkloadResult.compared([([none, alone[1]], together) for alone, together in repeats]).interference[0]
    assert (found.ratio, found.verdict) == (None, "not known") and "a bandwidth is 0" in found.lines()[0]
