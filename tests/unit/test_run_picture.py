"""Pictures of runs side by side: bandwidth, uplinks, iterations, the hottest queue."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from heddle.base.problems import InputError
from heddle.proof.linkuse import LinkUse, UplinkSet
from heddle.runs.runrecord import RunRecord
from heddle.runs.stored import Stored, StoredRun
from heddle.views.runpicture import Drawn, _figure, draw
from heddle.views.style import SERIES_OF_RUNS
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep
from tests.unit.test_slowest import ring, timeline


def kept(
    place: Path, number: int, record: RunRecord | None = None, *, ecmp: str = "flow",
    ports: Sequence[str] = ("rtsw1:eth1", "rtsw1:eth3"),
) -> StoredRun:  # fmt: skip
    """A run with a timeline and uplinks, of which every other one is three times as busy."""
    run = keep(place, number, record or samples.record(ecmp=ecmp))
    timeline(ring()).write(run.path)
    links = [
        LinkUse(port, True, 9, (1 + 2 * (at % 2)) * 500_000, 1, rate_bps=10**8, run_s=0.1)
        for at, port in enumerate(ports)
    ]
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


def test_bars_of_four_runs_are_groups_that_can_be_read(tmp_path: Path) -> None:
    """32 uplinks and four runs: no bar is hidden or thinner than 6 pixels, and no two texts overlap."""
    ports = [f"rtsw{switch}:eth{port}" for switch in range(1, 9) for port in range(1, 5)]
    runs = [kept(tmp_path, number, ports=ports) for number in range(1, 5)]
    shown = [Drawn(run, run.id, colour) for run, colour in zip(runs, SERIES_OF_RUNS, strict=False)]
    figure = _figure(shown)
    figure.savefig(io.BytesIO())
    axes = figure.axes[1]
    bars = [each for each in axes.patches if isinstance(each, Rectangle) and each.get_alpha() is None]
    assert len(bars) == 4 * 32
    places = sorted((each.get_window_extent().x0, each.get_window_extent().x1) for each in bars)
    assert min(x1 - x0 for x0, x1 in places) >= 6
    gaps = [right[0] - left[1] for left, right in pairwise(places)]
    assert min(gaps) > -0.01
    assert [gap > 3 for gap in gaps] == [at % 4 == 3 for at in range(127)], "a gap after each group of four, no other"
    legend = axes.get_legend()
    assert legend is not None
    texts = [
        *axes.get_xticklabels(), *axes.texts, *legend.get_texts(), figure.axes[0].xaxis.label,
        *(text for each in figure.axes for text in each.findobj(Text) if text.get_text() == each.get_title("left")),
    ]  # fmt: skip
    words = [each for each in texts if each.get_text()]
    assert [each.get_text() for each in axes.texts] == [f"rtsw{number}" for number in range(1, 9)]
    assert [each.get_text() for each in axes.get_xticklabels()] == ["eth1", "eth2", "eth3", "eth4"] * 8
    boxes = [each.get_window_extent() for each in words]
    over = [
        (words[a].get_text(), words[b].get_text())
        for a, b in combinations(range(len(words)), 2)
        if boxes[a].overlaps(boxes[b])
    ]
    assert not over


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
