"""A run from its directory alone: all that it carries, opened without its lab, and why a part of it is not there.

In:  words of a user: `last`, an ID or number, LAB:ID, or the directory of a run (also one that was copied elsewhere).
Out: WholeRun. InputError when there is no such run, or its record cannot be read.
A run of an older Heddle has no `fabric.json`: while its lab has a record, that tells the fabric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.base import state
from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.proof.verdict import PathsResult, prove
from heddle.runs.history import History, KeptRun, unreadable
from heddle.runs.rates import Rates, read_rates
from heddle.runs.readable import UnreadableError
from heddle.runs.runevidence import read_evidence
from heddle.runs.runrecord import RECORD, RunRecord, read_record
from heddle.runs.seriesfile import Recorded, read_series
from heddle.runs.surroundings import Surroundings, read_surroundings

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.proof.evidence import Evidence
    from heddle.runs.results import FlowRow


@dataclass(frozen=True)
class WholeRun:
    """One run. Parts are read when they are used; a part that the run does not carry is None, and has a reason."""

    kept: KeptRun
    record: RunRecord

    @property
    def id(self) -> str:
        """Its ID."""
        return self.record.id

    @property
    def name(self) -> str:
        """`zone-0003`, for names of files and of elements."""
        return f"{self.record.header.lab}-{self.record.id}"

    @cached_property
    def _surroundings(self) -> tuple[Surroundings | None, str]:
        try:
            return read_surroundings(self.kept.path), ""
        except UnreadableError as error:
            return None, str(error)

    @property
    def surroundings(self) -> Surroundings | None:
        """Its fabric file, versions and machine; None for a run of an older Heddle."""
        return self._surroundings[0]

    @cached_property
    def _fabric(self) -> tuple[Fabric | None, str]:
        found, why = self._surroundings
        if found is not None:
            return found.fabric, ""
        from heddle.lab.opening import reopened

        try:
            record = state.read_record(self.record.header.lab)
            return (None, f"{why}, and its lab is gone") if record is None else (reopened(record).fabric, "")
        except HeddleError:
            return None, f"{why}, and the record of its lab cannot be read"

    @property
    def fabric(self) -> Fabric | None:
        """The fabric that it ran on."""
        return self._fabric[0]

    @cached_property
    def _evidence(self) -> tuple[tuple[FlowRow, ...], Evidence | None, str]:
        if self.record.outcome is None:
            how = "was interrupted" if self.record.interrupted else "failed"
            return (), None, f"the run {how}, so it has no paths"
        try:
            return (*read_evidence(self.kept.path), "")
        except UnreadableError as error:
            return (), None, str(error)

    @property
    def flows(self) -> tuple[FlowRow, ...]:
        """A row for each QP; empty without evidence."""
        return self._evidence[0]

    @property
    def evidence(self) -> Evidence | None:
        """What was sent and counted."""
        return self._evidence[1]

    @cached_property
    def _proof(self) -> tuple[PathsResult | None, str]:
        fabric, evidence = self.fabric, self.evidence
        if evidence is None:
            return None, self._evidence[2]
        if fabric is None:
            return None, self._fabric[1]
        try:
            return prove(fabric, evidence, None if self.surroundings is None else self.surroundings.selftest), ""
        except (HeddleError, LookupError) as error:
            return None, f"its paths cannot be judged: {error}"

    @property
    def proof(self) -> PathsResult | None:
        """The path of every QP by three sources, judged again from the evidence."""
        return self._proof[0]

    @cached_property
    def _recorded(self) -> tuple[Recorded | None, str]:
        try:
            return read_series(self.kept.path), ""
        except UnreadableError as error:
            return None, str(error)

    @property
    def recorded(self) -> Recorded | None:
        """Its queues over time."""
        return self._recorded[0]

    @cached_property
    def _rates(self) -> tuple[Rates | None, str]:
        try:
            return read_rates(self.kept.path), ""
        except UnreadableError as error:
            return None, str(error)

    @property
    def rates(self) -> Rates | None:
        """The sending rates of its queue pairs over time, with congestion control."""
        return self._rates[0]

    def why(self, part: str) -> str:
        """Why a part is None: `surroundings`, `fabric`, `evidence`, `proof`, `recorded` or `rates`."""
        return str(getattr(self, f"_{part}")[-1])


def open_runs(words: Sequence[str], lab: str | None = None) -> list[WholeRun]:
    """The runs that some words mean, each once, in the order typed; without a word the last one."""
    found = [_opened(word, lab) for word in (*words,) or (None,)]
    return list({run.kept.path: run for run in found}.values())


def _opened(word: str | None, lab: str | None) -> WholeRun:
    if word is not None and ("/" in word or Path(word, RECORD).is_file()):
        return _from_directory(Path(word).expanduser(), word)
    name, colon, rest = (word or "").partition(":")
    if colon:
        lab, word = name, rest
    kept, record = History.named(_lab_of(lab)).open(word)
    return WholeRun(kept, record)


def _from_directory(path: Path, typed: str) -> WholeRun:
    """A run that was copied elsewhere, or is named by its directory."""
    if not (path / RECORD).is_file():
        why = f"is not the directory of a run: it has no {RECORD}"
        raise InputError(Problem("", typed, why, "./inv runs --format json has the path of every run"))
    try:
        record = read_record(path)
    except UnreadableError as error:
        kept = KeptRun(path.name, "of that directory", path, 0, None)
        raise unreadable(kept, str(error)) from None
    size = sum(each.stat().st_size for each in path.iterdir() if each.is_file())
    return WholeRun(KeptRun(record.id, record.header.lab, path.resolve(), size, record), record)


def _lab_of(name: str | None) -> str:
    """The lab whose runs are meant; it need not be up."""
    known = state.labs()
    if name is not None:
        if name in known:
            return name
        hint = did_you_mean(name, known) if known else "no lab exists; ./inv up zone starts one"
        raise InputError(Problem("", f"lab {name}", "does not exist, and runs are removed with their lab", hint))
    having = [each for each in known if History.named(each).ids()]
    if len(having) == 1:
        return having[0]
    if known and not having:
        hint = f"./inv run --lab {known[0]} makes one; or name the directory of a run that was copied"
        raise InputError(Problem("", "no run", f"was made yet in {', '.join(known)}", hint))
    if not having:
        hint = "./inv up zone starts a lab, and ./inv run makes a run; or name the directory of a run that was copied"
        raise InputError(Problem("", "no lab", "exists, and runs are removed with their lab", hint))
    hint = f"use --lab, or {having[0]}:last; labs: {', '.join(having)}"
    raise InputError(Problem("", "--lab", "is needed, since several labs have runs", hint))
