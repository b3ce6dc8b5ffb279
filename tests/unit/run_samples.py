"""Runs for tests that need none: a record, a result and its evidence, as a run on preset tiny would leave them."""

from __future__ import annotations

from dataclasses import replace

from heddle.endpoints.transports.rc import Rc
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.snapshot import Snapshot
from heddle.proof.evidence import PARTS, Evidence
from heddle.runs.measured import FlowRow
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.part import RunPart
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import Carrier, ProofSummary, RunRecord
from heddle.runs.runtable import SizeRow
from heddle.traffic.flow import Flow, Sent
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.readers import parse_source_ports

FABRIC = load_fabric("tiny").fabric
OPTIONS = RunOptions(sizes=(1 << 16, 1 << 22), qps=16, source_ports=parse_source_ports("list:50000,50001"))
PROOF = ProofSummary(True, 64, 0, ("prediction", "oracle", "counters"), 1.25, 1.3)
USE = QueueUse(3, {"buffer": 2}, 5, 2, 1, 12.5, 0, 60_000, "rtsw1:eth3 class 3", 10.0)


def sent(qpn: int = 266718, packets: int = 7, size: int = 900, first_hop: str = "rtsw1:eth3") -> Sent:
    """One flow, host1 to host3, and what was sent of it."""
    flow = Flow("host1", "host3", "10.0.0.1", "10.0.1.1", 50000, qpn, first_hop, src_rank=0, dst_rank=2)
    return Sent(flow, packets, size)


def flow_row(qpn: int = 266718, packets: int = 7) -> FlowRow:
    """The same with what was received."""
    return FlowRow(sent(qpn, packets), 0, {column.key: at for at, column in enumerate(Rc.columns)})


def result(options: RunOptions = OPTIONS) -> RunRecord:
    """A run of some sizes."""
    rows = tuple(
        SizeRow(size, 1000.0 + at, 0.01 * (at + 1), 0.015 * (at + 1), 0) for at, size in enumerate(options.sizes)
    )
    parts = {"queues": USE, "machine": MachineUse(0.4, 0.3, 0.02, 0, 0, 1000, 2000)}
    return replace(
        header(options), in_flight=build_plan(FABRIC, options).in_flight, done=True, rows=rows,
        flows=(flow_row(), flow_row(qpn=266719, packets=9)), parts=parts, icrc_errors=0, stray=0,
        counters={column.key: 2 * at for at, column in enumerate(Rc.columns)}, warnings=("a warning",),
        transport=Carrier("rc", {"window": 64}, Rc.columns),
    )  # fmt: skip


def having(run: RunRecord, **parts: RunPart | None) -> RunRecord:
    """The same run with other parts; None: without that part."""
    found = {**run.parts, **parts}
    return replace(run, parts={name: part for name, part in found.items() if part is not None})


def header(options: RunOptions = OPTIONS, ecmp: str = "e-ecmp") -> RunRecord:
    """What is known before a run."""
    plan = build_plan(FABRIC, options)
    return RunRecord("zone", "tiny", "2026-03-01T14:25:30Z", 4000, ecmp, options, plan.endpoints, len(plan.qps))


def record(options: RunOptions = OPTIONS, proof: ProofSummary | None = PROOF, ecmp: str = "e-ecmp") -> RunRecord:
    """A run that ended well, without an ID."""
    return replace(result(options), seconds=2.5, proof=proof, ecmp=ecmp, flows=(), in_flight=None)


def failed() -> RunRecord:
    """A run that failed."""
    why = "rank 1 on host2:eth1: QP 12 got no acknowledgement after 7 retries\n  hint: ./inv status"
    return replace(header(), seconds=1.5, failure=(why,))


def interrupted() -> RunRecord:
    """A run that Ctrl-C ended after the first of its two sizes."""
    rows = result().rows[:1]
    why = ("interrupted after 1 of 2 sizes",)
    return replace(header(), seconds=1.5, failure=why, interrupted=True, rows=rows)


def evidence(flows: int = 2) -> Evidence:
    """Evidence without a switch: enough to be written and read."""
    nothing = Snapshot("zone", PARTS, {}, 0)
    rows = result().flows[:flows]
    return Evidence(nothing, nothing, tuple(row.sent for row in rows), (("rtsw1:eth1", "ctsw1:eth2"),) * flows)
