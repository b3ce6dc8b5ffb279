"""A stored run, read from its directory alone: all that it carries, and why a part of it is not there.

In:  the directory of a run (store.py), also one that was copied elsewhere. Its lab need not be up.
Out: StoredRun. Its parts are read when they are used, and so is the code for them: lists of runs need only records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.base.problems import HeddleError, InputError, Problem
from heddle.fabric.model import Fabric
from heddle.runs.files import UnreadableError
from heddle.runs.measured import EVIDENCE, FlowRow, read_evidence
from heddle.runs.runrecord import RunRecord, read_record

if TYPE_CHECKING:
    from heddle.proof.evidence import Evidence
    from heddle.proof.verdict import PathsResult
    from heddle.runs.rates import Rates
    from heddle.runs.series import Recorded
    from heddle.runs.surroundings import Surroundings
    from heddle.runs.timeline import Timeline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A part of a stored run: its value, or why the run does not carry it. error: of judging what it carries."""

    value: T | None
    why: str = ""
    error: HeddleError | None = None


def _stored(read: Callable[[Path], T], directory: Path) -> Stored[T]:
    try:
        return Stored(read(directory))
    except UnreadableError as error:
        return Stored(None, str(error))


@dataclass(frozen=True)
class StoredRun:
    """One run on disk, by its ID, its lab and its directory."""

    id: str
    lab: str
    path: Path

    @property
    def what(self) -> str:
        """`run 0003 of lab zone`, for messages."""
        return f"run {self.id} of lab {self.lab}"

    @property
    def name(self) -> str:
        """`zone-0003`, for names of files and of elements."""
        return f"{self.lab}-{self.id}"

    @cached_property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return bytes_of(self.path)

    @cached_property
    def _record(self) -> Stored[RunRecord]:
        found = _stored(read_record, self.path)
        if found.value is not None and found.value.id != self.id:
            return Stored(None, f"its record is that of run {found.value.id or 'no ID'}")
        return found

    @property
    def damage(self) -> str:
        """Why its record cannot be read; empty if it can."""
        return self._record.why

    @property
    def record(self) -> RunRecord:
        """Its record. InputError when it cannot be read: see `damage`."""
        return self.needed(self._record)

    @property
    def interrupted(self) -> bool:
        """True when it was interrupted: then it is never the run `last`."""
        return not self.damage and self.record.interrupted

    @cached_property
    def surroundings(self) -> Stored[Surroundings]:
        """Its fabric file, versions and machine."""
        from heddle.runs.surroundings import read_surroundings

        return _stored(read_surroundings, self.path)

    @property
    def fabric(self) -> Stored[Fabric]:
        """The fabric that it ran on."""
        around = self.surroundings
        return Stored(None, around.why) if around.value is None else Stored(around.value.fabric)

    @cached_property
    def measured(self) -> Stored[tuple[tuple[FlowRow, ...], Evidence]]:
        """A row for each flow, and what was sent and counted."""
        if not self.record.done:
            how = "was interrupted" if self.record.interrupted else "failed"
            return Stored(None, f"the run {how}, so it has no paths")
        found, built = _stored(read_evidence, self.path), self.fabric.value
        if found.value is not None and built is not None:
            from heddle.proof.evidence import misfit

            if why := misfit(built, found.value[1]):
                return Stored(None, f"{EVIDENCE} does not fit to the fabric of the run: {why}")
        return found

    @property
    def result(self) -> RunRecord:
        """Its table and its document as after the run, except for what only a running lab has. InputError for a run
        that failed or was interrupted, and of a program.
        """
        self.check_sizes()
        if not self.record.done:
            how = "was interrupted" if self.record.interrupted else "failed"
            raise self.unusable(f"it {how}: {self.record.why_not_done}")
        return replace(self.record, flows=self.flows if self.measured.value is not None else ())

    def check_sizes(self) -> None:
        """InputError for the run of a program."""
        if self.record.launch:
            hint = "./inv paths and ./inv report show it"
            raise InputError(Problem("", self.what, "is a program's: it has no sizes and no bandwidth", hint))

    @property
    def flows(self) -> tuple[FlowRow, ...]:
        """A row for each flow of its job. InputError without evidence."""
        job = self.record.job
        return tuple(row for row in self.needed(self.measured)[0] if row.sent.flow.job == job)

    @property
    def evidence(self) -> Evidence:
        """What was sent and counted. InputError without it."""
        return self.needed(self.measured)[1]

    @cached_property
    def proof(self) -> Stored[PathsResult]:
        """The path of every QP by three sources, judged from the evidence, on the fabric and with the self-test of
        the prediction that the run carries.
        """
        from heddle.proof.verdict import prove

        measured, fabric, around = self.measured, self.fabric, self.surroundings.value
        if measured.value is None:
            return Stored(None, measured.why)
        if fabric.value is None:
            return Stored(None, fabric.why)
        try:
            return Stored(prove(fabric.value, measured.value[1], None if around is None else around.selftest))
        except (HeddleError, LookupError) as error:
            own = error if isinstance(error, HeddleError) else None
            return Stored(None, f"its paths cannot be judged: {error}", own)

    @cached_property
    def recorded(self) -> Stored[Recorded]:
        """Its queues over time."""
        from heddle.runs.series import read_series

        return _stored(read_series, self.path)

    @cached_property
    def rates(self) -> Stored[Rates]:
        """The sending rates of its queue pairs over time, with congestion control."""
        from heddle.runs.rates import read_rates

        return _stored(read_rates, self.path)

    @cached_property
    def timeline(self) -> Stored[Timeline]:
        """Its iterations and messages over time."""
        from heddle.runs.timeline import read_timeline

        return _stored(lambda place: read_timeline(place, len(self.record.ranks)), self.path)

    def needed(self, part: Stored[T]) -> T:
        """The value of a part. InputError with the reason when the run does not carry it; else its own error."""
        if part.value is None:
            raise part.error or self.unusable(part.why)
        return part.value

    def unusable(self, why: str) -> InputError:
        """The error for a run, or a part of it, that cannot be read."""
        hint = f"./inv runs {self.lab} lists others; ./inv runs {self.lab} --remove {self.id} removes this one"
        return InputError(Problem("", self.what, f"cannot be used: {why}", hint))


def bytes_of(directory: Path) -> int:
    """Bytes of all files of a run."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total
