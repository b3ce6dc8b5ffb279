"""A run on a live fabric carries all that its report needs, also when the lab is down and the run was copied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.rehash import set_hashing
from heddle.runs.run import run
from heddle.runs.store import History, open_runs, paths_of
from heddle.traffic.options import RunOptions
from heddle.views.report.page import report_html
from tests.typed import typed

OPTIONS = RunOptions(sizes=(4096, 65536), qps=4, iters=3)


@pytest.fixture(scope="module")
def copied(
    lab_name: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Path, list[str]]]:
    """Two runs, the second with another hashing, copied before their lab went down; and the paths of the first."""
    name, tmp_path = lab_name(), tmp_path_factory.mktemp("runs")
    try:
        yield measured(name, tmp_path)
    finally:
        labs.down(name)


def measured(name: str, tmp_path: Path) -> tuple[Path, Path, list[str]]:
    lab = labs.up(load_fabric("tiny", name=name)).lab
    run(lab, OPTIONS, Silent())
    paths = [" ".join(each.measured) for each in paths_of(lab).flows]
    set_hashing(lab, "e-ecmp")
    run(lab, OPTIONS, Silent())
    shutil.copytree(History.of(lab).directory, tmp_path / "kept", symlinks=True)
    labs.down(name)
    assert not state.lab_dir(name).exists(), "runs go with their lab"
    return tmp_path / "kept" / "0001", tmp_path / "kept" / "0002", paths


def inv(*words: str, cwd: Path) -> tuple[int, str, str]:
    done = typed(*words, cwd=cwd)
    return done.returncode, done.stdout, done.stderr


def test_a_copied_run_has_its_whole_report_when_the_lab_is_gone(
    copied: tuple[Path, Path, list[str]], tmp_path: Path, leftovers: Callable[[str], list[str]]
) -> None:
    first, second, paths = copied
    kept, other = open_runs([str(first), str(second)])
    assert leftovers(kept.record.header.lab) == []
    assert kept.record.outcome is not None
    for row in kept.record.outcome.rows:
        assert len(row.iteration_us) == OPTIONS.iters
        assert sum(row.iteration_us) / OPTIONS.iters == pytest.approx(row.time_us, rel=1e-3)
    proof, around = kept.proof.value, kept.surroundings.value
    assert proof is not None and proof.agree
    assert [" ".join(each.measured) for each in proof.flows] == paths
    assert around is not None and {"Heddle", "Linux", "Python", "FRR"} <= set(around.versions)
    live = other.needed(other.surroundings).hashing
    assert {rule["mode"] for rule in live.values()} == {"e-ecmp"}
    html = report_html([kept, other])
    assert html.count("Not shown") == 0
    assert html.count("Proven: prediction, oracle and counters agree on the paths of all") == 2
    assert "./inv hashing e-ecmp --switch" in html


def test_the_verbs_write_files_and_say_how_large_they_are(copied: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    first, second, _ = copied
    code, out, err = inv("report", str(first), cwd=tmp_path)
    assert (code, err) == (0, "")
    written = tmp_path / "report-0001.html"
    assert out.startswith("wrote report-0001.html: ")
    assert written.stat().st_size > 3_000_000
    code, out, _ = inv("report", str(first), str(second), "-o", "both.html", "--format", "json", cwd=tmp_path)
    data = json.loads(out)
    assert code == 0
    assert (data["report"], data["bytes"]) == ("both.html", (tmp_path / "both.html").stat().st_size)
    assert [row["run_id"] for row in data["runs"]] == ["0001", "0002"]
    assert data["missing"] == []
    code, out, _ = inv("compare", str(first), str(second), "--report", "--format", "json", cwd=tmp_path)
    data = json.loads(out)
    assert code == 0
    assert {"name": "hashing", "a": "flow", "b": "e-ecmp"} in data["settings"]
    assert {row["figure"] for row in data["ratios"]} >= {"busbw", "time", "MMR of flows", "marks", "processors busy"}
    assert (tmp_path / data["report"]).stat().st_size == data["bytes"]
    code, _, err = inv("compare", str(first), str(first), cwd=tmp_path)
    assert code == 2
    assert "are both run 0001" in err
    code, _, err = inv("report", str(first), "-o", "no/such/x.html", cwd=tmp_path)
    assert code == 2
    assert "--out no/such/x.html is in a directory that does not exist" in err
