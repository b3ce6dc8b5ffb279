"""Where the parts of a fabric's picture stand: levels in rows, boxes of racks or pods, areas around them.

In:  Fabric. Out: PictureLayout, in inches; y grows upwards. picture.py draws it by matplotlib, fabricsvg.py as SVG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Link, Node

Point = tuple[float, float]
WIDEST: Final = 26.0  # inches; a larger fabric gets fewer labels
_HOST_SIZE: Final[Point] = (0.62, 0.3)
_SWITCH_SIZE: Final[Point] = (0.86, 0.36)


class PictureLayout:
    """The position of each node and box, in inches. The width of a box decides which labels fit."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.up = {link.a for link in fabric.links}  # ports with links to the level above
        self.members: dict[int, list[Node]] = {level: [] for level in range(len(fabric.levels))}
        self.boxes: dict[int, list[Node]] = {}  # 0: nodes without a box, as in some imported labs
        inside = fabric.boxed_levels
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
        self.rows = {level: 1.5 * place for place, level in enumerate(inside)}
        self.box_top = max(self.rows.values())
        for place, (box, nodes) in enumerate(sorted(self.boxes.items())):
            self._box(box, nodes, place * self.box_width)
        self.pitch = {self.hosts: self.slot, **{level: self.box_width / most for level, most in switches}}
        # Area -> left edge, width, whether it also frames the boxes below; empty when there is only one area.
        self.areas: dict[int, tuple[float, float, bool]] = {}
        upper: list[float] = []
        for level, nodes in tops.items():
            if nodes or not upper:
                # Rows are further apart when many links cross between them.
                self.rows[level] = max(self.rows.values()) + max(3.2, 0.3 * self.width)
                upper.append(self.rows[level])
            self._top(level, nodes)
        self.area_row = min(upper, default=self.box_top)  # areas are framed at the lowest row above the boxes
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

    def size(self, level: int) -> Point:
        """Width and height of a node: wider when many links end at it, but it never overlaps its neighbours."""
        width, height = _HOST_SIZE if level == self.hosts else _SWITCH_SIZE
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


def _most(boxes: Iterable[Sequence[Node]], level: int) -> int:
    """The largest number of nodes of a level in one box, at least 1."""
    return max((sum(node.level == level for node in nodes) for nodes in boxes), default=1) or 1


def thinned(members: int, width: float) -> int:
    """n, where every n-th node is named: a name needs 0.8 inches."""
    return max(2, -(-members // max(1, int(width / 0.8))))


def thickest_of(fabric: Fabric) -> float:
    """Line width of the busiest port's half, in points: thinner when many links cross."""
    crossing = sum(1 for link in fabric.links if fabric.by_name[link.a[0]].role is Role.SWITCH)
    return max(1.6, min(7.0, 7.0 * math.pow(16 / max(1, crossing), 0.4)))


def width_of(part: float, thickest: float) -> float:
    """Line width in points; a port with little load is thin but visible."""
    thinnest = 0.12 * thickest
    return thinnest + part * (thickest - thinnest)
