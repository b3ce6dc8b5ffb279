"""Experiment files: what they may say, the line of every error, grids, expressions, verdicts, and offline runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.experiments.expressions import Expression, ExpressionError, FigureCall, points
from heddle.experiments.figures import OF_LINKS, OF_RUNS, OF_SIZES, OFFLINE, OwnFigures
from heddle.experiments.finding import experiments_shipped, files_of_experiment, find_experiment
from heddle.experiments.folders import folders_shipped, load_folder
from heddle.experiments.loading import Experiment, load_experiment
from heddle.experiments.measures import MEASURES
from heddle.experiments.needs import NEEDS
from heddle.experiments.outcome import ExperimentResult, Repeat, Sample
from heddle.experiments.running import Running, directory_name, plan_text
from heddle.experiments.spec import CheckSpec, ExperimentSpec, FabricUse, FolderSpec, RunSpec
from heddle.views.experimentpicture import draw
from heddle.views.experimenttext import folder_text, result_text
from heddle.views.report.page import report_html

ROOT = Path(__file__).parents[2]
OFF = """\
title: Hashing modes
fabric: {use: tiny, set: {hosts_per_rack: 4}}
runs:
  sweep:
    set: {routing.ecmp: [flow, e-ecmp]}
    run: {collective: all-to-all, size: 1M, qps: [1, 16]}
    offline: true
checks:
  better: {value: "mmr(sweep, ecmp='e-ecmp', qps=16) / mmr(sweep, ecmp=flow, qps=1)", high: 1}
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
    assert better.state == "ok" and better.proven is None and not result.failed
    assert better.sample is not None and better.sample.mean < 1
    means = [row.sample.mean for row in every if row.sample is not None]
    assert len(means) == 4 and worst.sample == Sample((max(means),)) and worst.state == "shown"
    text = result_text(result)
    assert "all ecmp=flow qps=16" in text and "in the band" in text
    document = json.loads(json.dumps(result.to_json()))
    assert document["ok"] and len(document["runs"]) == 4 and document["runs"][0]["figures"]["mmr"] > 0
    page = report_html([], None, [result])
    assert "<svg" in page and "Hashing modes" in page
    assert draw("svg", result) == draw("svg", result)
    assert result.checks_csv().count("\n") == 7 and "experiment,run,point,repeat,figure,value" in result.runs_csv()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("offline: true", "offlin: true", "x.yml:7  runs.sweep.offlin is not a key\n         hint: did you mean off"),
        ("qps: [1, 16]", "qps: [1, 900]", "x.yml:6  qps: 900 is outside 1 to 128"),
        ("qps: [1, 16]", "qsp: 4", "x.yml:6  qsp is not a key"),
        ("routing.ecmp: [flow, e-ecmp]", "routing.ecmp: [flow, ecmp]", "x.yml:5  routing.ecmp: ecmp is not one of"),
        ("hosts_per_rack: 4", "hosts: 4", "x.yml:2  hosts"),
        ("max(mmr(sweep))", "max(mrm(sweep))", "x.yml:10  checks.worst: max(mrm(sweep)) has mrm(sweep), which is not"),
        ("max(mmr(sweep))", "mmr(swept)", "which the file does not have\n          hint: runs: sweep"),
        ("max(mmr(sweep))", "__import__('os')", "names run os"),
        ("max(mmr(sweep))", "'[1][0]'", "has [1][0], which an expression cannot have"),
        ("max(mmr(sweep))", "mmr(sweep, qps=2)", "has qps=2, which run sweep does not have"),
        ("max(mmr(sweep))", "mmr(sweep, size=64K)", "is not an expression"),
        (", high: 1}", ", low: 2, high: 1}", "x.yml:9  checks.better.low: 2 is above high, 1"),
        (", high: 1}", ", tolerance: 0.1}", "x.yml:9  checks.better.tolerance: 0.1 needs a published number"),
        ("    run: {", "    measure: random_flows\n    run: {", "and measure exclude each other"),
        ("title:", "needs: [magic]\ntitle:", "needs has magic, which is not a need"),
        ("offline: true", "offline: true\n    down: [rtsw9:eth1]", "x.yml:8  rtsw9:eth1 is not a port of tiny"),
        ("  sweep:", "  Sweep-1:", "x.yml:4  runs.Sweep-1 is not a name"),
        ("offline: true", "drain: [host1]", "x.yml:7  host1 is not a switch of tiny"),
        ("offline: true", "hashing: ecmp", "x.yml:7  hashing: ecmp is not a hashing mode"),
        ("offline: true", "offline: true\n    te: true", "x.yml:8  runs.sweep.te: true is a live change"),
        ("offline: true", "queues: {ecn.kmin: 9GB}", "x.yml:7  queues.ecn.kmin: 9GB"),
        ("offline: true", "offline: true\n    mode: ecmp", "x.yml:8  runs.sweep.mode: ecmp is not a hashing mode"),
        (", high: 1}", ", hihg: 1}", "x.yml:9  checks.better.hihg is not a key\n         hint: did you mean high?"),
        ("worst: max(mmr(sweep))", "worst: {value: mmr(sweep, qps=1)}", "checks.worst.value: mmr(sweep ends at a"),
        ("tiny", "tinny", "x.yml:2  tinny is neither a preset nor a file"),
    ],
)  # fmt: skip
def test_every_error_has_its_line_and_a_reason(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert OFF.count(old) >= 1
    assert words in said(tmp_path, OFF.replace(old, new, 1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("busbw(a) / busbw(b)", 0.5),
        ("ratio(busbw(b), busbw(a)) - 1", 1.0),
        ("-abs(difference(busbw(a), 3))", -2.0),
        ("max(busbw(a), 7) * 2", 14.0),
        ("spread(busbw(grid))", 3.0),
        ("busbw(grid, n=4) + min(busbw(grid))", 5.0),
    ],
)
def test_expressions_are_arithmetic_over_figures(text: str, value: float) -> None:
    figures = {"a": 1.0, "b": 2.0}

    def lookup(call: FigureCall, at: Mapping[str, str]) -> float:
        return float(dict(call.keys).get("n") or at["n"]) if call.run == "grid" else figures[call.run]

    def axes(call: FigureCall) -> dict[str, tuple[str, ...]]:
        return {"n": ("1", "2", "4")} if call.run == "grid" and not call.keys else {}

    found = Expression.parse(text, ["a", "b", "grid"])
    assert found.value({}, lookup, axes) == value and found.free(axes) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "busbw",
        "busbw(a, b)",
        "max()",
        "ratio(1)",
        "a.b",
        "x" * 2000,
        "lambda: 1",
        "1 if 2 else 3",
        "True",
        "-" * 900 + "1",
        "9" * 400,
    ],
)
def test_nothing_else_is_an_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression.parse(text, ["a", "b"])


def test_repeats_give_a_mean_an_interval_and_a_variation() -> None:
    sample = Sample((1.0, 2.0, 3.0))
    assert sample.mean == 2 and sample.cv == 50 and sample.half == pytest.approx(4.303 / 3**0.5)
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
    result = Running(loaded(tmp_path, OWN), Silent(), repeats=2).run()
    (row,) = result.rows
    assert row.sample is not None and len(row.sample.values) == 2 and row.sample.half is not None
    assert row.state == "ok" and "1.168 to 1.292" in result_text(result)
    assert plan_text(result.experiment, None) == "x: 3 runs, offline, about 1 s"


@pytest.mark.parametrize("option", ["trial: 20", "trials: many", "trials: [2, many]"])
def test_options_of_a_measure_are_those_that_it_declares(tmp_path: Path, option: str) -> None:
    assert f"x.yml:5  runs.flows.options.{option.partition(':')[0]}" in said(
        tmp_path, OWN.replace("trials: 20", option)
    )


def test_an_experiment_that_needs_what_is_not_there_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = OFF.replace("title:", "needs: [rxe]\ntitle:").replace("size: 1M", "size: 1M, transport: rxe")
    found = loaded(tmp_path, text.replace("offline: true", "about: by the kernel"))
    monkeypatch.setitem(NEEDS, "rxe", lambda: "this kernel has no rxe")
    result = Running(found, Silent()).run()
    assert result.skipped == "this kernel has no rxe" and not result.rows and not result.failed
    assert "skipped: this kernel has no rxe" in result_text(result)
    assert plan_text(found, None).startswith("x: 4 runs on 2 fabrics")


def test_verdicts_name_what_is_missing(tmp_path: Path) -> None:
    experiment = loaded(tmp_path, OWN)
    (variant,) = experiment.variants

    def state(*done: Repeat) -> tuple[str, bool]:
        result = ExperimentResult(experiment, done)
        (row,) = result.rows
        return row.state, result.failed

    good, far = OwnFigures({"mmr_mean": 1.23}), OwnFigures({"mmr_mean": 2.0})
    unproven = OwnFigures({"mmr_mean": 1.23}, ("0001",), proven=False)
    assert state(Repeat(variant, 1, good)) == ("ok", False)
    assert state(Repeat(variant, 1, far)) == ("missed", True)
    assert state(Repeat(variant, 1, unproven)) == ("unproven", True)
    assert state(Repeat(variant, 1, good), Repeat(variant, 2, None, "it failed")) == ("unknown", True)
    assert state() == ("unknown", True)
    both = ExperimentResult(loaded(tmp_path, OWN.replace("mmr_mean,", "mmr_mean(flows) + mmr_mean(more),").replace(
        "checks:", "  more: {measure: random_flows, repeats: 1}\nchecks:")), ())  # fmt: skip
    one, more = both.experiment.variants
    done = [Repeat(one, 1, good), Repeat(one, 2, far), Repeat(more, 1, good)]
    (row,) = replace(both, done=tuple(done)).rows
    assert row.sample is not None and row.sample.values == pytest.approx((2.46, 3.23))
    (row,) = replace(both, done=(*done[:1], *[Repeat(more, number, good) for number in (1, 2)])).rows
    assert row.state == "unknown" and row.why == ("run flows has no repeat 2",)


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
    from heddle.experiments.folders import FolderResult

    text = folder_text(FolderResult(folder, tuple(Running(each, Silent()).run() for each in folder.experiments)))
    assert "emulated" in text and "left out: Table 1: no hardware" in text
    assert text.endswith("2 of 2 checks in their bands")
    shown = loaded(tmp_path, OWN.replace("mean: {value: mmr_mean, published: 1.23, tolerance: 0.05}", "mean: mmr_mean"))
    figures = OwnFigures({"mmr_mean": 1.2}, ("0001",), proven=False)
    without = ExperimentResult(shown, (Repeat(shown.variants[0], 1, figures),))
    lines = [
        folder_text(FolderResult(folder, results)).splitlines()[-1]
        for results in ((without,), (without, Running(folder.experiments[0], Silent()).run()))
    ]
    assert lines == [
        "no check has a band; 1 value without a band: paths are not proven",
        "1 of 1 checks in their bands; 1 value without a band: paths are not proven",
    ]
    (tmp_path / "index.yml").write_text(index + "experiments: [mean, mean]\n")
    with pytest.raises(InputError, match=r"index.yml:6  mean is there twice"):
        load_folder(str(tmp_path))
    (tmp_path / "index.yml").write_text(index + "experiments: [mean, mods]\n")
    with pytest.raises(InputError, match=r"index.yml:6  mods is not a file mods.yml\n.*did you mean modes"):
        load_folder(str(tmp_path))


@pytest.mark.parametrize("name", experiments_shipped())
def test_every_shipped_experiment_is_right_and_says_what_it_shows(name: str) -> None:
    found = load_experiment(*find_experiment(name))
    assert found.checks and found.spec.reads
    assert f"./inv experiment {name}" in find_experiment(name)[0].read_text()


@pytest.mark.parametrize("name", folders_shipped())
def test_every_shipped_folder_is_right(name: str) -> None:
    folder = load_folder(name)
    assert all(each.checks for each in folder.experiments)


def test_every_check_of_sigcomm24_cites_a_source_and_has_a_band() -> None:
    folder = load_folder("sigcomm24")
    page = (ROOT / "docs/reproduce.md").read_text()
    for each in folder.experiments:
        assert each.spec.claim is not None and each.spec.claim.source and each.spec.reads, each.name
        banded = [check for check in each.checks if check.spec.band != (None, None)]
        assert banded and all(check.spec.published is not None for check in banded), each.name
        assert f"\n| {int(each.name[:2])} |" in page, each.name


def test_only_changes_that_switches_make_keep_the_icrc_right(tmp_path: Path) -> None:
    text = "title: ICRC\nfabric: tiny\nruns: {x: {measure: icrc_changes}}\nchecks: {all: unchanged}\n"
    (done,) = Running(loaded(tmp_path, text), Silent()).run().done
    assert done.figures is not None
    assert done.figures.to_json() == {"unchanged": 1.0, "ttl": 1.0, "ecn": 1.0, "sport": 0.0}


def test_the_manual_has_every_key_figure_and_measure() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    models = (ExperimentSpec, FolderSpec, RunSpec, CheckSpec, FabricUse)
    keys = [key for model in models for key in model.model_fields if key != "about"]
    for word in (*keys, *OF_SIZES, *OF_RUNS, *OF_LINKS, *OFFLINE, *MEASURES):
        assert f"`{word}`" in text or f"\n{word}:" in text, word


def test_root_is_needed_for_live_runs_only(tmp_path: Path) -> None:
    from heddle.cli.experiment_verb import experiment

    assert not experiment.root({"file": str(written(tmp_path, OWN))})
    assert not experiment.root({"file": "queue-pairs", "list_": True})
    assert experiment.root({"file": "queue-pairs"})


def test_figures_of_uplinks_leave_out_the_links_of_nics(tmp_path: Path) -> None:
    text = OFF.partition("checks:")[0].replace("[flow, e-ecmp]", "flow").replace("[1, 16]", "4, ranks: 2")
    checks = "checks: {near: collisions(sweep), down: \"mmr(sweep, direction='RTSW to NIC')\"}\n"
    near, down = Running(loaded(tmp_path, text + checks), Silent()).run().rows
    assert near.sample == Sample((0.0,)) and down.state == "shown"


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
    written(tmp_path, text)
    (row,) = Running(load_experiment(file, str(file)), Silent()).run().rows
    assert row.sample == Sample((2 + 4 + 8,))  # of a matrix, also credits
    assert files_of_experiment("queue-pairs") == [] and files_of_experiment(str(tmp_path / "none.yml"))
