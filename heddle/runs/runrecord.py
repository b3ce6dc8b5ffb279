"""The record of one run: `run.json` in the run's directory.

In:  the outcome of a run (results.py), or the reason why it failed.
Out: RunRecord, typed, with a format number. It has all that a table of runs or a comparison of two runs needs. Flows
and evidence are in a separate file (measured.py), so that many records can be read quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import state
from heddle.base.version import VERSION
from heddle.runs.files import UnreadableError, read_object
from heddle.runs.results import RunOutcome
from heddle.runs.runtable import SizeRow
from heddle.traffic.communicators import Communicators
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import RunOptions

RECORD: Final = "run.json"
RUN_FORMAT: Final = 1  # format of a run's directory; increased by every change that an older Heddle cannot read


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

    @property
    def state(self) -> str:
        """`done`, `failed` or `interrupted`."""
        return "interrupted" if self.interrupted else "failed" if self.outcome is None else "done"

    @property
    def measured(self) -> tuple[SizeRow, ...]:
        """The sizes that were measured, also of a run that did not finish."""
        return self.rows if self.outcome is None else self.outcome.rows

    @property
    def why_not_done(self) -> str:
        """The first line of the reason why it failed or was interrupted."""
        return self.failure[0].partition("\n")[0] if self.failure else "no reason is known"

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
    data = read_object(directory / RECORD, RUN_FORMAT)
    try:
        record = _ADAPTER.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the record"
        raise UnreadableError(f"{RECORD} is damaged: {where}: {first['msg']}") from None
    if not (record.rows if record.interrupted else record.outcome is None or record.outcome.rows):
        raise UnreadableError(f"{RECORD} is damaged: it has no result rows")
    return record
