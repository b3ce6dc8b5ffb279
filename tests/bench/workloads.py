"""Training workloads on ECMP and E-ECMP, and the load of uplinks against random choice."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from heddle.base.events import Observer
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.run import run, run_workload
from heddle.runs.store import paths_of

from . import Figure, at_least

_LAB: Final = "benchwl"
_HOSTS: Final = 16  # of a rack
_UPLINKS: Final = 8
_TRIALS: Final = 25
# QPs of a pair -> mean over trials of (flows on the fullest uplink / mean flows) when each flow takes an uplink at
# random: 16, 64 and 256 flows on 8 uplinks, 20,000 trials of a multinomial distribution.
_RANDOM: Final = {1: 2.10, 4: 1.53, 16: 1.26}


@contextmanager
def _lab(fabric: str, observer: Observer, *overrides: str) -> Iterator[Lab]:
    labs.up(load_fabric(fabric, name=_LAB, overrides=overrides), observer=observer, rollback=True)
    try:
        yield open_lab(_LAB)
    finally:
        labs.down(_LAB, observer)


def gains(observer: Observer) -> Iterator[Figure]:
    """What E-ECMP with 16 QPs gives over ECMP with one: iteration times, NICs and uplinks 1 : 1, ranks across racks."""
    times: dict[str, list[float]] = {}
    for ecmp, qps in (("flow", 1), ("e-ecmp", 16)):
        with _lab("demo", observer, f"routing.ecmp={ecmp}") as lab:
            for name in ("llm-3d", "ranking"):
                (result,) = run_workload(
                    lab, load_workload(f"{name},qps={qps},placement=cyclic").workload, observer
                ).jobs
                times.setdefault(name, []).append(result.rows[-1].time_us)
                yield Figure(f"{name}, {ecmp}, {qps} QPs: iteration", times[name][-1] / 1e6, "s")
                proven = paths_of(lab).agree is True
                yield Figure(f"{name}, {ecmp}, {qps} QPs: paths proven", float(proven), "", "", "1", proven)
                if result.doubts:
                    yield Figure(f"{name}, {ecmp}, {qps} QPs: UNRELIABLE", float(len(result.doubts)), "reasons")
    for name, (before, after) in times.items():
        yield at_least(f"{name}: E-ECMP, 16 QPs", before / after, "x", 1.2, "the rate of ECMP with 1 QP")


def spread(observer: Observer) -> Iterator[Figure]:
    """Flows of 16 NICs on 8 uplinks, live, for random pairs in each trial, against a random choice of uplinks."""
    chance = random.Random(1)
    rates = ("link.host=10mbit", "link.fabric=10mbit")
    shape = ("racks=2", f"ctsw={_UPLINKS}", f"hosts_per_rack={_HOSTS}", "routing.ecmp=e-ecmp")
    with _lab("tiny", observer, *shape, *rates) as lab:
        for qps, expected in _RANDOM.items():
            found = []
            for _ in range(_TRIALS):
                there = chance.sample(range(_HOSTS, 2 * _HOSTS), _HOSTS)
                matrix = ";".join(f"{rank},{to},16K" for rank, to in enumerate(there))
                options = run_options(collective="matrix", matrix=matrix, qps=qps, iters=1, warmup=0)
                run(lab, options, observer)
                links = [each.flows for each in paths_of(lab).links if each.uplink and each.port.startswith("rtsw1:")]
                found.append(max(links) * _UPLINKS / sum(links))
            mean, error = statistics.mean(found), statistics.stdev(found) / _TRIALS**0.5
            within = abs(mean - expected) <= 3 * error
            target = f"{expected} +- {3 * error:.2f}"
            yield Figure(f"16 flows x {qps} QPs on 8 uplinks: max / mean", mean, "x", "", target, within)
