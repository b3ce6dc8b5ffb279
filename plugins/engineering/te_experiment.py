"""Traffic engineering in experiments: the live change `te`, and the measure `te_removed`.

The measure computes and installs a plan, then removes its entries while packets move.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from heddle.runs.measuring import Measure, Measuring

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.traffic.workload import Workload


def _measure(at: Measuring) -> Mapping[str, float]:
    from heddle.endpoints.runoptions import run_options
    from heddle.lab.rehash import changes_of_run, put_in_force, take_out
    from heddle.traffic.workload import Workload
    from heddle_plugins.engineering.te import PARTS, of_workload, plan_for

    lab = at.running
    size, faults = str(at.options["size"]), [each for each in [at.options["fault"]] if each]
    workload = Workload.of(run_options(placement="cyclic", size=size, iters=2, warmup=0, fault=faults))
    began = time.monotonic()
    plan = plan_for(lab, of_workload(lab, workload), lab.snapshot(PARTS))
    planned = time.monotonic()
    put_in_force(lab, plan.tables, "experiment")
    timer = threading.Timer(float(at.options["after"]), take_out, (lab, "experiment"))
    timer.start()
    try:
        (found,) = at.run(workload)
    finally:
        timer.join()
    changes = float(len(changes_of_run(lab.name)))
    known = {"plan_s": planned - began, "entries": float(plan.entries), "changes": changes}
    return known if found.lost is None else {**known, "lost": float(sum(found.lost.values()))}


def engineer(lab: Lab, _: object, workload: Workload | None) -> None:
    """Exact-match entries for one iteration of the workload, on the routes of now; a measure has no workload."""
    from heddle.lab.rehash import put_in_force
    from heddle_plugins.engineering.te import PARTS, of_workload, plan_for

    if workload is not None:
        now = lab.snapshot(PARTS)
        put_in_force(lab, plan_for(lab, of_workload(lab, workload), now).tables, "experiment", now.hashing)


MEASURE: Final = Measure(
    "Plan entries of TE for a ring, and remove them while it runs.",
    {
        "plan_s": "seconds to read the fabric and plan",
        "entries": "entries of all switches",
        "changes": "changes of entries while the ring ran",
        "lost": "packets lost",
    },
    _measure,
    {"size": "2M", "after": 1.5, "fault": ""},
)
