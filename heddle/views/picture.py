"""Heddle's own picture of a fabric: levels in rows, boxes of racks or pods, the load of each link.

In:  Fabric, and the LinkLoads of a run if there is one.
Out: SVG, PNG or PDF; the same input gives the same bytes.
Each link has two halves, as in a network weather map: the half at a node shows what that node sent. Width and colour
show the use: the time of the bytes at the link's rate, relative to the busiest port. So a slow link is darker than a
fast one with as many bytes. The colours also differ in lightness, so colour-blind people can tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from heddle.fabric.model import Fabric, Link, Node, Role
from heddle.views.linkloads import LinkLoad, spreads, use_text
from heddle.views.style import DPI, INK, PictureKind, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Point = tuple[float, float]
_WIDEST: Final = 26.0  # inches; a larger fabric gets fewer labels
_FILL: Final = ("#ffffff", "#dfe5ec", "#c5cfdb", "#abb9c9")  # by level, hosts first
_QUIET: Final = "#b8c0c9"  # links that carried nothing, or whose load is not known
_HOST_SIZE: Final[Point] = (0.62, 0.3)
_SWITCH_SIZE: Final[Point] = (0.86, 0.36)
_LEAF: Final = 1  # this level and its hosts are in boxes; levels above are drawn above the boxes


def draw(kind: PictureKind, fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "") -> bytes:
    """The picture as a file's bytes. loads: empty when nothing ran; caption: the run of these loads."""
    return saved(kind, fabric.name, lambda: _figure(fabric, loads, caption))


def _figure(fabric: Fabric, loads: Sequence[LinkLoad], caption: str) -> Figure:
    """The whole page: heading, fabric, legend. One unit of the axes is an inch."""
    from matplotlib.figure import Figure

    layout = _PictureLayout(fabric)
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


class _PictureLayout:
    """The position of each node and box, in inches. The width of a box decides which labels fit."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.up = {link.a for link in fabric.links}  # ports with links to the level above
        self.members: dict[int, list[Node]] = {level: [] for level in range(len(fabric.levels))}
        self.boxes: dict[int, list[Node]] = {}  # 0: nodes without a box, as in some imported labs
        for node in fabric.nodes:
            self.members[node.level].append(node)
            if node.level <= _LEAF:
                self.boxes.setdefault(node.group(fabric.box) or 0, []).append(node)
        hosts = max((_count(nodes, 0) for nodes in self.boxes.values()), default=1) or 1
        leaves = max((_count(nodes, _LEAF) for nodes in self.boxes.values()), default=1) or 1
        tops = {level: nodes for level, nodes in self.members.items() if level > _LEAF}
        wanted = len(self.boxes) * max(1.25, 0.78 * hosts + 0.3, 1.1 * leaves)
        self.width = min(_WIDEST, max(wanted, *(1.1 * len(nodes) for nodes in tops.values()), 6.8))
        self.box_width = self.width / max(1, len(self.boxes))
        self.slot = (self.box_width - 0.12 * self.box_width) / hosts
        self.at: dict[str, Point] = {}
        self.box: dict[int, tuple[float, float]] = {}  # box -> left edge, width
        self.rows = {0: 0.0, _LEAF: 1.5}
        for place, (box, nodes) in enumerate(sorted(self.boxes.items())):
            self._box(box, nodes, place * self.box_width)
        self.pitch = {0: self.slot, _LEAF: self.box_width / leaves}
        # Area -> left edge, width, whether it also frames the boxes below; empty when there is only one area.
        self.areas: dict[int, tuple[float, float, bool]] = {}
        for level, nodes in tops.items():
            if nodes or level == _LEAF + 1:
                # Rows are further apart when many links cross between them.
                self.rows[level] = max(self.rows.values()) + max(3.2, 0.3 * self.width)
            self._top(level, nodes)
        self.crowd = {level: self._crowd(level) for level in self.members}
        self.left, self.right = -0.75, self.width + 0.25
        self.bottom, self.top = -0.62, max(self.rows.values()) + 0.35

    def _top(self, level: int, members: Sequence[Node]) -> None:
        """A row above the boxes: over the boxes of its area, or over all boxes when there are no areas."""
        areas = sorted({node.group(self.fabric.area) or 0 for node in members})
        for turn, area in enumerate(areas):
            nodes = [node for node in members if (node.group(self.fabric.area) or 0) == area]
            left, width = 0.0, self.width
            if len(areas) > 1:
                inside = [self.box[box] for box, nodes in self.boxes.items() if self._area_of(nodes) == area]
                width = self.width / len(areas)
                left = turn * width
                if inside:
                    left = min(x for x, _ in inside)
                    width = max(x + w for x, w in inside) - left
                self.areas[area] = (left, width, bool(inside))
            span = min(width, max(0.7 * width, 1.1 * len(nodes)))
            for place, node in enumerate(nodes):
                x = left + (width - span) / 2 + (place + 0.5) * span / len(nodes)
                self.at[node.name] = (x, self.rows[level])
            self.pitch[level] = min(self.pitch.get(level, span), span / len(nodes))
        self.pitch.setdefault(level, self.width)

    def _area_of(self, nodes: Sequence[Node]) -> int | None:
        """The area of all nodes of a box; None when they are in several areas, or in none."""
        numbers = {node.group(self.fabric.area) for node in nodes}
        return numbers.pop() if len(numbers) == 1 else None

    def _box(self, box: int, nodes: Sequence[Node], x: float) -> None:
        margin = 0.06 * self.box_width
        self.box[box] = (x + margin / 2, self.box_width - margin)
        hosts = [node for node in nodes if node.level == 0]
        leaves = [node for node in nodes if node.level == _LEAF]
        for members, step in ((hosts, self.slot), (leaves, (self.box_width - margin) / max(1, len(leaves)))):
            for place, node in enumerate(members):
                offset = (place - (len(members) - 1) / 2) * step
                self.at[node.name] = (x + self.box_width / 2 + offset, self.rows[node.level])

    def size(self, level: int) -> Point:
        """Width and height of a node: wider when many links end at it, but it never overlaps its neighbours."""
        width, height = _SWITCH_SIZE if level else _HOST_SIZE
        return min(max(width, 0.09 * self.crowd[level]), 0.82 * self.pitch[level]), height

    def _crowd(self, level: int) -> int:
        """The largest number of links that end at one side of a node."""
        nodes = self.members[level]
        ups = [(sum((node.name, port.name) in self.up for port in node.ports), len(node.ports)) for node in nodes]
        return max((max(up, every - up) for up, every in ups), default=1)

    def font(self, level: int) -> float:
        """The font size in points at which the level's longest name fits its box; 0 when that is too small to read."""
        longest = max(len(node.name) for node in self.members[level])
        fits = self.size(level)[0] * 72 / (0.66 * longest)
        return min(9.0, fits) if fits >= 5.5 else 0.0

    def ends(self, link: Link) -> tuple[Point, Point]:
        """The two ends of a link, at the edges of its nodes; links of one pair of nodes are side by side."""
        return self._end(*link.a), self._end(*link.b)

    def _end(self, name: str, port: str) -> Point:
        node, up = self.fabric.by_name[name], (name, port) in self.up
        x, y = self.at[name]
        width, height = self.size(node.level)
        ports = [p.name for p in node.ports if ((name, p.name) in self.up) == up]
        spread = 0.72 * width / max(1, len(ports))
        x += (ports.index(port) - (len(ports) - 1) / 2) * spread
        return x, y + height / 2 * (1 if up else -1)


def _count(nodes: Sequence[Node], level: int) -> int:
    return sum(node.level == level for node in nodes)


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


def _frames(axes: Axes, layout: _PictureLayout) -> None:
    """A box for each rack, with its number below, and a frame for each area; the levels' names at the left."""
    from matplotlib.patches import FancyBboxPatch

    word, area_word = layout.fabric.box, layout.fabric.area
    top = layout.rows[_LEAF] + 0.32
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
        above, beside = layout.rows[_LEAF + 1], 0.04 if whole else -0.08
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


def _links(axes: Axes, layout: _PictureLayout, loads: Mapping[tuple[str, str], LinkLoad], most: float) -> None:
    """Two halves per link; halves with more load are drawn above the others."""
    thickest = _thickest(layout.fabric)
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
                color=colours(part) if seconds else _QUIET, linewidth=_width(part, thickest),
                zorder=1 + part, gid=f"sent-{ref}",
            )  # fmt: skip


def _thickest(fabric: Fabric) -> float:
    """Line width of the busiest port's half, in points: thinner when many links cross."""
    crossing = sum(1 for link in fabric.links if fabric.by_name[link.a[0]].role is Role.SWITCH)
    return max(1.6, min(7.0, 7.0 * math.pow(16 / max(1, crossing), 0.4)))


def _width(part: float, thickest: float) -> float:
    """Line width in points; a port with little load is thin but visible."""
    thinnest = 0.12 * thickest
    return thinnest + part * (thickest - thinnest)


def _colours() -> Colormap:
    """Light for low load, dark for high load: viridis without its lightest colours, which white paper hides."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["viridis_r"]
    return ListedColormap([whole(0.12 + 0.88 * step / 255) for step in range(256)], name="heddle")


def _nodes(axes: Axes, layout: _PictureLayout) -> None:
    """Boxes with names. When names do not fit, only some nodes are named, beside their boxes."""
    from matplotlib.patches import Rectangle

    for level, members in layout.members.items():
        if not members:
            continue
        width, height = layout.size(level)
        font = layout.font(level)
        step = 1 if font else _thinned(len(members), layout.width)
        for place, node in enumerate(members):
            x, y = layout.at[node.name]
            patch = Rectangle(
                (x - width / 2, y - height / 2), width, height, facecolor=_FILL[level], edgecolor=INK,
                linewidth=0.9 if font else 0.5, zorder=3, gid=f"node-{node.name}",
            )  # fmt: skip
            axes.add_patch(patch)
            if font:
                axes.text(x, y, node.name, fontsize=font, color=INK, ha="center", va="center", zorder=4)
            elif place % step == 0:
                below = y if level else y - height / 2 - 0.04
                axes.text(
                    x, below, node.name, fontsize=6.5, color=INK, ha="center",
                    va="center" if level else "top", zorder=4,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6} if level else None,
                )  # fmt: skip


def _thinned(members: int, width: float) -> int:
    """n, where every n-th node is named: a name needs 0.8 inches."""
    return max(2, -(-members // max(1, int(width / 0.8))))


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
    axes.plot((x + length + 0.9, x + length + 1.3), (y, y), color=_QUIET, linewidth=1.2, gid="legend-idle")
    axes.text(x + length + 1.38, y, "nothing", fontsize=7.5, color=INK, va="center")
    for number, line in enumerate(lines):
        axes.text(x, y - 0.42 - 0.2 * number, line, fontsize=8.5, color=INK, va="center", gid=f"spread-{number}")
