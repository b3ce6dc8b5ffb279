"""A load for some time: how stable its iterations are, and whether processes of the switches grow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

import numpy as np

from heddle.runs.measuring import Measure, Measuring
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RunRecord

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_HOUR_S: Final = 3600
_PAGE: Final = 4096


def _measure(at: Measuring) -> Mapping[str, float]:
    seconds, size, qps = (at.options[key] for key in ("seconds", "size", "qps"))
    begin, seen = time.monotonic(), [(0.0, memory(at.running))]
    while time.monotonic() - begin < seconds or len(at.runs) < 2:
        for collective in ("all-reduce", "all-to-all"):
            at.collective(collective=collective, size=size, qps=qps, placement="cyclic", iters=20, warmup=0)
        seen.append((time.monotonic() - begin, memory(at.running)))
    return figures_of(at.runs, seen)


def figures_of(runs: Sequence[RunRecord], seen: Sequence[tuple[float, Mapping[int, int]]]) -> dict[str, float]:
    """The figures of these runs. One that a single run does not know is left out: it is not known of the whole."""
    ratios = [used.ratio for run in runs if (used := run.part(IdealUse)) is not None and used.ratio is not None]
    storms = [queues.storms for run in runs if (queues := run.part(QueueUse)) is not None]
    lost = [sum(run.lost.values()) for run in runs if run.lost is not None]
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


MEASURE: Final = Measure(
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
    _measure,
    {"seconds": 90, "size": "256K", "qps": 4},
    seconds=100.0,
)
