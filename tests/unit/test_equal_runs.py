"""Noise of counts: which kept runs are equal, and what their spread says of a difference."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.host.saturation import Cause
from heddle.runs.compare import Comparison, Ratio, compare
from heddle.runs.noise import equal_runs, spread_of
from heddle.runs.runrecord import RunRecord
from heddle.traffic.options import RunOptions
from tests.unit import run_samples as samples
from tests.unit.kept_runs import AROUND, keep

ONE, OTHER = RunOptions(sizes=(1 << 16,), qps=4), RunOptions(sizes=(1 << 16,), qps=16)


def counted(options: RunOptions, marks: int, pauses: int = 0) -> RunRecord:
    """A run with these counts."""
    record = samples.record(options)
    assert record.outcome is not None
    assert record.outcome.queues is not None
    queues = replace(record.outcome.queues, marks=marks, pauses=pauses)
    return replace(record, outcome=replace(record.outcome, queues=queues))


def of(found: Comparison, figure: str) -> Ratio:
    return next(each for each in found.ratios if each.figure == figure)


def test_the_spread_is_pooled_over_both_groups_around_their_own_means() -> None:
    spread = spread_of([(100, 104, 96), (200, 208)])
    assert spread is not None
    assert spread.freedom == 3
    assert spread.deviation == pytest.approx(math.sqrt((16 + 16 + 16 + 16) / 3))
    assert spread.apart == pytest.approx(3.182 * spread.deviation * math.sqrt(2))
    assert spread_of([(100, 104), (200,)]) is None
    assert spread_of([(), ()]) is None


def test_equal_runs_tell_which_difference_of_counts_is_noise(tmp_path: Path) -> None:
    for number, (marks, pauses) in enumerate([(100, 40), (104, 20), (96, 60)], 1):
        first = keep(tmp_path, number, counted(ONE, marks, pauses))
    found = compare(first, keep(tmp_path, 4, counted(OTHER, 130, 70)))
    assert found.equal == [3, 1]
    assert (of(found, "marks").verdict, of(found, "pause frames").verdict) == ("differs", "noise")
    assert of(found, "marks").why == "34 apart; 3 and 1 equal runs: the 95 % interval of two runs is +-24.34"


def test_two_runs_do_not_tell_and_the_reason_says_what_to_do(tmp_path: Path) -> None:
    found = compare(keep(tmp_path, 1, counted(ONE, 100)), keep(tmp_path, 2, counted(ONE, 104)))
    assert (of(found, "marks").verdict, found.equal) == ("unknown", [2])
    assert of(found, "marks").why == "one count per run, and too few equal runs in the history (2): repeat A or B"
    keep(tmp_path, 3, counted(ONE, 96))
    again = compare(keep(tmp_path, 4, counted(ONE, 98)), keep(tmp_path, 5, counted(ONE, 101)))
    assert (of(again, "marks").verdict, again.equal) == ("noise", [5])


def test_runs_that_are_not_equal_are_left_out(tmp_path: Path) -> None:
    mine = keep(tmp_path, 1, counted(ONE, 100))
    limited = counted(ONE, 500)
    assert limited.outcome is not None
    cause = Cause("processor", None, 1, sure=False, text="processor 1: 99% busy")
    machine = replace(limited.outcome.machine, unreliable=(cause,))
    keep(tmp_path, 2, replace(limited, outcome=replace(limited.outcome, machine=machine)))
    keep(tmp_path, 3, counted(OTHER, 500))
    keep(tmp_path, 4, counted(ONE, 500), around=replace(AROUND, queues={"rtsw1": {"ecn.kmax": 800_000}}))
    keep(tmp_path, 5, samples.failed())
    same = keep(tmp_path, 6, counted(ONE, 101))
    assert set(equal_runs(mine)) == {mine.path, same.path}


def test_other_sizes_or_a_limited_run_are_never_judged(tmp_path: Path) -> None:
    for number in range(1, 4):
        a = keep(tmp_path, number, counted(ONE, 100 + number))
    b = keep(tmp_path, 4, counted(replace(ONE, iters=ONE.iters + 1), 140))
    assert of(compare(a, b), "marks").why == "sizes or iterations differ"
