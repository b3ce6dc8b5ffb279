"""Load a kept run: the paths of its queue pairs, its flows, its queues over time.

In:  a running lab and the word for a run: `last` (the default), an ID, a number.
Out: PastRun, PathsResult, Recorded; InputError when there is no such run, or it failed, was interrupted or cannot be
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, Problem
from heddle.proof.verdict import PathsResult, prove
from heddle.runs.history import History, unreadable
from heddle.runs.rates import RATES, Rates, read_rates
from heddle.runs.readable import UnreadableError
from heddle.runs.runevidence import read_evidence
from heddle.runs.runrecord import RunOutcome, RunRecord
from heddle.runs.seriesfile import Recorded, read_series

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.evidence import Evidence
    from heddle.runs.results import FlowRow


@dataclass(frozen=True, slots=True)
class PastRun:
    """A finished run, with its flows and its evidence."""

    record: RunRecord
    outcome: RunOutcome
    flows: tuple[FlowRow, ...]
    evidence: Evidence


def has_run(lab: Lab) -> bool:
    """True when the lab has a run that was not interrupted."""
    return History.of(lab).last() is not None


def load(lab: Lab, run: str | None = None) -> PastRun:
    """A run with its evidence. run: as typed after --run; None is the last one."""
    history = History.of(lab)
    kept, record = history.open(run)
    if record.outcome is None:
        how = "was interrupted" if record.interrupted else "failed"
        why = f"{how}, so it has no paths: {_first_line(record.failure)}"
        raise InputError(Problem("", kept.what, why, _other(history)))
    try:
        flows, evidence = read_evidence(kept.path)
    except UnreadableError as error:
        raise unreadable(kept, str(error)) from None
    return PastRun(record, record.outcome, flows, evidence)


def paths_of(lab: Lab, run: str | None = None) -> PathsResult:
    """The path of every QP of a run, from three sources."""
    return proven(lab, load(lab, run))


def proven(lab: Lab, past: PastRun) -> PathsResult:
    """The same for a loaded run."""
    return prove(lab.fabric, past.evidence)


def series_of(lab: Lab, run: str | None = None) -> tuple[RunRecord, Recorded]:
    """The queues of a run over time; a failed or interrupted run has them too."""
    kept, record = History.of(lab).open(run)
    try:
        return record, read_series(kept.path)
    except UnreadableError as error:
        raise unreadable(kept, str(error)) from None


def rates_kept(lab: Lab, run: str | None = None) -> Rates | None:
    """The sending rates of a run over time; None if it had no congestion control, or did not finish."""
    kept, _ = History.of(lab).open(run)
    if not (kept.path / RATES).exists():
        return None
    try:
        return read_rates(kept.path)
    except UnreadableError as error:
        raise unreadable(kept, str(error)) from None


def _first_line(failure: tuple[str, ...]) -> str:
    return failure[0].partition("\n")[0] if failure else "no reason is known"


def _other(history: History) -> str:
    """The newest run that has paths, for a hint."""
    for kept in reversed(history.runs()):
        if kept.record is not None and kept.record.outcome is not None:
            return f"use --run {kept.id}, the newest finished run"
    return f"start another run: ./inv run --lab {history.lab} --collective all-reduce"
