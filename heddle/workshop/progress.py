"""The progress of a learner in a unit, on disk: STATE/workshop/02-entropy.json.

In:  the ID of a unit. Out: UnitProgress, UnitResult. Progress outlives the unit's lab. A damaged file counts as no
progress, and the next command replaces it. Records whose seal is wrong count as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.workshop.catalogue import find_unit, unit_ids
from heddle.workshop.record import StepRecord, UnitResult, seal
from heddle.workshop.unitspec import Fact

_DIR: Final = "workshop"
_PROGRESS_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """Of one unit. running: it was started and not stopped; lab: the name of its lab.

    hints: step -> hints shown. states: of the last check. begun: step -> its facts when the unit was started.
    file: the learner's copy of the fabric file, or empty. solution_seen: the learner used `solve`.
    started: UTC, of the first start. steps: what checks have recorded; both outlive `start --fresh`.
    """

    unit: str
    lab: str = ""
    runtime: str = "netns"
    running: bool = False
    solved: bool = False
    solution_seen: bool = False
    file: str = ""
    hints: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, Mapping[str, Fact]] = field(default_factory=dict)
    started: str = ""
    steps: Mapping[str, StepRecord] = field(default_factory=dict)


_ADAPTER: Final = TypeAdapter(UnitProgress)


def read_progress(unit: str) -> UnitProgress:
    """The progress in a unit; an empty one when there is none, and without records when their seal is wrong."""
    try:
        data: Any = json.loads(_path(unit).read_text(encoding="utf-8"))
        if data.pop("format", None) != _PROGRESS_FORMAT:
            return UnitProgress(unit)
        sealed = data.pop("seal", "")
        found = _ADAPTER.validate_python(data)
    except (OSError, ValueError, TypeError, ValidationError, AttributeError, RecursionError):
        return UnitProgress(unit)
    if found.unit != unit:
        return UnitProgress(unit)
    return found if sealed == _seal(found) else replace(found, started="", steps={})


def write_progress(progress: UnitProgress) -> None:
    """Write it, as a whole or not at all."""
    data = {"format": _PROGRESS_FORMAT, **asdict(progress), "seal": _seal(progress)}
    state.write_json(_path(progress.unit), data, indent=1)


def _seal(progress: UnitProgress) -> str:
    return seal(progress.unit, progress.started, progress.steps)


def _path(unit: str) -> Path:
    return state.state_dir() / _DIR / f"{unit}.json"


def results(word: str | None = None) -> tuple[UnitResult, ...]:
    """What checks have recorded of one unit, or of all units with a solved step. InputError if there is nothing."""
    units = [find_unit(each) for each in ([word] if word is not None else unit_ids())]
    found = [UnitResult(unit, (own := read_progress(unit.id)).started, own.steps) for unit in units]
    if solved := tuple(each for each in found if each.done):
        return solved
    what = f"unit {units[0].id}" if word is not None else "no unit"
    why = "has no solved step on record" if word is not None else "has a solved step on record"
    raise InputError(Problem("", what, why, "./inv workshop check records each step that is right"))
