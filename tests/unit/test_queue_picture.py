"""Pictures of a run's queues and rates: what is drawn, which thresholds stand in it, the same bytes each time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.base.problems import InputError
from heddle.runs.parts.congestion import use_of_rates
from heddle.runs.parts.part import TimeSpan
from heddle.runs.rates import PacedQp, Rates, rates_of, read_rates
from heddle.runs.series import COLUMNS, Recorded, RowLabel, Series
from heddle.views.queuepicture import DRAWN, _first, by_label, draw, drawn, panels, shaded
from heddle.views.style import FAULT, picture_kind
from tests.answers import Answers

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


def test_queues_and_thresholds_stand_in_the_picture() -> None:
    shown = [(each.label.port, each.side) for each in panels(recorded())]
    assert shown == [
        ("rtsw1:eth3", "egress"), ("ctsw1:eth1", "egress"), ("ctsw2:eth1", "egress"), ("rtsw1:eth4", "egress"),
        ("rtsw1:eth3", "ingress"), ("ctsw1:eth1", "ingress"),
    ]  # fmt: skip
    # Thresholds totals and honest time stand in the picture.
    said = re.sub(r"<[^>]+>", " ", svg_text(recorded()))
    for words in (
        "zone: queues over time", "incast over 16 ranks, 4 MiB, 1 QP",
        "rtsw1:eth3, class 3: egress queue, at most 304 KB",
        "Kmin 100 KB", "Kmax 400 KB: above", "Xoff 60 KB", "Xon 40 KB", "50 ms", "paused", "marks", "90", "pauses",
        "emulated (k = 4000: a link carries in 1 ms here what hardware carries in 250 ns)",
    ):  # fmt: skip
        assert words in said, words
    assert "drops" in said and "17" in said


def test_requested_queues_and_those_of_paused_hosts_are_drawn() -> None:
    shown = panels(recorded(), lambda label: label.kind == "control")
    assert [(each.label.port, each.side) for each in shown] == [("rtsw1:eth1", "egress")]
    # A host s queue is drawn when it was paused or is asked for and behind those of switches.
    found = recorded()
    assert "host3:eth1" in [each.label.port for each in panels(found, lambda label: label.host)]
    found.series.columns["paused_ns"][3, 5] = 1_000_000
    found.series.columns["peak"][2] = found.series.columns["depth"][2] = 0
    assert [each.label.port for each in panels(found)][:4] == ["rtsw1:eth3", "ctsw1:eth1", "rtsw1:eth4", "host3:eth1"]


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


SECOND = 1_000_000_000


def qp(number: int) -> PacedQp:
    return PacedQp(f"host{number}", "host1", 0x100 + number, 100)


def some() -> Rates:
    """Three queue pairs: one never slowed, one slowed, with a step after the end, one that sent nothing."""
    return rates_of(
        "dcqcn", 4.0, 10 * SECOND,
        [
            (qp(2), ((10 * SECOND, 100.0),)),
            (qp(3), ((10 * SECOND, 100.0), (11 * SECOND, 50.0), (13 * SECOND, 60.0), (99 * SECOND, 100.0))),
            (qp(4), ()),
        ],
    )  # fmt: skip


def test_rates_by_time_and_the_sums_of_a_run(answers: Answers) -> None:
    one, slowed, silent = some().courses
    assert slowed.times_s.tolist() == [0.0, 1.0, 3.0]
    assert slowed.at(np.array([-1.0, 0.0, 0.99, 1.0, 2.9, 3.0, 99.0])).tolist() == [100, 100, 100, 50, 50, 60, 60]
    assert slowed.mean(4.0) == pytest.approx((100 + 2 * 50 + 60) / 4)
    assert (one.mean(4.0), silent.mean(4.0)) == (100.0, 100.0)
    assert silent.at(np.array([1.0])).tolist() == [100]
    # The sums of a run.
    use = use_of_rates(some(), {"rpg_gd": 11.0}, "rpg_ai_rate=9", 1234, 1233)
    assert (use.slowed, use.qps, use.least_bps, use.least_at) == (1, 3, 50.0, "host3 to host1, QP 259")
    named = replace(use, profile="default")
    calm = use_of_rates(Rates("swift", 4.0, some().courses[:1]), {}, "", 0, 0)
    shown = {"set": use, "profile and set": named, "profile": replace(named, settings=""), "calm": calm}
    answers({name: "\n".join(each.lines()) for name, each in shown.items()})
    least, mean, last = (some().to_json()[1][key] for key in ("least_bps", "mean_bps", "last_bps"))
    assert (least, mean, last) == (50.0, 65.0, 60.0)


def test_rates_are_kept(tmp_path: Path) -> None:
    some().write(tmp_path)
    found = read_rates(tmp_path)
    assert (found.controller, found.seconds) == ("dcqcn", 4.0)
    assert found.to_json() == some().to_json()
    assert [each.qp for each in found.courses] == [qp(2), qp(3), qp(4)]


def test_the_picture_has_a_panel_of_rates() -> None:
    found = recorded()
    shown = panels(found)
    text = draw("svg", found, shown, some()).decode()
    assert "dcqcn: sending rates of 1 of 2 QPs that sent, Mb/s (emulated)" in text
    assert "host3 to host1, QP 259" in text and "host2 to host1" not in text
    assert text == draw("svg", found, shown, some()).decode()
    assert "sending rates" not in draw("svg", found, shown).decode()


def test_times_of_faults_are_shaded_and_named_in_the_picture() -> None:
    found, down = recorded(), TimeSpan("rtsw1:eth1 down", 0.1, 0.2)
    marked = (down, replace(down, begin_s=0.3, end_s=0.4), TimeSpan("rtsw2:eth3: 1/32 lost", 0.35, 0.45))
    assert shaded(marked) == [(0.1, 0.2), (0.3, 0.45)]
    text = draw("svg", found, panels(found), some(), marked).decode()
    assert (text.count("rtsw1:eth1 down"), text.count("rtsw2:eth3: 1/32 lost")) == (1, 1)
    # A bar for each time; and in each panel and lane below it, two shades.
    plain, shades = svg_text(found), draw("svg", found, panels(found), None, marked[:2]).decode()
    assert plain.count(FAULT) == 0 and shades.count(FAULT) == 2 + 2 * (6 + 4)
    many = [TimeSpan(f"rtsw{number}:eth1 down", number, number + 1) for number in range(1, 12)]
    assert [(what, len(spans)) for what, spans in by_label(many)[6:]] == [("rtsw7:eth1 down", 1), ("4 more faults", 4)]


def test_the_picture_begins_where_data_begins() -> None:
    found = recorded()
    idle = replace(found.series, columns={name: np.zeros_like(each) for name, each in found.series.columns.items()})
    assert _first(replace(found, series=idle)) == 0.0
    late = {name: np.array(each) for name, each in idle.columns.items()}
    row = next(row for row, label in enumerate(found.labels) if label.kind == "lossless")
    late["out_bytes"][row][2:] = 1
    assert _first(replace(found, series=replace(idle, columns=late))) == found.series.starts_s[2] > 0


def test_of_many_queue_pairs_those_that_were_slowed_most_are_drawn() -> None:
    steps = [(qp(number), ((10 * SECOND, float(number)),)) for number in range(2, 90)]
    shown = drawn(rates_of("dcqcn", 1.0, 10 * SECOND, steps))
    assert [each.qp for each in shown] == [qp(number) for number in range(2, 2 + DRAWN)]
    quiet = rates_of("dcqcn", 1.0, 10 * SECOND, [(qp(2), ())])
    assert drawn(quiet) == []
    assert "0 of 0 QPs" in draw("svg", recorded(), panels(recorded()), quiet).decode()
