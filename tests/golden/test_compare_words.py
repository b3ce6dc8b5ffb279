"""What `compare` prints, and the errors of `compare` and `report`, word for word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.problems import HeddleError
from heddle.runs.compare import compare
from heddle.runs.store import open_runs
from heddle.traffic.options import RunOptions
from heddle.views.runstext import compare_text
from heddle.views.style import WIDTH
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep, row, with_rows

LONG = "host1,host2,host3,host4"


def said(*words: str, lab: str | None = None) -> str:
    try:
        open_runs(words, lab)
    except HeddleError as error:
        return f"{' '.join(words) or '(nothing)'}: exit {error.exit_code}\n{error}"
    raise AssertionError(f"{words} mean a run")


def test_two_runs_side_by_side(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    sizes = (1 << 16, 1 << 18, 1 << 20)
    a = with_rows(
        samples.record(RunOptions(sizes=sizes, qps=1), ecmp="flow"),
        row(1 << 16, 1000, 1010, 990), row(1 << 18, 4000, 4800, 4100), row(1 << 20, 16000, 16100, 15900),
    )  # fmt: skip
    b = with_rows(
        samples.record(replace(samples.OPTIONS, sizes=sizes[:2], placement=LONG, transport="rc")),
        row(1 << 16, 500, 505, 495), row(1 << 18, 4300, 4500, 4900),
    )  # fmt: skip
    b = replace(b, counters={**b.counters, "retransmitted": 12})
    text = compare_text(compare(keep(tmp_path, 1, a), keep(tmp_path, 2, b, around=None)))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    again = compare_text(compare(keep(tmp_path, 3, a), keep(tmp_path, 4, a)))
    golden("runs/compare.log", f"{text}\n\n\n{again}\n")


def test_words_that_mean_no_run(
    golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    texts = [said(), said("3"), said("zone:3")]
    for name in ("zone", "tiny"):
        lab = state.lab_dir(name)
        (lab / "runs").mkdir(parents=True)
        state.write_record(state.Record(name, "netns", "running", {"name": name}))
    texts += [said(), said("last", lab="zoe"), said("zone:last"), said("zone:7"), said("./kept/0001")]
    keep(state.lab_dir("zone") / "runs", 1)
    keep(state.lab_dir("tiny") / "runs", 1)
    texts += [said("1"), said("zone:x")]
    texts.append(said("zone:1", "zone:2"))
    one, other = open_runs(["zone:1", "tiny:1"])
    assert (one.lab, other.lab) == ("zone", "tiny")
    golden("runs/no-run.log", "\n\n".join(texts) + "\n")
