"""The runs of a lab on the live page: the latest ones, and whether one is being measured now.

In:  a running lab. Out: plain data; news of runs that have ended. Records are read when the runs' directory changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from heddle.base.units import format_size
from heddle.dashboard.livenews import NewsItem
from heddle.runs.store import History
from heddle.runs.stored import StoredRun

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_SHOWN: Final = 8


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
    o, rows = record.header.options, record.measured
    sizes = " to ".join(format_size(size) for size in dict.fromkeys((o.sizes[0], o.sizes[-1])))
    done = record.outcome
    failed = "interrupted" if record.interrupted else (record.failure[0].partition("\n")[0] if record.failure else "")
    return {
        "id": kept.id,
        "when": record.header.when,
        "what": f"{o.collective} ({o.algorithm}), {len(record.header.ranks)} ranks, {sizes}, QPs {o.qps}",
        "ecmp": record.header.ecmp,
        "seconds": record.seconds,
        "ok": done is not None and not done.wrong,
        "why": failed,
        "wrong": done.wrong if done else None,
        "agree": done.proof.agree if done and done.proof else None,
        "mmr": done.proof.mmr_bytes if done and done.proof else None,
        "rows": [[row.size, row.time_us, row.algbw, row.busbw, row.wrong] for row in rows],
    }


def _ended(kept: StoredRun) -> NewsItem:
    row = run_json(kept)
    if not row.get("rows") or row["why"]:
        return NewsItem(time.time(), "run", f"run {kept.id} {row.get('why') or row['what']}")
    busbw = max(row["rows"])[3]
    text = f"run {kept.id} ended: {row['what']}; busbw {busbw:.4g} GB/s emulated"
    return NewsItem(time.time(), "run", text, row["ok"])
