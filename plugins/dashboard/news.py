"""News of the live page: what has changed from one reading to the next, and the runs of the lab.

In:  readings of one lab, in order, with their figures; its runs.
Out: NewsItem, a sentence each; the latest runs as plain data. Links and sessions are reported one by one, and several
of them as one line. Pauses, marks and drops come by the thousand, so a line tells when they begin and another one, with
their number, when there were none for a while. Records of runs are read when the runs' directory changes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from heddle.base.arrays import I64
from heddle.base.tables import some_of
from heddle.base.units import format_size
from heddle.lab.daemons import ESTABLISHED
from heddle.runs.store import History
from heddle.runs.stored import StoredRun
from heddle_plugins.dashboard.reading import LiveReading, PortFigures

if TYPE_CHECKING:
    from heddle.fabric.wiring import Port
    from heddle.lab.lab import Lab

Kind = Literal["link", "bgp", "pause", "mark", "drop", "run", "lab", "action"]
_QUIET_S: Final = 2.0  # without a pause, a mark or a drop: then the episode has ended
_SHOWN: Final = 8  # runs


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One line. when: UNIX time, s. good: something came back. port: what a click on it shows; may be empty."""

    when: float
    kind: Kind
    text: str
    good: bool = False
    port: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class _Episode:
    """Many small events of one kind as two lines: when they begin, and how many there were."""

    def __init__(self, kind: Kind, one: str, many: str) -> None:
        self._kind, self._one, self._many = kind, one, many
        self._began = self._last = 0.0
        self._by_port: I64 | None = None

    def more(self, when: float, counts: I64, ports: Sequence[Port]) -> Iterator[NewsItem]:
        """counts: of this interval, by port id."""
        if counts.any():
            self._last = when
            if self._by_port is None:
                self._began, self._by_port = when, counts.copy()
                first = ports[int(counts.argmax()) - 1].ref
                yield NewsItem(when, self._kind, f"{self._many} began at {first}", port=first)
            else:
                self._by_port = self._by_port + counts
        elif self._by_port is not None and when - self._last >= _QUIET_S:
            total, at = int(self._by_port.sum()), np.count_nonzero(self._by_port)
            most = ports[int(self._by_port.argmax()) - 1].ref
            word = self._one if total == 1 else self._many
            span = max(0.0, self._last - self._began)
            where = f"at {most}" if at == 1 else f"at {at} ports, most at {most}"
            self._by_port = None
            yield NewsItem(when, self._kind, f"{word} ended: {total} in {span:.1f} s {where}", good=True, port=most)


class NewsDesk:
    """Compares each reading of one lab with the one before."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports
        self._episodes = (
            _Episode("pause", "pause frame", "pause frames"),
            _Episode("mark", "ECN mark", "ECN marks"),
            _Episode("drop", "dropped packet", "dropped packets"),
        )

    def compare(self, before: LiveReading | None, after: LiveReading, figures: PortFigures) -> list[NewsItem]:
        """The events between two readings; without one before, none."""
        if before is None:
            return []
        found = [*self._links(before, after), *self._sessions(before, after)]
        for episode, counts in zip(self._episodes, (figures.pauses, figures.marks, figures.drops), strict=True):
            found += episode.more(after.when, counts, self._ports)
        return found

    def _links(self, before: LiveReading, after: LiveReading) -> Iterator[NewsItem]:
        was, now = (self._dead(each) for each in (before, after))
        for refs, word, good in ((now - was, "down", False), (was - now, "up", True)):
            if refs:
                yield _several(after.when, "link", sorted(refs), f"{{}} {word}", good)

    def _dead(self, reading: LiveReading) -> set[str]:
        """A port for each link that carries nothing: the end where it was taken down, or the first in port order."""
        down = reading.slow.down
        found = set()
        for port in self._ports:
            here, there = down.get(port.ref), down.get(port.peer_ref)
            if here:
                found.add(port.ref)  # it was taken down here
            elif here is False and not there and (there is None or port.ref < port.peer_ref):
                found.add(port.ref)  # only the carrier is gone, at both ends or at a host's switch
        return found

    def _sessions(self, before: LiveReading, after: LiveReading) -> Iterator[NewsItem]:
        lost: list[str] = []
        back: list[str] = []
        silent: list[str] = []
        for switch, now in after.slow.sessions.items():
            was = before.slow.sessions.get(switch)
            if now is was:
                continue
            if now is None:
                silent += [switch] if was is not None else []
                continue
            for peer, state in now.items():
                old = (was or {}).get(peer)
                if old is not None and (old == ESTABLISHED) != (state == ESTABLISHED):
                    (back if state == ESTABLISHED else lost).append(f"{switch}:{peer}")
        for refs, text, good in ((lost, "BGP lost at {}", False), (back, "BGP established at {}", True)):
            if refs:
                yield _several(after.when, "bgp", sorted(refs), text, good)
        for switch in silent:
            yield NewsItem(after.when, "bgp", f"bgpd of {switch} does not answer")


def _several(when: float, kind: Kind, refs: Sequence[str], text: str, good: bool) -> NewsItem:
    return NewsItem(when, kind, text.format(some_of(refs)), good, refs[0])


class RunList:
    """Follows the history of one lab."""

    def __init__(self, lab: Lab) -> None:
        self._history = History.of(lab)
        self._changed: int | None = None
        self._runs: tuple[StoredRun, ...] = ()
        self._busy = False
        self._seen: str | None = None
        self._news: list[NewsItem] = []

    def read(self) -> dict[str, Any]:
        """`running`, and `last`: the latest runs, newest first."""
        busy = self._history.writing()
        if busy and not self._busy:
            self._news.append(NewsItem(time.time(), "run", "a run began"))
        self._busy = busy
        changed = self._history.changed_ns()
        if changed != self._changed:
            self._changed = changed
            self._runs = tuple(reversed(self._history.newest(_SHOWN)))
            newest = self._runs[0].id if self._runs else ""
            if self._seen is not None and newest > self._seen:
                self._news.append(_ended(self._runs[0]))
            self._seen = newest
        return {"running": busy, "last": [run_json(each) for each in self._runs]}

    def news(self) -> list[NewsItem]:
        """What has happened since the last call."""
        found, self._news = self._news, []
        return found


def run_json(kept: StoredRun) -> dict[str, Any]:
    """One run in a few values. busbw: GB/s of its largest size, emulated; None when it has none."""
    if kept.damage:
        return {"id": kept.id, "what": f"cannot be read: {kept.damage}", "ok": False}
    record = kept.record
    o, rows = record.options, record.rows
    sizes = " to ".join(format_size(size) for size in dict.fromkeys((*o.sizes[:1], *o.sizes[-1:])))
    what = f"{record.title}: " * bool(record.title)
    what += f"{o.collective} ({o.algorithm}), {len(record.ranks)} ranks, {sizes}, QPs {o.qps}"
    failed = "interrupted" if record.interrupted else (record.failure[0].partition("\n")[0] if record.failure else "")
    return {
        "id": kept.id,
        "when": record.when,
        "what": f"{record.work}, {len(record.ranks)} ranks" if record.launch else what,
        "ecmp": record.ecmp,
        "seconds": record.seconds,
        "ok": record.done and not record.wrong and not record.exit_code,
        "why": failed,
        "wrong": record.wrong if record.done else None,
        "agree": record.proof.agree if record.proof else None,
        "mmr": record.proof.mmr_bytes if record.proof else None,
        "rows": [[row.size, row.time_us, row.algbw, row.busbw, row.all_wrong] for row in rows],
    }


def _ended(kept: StoredRun) -> NewsItem:
    row = run_json(kept)
    if not row.get("rows") or row["why"]:
        return NewsItem(time.time(), "run", f"run {kept.id} {row.get('why') or row['what']}")
    busbw = max(row["rows"])[3]
    text = f"run {kept.id} ended: {row['what']}; busbw {busbw:.4g} GB/s emulated"
    return NewsItem(time.time(), "run", text, row["ok"])
