"""How long congestion control takes until old and new flows share a link fairly: two incasts to one NIC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from heddle.base.arrays import F64
from heddle.base.problems import CheckError, Problem
from heddle.runs.measuring import Measure, Measuring

_STEPS: Final = 400  # points of time at which rates are compared
_FAIR: Final = 0.95
_NEAR: Final = 0.1
_TAIL: Final = 0.25  # of the observation: rates at its end are means over it


def _measure(at: Measuring) -> Mapping[str, float]:
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


MEASURE: Final = Measure(
    "Add as many flows again to a link, and observe the rates of DCQCN.",
    {
        "fair_s": "endpoint software: seconds until Jain's index of the rates is 0.95 or more, and stays so",
        "near_s": "endpoint software: seconds until all rates are within 10 % of the fair share, and stay so",
        "near_reached": "1 if all were so at some time, else 0",
        "near_share": "endpoint software: share of flows within 10 % of the fair share, in the last quarter",
        "jfi_end": "endpoint software: Jain's index of the mean rates in the last quarter",
        "observed_s": "endpoint software: seconds in which all flows sent",
    },
    _measure,
    {"senders": 4, "qps": 1, "start": "1s", "size": "16M"},
    seconds=8.0,
)
