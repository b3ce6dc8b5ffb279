"""Congestion control in a run's result: CNPs, and the rates that the workers have recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heddle.endpoints.congestion.controlled import congestion_of
from heddle.endpoints.reports import WorkerReport
from heddle.runs.rates import PacedQp, rates_of, use_of_rates
from heddle.runs.results import RunResult
from heddle.traffic.plan import Plan
from heddle.traffic.tunables import described


def with_congestion(
    result: RunResult, plan: Plan, reports: Sequence[WorkerReport], began_ns: int, ended_ns: int
) -> RunResult:
    """The result with its CNPs and rates; unchanged without congestion control.

    began_ns, ended_ns: the first barrier, and the reports of all workers (CLOCK_MONOTONIC).
    """
    control = congestion_of(plan)
    if control is None:
        return result
    ends = {(end.rank, end.qpn): end for report in reports for end in report.qps}
    steps = []
    for qp in plan.qps:
        flow, rate = qp.flow, plan.endpoints[qp.flow.src_rank].rate_bps
        steps.append((PacedQp(flow.src, flow.dst, flow.qpn, rate), ends[flow.src_rank, qp.src_qpn].rates))
    rates = rates_of(control.name, (ended_ns - began_ns) / 1e9, began_ns, steps)
    cnps = {key: sum(flow.counters[key] for flow in result.flows) for key in ("cnps_sent", "cnps_received")}
    settings = described(control.values, control.congestion.tunables)
    use = use_of_rates(rates, control.values, settings, cnps["cnps_sent"], cnps["cnps_received"])
    return replace(result, congestion=use, rates=rates)
