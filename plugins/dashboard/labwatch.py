"""One reader for each lab, for any number of viewers: it reads twice a second while there is a viewer.

In:  a lab's name; viewers come and go.
Out: messages for all viewers, as text made once: `state` (the lab, or why it cannot be read), `update` (figures that
have changed) and `news`. The reader is a thread, because threads can enter namespaces.
A lab that goes down, comes up again, is repaired or changed is opened again: its record and its pins tell. PagePlan
says where nodes are drawn, in units of which a switch is 10 wide: levels are rows, boxes are side by side.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from heddle.base import state
from heddle.base.problems import HeddleError, MachineError, trouble
from heddle.base.progname import as_started
from heddle.fabric.model import Role
from heddle.lab.opening import open_lab
from heddle.lab.rehash import engineered, in_force
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.portids import OWNER
from heddle.traffic.collectives import patterns
from heddle_plugins.dashboard.news import NewsDesk, NewsItem, RunList
from heddle_plugins.dashboard.reading import LiveHistory, LiveReading, LiveSource, LiveTotals, PortFigures

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.fabric.wiring import Node, Port
    from heddle.lab.lab import Lab
    from heddle.switch.queues.classes import Policies

EVERY_S: Final = 0.5  # between two readings
LINGER_S: Final = 10.0  # reading goes on for so long after the last viewer: pages are loaded again
NOT_READ: Final = "not read yet"
_ENTRIES_S: Final = 2.0  # between two readings of the counts of entries
_NEWS: Final = 100  # lines that a new viewer gets
Send = Callable[[str, str], None]  # kind of message, JSON text


@dataclass(frozen=True)
class LiveView:
    """The content of the page at one moment. plan: changes with the drawing. trouble: why the lab is not read."""

    plan: int = 0
    trouble: str = NOT_READ
    up: bool = False
    rows: Sequence[Sequence[int]] = ()
    totals: Mapping[str, float] | None = None
    missing: tuple[str, ...] = ()  # BGP sessions, in words
    runs: Mapping[str, Any] | None = None
    te: Mapping[str, Any] | None = None  # entries of traffic engineering, or none are in force
    when: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class LabWatch:
    """The reader of one lab. `send` is called by the reader's thread."""

    def __init__(self, name: str, send: Send) -> None:
        self.name = name
        self.readings = 0  # of the lab's maps, for viewers and for scrapes
        self.viewers = 0  # people who look now
        self.opened: OpenedLab | None = None  # for questions about its ports; None while it is not read
        self._send = send
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._left = 0.0  # when the last viewer left
        self._view = LiveView()
        self._news: deque[NewsItem] = deque(maxlen=_NEWS)
        self._closing = False
        self._gone = False  # viewers know that the lab is not up any more

    def join(self) -> None:
        """A viewer comes; the reader starts if it does not run."""
        with self._lock:
            self.viewers += 1
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name=f"watch-{self.name}", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """A viewer goes."""
        with self._lock:
            self.viewers -= 1
            self._left = time.monotonic()

    def close(self) -> None:
        """End the reader, and return when it has ended."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def hello(self) -> str:
        """The messages for a new viewer: all figures, and the latest news."""
        news = [item.to_json() for item in tuple(self._news)]
        return json.dumps({**self._view.to_json(), "news": news})

    def tell(self, item: NewsItem) -> None:
        """Add a line of news from elsewhere, as the outcome of a button."""
        self._news.append(item)
        self._send("news", json.dumps([item.to_json()]))

    def look(self) -> None:
        """Read soon: something has just been changed."""
        self._wake.set()

    def _run(self) -> None:
        try:
            while self._wanted():
                began = time.monotonic()
                self._step()
                self._wake.wait(max(0.05, EVERY_S - (time.monotonic() - began)))
                self._wake.clear()
        except Exception as error:
            self._trouble(f"the reader has ended by a defect of Heddle: {type(error).__name__}: {error}")
            raise
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._end()

    def _wanted(self) -> bool:
        """Whether the reader goes on. It ends with the lock held, so that no viewer comes in between."""
        with self._lock:
            if self._closing or (not self.viewers and time.monotonic() - self._left > LINGER_S):
                self._end()
                return False
            return True

    def _end(self) -> None:
        """Leave everything as it was before the first viewer, for the next reader. The caller holds the lock."""
        self._shut()
        self._thread = None
        self._view = replace(self._view, up=False, rows=(), trouble=self._view.trouble or NOT_READ)

    def _step(self) -> None:
        try:
            self._reopen()
            if self.opened is not None:
                self._read(self.opened)
        except HeddleError as error:
            self._trouble(str(error))
        except OSError as error:  # a namespace or a map that goes away while it is read
            self._trouble(str(trouble(error)))

    def _reopen(self) -> None:
        """Open the lab when it was not open, or is another one now. HeddleError when it is not up."""
        mark = mark_of(self.name)
        if self.opened is not None and self.opened.mark == mark:
            return
        self._shut()
        lab = open_lab(self.name)
        if lost := lab.runtime.missing_nodes(self.name, lab.topology):
            raise MachineError(*lost)
        self.opened = OpenedLab(lab, mark, self._view.plan + 1)

    def _shut(self) -> None:
        if self.opened is not None:
            self.opened.source.close()
            self.opened = None

    def _trouble(self, text: str) -> None:
        with suppress(OSError):
            self._shut()
        text = as_started(text)
        if text != self._view.trouble or self._view.up:
            if self._view.up:
                self._gone = True
                self.tell(NewsItem(time.time(), "lab", f"{self.name} is not up"))
            self._view = LiveView(self._view.plan, text)
            self._send("state", json.dumps(self._view.to_json()))

    def _read(self, opened: OpenedLab) -> None:
        before, now = opened.last, opened.source.read()
        opened.last = now
        self.readings += 1
        figures = PortFigures.of(opened.source.ports, before, now)
        opened.history.add(now, figures)
        rows = figures.rows()
        totals = LiveTotals.of(opened.lab, before, now, figures)
        missing = self._view.missing
        if before is None or now.slow.sessions != before.slow.sessions:
            missing = tuple(each.text() for each in opened.lab.blueprint.missing_sessions(now.slow))
        runs, te = opened.runs.read(), opened.entries.read()
        if self._gone:  # not when it was opened: that works without some of its nodes, too
            self._gone = False
            self.tell(NewsItem(time.time(), "lab", f"{self.name} is up again", good=True))
        view = LiveView(opened.plan, "", True, rows, totals.to_json(), missing, runs, te, now.when)
        old, self._view = self._view, view
        if not old.up or old.plan != view.plan:
            self._send("state", json.dumps(view.to_json()))
        else:
            self._send("update", json.dumps(_difference(old, view), separators=(",", ":")))
        if news := [*opened.desk.compare(before, now, figures), *opened.runs.news()]:
            self._news.extend(news)
            self._send("news", json.dumps([item.to_json() for item in news]))


class OpenedLab:
    """A lab that is open: what is known of it between two readings."""

    def __init__(self, lab: Lab, mark: object, plan: int) -> None:
        self.lab, self.mark, self.plan = lab, mark, plan
        self.source = LiveSource(lab)
        self.history = LiveHistory()
        self.desk = NewsDesk(self.source.ports)
        self.runs = RunList(lab)
        self.entries = EntriesWatch(lab)
        self.last: LiveReading | None = None

    def plan_json(self) -> dict[str, Any]:
        """The drawing, with its number."""
        return {"plan": self.plan, **plan_json(self.lab.fabric, self.source.ports, self.source.policies)}


class EntriesWatch:
    """The entries of traffic engineering in force. The lab is opened again when they change; counts are read rarely."""

    def __init__(self, lab: Lab) -> None:
        self._lab, self._found = lab, engineered(lab.name)
        self._due, self._data = 0.0, None if self._found is None else {"by": self._found.by, "at": self._found.at}

    def read(self) -> Mapping[str, Any] | None:
        """Who set them and when, and for each switch the number of entries and packets; None without any."""
        if self._found is not None and self._data is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _ENTRIES_S
            rows = [[row.switch, len(row.table), *row.packets.values()] for row in in_force(self._lab, self._found)]
            self._data = {**self._data, "changes": self._found.changes, "switches": rows}
        return self._data


def mark_of(lab: str) -> tuple[tuple[int, int], ...]:
    """What changes when a lab is taken down, brought up again, or changed: its record, and the pin of its queues.

    Empty parts where they do not exist.
    """
    found = []
    for path in (state.lab_dir(lab) / "lab.json", pin_dir(lab, OWNER) / "cells"):
        try:
            status = path.stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)


def _difference(old: LiveView, new: LiveView) -> dict[str, Any]:
    """What has changed: rows by port id, and parts of the view that are not the same."""
    rows = {number: row for number, row in enumerate(new.rows) if row != old.rows[number]}
    same = replace(new, rows=())
    parts = {
        name: getattr(same, name)
        for name in ("totals", "missing", "runs", "te")
        if getattr(same, name) != getattr(old, name)
    }
    return {"when": round(new.when, 3), "rows": rows, **parts}


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
