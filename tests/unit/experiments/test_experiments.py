"""Experiment files: what they may say, the line of every error, grids, expressions, verdicts, and offline runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base import plugins
from heddle.base.conditions import Expression, ExpressionError, FigureCall, points
from heddle.base.events import Silent
from heddle.base.plugins import Registry
from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.runs.figures import FIGURES
from heddle.runs.measuring import Measuring
from heddle.runs.runrecord import ProofSummary
from heddle_plugins.experiments import livechanges, loading
from heddle_plugins.experiments.experimentreport import draw, experiments_html
from heddle_plugins.experiments.experimenttext import folder_text, result_text
from heddle_plugins.experiments.figures import OwnFigures
from heddle_plugins.experiments.finding import files_of_experiment
from heddle_plugins.experiments.folders import load_folder
from heddle_plugins.experiments.loading import NEEDS, Experiment, load_experiment
from heddle_plugins.experiments.measures import MEASURES
from heddle_plugins.experiments.outcome import ExperimentResult, Repeat, Sample, breaks, unbroken
from heddle_plugins.experiments.running import Running, directory_name, plan_text
from heddle_plugins.experiments.spec import BreakSpec, CheckSpec, ExperimentSpec, FabricUse, FolderSpec, RunSpec
from tests.answers import Answers
from tests.unit import run_samples as samples

ROOT = Path(__file__).parents[3]
SIGN = ", sign: below 1}"
OFF = """\
title: Hashing modes
fabric: {use: tiny, set: {hosts_per_rack: 4}}
runs:
  sweep:
    set: {routing.ecmp: [flow, e-ecmp]}
    run: {collective: all-to-all, size: 1M, qps: [1, 16]}
    offline: true
checks:
  better: {value: "mmr(sweep, ecmp='e-ecmp', qps=16) / mmr(sweep, ecmp=flow, qps=1)", sign: below 1}
  worst: max(mmr(sweep))
  all: mmr(sweep)
"""


def written(path: Path, text: str) -> Path:
    file = path / "x.yml"
    file.write_text(text)
    return file


def loaded(path: Path, text: str) -> Experiment:
    return load_experiment(written(path, text), "x.yml")


def said(path: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        loaded(path, text)
    return str(caught.value)


def test_lists_in_settings_make_a_grid_and_an_offline_run_needs_no_lab(tmp_path: Path) -> None:
    found = loaded(tmp_path, OFF)
    assert [each.title for each in found.variants] == [
        "sweep ecmp=flow qps=1", "sweep ecmp=flow qps=16", "sweep ecmp=e-ecmp qps=1", "sweep ecmp=e-ecmp qps=16",
    ]  # fmt: skip
    assert not any(each.live for each in found.variants)
    result = Running(found, Silent()).run()
    better, worst, *every = result.rows
    assert better.state == "sign only" and better.proven is None and not result.failed
    assert better.sample is not None and better.sample.mean < 1
    means = [row.sample.mean for row in every if row.sample is not None]
    assert len(means) == 4 and worst.sample == Sample((max(means),)) and worst.state == "shown"
    text = result_text(result)
    assert "all ecmp=flow qps=16" in text and "sign only" in text
    document = json.loads(json.dumps(result.to_json()))
    assert document["ok"] and len(document["runs"]) == 4 and document["runs"][0]["figures"]["mmr"] > 0
    page = experiments_html([result])
    assert "<svg" in page and "Hashing modes" in page
    assert draw("svg", result) == draw("svg", result)
    assert result.checks_csv().count("\n") == 7 and "experiment,run,point,repeat,figure,value" in result.runs_csv()


def test_every_error_has_its_line_and_a_reason(tmp_path: Path, answers: Answers) -> None:
    answers(lambda old, new: said(tmp_path, OFF.replace(old, new, 1)))


def test_a_change_or_a_measure_of_a_plugin_that_is_not_here_names_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, table in ((livechanges, "CHANGES"), (loading, "MEASURES")):
        registry = getattr(module, table)
        monkeypatch.setattr(module, table, Registry(registry.kind, registry.core))  # nothing is loaded yet
    monkeypatch.setattr(plugins, "_there", lambda plugin: plugin != "engineering")
    text = """
title: TE
fabric: tiny
runs:
  a: {run: {collective: all-reduce, size: 64K}, te: true}
  b: {measure: te_removed}
checks: {c: busbw(a), d: plan_s(b)}
"""
    assert [line for line in said(tmp_path, text).splitlines() if "hint" not in line] == [
        "x.yml:5  change te is a part of the plugin engineering, which is not in this installation",
        "x.yml:6  measure te_removed is a part of the plugin engineering, which is not in this installation",
    ]


def test_expressions_are_arithmetic_over_figures(answers: Answers) -> None:
    figures = {"a": 1.0, "b": 2.0}

    def lookup(call: FigureCall, at: Mapping[str, str]) -> float:
        return float(dict(call.keys).get("n") or at["n"]) if call.run == "grid" else figures[call.run]

    def axes(call: FigureCall) -> dict[str, tuple[str, ...]]:
        return {"n": ("1", "2", "4")} if call.run == "grid" and not call.keys else {}

    def value(text: str) -> float:
        found = Expression.parse(text, ["a", "b", "grid"])
        assert found.free(axes) == {}
        return found.value({}, lookup, axes)

    answers(value)


def test_nothing_else_is_an_expression(answers: Answers) -> None:
    answers(lambda text: Expression.parse(text, ["a", "b"]))
    for text in ("x" * 2000, "-" * 900 + "1"):
        with pytest.raises(ExpressionError):
            Expression.parse(text, ["a", "b"])


def test_repeats_give_a_mean_an_interval_and_a_variation() -> None:
    sample = Sample((1.0, 2.0, 3.0))
    assert sample.mean == 2 and sample.cv == 50 and sample.half == pytest.approx(4.302653 / 3**0.5)
    assert Sample((1.0,)).half is None and Sample((0.0, 0.0)).cv is None
    assert points({"a": ("1", "2"), "b": ("x",)}) == [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}]


OWN = """\
title: Random flows
fabric: tiny
repeats: 3
runs:
  flows: {measure: random_flows, options: {trials: 20}}
checks:
  mean: {value: mmr_mean, published: 1.23, tolerance: 0.05}
"""


def test_a_measure_is_repeated_and_its_band_follows_from_the_published_figure(tmp_path: Path) -> None:
    result = Running(loaded(tmp_path, OWN), Silent(), repeats=4).run()
    (row,) = result.rows
    assert row.sample is not None and len(row.sample.values) == 4 and row.sample.half is not None
    assert row.state == "in band" and "1.168 to 1.292" in result_text(result)
    assert plan_text(result.experiment, None) == "x: 3 runs, offline, about 1 s"


def test_options_of_a_measure_are_those_that_it_declares(tmp_path: Path, answers: Answers) -> None:
    answers(lambda option: said(tmp_path, OWN.replace("trials: 20", option)))


def test_an_experiment_that_needs_what_is_not_there_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OFF.replace("title:", "needs: [rxe]\ntitle:").replace("size: 1M", "size: 1M, transport: rxe")
    found = loaded(tmp_path, text.replace("offline: true", "about: by the kernel"))
    monkeypatch.setitem(NEEDS, "rxe", lambda: "this kernel has no rxe")
    result = Running(found, Silent()).run()
    assert result.skipped == "this kernel has no rxe" and not result.rows and not result.failed
    assert "skipped: this kernel has no rxe" in result_text(result)
    assert plan_text(found, None).startswith("x: 4 runs on 2 fabrics")


CPU = "UNRELIABLE: CPU 1 was busy 99% of the time"


def judged(experiment: Experiment, *values: float | None, accept: bool = False, **known: Any) -> tuple[str, str, bool]:
    """State and cause of the only check after so many repeats of its only run, and whether the whole failed."""
    (variant,) = experiment.variants
    figures = [None if each is None else OwnFigures({"mmr_mean": each}, ("0001",), **known) for each in values]
    done = [Repeat(variant, number, each, "" if each else "it failed") for number, each in enumerate(figures, 1)]
    result = ExperimentResult(experiment, tuple(done), accept_unreliable=accept)
    (row,) = result.rows
    assert not row.state.startswith("not") or row.cause
    assert row.result in result_text(result) and row.state in result.checks_csv()
    (document,) = json.loads(json.dumps(result.to_json()))["checks"]
    assert (document["state"], document["not_known"]) == (row.state, row.cause)
    return row.state, row.cause, result.failed


def test_a_band_has_two_sides_and_an_interval_that_crosses_neither(tmp_path: Path) -> None:
    band = loaded(tmp_path, OWN)  # 1.1685 to 1.2915
    assert judged(band, 1.23, 1.24, 1.22) == ("in band", "", False)
    assert judged(band, 2.0, 2.01, 1.99) == judged(band, 0.9, 0.91, 0.92) == ("out of band", "", True)
    assert judged(band, 1.23) == judged(band, 1.23, 1.23) == ("not known", "too few repeats", True)
    assert judged(band, 1.15, 1.2, 1.25) == judged(band, 1.25, 1.3, 1.35) == ("not known", "too few repeats", True)
    assert judged(band, 1.23, None, 1.23) == ("not known", "a run failed", True)
    assert judged(band) == ("not known", "no value", True)
    crossing = [Repeat(band.variants[0], at, OwnFigures({"mmr_mean": 1.2 + at / 20})) for at in (1, 2, 3)]
    (row,) = ExperimentResult(band, tuple(crossing)).rows
    assert row.why == ("the 95 % interval, 1.176 to 1.424, crosses the edge 1.2915",)


def test_no_verdict_rests_on_wrong_data_unproven_paths_or_a_busy_machine(tmp_path: Path) -> None:
    band, good = loaded(tmp_path, OWN), (1.23, 1.24, 1.22)
    wrong: dict[str, Any] = {"doubt": "4,096 wrong elements"}
    for accept in (False, True):
        assert judged(band, *good, accept=accept, **wrong) == ("wrong data", "", True)
        assert judged(band, *good, accept=accept, proven=False) == ("not known", "unproven paths", True)
        assert judged(band, *good, accept=accept, proven=True) == ("in band", "", False)
    assert judged(band, *good, doubt=CPU) == judged(band, 2.0, 2.0, 2.1, doubt=CPU) == ("not known", "unreliable", True)
    assert judged(band, *good, doubt=CPU, accept=True) == ("in band", "", False)
    done = tuple(Repeat(band.variants[0], at, OwnFigures({"mmr_mean": 1.23}, doubt=CPU)) for at in (1, 2, 3))
    result = ExperimentResult(band, done, accept_unreliable=True)
    (row,) = result.rows  # the row says so
    assert row.accepted == CPU and "in band, UNRELIABLE" in result_text(result) and CPU in result.checks_csv()
    assert result.to_json()["checks"][0]["unreliable"] == CPU
    shown = loaded(tmp_path, OWN.replace(", published: 1.23, tolerance: 0.05", ""))
    assert judged(shown, 1.23, doubt=CPU) == ("shown", "", False)
    assert judged(shown, 1.23, **wrong) == ("wrong data", "", True)
    assert judged(shown, 1.23, proven=False) == ("not known", "unproven paths", True)
    none = replace(shown, checks=())  # wrong data that no check looks at
    assert ExperimentResult(none, (Repeat(none.variants[0], 1, OwnFigures({}, **wrong)),)).failed


def test_paths_need_no_proof_only_where_a_run_changes_them_and_its_file_says_so(tmp_path: Path) -> None:
    text = OWN.replace("title:", "proof: false\ntitle:")
    assert judged(loaded(tmp_path, text), 1.23, 1.24, 1.22, proven=False)[0] == "in band"  # a measure
    plain = text.replace("{measure: random_flows, options: {trials: 20}}", "{run: {collective: ring, size: 4K%s}}")
    plain = plain.replace("mmr_mean", "mmr").replace("collective: ring", "collective: all-reduce")
    fault = ", fault: ['rtsw1:eth1,down,from=1s']"
    for more, wanted in (("", "unproven paths"), (fault, "")):
        found = loaded(tmp_path, plain % more)
        done = [Repeat(found.variants[0], at, OwnFigures({"mmr": 1.23}, proven=False)) for at in (1, 2, 3)]
        (row,) = ExperimentResult(found, tuple(done)).rows
        assert row.cause == wanted
        busy = [replace(each, figures=OwnFigures({"mmr": 1.23}, proven=False, doubt=CPU)) for each in done]
        (row,) = ExperimentResult(found, tuple(busy)).rows
        assert row.cause == (wanted or "unreliable")


def test_a_sign_holds_or_not_and_exact_values_do_not_vary(tmp_path: Path) -> None:
    def signed(words: str) -> Experiment:
        return loaded(tmp_path, OWN.replace("published: 1.23, tolerance: 0.05", words))

    above, below, zero = signed("sign: above 1"), signed("sign: below 1"), signed("sign: is 0")
    assert judged(above, 1.2, 1.21, 1.22) == judged(below, 0.2, 0.21, 0.22) == ("sign only", "", False)
    assert judged(above, 0.2, 0.21, 0.22) == judged(below, 1.2, 1.21, 1.22) == ("out of band", "", True)
    assert judged(above, 1.0, 1.0, 1.0) == judged(below, 1.0, 1.0, 1.0) == ("out of band", "", True)  # not above
    assert judged(above, 0.9, 1.2, 1.4) == judged(above, 1.2) == ("not known", "too few repeats", True)
    assert judged(zero, 0.0, 0.0, 0.0) == ("sign only", "", False)
    assert judged(zero, 0.0) == judged(zero, 0.0, 0.0) == ("not known", "too few repeats", True)
    assert judged(zero, 0.0, 1.0) == judged(zero, -1.0) == ("out of band", "", True)  # one that is not shows it
    assert judged(above, *[1.7e308] * 3) == ("not known", "no value", True)  # their sum is no number
    with pytest.raises(InputError, match=r"checks.mean.exact: true is of a check with a band or a sign"):
        signed("exact: true")
    exact = signed("low: 1, high: 2, exact: true")
    assert judged(exact, 1.5, 1.5) == ("in band", "", False)
    assert judged(exact, 1.5) == ("not known", "too few repeats", True)  # nothing to compare it with
    assert judged(exact, 1.5, 1.6) == judged(exact, 2.5, 2.5) == ("out of band", "", True)


DRAWS = """\
title: Draws of a hash
fabric: {use: tiny, set: {hosts_per_rack: 4}}
runs:
  few:
    offline: true
    set: {routing.ecmp: flow, routing.seed: &seeds [1, 2, 3, 4, 5, 6]}
    run: &ring {collective: all-reduce, size: 1M, placement: cyclic}
  many: {offline: true, set: {ctsw: 8, routing.ecmp: flow, routing.seed: *seeds}, run: *ring}
  te: {offline: true, mode: te, run: *ring}
checks:
  mean: {value: mean(completion(few)), draws: routing.seed}
  ratio: {value: mean(completion(few)) / mean(completion(many)), draws: routing.seed, low: 1, high: 1.01}
  one: {value: mean(completion(few)) / mean(completion(many)), sign: above 0}
  same: {value: deviation(completion(few)) / deviation(completion(few)), draws: routing.seed, sign: is 1}
  constant: {value: mean(completion(few)) / completion(te), draws: routing.seed}
"""


def test_a_claim_on_a_mean_over_draws_rests_on_the_interval_over_them(tmp_path: Path) -> None:
    result = Running(loaded(tmp_path, DRAWS), Silent()).run()
    rows = {row.name: row for row in result.rows}
    samples = {name: row.sample for name, row in rows.items() if row.sample is not None}
    few, many = (
        [each.figures.value("completion", {}) for each in result.done if each.variant.run == run and each.figures]
        for run in ("few", "many")
    )
    assert samples["mean"].values == pytest.approx(few)  # of a mean, pseudo-values are the values
    assert samples["constant"].values == pytest.approx(few)  # TE has no draws; here it is the shortest possible time
    whole = sum(few) / sum(many)
    without = [(sum(few) - a) / (sum(many) - b) for a, b in zip(few, many, strict=True)]
    assert samples["ratio"].values == pytest.approx([6 * whole - 5 * each for each in without])
    assert samples["ratio"].half and rows["ratio"].state == "out of band"
    edge = samples["ratio"].mean + samples["ratio"].half / 2
    near = loaded(tmp_path, DRAWS.replace("low: 1, high: 1.01", f"low: -9, high: {edge:.4f}"))
    (row,) = (row for row in ExperimentResult(near, result.done).rows if row.name == "ratio")
    assert (row.state, row.cause) == ("not known", "too few repeats") and "crosses the edge" in row.why[0]
    assert rows["one"].state == "sign only" and samples["one"].half is None  # without draws nothing is said of them
    assert samples["same"].values == pytest.approx([1.0] * 6)
    assert ",6,1.0,1.01," in result.checks_csv()
    two = ExperimentResult(loaded(tmp_path, DRAWS.replace(", 3, 4, 5, 6]", "]")), result.done)
    assert {row.name: row.why for row in two.rows}["ratio"] == ("2 repeats; a verdict on a value that varies needs 3",)
    live = DRAWS.replace("offline: true, mode: te, run", "te: true, run")
    assert "x.yml:15  checks.constant.draws" in said(tmp_path, live)  # repeats of a live run are no draws


def test_runs_that_are_made_less_often_keep_their_last_value(tmp_path: Path) -> None:
    good, far = OwnFigures({"mmr_mean": 1.23}), OwnFigures({"mmr_mean": 2.0})
    both = ExperimentResult(loaded(tmp_path, OWN.replace("mmr_mean,", "mmr_mean(flows) + mmr_mean(more),").replace(
        "checks:", "  more: {measure: random_flows, repeats: 1}\nchecks:")), ())  # fmt: skip
    one, more = both.experiment.variants
    done = [Repeat(one, 1, good), Repeat(one, 2, far), Repeat(more, 1, good)]
    (row,) = replace(both, done=tuple(done)).rows
    assert row.sample is not None and row.sample.values == pytest.approx((2.46, 3.23))
    assert row.why == ("1 repeat; a verdict on a value that varies needs 3",)
    (row,) = replace(both, done=(*done[:1], *[Repeat(more, number, good) for number in (1, 2)])).rows
    assert row.state == "not known" and row.why == ("run flows has no repeat 2",)


BREAKABLE = """\
title: Breakable
fabric: {use: tiny, set: {hosts_per_rack: 4}}
runs:
  sweep: {offline: true, set: {routing.ecmp: [flow, e-ecmp]}, run: {collective: all-to-all, size: 1M, qps: 16}}
  other: {offline: true, run: &ring {collective: all-reduce, size: 1M}}
  third: {offline: true, run: *ring}
checks:
  even: {value: links_used(sweep), sign: is 4, broken_by: {why: one CTSW of two is up, runs: {sweep: {drain: [ctsw2]}}}}
  held: {value: mmr(sweep), sign: below 9, broken_by: {runs: {sweep: {drain: [ctsw2]}}}}
  loose: {value: mmr(other) + mmr(third), sign: below 9, broken_by: {set: {link.mtu: 9000}}}
  plain: {value: mmr(other), sign: below 9}
  seen: mmr(other)
"""


def test_a_check_must_fail_when_its_runs_are_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    found = loaded(tmp_path, BREAKABLE)
    even, loose = breaks(found)  # equal changes share their runs; the whole file keeps its own
    assert [each.name for each in even.checks] == ["even", "held"]
    assert [(each.title, each.spec.drain) for each in even.variants] == [
        ("sweep ecmp=flow", ["ctsw2"]), ("sweep ecmp=e-ecmp", ["ctsw2"]),
    ]  # fmt: skip
    assert [each.fabric_text for each in loose.variants] == ["tiny, hosts_per_rack=4, link.mtu=9000"] * 2
    assert not any(each.spec.drain for each in found.variants)
    assert not Running(found, Silent()).run().failed
    assert main(vars(tasks), ["inv", "experiment", str(tmp_path / "x.yml"), "--break", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"] and document["not_broken"] == {
        "x: held": "sign only, though it was broken", "x: loose": "sign only, though it was broken",
        "x: plain": "has no broken_by",
    }  # fmt: skip
    first = document["experiments"][0]["checks"][0]
    assert (first["check"], first["state"], first["measured"]["mean"]) == ("even", "out of band", 2.0)
    assert main(vars(tasks), ["inv", "experiment", str(tmp_path / "x.yml"), "--break", "--only", "even"]) == 0
    text = capsys.readouterr().out
    assert "one CTSW of two is up" in text and text.endswith("every check that ran fails when it is broken\n")
    assert main(vars(tasks), ["inv", "experiment", str(tmp_path / "x.yml"), "--break", "--out", "x"]) == 2
    assert main(vars(tasks), ["inv", "experiment", str(tmp_path / "x.yml"), "--list"]) == 0
    assert "not shown: no broken_by" in capsys.readouterr().out


def broken_results(tmp_path: Path, words: str, *values: float, **known: Any) -> dict[str, str]:
    """The checks that were not broken by runs with these values, as `unbroken`."""
    text = OWN.replace("published: 1.23, tolerance: 0.05", f"{words}, broken_by: {{runs: {{flows: {{repeats: 4}}}}}}")
    found = loaded(tmp_path, text)
    (made,) = breaks(found)
    figures = [OwnFigures({"mmr_mean": each}, ("0001",), **known) for each in values]
    done = tuple(Repeat(made.variants[0], number, each) for number, each in enumerate(figures, 1))
    return unbroken(found, [ExperimentResult(made, done)])


def test_a_check_is_broken_only_where_its_value_leaves_the_claim(tmp_path: Path) -> None:
    band, exact = "low: 1, high: 3", "sign: above 1, exact: true"
    stays, wrong = "but its value does not leave the claim", {"doubt": "7 wrong elements"}
    assert broken_results(tmp_path, band, 5.0, 5.0, 5.1) == {}
    assert broken_results(tmp_path, band, 2.0, 2.0, 2.1) == {"mean": "in band, though it was broken"}
    for known, result in ((wrong, "WRONG DATA"), ({"proven": False}, "NOT KNOWN: unproven paths")):
        assert broken_results(tmp_path, band, 2.0, 2.0, 2.1, **known) == {"mean": f"{result}, {stays}"}
        assert broken_results(tmp_path, band, 5.0, 5.0, 5.1, **known) == {}
    assert broken_results(tmp_path, "sign: is 0", 7.0, 7.0, 7.0, **wrong) == {}
    assert broken_results(tmp_path, exact, 2.0, 2.0001, 2.0) == {"mean": f"OUT OF BAND, {stays}"}
    assert broken_results(tmp_path, exact, 0.5, 0.5, 0.5) == {}


def test_where_nothing_ran_nothing_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks

    monkeypatch.setitem(NEEDS, "rxe", lambda: "this kernel has no rxe")
    only = BREAKABLE.replace("  plain: {value: mmr(other), sign: below 9}\n", "")
    (tmp_path / "index.yml").write_text("title: A paper\nsource: us\n")
    skipped = only.replace("title:", "needs: [rxe]\ntitle:")
    unclaimed = only[: only.index("checks:")] + "checks: {seen: mmr(other)}\n"

    def inv(text: str, *words: str) -> tuple[int, bool | None, str]:
        written(tmp_path, text)
        code = main(vars(tasks), ["inv", *words])
        said = capsys.readouterr().out
        assert main(vars(tasks), ["inv", *words, "--format", "json"]) == code
        return code, json.loads(capsys.readouterr().out)["ok"], said

    for words in (("experiment", str(tmp_path / "x.yml")), ("reproduce", str(tmp_path))):
        code, ok, said = inv(skipped, *words)
        assert (code, ok, "skipped: this kernel has no rxe" in said) == (0, None, True)
        for text in (skipped, unclaimed):
            code, ok, said = inv(text, *words, "--break")
            assert (code, ok, said.endswith("no check was broken\n")) == (1, False, True)


def test_a_run_without_a_verdict_on_its_paths_is_not_proven(tmp_path: Path) -> None:
    found = loaded(tmp_path, OWN)
    (variant,) = found.variants
    assert variant.measure is not None
    proof = ProofSummary(True, 16, 0, ("prediction", "oracle", "counters"), 1.0, 1.0)
    for proofs, wanted in (((), None), ((proof,), True), ((proof, None), False), ((None,), False)):

        def call(at: Measuring, proofs: Sequence[ProofSummary | None] = proofs) -> Mapping[str, float]:
            at.runs += [replace(samples.result(), proof=each) for each in proofs]
            return {"mmr_mean": 1.23}

        own = replace(variant, measure=replace(variant.measure, call=call))
        done = Running(replace(found, variants=(own,)), Silent()).run().done
        assert [each.figures.proven for each in done if each.figures is not None] == [wanted] * len(done)


def test_a_folder_is_a_publication(tmp_path: Path) -> None:
    (tmp_path / "mean.yml").write_text(OWN)
    (tmp_path / "modes.yml").write_text(OFF)
    index = "title: A paper\nsource: us\nstatement: emulated\nleft_out:\n  - {what: Table 1, why: no hardware}\n"
    (tmp_path / "index.yml").write_text(index)
    folder = load_folder(str(tmp_path))
    assert [each.name for each in folder.experiments] == ["mean", "modes"]
    assert [each.name for each in folder.only(["2"]).experiments] == ["modes"]
    with pytest.raises(InputError, match="is not an experiment"):
        folder.only(["men"])
    (tmp_path / "mean.yml").rename(tmp_path / "07-mean.yml")
    named = load_folder(str(tmp_path))
    assert [each.name for word in ("7", "07") for each in named.only([word]).experiments] == ["07-mean"] * 2
    with pytest.raises(InputError, match="1 is not an experiment"):
        named.only(["1"])
    (tmp_path / "07-mean.yml").rename(tmp_path / "mean.yml")
    from heddle_plugins.experiments.folders import FolderResult

    text = folder_text(FolderResult(folder, tuple(Running(each, Silent()).run() for each in folder.experiments)))
    assert "emulated" in text and "left out: Table 1: no hardware" in text
    assert text.endswith("\n1 in band, 1 sign only, 5 shown")
    shown = loaded(tmp_path, OWN.replace("mean: {value: mmr_mean, published: 1.23, tolerance: 0.05}", "mean: mmr_mean"))
    figures = OwnFigures({"mmr_mean": 1.2}, ("0001",), proven=False)
    without = ExperimentResult(shown, (Repeat(shown.variants[0], 1, figures),))
    assert folder_text(FolderResult(folder, (without,))).endswith("\n1 not known")
    assert "NOT KNOWN: unproven paths" in folder_text(FolderResult(folder, (without,)))
    (tmp_path / "index.yml").write_text(index + "experiments: [mean, mean]\n")
    with pytest.raises(InputError, match=r"index.yml:6  mean is there twice"):
        load_folder(str(tmp_path))
    (tmp_path / "index.yml").write_text(index + "experiments: [mean, mods]\n")
    with pytest.raises(InputError, match=r"index.yml:6  mods is not a file mods.yml\n.*did you mean modes"):
        load_folder(str(tmp_path))


def test_only_changes_that_switches_make_keep_the_icrc_right(tmp_path: Path) -> None:
    text = "title: ICRC\nfabric: tiny\nruns: {x: {measure: icrc_changes}}\nchecks: {all: unchanged}\n"
    (done,) = Running(loaded(tmp_path, text), Silent()).run().done
    assert done.figures is not None
    assert done.figures.to_json() == {"unchanged": 1.0, "ttl": 1.0, "ecn": 1.0, "sport": 0.0}


def test_the_manual_has_every_key_figure_and_measure() -> None:
    text = "\n".join((ROOT / f"docs/{name}.md").read_text() for name in ("experiments", "experiment-keys", "figures"))
    models = (BreakSpec, ExperimentSpec, FolderSpec, RunSpec, CheckSpec, FabricUse)
    keys = [key for model in models for key in model.model_fields if key != "about"]
    for word in (*keys, *MEASURES):
        assert f"`{word}`" in text or f"\n{word}:" in text, word
    for name, each in FIGURES.items():
        assert f"| `{name}` | {each.unit or '-'} | {each.text} |\n" in text, name


def test_root_is_needed_for_live_runs_only(tmp_path: Path) -> None:
    from heddle_plugins.experiments.verbs import experiment

    assert not experiment.root({"file": str(written(tmp_path, OWN))})
    assert not experiment.root({"file": "queue-pairs", "list_": True})
    assert experiment.root({"file": "queue-pairs"})


def test_figures_of_uplinks_leave_out_the_links_of_nics(tmp_path: Path) -> None:
    text = OFF.partition("checks:")[0].replace("[flow, e-ecmp]", "flow").replace("[1, 16]", "4, ranks: 2")
    checks = "checks: {near: collisions(sweep), down: \"mmr(sweep, direction='RTSW to NIC')\"}\n"
    near, down = Running(loaded(tmp_path, text + checks), Silent()).run().rows
    assert near.sample == Sample((0.0,)) and down.state == "shown"


def test_dollar_signs_of_texts_are_drawn_as_they_are(tmp_path: Path) -> None:
    text = OWN.replace("Random flows", '"cost $5 and $6, a $x_{ b$"').replace("published", 'unit: "$^{", published')
    picture = draw("svg", Running(loaded(tmp_path, text), Silent()).run()).decode()
    assert "cost $5 and $6, a $x_{ b$" in picture and "$^{" in picture
    assert "<svg" in experiments_html([Running(loaded(tmp_path, text), Silent()).run()])


def test_a_stored_run_has_a_directory_of_its_own() -> None:
    assert directory_name(["e", "a", "e-ecmp", "1"], 7) == "e-a-e_ecmp-1"
    assert directory_name(["a", "0,1"], 1) != directory_name(["a", "0;1"], 2)
    assert len(directory_name(["a", "0,1,1M;" * 100], 3)) < 100


def test_the_directory_of_results_is_not_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    file = written(tmp_path, OFF)
    assert main(vars(tasks), ["inv", "experiment", str(file), "--out", str(file)]) == 2
    assert "is not a directory" in capsys.readouterr().err


def test_flags_without_an_experiment_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    assert main(vars(tasks), ["inv", "experiment", "--only", "x"]) == 2
    assert "--only needs an experiment" in capsys.readouterr().err


def test_files_that_an_experiment_names_are_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own.yml").write_text("name: own\nshape: clos\nracks: 2\nctsw: 2\nhosts_per_rack: 1\n")
    (tmp_path / "job.yml").write_text("matrix: m.csv\n")
    (tmp_path / "m.csv").write_text("src,dst,bytes\n0,1,64K\n")
    text = """\
title: Files
fabric: own.yml
runs:
  a: {offline: true, workload: job.yml}
  b: {offline: true, run: {matrix: m.csv, qps: 2}}
  c: {offline: true, fabric: tiny, workload: "ring,qps=2"}
checks: {flows: flows(a) + flows(b) + flows(c)}
"""
    file = written(tmp_path, text)
    names = [f"{tmp_path}/{name}" for name in ("x.yml", "own.yml", "m.csv", "job.yml")]
    assert files_of_experiment(str(file)) == names
    assert files_of_experiment(str(written(tmp_path, text.replace("job.yml", "[job.yml, ring]")))) == names
    broken = "{flows: {value: flows(a), sign: above 0, broken_by: {runs: {a: {workload: none.yml, fabric: b.yml}}}}}"
    changed = str(written(tmp_path, text.partition("checks")[0] + f"checks: {broken}\n"))
    assert files_of_experiment(changed)[-3:] == [f"{tmp_path}/{name}" for name in ("m.csv", "job.yml", "none.yml")]
    assert f"{tmp_path}/b.yml" in files_of_experiment(changed)
    written(tmp_path, text)
    (row,) = Running(load_experiment(file, str(file)), Silent()).run().rows
    assert row.sample == Sample((2 + 4 + 8,))  # of a matrix, also credits
    assert files_of_experiment("queue-pairs") == [] and files_of_experiment(str(tmp_path / "none.yml"))
