"""Runs for tests that need none: a record, a result and its evidence, as a run on preset tiny would leave them."""

from __future__ import annotations

from dataclasses import replace

from heddle.endpoints.transports.rc import Rc
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.snapshot import Snapshot
from heddle.proof.evidence import PARTS, Evidence, SentFlow
from heddle.runs.queueuse import QueueUse
from heddle.runs.results import Carrier, FlowRow, MachineUse, RunResult, SizeRow
from heddle.runs.runrecord import ProofSummary, RunHeader, RunOutcome, RunRecord
from heddle.traffic.options import RunOptions, parse_source_ports
from heddle.traffic.plan import Flow, build_plan

FABRIC = load_fabric("tiny").fabric
OPTIONS = RunOptions(sizes=(1 << 16, 1 << 22), qps=16, source_ports=parse_source_ports("list:50000,50001"))
PROOF = ProofSummary(True, 64, 0, ("prediction", "oracle", "counters"), 1.25, 1.3)
USE = QueueUse(3, {"buffer": 2}, 5, 2, 1, 12.5, 0, 60_000, "rtsw1:eth3 class 3", 10.0)


def flow_row(**keys: int | str) -> FlowRow:
    """One flow, host1 to host3."""
    row = FlowRow(
        src="host1", dst="host3", src_rank=0, dst_rank=2, src_ip="10.0.0.1", dst_ip="10.0.1.1", sport=50000, dport=4791,
        qpn=266718, first_hop="rtsw1:eth3", packets=7, bytes=900, ce=0,
        counters={column.key: at for at, column in enumerate(Rc.columns)},
    )  # fmt: skip
    return replace(row, **keys)  # type: ignore[arg-type]


def result(options: RunOptions = OPTIONS) -> RunResult:
    """A run of some sizes."""
    rows = tuple(
        SizeRow(size, 1000.0 + at, 0.01 * (at + 1), 0.015 * (at + 1), 0) for at, size in enumerate(options.sizes)
    )
    use = MachineUse(0.4, 0.3, 0.02, 0, 0, 1000, 2000)
    return RunResult(
        lab="zone", k=4000, ecmp="e-ecmp", options=options, endpoints=build_plan(FABRIC, options).endpoints, rows=rows,
        flows=(flow_row(), flow_row(qpn=266719, packets=9)), machine=use, icrc_errors=0, stray=0,
        warnings=("a warning",), queues=USE, transport=Carrier("rc", {"window": 64}, Rc.columns),
    )  # fmt: skip


def header(options: RunOptions = OPTIONS, ecmp: str = "e-ecmp") -> RunHeader:
    """What is known before a run."""
    plan = build_plan(FABRIC, options)
    return RunHeader("zone", "tiny", "2026-03-01T14:25:30Z", 4000, ecmp, options, plan.endpoints, len(plan.qps))


def record(options: RunOptions = OPTIONS, proof: ProofSummary | None = PROOF, ecmp: str = "e-ecmp") -> RunRecord:
    """A run that ended well, without an ID."""
    return RunRecord(header(options, ecmp), 2.5, RunOutcome.of(result(options), proof))


def failed() -> RunRecord:
    """A run that failed."""
    why = "rank 1 on host2:eth1: QP 12 got no acknowledgement after 7 retries\n  hint: ./inv status"
    return RunRecord(header(), 1.5, None, (why,))


def evidence(flows: int = 2) -> Evidence:
    """Evidence without a switch: enough to be written and read."""
    nothing = Snapshot("zone", PARTS, {}, 0)
    return Evidence(nothing, nothing, sent()[:flows], (("rtsw1:eth1", "ctsw1:eth2"),) * flows)


def sent() -> tuple[SentFlow, ...]:
    """The flows of `result`."""
    return tuple(
        SentFlow(Flow(f.src, f.dst, f.src_ip, f.dst_ip, f.sport, f.qpn, f.first_hop, f.dport), f.packets, f.bytes)
        for f in result().flows
    )
