"""What the other jobs of a workload take of the links of one job: so that it can run live without them.

In:  Fabric, Workload, the name of a job. Out: a share of the rate that is left at each port, while the job runs.
A live run of that job alone, on the fabric or on the part of it that its paths use, gets these shares as faults of kind
slow-link. Rates are means over the time of the job: how they change meanwhile, and queues that others fill, are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask
from heddle.traffic.workload import Workload
from heddle_plugins.time.forecast import simulation_of

_LEAST: Final = 0.005  # of a rate, that counts


@dataclass(frozen=True)
class Background:
    """left: port -> share of its rate that the other jobs leave. seconds: that the job takes beside them."""

    job: str
    seconds: float
    left: dict[str, float]

    @property
    def faults(self) -> tuple[str, ...]:
        """Values of `./inv run --fault`."""
        return tuple(f"{port},slow-link,rate={100 * share:.1f}%" for port, share in self.left.items())

    def to_json(self) -> dict[str, Any]:
        return {"job": self.job, "seconds": self.seconds, "left": self.left, "faults": list(self.faults)}


def background_of(fabric: Fabric, workload: Workload, ask: Ask, name: str, observer: Observer) -> Background:
    """Forecast all jobs. InputError for a name that is no job, or a job that never ends or is alone."""
    names = [job.name for job in workload.jobs]
    if name not in names:
        hint = did_you_mean(name, names) if len(names) > 1 else "the workload has a single job"
        raise InputError(Problem("", f"--background {name}", "is not a job of the workload", hint))
    at = names.index(name)
    if workload.jobs[at].in_background:
        raise InputError(Problem("", f"--background {name}", "never ends by itself", "name another job"))
    network, simulation = simulation_of(fabric, workload, ask, observer)
    engine = simulation.engine(watch=at)
    engine.run()
    (begin, before), (end, after) = engine.marks
    carried = after - before
    carried[int(network.first[at]) : int(network.first[at + 1])] = 0.0
    taken = simulation.states[0].paths.load(carried) / (network.wires.rate * max(end - begin, 1e-300))
    mine = np.zeros(len(carried))
    mine[int(network.first[at]) : int(network.first[at + 1])] = 1.0
    ports = np.flatnonzero((simulation.states[0].paths.load(mine) > 0) & (taken > _LEAST))
    left = {network.wires.ports[port]: round(max(1.0 - float(taken[port]), _LEAST), 4) for port in ports.tolist()}
    return Background(name, end - begin, left)
