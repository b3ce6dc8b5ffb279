"""The record of one run: `run.json` in the run's directory.

In:  RunResult and PathsResult of a run, or the reason why it failed.
Out: RunRecord, typed, with a format number. It has all that a table of runs or a comparison of two runs needs. Flows
and evidence are in a separate file (runevidence.py), so that many records can be read quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import state
from heddle.base.version import VERSION
from heddle.lab.fabricstate import FabricState
from heddle.runs.admissionuse import AdmissionUse
from heddle.runs.machineuse import MachineUse
from heddle.runs.queueuse import QueueUse
from heddle.runs.rates import CongestionUse
from heddle.runs.readable import UnreadableError, read_object
from heddle.runs.results import Carrier, RunResult
from heddle.runs.runtable import SizeRow
from heddle.traffic.communicators import Communicators
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import RunOptions

if TYPE_CHECKING:
    from heddle.proof.verdict import PathsResult

RECORD: Final = "run.json"
RUN_FORMAT: Final = 1  # format of a run's directory; increased by every change that an older Heddle cannot read


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


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Data of a run before its first packet. when: UTC, ISO 8601. fabric: preset, file or lab name."""

    lab: str
    fabric: str
    when: str
    k: int
    ecmp: str
    options: RunOptions
    ranks: tuple[Endpoint, ...]
    qps: int  # queue pairs of all connections together
    communicators: Communicators = ()  # ranks that run the collective together, each in order


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The measured part of a finished run; see RunResult. proof: None where no verdict was possible."""

    rows: tuple[SizeRow, ...]
    machine: MachineUse
    icrc_errors: int | None
    stray: int | None
    transport: Carrier
    counters: Mapping[str, int]  # of the transport, summed over all queue pairs
    warnings: tuple[str, ...]
    queues: QueueUse | None
    proof: ProofSummary | None
    fabric_state: FabricState | None = None  # before and after the run
    congestion: CongestionUse | None = None
    admission: AdmissionUse | None = None

    @classmethod
    def of(cls, result: RunResult, proof: ProofSummary | None) -> RunOutcome:
        """From the result of a run."""
        return cls(
            rows=result.rows,
            machine=result.machine,
            icrc_errors=result.icrc_errors,
            stray=result.stray,
            transport=result.transport,
            counters={
                column.key: sum(flow.counters[column.key] for flow in result.flows)
                for column in result.transport.columns
            },
            warnings=result.warnings,
            queues=result.queues,
            proof=proof,
            fabric_state=result.fabric_state,
            congestion=result.congestion,
            admission=result.admission,
        )

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes and ranks."""
        return sum(row.wrong for row in self.rows)

    @property
    def busbw(self) -> float:
        """GB/s of the largest size, emulated."""
        return max(self.rows, key=lambda row: row.size).busbw


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. outcome: None when the run failed or was interrupted; then failure has the reasons, a line each.

    rows: the sizes that such a run had measured. seconds: wall time from the first step to the last reading. id:
    assigned when the run ends.
    """

    header: RunHeader
    seconds: float
    outcome: RunOutcome | None
    failure: tuple[str, ...] = ()
    id: str = ""
    heddle: str = VERSION
    interrupted: bool = False
    rows: tuple[SizeRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data; format, Heddle's version and ID come first, for human readers."""
        data: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return {"format": RUN_FORMAT, "heddle": data["heddle"], "id": data["id"], **data}


_ADAPTER: Final = TypeAdapter(RunRecord)


def write_record(directory: Path, record: RunRecord) -> None:
    """Write run.json atomically."""
    state.write_json(directory / RECORD, record.to_json(), indent=1)


def read_record(directory: Path) -> RunRecord:
    """Read run.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / RECORD)
    found = data.get("format")
    if found != RUN_FORMAT:
        raise UnreadableError(f"{RECORD} has format {found!r}, and this Heddle reads format {RUN_FORMAT}")
    try:
        record = _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        raise UnreadableError(f"{RECORD} is damaged: {where}: {first['msg']}") from None
    if not (record.rows if record.interrupted else record.outcome is None or record.outcome.rows):
        raise UnreadableError(f"{RECORD} is damaged: it has no result rows")
    return record
