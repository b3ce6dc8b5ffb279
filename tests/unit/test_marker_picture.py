"""The picture of the ECN markers: its data, its distances from the configured line, and what is drawn."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from heddle.switch.queues.markers import RANGES, MarkedShares, _ranges, configured_share
from heddle.switch.queues.red import NEVER, Curve
from heddle.views.markerpicture import MarkerComparison, draw_markers

CURVE = Curve(100_000, 400_000, 0.2)
NO_RED = "this kernel has no sch_red"


def marked(marker: str, above: float = 0.0) -> MarkedShares:
    """A marker that is above the configured line by so much, where it marks some packets."""
    _, depths = _ranges(CURVE)
    line = [configured_share(CURVE, depth) for depth in depths]
    return MarkedShares(marker, depths, tuple(s + above if 0 < s < 1 else s for s in line), 800 * RANGES)


def compared(*measured: MarkedShares, missing: str = "") -> MarkerComparison:
    return MarkerComparison("zone", 3, CURVE, measured, missing)


def svg_text(found: MarkerComparison) -> str:
    return re.sub(r"<[^>]+>", " ", draw_markers("svg", found).decode())


@pytest.mark.parametrize(
    ("depth", "share"),
    [(0, 0.0), (99_999, 0.0), (100_000, 0.0), (250_000, 0.1), (325_000, 0.15), (399_999, 0.2), (400_000, 1.0)],
)
def test_the_configured_line_is_straight_from_kmin_to_pmax_at_kmax(depth: int, share: float) -> None:
    assert configured_share(CURVE, depth) == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("curve", [CURVE, Curve(5_000, 10_000, 1.0), Curve(20_000, 20_000, 0.3)])
def test_ranges_of_depth_are_equal_without_gaps_and_go_beyond_kmax(curve: Curve) -> None:
    step, depths = _ranges(curve)
    assert step % 64 == 0 and len(depths) == RANGES
    assert depths[0] == step // 2
    assert {b - a for a, b in pairwise(depths)} == {step}
    assert depths[-1] > curve.kmax


def test_the_worst_distance_is_that_of_any_range_which_is_not_across_an_edge() -> None:
    assert marked("bpf").worst(CURVE) == 0.0
    assert marked("red", 0.006).worst(CURVE) == pytest.approx(0.006)
    assert marked("red", -0.05).worst(CURVE) == pytest.approx(0.05)
    right = marked("bpf")
    half = (right.depths[1] - right.depths[0]) / 2
    for edge in (CURVE.kmin, CURVE.kmax):
        (across,) = [at for at, depth in enumerate(right.depths) if abs(depth - edge) <= half]
        shares = list(right.shares)
        shares[across] = 0.5  # some of its packets are on the other side of the edge
        assert MarkedShares("bpf", right.depths, tuple(shares), 1).worst(CURVE) == 0.0
    shares = [0.9, *right.shares[1:]]
    assert MarkedShares("bpf", right.depths, tuple(shares), 1).worst(CURVE) == pytest.approx(0.9)


def test_the_text_has_a_line_for_each_marker_with_its_distance() -> None:
    assert compared(marked("bpf", 0.01), marked("red", 0.006)).text().splitlines() == [
        "the program (ecn.marker: bpf): at most 0.010 from the configured line, 32,000 packets",
        "RED (ecn.marker: red): at most 0.006 from the configured line, 32,000 packets",
    ]


def test_without_red_text_and_picture_say_so_and_still_have_its_computed_curve() -> None:
    found = compared(marked("bpf"), missing=NO_RED)
    assert found.text().splitlines()[1] == (
        "RED (ecn.marker: red): not measured, this kernel has no sch_red; add --place vm"
    )
    said = svg_text(found)
    assert f"pmax 0.2; RED not measured: {NO_RED}" in said
    assert "RED, computed" in said
    assert "RED (ecn.marker: red), measured" not in said


def test_the_picture_has_the_line_both_markers_and_the_thresholds() -> None:
    said = svg_text(compared(marked("bpf"), marked("red", 0.006)))
    for words in (
        "zone: ECN markers, class 3", "configured: straight line to pmax", "RED, computed",
        "the program (ecn.marker: bpf), measured", "RED (ecn.marker: red), measured", "Kmin 100 KB", "Kmax 400 KB",
        "share of packets marked",
    ):  # fmt: skip
        assert words in said, words
    assert "not measured" not in said


def test_each_marker_has_as_many_points_as_ranges_and_moving_them_changes_the_picture() -> None:
    one, both = (
        draw_markers("svg", compared(marked("bpf"))),
        draw_markers("svg", compared(marked("bpf"), marked("red"))),
    )
    assert both.count(b"<use ") - one.count(b"<use ") == RANGES + 1, "one more is in the legend"
    assert draw_markers("svg", compared(marked("bpf"), marked("red", 0.01))) != both
    assert draw_markers("svg", compared(marked("bpf"), marked("red"))) == both


def test_every_kind_of_picture_has_its_format() -> None:
    found = compared(marked("bpf"))
    assert draw_markers("png", found).startswith(b"\x89PNG")
    assert draw_markers("pdf", found).startswith(b"%PDF")


def test_a_curve_that_never_marks_has_no_distance_from_itself() -> None:
    assert {configured_share(NEVER, depth) for depth in (0, 10**6)} == {0.0}
