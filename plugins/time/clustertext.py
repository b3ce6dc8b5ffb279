"""What happened in a cluster, as text of at most 100 columns, JSON, CSV, and a trace for Perfetto."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from heddle.base.arrays import F64
from heddle.base.tables import many
from heddle.base.version import VERSION
from heddle.views.forecasttext import wrapped
from heddle_plugins.time.cluster import ENDED, STATES, ClusterResult, Records

_LINES: Final = 20  # jobs in the text
_LINKS: Final = 5
_JSON: Final = 10_000  # jobs in JSON; CSV has all
JOBS, CLUSTER = 1, 2  # pid of each group of tracks


def mean_and_p95(values: F64) -> tuple[float, float]:
    """NaN without values."""
    if not len(values):
        return math.nan, math.nan
    return float(values.mean()), float(np.percentile(values, 95))


def completions(jobs: Records) -> tuple[F64, F64]:
    """Of jobs that ended: seconds from arrival to end, and time that they ran by their time alone."""
    ended = jobs.column("state") == ENDED
    return (jobs.column("ended_s") - jobs.column("arrived_s"))[ended], jobs.column("slowdown")[ended]


def time_text(value: float) -> str:
    """`-`, `12.3 s`, `4 min 05 s`, `3 h 20 min`."""
    if not math.isfinite(value):
        return "-"
    if value < 60:
        return f"{value:.3g} s"
    if value < 3600:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60):02d} min"


def render(result: ClusterResult) -> str:
    """The whole report."""
    parts = [[*_head(result)], [*_jobs(result)], [*_cluster(result)], [*_links(result)], [*_notes(result)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(result: ClusterResult) -> Iterator[str]:
    fabric, spec = result.cluster.fabric, result.cluster.spec
    states = result.jobs.column("state")
    counts = [f"{int((states == at).sum()):,} {word}" for at, word in enumerate(STATES) if (states == at).any()]
    yield f"cluster {result.cluster.name}: {len(result.cluster.slots):,} NICs of {fabric.name}, {result.mode}"
    jobs = f"{many(len(result.jobs), 'job')}: {', '.join(counts)}"
    queue = "backfill" if spec.backfill else "first come, first served"
    yield f"{time_text(result.seconds)}; {jobs}; placed {spec.placement}, {queue}"


def _jobs(result: ClusterResult) -> Iterator[str]:
    jobs = result.jobs
    rows = jobs.in_order()[:_LINES].tolist()
    columns = {name: jobs.column(name) for name in jobs.COLUMNS}
    width = max([3, *(len(jobs.names[row]) for row in rows)])
    yield f"{'job':<{width}} {'ranks':>6} {'arrived':>12} {'waited':>12} {'ran':>12} {'slowed':>8} {'completion':>12}"
    for row in rows:
        ended = columns["ended_s"][row] - columns["arrived_s"][row]
        slow = columns["slowdown"][row] - 1
        words = [time_text(float(columns[name][row])) for name in ("arrived_s", "waited_s", "ran_s")]
        state = int(columns["state"][row])
        last = time_text(float(ended)) if state == ENDED else STATES[state]
        restarts = int(columns["restarts"][row])
        more = f"  {many(restarts, 'restart')}" if restarts else ""
        yield (
            f"{jobs.names[row]:<{width}} {int(columns['ranks'][row]):>6,} {words[0]:>12} {words[1]:>12} {words[2]:>12} "
            f"{f'{max(0.0, slow):.1%}' if math.isfinite(slow) else '-':>8} {last:>12}{more}"
        )
    if len(jobs) > len(rows):
        yield f"and {len(jobs) - len(rows):,} more: --csv has all"


def _cluster(result: ClusterResult) -> Iterator[str]:
    (mean, p95), (slow, slow95) = map(mean_and_p95, completions(result.jobs))
    if math.isfinite(mean):
        yield f"completion    mean {time_text(mean)}, p95 {time_text(p95)}"
        yield f"slowdown      mean {slow:.3f}, p95 {slow95:.3f}: time that jobs ran, by their time alone"
    yield f"NICs          {result.nic_use:.1%} of their time with a job"
    yield f"fragmentation {result.spread:.1%} of the {result.box}s of jobs are beyond the least that they need"
    if result.waiting_s:
        waiting = time_text(result.waiting_s)
        yield f"              {result.stranded:.1%} of NICs are free while a job waits, in {waiting}"


def _links(result: ClusterResult) -> Iterator[str]:
    wires = result.wires
    rows = [int(at) for at in np.argsort(-result.use, kind="stable")[:_LINKS] if result.use[at] > 0]
    between = [at for at in range(len(wires.directions)) if not wires.at_hosts(at) and (wires.direction == at).any()]
    for at in between:
        use = result.use[wires.direction == at]
        yield f"{wires.direction_name(at):<34} {use.mean():>11.2%} mean, {use.max():.2%} most"
    if rows:
        yield f"{'busiest links':<34} {'utilization':>11}"
    for at in rows:
        yield f"{f'{wires.ports[at]} to {wires.ports[wires.other[at]]}':<34} {result.use[at]:>11.2%}"


def _notes(result: ClusterResult) -> Iterator[str]:
    k = result.cluster.fabric.policy.k
    steps = "waves without pauses: a step begins at once" if result.waves else "messages, as in predict --time"
    for text in (
        f"times are of hardware: rates of the fabric times {k}; latencies of hosts and switches are not scaled",
        "assumed: a full link slows its jobs equally; one sends while another computes, as far as possible; so a job "
        "with few flows may be slower, and one with many faster",
        f"assumed: steps are {steps}; computation follows them; starts and checkpoints take no time",
    ):
        yield from wrapped(text)
    if result.events:
        yield f"{len(result.events):,} failures and repairs; paths were routed again after each"


def to_json(result: ClusterResult) -> dict[str, Any]:
    """The result, with the first jobs."""
    jobs, wires = result.jobs, result.wires
    (mean, p95), (slow, slow95) = map(mean_and_p95, completions(jobs))
    rows = jobs.in_order()[:_JSON].tolist()
    busy = [int(at) for at in np.argsort(-result.use, kind="stable") if result.use[at] > 0]
    found: dict[str, Any] = _plain({
        "cluster": result.cluster.name, "fabric": result.cluster.fabric.name, "mode": result.mode,
        "emulated": {"k": result.cluster.fabric.policy.k}, "seconds": result.seconds,
        "nics": len(result.cluster.slots), "placement": result.cluster.spec.placement,
        "completion": {"mean_s": mean, "p95_s": p95}, "slowdown": {"mean": slow, "p95": slow95},
        "nic_utilization": result.nic_use, "sent_bits": result.sent,
        "fragmentation": {"spread": result.spread, "stranded": result.stranded, "waiting_s": result.waiting_s},
        "steps": "waves" if result.waves else "messages",
        "jobs": [_row(jobs, row) for row in rows], "jobs_left_out": len(jobs) - len(rows),
        "links": [
            {"port": wires.ports[at], "to": wires.ports[wires.other[at]], "utilization": float(result.use[at])}
            for at in busy
        ],
        "events": [{"at_s": each.at_s, "what": each.what} for each in result.events],
    })  # fmt: skip
    return found


def _row(jobs: Records, row: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": jobs.names[row]}
    for name in jobs.COLUMNS[1:]:
        value = float(jobs.column(name)[row])
        whole = name in ("ranks", "restarts")
        found[name] = STATES[int(value)] if name == "state" else int(value) if whole else value
    found["completion_s"] = found["ended_s"] - found["arrived_s"]
    return found


def _plain(value: Any) -> Any:
    """None instead of NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_csv(result: ClusterResult) -> bytes:
    """A line for each job, in order of arrival."""
    file = io.StringIO()
    jobs = result.jobs
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", *jobs.COLUMNS[1:], "completion_s"])
    order, columns = jobs.in_order(), [jobs.column(name) for name in jobs.COLUMNS[1:]]
    columns.append(jobs.column("ended_s") - jobs.column("arrived_s"))
    for begin in range(0, len(order), _JSON):  # lists of all jobs would need more memory than the columns
        rows = order[begin : begin + _JSON]
        for row, *values in zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True):
            values[1] = STATES[int(values[1])]
            cells = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
            writer.writerow([jobs.names[row], *("" if each != each else each for each in cells)])  # noqa: PLR0124
    return file.getvalue().encode()


def to_perfetto(result: ClusterResult) -> bytes:
    """Chrome's JSON trace: a track for each job, when it waits and runs; curves of NICs and queue; failures."""
    events: list[dict[str, Any]] = []
    names = [_named(JOBS, "process_name", "jobs"), _named(CLUSTER, "process_name", "cluster")]
    seen = dict[int, None]()
    for span in result.spans:
        if span.number not in seen:
            seen[span.number] = None
            names.append(_named(JOBS, "thread_name", f"{span.name}, {len(span.slots)} ranks", span.number))
        for word, begin, end in (
            ("waits", span.arrived_s, span.begin_s),
            ("ends by a failure" if span.failed else "runs", span.begin_s, span.end_s),
        ):
            if end > begin:
                events.append({
                    "ph": "X", "pid": JOBS, "tid": span.number, "ts": _us(begin), "dur": _us(end - begin),
                    "name": word, "cat": "job", "args": {"ranks": len(span.slots)},
                })  # fmt: skip
    for at, used, waiting in result.curve.points:
        for name, unit, value in (("NICs with a job", "NICs", used), ("jobs that wait", "jobs", waiting)):
            events.append({"ph": "C", "pid": CLUSTER, "tid": 0, "ts": _us(at), "name": name, "args": {unit: value}})
    events += [
        {"ph": "i", "pid": CLUSTER, "tid": 0, "ts": _us(each.at_s), "name": each.what, "cat": "fault", "s": "g"}
        for each in result.events
    ]
    events.sort(key=lambda event: float(event["ts"]))
    about = {"heddle": VERSION, "cluster": result.cluster.name, "time": "us of hardware since the beginning"}
    if result.more_spans:
        about["left out"] = f"all attempts of jobs after the first {len(result.spans):,}"
    trace = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": [*names, *events]}
    return json.dumps(trace, separators=(",", ":")).encode()


def _named(pid: int, what: str, text: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": text}}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)
