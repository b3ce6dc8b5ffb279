"""The outcome of a run: its rows, its totals, and its parts.

A part is what one mechanism did in the run (its queues, its congestion control). It is a frozen value with `lines()`
for the table and `to_json()` for the document. A new part is a module with the value and its function of MeasuredRun,
and a line in RunParts: table, document, run.json and stored runs follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from pydantic import JsonValue

from heddle.endpoints.countercolumn import Column
from heddle.lab.fabricstate import FabricState
from heddle.runs.admissionuse import AdmissionUse
from heddle.runs.machineuse import MachineUse
from heddle.runs.measured import MeasuredRun, columns_of
from heddle.runs.queueuse import QueueUse
from heddle.runs.rates import CongestionUse
from heddle.runs.runtable import SizeRow

if TYPE_CHECKING:
    from heddle.proof.verdict import PathsResult

_OF: Final = "of"


class RunPart(Protocol):
    """What one mechanism did in a run."""

    def lines(self) -> list[str]:
        """Lines of the table's footer."""

    def to_json(self) -> dict[str, Any]:
        """Its key of the run's document."""


def _made(of: Callable[[MeasuredRun], RunPart | None]) -> Mapping[str, Any]:
    return {_OF: of}


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run; None for a mechanism that the run did not use. `queues` is recorded while it runs."""

    machine: MachineUse = field(metadata=_made(MachineUse.of_run))
    queues: QueueUse | None = None
    congestion: CongestionUse | None = field(default=None, metadata=_made(CongestionUse.of_run))
    admission: AdmissionUse | None = field(default=None, metadata=_made(AdmissionUse.of_run))

    def parts(self) -> dict[str, RunPart | None]:
        """By name, in the order of the table."""
        return {each.name: getattr(self, each.name) for each in fields(RunParts)}


def parts_of(measured: MeasuredRun) -> dict[str, Any]:
    """The parts of a run that follow from what the workers reported."""
    return {each.name: each.metadata[_OF](measured) for each in fields(RunParts) if _OF in each.metadata}


@dataclass(frozen=True, slots=True)
class Carrier:
    """The transport of a run: its name, its parameters, and the meaning of its columns in the rows of flows."""

    name: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    @classmethod
    def of_run(cls, measured: MeasuredRun) -> Self:
        """The transport of a run."""
        plan, transport = measured.plan, measured.transport
        return cls(plan.options.transport, transport.parameters(), columns_of(plan, transport))

    def to_json(self) -> dict[str, Any]:
        """`transport` of the run's document."""
        columns = [{"key": column.key, "unit": column.unit, "text": column.text} for column in self.columns]
        return {"name": self.name, "parameters": dict(self.parameters), "columns": columns}


@dataclass(frozen=True, slots=True)
class ProofSummary:
    """The verdict on a run's paths at its end. MMR: max/mean over the uplinks; None when no packet was sent."""

    agree: bool
    qps: int
    unproven: int
    sources: tuple[str, ...]
    mmr_flows: float | None
    mmr_bytes: float | None

    @classmethod
    def of(cls, proof: PathsResult) -> ProofSummary:
        """The summary of a proof."""
        unproven = sum(1 for each in proof.flows if each.why)
        return cls(proof.agree, len(proof.flows), unproven, proof.sources, proof.mmr.flows, proof.mmr.bytes)


@dataclass(frozen=True, kw_only=True)
class RunOutcome(RunParts):
    """The measured part of a finished run, as it is stored. proof: None where no verdict was possible.

    counters: of the transport, summed over all queue pairs. icrc_errors, stray: None where the hosts' own stack does
    not report them. fabric_state: before and after the run.
    """

    rows: tuple[SizeRow, ...]
    icrc_errors: int | None
    stray: int | None
    transport: Carrier = field(default_factory=Carrier)
    counters: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    proof: ProofSummary | None = None
    fabric_state: FabricState | None = None

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes and ranks."""
        return sum(row.wrong for row in self.rows)

    @property
    def largest(self) -> SizeRow:
        """The row of the largest size."""
        return max(self.rows, key=lambda row: row.size)
