"""One reader for each lab, for any number of viewers: it reads twice a second while there is a viewer.

In:  a lab's name; viewers come and go.
Out: messages for all viewers, as text made once: `state` (the lab, or why it cannot be read), `update` (figures that
have changed) and `news`. The reader is a thread, because threads can enter namespaces.
A lab that goes down, comes up again, is repaired or changed is opened again: its record and its pins tell.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from heddle.base import state
from heddle.base.problems import HeddleError, MachineError, trouble
from heddle.base.progname import as_started
from heddle.base.tables import many
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.rehash import engineered, in_force
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.classes import OWNER, Policies
from heddle.traffic.collectives import patterns
from heddle.views.fabricsvg import POINT, fabric_svg, legend_svg
from heddle.views.loadscale import page_steps
from heddle.views.picturelayout import PictureLayout
from heddle_plugins.dashboard.news import NewsDesk, NewsItem, RunList
from heddle_plugins.dashboard.reading import LiveHistory, LiveReading, LiveSource, LiveTotals, PortFigures

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
    te: Mapping[str, Any] | None = None  # installed entries of traffic engineering, if any
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
    """Installed entries of traffic engineering. The lab is opened again when they change; counts are read rarely."""

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


def plan_json(fabric: Fabric, ports: Sequence[Port], policies: Policies) -> dict[str, Any]:
    """What the page needs once: the drawing, the ports by their ids, and the thresholds that depths are compared with.

    svg: the drawing of reports, without loads. legend: of its colours. loads: the least use of each colour, in
    thousandths. widths: of lines, for no load and for 100 %. scale: bytes at which a port's queue is drawn full: the
    highest of Kmax and Xoff of its classes, else its buffer.
    """
    ids = {port.ref: number for number, port in enumerate(ports, 1)}
    layout = PictureLayout(fabric)
    sizes = f"{many(len(fabric.nodes), 'node')}, {many(len(fabric.links), 'link')}"
    return {
        "lab": fabric.name,
        "k": fabric.policy.k,
        "svg": fabric_svg(layout, title=f"fabric {fabric.name}: {sizes}"),
        "legend": legend_svg(),
        "loads": page_steps(),
        "widths": [round(layout.points(share) * POINT, 2) for share in (0.0, 1.0)],
        "ports": [
            {"ref": port.ref, "peer": ids[port.peer_ref], "rate": port.rate_bps, "scale": _scale(policies, port)}
            for port in ports
        ],
        "collectives": list(dict.fromkeys(collective for collective, _ in patterns())),
    }  # fmt: skip


def _scale(policies: Policies, port: Port) -> int:
    classes = [each for each in policies[port.node, port.name] if each.kind not in ("unused", "control")]
    marks = [each.kmax for each in classes if each.ecn] + [each.xoff for each in classes if each.pfc]
    return max(marks, default=0) or max((each.buffer for each in classes), default=1)
