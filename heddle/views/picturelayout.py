"""The one layout of a fabric's drawing: levels in rows, boxes of racks or pods, areas around them, links in two halves.

Another network than that of the ranks is drawn downwards, below the hosts.
Where links go sideways, the boxes are on a ring, with their switches inside: links between boxes cross its middle.

In:  Fabric, and the LinkLoads of a run if there is one.
Out: boxes, words and halves of links in inches; y grows upwards. picture.py draws them by matplotlib, fabricsvg.py as
SVG for the report and for the dashboard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import BACKEND, Link, Node
from heddle.views.loadscale import BESIDE, LOAD_STEPS, MARKS, MEANING, step

if TYPE_CHECKING:
    from heddle.views.linkloads import LinkLoad

Point = tuple[float, float]
WIDEST: Final = 26.0  # inches; a larger fabric gets fewer labels
_BOTTOM: Final = -0.62  # of rows, with the words of boxes
_HOST_SIZE: Final[Point] = (0.62, 0.3)
_SWITCH_SIZE: Final[Point] = (0.86, 0.36)


@dataclass(frozen=True, slots=True)
class Text:
    """Words. at: their middle, or with `start` their left end. points: the font size."""

    at: Point
    words: str
    points: float = 9.0
    anchor: Literal["start", "middle"] = "middle"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle. name: `rack-1`, `node-host1`. corner: the lower left one. text: None where words do not fit.

    shade: the colour of a node, by its level.
    """

    kind: Literal["box", "area", "node"]
    name: str
    corner: Point
    size: Point
    text: Text | None
    shade: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """The half of a link at `port`, which shows what that port sent; or a part of the legend.

    ends: from the port to the middle of the link. step: of the scale of loads. points: the width at each end. A half
    narrows to the width of an idle link, so that only the end at its node is wide: a link is never cut in the middle.
    """

    port: str
    ends: tuple[Point, Point]
    step: str
    points: Point

    @property
    def corners(self) -> tuple[Point, Point, Point, Point]:
        """Of the area: two at the port, then two at the other end."""
        (x1, y1), (x2, y2) = self.ends
        far = math.hypot(x2 - x1, y2 - y1) or 1.0
        (a, b), (one, other) = ((y1 - y2) / far, (x2 - x1) / far), (each / 144 for each in self.points)
        return (x1 - a * one, y1 - b * one), (x1 + a * one, y1 + b * one), (x2 + a * other, y2 + b * other), (
            x2 - a * other, y2 - b * other)  # fmt: skip


class PictureLayout:
    """The position of each node and box, in inches. The width of a box decides which labels fit."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        # Levels that are drawn below the hosts, and ports at the upper side of their node.
        self.under = {n for n, level in enumerate(fabric.levels) if level.network != BACKEND}
        self.up = {link.b if self._is_under(link) else link.a for link in fabric.links}
        self.members: dict[int, list[Node]] = {level: [] for level in range(len(fabric.levels))}
        self.boxes: dict[int, list[Node]] = {}  # 0: nodes without a box, as in some imported labs
        inside = self.boxed = fabric.boxed_levels
        for node in fabric.nodes:
            self.members[node.level].append(node)
            if node.level in inside:
                self.boxes.setdefault(node.group(fabric.box) or 0, []).append(node)
        hosts, *switches = ((level, _most(self.boxes.values(), level)) for level in inside)
        tops = {level: nodes for level, nodes in self.members.items() if level not in inside}
        self.hosts = hosts[0]
        wanted = len(self.boxes) * max(1.25, 0.78 * hosts[1] + 0.3, *(1.1 * most for _, most in switches))
        self.width = min(WIDEST, max(wanted, *(1.1 * len(nodes) for nodes in tops.values()), 6.8))
        self.box_width = self.width / max(1, len(self.boxes))
        self.slot = (self.box_width - 0.12 * self.box_width) / hosts[1]
        self.at: dict[str, Point] = {}
        self.box: dict[int, tuple[float, float]] = {}  # box -> left edge, width
        above = (level for level in inside if level not in self.under)
        self.rows = {level: 1.5 * place for place, level in enumerate(above)}
        self.box_top = max(self.rows.values())
        self.rows |= {level: -1.5 * place for place, level in enumerate(self.under & {*inside}, 1)}
        self.low = min(self.rows.values()) + _BOTTOM
        for place, (box, nodes) in enumerate(sorted(self.boxes.items())):
            self._box(box, nodes, place * self.box_width)
        self.pitch = {self.hosts: self.slot, **{level: self.box_width / most for level, most in switches}}
        # Area -> left edge, width, whether it also frames the boxes below; empty when there is only one area.
        self.areas: dict[int, tuple[float, float, bool]] = {}
        upper: list[float] = []
        for level, nodes in tops.items():
            # Rows are further apart when many links cross between them.
            apart = max(3.2, 0.3 * self.width)
            if level in self.under:
                self.rows[level] = min(self.rows.values()) - 0.6 * apart
            elif nodes or not upper:
                self.rows[level] = max(self.rows.values()) + apart
                upper.append(self.rows[level])
            self._top(level, nodes)
        self.area_row = min(upper, default=self.box_top)  # areas are framed at the lowest row above the boxes
        self.crowd = {level: self._crowd(level) for level in self.members}
        self.left, self.right = -0.75, self.width + 0.25
        self.bottom, self.top = min(self.low, min(self.rows.values()) - 0.35), max(self.rows.values()) + 0.35
        self.ring: dict[int, tuple[float, float, int]] = {}  # box -> what moves it there, and 1, or -1 if upside down
        if fabric.sideways and self.box:
            self._place_ring()
        # Width of lines in points: thinner when many links cross, but never invisible.
        crossing = sum(1 for link in fabric.links if fabric.by_name[link.a[0]].role is Role.SWITCH)
        self.thick = max(1.6, min(7.0, 7.0 * math.pow(16 / max(1, crossing), 0.4)))
        self.thin = max(1.0, 0.12 * self.thick)

    def frames(self) -> Iterator[Box]:
        """Boxes with their number below, then areas."""
        word, area_word = self.fabric.box, self.fabric.area
        low, high = self.low + 0.3, self.box_top + 0.32
        room = self.box_width * 72 / (0.62 * 9 * len(f"{word} {len(self.box)}"))
        for number, (x, width) in self.box.items():
            text = None
            if not number or (number - 1) % (1 if room >= 1 else 4) == 0:
                # Links that leave the box downwards start at its middle.
                below = self._moved(number, (x if self.under else x + width / 2, low - 0.18))
                words = f"{word} {number}" if number else f"in no {word}"
                text = Text(below, words, anchor="start" if self.under else "middle")
            corner = self._moved(number, (x, low))
            corner = corner[0], min(corner[1], self._moved(number, (x, high))[1])
            yield Box("box", f"{word}-{number}", corner, (width, high - low), text)
        for number, (x, width, whole) in self.areas.items():
            beside = 0.04 if whole else -0.08
            low, high = (self.low + 0.22 if whole else self.area_row - 0.42), self.area_row + 0.42
            text = Text((x - beside + 0.1, high - 0.12), f"{area_word} {number}", anchor="start")
            yield Box("area", f"{area_word}-{number}", (x - beside, low), (width + 2 * beside, high - low), text)

    def titles(self) -> list[Text]:
        """The name of each level, at the left."""
        rows = ((level, y) for level, y in self.rows.items() if self.members[level] and not self.ring)
        return [Text((self.left + 0.2, y), self.fabric.levels[level].title, anchor="start") for level, y in rows]

    def nodes(self) -> Iterator[Box]:
        """Every node. Where a level's names do not fit, every n-th one stands for all, below hosts."""
        for level, members in self.members.items():
            if members:
                width, height = self.size(level)
                font = self._font(level)
                every = 1 if font else max(2, -(-len(members) // max(1, int(self.width / 0.8))))
                below = 0.0 if font or level != self.hosts else height / 2 + 0.08
                for place, node in enumerate(members):
                    x, y = self.at[node.name]
                    text = None if place % every else Text((x, y - below), node.name, font or 6.5)
                    corner = x - width / 2, y - height / 2
                    yield Box("node", f"node-{node.name}", corner, (width, height), text, self._shade(level))

    def links(self, loads: Sequence[LinkLoad] = ()) -> list[tuple[Link, LinkLoad | None, tuple[Line, Line]]]:
        """Each link with its two halves; those with more load are last, and so drawn above the others."""
        by_ports = {(load.a, load.b): load for load in loads}
        found = []
        for link in self.fabric.links:
            refs = ":".join(link.a), ":".join(link.b)
            load = by_ports.get(refs)
            shares = load.shares if load else (None, None)
            ends = self.ends(link)
            middle = (ends[0][0] + ends[1][0]) / 2, (ends[0][1] + ends[1][1]) / 2
            a, b = (
                Line(ref, (end, middle), step(share), (self.points(share or 0.0), self.thin))
                for ref, end, share in zip(refs, ends, shares, strict=True)
            )
            found.append((max(share or 0.0 for share in shares), link, load, (a, b)))
        return [(link, load, halves) for _, link, load, halves in sorted(found, key=lambda each: each[0])]

    def points(self, share: float) -> float:
        """The width at its node of a half with this share of its line rate."""
        return self.thin + min(1.0, share) * (self.thick - self.thin)

    def _top(self, level: int, members: Sequence[Node]) -> None:
        """A row above the boxes: over the boxes of its area, or over all boxes when there are no areas."""
        areas = sorted({node.group(self.fabric.area) or 0 for node in members})
        for turn, area in enumerate(areas):
            nodes = [node for node in members if (node.group(self.fabric.area) or 0) == area]
            left, width = 0.0, self.width
            if len(areas) > 1:
                areas_of = {box: {node.group(self.fabric.area) for node in each} for box, each in self.boxes.items()}
                inside = [self.box[box] for box, numbers in areas_of.items() if numbers == {area}]
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

    def _box(self, box: int, nodes: Sequence[Node], x: float) -> None:
        margin = 0.06 * self.box_width
        self.box[box] = (x + margin / 2, self.box_width - margin)
        for level in self.fabric.boxed_levels:
            members = [node for node in nodes if node.level == level]
            step = self.slot if level == self.hosts else (self.box_width - margin) / max(1, len(members))
            for place, node in enumerate(members):
                offset = (place - (len(members) - 1) / 2) * step
                self.at[node.name] = (x + self.box_width / 2 + offset, self.rows[level])

    def _place_ring(self) -> None:
        """Bend each row of switches, so that their links do not lie on each other; then move the boxes to a ring."""
        bend = min(3.0, 0.3 * max(len(each) for each in self.boxes.values()))
        for box, nodes in self.boxes.items():
            middle = self.box[box][0] + self.box[box][1] / 2
            for node in nodes:
                x, y = self.at[node.name]
                if self.fabric.level_of(node).prepends:
                    self.at[node.name] = x, y + bend * (2 * (x - middle) / self.box_width) ** 2
        self.box_top = max(self.at[node.name][1] for nodes in self.boxes.values() for node in nodes)
        height = self.box_top + 0.32 - self.low
        turns = {box: math.pi * (0.5 - 2 * place / len(self.box)) for place, box in enumerate(self.box)}
        # The smallest ring on which neighbours do not touch, and some room for the links between their neighbours.
        radius = 0.0
        while any(
            abs(math.cos(a) - math.cos(b)) * radius < self.box_width
            and abs(math.sin(a) - math.sin(b)) * radius < height
            for place, a in enumerate(turns.values()) for b in [*turns.values()][:place]
        ):  # fmt: skip
            radius += 0.1
        radius = 1.15 * radius + 0.3
        wide = radius + self.box_width / 2
        self.width, self.left, self.right = 2 * wide, -0.25, 2 * wide + 0.25
        for box, turn in turns.items():
            x, width = self.box[box]
            sign = -1 if math.sin(turn) > 0 else 1
            up = radius * math.sin(turn) - sign * (self.box_top + 0.32 + self.low) / 2
            self.ring[box] = wide + radius * math.cos(turn) - x - width / 2, up, sign
        self.bottom, self.top = (edge(map(math.sin, turns.values())) * radius for edge in (min, max))
        self.bottom, self.top = self.bottom - height / 2 - 0.1, self.top + height / 2 + 0.1
        for box, nodes in self.boxes.items():
            self.at |= {node.name: self._moved(box, self.at[node.name]) for node in nodes}
        for level in self.under - {*self.boxed}:
            self.bottom -= 2.0
            for place, node in enumerate(self.members[level]):
                self.at[node.name] = (place + 0.5) * self.width / len(self.members[level]), self.bottom + 0.35

    def _is_under(self, link: Link) -> bool:
        return self.fabric.by_name[link.b[0]].level in self.under

    def _shade(self, level: int) -> int:
        """The colour of a level: 0 to 3 from the hosts upwards, 4 and 5 below them."""
        return min(level, 3) if level not in self.under else 4 + min(1, sorted(self.under).index(level))

    def _moved(self, box: int, point: Point) -> Point:
        """The point of a box's drawing, where the box is."""
        x, y, sign = self.ring.get(box, (0.0, 0.0, 1))
        return point[0] + x, sign * point[1] + y

    def size(self, level: int) -> Point:
        """Width and height of a node: wider when many links end at it, but it never overlaps its neighbours."""
        width, height = _HOST_SIZE if level == self.hosts else _SWITCH_SIZE
        return min(max(width, 0.09 * self.crowd[level]), 0.82 * self.pitch[level]), height

    def _crowd(self, level: int) -> int:
        """The largest number of links that end at one side of a node."""
        nodes = self.members[level]
        ups = [(sum((node.name, port.name) in self.up for port in node.ports), len(node.ports)) for node in nodes]
        return max((max(up, every - up) for up, every in ups), default=1)

    def _font(self, level: int) -> float:
        """The font size in points at which the level's longest name fits its box; 0 when that is too small to read."""
        longest = max(len(node.name) for node in self.members[level])
        fits = self.size(level)[0] * 72 / (0.66 * longest)
        return min(11.0, fits) if fits >= 5.5 else 0.0

    def ends(self, link: Link) -> tuple[Point, Point]:
        """The two ends of a link, at the edges of its nodes; links of one pair of nodes are side by side."""
        a, b = (self.fabric.by_name[name] for name, _ in (link.a, link.b))
        if self.ring and a.level == b.level:
            return self._towards(a, b), self._towards(b, a)
        return self._end(*link.a), self._end(*link.b)

    def _towards(self, node: Node, peer: Node) -> Point:
        """Where the line to another node leaves a node."""
        (x, y), (x2, y2), (width, height) = self.at[node.name], self.at[peer.name], self.size(node.level)
        part = min(width / 2 / (abs(x2 - x) or 1e-9), height / 2 / (abs(y2 - y) or 1e-9), 0.5)
        return x + part * (x2 - x), y + part * (y2 - y)

    def _end(self, name: str, port: str) -> Point:
        node, up = self.fabric.by_name[name], (name, port) in self.up
        x, y = self.at[name]
        width, height = self.size(node.level)
        ports = [p for p in node.ports if ((name, p.name) in self.up) == up]
        names = [p.name for p in ports if not (self.ring and self.fabric.is_sideways(p))]
        spread = 0.72 * width / max(1, len(names))
        x += (names.index(port) - (len(names) - 1) / 2) * spread
        turned = self.ring[node.group(self.fabric.box) or 0][2] if node.level in self.boxed and self.ring else 1
        return x, y + height / 2 * (1 if up else -1) * turned


def _most(boxes: Iterable[Sequence[Node]], level: int) -> int:
    """The largest number of nodes of a level in one box, at least 1."""
    return max((sum(node.level == level for node in nodes) for nodes in boxes), default=1) or 1


KEY: Final[Point] = (5.6, 0.62)  # inches of the legend, from (0, 0), its lower left corner


def legend() -> tuple[list[Line], list[Text]]:
    """The scale of loads with its meaning, for every picture: lines by step, and words."""
    y, part = 0.28, 0.26
    lines = [Line(f"key-u{n}", ((n * part, y), ((n + 1) * part, y)), f"u{n}", (7.0, 7.0)) for n in range(LOAD_STEPS)]
    texts = [Text((0.0, 0.5), MEANING, anchor="start")]
    texts += [
        Text((LOAD_STEPS * part * share, 0.08), words, anchor="middle" if share else "start")
        for share, words in MARKS.items()
    ]
    x = LOAD_STEPS * part + 0.5
    for name, words in BESIDE.items():
        thick = 2.0 if name == "idle" else 7.0
        lines.append(Line(f"key-{name}", ((x, y), (x + 0.4, y)), name, (thick, thick)))
        texts.append(Text((x + 0.48, y), words, anchor="start"))
        y -= 0.2
    return lines, texts
