"""The metrics of running labs for Prometheus, by its conventions: base units, `_total` for counters, HELP texts.

In:  readings of labs. Out: metric families of prometheus-client; METRICS is the list of all of them.
Labels: lab, node, port, class (traffic class). `node` and `port` are the end that sends. Rates are emulated: bytes a
second times heddle_scale_factor are those of the emulated hardware.
Runs also have the names of NCCL Inspector's Prometheus output, so that its Grafana dashboard shows them unchanged.
Names, labels, the text of message sizes and the means of samples of one bucket are those of NVIDIA/nccl,
plugins/profiler/inspector (README and inspector_prom.cc, release v2.30). `cluster` is the label that its dashboard also
selects by, which there Prometheus' configuration adds. Inspector reports each GPU; a run's record has the mean over its
ranks, so `node` and `gpu` are `all`.
Single sends and receives (nccl_p2p_...): NCCL carries out an all-to-all, and a gather, as such. Heddle measures whole
iterations. These are the time of one send only where a communicator has two ranks, so only such runs have samples.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from heddle.base.ethernet import CLASSES
from heddle.base.version import VERSION
from heddle.lab.daemons import ESTABLISHED
from heddle.runs.ncclnames import collective_name
from heddle.switch.pfc import control as pfc
from heddle.traffic.collectives import Pattern
from heddle_plugins.dashboard.reading import LiveReading, LiveSource

if TYPE_CHECKING:
    from heddle.base.arrays import I64
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import SizeRow

_LAB: Final = ("lab",)
_NODE: Final = ("lab", "node")
_PORT: Final = ("lab", "node", "port")
_QUEUE: Final = ("lab", "node", "port", "class")
_RUN: Final = ("lab", "run", "collective", "algorithm", "ranks", "qps", "size_bytes")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: its name (a counter's without `_total`), HELP text and labels."""

    name: str
    help: str
    labels: Sequence[str]
    counter: bool = False

    @property
    def shown(self) -> str:
        """The name of its samples."""
        return f"{self.name}_total" if self.counter else self.name

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """An empty family."""
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        return kind(self.name, self.help, labels=self.labels)


def _counter(name: str, text: str) -> MetricSpec:
    return MetricSpec(name, text, _QUEUE, counter=True)


# Column of LiveReading -> the counter of each queue, and what its value is divided by.
COUNTERS: Final[Mapping[str, tuple[MetricSpec, int]]] = {
    "bytes": (_counter("heddle_link_bytes", "Bytes of frames that this port has sent over its link."), 1),
    "packets": (_counter("heddle_link_packets", "Packets that this port has sent over its link."), 1),
    "marks": (_counter("heddle_ecn_marked_packets", "Packets that this queue has marked CE (ECN)."), 1),
    "trims": (_counter("heddle_trimmed_packets", "Packets of this queue that were trimmed here."), 1),
    "trim_sent": (_counter("heddle_trim_sent_packets", "Trimmed packets that the trim queue took."), 1),
    "trim_drops": (_counter("heddle_trim_dropped_packets", "Trimmed packets that the trim queue dropped."), 1),
    "dropped": (_counter("heddle_queue_dropped_packets", "Packets that this queue has dropped, of all causes."), 1),
    "pfc_received": (_counter("heddle_pfc_pauses", "PFC pause frames that this port has received for the class."), 1),
    "pfc_sent": (_counter("heddle_pfc_pauses_sent", "PFC pause frames that this port has sent for the class."), 1),
    "paused_ns": (_counter("heddle_pfc_paused_seconds", "Time that this queue was paused by PFC."), 10**9),
    "storms": (_counter("heddle_pfc_storms", "PFC storms that the watchdog has found at this queue."), 1),
}  # fmt: skip
LEVELS: Final[Mapping[str, MetricSpec]] = {
    "depth": MetricSpec("heddle_queue_depth_bytes", "Bytes of frames that wait in this queue now.", _QUEUE),
    "high_water": MetricSpec("heddle_queue_high_water_bytes", "Most bytes that this queue has held.", _QUEUE),
    "held": MetricSpec(
        "heddle_ingress_occupancy_bytes", "Bytes that came in by this port and have not left the switch.", _QUEUE
    ),
}
_BUILD: Final = MetricSpec("heddle_build_info", "The version of Heddle; the value is 1.", ("version",))
_UP: Final = MetricSpec("heddle_lab_up", "1 if the lab runs and can be read.", _LAB)
_SCALE: Final = MetricSpec("heddle_scale_factor", "k: the rates of the hardware divided by the rates of the lab.", _LAB)
_SPEED: Final = MetricSpec("heddle_link_speed_bytes", "Rate of the link, in bytes a second (emulated).", _PORT)
_LINK: Final = MetricSpec("heddle_link_up", "1 if the link carries packets, 0 if an end of it is down.", _PORT)
_BGP: Final = MetricSpec(
    "heddle_bgp_session_up", "1 if this end's bgpd reports the session as Established.", ("lab", "node", "port", "peer")
)
_SESSIONS: Final = MetricSpec("heddle_bgp_sessions_established", "BGP sessions established at both ends.", _LAB)
_EXPECTED: Final = MetricSpec("heddle_bgp_sessions_expected", "BGP sessions that the lab should have.", _LAB)
_USED: Final = MetricSpec("heddle_switch_buffer_used_bytes", "Bytes of the switch's packet buffer in use.", _NODE)
_SIZE: Final = MetricSpec("heddle_switch_buffer_size_bytes", "Size of the switch's packet buffer.", _NODE)
_AGENT: Final = MetricSpec("heddle_pfc_agent_up", "1 if the processes that carry out PFC run.", _LAB)
_BUSBW: Final = MetricSpec(
    "heddle_run_bus_bandwidth_bytes_per_second", "Bus bandwidth of the last run (nccl-tests' busbw), emulated.", _RUN
)
_SECONDS: Final = MetricSpec(
    "heddle_run_time_seconds", "Time of one iteration of the last run, mean over its ranks.", _RUN
)
_WRONG: Final = MetricSpec("heddle_run_wrong_elements", "Wrong elements in the results of the last run.", _RUN)
_READINGS: Final = MetricSpec(
    "heddle_dashboard_readings",
    "Readings of the lab by the dashboard, for viewers and for scrapes.",
    _LAB,
    counter=True,
)
_VIEWERS: Final = MetricSpec("heddle_dashboard_viewers", "Pages that show the lab now.", _LAB)
METRICS: Final = (
    _BUILD, _UP, _SCALE, _SPEED, _LINK, _BGP, _SESSIONS, _EXPECTED, _USED, _SIZE, _AGENT, _BUSBW, _SECONDS, _WRONG,
    _READINGS, _VIEWERS, *LEVELS.values(), *(spec for spec, _ in COUNTERS.values()),
)  # fmt: skip


class MonotonicCounters:
    """Counters that never go back, from counters of many labs that may be reset: by `./inv queues reset`, or by `up`.

    Prometheus takes a smaller value for a new start and counts from 0, which loses what was counted before; a reset in
    Heddle is the user's, for their next experiment, and no new start of the exporter. A lab whose ports are others than
    before starts again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, tuple[object, dict[str, I64]]] = {}
        self._base: dict[str, dict[str, I64]] = {}

    def of(self, lab: str, ports: object, now: Mapping[str, I64]) -> dict[str, I64]:
        """The counters of a lab, monotonic. ports: what the rows are; compared by ==. now: name -> counters by row."""
        with self._lock:
            known, last = self._last.get(lab, (None, {}))
            if known != ports:
                last, self._base[lab] = {}, {}
            base = self._base.setdefault(lab, {})
            for name, values in now.items():
                before = last.get(name)
                offset = base.setdefault(name, np.zeros_like(values))
                if before is not None:
                    base[name] = np.where(values < before, offset + before, offset)
            self._last[lab] = (ports, {name: values.copy() for name, values in now.items()})
            return {name: values + base[name] for name, values in now.items()}


@dataclass(frozen=True, eq=False)
class ScrapedLab:
    """One lab for a scrape. source, reading: None where it cannot be read. run: the last one that ended well."""

    name: str
    source: LiveSource | None
    reading: LiveReading | None
    run: RunRecord | None
    readings: int
    viewers: int


class _Families:
    """Families by their specs, made when their first sample comes."""

    def __init__(self) -> None:
        self._made: dict[str, CounterMetricFamily | GaugeMetricFamily] = {spec.name: spec.family() for spec in METRICS}

    def add(self, spec: MetricSpec, labels: Sequence[str], value: float) -> None:
        self._made[spec.name].add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        return (family for family in self._made.values() if family.samples)


def families(labs: Iterable[ScrapedLab], counters: MonotonicCounters) -> Iterator[Metric]:
    """All metrics of some labs."""
    made = _Families()
    made.add(_BUILD, [VERSION], 1)
    runs: list[RunRecord] = []
    for lab in labs:
        made.add(_UP, [lab.name], lab.reading is not None)
        made.add(_READINGS, [lab.name], lab.readings)
        made.add(_VIEWERS, [lab.name], lab.viewers)
        if lab.source is not None and lab.reading is not None:
            _add_fabric(made, lab.source, lab.reading)
            _add_queues(made, lab.source, lab.reading, counters)
        if lab.run is not None and lab.run.done:
            runs.append(lab.run)
            _add_run(made, lab.run)
    yield from made.all()
    yield from inspector_families(runs)


def _add_fabric(made: _Families, source: LiveSource, now: LiveReading) -> None:
    """Links, sessions, buffers and PFC's processes."""
    lab = source.lab
    made.add(_SCALE, [lab.name], lab.fabric.policy.k)
    dead = now.slow.down
    peers = {(port.node, port.name): port.peer_ref for port in source.ports}
    for port in source.ports:
        made.add(_SPEED, [lab.name, port.node, port.name], port.rate_bps / 8)
        made.add(_LINK, [lab.name, port.node, port.name], port.ref not in dead and port.peer_ref not in dead)
    for switch, sessions in now.slow.sessions.items():
        for peer, state in (sessions or {}).items():
            # An unnumbered session is named by its port, any other by the peer's address.
            other = peers.get((switch, peer))
            name = [peer, other] if other is not None else ["", peer]
            made.add(_BGP, [lab.name, switch, *name], state == ESTABLISHED)
    established, expected = lab.blueprint.sessions(now.slow)
    made.add(_SESSIONS, [lab.name], established)
    made.add(_EXPECTED, [lab.name], expected)
    used = now.queues.switches["used"]
    for node in lab.fabric.nodes:
        if node in lab.fabric.switches and node.ports:
            policy = next(each for each in source.policies[node.name, node.ports[0].name] if each.kind != "unused")
            made.add(_USED, [lab.name, node.name], int(used[lab.fabric.places[node.name].index]))
            made.add(_SIZE, [lab.name, node.name], policy.buffer)
    processes = pfc.alive(lab.name)
    made.add(_AGENT, [lab.name], processes.agent is not None and processes.keeper is not None)


def _add_queues(made: _Families, source: LiveSource, now: LiveReading, counters: MonotonicCounters) -> None:
    """Every queue of a class that is in use. Counters are those of the reading, or larger where one was reset."""
    lab = source.lab.name
    names = tuple(port.ref for port in source.ports)
    grown = counters.of(lab, names, {name: now.columns[name] for name in COUNTERS})
    tables: list[tuple[MetricSpec, I64, int]] = [(spec, now.columns[name], 1) for name, spec in LEVELS.items()]
    tables += [(spec, grown[name], unit) for name, (spec, unit) in COUNTERS.items()]
    rows = [
        (number * CLASSES + traffic_class, [lab, port.node, port.name, str(traffic_class)])
        for number, port in enumerate(source.ports, 1)
        for traffic_class, policy in enumerate(source.policies[port.node, port.name])
        if policy.kind != "unused"
    ]
    at = np.array([row for row, _ in rows])
    for spec, values, unit in tables:
        for (_, labels), value in zip(rows, values[at].tolist(), strict=True):
            made.add(spec, labels, value / unit if unit != 1 else value)


def _add_run(made: _Families, run: RunRecord) -> None:
    o: Any = run.options
    about = [run.lab, run.id, o.collective, o.algorithm, str(len(run.ranks)), str(o.qps)]
    for row in run.rows:
        labels = [*about, str(row.size)]
        made.add(_BUSBW, labels, row.busbw * 1e9)
        made.add(_SECONDS, labels, row.time_us / 1e6)
        made.add(_WRONG, labels, row.all_wrong)


BANDWIDTH: Final = "nccl_bus_bandwidth_gbs"
TIME: Final = "nccl_collective_exec_time_microseconds"
P2P_BANDWIDTH: Final = "nccl_p2p_bus_bandwidth_gbs"
P2P_TIME: Final = "nccl_p2p_exec_time_microseconds"
INSPECTOR: Final = (BANDWIDTH, TIME)
INSPECTOR_P2P: Final = (P2P_BANDWIDTH, P2P_TIME)  # of runs whose communicators have two ranks
NAMES: Final = (*(spec.shown for spec in METRICS), *INSPECTOR, *INSPECTOR_P2P)
_OF_JOB: Final = ("version", "cluster", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks")
COLLECTIVE_LABELS: Final = (*_OF_JOB, "collective", "message_size", "algo_proto")
P2P_LABELS: Final = (*_OF_JOB, "p2p_operation", "message_size")
_OPERATIONS: Final = ("Send", "Recv")
_PAIR: Final = 2
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")  # powers of 1024 there
_ALL: Final = "all"


class _Buckets:
    """Two gauges with the same labels. Inspector takes the geometric mean of bandwidths, and the mean of times."""

    def __init__(self, bandwidth: str, time: str, what: str, labels: tuple[str, ...]) -> None:
        about = "emulated; mean over ranks"
        self._bandwidth = GaugeMetricFamily(bandwidth, f"NCCL {what}bus bandwidth in GB/s, {about}", labels=labels)
        self._time = GaugeMetricFamily(time, f"NCCL {what}execution time in microseconds, {about}", labels=labels)
        self._samples: defaultdict[tuple[str, ...], list[SizeRow]] = defaultdict(list)

    def add(self, labels: tuple[str, ...], row: SizeRow) -> None:
        """One measured size. Sizes of one bucket become one sample: Prometheus refuses equal labels in a scrape."""
        self._samples[labels].append(row)

    def families(self) -> Iterator[Metric]:
        for labels, rows in self._samples.items():
            positive = [row.busbw for row in rows if row.busbw > 0]
            self._bandwidth.add_metric(labels, geometric_mean(positive) if positive else 0.0)
            self._time.add_metric(labels, fmean(row.time_us for row in rows))
        yield from (each for each in (self._bandwidth, self._time) if each.samples)


def inspector_families(runs: Iterable[RunRecord]) -> Iterator[Metric]:
    """The last run of each lab, a sample for each bucket of sizes; emulated."""
    whole = _Buckets(BANDWIDTH, TIME, "", COLLECTIVE_LABELS)
    single = _Buckets(P2P_BANDWIDTH, P2P_TIME, "P2P ", P2P_LABELS)
    for run in runs:
        o = run.options
        ranks, job = _ranks(run), _job(run)
        for row in run.rows if run.done else ():
            named = (collective_name(o.collective), message_size(row.size), f"{o.algorithm.title()}_simple")
            whole.add((*job, *named), row)
            if ranks == _PAIR and o.pattern.as_sends:
                message = message_size(sent_bytes(o.pattern, row.size))
                for operation in _OPERATIONS:
                    single.add((*job, operation, message), row)
    yield from whole.families()
    yield from single.families()


def sent_bytes(pattern: Pattern, size: int) -> int:
    """Bytes of the one message between two ranks; the bus bandwidth of such patterns is that of this message."""
    return pattern.longest(_PAIR, pattern.whole(_PAIR, size // pattern.element_bytes)) * pattern.element_bytes


def _ranks(run: RunRecord) -> int:
    return len(run.communicators[0]) if run.communicators else len(run.ranks)


def _job(run: RunRecord) -> tuple[str, ...]:
    """The labels that all samples of a run share. n_nodes: hosts of one communicator, of the one that has most."""
    groups = run.communicators or (tuple(range(len(run.ranks))),)
    nodes = max(len({run.ranks[rank].host for rank in group}) for group in groups)
    about = (f"heddle-{run.heddle}", run.lab, f"{run.lab}-{run.id}", _ALL, _ALL, run.lab)
    return (*about, str(nodes), str(_ranks(run)))


def message_size(count: int) -> str:
    """Bytes as Inspector's bucket: `1-2MB` from 1 MiB to below 2 MiB."""
    unit = min(len(_UNITS) - 1, max(0, (count.bit_length() - 1) // 10)) if count else 0
    if not count:
        return "0B"
    whole = max(1, count >> 10 * unit)
    return f"{whole}-{whole + 1}{_UNITS[unit]}"
