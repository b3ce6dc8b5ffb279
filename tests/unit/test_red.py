"""RED: the marks for given parameters, and the parameters for a curve of the fabric file."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heddle.fabric.policy import ClassCurve, EcnPolicy, QueuePolicy
from heddle.switch.queues import red

PMAXES = [0.01, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0]


def simulated(p: float, packets: int = 40_000) -> float:
    """red_action() at a depth that does not change: a gap is drawn, and packets are counted until it is reached."""
    draw = random.Random(7)
    marks, count, gap = 0, 0, draw.random()
    for _ in range(packets):
        count += 1
        if p * count >= gap:
            marks, count, gap = marks + 1, 0, draw.random()
    return marks / packets


@pytest.mark.parametrize("pmax", PMAXES)
def test_red_gets_the_parameters_that_make_it_mark_pmax(pmax: float) -> None:
    assert red.marked(red.configured(pmax)) == pytest.approx(pmax)
    assert simulated(red.configured(pmax)) == pytest.approx(pmax, abs=0.01)


@pytest.mark.parametrize("p", [0.05, 0.111, 0.37, 0.5, 0.64, 0.88])
def test_the_share_that_red_marks_is_one_in_the_mean_gap(p: float) -> None:
    assert red.marked(p) == pytest.approx(simulated(p), abs=0.01)


@pytest.mark.parametrize(("pmax", "most"), [(0.2, 0.006), (0.5, 0.04), (1.0, 0.17)])
def test_its_curve_is_above_the_straight_line_by_as_much_as_the_docs_say(pmax: float, most: float) -> None:
    curve = red.Curve(100_000, 400_000, pmax)
    above = [curve.fraction(d) - pmax * (d - 100_000) / 300_000 for d in range(100_000, 400_000, 500)]
    assert min(above) > -1e-9
    assert 0.8 * most < max(above) <= most
    assert (curve.fraction(99_999), curve.fraction(400_000)) == (0.0, 1.0)


def test_every_class_but_control_has_a_curve_and_none_marks_while_ecn_is_off() -> None:
    queues = QueuePolicy(ecn=EcnPolicy(marker="red", classes={3: ClassCurve(pmax=0.5)}))
    assert red.curves_of(queues) == {0: red.Curve(40_000, 160_000, 0.2), 3: red.Curve(40_000, 160_000, 0.5)}
    off = replace(queues, ecn=replace(queues.ecn, enabled=False))
    assert set(red.curves_of(off).values()) == {red.NEVER}
    assert red.NEVER.fraction(1 << 30) == 0.0
