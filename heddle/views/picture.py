"""Heddle's own picture of a fabric: tiers in rows, racks as boxes, and how much of a run went over each link.

In:  Fabric, and (where there was a run) LinkLoads.
Out: SVG or PNG; the same input gives the same bytes.
Each link is two halves, as in a weather map of a network: the half at a node is what that node sent. Width and colour
say how much, relative to the busiest port. The colours differ in lightness too, so they also do for the colour-blind.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.fabric.model import Fabric, Link, Node, Tier
from heddle.views.style import DPI, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Point = tuple[float, float]
_WIDEST: Final = 26.0  # inches; what would be wider gets fewer labels instead
_TOPS: Final = (Tier.CTSW, Tier.ATSW)  # above the racks
_FILL: Final[Mapping[Tier, str]] = {
    Tier.HOST: "#ffffff", Tier.RTSW: "#dfe5ec", Tier.CTSW: "#c5cfdb", Tier.ATSW: "#abb9c9",
}  # fmt: skip
_NAMES: Final[Mapping[Tier, str]] = {Tier.HOST: "hosts", Tier.RTSW: "RTSW", Tier.CTSW: "CTSW", Tier.ATSW: "ATSW"}
_QUIET: Final = "#b8c0c9"  # links that carried nothing, or of which nothing is known
_SIZES: Final[Mapping[Tier, Point]] = {Tier.HOST: (0.62, 0.3), **dict.fromkeys(tuple(Tier)[1:], (0.86, 0.36))}


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What a run sent over one link, by which end sent it.

    a, b: the ports, `a` on the lower tier. share: the link's part of all bytes on links between the same tiers, 0 to 1.
    """

    a: str
    b: str
    a_packets: int
    a_bytes: int
    b_packets: int
    b_bytes: int
    share: float

    def to_json(self) -> dict[str, Any]:
        """One row of `links`; `packets` and `bytes` are of both directions."""
        return {
            "a": self.a, "b": self.b, "packets": self.a_packets + self.b_packets, "bytes": self.a_bytes + self.b_bytes,
            "share": round(self.share, 6), "a_packets": self.a_packets, "a_bytes": self.a_bytes,
            "b_packets": self.b_packets, "b_bytes": self.b_bytes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """How evenly one direction between two tiers was used: bytes of its busiest port, mean over all its ports."""

    what: str
    ports: int
    idle: int
    most: int
    most_at: str
    mean: float

    def text(self) -> str:
        """`RTSW to CTSW: max 451 kB (rtsw1:eth1), mean 300 kB, max/mean 1.50, 2 of 8 ports idle`."""
        if not self.most:
            return f"{self.what}: nothing"
        ports = f"{self.ports} port{'' if self.ports == 1 else 's'}"
        idle = f"{self.idle} of {ports} idle" if self.idle else ports
        numbers = f"max {amount(self.most)} ({self.most_at}), mean {amount(self.mean)}"
        return f"{self.what}: {numbers}, max/mean {self.most / self.mean:.2f}, {idle}"


def amount(count: float) -> str:
    """Bytes for a picture: `0`, `451 kB`, `1.2 MB` (powers of ten)."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B" if count else "0"


def spreads(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[Spread]:
    """Every direction between two tiers, from the hosts up and down again."""
    sent: dict[tuple[Tier, Tier], list[tuple[int, str]]] = {}
    for load in loads:
        low, high = (fabric.by_name[ref.partition(":")[0]].tier for ref in (load.a, load.b))
        sent.setdefault((low, high), []).append((load.a_bytes, load.a))
        sent.setdefault((high, low), []).append((load.b_bytes, load.b))
    up = list(pairwise(Tier))
    down = [(high, low) for low, high in reversed(up)]
    found = []
    for one, other in dict.fromkeys((*up, *down, *sent)):
        ports = sent.get((one, other), [])
        if ports:
            most, at = max(ports, key=lambda port: port[0])
            idle = sum(1 for count, _ in ports if not count)
            mean = sum(count for count, _ in ports) / len(ports)
            found.append(Spread(f"{_NAMES[one]} to {_NAMES[other]}", len(ports), idle, most, at, mean))
    return found


def draw(kind: Literal["svg", "png"], fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "") -> bytes:
    """The picture as a file's bytes. loads: empty where nothing ran; caption: which run they are of."""
    import matplotlib as mpl

    file = io.BytesIO()
    about = {"Date": None, "Creator": "Heddle"} if kind == "svg" else {"Software": "Heddle"}
    with mpl.rc_context():
        mpl.rcdefaults()  # nobody's matplotlibrc
        mpl.rcParams["svg.hashsalt"] = "heddle"  # for ids within the file, random ones otherwise
        mpl.rcParams["svg.fonttype"] = "none"  # text stays text: to be searched, and read aloud
        figure = _figure(fabric, loads, caption)
        figure.savefig(file, format=kind, metadata={**about, "Title": fabric.name})
    return file.getvalue()


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
    _racks(axes, layout)
    most = max((count for load in loads for count in (load.a_bytes, load.b_bytes)), default=0)
    _links(axes, layout, {(load.a, load.b): load for load in loads}, most)
    _nodes(axes, layout)
    if loads:
        _legend(axes, lines, most, (left + 0.2, layout.bottom - 0.25))
    return figure


class _PictureLayout:
    """Where everything stands, in inches; how wide a rack is decides which labels there is room for."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.up = {link.a for link in fabric.links}  # ports whose links leave upwards
        self.racks: dict[int, list[Node]] = {}  # 0: what is in no rack, as in an imported lab
        for node in fabric.nodes:
            if node.tier not in _TOPS:
                self.racks.setdefault(node.rack or 0, []).append(node)
        hosts = max((_count(nodes, Tier.HOST) for nodes in self.racks.values()), default=1) or 1
        leaves = max((_count(nodes, Tier.RTSW) for nodes in self.racks.values()), default=1) or 1
        tops = {tier: [node for node in fabric.nodes if node.tier is tier] for tier in _TOPS}
        wanted = len(self.racks) * max(1.25, 0.78 * hosts + 0.3, 1.1 * leaves)
        self.width = min(_WIDEST, max(wanted, *(1.1 * len(nodes) for nodes in tops.values()), 6.8))
        self.rack = self.width / max(1, len(self.racks))
        self.slot = (self.rack - 0.12 * self.rack) / hosts
        self.at: dict[str, Point] = {}
        self.box: dict[int, tuple[float, float]] = {}  # rack -> left edge, width
        self.rows = {Tier.HOST: 0.0, Tier.RTSW: 1.5}
        for place, (rack, nodes) in enumerate(sorted(self.racks.items())):
            self._rack(rack, nodes, place * self.rack)
        self.pitch = {Tier.HOST: self.slot, Tier.RTSW: self.rack / leaves}
        self.zones: dict[int, tuple[float, float]] = {}  # zone -> left edge, width; empty where there is but one
        for tier in _TOPS:
            if tops[tier] or tier is Tier.CTSW:
                # Rows stand further apart where many links cross between them.
                self.rows[tier] = max(self.rows.values()) + max(3.2, 0.3 * self.width)
            self._top(tier, tops[tier])
        self.crowd = {tier: self._crowd(tier) for tier in Tier}
        self.left, self.right = -0.75, self.width + 0.25
        self.bottom, self.top = -0.62, max(self.rows.values()) + 0.35

    def _top(self, tier: Tier, members: Sequence[Node]) -> None:
        """A row above the racks: over its zone's racks, or over all of them."""
        zones = {node.zone for node in members}
        for zone in sorted(zones, key=lambda each: each or 0):
            nodes = [node for node in members if node.zone == zone]
            left, width = 0.0, self.width
            if len(zones) > 1:
                boxes = [self.box[rack] for rack, inside in self.racks.items() if inside[0].zone == zone]
                left = min(x for x, _ in boxes)
                width = max(x + w for x, w in boxes) - left
                self.zones[zone or 0] = (left, width)
            span = min(width, max(0.7 * width, 1.1 * len(nodes)))
            for place, node in enumerate(nodes):
                x = left + (width - span) / 2 + (place + 0.5) * span / len(nodes)
                self.at[node.name] = (x, self.rows[tier])
            self.pitch[tier] = min(self.pitch.get(tier, span), span / len(nodes))
        self.pitch.setdefault(tier, self.width)

    def _rack(self, rack: int, nodes: Sequence[Node], x: float) -> None:
        margin = 0.06 * self.rack
        self.box[rack] = (x + margin / 2, self.rack - margin)
        hosts = [node for node in nodes if node.tier is Tier.HOST]
        leaves = [node for node in nodes if node.tier is Tier.RTSW]
        for members, step in ((hosts, self.slot), (leaves, self.rack / max(1, len(leaves)))):
            for place, node in enumerate(members):
                offset = (place - (len(members) - 1) / 2) * step
                self.at[node.name] = (x + self.rack / 2 + offset, self.rows[node.tier])

    def size(self, tier: Tier) -> Point:
        """Width and height of a node: its usual one, more where many links end at it, or what its neighbours leave."""
        width, height = _SIZES[tier]
        return min(max(width, 0.09 * self.crowd[tier]), 0.82 * self.pitch[tier]), height

    def _crowd(self, tier: Tier) -> int:
        """The most links that end at one side of a node."""
        nodes = [node for node in self.fabric.nodes if node.tier is tier]
        ups = [(sum((node.name, port.name) in self.up for port in node.ports), len(node.ports)) for node in nodes]
        return max((max(up, every - up) for up, every in ups), default=1)

    def font(self, tier: Tier) -> float:
        """Points in which the tier's longest name fits its box; 0 where that would be too small to read."""
        longest = max(len(node.name) for node in self.fabric.nodes if node.tier is tier)
        fits = self.size(tier)[0] * 72 / (0.66 * longest)
        return min(9.0, fits) if fits >= 5.5 else 0.0

    def ends(self, link: Link) -> tuple[Point, Point]:
        """Where a link leaves its nodes; links of one pair of nodes lie side by side."""
        return self._end(*link.a), self._end(*link.b)

    def _end(self, name: str, port: str) -> Point:
        node, up = self.fabric.by_name[name], (name, port) in self.up
        x, y = self.at[name]
        width, height = self.size(node.tier)
        ports = [p.name for p in node.ports if ((name, p.name) in self.up) == up]
        spread = 0.72 * width / max(1, len(ports))
        x += (ports.index(port) - (len(ports) - 1) / 2) * spread
        return x, y + height / 2 * (1 if up else -1)


def _count(nodes: Sequence[Node], tier: Tier) -> int:
    return sum(node.tier is tier for node in nodes)


def _heading(axes: Axes, fabric: Fabric, caption: str, at: Point) -> None:
    counts = (
        (len(fabric.switches), "switch", "es"),
        (len(fabric.hosts), "host", "s"),
        (len(fabric.links), "link", "s"),
    )
    size = ", ".join(f"{count} {word}{'' if count == 1 else more}" for count, word, more in counts)
    axes.text(*at, f"{fabric.name}: {size}", fontsize=13, weight="bold", color=INK, gid="title")
    text = caption or "no run yet: links carry no numbers"
    axes.text(at[0], at[1] - 0.24, text, fontsize=9, color=INK, gid="caption")


def _racks(axes: Axes, layout: _PictureLayout) -> None:
    """A box round each rack, with its number below; the tiers' names at the left."""
    from matplotlib.patches import FancyBboxPatch

    top = layout.rows[Tier.RTSW] + 0.32
    named = layout.rack * 72 / (0.62 * 7.5 * len(f"rack {len(layout.box)}"))  # labels that a rack's width has room for
    step = 1 if named >= 1 else 4
    for rack, (x, width) in layout.box.items():
        box = FancyBboxPatch(
            (x, layout.bottom + 0.3), width, top - layout.bottom - 0.3, boxstyle="round,pad=0,rounding_size=0.06",
            facecolor="#f6f7f9", edgecolor="#d5dae0", linewidth=0.8, zorder=0, gid=f"rack-{rack}",
        )  # fmt: skip
        axes.add_patch(box)
        if not rack or (rack - 1) % step == 0:
            text = f"rack {rack}" if rack else "in no rack"
            axes.text(x + width / 2, layout.bottom + 0.1, text, fontsize=7.5, color=INK, ha="center", va="center")
    for zone, (x, width) in layout.zones.items():
        low, high = layout.bottom + 0.22, layout.rows[Tier.CTSW] + 0.42
        box = FancyBboxPatch(
            (x - 0.04, low), width + 0.08, high - low, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor="none", edgecolor="#8a97a6", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0, gid=f"zone-{zone}",
        )  # fmt: skip
        axes.add_patch(box)
        axes.text(x + 0.06, high - 0.04, f"zone {zone}", fontsize=8, color=INK, ha="left", va="top", style="italic")
    for tier, y in layout.rows.items():
        if not _count(layout.fabric.nodes, tier):
            continue
        axes.text(layout.left + 0.2, y, _NAMES[tier], fontsize=8, color=INK, ha="left", va="center", style="italic")


def _links(axes: Axes, layout: _PictureLayout, loads: Mapping[tuple[str, str], LinkLoad], most: int) -> None:
    """Two halves a link, heavy ones above light ones."""
    thickest = _thickest(layout.fabric)
    colours = _colours()
    for link in layout.fabric.links:
        refs = (":".join(link.a), ":".join(link.b))
        load = loads.get(refs)
        a, b = layout.ends(link)
        middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
        halves = ((refs[0], a, load.a_bytes if load else 0), (refs[1], b, load.b_bytes if load else 0))
        for ref, end, count in halves:
            part = count / most if most else 0.0
            axes.plot(
                (end[0], middle[0]), (end[1], middle[1]), solid_capstyle="butt",
                color=colours(part) if count else _QUIET, linewidth=_width(part, thickest),
                zorder=1 + part, gid=f"sent-{ref}",
            )  # fmt: skip


def _thickest(fabric: Fabric) -> float:
    """Points of the busiest port's half: less where many links cross."""
    crossing = sum(1 for link in fabric.links if fabric.by_name[link.a[0]].tier is not Tier.HOST)
    return max(1.6, min(7.0, 7.0 * math.pow(16 / max(1, crossing), 0.4)))


def _width(part: float, thickest: float) -> float:
    """Points; what carried little is thin, and still there."""
    thinnest = 0.12 * thickest
    return thinnest + part * (thickest - thinnest)


def _colours() -> Colormap:
    """Light for little, dark for much: viridis without its palest end, which white paper swallows."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    whole = mpl.colormaps["viridis_r"]
    return ListedColormap([whole(0.12 + 0.88 * step / 255) for step in range(256)], name="heddle")


def _nodes(axes: Axes, layout: _PictureLayout) -> None:
    """Boxes with names; where names do not fit, the first and every so many more, beside their box."""
    from matplotlib.patches import Rectangle

    for tier in Tier:
        members = [node for node in layout.fabric.nodes if node.tier is tier]
        if not members:
            continue
        width, height = layout.size(tier)
        font = layout.font(tier)
        step = 1 if font else _thinned(len(members), layout.width)
        for place, node in enumerate(members):
            x, y = layout.at[node.name]
            patch = Rectangle(
                (x - width / 2, y - height / 2), width, height, facecolor=_FILL[tier], edgecolor=INK,
                linewidth=0.9 if font else 0.5, zorder=3, gid=f"node-{node.name}",
            )  # fmt: skip
            axes.add_patch(patch)
            if font:
                axes.text(x, y, node.name, fontsize=font, color=INK, ha="center", va="center", zorder=4)
            elif place % step == 0:
                below = y - height / 2 - 0.04 if tier is Tier.HOST else y
                axes.text(
                    x, below, node.name, fontsize=6.5, color=INK, ha="center",
                    va="top" if tier is Tier.HOST else "center", zorder=4,
                    bbox=None if tier is Tier.HOST else {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                )  # fmt: skip


def _thinned(members: int, width: float) -> int:
    """Every how manieth node is named when there is room for a name every 0.8 inches."""
    return max(2, -(-members // max(1, int(width / 0.8))))


def _legend(axes: Axes, lines: Sequence[str], most: int, at: Point) -> None:
    """A bar whose width and colour are those of the links, with numbers; then how even each direction was."""
    from matplotlib.patches import Polygon

    x, y = at
    length, thick = 3.0, 0.14
    axes.text(x, y, "sent by the node at that end of the link (RoCE data)", fontsize=8, color=INK, va="center")
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
        text = f"{amount(part * most)}" + (" (max)" if part == 1.0 else "")
        axes.text(x + part * length, y - 0.13, text, fontsize=7.5, color=INK, ha="center" if part else "left", va="top")
    axes.plot((x + length + 0.9, x + length + 1.3), (y, y), color=_QUIET, linewidth=1.2, gid="legend-idle")
    axes.text(x + length + 1.38, y, "nothing", fontsize=7.5, color=INK, va="center")
    for number, line in enumerate(lines):
        axes.text(x, y - 0.42 - 0.2 * number, line, fontsize=8.5, color=INK, va="center", gid=f"spread-{number}")
