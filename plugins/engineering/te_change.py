"""The live change `te` of a run of an experiment: entries that are planned for what the run sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.traffic.workload import Workload


def engineer(lab: Lab, _: object, workload: Workload | None) -> None:
    """Exact-match entries for one iteration of the workload, on the routes of now; a measure has no workload."""
    from heddle.lab.rehash import put_in_force
    from heddle_plugins.engineering.te import PARTS, of_workload, plan_for

    if workload is not None:
        now = lab.snapshot(PARTS)
        put_in_force(lab, plan_for(lab, of_workload(lab, workload), now).tables, "experiment", now.hashing)
