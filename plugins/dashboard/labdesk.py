"""All labs of the dashboard: which there are, their viewers, their buttons, their metrics.

In:  the event loop of the server. Out: what the site's addresses answer with. A lab gets a reader when its first viewer
comes; a scrape takes the reader's last reading, or reads once itself where no viewer is connected. Nothing that a
button sends is trusted. A run is the verb `run` in a process of its own; links go through heddle/lab/outages.py. Both
take the lab's lock, so that they are refused while another command works on the lab.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from heddle.base import resources, state
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.base.process import dying_with_us, follow
from heddle.base.progname import as_started
from heddle.endpoints.runoptions import run_options
from heddle.lab import outages
from heddle.lab.faults import orders
from heddle.lab.faults.registry import KEYS, KINDS
from heddle.lab.lab import Lab
from heddle.lab.opening import check_version, open_lab
from heddle.lab.queues import rows_of_port
from heddle.predict.walk import ports_of
from heddle.runs import store
from heddle.runs.store import History
from heddle_plugins.dashboard.labwatch import LabWatch, OpenedLab
from heddle_plugins.dashboard.metrics import MonotonicCounters, ScrapedLab, families
from heddle_plugins.dashboard.news import NewsItem
from heddle_plugins.dashboard.reading import LiveSource

if TYPE_CHECKING:
    from heddle.proof.verdict import FlowProof, PathsResult

MOST_STREAMS: Final = 32
_WAITING: Final = 20  # messages for one viewer; then it is too slow
_BEAT_S: Final = 15.0  # between two lines to a silent connection, so that it is known to be open


class Viewers:
    """The open pages of one lab."""

    def __init__(self, lab: str, loop: asyncio.AbstractEventLoop) -> None:
        self.watch = LabWatch(lab, self.send)
        self._loop = loop
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._closed = False

    def send(self, kind: str, text: str) -> None:
        """Give a message to all viewers; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, message(kind, text))

    def _deliver(self, data: bytes) -> None:
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(message("hello", self.watch.hello()))
            else:
                queue.put_nowait(data)

    async def stream(self) -> AsyncIterator[bytes]:
        """Everything for one viewer, until it goes or the server ends."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        if self._closed:
            return
        self._queues.add(queue)
        self.watch.join()
        try:
            yield message("hello", self.watch.hello())
            while True:
                try:
                    data = await asyncio.wait_for(queue.get(), _BEAT_S)
                except TimeoutError:
                    data = b": open\n\n"
                if data is None:
                    return
                yield data
        finally:
            self._queues.discard(queue)
            self.watch.leave()

    def end_streams(self) -> None:
        """End the streams of all viewers."""
        self._closed = True
        for queue in self._queues:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)


def message(kind: str, text: str) -> bytes:
    """One server-sent event; the text is one line of JSON."""
    return f"event: {kind}\ndata: {text}\n\n".encode()


def port_answer(opened: OpenedLab, ref: str) -> dict[str, Any]:
    """Rows and history of a port. InputError when the lab has no such port, or was not read yet."""
    number = next((at for at, port in enumerate(opened.source.ports, 1) if port.ref == ref), None)
    last = opened.last
    if number is None or last is None:
        why = "is not a port of this lab" if number is None else "was not read yet"
        raise InputError(Problem("", ref, why))
    port = opened.source.ports[number - 1]
    rows = rows_of_port(last.queues, number, port, opened.source.policies)
    sessions = last.slow.sessions.get(port.node) or {}
    return {
        "port": ref,
        "peer": port.peer_ref,
        "rate_bps": port.rate_bps,
        "mtu": port.mtu,
        "bgp": sessions.get(port.name),
        "down": bool(port.ref in last.slow.down or port.peer_ref in last.slow.down),
        "rows": [row.to_json() for row in rows],
        "history": opened.history.of(number),
    }


class PathsOfRuns:
    """The paths of the last run of each lab, computed once a run: the proof of many QPs takes a moment."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[object, str], dict[str, Any]]] = {}

    def of(self, lab: Lab, mark: object) -> dict[str, Any]:
        """The QPs of the last run. mark: changes when the lab is another one. InputError when there was no run."""
        run = History.of(lab).find()
        key = mark, run
        known = self._known.get(lab.name)
        if known is None or known[0] != key:
            known = key, paths_json(run, store.paths_of(lab, run))
            self._known[lab.name] = known
        return known[1]


def paths_json(run: str, found: PathsResult) -> dict[str, Any]:
    """The verdict and a row a QP: its ends, its path, or why it is not proven.

    counted: False for a QP that sent no packet; its path is then the one that it would take.
    """
    return {
        "run": run,
        "agree": found.agree,
        "mmr": found.mmr.bytes,
        "notes": list(found.notes),
        "qps": [_qp(found, proof) for proof in found.flows],
    }


def _qp(found: PathsResult, proof: FlowProof) -> dict[str, Any]:
    src, dst = found.nics_of(proof)
    flow = proof.flow
    return {
        "src": src, "dst": dst, "qpn": flow.qpn, "sport": flow.sport, "packets": proof.sent.packets,
        "path": list(proof.measured or proof.expected), "counted": bool(proof.measured), "why": proof.why,
        "ports": sorted({port for step in (proof.measured or proof.expected) for port in ports_of(step)}),
    }  # fmt: skip


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

    @property
    def streams(self) -> int:
        """The number of pages that are open, of all labs."""
        return sum(each.watch.viewers for each in self._viewers.values())

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
        with self._scraping:
            labs = [self._scraped_lab(name) for name in state.labs()]
            return encoder(_Once(list(families(labs, self._counters)))), kind

    def _scraped_lab(self, name: str) -> ScrapedLab:
        """The last reading of a lab's reader where it runs, else one now."""
        watch = self._viewers[name].watch if name in self._viewers else None
        opened = watch.opened if watch is not None else None
        source, reading, run = None, None, None
        try:
            if opened is not None and opened.last is not None:
                source, reading = opened.source, opened.last
            else:
                with closing(LiveSource(open_lab(name))) as source:
                    reading = source.read(every=True)
                self._scraped[name] = self._scraped.get(name, 0) + 1
            kept = (each.record for each in History.of(source.lab).newest(1) if not each.damage)
            run = next((each for each in kept if each.done and not each.launch), None)
        except (HeddleError, OSError):
            reading = None  # heddle_lab_up is 0
        readings = self._scraped.get(name, 0) + (watch.readings if watch else 0)
        return ScrapedLab(name, source, reading, run, readings, watch.viewers if watch else 0)


class _Once(Collector):
    """Families that were made before, as prometheus-client asks for them."""

    def __init__(self, made: list[Metric]) -> None:
        self._made = made

    def collect(self) -> list[Metric]:
        return self._made


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


MOST_S: Final = 3600.0  # of a run
# A script starts `./inv dashboard &` with SIGINT ignored. Its runs would inherit that, and `stop` would have no effect.
_INTERRUPTIBLE: Final = ("env", "--default-signal=INT")
_LINES: Final = 200
State = Literal["running", "done", "failed"]
# What a browser may choose of a run, and of which type it is.
RUN_KEYS: Final[Mapping[str, type]] = {"collective": str, "size": str, "qps": int, "iters": int, "ranks": int}


@dataclass
class Action:
    """One press of a button. text: its outcome, in a sentence. lines: what the verb has printed so far."""

    number: int
    kind: str  # run, link, fault
    what: str
    state: State = "running"
    text: str = ""
    lines: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Actions:
    """The actions of one lab, one at a time. tell: called at each change, by the thread of the action."""

    def __init__(self, lab: str, tell: Callable[[Action], None]) -> None:
        self._lab, self._tell = lab, tell
        self._lock = threading.Lock()
        self._current: Action | None = None
        self._thread: threading.Thread | None = None
        self._group: int | None = None  # process group of the run
        self._count = 0

    def run(self, asked: Mapping[str, object]) -> Action:
        """Start a run. InputError for options that are not possible, and while another action goes on."""
        argv = [*_INTERRUPTIBLE, *resources.HERE.command(), "run", f"--lab={self._lab}", *_run_flags(asked)]
        return self._start("run", " ".join(["run", *_run_flags(asked)]), lambda action: self._run(action, argv))

    def link(self, port: object, state: object) -> Action:
        """Take a link down or up. port: `rtsw1:eth3`, either end. InputError for anything else."""
        if not isinstance(port, str) or state not in ("down", "up"):
            raise InputError(Problem("", "port and state", "are needed", 'send {"port": "NODE:PORT", "state": "down"}'))
        return self._start("link", f"{port} {state}", lambda action: self._link(action, port, str(state)))

    def _link(self, action: Action, port: str, state: str) -> None:
        lab, began = open_lab(self._lab), time.monotonic()
        (outages.link_down if state == "down" else outages.link_up)(lab, port)
        action.text = f"{port} is {state}; all kernels followed in {time.monotonic() - began:.1f} s"

    def fault(self, asked: Mapping[str, object]) -> Action:
        """Set a fault: kind, where, and `values` as `KEY=VALUE,...`. InputError for anything else."""
        kind, where, values = (asked.get(key, "") for key in ("kind", "where", "values"))
        if not all(isinstance(each, str) for each in (kind, where, values)) or kind not in KEYS:
            hint = f"kinds: {', '.join(KEYS)}"
            raise InputError(Problem("", "kind, where and values", "are needed as texts", hint))
        given = dict(each.strip().partition("=")[::2] for each in str(values).split(",") if each.strip())
        found = KINDS[str(kind)].read(given, lambda key: f"{key}=")
        return self._start("fault", f"{kind} {where}", lambda action: self._fault(action, str(kind), str(where), found))

    def clear(self, where: object) -> Action:
        """End the faults of a place, or all. InputError for anything but a text."""
        if not isinstance(where, str):
            raise InputError(Problem("", "where", "is needed", 'send {"where": "NODE:PORT"}, or "" for all'))
        return self._start("fault", f"clear {where}".strip(), lambda action: self._clear(action, where))

    def _fault(self, action: Action, kind: str, where: str, values: Mapping[str, Any]) -> None:
        lab = open_lab(self._lab)
        done = orders.set_kind(lab, kind, KINDS[kind].places(lab.fabric, [where]), values)
        action.text = "; ".join(f"{each.where}: {orders.text_of(lab, each)}: {evidence}" for each, evidence in done)

    def _clear(self, action: Action, where: str) -> None:
        done = orders.clear(open_lab(self._lab), [where] if where else [])
        action.text = f"ended: {'; '.join(done)}" if done else "no fault was set there"

    def stop(self) -> bool:
        """Interrupt the run that goes on, as Ctrl-C does; False when there is none."""
        with self._lock:
            if self._group is None:
                return False
            with suppress(ProcessLookupError):
                os.killpg(self._group, signal.SIGINT)
            return True

    def close(self) -> None:
        """Stop a run, and wait for what goes on: a link that is half changed is worse than a second of waiting."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _start(self, kind: str, what: str, do: Callable[[Action], None]) -> Action:
        with self._lock:
            if self._current is not None and self._current.state == "running":
                why = f"is busy: {self._current.what} has not ended"
                raise InputError(Problem("", f"lab {self._lab}", why, "wait until it ends, or stop it"))
            self._count += 1
            action = self._current = Action(self._count, kind, what)
            self._thread = threading.Thread(target=self._work, args=(action, do), name=f"action-{self._lab}")
            self._thread.start()
        self._tell(action)
        return action

    def _work(self, action: Action, do: Callable[[Action], None]) -> None:
        try:
            do(action)
        except HeddleError as error:
            action.text, action.state = f"{action.what}: {as_started(str(error))}", "failed"
        if action.state == "running":
            action.state = "done"
        self._tell(action)

    def _run(self, action: Action, argv: list[str]) -> None:
        def line(text: str) -> None:
            action.lines = [*action.lines, text][-_LINES:]
            self._tell(action)

        def started(group: int) -> None:
            with self._lock:
                self._group = group

        try:
            # As by Ctrl-C also when this server is killed: nothing else would end the run, and `down` waits for it.
            done = follow(dying_with_us(argv, "INT"), line, timeout=MOST_S, started=started)
        finally:
            with self._lock:
                self._group = None
        if done.code == 0:
            action.text = f"{action.what}: done in {done.seconds:.1f} s"
        else:
            action.text = f"{action.what}: exit code {done.code} after {done.seconds:.1f} s"
            action.state = "failed"


def _run_flags(asked: Mapping[str, object]) -> list[str]:
    """The flags of a run. Each is one word with its value in it, so that no value can become a flag."""
    values: dict[str, Any] = {}
    for name, value in asked.items():
        kind = RUN_KEYS.get(name)
        if kind is None or not isinstance(value, kind) or isinstance(value, bool):
            why = "cannot be chosen here" if kind is None else f"is not {'a whole number' if kind is int else 'a text'}"
            raise InputError(Problem("", name, why, f"choose {', '.join(RUN_KEYS)}"))
        values[name] = value
    run_options(**values)
    return [f"--{name}={value}" for name, value in values.items()]
