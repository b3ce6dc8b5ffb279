"""Find stored runs by what a user typed, and what verbs and tests ask of a run of a running lab.

In:  words: `last`, an ID or number, LAB:ID, or the directory of a run (also one that was copied elsewhere).
Out: StoredRun and its parts. InputError when there is no such run, or it cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.base import state
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.runs.files import UnreadableError
from heddle.runs.runrecord import RECORD, read_record
from heddle.runs.store import HasRuns, History
from heddle.runs.stored import StoredRun

if TYPE_CHECKING:
    from heddle.proof.verdict import PathsResult
    from heddle.runs.seriesfile import Recorded


def has_run(lab: HasRuns) -> bool:
    """True when the lab has a run that was not interrupted."""
    return History.of(lab).last() is not None


def load(lab: HasRuns, run: str | None = None) -> StoredRun:
    """A finished run with its evidence. run: as typed after --run; None is the last one."""
    history = History.of(lab)
    found = history.open(run)
    if found.record.outcome is None:
        how = "was interrupted" if found.interrupted else "failed"
        why = f"{how}, so it has no paths: {found.record.why_not_done}"
        raise InputError(Problem("", found.what, why, _other(history)))
    found.needed(found.measured)
    return found


def paths_of(lab: HasRuns, run: str | None = None) -> PathsResult:
    """The path of every QP of a run, from three sources."""
    found = load(lab, run)
    return found.needed(found.proof)


def series_of(lab: HasRuns, run: str | None = None) -> Recorded:
    """The queues of a run over time; a failed or interrupted run has them too."""
    found = History.of(lab).open(run)
    return found.needed(found.recorded)


def _other(history: History) -> str:
    """The newest run that has paths, for a hint."""
    for run in reversed(history.runs()):
        if not run.damage and run.record.outcome is not None:
            return f"use --run {run.id}, the newest finished run"
    return f"start another run: ./inv run --lab {history.lab} --collective all-reduce"


def open_runs(words: Sequence[str], lab: str | None = None) -> list[StoredRun]:
    """The runs that some words mean, each once, in the order typed; without a word the last one."""
    found = [_opened(word, lab) for word in (*words,) or (None,)]
    return list({run.path: run for run in found}.values())


def _opened(word: str | None, lab: str | None) -> StoredRun:
    if word is not None and ("/" in word or Path(word, RECORD).is_file()):
        return _from_directory(Path(word).expanduser(), word)
    name, colon, rest = (word or "").partition(":")
    if colon:
        lab, word = name, rest
    return History.named(_lab_of(lab)).open(word)


def _from_directory(path: Path, typed: str) -> StoredRun:
    """A run that was copied elsewhere, or is named by its directory."""
    if not (path / RECORD).is_file():
        why = f"is not the directory of a run: it has no {RECORD}"
        raise InputError(Problem("", typed, why, "./inv runs --format json has the path of every run"))
    try:
        record = read_record(path)
    except UnreadableError as error:
        run = StoredRun(path.name, "of that directory", path)
        raise run.unusable(str(error)) from None
    return StoredRun(record.id, record.header.lab, path.resolve())


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
