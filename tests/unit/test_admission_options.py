"""Options of admission and of communicators, their defaults and limits, and what a run and its report say."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from heddle.base.declared import options_of
from heddle.base.problems import InputError
from heddle.cli import run_verb
from heddle.cli.assistant import arguments_of
from heddle.endpoints.admission.admitted import cts_timeout_s
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.worker import compiled
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.loads import traffic_of
from heddle.runs.parts.admission import AdmissionUse, WaitFigures
from heddle.runs.run import plan_run
from heddle.traffic.admission import Admission
from heddle.traffic.communicators import parse_split
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.views.report.page import report_html
from tests.answers import Answers
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


def test_a_slow_host_must_have_a_rank_and_gives_the_run_more_time() -> None:
    fabric = load_fabric("tiny").fabric
    assert build_plan(fabric, run_options(slow=["host3=25%"])).options.slow == (("host3", 0.25),)
    with pytest.raises(InputError) as caught:
        build_plan(fabric, run_options(slow=["host33=25%", "host3=50"]))
    assert str(caught.value) == "--slow host33=25% names a host without a rank\n  hint: did you mean host3?"
    # A slow host and a small budget give the run more time.
    sizes = (256 << 20,)
    usual = build_plan(fabric, RunOptions(sizes=sizes, iters=100)).max_seconds
    slow = build_plan(fabric, RunOptions(sizes=sizes, iters=100, slow=(("host3", 0.25),))).max_seconds
    assert usual > 600 and 3.9 < slow / usual <= 4.0


def test_admission_runs_in_the_python_loop_only_and_comes_back_from_a_record() -> None:
    fabric = load_fabric("tiny").fabric
    plan, transport = plan_run(fabric, run_options(admission="on"))
    assert not compiled(plan, transport)
    # The options come back from a record.
    data = asdict(run_options(admission="on", admission_set=["steps=4"], slow=["host3=25%"]))
    assert data["admission_set"] == (("steps", 4.0),) and data["slow"] == (("host3", 0.25),)
    # Soft roce refuses both.
    with pytest.raises(InputError) as caught:
        plan_run(fabric, run_options(admission="on", slow=["host3=25%"], transport="rxe", chunk="64K"))
    assert [each.what for each in caught.value.problems if "own NICs" in each.why][-2:] == [
        "--admission on", "--slow host3",
    ]  # fmt: skip


def test_the_report_of_a_run_has_its_admission(tmp_path: Path, answers: Answers) -> None:
    """Through the record on disk."""
    waits = WaitFigures(756, 202, 0.00112, 0.0063, 0.4)
    use = AdmissionUse(
        True, {"channels": 1}, "", "data", 49152, "1 channel x 48 KiB", 761, 756, 5, waits, {"host3": 0.25},
        "not proven", 758,
    )  # fmt: skip
    record = samples.record()
    run = keep(tmp_path, record=samples.having(record, admission=use))
    assert run.record[AdmissionUse] == use
    text = report_html([run])
    cts = "761 sent, 5 of them retransmitted, 756 received"
    for words in (cts, "P50 1.12 ms, P90 6.3 ms", "host3 processes data at"):
        assert words in text
    off = replace(use, on=False, waits=None)
    answers({"with admission": "\n".join(use.lines()), "without": "\n".join(off.lines())})


def test_a_split_is_typed_as_for_nccl_tests(answers: Answers) -> None:
    def read(typed: str) -> str:
        assert run_options(split=typed).split == parse_split(typed)
        return parse_split(typed)

    answers(read)


def test_an_invalid_split_is_refused_with_an_example(answers: Answers) -> None:
    answers(lambda typed: run_options(split=typed))


def test_a_split_makes_rings_also_in_predictions() -> None:
    zone = load_fabric("zone").fabric
    plan = build_plan(zone, RunOptions(ranks=8, split="MOD 2"))
    assert plan.communicators == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert plan.size == 4
    assert [(flow.src_rank, flow.dst_rank) for flow in plan.flows()] == [
        (0, 2), (2, 4), (4, 6), (6, 0), (1, 3), (3, 5), (5, 7), (7, 1),
    ]  # fmt: skip
    halves = build_plan(zone, RunOptions(ranks=8, split="DIV 4"))
    assert halves.communicators == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert build_plan(zone, RunOptions(ranks=8)).communicators == (tuple(range(8)),)
    # A prediction opens the same queue pairs.
    plan = build_plan(zone, RunOptions(ranks=12, qps=2, split="MOD 3"))
    (only,) = traffic_of(zone, load_workload("ring,ranks=12,qps=2,split=MOD 3").workload)
    connections = only.connections
    first = [q for q in plan.qps if q.index == 0]
    assert connections.src.tolist() == [q.flow.src_rank for q in first]
    assert connections.dst.tolist() == [q.flow.dst_rank for q in first]
    assert connections.dst_number.tolist() == [q.flow.qpn for q in first]
    # A named matrix is among the ranks of each communicator.
    (only,) = traffic_of(load_fabric("zone").fabric, load_workload("shift:1,ranks=6,split=MOD 2").workload)
    pairs = zip(only.connections.src.tolist(), only.connections.dst.tolist(), strict=True)
    data = [(0, 2), (1, 3), (2, 4), (3, 5), (4, 0), (5, 1)]
    assert sorted(pairs) == sorted([*data, *((dst, src) for src, dst in data)]), "with a credit from each receiver"
    # Unlike and lonely communicators are refused.
    with pytest.raises(InputError, match=r"--split MOD 2 .*communicators of 2 and 3 ranks.*\n.*--ranks 4"):
        build_plan(zone, RunOptions(ranks=5, split="MOD 2"))
    with pytest.raises(InputError, match=r"--split DIV 1 .*4 communicators of one rank"):
        build_plan(zone, RunOptions(ranks=4, split="DIV 1"))


def test_the_defaults_of_a_run_are_written_once() -> None:
    """A default as typed has the value of its field, and flags and arguments are those of the fields."""
    assert run_options() == RunOptions()
    assert run_options(**{each.word: each.default for each in options_of(RunOptions)}) == RunOptions()
    own = [each.flag for each in options_of(RunOptions)]
    assert set(own) <= set(run_verb.run.verb.flags)
    for each in options_of(RunOptions):
        assert (each.word in arguments_of(run_verb.run.verb)) == each.declared.assistants
