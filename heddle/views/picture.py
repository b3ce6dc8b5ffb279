"""The picture of a fabric as a file: levels in rows, boxes of racks or pods, the load of each link.

In:  Fabric, and the LinkLoads of a run if there is one.
Out: SVG, PNG or PDF by matplotlib; the same input gives the same bytes.
Places are those of picturelayout.py, colours those of loadscale.py: the dashboard and the report have the same. Each
link has two halves, as in a network weather map: the half at a node shows what that node sent, and is widest there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.tables import many
from heddle.fabric.model import Fabric
from heddle.views.linkloads import LinkLoad, spreads
from heddle.views.loadscale import COLOURS
from heddle.views.picturelayout import KEY, Box, Line, PictureLayout, Point, Text, legend
from heddle.views.style import DPI, INK, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of nodes, hosts first; then those of another network.
LEVELS: Final = ("#ffffff", "#dfe5ec", "#c5cfdb", "#abb9c9", "#e3eddc", "#c9ddbc")
_LOOK: Final[Mapping[str, Mapping[str, Any]]] = {
    "box": {"facecolor": "#f6f7f9", "edgecolor": "#d5dae0", "linewidth": 0.8, "zorder": 0},
    "area": {"facecolor": "none", "edgecolor": "#8a97a6", "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 0},
    "node": {"edgecolor": INK, "linewidth": 0.9, "zorder": 3},
}


def draw(kind: PictureKind, fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "") -> bytes:
    """The picture as a file's bytes. loads: empty when nothing ran; caption: the run of these loads."""
    return saved(kind, fabric.name, lambda: _figure(fabric, loads, caption))


def _figure(fabric: Fabric, loads: Sequence[LinkLoad], caption: str) -> Figure:
    """The whole page: heading, fabric, legend. One unit of the axes is an inch."""
    from matplotlib.figure import Figure

    layout = PictureLayout(fabric)
    lines = [spread.text() for spread in spreads(fabric, loads)]
    left, right, top = layout.left, max(layout.right, layout.left + KEY[0] + 0.4), layout.top + 0.75
    bottom = layout.bottom - (KEY[1] + 0.3 + 0.2 * len(lines) if loads else 0.15)
    figure = Figure(figsize=(right - left, top - bottom), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.axis("off")
    counts = {"switch": fabric.switches, "host": fabric.hosts, "link": fabric.links}
    size = ", ".join(many(len(found), word) for word, found in counts.items())
    _text(axes, Text((left + 0.2, top - 0.32), f"{fabric.name}: {size}", 13, "start"), weight="bold", gid="title")
    under = Text((left + 0.2, top - 0.56), caption or "no run yet: links have no load", 9, "start")
    _text(axes, under, gid="caption")
    for box in layout.frames():
        _box(axes, box)
    for text in layout.titles():
        _text(axes, text, style="italic")
    for place, (_, _, halves) in enumerate(layout.links(loads)):
        for half in halves:
            _line(axes, half, 1 + place / max(1, len(fabric.links)), f"sent-{half.port}")
    for box in layout.nodes():
        _box(axes, box)
    if loads:
        corner = left + 0.2, layout.bottom - KEY[1] - 0.05
        keys, texts = legend()
        for key in keys:
            _line(axes, key, 1, key.port, corner)
        for text in texts:
            _text(axes, text, corner)
        for number, line in enumerate(lines):
            at = corner[0], corner[1] - 0.15 - 0.2 * number
            _text(axes, Text(at, line, 8.5, "start"), gid=f"spread-{number}")
    return figure


def _text(axes: Axes, text: Text, corner: Point = (0, 0), **look: Any) -> None:
    side = "left" if text.anchor == "start" else "center"
    x, y = corner[0] + text.at[0], corner[1] + text.at[1]
    axes.text(x, y, text.words, fontsize=text.points, color=INK, ha=side, va="center", **{"zorder": 4, **look})


def _box(axes: Axes, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch, Rectangle

    look = {"gid": box.name, **_LOOK[box.kind]}
    if box.kind == "node":
        axes.add_patch(Rectangle(box.corner, *box.size, facecolor=LEVELS[box.shade], **look))
    else:
        axes.add_patch(FancyBboxPatch(box.corner, *box.size, boxstyle="round,pad=0,rounding_size=0.06", **look))
    if box.text is not None:
        _text(axes, box.text, style="italic" if box.kind == "area" else "normal")


def _line(axes: Axes, line: Line, zorder: float, name: str, corner: Point = (0, 0)) -> None:
    from matplotlib.patches import Polygon

    corners = [(corner[0] + x, corner[1] + y) for x, y in line.corners]
    axes.add_patch(Polygon(corners, color=COLOURS[line.step][0], linewidth=0, zorder=zorder, gid=name))
