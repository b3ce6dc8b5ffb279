"""All labs of the dashboard: which there are, their viewers, their buttons, their metrics.

In:  the event loop of the server. Out: what the site's addresses answer with. A lab gets a reader when its first viewer
comes; a scrape takes the reader's last reading, or reads once itself where no viewer is connected.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from heddle.base import state
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.base.progname import as_started
from heddle.dashboard.actions import Action, Actions
from heddle.dashboard.liveanswers import PathsOfRuns
from heddle.dashboard.livenews import NewsItem
from heddle.dashboard.livesource import LiveSource
from heddle.dashboard.metrics import ScrapedLab, families
from heddle.dashboard.monotonic import MonotonicCounters
from heddle.dashboard.viewers import Viewers
from heddle.lab.opening import check_version, open_lab
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History


class LabDesk:
    """The labs of one server. Its methods are called in the event loop, `scrape` in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.paths = PathsOfRuns()
        self._loop = loop
        self._viewers: dict[str, Viewers] = {}
        self._actions: dict[str, Actions] = {}
        self._counters = MonotonicCounters()
        self._ended = False
        self._scraping = threading.Lock()
        self._scraped: dict[str, int] = {}  # readings that were made for scrapes alone

    def labs(self) -> list[dict[str, str]]:
        """Every lab that there is a record of: name, state in a word, and what is wrong with it."""
        return [_described(name) for name in state.labs()]

    def viewers(self, lab: str) -> Viewers:
        """The viewers of a lab. InputError for a name that is no lab, unless it was one before."""
        if lab not in self._viewers:
            names = state.labs()
            if state.check_name(lab) not in names:
                hint = did_you_mean(lab, names) if names else "./inv up zone brings one up"
                raise InputError(Problem("", f"lab {lab}", "is not running", hint))
            self._viewers[lab] = Viewers(lab, self._loop)
            if self._ended:  # a page that connects again while the server ends
                self._viewers[lab].end_streams()
        return self._viewers[lab]

    def actions(self, lab: str) -> Actions:
        """The buttons of a lab; InputError as for `viewers`."""
        if lab not in self._actions:
            viewers = self.viewers(lab)

            def tell(action: Action) -> None:
                viewers.send("action", json.dumps(action.to_json()))
                if action.state != "running":
                    good = action.state == "done"
                    viewers.watch.tell(NewsItem(time.time(), "action", action.text, good))
                    viewers.watch.look()

            self._actions[lab] = Actions(lab, tell)
        return self._actions[lab]

    def end_streams(self) -> None:
        """End the streams of all viewers, and those that still come, so that the server can stop."""
        self._ended = True
        for each in self._viewers.values():
            each.end_streams()

    def close(self) -> None:
        """End all readers and runs; return when they have ended."""
        for actions in self._actions.values():
            actions.close()
        for viewers in self._viewers.values():
            viewers.watch.close()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """/metrics of all labs: text and content type. accept: the header of the request."""
        encoder, kind = choose_encoder(accept)
        with self._scraping, ExitStack() as stack:
            labs = [self._scraped_lab(name, stack) for name in state.labs()]
            registry = CollectorRegistry()
            registry.register(_Once(list(families(labs, self._counters))))
            return encoder(registry), kind

    def _scraped_lab(self, name: str, stack: ExitStack) -> ScrapedLab:
        """The last reading of a lab's reader where it runs, else one now. The caller closes the stack."""
        viewers = self._viewers.get(name)
        opened = viewers.watch.opened() if viewers is not None and viewers.watch.running else None
        seen = viewers.watch if viewers is not None else None
        source, reading, run = None, None, None
        try:
            if opened is not None and opened.last is not None:
                source, reading = opened.source, opened.last
            else:
                source = stack.enter_context(LiveSource(open_lab(name)))
                reading = source.read(every=True)
                self._scraped[name] = self._scraped.get(name, 0) + 1
            run = _last_run(source)
        except (HeddleError, OSError):
            reading = None  # heddle_lab_up is 0
        readings = self._scraped.get(name, 0) + (seen.readings if seen else 0)
        return ScrapedLab(name, source, reading, run, readings, seen.viewers if seen else 0)


class _Once(Collector):
    """Families that were made before, as prometheus-client asks for them."""

    def __init__(self, made: list[Metric]) -> None:
        self._made = made

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        return iter(self._made)


def _last_run(source: LiveSource) -> RunRecord | None:
    history = History.of(source.lab)
    return next((each.record for each in history.newest(1) if not each.damage and each.record.outcome), None)


def _described(name: str) -> dict[str, str]:
    try:
        record = state.read_record(name)
        if record is None:
            return {"lab": name, "state": "gone", "trouble": ""}
        check_version(record)
    except HeddleError as error:
        return {"lab": name, "state": "unreadable", "trouble": as_started(str(error))}
    return {"lab": name, "state": record.phase, "trouble": ""}


def problems_of(error: HeddleError) -> dict[str, Any]:
    """An error for the page: the sentences that a terminal would show, and the problems."""
    rows = [{"where": p.where, "what": p.what, "why": p.why, "hint": as_started(p.hint)} for p in error.problems]
    return {"error": as_started(str(error)), "problems": rows}
