"""The result of a run: the nccl-tests table, a row per QP, and JSON. runtable.py has the table's head and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import JsonValue

from heddle.base.units import emulated_words
from heddle.endpoints.countercolumn import Column
from heddle.fabric.hashmodes import SPREADING
from heddle.lab.fabricstate import FabricState
from heddle.runs.admissionuse import AdmissionUse
from heddle.runs.machineuse import MachineUse
from heddle.runs.queueuse import QueueUse
from heddle.runs.rates import CongestionUse, Rates
from heddle.runs.runtable import RunHead, SizeRow, degraded_line
from heddle.traffic.communicators import Communicators
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.flow import Sent
from heddle.traffic.options import RunOptions
from heddle.traffic.propagation import Propagation


@dataclass(frozen=True, slots=True)
class FlowRow:
    """Packets sent on one QP, and their counters.

    ce: data packets that arrived with the mark Congestion Experienced. counters: of the transport, by the keys of its
    columns. received: data packets that the receiving NIC accepted, including duplicates; None in older runs, which
    did not record it.
    """

    sent: Sent
    ce: int
    counters: Mapping[str, int]
    received: int | None = None

    def to_json(self) -> dict[str, Any]:
        """One flat row: the transport's counters are between bytes and marks."""
        return {**self.sent.to_json(), **self.counters, "ce": self.ce, "received": self.received}


@dataclass(frozen=True, slots=True)
class Carrier:
    """The transport of a run: its name, its parameters, and the meaning of its columns in the rows of flows."""

    name: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """`transport` of the run's document."""
        columns = [{"key": column.key, "unit": column.unit, "text": column.text} for column in self.columns]
        return {"name": self.name, "parameters": dict(self.parameters), "columns": columns}


@dataclass(frozen=True, slots=True)
class RunResult:
    """The whole result of a run."""

    lab: str
    k: int
    ecmp: str
    options: RunOptions
    endpoints: tuple[Endpoint, ...]
    rows: tuple[SizeRow, ...]
    flows: tuple[FlowRow, ...]
    machine: MachineUse
    icrc_errors: int | None  # None, here and in `stray`: the hosts' own stack does not report it
    stray: int | None
    warnings: tuple[str, ...] = field(default=())
    queues: QueueUse | None = None
    transport: Carrier = field(default_factory=Carrier)
    communicators: Communicators = ()
    split: str = ""  # in words, where there are several communicators
    propagation: Propagation | None = None
    fabric_state: FabricState | None = None  # before and after the run
    congestion: CongestionUse | None = None
    rates: Rates | None = None  # of its queue pairs over time, with congestion control
    admission: AdmissionUse | None = None  # with admission, or with slow hosts
    nic_loop: str = ""  # which code drove the NICs: compiled, python
    run_id: str = ""  # its ID in the lab's history; see history.py

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes and ranks."""
        return sum(row.wrong for row in self.rows)

    @property
    def busbw(self) -> float:
        """The average over sizes, GB/s, as in the last line of nccl-tests."""
        return sum(row.busbw for row in self.rows) / len(self.rows)

    @property
    def head(self) -> RunHead:
        """The table's part above its rows."""
        before = self.fabric_state.before if self.fabric_state is not None else None
        return RunHead(
            self.lab, self.k, self.ecmp, self.options, self.endpoints,
            self.communicators, self.split, self.propagation, before,
        )  # fmt: skip

    def counted(self, line: Literal["packets", "order"]) -> list[tuple[Column, list[int]]]:
        """The transport's columns that a line of the table shows, each with the number of every QP."""
        shown = [column for column in self.transport.columns if column.line == line]
        first = self.flows[:: self.options.entropy]  # of each QP: its other flows are its other source ports
        return [(column, [flow.counters[column.key] for flow in first]) for column in shown]

    def to_json(self) -> dict[str, Any]:
        """The document that `--format json` prints."""
        return {
            "lab": self.lab,
            "run_id": self.run_id or None,
            "ecmp": self.ecmp,
            "transport": self.transport.to_json(),
            "options": asdict(self.options),
            "ranks": [{"rank": e.rank, "host": e.host, "port": e.port} for e in self.endpoints],
            "propagation": self.propagation.to_json() if self.propagation is not None else None,
            "in_flight": self.head.in_flight.to_json(),
            "communicators": [list(ranks) for ranks in self.communicators],
            "results": [asdict(row) for row in self.rows],
            "avg_busbw": self.busbw,
            "flows": [flow.to_json() for flow in self.flows],
            "emulated": {"k": self.k, "means": emulated_words(self.k)},
            "nic_loop": self.nic_loop,
            "unreliable": [asdict(cause) for cause in self.machine.unreliable],
            "machine": self.machine.to_json(),
            "icrc_errors": self.icrc_errors,
            "stray": self.stray,
            "queues": self.queues.to_json() if self.queues is not None else None,
            "congestion": self._congestion_json(),
            "admission": asdict(self.admission) if self.admission is not None else None,
            "fabric_state": self.fabric_state.to_json() if self.fabric_state is not None else None,
            "warnings": list(self.warnings),
        }

    def _congestion_json(self) -> dict[str, Any] | None:
        if self.congestion is None:
            return None
        return {**asdict(self.congestion), "rates": self.rates.to_json() if self.rates is not None else []}

    def table(self, short: bool = False) -> str:
        """The whole table in nccl-tests' text format, with Heddle's own lines after `#`.

        short: without the ranks and the in-place columns (which are never measured here), 80 columns wide.
        """
        head = self.head
        lines = [*head.lines(short), *(head.row(row, short) for row in self.rows), *self.foot(short)]
        return "\n".join(lines) + "\n"

    def foot(self, short: bool = False) -> list[str]:
        """The table's part below its rows."""
        lines = self._foot()
        if self.run_id and not short:
            lines.insert(-1, f"#run      : {self.run_id}; ./inv runs lists the runs of {self.lab}")
        return lines

    def _foot(self) -> list[str]:
        events: list[tuple[int | None, str]] = [(sum(v), column.text) for column, v in self.counted("packets")]
        events += [(self.icrc_errors, "with a wrong ICRC"), (self.stray, "stray")]
        lines = [
            *self.machine.lines(),
            *self._fabric_since(),
            f"# Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}",
            f"# Avg bus bandwidth    : {self.busbw:g}",
            self.head.emulated_line(),
        ]
        if any(count for count, _ in events):
            lines.append(
                "#packets  : " + ", ".join(f"{'-' if count is None else count} {text}" for count, text in events)
            )
        lines += self.queues.lines() if self.queues is not None else []
        lines += self.congestion.lines() if self.congestion is not None else []
        lines += self.admission.lines() if self.admission is not None else []
        lines += self._order()
        lines.extend(f"#warning  : {w}" for w in self.warnings)
        lines.append(f"# Collective test concluded: {self.options.collective}")
        return lines

    def _fabric_since(self) -> list[str]:
        """One line where the fabric was converged before the run, but not during or after it."""
        state = self.fabric_state
        if state is None or not state.before.converged or state.word == "converged":
            return []
        if state.word == "changed":
            return ["#fabric   : routes or hashing changed during this run: do not compare it"]
        return [degraded_line("after", state.after)]

    def _order(self) -> list[str]:
        """The transport's counters on the order of arrival."""
        lines = []
        for column, values in self.counted("order"):
            total, qps = sum(values), sum(1 for value in values if value)
            if total:
                packets = f"{total} packet{'' if total == 1 else 's'} {column.text}"
                lines.append(f"#order    : {packets} on {qps} of {len(values)} QPs")
        one_path = self.options.entropy == 1 and not any(mode in self.ecmp for mode in SPREADING)
        if lines and one_path:
            lines.append("#order    : each QP uses one path: packets were lost, or routes changed (see ./inv validate)")
        return lines
