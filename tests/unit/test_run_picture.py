"""Pictures of runs side by side: bandwidth, uplinks, iterations, the hottest queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from heddle.base.problems import InputError
from heddle.proof.linkuse import LinkUse, UplinkSet
from heddle.runs.runrecord import RunRecord
from heddle.runs.stored import Stored, StoredRun
from heddle.views.runpicture import Drawn, draw
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep
from tests.unit.test_slowest import ring, timeline


def kept(place: Path, number: int, record: RunRecord | None = None, *, ecmp: str = "flow") -> StoredRun:
    """A run with a timeline and two uplinks, of which one is three times as busy."""
    run = keep(place, number, record or samples.record(ecmp=ecmp))
    timeline(ring()).write(run.path)
    links = [LinkUse(f"rtsw1:eth{n}", True, 9, n * 500_000, 1, rate_bps=10**8, run_s=0.1) for n in (1, 3)]  # fmt: skip
    run.__dict__["proof"] = Stored(SimpleNamespace(uplinks=UplinkSet.of(links)))
    return run


def test_one_run_shows_bandwidth_uplinks_iterations_and_the_hottest_queue(tmp_path: Path) -> None:
    picture = draw("svg", [kept(tmp_path, 3)]).decode()
    assert "worst 120 % at rtsw1:eth3, mean 80 % (dashed), max/mean 1.50" in picture
    for words in (
        "run zone-0003", "64 KiB", "busbw, GB/s (emulated)", "load, % of line rate (mean of the run)", "0 host1:eth1",
        "run 0003: timed iterations of each rank, without the warm-up", "emulated, k = 4000",
        "run 0003: rtsw1:eth3, class 3: egress queue, at most 108 KB", "seconds of wall time since the run began",
    ):  # fmt: skip
        assert words in picture, words
    assert draw("svg", [kept(tmp_path / "again", 3)]).decode() == picture, "the same bytes"


def test_two_runs_have_a_colour_and_a_name_each(tmp_path: Path) -> None:
    runs = [kept(tmp_path, 3), kept(tmp_path, 5, ecmp="e-ecmp")]
    picture = draw("svg", runs).decode()
    for words in ("run 0003: ECMP flow, 16 QPs", "run 0005: ECMP e-ecmp, 16 QPs", "run 0005: worst 120 %"):
        assert words in picture, words
    assert draw("png", runs).startswith(b"\x89PNG")


def test_runs_of_two_labs_are_named_with_their_lab(tmp_path: Path) -> None:
    other = replace(samples.record(), lab="north")
    picture = draw("svg", [kept(tmp_path, 3), kept(tmp_path / "other", 3, other)]).decode()
    assert "run zone-0003: ECMP" in picture and "run north-0003: ECMP" in picture


def test_a_picture_says_what_a_run_does_not_have(tmp_path: Path) -> None:
    old = keep(tmp_path, 1)
    picture = draw("svg", [old]).decode()
    assert "timeline.npz is missing" in picture and "Load of each uplink" in picture
    assert Drawn(old, "0001", "black").iterations is None


def test_a_run_that_measured_no_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="measured no size"):
        draw("svg", [keep(tmp_path, 1, samples.failed())])
