"""Measures: what settings of a run cannot say, as a Python function. A new one is a function here and a line of
MEASURES; or a part that another plugin registers.

In:  a Measuring (runs/measuring.py): the lab, the fabric, the options of the file, and `run`, which keeps what it runs.
Out: the figures that the measure declares, by name; what is not known is left out. Expressions use `NAME(RUN)`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.base.arrays import F64
from heddle.base.plugins import Registry
from heddle.base.problems import CheckError, Problem
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.predict.statistics import max_over_mean
from heddle.runs.figures import FIGURES
from heddle.runs.measuring import Measure, Measuring
from heddle.runs.runrecord import RunRecord
from heddle.wire import layout as wire
from heddle.wire.layout import verdict
from heddle_plugins.experiments.openloop import open_loop

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_STEPS: Final = 400  # points of time at which rates are compared
_FAIR: Final = 0.95
_NEAR: Final = 0.1
_TAIL: Final = 0.25  # of the observation: rates at its end are means over it
_IP: Final = 14  # offset of the IP header in a frame
# Figure of icrc_changes -> the byte of the IPv4 packet whose lowest bit is inverted.
_CHANGES: Final[Mapping[str, int]] = {"ttl": 8, "ecn": 1, "sport": wire.IPV4_BYTES + 1}
_HOUR_S: Final = 3600
_KEEPS_UP: Final = 0.97  # of the line rates: where senders are slower, nothing follows from their number
_PAGE: Final = 4096


def _convergence(at: Measuring) -> Mapping[str, float]:
    """M flows from half of the senders; at `start` as many more. The rates are those that senders are limited to."""
    from heddle.endpoints.workloadfile import read_workload
    from heddle.runs.store import History
    from heddle.spec.yamlfile import Document

    senders, qps, start, size = (at.options[key] for key in ("senders", "qps", "start", "size"))
    common = {"collective": "incast", "cc": "dcqcn", "qps": qps, "iters": 1, "warmup": 0}
    jobs = {
        "first": {**common, "ranks": [*range(senders + 1)], "size": size},
        "second": {**common, "ranks": [0, *range(senders + 1, 2 * senders + 1)], "size": size, "start": start},
    }
    document = Document({"share_nics": True, "jobs": jobs}, "convergence")
    found = at.run(read_workload(document, "", "convergence"))
    stored = [History.of(at.running).open(each.id) for each in found]
    to = stored[0].record.ranks[0].host
    rates = [each for run in stored if (each := run.rates.value) is not None]
    courses = [course for each in rates for course in each.courses if course.qp.dst == to]
    spans = [line.iterations for run in stored if (line := run.timeline.value) is not None]
    if len(courses) < 2 * senders * qps or len(spans) < len(jobs):
        raise CheckError(Problem("", "convergence", "has flows without rates", "see ./inv runs for what was recorded"))
    begin, end = max(float(each.begin_s.min()) for each in spans), min(float(each.end_s.max()) for each in spans)
    if end <= begin:
        raise CheckError(Problem("", "convergence", "has no time in which all flows send", "set a larger options.size"))
    times = np.linspace(begin, end, _STEPS)
    return shares(times, np.array([course.at(times) for course in courses]))


def shares(times: F64, rates: F64) -> dict[str, float]:
    """The figures from rates of shape (flows, times). A time that is never reached is the whole observation."""
    whole = float(times[-1] - times[0])
    jfi = rates.sum(axis=0) ** 2 / (len(rates) * (rates**2).sum(axis=0))
    near = (np.abs(rates / rates.mean(axis=0) - 1) <= _NEAR).all(axis=0)
    tail = rates[:, times >= times[-1] - _TAIL * whole].mean(axis=1)

    def from_then_on(reached: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
        since = len(reached) - int(reached[::-1].argmin()) if not reached.all() else 0
        return float(times[since] - times[0]) if since < len(times) else whole

    return {
        "fair_s": from_then_on(jfi >= _FAIR),
        "near_s": from_then_on(near),
        "near_reached": float(near.any()),
        "near_share": float((np.abs(tail / tail.mean() - 1) <= _NEAR).mean()),
        "jfi_end": float(tail.sum() ** 2 / (len(tail) * (tail**2).sum())),
        "observed_s": whole,
    }


def _icrc_changes(at: Measuring) -> Mapping[str, float]:
    one, other = at.fabric.nics[0], at.fabric.nics[-1]
    if one.address is None or other.address is None:
        raise RuntimeError("NICs of a fabric have addresses")
    flow = FlowHeader(
        src_mac=one.mac, dst_mac=other.mac, src_ip=str(one.address.ip), dst_ip=str(other.address.ip),
        sport=50000, dqpn=2, tos=wire.TOS_DATA,
    )  # fmt: skip
    size = int(at.options["payload"])
    batch = SendBatch(size, slots=1)
    batch.put_data(0, flow, wire.WRITE_ONLY, 0, bytes(size), reth=(0, 0, size))
    frame = bytes(batch.frame(0))
    found = {"unchanged": verdict(frame, _IP)}
    for name in _CHANGES:
        changed = bytearray(frame)
        changed[_IP + at.options[name]] ^= 1
        found[name] = verdict(bytes(changed), _IP)
    return {name: float(each == "right") for name, each in found.items()}


def _open_loop(at: Measuring) -> Mapping[str, float]:
    senders, payload, seconds = int(at.options["senders"]), int(at.options["payload"]), float(at.options["seconds"])
    found = open_loop(at.running.fabric, at.running.handles(), senders, payload, seconds)
    kept_up = {"data": found.data, "trim_drops": found.dropped} if found.sent >= _KEEPS_UP * senders else {}
    return {**kept_up, "sent": found.sent, "trims_left": found.left}


def _random_flows(at: Measuring) -> Mapping[str, float]:
    flows, links, trials, seed = (int(at.options[key]) for key in ("flows", "links", "trials", "seed"))
    draw = np.random.default_rng([seed, at.repeat])
    counts = (np.bincount(draw.integers(links, size=flows), minlength=links) for _ in range(trials))
    found = [value for each in counts if (value := max_over_mean(each)) is not None]
    return {"mmr_mean": float(np.mean(found)), "mmr_p95": float(np.quantile(found, 0.95))}


def _soak(at: Measuring) -> Mapping[str, float]:
    seconds, size, qps = (at.options[key] for key in ("seconds", "size", "qps"))
    begin, seen = time.monotonic(), [(0.0, memory(at.running))]
    while time.monotonic() - begin < seconds or len(at.runs) < 2:
        for collective in ("all-reduce", "all-to-all"):
            at.collective(collective=collective, size=size, qps=qps, placement="cyclic", iters=20, warmup=0)
        seen.append((time.monotonic() - begin, memory(at.running)))
    return figures_of(at.runs, seen)


def figures_of(runs: Sequence[RunRecord], seen: Sequence[tuple[float, Mapping[int, int]]]) -> dict[str, float]:
    """The figures of these runs. One that a single run does not know is left out: it is not known of the whole."""
    ratios, storms, lost = (
        [value for run in runs if (value := FIGURES[name].of(run)) is not None]
        for name in ("completion", "storms", "lost")
    )
    found = {
        "jct": fmean(ratios) if len(ratios) == len(runs) else None,
        "jct_sd": pstdev(ratios) if len(ratios) == len(runs) else None,
        "lost": sum(lost) if len(lost) == len(runs) else None,
        "storms": sum(storms) if len(storms) == len(runs) else None,
        "runs": len(runs),
        "slope": steepest(seen),
        "ended": len(set(seen[0][1]) - set(seen[-1][1])),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def memory(lab: Lab) -> dict[int, int]:
    """Process -> resident bytes, of all in the namespaces of switches: daemons, the agent of PFC."""
    handles = lab.handles()
    inodes = {handles[node.name].netns.stat().st_ino for node in lab.fabric.switches}
    found = {}
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if (proc / "ns" / "net").stat().st_ino in inodes:
                found[int(proc.name)] = int((proc / "statm").read_text().split()[1]) * _PAGE
        except OSError:
            continue  # it ended meanwhile
    return found


def steepest(seen: Sequence[tuple[float, Mapping[int, int]]]) -> float | None:
    """The largest slope of a process that was there all the time: linear regression, in MB an hour; None without."""
    times = np.array([at for at, _ in seen])
    every = set.intersection(*(set(each) for _, each in seen))
    slopes = [float(np.polyfit(times, [each[pid] for _, each in seen], 1)[0]) for pid in every]
    return max(slopes) * _HOUR_S / 1e6 if slopes else None


MEASURES: Final[Registry[Measure]] = Registry(
    "measure",
    {
        "convergence": Measure(
            "Add as many flows again to a link, and observe the rates of DCQCN.",
            {
                "fair_s": "endpoint software: seconds until Jain's index of the rates is 0.95 or more, and stays so",
                "near_s": "endpoint software: seconds until all rates are within 10 % of the fair share, and stay so",
                "near_reached": "1 if all were so at some time, else 0",
                "near_share": "endpoint software: share of flows within 10 % of the fair share, in the last quarter",
                "jfi_end": "endpoint software: Jain's index of the mean rates in the last quarter",
                "observed_s": "endpoint software: seconds in which all flows sent",
            },
            _convergence,
            {"senders": 4, "qps": 1, "start": "1s", "size": "16M"},
            seconds=8.0,
        ),
        "icrc_changes": Measure(
            "Change a RoCEv2 packet as a switch could, and check its ICRC.",
            {
                "unchanged": "1 if the ICRC of the packet is right, else 0",
                "ttl": "the same with another TTL",
                "ecn": "the same with another ECN mark",
                "sport": "the same with another UDP source port",
            },
            _icrc_changes,
            {"payload": 1024, **_CHANGES},
            live=False,
            seconds=0.1,
        ),
        "open_loop": Measure(
            "Send from many hosts to one at line rate, without answers.",
            {
                "data": "whole packets' share of the receiver's line",
                "trim_drops": "share of the trimmed packets that did not fit in the trim queue",
                "sent": "what the senders sent, in lines",
                "trims_left": "trimmed packets that were neither sent nor dropped",
            },
            _open_loop,
            {"senders": 8, "payload": 4036, "seconds": 2.0},
            seconds=5.0,
        ),
        "random_flows": Measure(
            "Spread random flows over equal links, without a fabric.",
            {"mmr_mean": "mean of max/mean over trials", "mmr_p95": "its 95th percentile"},
            _random_flows,
            {"flows": 1000, "links": 16, "trials": 1000, "seed": 1},
            live=False,
            seconds=0.1,
        ),
        "soak": Measure(
            "Keep a fabric busy with two collectives in turn, and watch the memory of its switches.",
            {
                "jct": "endpoint software: mean of time / time on NICs alone",
                "jct_sd": "endpoint software: its standard deviation over the runs",
                "lost": "DUT telemetry: packets lost anywhere",
                "storms": "DUT telemetry: pause storms that the watchdog ended",
                "runs": "collectives that ran",
                "slope": "DUT's host: the steepest growth of a switch's process, MB of resident memory an hour",
                "ended": "DUT's host: processes of switches that ended",
            },
            _soak,
            {"seconds": 90, "size": "256K", "qps": 4},
            seconds=100.0,
        ),
    },
    Measure,
)
