"""What the workers report at the end of a run: a row per flow, and all that the parts of a result are made from.

In:  the plan, its transport, the reports of the workers; the Evidence that was collected around the run.
Out: FlowRow per flow, MeasuredRun; rows and evidence in `evidence.json` of the run's directory. proof/evidence.py
defines the format of evidence and flows; this module adds the counters of receivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from heddle.base import state
from heddle.runs.files import read_object, undamaged
from heddle.traffic.flow import Sent
from heddle.wire.layout import AETH_BYTES, LAYOUTS

if TYPE_CHECKING:
    from heddle.endpoints.countercolumn import Column
    from heddle.endpoints.reports import QpReport, WorkerReport
    from heddle.endpoints.transports.protocol import Transport
    from heddle.host.capacity import PacketBudget
    from heddle.host.saturation import Phase
    from heddle.lab.runfaults import FaultClock
    from heddle.proof.evidence import Evidence
    from heddle.runs.series import QueueRecord
    from heddle.traffic.plan import Plan, Qp


EVIDENCE: Final = "evidence.json"  # flows and evidence of a run, in its directory


@dataclass(frozen=True, slots=True)
class FlowRow:
    """Packets sent on one QP, and their counters.

    ce: data packets that arrived with the mark Congestion Experienced. counters: of the transport, by the keys of its
    columns. received: data packets that reached the receiving NIC, also copies and those with a wrong ICRC; None in
    older runs, which did not record it.
    """

    sent: Sent
    ce: int
    counters: Mapping[str, int]
    received: int | None = None

    def to_json(self) -> dict[str, Any]:
        """One flat row: the transport's counters are between bytes and marks."""
        return {**self.sent.to_json(), **self.counters, "ce": self.ce, "received": self.received}


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run after its last packet. began_ns, ended_ns: the first barrier, and the reports of all workers
    (CLOCK_MONOTONIC). phases: one per size. budget: computed before the run. queues: recorded while it ran.
    """

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

    @property
    def counters(self) -> dict[str, int]:
        """The sum of each counter over all flows."""
        return {key: sum(flow.counters[key] for flow in self.flows) for key in self.flows[0].counters}

    @property
    def icrc_errors(self) -> int | None:
        """Packets with a wrong ICRC or another malformation; None: the hosts' own stack does not report it."""
        return sum_known(
            None if nic.counters is None else nic.counters.icrc_errors + nic.counters.malformed
            for report in self.reports for nic in report.nics
        )  # fmt: skip

    @property
    def stray(self) -> int | None:
        """Packets of no queue pair of the run; None: the hosts' own stack does not report it."""
        return sum_known(
            None if nic.counters is None else nic.counters.stray for report in self.reports for nic in report.nics
        )


def sum_known(counts: Iterable[int | None]) -> int | None:
    """The sum; None when one of them is not known."""
    known = list(counts)
    return None if None in known else sum(each for each in known if each is not None)


def columns_of(plan: Plan, transport: Transport) -> tuple[Column, ...]:
    """The counters of each flow: those of the transport, and of congestion control and admission if they are on."""
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS
    from heddle.endpoints.congestion.controlled import CNP_COLUMNS

    cnps = CNP_COLUMNS if plan.options.congestion != "none" else ()
    return (*transport.columns, *cnps, *(ADMISSION_COLUMNS if plan.options.admission else ()))


def flow_rows(plan: Plan, transport: Transport, reports: Sequence[WorkerReport]) -> tuple[FlowRow, ...]:
    """The flows in order of the plan's QPs; of a QP that sprays, a row for each of its source ports."""
    from heddle.endpoints.admission.ctsends import ADMISSION_COLUMNS

    no_cts = {column.key: 0 for column in ADMISSION_COLUMNS}  # only the first QP of a connection carries CTS
    ends = {(end.rank, end.qpn): end for report in reports for end in report.qps}
    columns = columns_of(plan, transport)
    ack_bytes = LAYOUTS[plan.ip_version].overhead_bytes + AETH_BYTES
    rows = []
    for qp in plan.qps:
        sender, receiver = ends[qp.flow.src_rank, qp.src_qpn], ends[qp.flow.dst_rank, qp.flow.qpn]
        counted = {**no_cts, **sender.counters, **receiver.counters}
        counters = {column.key: counted[column.key] for column in columns}
        # Switches and the receiving NIC count ACKs of CTS packets with the data: addresses, port and QP are the same.
        acks = counters.get("cts_acks", 0)
        extra = (acks, acks * ack_bytes)
        if len(qp.sports) == 1:
            sent = Sent(qp.flow, sender.packets + extra[0], sender.bytes + extra[1])
            rows.append(FlowRow(sent, receiver.ce, counters, receiver.taken + sum(receiver.damaged.values())))
        else:
            rows += _sprayed_rows(qp, sender, receiver, counters, extra)
    return tuple(rows)


def _sprayed_rows(
    qp: Qp, sender: QpReport, receiver: QpReport, counters: Mapping[str, int], extra: tuple[int, int]
) -> Iterator[FlowRow]:
    """A row for each source port of a QP that sprays. The first one has the QP's counters and marks.

    extra: packets and bytes of the sender's ACKs of CTS packets, which use the first port.
    """
    nothing = dict.fromkeys(counters, 0)
    acks_taken = receiver.taken - sum(taken for taken, _ in receiver.by_sport.values()) if any(extra) else 0
    for flow in qp.flows:
        packets, size = sender.by_sport.get(flow.sport, (0, 0))
        taken = receiver.by_sport.get(flow.sport, (0, 0))[0] + receiver.damaged.get(flow.sport, 0)
        if flow.sport == qp.flow.sport:
            sent = Sent(flow, packets + extra[0], size + extra[1])
            yield FlowRow(sent, receiver.ce, counters, taken + acks_taken)
        else:
            yield FlowRow(Sent(flow, packets, size), 0, nothing, taken)


@dataclass(frozen=True, slots=True)
class _Received:
    """The part of a FlowRow that evidence does not have."""

    ce: int
    counters: Mapping[str, int]


_RECEIVED: Final = TypeAdapter(tuple[_Received, ...])


def write_evidence(directory: Path, flows: Sequence[FlowRow], evidence: Evidence) -> None:
    """Write evidence.json atomically. flows: those of the evidence, in its order."""
    rows = _RECEIVED.dump_python(tuple(_Received(row.ce, row.counters) for row in flows), mode="json")
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
        rows = zip(evidence.sent, received, taken, strict=True)
        return tuple(FlowRow(sent, each.ce, each.counters, count) for sent, each, count in rows), evidence
