"""Run one collective, or the jobs of a workload, on the ranks of a running lab, and store it as a run.

In:  a Lab (see heddle/lab/lifecycle.py), RunOptions or a Workload, an observer.
Out: RunRecord of each job, also kept in the lab's directory (store.py) with the evidence for `paths`. A TableListener
gets the head of the table, and each row as soon as it is measured. Programs on ranks: programs.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, Problems
from heddle.base.tables import some_of
from heddle.base.units import format_duration, format_size
from heddle.endpoints.congestion.controlled import with_control
from heddle.endpoints.connections import part_sizes
from heddle.endpoints.crew import Crew, Crews, Homes, Results, crews_of, worker_count
from heddle.endpoints.reports import WorkerReport
from heddle.endpoints.transports import TRANSPORTS, find_transport
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.worker import compiled, why_not_compiled
from heddle.fabric.hashmodes import SPREADING
from heddle.fabric.model import Fabric
from heddle.host import capacity
from heddle.host import capacity as machine
from heddle.lab import agents, attached, health
from heddle.lab.cutlinks import TunnelSpan, memory_named, tunnels_watched
from heddle.lab.fabricstate import FabricReading, FabricState, state_parts
from heddle.lab.faults.packets import extra_delay_ns
from heddle.lab.lab import Lab
from heddle.lab.livetrimming import as_running
from heddle.lab.queues import wait_empty
from heddle.lab.rehash import label
from heddle.lab.runfaults import FaultClock, PlannedFault, delays_of, faults_for_run, faults_on
from heddle.lab.snapshot import Snapshot
from heddle.lab.spread import concat, spread
from heddle.lab.thresholds import ecn_for_run
from heddle.offline.columns import cutting_of
from heddle.predict.forwarding import FlowArrays
from heddle.predict.predict import rule_of
from heddle.proof.collect import check_room, collect_after, collect_before, wait_until_delivered
from heddle.runs.measured import MeasuredRun, flow_rows
from heddle.runs.parts.faults import FaultTimes
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import Figures, SizeRow, figures
from heddle.runs.together import REPEATS, WorkloadResult
from heddle.runs.watching import Recording, recording
from heddle.runs.writer import RunWriter, begun, writing
from heddle.runtimes.sharded import ShardPlan
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.traffic.communicators import describe
from heddle.traffic.flow import Endpoint
from heddle.traffic.inflight import shortfall
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.traffic.workload import Job, Workload
from heddle.wire.layout import LAYOUTS

_MOST_PACE_S: Final = 600  # of an iteration: a period or a rate of hardware, scaled, can mean days


class TableListener(Protocol):
    """Receives the table of a run while it is measured; of a workload with several jobs, nothing."""

    def head(self, head: RunRecord) -> None:
        """The run is about to start."""

    def row(self, row: SizeRow) -> None:
        """A size was measured; the next one begins when this returns."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job with its plan for a fabric. budget: computed before it runs."""

    job: Job
    plan: Plan
    transport: Transport
    budget: machine.PacketBudget


def run(lab: Lab, options: RunOptions, observer: Observer, table: TableListener | None = None) -> RunRecord:
    """Run a collective. CheckError when a queue pair fails or a port has foreign queues; MachineError when a worker
    dies.

    A result with wrong elements is returned, not raised: `#wrong` is a result. The lab is locked meanwhile. A run that
    ends with one of these errors is kept as failed. An interrupted run keeps its measured sizes (RunInterruptedError).
    table: if given, it shows the end of the run, and the observer's line about that is omitted.
    """
    return run_workload(lab, Workload.of(options), observer, table).jobs[0]


def run_workload(
    lab: Lab, workload: Workload, observer: Observer, table: TableListener | None = None, only: str = ""
) -> WorkloadResult:
    """Run the jobs of a workload on one fabric, each with barriers of its own. Errors as of `run`.

    Each job is stored as a run of its own. Where one fails, the others end, and keep the sizes that they have measured.
    only: run this job alone, on the NICs that it has in the workload.
    """
    for stack in (find_transport(job.options.transport).stack for job in workload.jobs):
        if stack is not None and stack.only_here:
            lab.require_here(stack.only_here, "use another --transport, or run ./inv up FABRIC here")
    jobs, faults = plan_workload(lab.fabric, workload, lab)
    # Of all jobs, also for one alone: it is to run with equal settings.
    factor = max(1 if each.plan.control is None else each.plan.control.ecn_factor for each in jobs)
    if only:
        jobs = tuple(replace(each, job=each.job.alone()) for each in jobs if each.job.name == only)
    attached.check_free(lab, "run", {e.host for each in jobs for e in each.plan.endpoints})
    handles = lab.handles()
    netns = {e.host: handles[e.host].netns for each in jobs for e in each.plan.endpoints}
    workers = [worker_count(each.plan) for each in jobs]
    for warning in _warnings(jobs, as_running(lab).policy.queues):
        observer.warn(warning)
    check_memory(lab, [each.plan for each in jobs], workers)
    with (
        owners.lock(lab.name, work=f"run ({_summary(workload.name, jobs)})"),
        faults_for_run(lab, faults, observer) as clock,
        ecn_for_run(lab, factor, observer),
    ):
        made_ready(lab, observer)
        check_room(lab, *(each.plan for each in jobs))
        with ExitStack() as kept:
            writers = [kept.enter_context(writing(lab, head_of(lab, each, jobs, workload.name))) for each in jobs]
            return _Running(lab, workload.name, jobs, writers, clock).run(netns, workers, observer, table)


def run_with_interference(lab: Lab, workload: Workload, observer: Observer) -> WorkloadResult:
    """Run each job of a workload alone, then all of them together, REPEATS times. Errors as of `run`."""
    return WorkloadResult.compared([
        (
            [run_workload(lab, workload, observer, only=job.name).jobs[0] for job in workload.jobs],
            run_workload(lab, workload, observer),
        )
        for _ in range(REPEATS)
    ])  # fmt: skip


class _Running:
    """The jobs of a run from the first reading of the lab to the last."""

    def __init__(
        self, lab: Lab, name: str, jobs: Sequence[PlannedJob], writers: Sequence[RunWriter], clock: FaultClock
    ) -> None:
        self._lab, self._name, self._jobs, self._writers, self._clock = lab, name, jobs, writers, clock

    def run(
        self, netns: Mapping[str, Path], workers: Sequence[int], observer: Observer, table: TableListener | None
    ) -> WorkloadResult:
        """Run all jobs and store them."""
        lab, jobs, clock = self._lab, self._jobs, self._clock
        earlier = _left_before(lab)
        for text in earlier:
            observer.warn(text)
        before, fabric_before = read_before(lab, observer)
        expected = [reordering(before.hashing, each.plan, each.transport) for each in jobs]
        for reorders in dict.fromkeys(text for each in expected for text in each):
            observer.warn(reorders)
        span = TunnelSpan(lab)
        heads = [replace(writer.record, before=fabric_before) for writer in self._writers]
        bucket_ns, places = jobs[0].plan.options.bucket_ns, [writer.path for writer in self._writers]
        with recording(lab, bucket_ns, _summary(self._name, jobs), places) as queues:
            if table is not None:
                table.head(heads[0])
            crews, reports, ended_ns = self._measure(netns, workers, queues, observer, table)
            clock.finish()
            rows = [flow_rows(each.plan, each.transport, got) for each, got in zip(jobs, reports, strict=True)]
            every = [row for each in rows for row in each]
            sent, received = [row.sent for row in every], [row.received or 0 for row in every]
            seconds = crews.crews[0].seconds if len(jobs) == 1 else (ended_ns - crews.began_ns) / 1e9
            evidence = collect_after(lab, before, sent, received, seconds, state_parts(lab))
            evidence = replace(evidence, answered=tuple(row.answered for row in every))
            moved = dict.fromkeys([*evidence.changed, *evidence.switched, *clock.rerouted()])
            fabric = FabricState(fabric_before, FabricReading.of(lab, evidence.after), tuple(moved))
            record = queues.finish(crews.began_ns)
            span.end()
        warnings = (*earlier, *fabric.warnings())
        remarks = (*evidence.unplanned, *record.remarks, *clock.remarks)
        results = []
        for number, (each, writer, crew) in enumerate(zip(jobs, self._writers, crews.crews, strict=True)):
            measured = MeasuredRun(
                lab.fabric, each.plan, each.transport, reports[number], rows[number], crew.phases, each.budget,
                crews.began_ns, ended_ns, record, clock, sizes=writer.rows, tunnels=span,
            )  # fmt: skip
            span_s = (crew.began_ns - crews.began_ns) / 1e9, (crew.ended_ns - crews.began_ns) / 1e9
            times = FaultTimes.of_run(measured)
            asked = replace(evidence, requested=() if times is None else times.outages())
            measured = replace(measured, proof=writer.proof(asked))
            result = heads[number].finished(
                measured,
                ecmp=label(lab),  # the hashing may have been changed during the run
                fabric_state=fabric,
                warnings=(*warnings, *expected[number], *remarks),
                span_s=span_s if each.job.name else None,
            )
            results.append(writer.finish(result, asked, every))
        return WorkloadResult(self._name, tuple(results))

    def _measure(
        self,
        netns: Mapping[str, Path],
        workers: Sequence[int],
        queues: Recording,
        observer: Observer,
        table: TableListener | None,
    ) -> tuple[Crews, list[list[WorkerReport]], int]:
        """The packets of all jobs; with the time of the last report (CLOCK_MONOTONIC)."""
        writer_of = {each.job.name: writer for each, writer in zip(self._jobs, self._writers, strict=True)}
        found: dict[Crew, list[Figures]] = {}  # of the current size

        def measured(crew: Crew, number: int, results: Results) -> None:
            plan = crew.plan
            whole = len(plan.passes) // len(plan.options.sizes)
            found.setdefault(crew, []).append(_figures(plan, number, results))
            if len(found[crew]) < whole:
                return
            row = SizeRow.of(plan.passes[number][0], *found.pop(crew))
            writer_of[crew.job.name].add(number // whole, row)
            if table is not None:
                table.row(row)

        with ExitStack() as stack:
            stack.enter_context(memory_named(self._lab))
            stack.enter_context(tunnels_watched(self._lab, observer.warn))
            for each in self._jobs:
                if each.transport.stack is not None:
                    stack.enter_context(each.transport.stack.ready(each.plan, netns))
            triples = [(each.job, each.plan, each.transport) for each in self._jobs]
            crews = stack.enter_context(crews_of(triples, netns, workers, homes_of(self._lab)))
            stack.enter_context(queues.during(lambda: crews.began_ns))
            stack.enter_context(self._clock.during(lambda: crews.began_ns))
            try:
                reports = crews.run(observer, lambda: wait_until_delivered(self._lab), measured)
            except HeddleError as error:
                raise self._others_named(error, crews.failed) from None
            ended_ns = time.monotonic_ns()
            (observer.end if table is None else observer.drop)("run")
        return crews, reports, ended_ns

    def _others_named(self, error: HeddleError, failed: str) -> HeddleError:
        """The error of one job, which names the jobs that end with it; their writers keep them as interrupted."""
        others = [writer for writer in self._writers if failed and writer.record.job != failed]
        for writer in others:
            writer.because = f"job {failed} failed"
        ended = [Problem(f"job {each.record.job}", "the job", f"was ended, because {each.because}") for each in others]
        return type(error)(*error.problems, *ended)


def made_ready(lab: Lab, observer: Observer) -> None:
    """Check the ports, and restart the PFC agent if it does not run. CheckError for a port that no run can use."""
    health.check_ports(lab)
    if agents.restart(lab):
        observer.warn("the PFC agent and its keeper did not run, and were restarted")


def read_before(lab: Lab, observer: Observer) -> tuple[Snapshot, FabricReading]:
    """The lab and the state of its fabric before the first packet; counters of flows start here."""
    before = collect_before(lab, state_parts(lab))
    fabric = FabricReading.of(lab, before)
    if not fabric.converged:
        observer.warn(f"the fabric is degraded: {fabric.text()}")
    return before, fabric


def _left_before(lab: Lab) -> list[str]:
    """Wait for empty queues; a warning where packets of before the run stay."""
    ports = wait_empty(lab)
    before = "were not empty before this run: losses of these earlier packets are no figures of it"
    return [f"the queues of {some_of(ports)} {before}"] if ports else []


def homes_of(lab: Lab) -> Homes:
    """Where the workers of a lab's hosts run."""
    shards = lab.runtime.shards(lab.name)
    if shards is None:
        return Homes()
    return Homes({node.name: shards.of(node.name) for node in lab.fabric.hosts}, shards.module, {
        name: clock.ahead_ns for name, clock in shards.clocks().items()
    })  # fmt: skip


def head_of(lab: Lab, planned: PlannedJob, jobs: Sequence[PlannedJob], workload: str) -> RunRecord:
    """A run that begins now. jobs: all of the run."""
    plan = planned.plan
    return begun(
        lab,
        options=plan.options,
        ranks=plan.endpoints,
        qps=len(plan.qps),
        communicators=plan.communicators,
        split=describe(lab.fabric, plan.endpoints, plan.communicators),
        propagation=plan.propagation,
        job=planned.job.name,
        workload=workload,
        beside=tuple(f"{each.job.name}: {_summary_of(each.plan)}" for each in jobs if each is not planned),
        in_flight=None if planned.transport.lead else plan.in_flight,
    )


def plan_run(fabric: Fabric, options: RunOptions) -> tuple[Plan, Transport]:
    """The plan and transport of a run; errors as of `plan_workload`."""
    (planned,), _ = plan_workload(fabric, Workload.of(options))
    return planned.plan, planned.transport


def plan_workload(
    fabric: Fabric, workload: Workload, lab: Lab | None = None
) -> tuple[tuple[PlannedJob, ...], tuple[PlannedFault, ...]]:
    """The plan and transport of each job, and the faults of links. InputError for wrong options, MachineError where
    hosts here have no stack for the transport.

    lab: where it runs; timers take the delays of faults of its links into account, and the ends what `queues set` did.
    """
    workload.check()
    texts = tuple(dict.fromkeys(text for job in workload.jobs for text in job.options.faults))
    faults = faults_on(fabric, texts, here=lab is None or lab.runtime.here)
    more_ns = 0 if lab is None else extra_delay_ns(lab, delays_of(faults))
    problems, found, running = Problems(), [], fabric if lab is None else as_running(lab)
    for job, endpoints in zip(workload.jobs, workload.endpoints(fabric), strict=True):
        try:
            plan, transport = _plan_job(running, job, endpoints, more_ns)
        except InputError as error:
            problems.found += [job.keys.located(each) for each in error.problems]
            continue
        found.append(PlannedJob(job, plan, transport, budget_of(plan, transport)))
    problems.raise_if_any()
    return tuple(found), faults


def _plan_job(fabric: Fabric, job: Job, ends: tuple[Endpoint, ...], more_ns: int) -> tuple[Plan, Transport]:
    options, kind = job.options, find_transport(job.options.transport)
    shared = next((end.nic for end in ends if end.shared), "")
    if shared and kind.stack is not None and not kind.stack.shared:
        why = "cannot have several ranks with the kernel's own stack"
        raise InputError(job.problem("ranks", shared, why, "use another transport, or one rank for each NIC"))
    plan = job_plan(fabric, options, more_ns, ends, job.name)
    waits_s = max(plan.pattern.pace(0, size // plan.pattern.element_bytes) for size in options.sizes)
    if waits_s > _MOST_PACE_S:
        why = f"takes at least {waits_s:,.0f} s here (k = {fabric.policy.k}); the limit is {_MOST_PACE_S} s"
        hint = "set a shorter `every`, or a higher `rate`; ./inv predict --time forecasts any"
        raise InputError(Problem("", f"an iteration of {options.collective}", why, hint))
    transport = kind.of(plan)
    if options.fastpath == "on" and (reason := why_not_compiled(plan, transport)):
        raise InputError(Problem("", "--fastpath on", f"is not possible with {reason}", "leave --fastpath out"))
    if kind.stack is not None:
        kind.stack.require()
    return plan, transport


def _summary(name: str, jobs: Sequence[PlannedJob]) -> str:
    """`incast over 16 ranks, 4 MiB, 1 QP`; `two-tenants: a: all-reduce over 8 ranks, 1 MiB, 4 QPs; b: ...`."""
    if len(jobs) == 1:
        return _summary_of(jobs[0].plan)
    return f"{name}: " + "; ".join(f"{each.job.name}: {_summary_of(each.plan)}" for each in jobs)


def _summary_of(plan: Plan) -> str:
    """`incast over 16 ranks, 4 MiB, 1 QP`."""
    o = plan.options
    sizes = " to ".join(format_size(size) for size in dict.fromkeys((o.sizes[0], o.sizes[-1])))
    qps = f"{o.qps} QP{'' if o.qps == 1 else 's'}"
    parts = f" in {len(plan.communicators)} communicators" if len(plan.communicators) > 1 else ""
    return f"{o.collective} over {len(plan.endpoints)} ranks{parts}, {sizes}, {qps}"


def budget_of(plan: Plan, transport: Transport) -> machine.PacketBudget:
    """Data packets per second: the plan's maximum, and what this machine can forward with the NICs of this plan."""
    rates = [e.rate_bps for e in plan.endpoints]
    every = machine.wanted_pps(rates, payload_bytes(plan), cutting_of(plan).overhead)
    wanted = every * plan.pattern.receivers(plan.size) // plan.size
    carried = machine.budget_pps(compiled=compiled(plan, transport), cost_crcs=transport.packet_cost)
    return machine.PacketBudget(wanted, carried)


def payload_bytes(plan: Plan) -> int:
    """Mean payload of a data packet of the largest size, in bytes; messages split over many QPs give small packets."""
    options, pattern, cut = plan.options, plan.pattern, cutting_of(plan)
    longest = pattern.longest(plan.size, max(options.sizes) // pattern.element_bytes) * pattern.element_bytes
    message = min(longest, options.chunk)
    part = part_sizes(message, options.qps)[0][1] if options.qp_mode == "split" else message
    return (part + cut.lead) // -(-(part + cut.lead) // cut.ib_mtu)


def total_packets(plan: Plan) -> int:
    """Estimated number of data packets that all ranks send in the whole run."""
    o, pattern = plan.options, plan.pattern
    each = (
        sum(pattern.volume(plan.size, size // pattern.element_bytes) for size, _ in plan.passes) * pattern.element_bytes
    )
    return each * (o.iters + o.warmup) * len(plan.communicators) // max(1, payload_bytes(plan))


def _warnings(jobs: Sequence[PlannedJob], queues: QueuePolicy) -> Iterator[str]:
    wanted = sum(each.budget.wanted_pps for each in jobs)
    budget = machine.PacketBudget(wanted, min(each.budget.budget_pps for each in jobs))
    packets = sum(total_packets(each.plan) for each in jobs)
    if budget.exceeded and packets > budget.budget_pps:  # a shorter run ends before a backlog builds up
        yield f"{budget}: the host CPU may become the bottleneck; lower link.host or --ranks"
    dscps = [each.plan.options.dscp for each in jobs if not each.transport.numbering.protocol]
    yield from queues.lossy_data(*dict.fromkeys(dscps))
    for each in jobs:
        o = each.plan.options
        if not each.transport.lead and (short := shortfall(o.qps, o.window, each.plan.propagation.bdp_packets)):
            yield short


def _figures(plan: Plan, number: int, results: Results) -> Figures:
    """One of `Plan.passes` from what each rank measured."""
    size, factor, o = plan.passes[number][0], plan.pattern.busbw_factor(plan.size), plan.options
    seconds = [each.seconds for each in results.values()]
    iterations = [each.iterations for each in results.values()]
    wrong = sum(each.wrong for each in results.values())
    return figures(size, o.iters, factor, seconds, wrong, iterations, o.average)


def reordering(hashing: Mapping[str, SwitchHashing], plan: Plan, transport: Transport) -> list[str]:
    """What reorders packets. hashing: of each switch, by name."""
    if transport.any_order or transport.numbering.protocol:  # only RoCEv2 is sprayed
        return []
    flow = FlowArrays.of([plan.qps[0].flow])
    # Of a full frame on the slowest NIC, in whole microseconds.
    bits = 8 * (plan.ib_mtu + LAYOUTS[plan.ip_version].overhead_bytes)
    frame_ns = bits * 10**6 // min(each.rate_bps for each in plan.endpoints) * 1000
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


@spread(concat)
def free_memory(lab: Lab) -> list[int]:
    """Bytes that are free, in each shard: below the limit of its pod, and on its node."""
    return [capacity.free_bytes()]


def check_memory(lab: Lab, plans: Sequence[Plan], workers: Sequence[int]) -> None:
    """MachineError when they do not fit: a worker killed by the kernel could not report it.

    workers: of each plan. Problems name the shards.
    """
    shards = {} if lab.runtime.here else ShardPlan.read(lab.name).shards
    home = {node: name for name, nodes in shards.items() for node in nodes}
    problems = []
    for name, free in zip(shards or [""], free_memory(lab), strict=True):
        needs = [(_bytes_at(each, number, name, home), each) for each, number in zip(plans, workers, strict=True)]
        if (needed := sum(each for each, _ in needs)) > free:
            largest = max(needs, key=lambda each: each[0])[1]
            what = f"--size {max(largest.options.sizes)} on {len(largest.endpoints)} ranks"
            of_them = " for the arrays of its ranks" if name else " for its arrays"
            why = f"needs {format_size(needed)} of memory{of_them}, but only {format_size(free)} are free"
            hint = "lower --size or --ranks" + (", or bring the lab up with more --shards" if name else "")
            problems.append(Problem(f"shard {name}" if name else "", what, why, hint))
    if problems:
        raise MachineError(*problems)


def _bytes_at(plan: Plan, workers: int, shard: str, home: dict[str, str]) -> int:
    """Bytes of a plan's arrays in one shard. home: host -> its shard; shard: empty for this machine."""
    places = [home.get(end.host, "") for end in plan.endpoints]
    if not (ranks := places.count(shard)):
        return 0
    return array_bytes(plan, max(1, workers // len({*places})), ranks)


def array_bytes(plan: Plan, workers: int, ranks: int | None = None) -> int:
    """Bytes of a plan's arrays, for so many of its ranks (default: all) in so many processes."""
    pattern = plan.pattern
    width, in_place = pattern.element_bytes, all(placed for _, placed in plan.passes)
    held = [width * pattern.held(plan.size, size // width) for size in plan.options.sizes]
    return capacity.memory_bytes(held, len(plan.endpoints) if ranks is None else ranks, workers, in_place)


def job_plan(
    fabric: Fabric,
    options: RunOptions,
    more_ns: int = 0,
    endpoints: tuple[Endpoint, ...] | None = None,
    job: str = "",
) -> Plan:
    """The plan of a job; more_ns, endpoints and job as in build_plan."""
    kind = find_transport(options.transport)
    plan = build_plan(
        fabric, options, more_ns, kind.numbering, kind.stack is None, endpoints, job, kind.spread(options)
    )  # fmt: skip
    return with_control(plan)
