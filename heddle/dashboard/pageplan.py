"""Where every node and link is drawn on the live page, as plain numbers; the page draws them as SVG.

In:  Fabric. Out: PagePlan, in units of which a switch is 10 wide.
Levels are rows, hosts at the bottom. Boxes (racks, pods) are side by side, their hosts below their leaves; switches
of higher levels are spread over the width. A fabric wider than the page is scrolled, and can be made to fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.fabric.model import Role
from heddle.traffic.collectives import patterns

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric, Node, Port
    from heddle.switch.queues.classes import Policies

_NODE: Final = 10.0  # width of a switch
_HEIGHT: Final = 5.0
_HOST_WIDTH: Final = 9.0
_LETTER: Final = 1.55  # width of a letter of a name
_GAP: Final = 2.0
_BOX_GAP: Final = 4.0
_PITCH: Final = 22.0  # between hosts and leaves
_SMALLEST: Final = 90.0
_PER_PORT: Final = 1.3  # width of a switch for each port at its most crowded side
_STEEP: Final = 0.2  # height between two higher rows, by the fabric's width: many links cross there
_LARGE: Final = 400.0  # a wider fabric has taller rows and higher switches, so that both are seen when it fits a screen


@dataclass(frozen=True, slots=True)
class Spot:
    """A node's middle, width and height."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The drawing. spots: by node. ends: by port id - 1, where its link leaves the node. boxes: left, width, label."""

    width: float
    height: float
    spots: Mapping[str, Spot]
    ends: tuple[tuple[float, float], ...]
    boxes: tuple[tuple[float, float, str], ...]
    rows: tuple[tuple[float, str], ...]  # y of each level, and its title


def plan_page(fabric: Fabric, ports: Sequence[Port]) -> PagePlan:
    """The drawing of a fabric. ports: in the order of their ids."""
    up = {link.a for link in fabric.links}
    inside = fabric.boxed_levels
    boxes: dict[int, list[Node]] = {}
    higher: dict[int, list[Node]] = {}
    for node in fabric.nodes:
        if node.level in inside:
            boxes.setdefault(node.group(fabric.box) or 0, []).append(node)
        else:
            higher.setdefault(node.level, []).append(node)
    x = _BOX_GAP
    middles: dict[str, float] = {}
    widths = {node.name: _width(node, up) for node in fabric.nodes}
    frames: list[tuple[float, float, str]] = []
    for number, nodes in sorted(boxes.items()):
        members = [[n for n in nodes if n.level == level] for level in inside]
        span = max(_row_width(row, widths) for row in members)
        for row in members:
            _place(row, widths, x + span / 2, _GAP, middles)
        frames.append((x - _GAP / 2, span + _GAP, f"{fabric.box} {number}" if number and fabric.box else ""))
        x += span + _BOX_GAP
    width = max(x, _SMALLEST, *(_row_width(row, widths) + 2 * _BOX_GAP for row in higher.values()))
    if x < width:
        shift = (width - x) / 2
        middles = {name: at + shift for name, at in middles.items()}
        frames = [(left + shift, span, label) for left, span, label in frames]
    for nodes in higher.values():
        free = width * 0.8 - sum(widths[node.name] for node in nodes)
        _place(nodes, widths, width / 2, max(_GAP, free / max(1, len(nodes))), middles)
    levels = sorted({node.level for node in fabric.nodes})
    grown = max(1.0, width / _LARGE)
    steps = [_PITCH * grown**0.5 if level in inside else max(26.0, _STEEP * width) for level in levels]
    heights = {level: sum(steps[1 : at + 1]) for at, level in enumerate(levels)}
    tall = _HEIGHT * grown
    bottom = max(heights.values()) + tall + _HEIGHT
    spots = {
        node.name: Spot(
            middles[node.name], bottom - heights[node.level] - _HEIGHT, widths[node.name],
            _HEIGHT if node.level in inside else tall,
        )
        for node in fabric.nodes
    }  # fmt: skip
    titles = {level: each.title for level, each in enumerate(fabric.levels)}
    rows = tuple((bottom - heights[level] - _HEIGHT, titles.get(level, "")) for level in levels)
    ends = tuple(_end(spots[port.node], fabric.by_name[port.node], port, up) for port in ports)
    return PagePlan(width, bottom + 6, spots, ends, tuple(frames), rows)


def _width(node: Node, up: set[tuple[str, str]]) -> float:
    ups = sum((node.name, port.name) in up for port in node.ports)
    least = _HOST_WIDTH if node.role is Role.HOST else _NODE
    return max(least, _LETTER * len(node.name) + 1, _PER_PORT * max(ups, len(node.ports) - ups))


def _row_width(nodes: Sequence[Node], widths: Mapping[str, float]) -> float:
    return sum(widths[node.name] for node in nodes) + _GAP * max(0, len(nodes) - 1)


def _place(
    nodes: Sequence[Node], widths: Mapping[str, float], middle: float, gap: float, middles: dict[str, float]
) -> None:
    """Put nodes side by side round a middle."""
    left = middle - (sum(widths[node.name] for node in nodes) + gap * max(0, len(nodes) - 1)) / 2
    for node in nodes:
        middles[node.name] = left + widths[node.name] / 2
        left += widths[node.name] + gap


def _end(box: Spot, node: Node, port: Port, up: set[tuple[str, str]]) -> tuple[float, float]:
    """Where a port's link leaves its node: the ports of one side are placed side by side."""
    upwards = (node.name, port.name) in up
    side = [each.name for each in node.ports if ((node.name, each.name) in up) == upwards]
    step = 0.86 * box.width / len(side)
    x = box.x + (side.index(port.name) - (len(side) - 1) / 2) * step
    return x, box.y + (-1 if upwards else 1) * box.height / 2


def plan_json(fabric: Fabric, ports: Sequence[Port], policies: Policies) -> dict[str, Any]:
    """What the page needs once: the drawing, the ports by their ids, and the thresholds that depths are compared with.

    scale: bytes at which a port's queue is drawn full: the highest of Kmax and Xoff of its classes, else its buffer.
    """
    plan = plan_page(fabric, ports)
    ids = {port.ref: number for number, port in enumerate(ports, 1)}
    return {
        "lab": fabric.name,
        "k": fabric.policy.k,
        "width": round(plan.width, 2),
        "height": round(plan.height, 2),
        "rows": [[round(y, 2), title] for y, title in plan.rows],
        "boxes": [[round(left, 2), round(span, 2), label] for left, span, label in plan.boxes],
        "nodes": [
            {"name": n.name, "role": str(n.role), "level": n.level,
             **{key: round(getattr(plan.spots[n.name], key), 2) for key in Spot.__slots__}}
            for n in fabric.nodes
        ],
        "ports": [
            {"ref": port.ref, "peer": ids[port.peer_ref], "rate": port.rate_bps, "x": round(x, 2), "y": round(y, 2),
             "scale": _scale(policies, port)}
            for port, (x, y) in zip(ports, plan.ends, strict=True)
        ],
        "links": [[ids[":".join(link.a)], ids[":".join(link.b)]] for link in fabric.links],
        "collectives": list(dict.fromkeys(collective for collective, _ in patterns())),
    }  # fmt: skip


def _scale(policies: Policies, port: Port) -> int:
    classes = [each for each in policies[port.node, port.name] if each.kind not in ("unused", "control")]
    marks = [each.kmax for each in classes if each.ecn] + [each.xoff for each in classes if each.pfc]
    return max(marks, default=0) or max((each.buffer for each in classes), default=1)
