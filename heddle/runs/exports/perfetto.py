"""A run over time as a trace in Chrome's JSON format, for ui.perfetto.dev and chrome://tracing.

In:  a StoredRun: timeline.npz, series.npz, rates.npz, and the times of faults, as far as it carries them.
Out: an object with `traceEvents`, in order of time: ph X (an iteration of a rank), b and e (a message, which may
overlap others of its QP), C (counters of ports, sending rates), i (a fault), M (names). ts in us since the run began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from heddle.base.arrays import F64
from heddle.base.units import format_size
from heddle.base.version import VERSION
from heddle.runs.exports.asked import Asked
from heddle.runs.parts.part import TimeSpan
from heddle.runs.rates import Rates
from heddle.runs.series import Recorded
from heddle.runs.stations import SPLIT
from heddle.runs.stored import StoredRun
from heddle.runs.timeline import Timeline
from heddle.traffic.flow import Endpoint, Flow

Event = dict[str, Any]
RANKS, MESSAGES, PORTS, SENDERS = 1, 2, 3, 4  # pid of each group of tracks
_GROUPS: Final = {RANKS: "ranks", MESSAGES: "messages", PORTS: "queues of ports", SENDERS: "sending rates"}
_BUCKETS: Final = 2000  # of a counter


def written(run: StoredRun, _asked: Asked) -> bytes:
    """The trace. InputError for a run that recorded nothing over time."""
    record = run.record
    timeline, recorded, rates = run.timeline, run.recorded, run.rates
    if timeline.value is None:
        run.needed(recorded)
    events: list[Event] = []
    if timeline.value is not None:
        flows = [row.sent.flow for row in run.flows] if run.measured.value is not None else []
        events += _ranks(timeline.value, record.ranks)
        events += _messages(timeline.value, flows)
    if recorded.value is not None:
        events += _ports(recorded.value)
    events += _rates(rates.value) if rates.value is not None else ()
    events += _faults(record.times)
    groups = dict.fromkeys(each["pid"] for each in events)
    names = [_named(pid, "process_name", text) for pid, text in _GROUPS.items() if pid in groups]
    about = {
        "heddle": VERSION, "run": run.what, "k": record.k,
        "time": f"us of wall time since the run began, which is emulated time: hardware is {record.k} times faster",
        "missing": [each.why for each in (timeline, recorded) if each.why],
    }  # fmt: skip
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), event["ph"] == "b"))
    trace = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": [*names, *events]}
    return json.dumps(trace, separators=(",", ":")).encode()


def _named(pid: int, what: str, text: str, tid: int = 0) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": text}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _ranks(timeline: Timeline, ends: Sequence[Endpoint]) -> Iterator[Event]:
    its = timeline.iterations
    for rank in np.unique(its.rank).tolist():
        yield _named(RANKS, "thread_name", f"rank {rank} {ends[rank].nic}", rank)
    seen: dict[tuple[int, int], int] = {}
    for rank, size, _, begin, end in zip(*(values.tolist() for values in vars(its).values()), strict=True):
        number = seen[rank, size] = seen.get((rank, size), 0) + 1
        yield {
            "ph": "X", "pid": RANKS, "tid": rank, "ts": _us(begin), "dur": round(_us(end) - _us(begin), 3),
            "name": f"{format_size(size)}, iteration {number}", "cat": "iteration", "args": {"size": size},
        }  # fmt: skip


def _messages(timeline: Timeline, flows: Iterable[Flow]) -> Iterator[Event]:
    """A track for each QP, or for each connection where messages are split over its QPs."""
    qpns: dict[tuple[int, int], dict[int, None]] = {}
    for flow in flows:
        qpns.setdefault((flow.src_rank, flow.dst_rank), {})[flow.qpn] = None
    rows = zip(*(values.tolist() for values in vars(timeline.messages).values()), strict=True)
    for number, (src, dst, qp, epoch, size, posted, arrived, used) in enumerate(rows):
        every = [*qpns.get((src, dst), {})]
        which = f", QP {every[qp]:#08x}" if SPLIT < qp < len(every) else ""
        common = {
            "pid": MESSAGES, "tid": src, "cat": "message", "id": number, "name": f"rank {src} to rank {dst}{which}",
        }  # fmt: skip
        args = {"bytes": size, "iteration of the run": epoch, "waited at the receiver (us)": _us(used - arrived)}
        yield {"ph": "b", "ts": _us(posted), **common, "args": args}
        yield {"ph": "e", "ts": _us(arrived), **common}


def _ports(recorded: Recorded) -> Iterator[Event]:
    """Counters of each port and class: a value at the start of each bucket in which it changes."""
    series = recorded.series.coarser(_BUCKETS)
    starts, lengths = series.starts_s, np.maximum(series.ends_s - series.starts_s, 1e-9)
    for row, label in enumerate(recorded.labels):
        columns = {name: values[row].astype(np.float64) for name, values in series.columns.items()}
        for what, unit, values in (
            ("depth, most of a bucket", "bytes", columns["peak"]),
            ("sent", "Mb/s", columns["out_bytes"] * 8 / lengths / 1e6),
            ("marked", "packets", columns["marks"]),
            ("trimmed", "packets", columns["trims"]),
            ("dropped", "packets", columns["drops"]),
            ("pause frames sent", "frames", columns["pfc_sent"]),
            ("gate closed", "% of the time", np.minimum(1.0, columns["paused_ns"] / 1e9 / lengths) * 100),
        ):
            yield from _counter(PORTS, f"{label.name}: {what}", unit, starts, values)


def _counter(pid: int, name: str, unit: str, times_s: F64, values: F64) -> Iterator[Event]:
    """Nothing for a counter that is always 0."""
    if not values.any():
        return
    changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    for at in changes.tolist():
        args = {unit: round(float(values[at]), 3)}
        yield {"ph": "C", "pid": pid, "tid": 0, "ts": _us(float(times_s[at])), "name": name, "args": args}


def _rates(rates: Rates) -> Iterator[Event]:
    """The sending rate of each QP that congestion control limits."""
    for each in rates.courses:
        if len(each.times_s):
            yield from _counter(SENDERS, each.qp.name, "Mb/s", each.times_s, each.rates_bps / 1e6)


def _faults(times: Iterable[TimeSpan]) -> Iterator[Event]:
    for span in times:
        for word, at in (("begins", span.begin_s), ("ends", span.end_s)):
            what = f"fault {word}: {span.what}"
            yield {"ph": "i", "pid": RANKS, "tid": 0, "ts": _us(at), "name": what, "cat": "fault", "s": "g"}
