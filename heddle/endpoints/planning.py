"""The plan of a run with all that its transport and its congestion control decide.

In:  a fabric, RunOptions. Out: Plan. InputError for options that the fabric does not support, and wrong parameters.
"""

from __future__ import annotations

from heddle.endpoints.congestion.controlled import with_control
from heddle.endpoints.transports import find_transport
from heddle.fabric.model import Fabric
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan


def job_plan(
    fabric: Fabric,
    options: RunOptions,
    more_ns: int = 0,
    endpoints: tuple[Endpoint, ...] | None = None,
    job: str = "",
) -> Plan:
    """The plan of a job; more_ns, endpoints and job as in build_plan."""
    kind = find_transport(options.transport)
    before_first = kind.stack.before_first if kind.stack is not None else None
    plan = build_plan(
        fabric, options, more_ns, before_first, kind.stack is None, endpoints, job, kind.spread(options)
    )  # fmt: skip
    return with_control(plan)
