"""The learner's progress in each unit: STATE/workshop/02-entropy.json. It outlives the unit's lab.

Written atomically, like all state. A damaged file counts as no progress, and the next command replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import state
from heddle.workshop.condition import Fact

_DIR: Final = "workshop"
_PROGRESS_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """Of one unit. running: it was started and not stopped; lab: the name of its lab.

    hints: step -> hints shown. states: of the last check. begun: step -> its facts when the unit was started.
    file: the learner's copy of the fabric file, or empty. solution_seen: the learner used `solve`.
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


_ADAPTER: Final = TypeAdapter(UnitProgress)


def read_progress(unit: str) -> UnitProgress:
    """The progress in a unit; an empty one when there is none."""
    try:
        data: Any = json.loads(_path(unit).read_text(encoding="utf-8"))
        if data.pop("format", None) != _PROGRESS_FORMAT:
            return UnitProgress(unit)
        found = _ADAPTER.validate_python(data)
    except (OSError, ValueError, TypeError, ValidationError, AttributeError, RecursionError):
        return UnitProgress(unit)
    return found if found.unit == unit else UnitProgress(unit)


def write_progress(progress: UnitProgress) -> None:
    """Write it, as a whole or not at all."""
    state.write_json(_path(progress.unit), {"format": _PROGRESS_FORMAT, **asdict(progress)}, indent=1)


def _path(unit: str) -> Path:
    return state.state_dir() / _DIR / f"{unit}.json"
