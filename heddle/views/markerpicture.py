"""A picture of the ECN markers: the share of packets that each marks, over the depth of the queue.

In:  a curve, what the markers did (markers.py), and why one was not measured.
Out: SVG, PNG or PDF; the same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from heddle.base.units import format_bytes
from heddle.switch.queues.markers import MarkedShares, configured_share
from heddle.switch.queues.red import Curve
from heddle.views.style import DEPTH, DPI, INK, MARKED, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOK: Final = {"bpf": ("the program (ecn.marker: bpf)", DEPTH, "o"), "red": ("RED (ecn.marker: red)", MARKED, "s")}
_POINTS: Final = 400


@dataclass(frozen=True, slots=True)
class MarkerComparison:
    """A curve and what was measured of it. missing: why RED was not measured; empty if it was."""

    lab: str
    traffic_class: int
    curve: Curve
    measured: tuple[MarkedShares, ...]
    missing: str = ""

    def text(self) -> str:
        """One line for each marker."""
        lines = []
        for each in self.measured:
            wanted = f"at most {each.worst(self.curve):.3f} from the configured line"
            lines.append(f"{_LOOK[each.marker][0]}: {wanted}, {each.packets:,} packets")
        if self.missing:
            lines.append(f"{_LOOK['red'][0]}: not measured, {self.missing}; add --place vm")
        return "\n".join(lines)


def draw_markers(kind: PictureKind, found: MarkerComparison) -> bytes:
    """The picture."""
    return saved(kind, f"{found.lab}: ECN markers", partial(_figure, found))


def _figure(found: MarkerComparison) -> Figure:
    from matplotlib.figure import Figure

    curve = found.curve
    figure = Figure(figsize=(8.5, 4.6), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0.09, 0.13, 0.87, 0.68))
    depths = _depths(found.measured, curve)
    line = [configured_share(curve, depth) for depth in depths]
    axes.plot(depths, line, color=INK, linewidth=1.2, label="configured: straight line to pmax", zorder=2)
    expected = [curve.fraction(round(depth)) for depth in depths]
    axes.plot(depths, expected, color=MARKED, linewidth=0.9, linestyle="--", label="RED, computed", zorder=2)
    for each in found.measured:
        label, colour, marker = _LOOK[each.marker]
        axes.plot(
            each.depths, each.shares, color=colour, marker=marker, markersize=4, linestyle="none",
            label=f"{label}, measured", zorder=3,
        )  # fmt: skip
    for name, value in (("Kmin", curve.kmin), ("Kmax", curve.kmax)):
        axes.axvline(value, color=INK, linewidth=0.6, linestyle=":")
        axes.annotate(
            f"{name} {format_bytes(value)}", (value, 1.02), xycoords=("data", "axes fraction"), fontsize=7.5,
            color=INK, ha="center",
        )  # fmt: skip
    axes.set_xlim(0, depths[-1])
    axes.set_ylim(-0.02, 1.04)
    axes.xaxis.set_major_formatter(lambda value, _: format_bytes(value))
    axes.set_xlabel("bytes of the class in front of the packet", fontsize=8.5, color=INK)
    axes.set_ylabel("share of packets marked", fontsize=8.5, color=INK)
    axes.tick_params(labelsize=7.5, colors=INK)
    axes.legend(loc="upper left", fontsize=8, framealpha=1.0, edgecolor="white", labelcolor=INK)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    figure.text(0.03, 0.94, f"{found.lab}: ECN markers, class {found.traffic_class}", fontsize=12, color=INK)
    missing = f"; RED not measured: {found.missing}" if found.missing else ""
    figure.text(0.03, 0.895, f"pmax {curve.pmax:g}{missing}", fontsize=8.5, color=INK)
    return figure


def _depths(measured: Sequence[MarkedShares], curve: Curve) -> list[float]:
    most = max((each.depths[-1] for each in measured), default=round(1.15 * curve.kmax))
    return [most * index / _POINTS for index in range(_POINTS + 1)]
