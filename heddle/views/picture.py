"""Heddle's own picture of a fabric: levels in rows, boxes of racks or pods, the load of each link.

In:  Fabric, and the LinkLoads of a run if there is one.
Out: SVG, PNG or PDF; the same input gives the same bytes.
Each link has two halves, as in a network weather map: the half at a node shows what that node sent. Width and colour
show the use: the time of the bytes at the link's rate, relative to the busiest port. So a slow link is darker than a
fast one with as many bytes. The colours also differ in lightness, so colour-blind people can tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from heddle.fabric.model import Fabric
from heddle.views.linkloads import LinkLoad, spreads, use_text
from heddle.views.picturelayout import PictureLayout, Point, thickest_of, thinned, width_of
from heddle.views.style import DPI, INK, QUIET, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_FILL: Final = ("#ffffff", "#dfe5ec", "#c5cfdb", "#abb9c9")  # by level, hosts first


def draw(kind: PictureKind, fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "") -> bytes:
    """The picture as a file's bytes. loads: empty when nothing ran; caption: the run of these loads."""
    return saved(kind, fabric.name, lambda: _figure(fabric, loads, caption))


def _figure(fabric: Fabric, loads: Sequence[LinkLoad], caption: str) -> Figure:
    """The whole page: heading, fabric, legend. One unit of the axes is an inch."""
    from matplotlib.figure import Figure

    layout = PictureLayout(fabric)
    lines = [spread.text() for spread in spreads(fabric, loads)]
    legend = 0.9 + 0.2 * len(lines) if loads else 0.15
    left, right, bottom, top = layout.left, layout.right, layout.bottom - legend, layout.top + 0.75
    figure = Figure(figsize=(right - left, top - bottom), dpi=DPI, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.axis("off")
    _heading(axes, fabric, caption, (left + 0.2, top - 0.32))
    _frames(axes, layout)
    most = max((seconds for load in loads for seconds in load.seconds), default=0.0)
    _links(axes, layout, {(load.a, load.b): load for load in loads}, most)
    _nodes(axes, layout)
    if loads:
        _legend(axes, lines, (most, loads[0].run_s), (left + 0.2, layout.bottom - 0.25))
    return figure


def _heading(axes: Axes, fabric: Fabric, caption: str, at: Point) -> None:
    counts = (
        (len(fabric.switches), "switch", "es"),
        (len(fabric.hosts), "host", "s"),
        (len(fabric.links), "link", "s"),
    )
    size = ", ".join(f"{count} {word}{'' if count == 1 else more}" for count, word, more in counts)
    axes.text(*at, f"{fabric.name}: {size}", fontsize=13, weight="bold", color=INK, gid="title")
    text = caption or "no run yet: links have no load"
    axes.text(at[0], at[1] - 0.24, text, fontsize=9, color=INK, gid="caption")


def _frames(axes: Axes, layout: PictureLayout) -> None:
    """A box for each rack, with its number below, and a frame for each area; the levels' names at the left."""
    from matplotlib.patches import FancyBboxPatch

    word, area_word = layout.fabric.box, layout.fabric.area
    top = layout.box_top + 0.32
    named = layout.box_width * 72 / (0.62 * 7.5 * len(f"{word} {len(layout.box)}"))  # labels that a box has room for
    step = 1 if named >= 1 else 4
    for number, (x, width) in layout.box.items():
        box = FancyBboxPatch(
            (x, layout.bottom + 0.3), width, top - layout.bottom - 0.3, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor="#f6f7f9", edgecolor="#d5dae0", linewidth=0.8, zorder=0, gid=f"{word}-{number}",
        )  # fmt: skip
        axes.add_patch(box)
        if not number or (number - 1) % step == 0:
            text = f"{word} {number}" if number else f"in no {word}"
            axes.text(x + width / 2, layout.bottom + 0.1, text, fontsize=7.5, color=INK, ha="center", va="center")
    for number, (x, width, whole) in layout.areas.items():
        above, beside = layout.area_row, 0.04 if whole else -0.08
        low, high = layout.bottom + 0.22 if whole else above - 0.42, above + 0.42
        box = FancyBboxPatch(
            (x - beside, low), width + 2 * beside, high - low, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="none", edgecolor="#8a97a6", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0,
            gid=f"{area_word}-{number}",
        )  # fmt: skip
        axes.add_patch(box)
        text = f"{area_word} {number}"
        axes.text(x - beside + 0.1, high - 0.04, text, fontsize=8, color=INK, ha="left", va="top", style="italic")
    for level, y in layout.rows.items():
        if layout.members[level]:
            title = layout.fabric.levels[level].title
            axes.text(layout.left + 0.2, y, title, fontsize=8, color=INK, ha="left", va="center", style="italic")


def _links(axes: Axes, layout: PictureLayout, loads: Mapping[tuple[str, str], LinkLoad], most: float) -> None:
    """Two halves per link; halves with more load are drawn above the others."""
    thickest = thickest_of(layout.fabric)
    colours = _colours()
    for link in layout.fabric.links:
        refs = (":".join(link.a), ":".join(link.b))
        load = loads.get(refs)
        a, b = layout.ends(link)
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
        times = load.seconds if load else (0.0, 0.0)
        for ref, end, seconds in ((refs[0], a, times[0]), (refs[1], b, times[1])):
            part = seconds / most if most else 0.0
            axes.plot(
                (end[0], middle[0]), (end[1], middle[1]), solid_capstyle="butt",
                color=colours(part) if seconds else QUIET, linewidth=width_of(part, thickest),
                zorder=1 + part, gid=f"sent-{ref}",
            )  # fmt: skip


def _colours() -> Colormap:
    """Light for low load, dark for high load: viridis without its lightest colours, which white paper hides."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["viridis_r"]
    return ListedColormap([whole(0.12 + 0.88 * step / 255) for step in range(256)], name="heddle")


def _nodes(axes: Axes, layout: PictureLayout) -> None:
    from matplotlib.patches import Rectangle

    for level, members in layout.members.items():
        if not members:
            continue
        width, height = layout.size(level)
        font = layout.font(level)
        step = 1 if font else thinned(len(members), layout.width)
        for place, node in enumerate(members):
            x, y = layout.at[node.name]
            patch = Rectangle(
                (x - width / 2, y - height / 2), width, height, edgecolor=INK,
                facecolor=_FILL[min(level, len(_FILL) - 1)], linewidth=0.9 if font else 0.5, zorder=3,
                gid=f"node-{node.name}",
            )  # fmt: skip
            axes.add_patch(patch)
            if font:
                axes.text(x, y, node.name, fontsize=font, color=INK, ha="center", va="center", zorder=4)
            elif place % step == 0:
                hosts = level == layout.hosts
                below = y - height / 2 - 0.04 if hosts else y
                axes.text(
                    x, below, node.name, fontsize=6.5, color=INK, ha="center",
                    va="top" if hosts else "center", zorder=4,
                    bbox=None if hosts else {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip


def _legend(axes: Axes, lines: Sequence[str], scale: tuple[float, float | None], at: Point) -> None:
    """The scale of width and colour of the links, with numbers; then how even the load of each direction was.

    scale: seconds of the busiest port, and seconds of the run (None when not known).
    """
    from matplotlib.patches import Polygon

    x, y = at
    length, thick = 3.0, 0.14
    most, run_s = scale
    share = f", as a share of the run's {run_s:.3g} s" if run_s else ""
    said = f"sent by the node at that end of the link: time of its RoCE data at the link's rate{share}"
    axes.text(x, y, said, fontsize=8, color=INK, va="center")
    colours, steps = _colours(), 64
    y -= 0.24
    for step in range(steps):
        one, other = step / steps, (step + 1) / steps
        heights = [thick * (0.12 + 0.88 * part) / 2 for part in (one, other)]
        corners = [
            (x + one * length, y - heights[0]), (x + other * length, y - heights[1]),
            (x + other * length, y + heights[1]), (x + one * length, y + heights[0]),
        ]  # fmt: skip
        colour = colours((one + other) / 2)
        axes.add_patch(Polygon(corners, facecolor=colour, edgecolor=colour, linewidth=0.4))
    for part in (0.0, 0.5, 1.0):
        text = use_text(part * most, run_s) + (" (max)" if part == 1.0 else "")
        axes.text(x + part * length, y - 0.13, text, fontsize=7.5, color=INK, ha="center" if part else "left", va="top")
    axes.plot((x + length + 0.9, x + length + 1.3), (y, y), color=QUIET, linewidth=1.2, gid="legend-idle")
    axes.text(x + length + 1.38, y, "nothing", fontsize=7.5, color=INK, va="center")
    for number, line in enumerate(lines):
        axes.text(x, y - 0.42 - 0.2 * number, line, fontsize=8.5, color=INK, va="center", gid=f"spread-{number}")
