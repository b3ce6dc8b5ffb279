"""The record of one run: `run.json` in the run's directory.

In:  the outcome of a run (results.py), or the reason why it failed.
Out: RunRecord, typed, with a format number. It has all that a table of runs or a comparison of two runs needs. Flows
and evidence are in a separate file (measured.py), so that many records can be read quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from heddle.base import state
from heddle.base.problems import InputError
from heddle.base.tables import many
from heddle.base.version import VERSION
from heddle.runs.files import UnreadableError, read_object, typed, undamaged
from heddle.runs.parts import PARTS
from heddle.runs.results import RunOutcome, Unfit, unfit
from heddle.runs.runtable import RunHead, SizeRow
from heddle.traffic.options import RunOptions, as_tuples
from heddle.traffic.sequence import PartSequence

RECORD: Final = "run.json"
ID: Final = re.compile(r"[0-9]{4,9}")
_OF_EVERY_RUN: Final = frozenset(each.name for each in fields(RunOptions))
_OF_PROGRAMS: Final = ("ranks", "placement", "sizes")
RUN_FORMAT: Final = 1  # format of a run's directory; increased by every change that an older Heddle cannot read


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. outcome: None when the run failed or was interrupted; then failure has the reasons, a line each.

    rows: the sizes that such a run had measured. seconds: wall time from the first step to the last reading. id:
    assigned when the run ends.
    """

    header: RunHead
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
    def wrong(self) -> int:
        """Wrong elements of all sizes that were measured."""
        return sum(row.all_wrong for row in self.measured)

    def unfit(self, size: int | None = None) -> Unfit | None:
        """Why no verdict rests on it; one that did not finish has its rows alone. size: as in results.py."""
        if self.outcome is not None:
            return unfit(self.outcome, size)
        return Unfit("wrong data", many(self.wrong, "wrong element")) if self.wrong else None

    @property
    def why_not_done(self) -> str:
        """The first line of the reason why it failed or was interrupted."""
        unknown = "it is a program's" if self.header.launch else "no reason is known"
        return self.failure[0].partition("\n")[0] if self.failure else unknown

    def to_json(self) -> dict[str, Any]:
        """Plain data; format, Heddle's version and ID come first, for human readers."""
        data: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", exclude={"header": _TABLE_ONLY})
        from heddle.endpoints.runoptions import own_options

        options = data["header"]["options"]
        del options["own"]
        options |= own_options(self.header.options)
        if self.header.launch:
            data["header"]["options"] = {name: options[name] for name in _OF_PROGRAMS}
        if (outcome := data["outcome"]) is not None:
            outcome |= outcome.pop("parts")  # a key for each part
        return {"format": RUN_FORMAT, "heddle": data["heddle"], "id": data["id"], **data}


_ADAPTER: Final = TypeAdapter(RunRecord)
_TABLE_ONLY: Final = {"split", "propagation", "before", "in_flight"}  # of the head


def write_record(directory: Path, record: RunRecord) -> None:
    """Write run.json atomically."""
    state.write_json(directory / RECORD, record.to_json(), indent=1)


def _gather_own(data: Mapping[str, Any]) -> None:
    """Options that a transport or a congestion control declares, which a record has beside the others."""
    header = data.get("header")
    options = header.get("options") if isinstance(header, dict) else None
    if not isinstance(options, dict):
        return
    if found := {name: options.pop(name) for name in options.keys() - _OF_EVERY_RUN}:
        from heddle.endpoints.runoptions import own_fields  # it loads all transports

        chosen = {"transport": options.get("transport"), "cc": options.get("congestion")}
        usual = {each.name: each.usual for word, name, each in own_fields() if chosen.get(word) == name}
        given = {name: as_tuples(each) for name, each in found.items()}
        options["own"] = {name: given[name] for name in usual if name in given and given[name] != usual[name]}


def read_record(directory: Path) -> RunRecord:
    """Read run.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / RECORD, RUN_FORMAT)
    _gather_own(data)
    if isinstance(outcome := data.get("outcome"), dict):
        outcome["parts"] = {name: outcome.get(name) for name in PARTS}
    with undamaged(RECORD):
        record = typed(_ADAPTER, data)
    if why := next(_contradictions(record), ""):
        raise UnreadableError(f"{RECORD} is damaged: {why}")
    return record


def _contradictions(record: RunRecord) -> Iterator[str]:
    """What no run has: values of the right type that the readers of a record cannot use."""
    header, rows = record.header, record.measured
    options = header.options
    try:
        state.check_name(header.lab)
        pattern = options.pattern
        _ = pattern.parts if isinstance(pattern, PartSequence) else ()
    except InputError as error:
        yield str(error.problems[0]).partition("\n")[0]
    if not ID.fullmatch(record.id):
        yield f"its ID is {record.id[:20]!r}"
    if header.launch:
        if "--" not in header.launch[:-1] or not header.ranks or record.seconds < 0:
            yield "it has no program or no ranks"
        return
    if not (rows if record.interrupted else record.outcome is None or rows):
        yield "it has no result rows"
    if not options.sizes or not header.ranks:
        yield "it has no sizes or no ranks"
    counts = [header.k, header.qps, options.iters, options.qps, options.chunk, options.bucket_ns]
    counts += [*options.sizes, *(row.size for row in rows), *(rank.rate_bps for rank in header.ranks)]
    if min(counts) < 1:
        yield "it has a number below 1"
    measured = [each for row in rows for each in row.all]
    times = [record.seconds, *(us for each in measured for us in each.iteration_us)]
    if min(options.warmup, *times) < 0 or not all(each.time_us > 0 and each.busbw > 0 for each in measured):
        yield "it has a time or a bandwidth that no run has"
    if any(each.wrong < 0 for each in measured):
        yield "it has fewer than 0 wrong elements"
