"""`reproduce bmwg`: every file of the folder loads and cites its section, and the report has the draft's ten parts."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.runs.figures import LinkShare, link_figure
from heddle.runs.parts.ideal import IdealSize, IdealUse
from heddle_plugins.experiments.benchmarkreport import PARTS, _shape, benchmark_report
from heddle_plugins.experiments.figures import OwnFigures
from heddle_plugins.experiments.folders import Folder, FolderResult, load_folder
from heddle_plugins.experiments.measures import figures_of, shares, steepest
from heddle_plugins.experiments.outcome import ExperimentResult, Repeat
from tests.unit.run_samples import USE, having, result

ROOT: Final = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bmwg() -> Folder:
    return load_folder("bmwg")


def test_every_experiment_cites_a_section_of_the_draft_and_answers_where_it_asks(bmwg: Folder) -> None:
    answers = {}
    for each in bmwg.experiments:
        assert each.spec.claim is not None and each.checks, each.name
        assert re.match(r"Section \d+\.\d, ", each.spec.claim.source), each.name
        for check in each.checks:
            bounds = check.spec.bounds
            if bounds is not None:
                answers[f"{each.name[:2]} {check.name}"] = check.spec.sign or ""
                assert check.spec.sign or check.spec.published, f"{each.name} {check.name}: nobody published it"
    assert answers == {
        "01 loss": "is 0", "01 loss_one_way": "is 0", "03 marks_below": "is 0", "03 marked_above": "",
        "03 ramp": "above 0", "04 storms": "is 0", "04 loss": "is 0", "06 storms_in_cycle": "above 0",
        "06 storms_of_host": "above 0", "07 even": "above 0", "08 even": "above 0", "10 jfi_spray": "",
        "10 jfi_unordered": "", "10 mmr_spray": "", "10 mmr_unordered": "", "21 impact": "above 2",
        "23 loss": "is 0", "23 timeouts": "is 0", "24 lost_trim": "is 0",
    }  # fmt: skip
    assert "The DUT is an emulation" in bmwg.spec.statement and "revision" in bmwg.spec.source


def test_the_page_has_the_values_of_the_kept_tables_and_the_tables_those_of_the_files(bmwg: Folder) -> None:
    page = (ROOT / "docs/bmwg.md").read_text()
    with (ROOT / "docs/results/bmwg.csv").open() as file:
        rows = {(row["experiment"], row["check"]): row for row in csv.DictReader(file)}
    kept = bmwg.only(["10", "21"]).experiments
    assert list(rows) == [(each.name, check.name) for each in kept for check in each.checks]
    for each in kept:
        for check in each.checks:
            bounds, row = check.spec.bounds, rows[each.name, check.name]
            low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
            assert [row["low"], row["high"]] == ["" if edge is None else str(edge) for edge in (low, high)]
    jfi, mmr = (
        [float(rows["10-spray", f"{of}_{run}"]["mean"]) for run in ("spray", "unordered")] for of in ("jfi", "mmr")
    )
    assert f"JFI {jfi[0]:.3f} with RC, {jfi[1]:.3f} with SRD; MMR {mmr[0]:.2f} and {mmr[1]:.2f}" in page
    assert f"{mmr[1]:.2f} and {mmr[0]:.2f}, crosses the edge: not known" in page
    impact = rows["21-failover", "impact"]
    mean, half = float(impact["mean"]), float(impact["half_interval"])
    assert f"{mean - half:.0f} to {mean + half:.0f} times" in page


def test_an_incast_of_every_size_counts_and_every_collective_is_checked(bmwg: Folder) -> None:
    incast, *collectives = bmwg.only(["4", "12", "13", "14"]).experiments
    every = {f"n{senders}" for senders in (2, 4, 8, 16, 32, 64)}
    assert {each.run for each in incast.variants} == every
    for check in incast.checks:
        if check.name in ("storms", "loss"):
            assert {call.run for call in check.expression.calls} == every
    for each in collectives:
        (wrong,) = (check for check in each.checks if check.name == "wrong")
        assert {call.run for call in wrong.expression.calls} == {variant.run for variant in each.variants}
        figures = {call.figure: 1.0 for check in each.checks for call in check.expression.calls}
        for bad in each.variants:  # in any run, also in that of 8 ranks
            done = [
                Repeat(variant, 1, OwnFigures(figures, doubt="7 wrong elements" if variant is bad else ""))
                for variant in each.variants
            ]
            rows = {row.name: row.state for row in ExperimentResult(each, tuple(done)).rows}
            assert rows["wrong"] == "wrong data" and ExperimentResult(each, tuple(done)).failed


def test_jains_index_of_links_is_one_for_even_use_and_one_of_n_for_a_single_link() -> None:
    even = [LinkShare(f"rtsw1:eth{i}", "RTSW to CTSW", 40.0, used=True, uplink=True) for i in range(4)]
    single = [LinkShare(f"rtsw1:eth{i}", "RTSW to CTSW", 40.0 * (i == 0), used=i == 0, uplink=True) for i in range(4)]
    assert link_figure("link_jfi", even, {}) == pytest.approx(1) and link_figure("link_jfi", single, {}) == 0.25


def test_the_report_has_ten_parts_the_statement_and_every_trial(bmwg: Folder) -> None:
    sprayed = bmwg.only(["10-spray"]).experiments[0]
    found = {name: 0.5 for check in sprayed.checks for name in (call.figure for call in check.expression.calls)}
    done = [Repeat(each, repeat, OwnFigures(found)) for each in sprayed.variants for repeat in (1, 2)]
    done[-1] = Repeat(sprayed.variants[-1], 2, None, "a worker ended")
    text = benchmark_report(FolderResult(bmwg, (ExperimentResult(sprayed, tuple(done)),)))
    assert re.findall(r"^## (.*)$", text, re.M) == [f"{i}. {title}" for i, title in enumerate(PARTS, 1)]
    assert bmwg.spec.statement.strip() in text and "revision" in text
    assert f"| {sprayed.variants[0].fabric_text} | A | 8 | 8 | 16 |" in text  # topology: a 2-tier Clos
    assert "| 10-spray | 6 | 5 | a worker ended | 0 |" in text  # trial accounting
    assert "| 10-spray | gain | 2 | 0.0 % |" in text  # repeatability
    assert "| 10-spray | jfi_spray | DUT telemetry: egress bytes of the uplinks" in text  # observation points
    assert "| unordered | 8 | 1 MiB | matrix/direct | 1.05 MB | block |" in text  # S, algorithm, S_fabric
    assert all(f"| {each.what} | not done: {each.why} |" in text for each in bmwg.spec.left_out)
    results = text.partition("## 6.")[2].partition("## 7.")[0]
    assert (
        "| jfi_spray | ~1.0 | 0.5 | +-0 | 0.0 % | 0.95 to 1.05 | NOT KNOWN: too few repeats | - | no spraying |"
        in results
    )  # the draft states 1
    assert "| jfi_ecmp | - | 0.5 | +-0 | 0.0 % | - | shown | - | - |" in results
    assert not re.search(r"\b(pass(ed)?|ok)\b", results)  # the draft has no verdicts
    assert "| 10-spray | jfi_unordered: NOT KNOWN: a run failed |" in text  # anomalies


def test_convergence_is_the_time_until_rates_are_fair_and_all_of_it_when_they_never_are() -> None:
    times = np.linspace(0.0, 4.0, 401)
    old, new = np.where(times < 1, 40.0, 20.0), np.where(times < 1, 4.0, 20.0)
    found = shares(times, np.array([old, old, new, new]))
    assert found["fair_s"] == found["near_s"] == pytest.approx(1.0) and found["near_reached"] == found["jfi_end"] == 1
    never = shares(times, np.array([np.full(401, 40.0), np.full(401, 4.0)]))
    assert never["fair_s"] == never["near_s"] == never["observed_s"] == 4.0 and never["near_share"] == 0


def test_what_one_run_of_a_soak_does_not_know_is_not_known_of_the_whole() -> None:
    seen = [(0.0, {1: 5_000_000, 2: 7_000_000}), (10.0, {1: 5_000_000})]
    good = having(result(), ideal=IdealUse((IdealSize(1, 15.0, 10.0, 1.5),)), queues=USE, machine=None)
    known = figures_of([good, good], seen)
    assert known == {"jct": 1.5, "jct_sd": 0, "lost": 4, "storms": 0, "runs": 2, "slope": known["slope"], "ended": 1}
    assert known["slope"] == pytest.approx(0, abs=1e-9)
    without_counters, without_ideal = having(good, queues=None), having(good, ideal=None)
    assert without_counters.lost is None
    assert set(known) - set(figures_of([good, without_counters], seen)) == {"lost", "storms"}
    assert set(known) - set(figures_of([without_ideal, good], seen)) == {"jct", "jct_sd"}
    assert "slope" not in figures_of([good], [(0.0, {1: 1}), (10.0, {2: 1})])  # no process was there all the time


def test_the_slope_of_memory_is_that_of_the_process_that_grows_most() -> None:
    seen = [(float(t), {1: 5_000_000, 2: 5_000_000 + 1000 * t, 3 + t: 10**9}) for t in (0, 10, 20)]
    assert steepest(seen) == pytest.approx(3.6)  # 1 kB/s; processes that came and went do not count


@pytest.mark.parametrize(("preset", "kind"), [("tiny", "A"), ("dc", "B"), ("rail", "C")])
def test_the_class_of_a_fabric_is_that_of_the_network_of_ranks(preset: str, kind: str) -> None:
    for sets in ([], ["frontend.storage=100"]):
        assert _shape(load_fabric(preset, overrides=sets).fabric)[0] == kind
