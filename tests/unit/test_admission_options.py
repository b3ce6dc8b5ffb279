"""The options of admission, their parameters and limits, and what a run and its report say of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.admission.admitted import cts_timeout_s
from heddle.endpoints.worker import compiled
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.parts import AdmissionUse, WaitFigures
from heddle.runs.run import plan_run
from heddle.traffic.admission import Admission
from heddle.traffic.options import RunOptions, run_options
from heddle.traffic.plan import build_plan
from heddle.views.report.page import report_html
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep


def test_the_defaults_are_ncclns_scaled_and_bound_messages_by_slots() -> None:
    options = run_options(admission="on")
    assert options.admitted == Admission(1, 49152, 8, 0.0, "control")
    assert options.admitted.text() == "1 channel x 48 KiB = 48 KiB in flight to a receiver, 8 slots of 6 KiB"
    plan = build_plan(load_fabric("tiny").fabric, options)
    assert plan.options.chunk == 6144 and options.chunk == 1 << 17
    assert cts_timeout_s(plan, options.admitted) == 120.0
    assert run_options().admitted is None


def test_sizes_and_numbers_set_parameters() -> None:
    given_ = ["channels=4", "buffsize=1M", "steps=4", "cts_timeout=2.5"]
    with pytest.raises(InputError, match="is not a whole number"):
        run_options(admission="on", admission_set=given_)
    options = run_options(admission="on", admission_set=[*given_, "cts_timeout=3"], cts_class="data")
    assert options.admitted == Admission(4, 1 << 20, 4, 3.0, "data")


def test_a_slow_host_must_have_a_rank() -> None:
    fabric = load_fabric("tiny").fabric
    assert build_plan(fabric, run_options(slow=["host3=25%"])).options.slow == (("host3", 0.25),)
    with pytest.raises(InputError) as caught:
        build_plan(fabric, run_options(slow=["host33=25%", "host3=50"]))
    assert str(caught.value) == "--slow host33=25% names a host without a rank\n  hint: did you mean host3?"


def test_a_slow_host_and_a_small_budget_give_the_run_more_time() -> None:
    fabric = load_fabric("tiny").fabric
    sizes = (256 << 20,)
    usual = build_plan(fabric, RunOptions(sizes=sizes, iters=100)).max_seconds
    slow = build_plan(fabric, RunOptions(sizes=sizes, iters=100, slow=(("host3", 0.25),))).max_seconds
    assert usual > 600 and 3.9 < slow / usual <= 4.0


def test_soft_roce_refuses_both() -> None:
    fabric = load_fabric("tiny").fabric
    with pytest.raises(InputError) as caught:
        plan_run(fabric, run_options(admission="on", slow=["host3=25%"], transport="rxe", chunk="64K"))
    assert [each.what for each in caught.value.problems if "own NICs" in each.why][-2:] == [
        "--admission on", "--slow host3",
    ]  # fmt: skip


def test_only_the_python_loop_has_admission() -> None:
    fabric = load_fabric("tiny").fabric
    plan, transport = plan_run(fabric, run_options(admission="on"))
    assert not compiled(plan, transport)


def test_the_options_come_back_from_a_record() -> None:
    data = asdict(run_options(admission="on", admission_set=["steps=4"], slow=["host3=25%"]))
    assert data["admission_set"] == (("steps", 4.0),) and data["slow"] == (("host3", 0.25),)


def test_the_report_of_a_run_has_its_admission(tmp_path: Path) -> None:
    """Through the record on disk."""
    waits = WaitFigures(756, 202, 0.00112, 0.0063, 0.4)
    use = AdmissionUse(
        True,
        {"channels": 1},
        "",
        "data",
        49152,
        "1 channel x 48 KiB",
        761,
        756,
        5,
        waits,
        {"host3": 0.25},
        "not proven",
    )
    record = samples.record()
    assert record.outcome is not None
    run = keep(tmp_path, record=replace(record, outcome=replace(record.outcome, admission=use)))
    assert run.record.outcome is not None and run.record.outcome.admission == use
    text = report_html([run])
    for words in ("761 sent, 5 of them again, 756 received", "P50 1.12 ms, P90 6.3 ms", "host3 processes data at"):
        assert words in text
