"""The traffic generator of one lab: its configuration, its flows, its captures, between the requests of clients.

In:  documents of Open Traffic Generator as JSON values. Out: answers as JSON values; InputError for what is wrong with
a document or does not fit the state, MachineError for the machine. Calls come from several threads, one at a time.
Flows run while the lab is locked, as by a run. A client that sends no request for `idle_s` seconds is taken for gone,
and its flows are stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from heddle.base import owners
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.lab import health
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle_plugins.otg import documents, metrics
from heddle_plugins.otg.activeflows import FlowState
from heddle_plugins.otg.captures import PortCapture
from heddle_plugins.otg.engine import TrafficEngine
from heddle_plugins.otg.flows import TrafficPlan
from heddle_plugins.otg.metrics import PortCounts, read_ports
from heddle_plugins.otg.plan import plan_of
from heddle_plugins.otg.rules import MOST_ERRORS, Remarks

_SETTLE_S: Final = 12.0  # that the answer to `stop` waits for the last packets
_LOOK_S: Final = 1.0


class Generator:
    """One server's state. lab: the name. idle_s: without a request, after which flows are stopped."""

    def __init__(self, lab: str, idle_s: float) -> None:
        self._name, self._idle_s = lab, idle_s
        self._lock = threading.RLock()
        self._config: dict[str, Any] = {}
        self._plan = TrafficPlan({})
        self._lab: Lab | None = None
        self._engine: TrafficEngine | None = None
        self._locked = ExitStack()  # the lab, while flows run
        self._rows: dict[str, FlowState] = {}
        self._base: Mapping[str, PortCounts] = {}
        self._seen: tuple[float, Mapping[str, PortCounts]] = (0.0, {})  # the last reading of ports, and its time
        self._captures: dict[str, PortCapture] = {}
        self._protocols = False
        self._failed: list[str] = []
        self._heard = time.monotonic()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_client, name="otg-idle", daemon=True)
        self._watch.start()

    # configuration

    def configure(self, document: Any) -> dict[str, Any]:
        """set_config: replace everything. Flows and captures of the old configuration end."""
        with self._called():
            notes = Remarks()
            config = documents.read(document, documents.CONFIG, notes)
            lab = open_lab(self._name)
            if not lab.runtime.here:
                why = "runs in shards, and the traffic generator needs a lab of this machine"
                raise InputError(Problem("", f"lab {lab.name}", why, "use another runtime"))
            plan = plan_of(lab.fabric, config, notes)
            documents.check(notes)
            self._end()
            self._lab, self._config, self._plan = lab, document, plan
            self._rows = {name: FlowState() for name in plan.flow_names}
            self._protocols = False
            self._base = read_ports(lab, plan.ports.values())
            return _warned(notes.warnings)

    def configuration(self) -> dict[str, Any]:
        """get_config: what `configure` was given."""
        with self._called():
            return self._config

    # control

    def control(self, document: Any) -> dict[str, Any]:
        """set_control_state."""
        with self._called():
            notes = Remarks()
            what, (_, asked) = documents.read(document, documents.CONTROL, notes)
            if what == "port":
                return self._capture(asked["port_names"], asked["state"])
            if what == "protocol":
                self._protocols = asked["state"] == "start"
                if not self._protocols:
                    self._stop([flow.name for flow in self._plan.roce])
                return _warned(notes.warnings)
            return self._transmit(asked["flow_names"], asked["state"])

    def _transmit(self, names: Sequence[str], state: str) -> dict[str, Any]:
        names = self._named("flow_names", names, self._rows)
        if state == "stop":
            return self._stop(names)
        if state == "pause":
            if self._engine is not None:
                self._engine.pause(names)
            return _warned([])
        if state == "start":
            if len(names) == len(self._rows) and self._lab is not None:
                self._base = read_ports(self._lab, self._plan.ports.values())
            self._rows |= {name: FlowState() for name in names}
        while True:
            engine = self._opened()
            if engine.start(names) if state == "start" else engine.resume(names):
                return _warned([])
            self._apart(engine.join)  # it ends just now

    def _opened(self) -> TrafficEngine:
        """The engine, with the lab locked. InputError without flows, or while another command works on the lab."""
        if self._engine is not None:
            return self._engine
        if self._lab is None or not self._rows:
            raise InputError(Problem("", "traffic", "cannot start: the configuration has no flows", "use set_config"))
        with ExitStack() as stack:
            stack.enter_context(owners.lock(self._lab.name, work="traffic of otg"))
            health.check_ports(self._lab)
            policy, handles = self._lab.fabric.policy, self._lab.handles()

            def netns(host: str) -> Path:
                return handles[host].netns

            self._failed = []
            self._engine = TrafficEngine(self._plan, policy.k, policy.ib_mtu, netns, self._ended)
            self._locked = stack.pop_all()
        return self._engine

    def _ended(self) -> None:
        """All flows have settled; called in the engine's thread."""
        with self._lock:
            engine = self._engine
            if engine is not None:
                self._keep(engine)
                self._engine = None
                engine.close()
                self._locked.close()

    def _keep(self, engine: TrafficEngine) -> None:
        """Remember the counters of an engine that ends: those of flows that it has sent."""
        self._rows |= {name: row for name, row in engine.rows().items() if any(row.counts.values()) or row.error}
        self._failed += [f"{name}: {row.error}" for name, row in self._rows.items() if row.error]
        self._failed += engine.complaints()

    def _stop(self, names: Sequence[str]) -> dict[str, Any]:
        engine = self._engine
        if engine is not None:
            engine.stop(names)
            self._apart(lambda: engine.settle(names, _SETTLE_S))
        return _warned(self._failed)

    def _apart(self, wait: Callable[[], None]) -> None:
        """Wait for the engine's thread, which needs the lock at its end."""
        self._lock.release()
        try:
            wait()
        finally:
            self._lock.acquire()

    def _end(self) -> None:
        """End flows and captures now."""
        engine = self._engine
        if engine is not None:
            self._apart(engine.close)
        for each in self._captures.values():
            each.stop()
        self._captures.clear()

    def close(self) -> None:
        """End everything; the server ends."""
        self._closed.set()
        with self._lock:
            self._end()

    def _watch_client(self) -> None:
        while not self._closed.wait(_LOOK_S):
            with self._lock:
                gone = self._engine is not None and time.monotonic() - self._heard > self._idle_s
                if gone and self._engine is not None:
                    self._failed.append(f"flows were stopped: no request for {self._idle_s:g} s")
                    self._engine.stop(list(self._rows))

    # results

    def metrics(self, document: Any) -> dict[str, Any]:
        """get_metrics."""
        with self._called():
            notes = Remarks()
            kind, asked = documents.read(document, documents.METRICS, notes)
            rows = self._rows if self._engine is None else {**self._rows, **self._engine.rows()}
            k = 1 if self._lab is None else self._lab.fabric.policy.k
            if kind == "port":
                ports = [
                    self._plan.ports[each] for each in self._named("port_names", asked["port_names"], self._plan.ports)
                ]
                counts = {} if self._lab is None else read_ports(self._lab, ports)
                before, self._seen = self._seen, (time.monotonic(), counts)
                busy = {flow.tx.name for flow in self._plan.raw if rows[flow.name].state == "started"}
                busy |= {flow.qp.port.name for flow in self._plan.roce if rows[flow.name].state == "started"}
                found = [
                    metrics.port_row(port, counts[port.name], self._base[port.name], k)
                    | metrics.port_rates(counts[port.name], before[1].get(port.name), self._seen[0] - before[0], k)
                    | {
                        "capture": _state(port.name in self._captures and self._captures[port.name].running),
                        "transmit": _state(port.name in busy),
                    }
                    for port in ports
                ]
                return metrics.answer("port_metrics", "name", found, asked["column_names"])
            if kind == "flow":
                names = self._named("flow_names", asked["flow_names"], {flow.name: 0 for flow in self._plan.raw})
                found = [metrics.raw_row(flow, rows[flow.name], k) for flow in self._plan.raw if flow.name in names]
                return metrics.answer("flow_metrics", "name", found, asked["metric_names"])
            if kind == "rocev2_flow":
                found = [metrics.roce_row(flow, rows[flow.name], k) for flow in self._plan.roce]
                return metrics.answer("rocev2_flow_per_qp_metrics", "flow_name", found, asked[1]["column_names"])
            version = int(kind[-1])
            peers = {name: qps for (name, of), qps in self._plan.peers.items() if of == version}
            names = self._named("peer_names", asked[1]["peer_names"], peers)
            found = [metrics.peer_row(name, len(peers[name]), self._protocols) for name in names]
            return metrics.answer(f"rocev2_ipv{version}_per_peer_metrics", "name", found, asked[1]["column_names"])

    def _capture(self, names: Sequence[str], state: str) -> dict[str, Any]:
        settings = self._plan.captures
        for name in self._named("port_names", names, settings):
            if state == "start":
                if name in self._captures:
                    self._captures.pop(name).stop()
                if self._lab is not None:
                    self._captures[name] = PortCapture(self._lab, settings[name])
            elif name in self._captures:
                self._captures[name].stop()
        return _warned([])

    def captured(self, document: Any) -> bytes:
        """get_capture: a pcap. It ends the capture."""
        with self._called():
            asked = documents.read(document, documents.CAPTURE, Remarks())
            name = asked["port_name"]
            if name not in self._captures:
                hint = "start it with set_control_state"
                raise InputError(Problem("", f"port_name {name}", "has no capture", hint))
            how, part = asked["packets"]
            if how == "all":
                return self._captures[name].pcap()
            _, initial = part
            return self._captures[name].pcap(initial["start"] - 1, initial["count"])

    def _named(self, key: str, names: Sequence[str], known: Mapping[str, Any]) -> list[str]:
        """The names, or all; InputError for unknown ones."""
        if wrong := [name for name in names if name not in known]:
            raise InputError(
                *(
                    Problem("", f"{key} {name}", "is not configured", did_you_mean(name, known))
                    for name in wrong[:MOST_ERRORS]
                )
            )
        return list(names) or list(known)

    def _called(self) -> Any:
        """For one request: the lock, and the time of the request."""
        self._heard = time.monotonic()
        return self._lock


def _warned(warnings: Sequence[str]) -> dict[str, Any]:
    return {"warnings": list(dict.fromkeys(warnings))[:MOST_ERRORS]}


def _state(on: bool) -> str:
    return "started" if on else "stopped"
