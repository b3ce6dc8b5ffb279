"""Runs of a live lab: every one is kept, each can be proven later, and an interrupted one changes nothing."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.endpoints.runoptions import run_options
from heddle.lab.lab import Lab
from heddle.lab.rehash import set_hashing
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History, load, open_runs, paths_of
from heddle.views.report.page import report_html
from tests.machine import patience, until
from tests.netns.collectives import proven, workers
from tests.netns.live import started
from tests.readings import series_of
from tests.typed import typed as inv


@pytest.fixture(scope="module")
def ran(tiny: Lab) -> tuple[RunRecord, RunRecord]:
    """Two runs that differ in QPs and in the hashing mode under them."""
    first = run(tiny, run_options(size="64K:128K", qps=4, iters=2), Silent())
    set_hashing(tiny, "e-ecmp")
    second = run(tiny, run_options(size="64K", qps=2, iters=2), Silent())
    return first, second


def test_both_runs_are_listed_and_the_first_is_still_proven(tiny: Lab, ran: tuple[RunRecord, RunRecord]) -> None:
    first, second = ran
    assert (first.id, second.id) == ("0001", "0002")
    rows = json.loads(inv("runs", tiny.name, "--format", "json").stdout)["runs"]
    assert [(row["id"], row["qps"], row["hashing"], row["agree"], row["wrong"], row["last"]) for row in rows] == [
        ("0001", 4, "flow", True, 0, False), ("0002", 2, "e-ecmp", True, 0, True),
    ]  # fmt: skip
    assert rows[0]["busbw"] == first.rows[-1].busbw and rows[0]["sizes"] == [65536, 131072]
    assert rows[0]["mmr"] == {"flows": paths_of(tiny, "1").mmr.flows, "bytes": paths_of(tiny, "1").mmr.bytes}
    table = inv("runs").stdout
    assert table.count("all-reduce/ring") == 2

    done = inv("paths", "--lab", tiny.name, "--run", "0001", "--format", "json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["run_id"], said["agree"]) == (0, "0001", True)
    assert [row["qpn"] for row in said["flows"]] == [row.sent.flow.qpn for row in first.flows]
    last = json.loads(inv("paths", "--lab", tiny.name, "--format", "json").stdout)
    assert (last["run_id"], len(last["flows"])) == ("0002", len(second.flows))
    assert (
        "\nrun 0001: ring all-reduce of 64 KiB to 128 KiB on 4 ranks, 4 QPs"
        in inv("paths", "--lab", tiny.name, "--run", "1").stdout
    )


@pytest.mark.deep
def test_every_verb_that_reads_a_run_reads_the_one_that_is_named(
    tiny: Lab, ran: tuple[RunRecord, RunRecord], tmp_path: Path
) -> None:
    first, _ = ran
    words = ["--lab", tiny.name, "--run", "1", "--format", "json"]
    now = json.loads(inv("paths", "--now", *words).stdout)
    assert (now["run_id"], len(now["flows"])) == ("0001", len(first.flows))
    plot = json.loads(inv("plot", "queues", "--out", str(tmp_path / "q.svg"), *words).stdout)
    assert (plot["run_id"], plot["run"]) == ("0001", "all-reduce over 4 ranks, 64 KiB to 128 KiB, 4 QPs")
    both = inv("plot", "run", "1", "2", "--lab", tiny.name, "--out", str(tmp_path / "r.svg"), "--format", "json")
    assert [each["run_id"] for each in json.loads(both.stdout)["runs"]] == ["0001", "0002"]
    picture = (tmp_path / "r.svg").read_text()
    assert (
        "run 0002: worst " in picture
        and "3 host4:eth1" in picture
        and "load, % of line rate (mean of the run)" in picture
    )
    drawn = inv("graph", tiny.name, "--run", "1", "--out", str(tmp_path / "g.svg"), "--format", "json")
    assert json.loads(drawn.stdout)["run_id"] == "0001"
    qpn = min({row.sent.flow.qpn for row in first.flows} - {row.sent.flow.qpn for row in ran[1].flows})
    explained = json.loads(inv("hashing", "--explain", str(qpn), *words).stdout)
    assert explained["flow"]["qpn"] == qpn
    missing = inv("hashing", "--explain", str(qpn), "--lab", tiny.name)
    assert (missing.returncode, "is no QP number of run 0002" in missing.stderr) == (2, True)
    for verb in (["paths"], ["paths", "--now"], ["plot", "queues"], ["graph"], ["hashing", "--explain", str(qpn)]):
        where = [tiny.name] if verb == ["graph"] else ["--lab", tiny.name]
        wrong = inv(*verb, *where, "--run", "77")
        assert (wrong.returncode, "run 77 is not a run of lab" in wrong.stderr) == (2, True), wrong.stderr
    useless = inv("hashing", "--lab", tiny.name, "--run", "1")
    assert (useless.returncode, "needs --explain" in useless.stderr) == (2, True)


def test_a_record_has_what_a_comparison_of_two_runs_needs(tiny: Lab, ran: tuple[RunRecord, RunRecord]) -> None:
    first, _ = ran
    past = load(tiny, "0001")
    assert past.record.rows == first.rows
    assert past.flows == first.flows
    assert past.record[QueueUse] == first[QueueUse]
    assert past.record[MachineUse] == first[MachineUse]
    assert past.record.options == first.options
    assert past.record.ranks == first.ranks
    assert past.record.proof is not None and past.record.proof.mmr_bytes == paths_of(tiny, "1").mmr.bytes
    assert series_of(tiny, "1").k == first.k


@pytest.fixture
def copied(
    tiny: Lab, ran: tuple[RunRecord, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """Both runs, copied to a place where no lab runs."""
    shutil.copytree(History.of(tiny).directory, tmp_path / "kept", symlinks=True)
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "other state"))
    return tmp_path / "kept" / "0001", tmp_path / "kept" / "0002"


def test_a_copied_run_has_its_whole_report_without_its_lab(
    tiny: Lab, ran: tuple[RunRecord, RunRecord], copied: tuple[Path, Path]
) -> None:
    kept, other = open_runs([str(path) for path in copied])
    assert kept.record.done
    for row in kept.record.rows:
        assert len(row.iteration_us) == 2
        assert sum(row.iteration_us) / 2 == pytest.approx(row.time_us, rel=1e-3)
    proof, around = kept.proof.value, kept.surroundings.value
    assert proof is not None and proof.agree
    assert [each.flow.qpn for each in proof.flows] == [row.sent.flow.qpn for row in ran[0].flows]
    assert around is not None and {"Heddle", "Linux", "Python", "FRR"} <= set(around.versions)
    assert {rule["mode"] for rule in other.needed(other.surroundings).hashing.values()} == {"e-ecmp"}
    html = report_html([kept, other])
    assert html.count("Not shown") == 0
    assert html.count("Proven: prediction, kernel lookup and counters agree on the paths of all") == 2
    assert "./inv hashing e-ecmp --switch" in html


@pytest.mark.deep
def test_the_verbs_write_files_and_say_how_large_they_are(copied: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = copied
    done = inv("report", str(first), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    written = tmp_path / "report-0001.html"
    assert done.stdout.startswith("wrote report-0001.html: ")
    assert written.stat().st_size > 50_000
    data = json.loads(
        inv("report", str(first), str(second), "-o", "both.html", "--format", "json", cwd=tmp_path).stdout
    )
    assert (data["report"], data["bytes"]) == ("both.html", (tmp_path / "both.html").stat().st_size)
    assert [row["run_id"] for row in data["runs"]] == ["0001", "0002"]
    assert data["missing"] == []
    data = json.loads(inv("compare", str(first), str(second), "--report", "--format", "json", cwd=tmp_path).stdout)
    assert {"name": "hashing", "a": "flow", "b": "e-ecmp"} in data["settings"]
    assert {row["figure"] for row in data["ratios"]} >= {"busbw", "time", "MMR of flows", "marks", "processors busy"}
    assert (tmp_path / data["report"]).stat().st_size == data["bytes"]
    wrong = inv("compare", str(first), str(first), cwd=tmp_path)
    assert (wrong.returncode, "are both run 0001" in wrong.stderr) == (2, True)
    wrong = inv("report", str(first), "-o", "no/such/x.html", cwd=tmp_path)
    assert (wrong.returncode, "--out no/such/x.html is in a directory that does not exist" in wrong.stderr) == (2, True)


@pytest.mark.deep
def test_a_run_that_is_killed_leaves_the_run_before_and_no_worker(tiny: Lab, ran: tuple[RunRecord, RunRecord]) -> None:
    history = History.of(tiny)
    before, newest = history.ids(), history.find()
    with started("run", "--size", "16M", "--iters", "1000", lab=tiny) as proc:
        until(lambda: list(history.directory.glob(".new-*")), process=proc)
        until(lambda: workers(proc.pid), process=proc)
        left = workers(proc.pid)
        proc.kill()
        proc.communicate(timeout=patience(60))
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    assert history.ids() == before
    assert (history.directory / "last").readlink() == Path(newest)
    proven(tiny)
    after = run(tiny, run_options(size="64K", iters=1), Silent())
    assert int(after.id) == int(newest) + 1
    assert not list(history.directory.glob(".new-*")), "the next run swept what the killed one left"


def test_rows_are_printed_as_they_are_measured_and_ctrl_c_keeps_them(
    tiny: Lab, ran: tuple[RunRecord, RunRecord]
) -> None:
    history = History.of(tiny)
    before, newest = history.ids(), history.find()
    words = ["run", "--size", "64K:16M:x256", "--iters", "100", "--warmup", "0"]
    with started(*words, lab=tiny, errors=subprocess.PIPE) as proc:
        assert proc.stdout is not None
        said = ""
        while "\n       65536" not in said:  # and the next size takes minutes
            said += (line := proc.stdout.readline())
            assert line, said
        assert said.startswith("# nccl-tests version") and "busbw  #wrong" in said
        proc.send_signal(signal.SIGINT)
        rest, err = proc.communicate(timeout=patience(60))
    assert (proc.returncode, "was interrupted" in err) == (130, True), err
    new = f"{int(before[-1]) + 1:04}"
    assert f"#run      : {new};" in rest
    assert "interrupted after 1 of 2 sizes" in rest
    assert history.ids() == [*before, new]
    assert history.find() == newest and (history.directory / "last").readlink() == Path(newest)
    assert paths_of(tiny).agree, "the run before is still the last one"
    record = history.open(new).record
    assert record.interrupted and [row.size for row in record.rows] == [65536]
    assert series_of(tiny, new).what.endswith("(which was interrupted)")
    assert f"{new} partial: interrupted after 1 of 2 sizes" in inv("runs", tiny.name).stdout
