"""What the workers report at the end of a run: a row per flow, and all that the parts of a result are made from.

In:  the plan, its transport, the reports of the workers; the Evidence that was collected around the run.
Out: FlowRow per flow, MeasuredRun; rows and evidence in `evidence.json` of the run's directory. proof/evidence.py
defines the format of evidence and flows; this module adds the counters of receivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from heddle.base import state
from heddle.runs.files import read_object, undamaged
from heddle.traffic.flow import Sent

if TYPE_CHECKING:
    from heddle.endpoints.countercolumn import Column
    from heddle.endpoints.nic.nic import NicCounters
    from heddle.endpoints.reports import WorkerReport
    from heddle.endpoints.transports.protocol import Transport
    from heddle.fabric.model import Fabric
    from heddle.host.capacity import PacketBudget, Phase
    from heddle.lab.cutlinks import TunnelSpan
    from heddle.lab.runfaults import FaultClock
    from heddle.proof.evidence import Evidence
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runtable import SizeRow
    from heddle.runs.series import QueueRecord
    from heddle.runs.timeline import Timeline
    from heddle.traffic.plan import Plan


EVIDENCE: Final = "evidence.json"  # flows and evidence of a run, in its directory


@dataclass(frozen=True, slots=True)
class FlowRow:
    """Packets sent on one QP, and their counters.

    ce: data packets that arrived with the mark Congestion Experienced. counters: of the transport, by the keys of its
    columns. received: data packets that reached the receiving NIC, also copies and those with a wrong ICRC; damaged:
    these; both None in older runs, which did not record them. answered: packets that came back to the sender's kernel,
    which has the stream; 0: not known.
    """

    sent: Sent
    ce: int
    counters: Mapping[str, int]
    received: int | None = None
    damaged: int | None = None
    answered: int = 0

    def to_json(self) -> dict[str, Any]:
        """One flat row: the transport's counters are between bytes and marks."""
        arrived = {"ce": self.ce, "received": self.received, "damaged": self.damaged}
        return {**self.sent.to_json(), **self.counters, **arrived}


@dataclass(frozen=True)
class MeasuredRun:
    """A run of a fabric after its last packet. began_ns, ended_ns: the first barrier, and the reports of all workers
    (CLOCK_MONOTONIC). phases: one per size. budget: computed before the run. queues: recorded while it ran. proof: of
    its paths; None where no verdict is possible. sizes: the rows of the table. tunnels: of cut links; None if they were
    not read.
    """

    fabric: Fabric
    plan: Plan
    transport: Transport
    reports: Sequence[WorkerReport]
    flows: tuple[FlowRow, ...]
    phases: Sequence[Phase]
    budget: PacketBudget
    began_ns: int
    ended_ns: int
    queues: QueueRecord
    faults: FaultClock
    proof: PathsResult | None = None
    sizes: Sequence[SizeRow] = ()
    tunnels: TunnelSpan | None = None

    @cached_property
    def timeline(self) -> Timeline:
        """Iterations and messages over time."""
        from heddle.runs.timeline import Timeline

        return Timeline.of_reports(self.plan, self.reports, self.began_ns)

    @property
    def counters(self) -> dict[str, int]:
        """The sum of each counter over all flows; the mean of a state over those that were used."""
        means = {column.key for column in self.transport.columns if column.mean}
        found = {key: sum(flow.counters[key] for flow in self.flows) for key in self.flows[0].counters}
        used = max(1, sum(flow.sent.packets > 0 for flow in self.flows))
        return {key: round(count / used) if key in means else count for key, count in found.items()}

    def at_nics(self, count: Callable[[NicCounters], int]) -> int | None:
        """The sum over all NICs of one count; None: the hosts' own stack does not report it."""
        return sum_known(
            None if nic.counters is None else count(nic.counters) for report in self.reports for nic in report.nics
        )


def sum_known(counts: Iterable[int | None]) -> int | None:
    """The sum; None when one of them is not known."""
    known = list(counts)
    return None if None in known else sum(each for each in known if each is not None)


def columns_of(plan: Plan, transport: Transport) -> tuple[Column, ...]:
    """The counters of each flow: those of the transport, and of congestion control and admission if they are on."""
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS
    from heddle.endpoints.congestion.controlled import CNP_COLUMNS

    cnps = CNP_COLUMNS if plan.control is not None else ()
    return (*transport.columns, *cnps, *(ADMISSION_COLUMNS if plan.admission is not None else ()))


def flow_rows(plan: Plan, transport: Transport, reports: Sequence[WorkerReport]) -> tuple[FlowRow, ...]:
    """The flows that the ends report, in order of the plan's QPs; of each QP, a row for each source port.

    The first row of a QP has its counters and marks. Ports that the plan does not have follow those of the plan, which
    are there also where no end used them.
    """
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS
    from heddle.endpoints.nic.qpend import PathUse
    from heddle.endpoints.transports.rc import TRIM_COLUMNS

    # Only the first QP of a connection carries CTS, and the compiled loop takes no trimmed packets.
    absent = {column.key: 0 for column in (*ADMISSION_COLUMNS, *TRIM_COLUMNS)}
    ends = {(end.rank, end.qpn): end for report in reports for end in report.qps}
    columns = columns_of(plan, transport)
    rows = []
    for qp in plan.qps:
        sender, receiver = ends[qp.flow.src_rank, qp.src_qpn], ends[qp.flow.dst_rank, qp.flow.qpn]
        counted = {**absent, **sender.counters, **receiver.counters}
        ce, counters = receiver.ce, {column.key: counted[column.key] for column in columns}
        again = transport.again_dscp if counted.get("retransmitted") else -1
        planned, used = {flow.sport: flow for flow in qp.flows}, {use.sport: use for use in sender.sent}
        taken = Counter({use.sport: use.packets for use in receiver.received})
        broken = Counter[int]()
        for sport, packets in receiver.damaged.items():  # the port of a damaged frame may be wrong, too
            broken[sport if sport in planned or sport in used else qp.flow.sport] += packets
        taken += broken
        for sport in {**planned, **used, **taken}:
            flow, use = planned.get(sport) or replace(qp.flow, sport=sport), used.get(sport) or PathUse(sport, 0)
            sent = Sent(flow, use.packets, use.bytes, planned=sport in planned, again=again)
            back = 0 if flow.has_qp else sum(use.packets for use in sender.received)
            rows.append(FlowRow(sent, ce, counters, taken[sport], broken[sport], back))
            ce, counters = 0, dict.fromkeys(counters, 0)
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Received:
    """The part of a FlowRow that evidence does not have."""

    ce: int
    counters: Mapping[str, int]
    damaged: int | None = None


_RECEIVED: Final = TypeAdapter(tuple[_Received, ...])


def write_evidence(directory: Path, flows: Sequence[FlowRow], evidence: Evidence) -> None:
    """Write evidence.json atomically. flows: those of the evidence, in its order."""
    rows = _RECEIVED.dump_python(tuple(_Received(row.ce, row.counters, row.damaged) for row in flows), mode="json")
    state.write_json(directory / EVIDENCE, {"received": rows, "evidence": evidence.to_json()})


def read_evidence(directory: Path) -> tuple[tuple[FlowRow, ...], Evidence]:
    """Read evidence.json. UnreadableError with the reason when that is not possible."""
    from heddle.proof.evidence import Evidence

    data = read_object(directory / EVIDENCE)
    with undamaged(EVIDENCE):
        received, evidence = _RECEIVED.validate_python(data["received"]), Evidence.from_json(data["evidence"])
        if not len(evidence.oracle) == len(evidence.sent) == len(received):
            raise ValueError("flows without evidence")
        taken = evidence.received or (None,) * len(evidence.sent)
        rows = zip(evidence.sent, received, taken, evidence.answered or (0,) * len(evidence.sent), strict=True)
        return tuple(FlowRow(sent, r.ce, r.counters, count, r.damaged, back) for sent, r, count, back in rows), evidence
