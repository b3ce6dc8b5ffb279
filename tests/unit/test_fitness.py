"""Whether a verdict may rest on a run: each reason against it, and their order."""

from __future__ import annotations

from dataclasses import replace

from heddle.experiments.figures import LiveFigures
from heddle.host.capacity import Cause
from heddle.runs.parts.machine import MachineUse
from heddle.runs.results import ProofSummary, RunResult, Unfit, unfit
from tests.unit.run_samples import having, result

PROVEN = ProofSummary(True, 16, 0, ("prediction", "oracle", "counters"), 1.0, 1.0, 0)


def proven(**summary: object) -> RunResult:
    return replace(result(), proof=replace(PROVEN, **summary))  # type: ignore[arg-type]


def busy(run: RunResult, size: int | None) -> RunResult:
    causes = (Cause("processor", size, 1, sure=True, text="CPU 1 was busy 99% of the time"),)
    return having(run, machine=replace(run[MachineUse], unreliable=causes))


def wrong(run: RunResult) -> RunResult:
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
