"""Run one collective on a running lab.

In:  a Lab (see heddle/lab/lifecycle.py), RunOptions, an observer.
Out: RunResult, also kept in the lab's directory (store.py) with the evidence for `paths`. A TableListener gets the
head of the table, and each row as soon as it is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from heddle.base import owners, state
from heddle.base.events import Observer
from heddle.base.problems import InputError, MachineError, Problem
from heddle.base.units import format_duration, format_size
from heddle.endpoints.congestion.controlled import congestion_of
from heddle.endpoints.congestion.profiles import ECN_FACTORS
from heddle.endpoints.connections import part_sizes
from heddle.endpoints.crew import crew_of, worker_count
from heddle.endpoints.ranks import SizeResult
from heddle.endpoints.transports import TRANSPORTS, find_transport
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.worker import compiled, why_not_compiled
from heddle.fabric.hashmodes import SPREADING
from heddle.fabric.model import Fabric
from heddle.host import capacity as machine
from heddle.lab import health
from heddle.lab.fabricstate import FabricReading, FabricState, state_parts
from heddle.lab.impairments import extra_delay_ns
from heddle.lab.lab import Lab
from heddle.lab.rehash import label
from heddle.lab.runecn import ecn_for_run
from heddle.lab.runfaults import delays_of, faults_for_run, faults_on
from heddle.predict.flowarrays import FlowArrays
from heddle.predict.predict import rule_of
from heddle.proof.collect import check_room, collect_after, collect_before, wait_until_delivered
from heddle.runs.measured import MeasuredRun, flow_rows
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.results import RunResult
from heddle.runs.runtable import RunHead, SizeRow, size_row
from heddle.runs.writer import recording, writing
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.pfc import control as pfc
from heddle.traffic.communicators import describe
from heddle.traffic.inflight import shortfall
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.wire.layout import LAYOUTS


class TableListener(Protocol):
    """Receives the table of a run while it is measured."""

    def head(self, head: RunHead) -> None:
        """The run is about to start."""

    def row(self, row: SizeRow) -> None:
        """A size was measured; the next one begins when this returns."""


def run(lab: Lab, options: RunOptions, observer: Observer, table: TableListener | None = None) -> RunResult:
    """Run a collective. CheckError when a queue pair fails or a port has foreign queues; MachineError when a worker
    dies.

    A result with wrong elements is returned, not raised: `#wrong` is a result. The lab is locked meanwhile. A run that
    ends with one of these errors is kept as failed. An interrupted run keeps its measured sizes (RunInterruptedError).
    table: if given, it shows the end of the run, and the observer's line about that is omitted.
    """
    faults = faults_on(lab.fabric, options.faults)
    plan, transport = plan_run(lab.fabric, options, extra_delay_ns(lab, delays_of(faults)))
    handles = lab.handles()
    netns = {e.host: handles[e.host].netns for e in plan.endpoints}
    budget = budget_of(plan, transport)
    if budget.exceeded and total_packets(plan) > budget.budget_pps:  # a shorter run ends before a backlog builds up
        observer.warn(f"{budget}: the host CPU may become the bottleneck; lower link.host or --ranks")
    if short := shortfall(options, plan.propagation.bdp_packets):
        observer.warn(short)
    workers = worker_count(plan)
    _check_memory(plan, workers)
    factor = ECN_FACTORS.get(options.congestion_profile, 1)
    with (
        owners.lock(lab.name, work="run"),
        faults_for_run(lab, faults, observer) as clock,
        ecn_for_run(lab, factor, observer),
    ):
        health.check_ports(lab)
        check_room(lab, plan)
        if pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir):
            observer.warn("the PFC agent and its keeper did not run, and were restarted")
        with writing(lab, head_of(lab, plan)) as writer:
            evidence_before = collect_before(lab, state_parts(lab))
            fabric_before = FabricReading.of(lab, evidence_before)
            if not fabric_before.converged:
                observer.warn(f"the fabric is degraded: {fabric_before.text()}")
            for reorders in (expected := reordering(evidence_before.hashing, plan, transport)):
                observer.warn(reorders)
            with recording(lab, options.bucket_ns, _summary(plan), writer.draft.path) as queues:
                head = replace(writer.head, before=fabric_before)
                if table is not None:
                    table.head(head)

                def measured(size: int, results: Mapping[int, SizeResult]) -> None:
                    writer.rows.append(_row(plan, size, results))
                    if table is not None:
                        table.row(writer.rows[-1])

                with (
                    _hosts_ready(plan, transport, netns),
                    crew_of(plan, transport, netns, workers) as crew,
                    queues.during(lambda: crew.began_ns),
                    clock.during(lambda: crew.began_ns),
                ):
                    reports = crew.run(observer, lambda: wait_until_delivered(lab), measured)
                    ended_ns = time.monotonic_ns()
                    (observer.end if table is None else observer.drop)("run")
                clock.finish()
                flows = flow_rows(plan, transport, reports)
                sent, received = [row.sent for row in flows], [row.received or 0 for row in flows]
                evidence = collect_after(lab, evidence_before, sent, received, crew.seconds, state_parts(lab))
                moved = dict.fromkeys([*evidence.changed, *evidence.switched, *clock.rerouted()])
                fabric = FabricState(fabric_before, FabricReading.of(lab, evidence.after), tuple(moved))
                measured_run = MeasuredRun(
                    plan, transport, reports, flows, crew.phases, budget, crew.began_ns, ended_ns,
                    queues.finish(crew.began_ns), clock,
                )  # fmt: skip
                result = RunResult.of(
                    replace(head, ecmp=label(lab)),  # the hashing may have been changed during the run
                    measured_run,
                    writer.rows,
                    fabric_state=fabric,
                    warnings=(*fabric.warnings(), *expected, *queues.remarks, *clock.remarks),
                )
            times = result.part(FaultTimes)
            requested = () if times is None else times.outages()
            return writer.finish(result, replace(evidence, requested=requested))


def head_of(lab: Lab, plan: Plan) -> RunHead:
    """Data of a run that begins now."""
    record = state.read_record(lab.name)
    return RunHead(
        lab=lab.name,
        fabric=(record.source if record else "") or lab.fabric.name,
        when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        k=plan.k,
        ecmp=label(lab),
        options=plan.options,
        ranks=plan.endpoints,
        qps=len(plan.qps),
        communicators=plan.communicators,
        split=describe(lab.fabric, plan.endpoints, plan.communicators),
        propagation=plan.propagation,
    )


def _hosts_ready(plan: Plan, transport: Transport, netns: Mapping[str, Path]) -> AbstractContextManager[None]:
    """The hosts' own stack for the duration of the run, if the transport uses it."""
    return transport.stack.ready(plan, netns) if transport.stack is not None else nullcontext()


def plan_run(fabric: Fabric, options: RunOptions, more_ns: int = 0) -> tuple[Plan, Transport]:
    """The plan and transport of a run; InputError for options that the fabric or the transport does not support,
    MachineError when hosts here have no stack for the transport.

    more_ns: what faults of links add to the longest path, see build_plan.
    """
    kind = find_transport(options.transport)
    stack = kind.stack
    if stack is None:
        plan = build_plan(fabric, options, more_ns)
    else:
        plan = build_plan(fabric, options, more_ns, stack.before_first, nics_delay=False)
    congestion_of(plan)  # its parameters and those of faults are checked before anything starts
    faults_on(fabric, options.faults)
    transport = kind.of(plan)
    if options.fastpath == "on" and (reason := why_not_compiled(plan, transport)):
        raise InputError(Problem("", "--fastpath on", f"is not possible with {reason}", "leave --fastpath out"))
    if stack is not None:
        stack.require()
    return plan, transport


def _summary(plan: Plan) -> str:
    """`incast over 16 ranks, 4 MiB, 1 QP`."""
    o = plan.options
    sizes = " to ".join(format_size(size) for size in dict.fromkeys((o.sizes[0], o.sizes[-1])))
    qps = f"{o.qps} QP{'' if o.qps == 1 else 's'}"
    parts = f" in {len(plan.communicators)} communicators" if len(plan.communicators) > 1 else ""
    return f"{o.collective} over {len(plan.endpoints)} ranks{parts}, {sizes}, {qps}"


def budget_of(plan: Plan, transport: Transport) -> machine.PacketBudget:
    """Data packets per second: the plan's maximum, and what this machine can forward with the NICs of this plan."""
    rates = [e.rate_bps for e in plan.endpoints]
    every = machine.wanted_pps(rates, payload_bytes(plan), LAYOUTS[plan.ip_version].overhead_bytes)
    wanted = every * plan.options.pattern.receivers(plan.size) // plan.size
    return machine.PacketBudget(wanted, machine.budget_pps(compiled=compiled(plan, transport)))


def payload_bytes(plan: Plan) -> int:
    """Mean payload of a data packet of the largest size, in bytes; messages split over many QPs give small packets."""
    options, pattern = plan.options, plan.options.pattern
    longest = pattern.longest(plan.size, max(options.sizes) // pattern.element_bytes) * pattern.element_bytes
    message = min(longest, options.chunk)
    part = part_sizes(message, options.qps)[0][1] if options.qp_mode == "split" else message
    return part // -(-part // plan.ib_mtu)


def total_packets(plan: Plan) -> int:
    """Estimated number of data packets that all ranks send in the whole run."""
    o, pattern = plan.options, plan.options.pattern
    each = sum(pattern.volume(plan.size, size // pattern.element_bytes) for size in o.sizes) * pattern.element_bytes
    return each * (o.iters + o.warmup) * len(plan.communicators) // max(1, payload_bytes(plan))


def _check_memory(plan: Plan, workers: int) -> None:
    """MachineError when the arrays do not fit into memory: a worker killed by the kernel could not report it."""
    needed = machine.memory_bytes(plan.options.sizes, len(plan.endpoints), workers, plan.options.pattern.in_place)
    free = machine.free_bytes()
    if needed > free:
        what = f"--size {max(plan.options.sizes)} on {len(plan.endpoints)} ranks"
        why = f"needs {format_size(needed)} of memory for its arrays, but only {format_size(free)} are free"
        raise MachineError(Problem("", what, why, "lower --size or --ranks"))


def _row(plan: Plan, size: int, results: Mapping[int, SizeResult]) -> SizeRow:
    """One line of the table from what each rank measured."""
    factor = plan.options.pattern.busbw_factor(plan.size)
    seconds = [each.seconds for each in results.values()]
    iterations = [each.iterations for each in results.values()]
    return size_row(size, plan.options.iters, factor, seconds, sum(each.wrong for each in results.values()), iterations)


def reordering(hashing: Mapping[str, SwitchHashing], plan: Plan, transport: Transport) -> list[str]:
    """What reorders packets. hashing: of each switch, by name."""
    if transport.any_order:
        return []
    flow = FlowArrays.of([plan.qps[0].flow])
    frame_ns = _frame_ns(plan)
    spraying, splitting, varying = [], [], []
    for row in hashing.values():
        if row.mode == "spray":
            spraying.append(row)
        elif row.mode in SPREADING and row.options.gap_ns < frame_ns:
            splitting.append(row)
        elif row.mode not in SPREADING and rule_of(row).spreads(flow):
            varying.append(row)
    why = f"transport {plan.options.transport} counts packets that arrive out of order as lost"
    able = ", ".join(name for name, kind in TRANSPORTS.items() if kind.any_order)
    use = f"use --transport {able}, which accepts any order"
    found = []
    if spraying:
        found.append(f"{_switches(len(spraying), 'spray', 'sprays')} packets, but {why}: {use}")
    if splitting:
        gap = max(row.options.gap_ns for row in splitting)
        found.append(
            f"{_switches(len(splitting), 'begin', 'begins')} a new flowlet after {format_duration(gap)}, but packets at"
            f" line rate are {format_duration(frame_ns)} apart: each may take another path, and {why}; set a longer"
            f" hash.gap, or {use}"
        )
    if varying:
        found.append(
            f"{_switches(len(varying), 'hash', 'hashes')} bytes that differ between packets of one QP (hash.udf), but"
            f" {why}: {use}"
        )
    return found


def _switches(count: int, many: str, one: str) -> str:
    return f"1 switch {one}" if count == 1 else f"{count} switches {many}"


def _frame_ns(plan: Plan) -> int:
    """The time of a full frame on the slowest NIC, in whole microseconds."""
    bits = 8 * (plan.ib_mtu + LAYOUTS[plan.ip_version].overhead_bytes)
    return bits * 10**6 // min(each.rate_bps for each in plan.endpoints) * 1000
