"""Sending rates of a run: computed from the workers' steps, kept in a file, drawn, and summed for the table."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from heddle.runs.files import UnreadableError
from heddle.runs.parts import use_of_rates
from heddle.runs.rates import RATES, PacedQp, Rates, rates_of, read_rates, write_rates
from heddle.views.queuepicture import DRAWN, draw, drawn, panels
from heddle.views.report import charts
from tests.unit.test_queue_picture import recorded

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


def test_rates_by_time() -> None:
    one, slowed, silent = some().courses
    assert slowed.times_s.tolist() == [0.0, 1.0, 3.0]
    assert slowed.at(np.array([-1.0, 0.0, 0.99, 1.0, 2.9, 3.0, 99.0])).tolist() == [100, 100, 100, 50, 50, 60, 60]
    assert slowed.mean(4.0) == pytest.approx((100 + 2 * 50 + 60) / 4)
    assert (one.mean(4.0), silent.mean(4.0)) == (100.0, 100.0)
    assert silent.at(np.array([1.0])).tolist() == [100]


def test_the_sums_of_a_run() -> None:
    use = use_of_rates(some(), {"rpg_gd": 11.0}, "rpg_ai_rate=9", 1234, 1233)
    assert (use.slowed, use.qps, use.least_bps, use.least_at) == (1, 3, 50.0, "host3 to host1, QP 259")
    assert use.lines() == [
        "#dcqcn    : 1,234 CNPs sent, 1,233 received; 1 of 3 QPs slowed, down to 5e-05 Mb/s (host3 to host1, QP 259)",
        "#dcqcn    : set: rpg_ai_rate=9",
    ]
    calm = Rates("swift", 4.0, some().courses[:1])
    assert use_of_rates(calm, {}, "", 0, 0).lines() == ["#swift    : 0 CNPs sent, 0 received; no QP slowed"]
    least, mean, last = (some().to_json()[1][key] for key in ("least_bps", "mean_bps", "last_bps"))
    assert (least, mean, last) == (50.0, 65.0, 60.0)


def test_rates_are_kept(tmp_path: Path) -> None:
    write_rates(tmp_path, some())
    found = read_rates(tmp_path)
    assert (found.controller, found.seconds) == ("dcqcn", 4.0)
    assert found.to_json() == some().to_json()
    assert [each.qp for each in found.courses] == [qp(2), qp(3), qp(4)]


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_damaged_rates_are_named(tmp_path: Path, damage: str) -> None:
    write_rates(tmp_path, some())
    path = tmp_path / RATES
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        shutil.copy(__file__, path)
    with pytest.raises(UnreadableError, match=r"rates\.npz is (missing: the run had no|damaged)"):
        read_rates(tmp_path)


def test_the_picture_has_a_panel_of_rates() -> None:
    found = recorded()
    shown = panels(found)
    text = draw("svg", found, shown, some()).decode()
    assert "dcqcn: sending rates of 1 of 2 QPs that sent, Mb/s (emulated)" in text
    assert "host3 to host1, QP 259" in text and "host2 to host1" not in text
    assert text == draw("svg", found, shown, some()).decode()
    assert "sending rates" not in draw("svg", found, shown).decode()
    chart = charts.rates(some(), 4000)
    assert "host3 to host1, QP 259" in chart.json and "down to 5e-05 Mb/s" in chart.told


def test_of_many_queue_pairs_those_that_were_slowed_most_are_drawn() -> None:
    steps = [(qp(number), ((10 * SECOND, float(number)),)) for number in range(2, 90)]
    shown = drawn(rates_of("dcqcn", 1.0, 10 * SECOND, steps))
    assert [each.qp for each in shown] == [qp(number) for number in range(2, 2 + DRAWN)]
    assert drawn(rates_of("dcqcn", 1.0, 10 * SECOND, [(qp(2), ())])) == []
    quiet = rates_of("dcqcn", 1.0, 10 * SECOND, [(qp(2), ())])
    assert "0 of 0 QPs" in draw("svg", recorded(), panels(recorded()), quiet).decode()
