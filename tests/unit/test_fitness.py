"""Whether a verdict may rest on a run: each reason against it, and their order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heddle.host.capacity import Cause
from heddle.proof.linkuse import Mmr
from heddle.proof.verdict import PathsResult
from heddle.runs.parts.machine import MachineUse
from heddle.runs.runrecord import ProofSummary, RunRecord, Unfit, unfit
from heddle.runs.store import History, limits, paths_of
from heddle.runs.stored import Stored, StoredRun
from heddle.views.report import runparts
from heddle.views.runstext import runs_text
from heddle_plugins.dashboard.metrics import MonotonicCounters, ScrapedLab, families
from heddle_plugins.dashboard.news import run_json
from heddle_plugins.experiments.figures import LiveFigures
from tests.unit.history_runs import a_lab
from tests.unit.history_runs import keep as keep_in
from tests.unit.kept_runs import keep
from tests.unit.run_samples import having, interrupted, record, result

PROVEN = ProofSummary(True, 16, 0, ("prediction", "oracle", "counters"), 1.0, 1.0, 0)


def proven(**summary: object) -> RunRecord:
    return replace(result(), proof=replace(PROVEN, **summary))  # type: ignore[arg-type]


def busy(run: RunRecord, size: int | None) -> RunRecord:
    causes = (Cause("processor", size, 1, sure=True, text="CPU 1 was busy 99% of the time"),)
    return having(run, machine=replace(run[MachineUse], unreliable=causes))


def wrong(run: RunRecord) -> RunRecord:
    return replace(run, rows=(replace(run.rows[0], wrong=12), *run.rows[1:]))


def test_a_run_with_right_results_and_proven_paths_is_fit() -> None:
    assert unfit(proven()) is None
    assert unfit(replace(result(), proof=None)) is None  # no verdict on its paths was possible


def test_wrong_data_go_before_unproven_paths_and_these_before_a_busy_machine() -> None:
    unproven = proven(agree=False, unproven=2)
    assert unfit(wrong(busy(unproven, None))) == Unfit("wrong data", "12 wrong elements")
    assert unfit(busy(unproven, None)) == Unfit("unproven", "2 of 16 paths not proven")
    assert unfit(proven(agree=False)) == Unfit("unproven", "paths are not proven")  # packets that no rule explains
    assert unfit(busy(proven(), None)) == Unfit("unreliable", "UNRELIABLE: CPU 1 was busy 99% of the time")


def test_a_machine_that_was_busy_at_one_size_leaves_the_others_fit() -> None:
    run = busy(proven(), 1 << 16)
    assert unfit(run) is not None and unfit(run, 1 << 16) is not None
    assert unfit(run, 1 << 20) is None
    assert unfit(busy(proven(), None), 1 << 20) is not None  # the whole run


def test_the_text_of_a_reason_gives_the_reason() -> None:
    runs = (wrong(proven()), proven(agree=False, unproven=2), proven(agree=False), busy(proven(), None))
    reasons = [unfit(run) for run in runs]
    assert [each.kind for each in reasons if each] == ["wrong data", "unproven", "unproven", "unreliable"]
    assert [Unfit.read(each.why) for each in reasons if each] == reasons
    assert Unfit.read("") is None
    assert Unfit.read("the host CPU may be the bottleneck") == Unfit("unreliable", "the host CPU may be the bottleneck")


def test_a_busy_machine_is_named_also_where_paths_need_no_proof() -> None:
    assert LiveFigures([busy(proven(agree=False), None)], None).doubt.startswith("UNRELIABLE: CPU 1")
    assert LiveFigures([proven(agree=False)], None).doubt == "paths are not proven"
    assert LiveFigures([proven(), wrong(busy(proven(), None))], None).doubt == "12 wrong elements"
    assert LiveFigures([proven()], None).doubt == ""


def test_wrong_elements_in_place_are_seen_wherever_a_run_is_shown(tmp_path: Path) -> None:
    first, *others = result().rows
    rows = (replace(first, in_place=replace(first.first, wrong=7)), *others)
    done = replace(record(), rows=rows)
    stopped = replace(interrupted(), rows=rows[:1])
    assert (done.wrong, stopped.wrong) == (7, 7)
    assert unfit(done) == unfit(stopped) == Unfit("wrong data", "7 wrong elements")
    runs = [keep(tmp_path, number, each) for number, each in enumerate((done, stopped), 1)]
    for run in runs:
        cards = runparts.summary(run)["cards"]
        assert isinstance(cards, list) and ("wrong elements", "7", "the result is wrong") in cards
        assert run_json(run)["rows"][0][-1] == 7
    assert run_json(keep(tmp_path, 3, replace(done, workload="my ring")))["what"].startswith("my ring: all-reduce")
    lines = runs_text({"zone": runs}, limits(), []).splitlines()
    assert [line.split()[-4] for line in lines if line.startswith(("0001", "0002"))][:2] == ["7", "7"]
    scraped = families([ScrapedLab("zone", None, None, done, 0, 0)], MonotonicCounters())
    assert sum(each.value for family in scraped for each in family.samples if "wrong" in each.name) == 7


def test_paths_have_the_wrong_elements_of_their_run(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    proven = PathsResult(True, (), (), Mmr(None, None), {}, "rtsw", {}, ())
    monkeypatch.setattr(StoredRun, "proof", Stored(proven))
    for number, run in enumerate((record(), wrong(record())), 1):
        keep_in(history, run)
        assert paths_of(a_lab(history), str(number)).wrong == run.wrong == (0, 12)[number - 1]
