"""The picture of a run's queues: what is drawn, which thresholds stand in it, and the same bytes each time."""

from __future__ import annotations

import re

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.runs.rowreader import COLUMNS
from heddle.runs.series import Recorded, RowLabel, Series
from heddle.views.queuepicture import draw, panels
from heddle.views.style import picture_kind

BUCKETS = 50


def recorded() -> Recorded:
    """Six queues, the first the deepest; one is paused, one drops, the last is of control."""
    names = [
        ("rtsw1:eth3", 3),
        ("ctsw1:eth1", 3),
        ("ctsw2:eth1", 3),
        ("host3:eth1", 3),
        ("rtsw1:eth4", 0),
        ("rtsw1:eth1", 6),
    ]
    kinds = {0: "lossy", 3: "lossless", 6: "control"}
    columns = {name: np.zeros((len(names), BUCKETS), np.int64) for name in COLUMNS}
    labels = []
    for at, (port, number) in enumerate(names):
        pfc = {"xoff": 60_000, "xon": 40_000} if number == 3 and not port.startswith("host") else {}
        ecn = {"kmin": 100_000, "kmax": 400_000} if number != 6 else {}
        labels.append(RowLabel(port, number, kinds[number], 10**8, **ecn, **pfc, host=port.startswith("host")))
        columns["depth"][at] = np.linspace(0, 300_000 - 50_000 * at, BUCKETS).astype(np.int64)
        columns["peak"][at] = columns["depth"][at] + 4000
        columns["occupancy"][at] = columns["occupancy_peak"][at] = columns["depth"][at] // 4
    columns["marks"][0, 20:] = 3
    columns["drops"][4, 30] = 17
    columns["paused_ns"][1, 10:20] = 5_000_000
    columns["pfc_sent"][0, 12] = 2
    ends = np.arange(1, BUCKETS + 1, dtype=np.float64) * 0.01
    series = Series(ends, np.arange(len(names), dtype=np.int32), columns, 0.01, BUCKETS, 0.0)
    return Recorded("zone", "incast over 16 ranks, 4 MiB, 1 QP", 4000, tuple(labels), series)


def svg_text(found: Recorded) -> str:
    return draw("svg", found, panels(found)).decode()


def test_the_deepest_queues_are_drawn_and_behind_them_the_fullest_ingress_buffers() -> None:
    shown = [(each.label.port, each.side) for each in panels(recorded())]
    assert shown == [
        ("rtsw1:eth3", "egress"), ("ctsw1:eth1", "egress"), ("ctsw2:eth1", "egress"), ("rtsw1:eth4", "egress"),
        ("rtsw1:eth3", "ingress"), ("ctsw1:eth1", "ingress"),
    ]  # fmt: skip


def test_a_requested_queue_is_drawn_even_if_it_was_nearly_empty() -> None:
    shown = panels(recorded(), lambda label: label.kind == "control")
    assert [(each.label.port, each.side) for each in shown] == [("rtsw1:eth1", "egress")]


def test_thresholds_totals_and_honest_time_stand_in_the_picture() -> None:
    said = re.sub(r"<[^>]+>", " ", svg_text(recorded()))
    for words in (
        "zone: queues over time", "incast over 16 ranks, 4 MiB, 1 QP",
        "rtsw1:eth3, class 3: egress queue, at most 304 KB",
        "Kmin 100 KB", "Kmax 400 KB: above", "Xoff 60 KB", "Xon 40 KB", "50 ms", "paused", "marks", "90", "pauses",
        "emulated (k = 4000: a link carries in 1 ms here what hardware carries in 250 ns)",
    ):  # fmt: skip
        assert words in said, words
    assert "drops" in said and "17" in said


def test_a_host_s_queue_is_drawn_when_it_was_paused_or_is_asked_for_and_behind_those_of_switches() -> None:
    found = recorded()
    assert "host3:eth1" in [each.label.port for each in panels(found, lambda label: label.host)]
    found.series.columns["paused_ns"][3, 5] = 1_000_000
    found.series.columns["peak"][2] = found.series.columns["depth"][2] = 0
    assert [each.label.port for each in panels(found)][:4] == ["rtsw1:eth3", "ctsw1:eth1", "rtsw1:eth4", "host3:eth1"]


def test_the_same_run_gives_the_same_bytes() -> None:
    assert svg_text(recorded()) == svg_text(recorded())


@pytest.mark.deep
def test_so_it_does_in_a_pdf_and_a_png_is_one() -> None:
    found = recorded()
    assert draw("png", found, panels(found)).startswith(b"\x89PNG")
    pages = [draw("pdf", recorded(), panels(recorded())) for _ in range(2)]
    assert pages[0] == pages[1] and pages[0].startswith(b"%PDF")


def test_a_file_is_of_a_kind_that_its_name_ends_in() -> None:
    names = ("a.svg", "b/c.png", "b.x/c.pdf")
    assert [picture_kind("--out", name) for name in names] == ["svg", "png", "pdf"]
    with pytest.raises(InputError, match=r"--out q\.txt has no suffix of a picture\n.*q\.svg, q\.png or q\.pdf"):
        picture_kind("--out", "q.txt")
