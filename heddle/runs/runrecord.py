"""One run, from before its first packet to its record: `run.json` in its directory, its table, and its document.

In:  what is known of a run before its first packet; then what was measured, or the reason why it failed.
Out: RunRecord. runtable.py has the head and the rows of its table. Its file has all that a table of runs or a
comparison of two runs needs. Flows and evidence have a file of their own (measured.py): records are read quickly.

Unfit: why no verdict may rest on a run. Wrong data and unproven paths exclude a run always. An unreliable run may count
where a user says so, and the verdict then names it. A run that could have no verdict on its paths (`proof` is None) is
not unproven: nothing contradicts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter

from heddle.base import state
from heddle.base.problems import InputError
from heddle.base.tables import many
from heddle.base.units import emulated_words
from heddle.base.version import VERSION
from heddle.endpoints.countercolumn import Column
from heddle.fabric.hashmodes import SPREADING
from heddle.host.capacity import Cause
from heddle.lab.fabricstate import FabricState
from heddle.runs.files import UnreadableError, read_object, typed, undamaged
from heddle.runs.measured import FlowRow, MeasuredRun, columns_of
from heddle.runs.parts import PARTS, Parts, parts_of
from heddle.runs.parts.part import MARK, Courses, RunPart, TimeSpan
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runtable import RunHead, SizeRow, degraded_line
from heddle.traffic.options import RunOptions, as_tuples
from heddle.traffic.sequence import PartSequence

if TYPE_CHECKING:
    from heddle.proof.verdict import PathsResult

P = TypeVar("P", bound=RunPart)
RECORD: Final = "run.json"
ID: Final = re.compile(r"[0-9]{4,9}")
RUN_FORMAT: Final = 1  # format of a run's directory; increased by every change that an older Heddle cannot read


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
        columns = [{"key": column.key, "unit": column.unit, "text": column.text} for column in self.columns]
        return {"name": self.name, "parameters": dict(self.parameters), "columns": columns}


@dataclass(frozen=True, slots=True)
class ProofSummary:
    """The verdict on a run's paths at its end. MMR: max/mean over the uplinks; None when no packet was sent.

    spread: QPs whose packets may take several paths; None in runs of an older Heddle.
    """

    agree: bool
    qps: int
    unproven: int
    sources: tuple[str, ...]
    mmr_flows: float | None
    mmr_bytes: float | None
    spread: int | None = None

    @classmethod
    def of(cls, proof: PathsResult) -> ProofSummary:
        """The summary of a proof."""
        unproven, spread = sum(bool(each.why) for each in proof.flows), sum(each.spread for each in proof.flows)
        return cls(proof.agree, len(proof.flows), unproven, proof.sources, proof.mmr.flows, proof.mmr.bytes, spread)


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunHead):
    """One run. done: it came to its end. interrupted: the user or another job ended it.

    id: in the lab's store, assigned when the run ends. seconds: wall time from the first step to the last reading.
    failure: why it is not done, a line each. rows: the sizes that were measured, also of a run that is not done.
    counters: of the transport, summed over all queue pairs. icrc_errors (also malformed packets), stray (of no queue
    pair of the run), foreign (for another MAC): None where the hosts' own stack does not report them. proof: None where
    no verdict was possible. fabric_state: before and after the run. exit_code: of a program. span_s: of a job, from
    when to when it ran, in seconds after the first barrier of all jobs. parts: each is also an attribute by its name.
    Not in its file: flows; courses of its parts, over time, see RunPart; nic_loop, the code that drove the NICs.
    """

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)  # courses are not in its file

    id: str = ""
    heddle: str = VERSION
    seconds: float = 0.0
    done: bool = False
    interrupted: bool = False
    failure: tuple[str, ...] = ()
    parts: Parts = field(default_factory=dict)
    rows: tuple[SizeRow, ...] = ()
    icrc_errors: int | None = None
    stray: int | None = None
    transport: Carrier = field(default_factory=Carrier)
    counters: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    proof: ProofSummary | None = None
    fabric_state: FabricState | None = None
    exit_code: int | None = None
    foreign: int | None = None
    span_s: tuple[float, float] | None = None
    flows: tuple[FlowRow, ...] = ()
    courses: Mapping[str, tuple[str, Courses]] = field(default_factory=dict)
    nic_loop: str = ""

    if not TYPE_CHECKING:  # for tests of users; Heddle uses `part`, which has a type

        def __getattr__(self, name: str) -> Any:
            if name not in PARTS:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            return self.parts.get(name)

    def part(self, kind: type[P]) -> P | None:
        """The part of a class; None when the run did not use the mechanism."""
        return next((part for part in self.parts.values() if isinstance(part, kind)), None)

    def __getitem__(self, kind: type[P]) -> P:
        """The part of a class. KeyError when the run did not use the mechanism."""
        if (found := self.part(kind)) is None:
            raise KeyError(kind.__name__)
        return found

    @property
    def doubts(self) -> tuple[Cause, ...]:
        """Causes why figures of the run are unreliable; empty for a run that can be trusted."""
        return tuple(cause for part in self.parts.values() for cause in part.doubts())

    @property
    def times(self) -> tuple[TimeSpan, ...]:
        """Times that pictures of the run mark."""
        return tuple(span for part in self.parts.values() for span in part.times())

    @property
    def limited(self) -> bool:
        """True when the host CPU was or may have been the bottleneck."""
        return bool(self.doubts)

    @property
    def overrun(self) -> bool:
        """True when it certainly was: a worker had no idle time, or packets were lost."""
        return any(cause.sure for cause in self.doubts)

    @property
    def lost(self) -> dict[str, int] | None:
        """Cause -> lost packets; None when no part counted losses."""
        found = [losses for part in self.parts.values() if (losses := part.lost()) is not None]
        return {cause: count for losses in found for cause, count in losses.items()} if found else None

    def finished(self, measured: MeasuredRun, **known: Any) -> Self:
        """The finished run, from the reports of the workers. known: the fields that they do not report."""
        courses = {name: kind.courses(measured) for name, kind in PARTS.items()}
        parts = parts_of(measured)
        # What a switch has cut is malformed, too, for ends that have no use for it. Whether one cuts may change live.
        trims = any(each.trims for each in parts.values() if isinstance(each, QueueUse))
        return replace(
            self,
            done=True,
            parts=parts,
            courses={name: each for name, each in courses.items() if each is not None},
            rows=tuple(measured.sizes),
            flows=measured.flows,
            icrc_errors=measured.at_nics(lambda nic: nic.icrc_errors + nic.malformed * (not trims)),
            stray=measured.at_nics(lambda nic: nic.stray),
            foreign=measured.at_nics(lambda nic: nic.foreign),
            transport=Carrier.of_run(measured),
            counters=measured.counters,
            nic_loop=", ".join(dict.fromkeys(report.loop for report in measured.reports)),
            proof=None if measured.proof is None else ProofSummary.of(measured.proof),
            **known,
        )

    @property
    def state(self) -> str:
        """`done`, `failed` or `interrupted`."""
        return "interrupted" if self.interrupted else "done" if self.done else "failed"

    @property
    def wrong(self) -> int:
        """Wrong elements over all sizes and ranks."""
        return sum(row.all_wrong for row in self.rows)

    @property
    def largest(self) -> SizeRow:
        """The row of the largest size."""
        return max(self.rows, key=lambda row: row.size)

    @property
    def why_not_done(self) -> str:
        """The first line of the reason why it failed or was interrupted."""
        unknown = "it is a program's" if self.launch else "no reason is known"
        return self.failure[0].partition("\n")[0] if self.failure else unknown

    @property
    def busbw(self) -> float:
        """The average over all measurements, GB/s, as in the last line of nccl-tests."""
        return fmean(each.busbw for row in self.rows for each in row.all)

    def counted(self, line: Literal["packets", "order"]) -> list[tuple[Column, list[int]]]:
        """The transport's columns that a line of the table shows, each with the number of every QP that is not 0."""
        shown = [column for column in self.transport.columns if column.line == line]
        return [(c, [flow.counters[c.key] for flow in self.flows if flow.counters[c.key]]) for c in shown]

    def to_json(self) -> dict[str, Any]:
        from heddle.endpoints.runoptions import plain

        parts = {name: self.parts[name].to_json() if name in self.parts else None for name in PARTS}
        for name, (key, courses) in self.courses.items():
            parts[name] = {**(parts[name] or {}), key: courses.to_json()}
        return {
            "lab": self.lab,
            "run_id": self.id or None,
            **({"job": self.job, "span_s": self.span_s} if self.job else {}),
            **({"workload": self.workload} if self.workload else {}),
            "ecmp": self.ecmp,
            "transport": self.transport.to_json(),
            "options": plain(self.options),
            "ranks": [{"rank": e.rank, "host": e.host, "port": e.port} for e in self.ranks],
            "propagation": self.propagation.to_json() if self.propagation is not None else None,
            "in_flight": self.in_flight.to_json() if self.in_flight is not None else None,
            "communicators": [list(ranks) for ranks in self.communicators],
            "results": [asdict(row) for row in self.rows],
            "avg_busbw": self.busbw,
            "flows": [flow.to_json() for flow in self.flows],
            "emulated": {"k": self.k, "means": emulated_words(self.k)},
            "nic_loop": self.nic_loop,
            "unreliable": [asdict(cause) for cause in self.doubts],
            "icrc_errors": self.icrc_errors,
            "stray": self.stray,
            "for_another_mac": self.foreign,
            **parts,
            "fabric_state": self.fabric_state.to_json() if self.fabric_state is not None else None,
            "warnings": list(self.warnings),
        }

    def table(self, short: bool = False) -> str:
        """The whole table in nccl-tests' text format, with Heddle's own lines after `#`.

        short: without the ranks, and with the columns of one measurement only, 80 columns wide.
        """
        lines = [*self.lines(short), *(self.row(row, short) for row in self.rows), *self.foot(short)]
        return "\n".join(lines) + "\n"

    def foot(self, short: bool = False, plain: bool = False) -> list[str]:
        """The table's part below its rows. plain: of Heddle's own lines only those that say what to trust."""
        lines = self._foot(plain)
        if self.id and not short and not plain:
            lines.insert(-1, f"#run      : {self.id}; ./inv runs lists the runs of {self.lab}")
        return lines

    def _foot(self, plain: bool) -> list[str]:
        return [
            *self._job_lines(),
            *(f"{MARK} {line}" for part in self.parts.values() for line in part.doubt_lines()),
            *self._fabric_since(),
            f"# Out of bounds values : {self.wrong} {'FAILED' if self.wrong else 'OK'}",
            f"# Avg bus bandwidth    : {self.busbw:g}",
            self.emulated_line(),
            *([] if plain else self._own_foot()),
            f"# Collective test concluded: {self.program}",
        ]

    def _own_foot(self) -> Iterator[str]:
        events: list[tuple[int | None, str]] = [(sum(v), column.text) for column, v in self.counted("packets")]
        events += [(self.icrc_errors, "with a wrong ICRC"), (self.stray, "stray")]
        events += [(self.foreign, "for another MAC")] if self.foreign else []
        if any(count for count, _ in events):
            yield "#packets  : " + ", ".join(f"{'-' if count is None else count} {text}" for count, text in events)
        for part in self.parts.values():
            yield from part.lines()
        yield from self._order()
        yield from (f"#warning  : {w}" for w in self.warnings)

    def _job_lines(self) -> list[str]:
        """One line about a job of several: queues, drops and the verdict on paths are of all of them."""
        if self.span_s is None:
            return []
        begin, end = self.span_s
        ran = f"job {self.job} of {self.workload}, from {begin:.2f} s to {end:.2f} s of the run"
        more = f"; beside {'; '.join(self.beside)}" if self.beside else " alone"
        return [
            f"#job      : {ran}{more}",
            *(["#job      : queues, drops and paths are of all jobs"] * bool(self.beside)),
        ]

    def _fabric_since(self) -> list[str]:
        """One line where the fabric was converged before the run, but not during or after it."""
        state = self.fabric_state
        if state is None or not state.before.converged or state.word == "converged":
            return []
        if state.word == "changed":
            return ["#fabric   : routes or hashing changed during this run: do not compare it"]
        return [degraded_line("after", state.after)]

    def _order(self) -> list[str]:
        lines, qps = [], len({(each.sent.flow.dst_ip, each.sent.flow.qpn) for each in self.flows})
        for column, values in self.counted("order"):
            if total := sum(values):
                packets = f"{total} packet{'' if total == 1 else 's'} {column.text}"
                lines.append(f"#order    : {packets} on {len(values)} of {qps} QPs")
        one_path = qps == len(self.flows) and not any(mode in self.ecmp for mode in SPREADING)
        if lines and one_path:
            trimmed = (use := self.part(QueueUse)) is not None and use.trims
            why = "trimmed (see ./inv queues)" if trimmed else "lost, or routes changed (see ./inv validate)"
            lines.append(f"#order    : each QP uses one path: packets were {why}")
        return lines


_ADAPTER: Final = TypeAdapter(RunRecord)
_OF_EVERY_RUN: Final = frozenset(each.name for each in fields(RunOptions))
_OF_PROGRAMS: Final = ("ranks", "placement", "sizes")
_NOT_STORED: Final = {"split", "propagation", "before", "in_flight", "flows", "courses", "nic_loop"}
# Groups of the file; `rows` are in the outcome of a run that is done.
_HEADER: Final = [each.name for each in fields(RunHead) if each.name not in _NOT_STORED]
_ITSELF: Final = ("heddle", "id", "seconds", "failure", "interrupted")
_OUTCOME: Final = [
    each.name for each in fields(RunRecord) if each.name not in {*_HEADER, *_ITSELF, *_NOT_STORED, "done", "parts"}
]
_VERDICTS: Final = ("rows", "proof", "icrc_errors", "stray", "counters", "transport")


def plain_record(record: RunRecord) -> dict[str, Any]:
    """Plain data as in its file; format, Heddle's version and ID come first, for human readers."""
    from heddle.endpoints.runoptions import own_options

    flat = _ADAPTER.dump_python(record, mode="json", exclude=_NOT_STORED)
    options = flat["options"]
    del options["own"]
    options |= own_options(record.options)
    if record.launch:
        flat["options"] = {name: options[name] for name in _OF_PROGRAMS}
    outcome = {**{name: flat[name] for name in _OUTCOME}, **flat["parts"]}  # a key for each part
    return {
        "format": RUN_FORMAT, "heddle": record.heddle, "id": record.id,
        "header": {name: flat[name] for name in _HEADER}, "seconds": record.seconds,
        "outcome": outcome if record.done else None, "failure": flat["failure"],
        "interrupted": record.interrupted, "rows": [] if record.done else flat["rows"],
    }  # fmt: skip


def write_record(directory: Path, record: RunRecord) -> None:
    """Write run.json atomically."""
    state.write_json(directory / RECORD, plain_record(record), indent=1)


def _gather_own(options: Any) -> None:
    """Options that a transport or a congestion control declares, which a record has beside the others."""
    if isinstance(options, dict) and (found := {name: options.pop(name) for name in options.keys() - _OF_EVERY_RUN}):
        from heddle.endpoints.runoptions import own_fields  # it loads all transports

        chosen = {"transport": options.get("transport"), "cc": options.get("congestion")}
        usual = {each.name: each.usual for word, name, each in own_fields() if chosen.get(word) == name}
        given = {name: as_tuples(each) for name, each in found.items()}
        options["own"] = {name: given[name] for name in usual if name in given and given[name] != usual[name]}


def read_record(directory: Path) -> RunRecord:
    """Read run.json. UnreadableError with the reason when that is not possible."""
    data = read_object(directory / RECORD, RUN_FORMAT)
    with undamaged(RECORD):
        header, outcome = data["header"], data["outcome"]
        _gather_own(header.get("options"))
        groups = [(data, (*_ITSELF, "rows")), (header, _HEADER), (outcome or {}, _OUTCOME)]
        flat = {name: group[name] for group, names in groups for name in names if name in group}
        flat["seconds"] = data["seconds"]  # RunRecord has a default, for a run that begins
        if outcome is not None:  # without these a run would look better than it is
            flat |= {name: outcome[name] for name in _VERDICTS}
        flat |= {"parts": {name: (outcome or {}).get(name) for name in PARTS}, "done": outcome is not None}
        record = typed(_ADAPTER, flat)
    if why := next(_contradictions(record), ""):
        raise UnreadableError(f"{RECORD} is damaged: {why}")
    return record


def _contradictions(record: RunRecord) -> Iterator[str]:
    """What no run has: values of the right type that the readers of a record cannot use."""
    rows, options = record.rows, record.options
    try:
        state.check_name(record.lab)
        pattern = options.pattern
        _ = pattern.parts if isinstance(pattern, PartSequence) else ()
    except InputError as error:
        yield str(error.problems[0]).partition("\n")[0]
    yield from _hidden_faults(record)
    if not ID.fullmatch(record.id):
        yield f"its ID is {record.id[:20]!r}"
    if record.launch:
        if "--" not in record.launch[:-1] or not record.ranks or record.seconds < 0:
            yield "it has no program or no ranks"
        return
    if not rows and (record.done or record.interrupted):
        yield "it has no result rows"
    if not options.sizes or not record.ranks:
        yield "it has no sizes or no ranks"
    counts = [record.k, record.qps, options.iters, options.qps, options.chunk, options.bucket_ns]
    counts += [*options.sizes, *(row.size for row in rows), *(rank.rate_bps for rank in record.ranks)]
    if min(counts) < 1:
        yield "it has a number below 1"
    measured = [each for row in rows for each in row.all]
    times = [record.seconds, *(us for each in measured for us in each.iteration_us)]
    if min(options.warmup, *times) < 0 or not all(each.time_us > 0 and each.busbw > 0 for each in measured):
        yield "it has a time or a bandwidth that no run has"
    if any(each.wrong < 0 for each in measured):
        yield "it has fewer than 0 wrong elements"


def _hidden_faults(record: RunRecord) -> Iterator[str]:
    """Contradictions that would hide a fault of the run."""
    if record.done and record.failure:
        yield "it is done, and has a reason why it is not"
    if record.proof is not None and record.proof.agree and record.proof.unproven:
        yield "its paths agree, and some are not proven"
    if min(record.icrc_errors or 0, record.stray or 0, record.foreign or 0) < 0:
        yield "it has fewer than 0 packets"
    if record.done and not record.launch and "machine" not in record.parts:
        yield "it does not say how busy the machine was"


UnfitKind = Literal["wrong data", "unproven", "unreliable"]


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why no verdict rests on a run. why: in words, without the run's name."""

    kind: UnfitKind
    why: str

    @classmethod
    def read(cls, why: str) -> Self | None:
        """Of its text alone, which is what a pod sends and a file keeps; None for an empty one."""
        kind: UnfitKind = (
            "wrong data" if "wrong element" in why else "unproven" if "not proven" in why else "unreliable"
        )
        return cls(kind, why) if why else None


def reasons(run: RunRecord, size: int | None = None) -> Iterator[Unfit]:
    """Every reason, the gravest first. size: causes of unreliability at other sizes do not count, bytes."""
    if run.wrong:
        yield Unfit("wrong data", many(run.wrong, "wrong element"))
    proof = run.proof
    if proof is not None and not proof.agree:
        why = f"{proof.unproven} of {many(proof.qps, 'path')} not proven" if proof.unproven else "paths are not proven"
        yield Unfit("unproven", why)
    causes = [each for each in run.doubts if size is None or each.size in (None, size)]
    if causes:
        yield Unfit("unreliable", f"UNRELIABLE: {causes[0].text}")


def unfit(run: RunRecord, size: int | None = None) -> Unfit | None:
    """The gravest reason; None for a run that is fit. size: as above."""
    return next(reasons(run, size), None)
