"""The last run of a lab, kept in the lab's directory: what was sent, what was counted, and the proof made of it.

One file, `runs/last.json`, replaced as a whole; it goes when the lab goes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.proof import evidencefile
from heddle.proof.evidence import Evidence, SentFlow
from heddle.proof.verdict import PathsResult, prove

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.runs.results import RunResult


def _path(lab: Lab) -> Path:
    return lab.dir / "runs" / "last.json"


def clear(lab: Lab) -> None:
    """Forget the last run: one that failed must not leave an older one to be taken for it."""
    _path(lab).unlink(missing_ok=True)


def has_run(lab: Lab) -> bool:
    """Whether a run is on record."""
    return _path(lab).exists()


def save(lab: Lab, result: RunResult, evidence: Evidence) -> None:
    """Keep a run and its evidence."""
    state.write_json(_path(lab), {"run": result.to_json(), "evidence": evidencefile.to_json(evidence)})


def load(lab: Lab) -> tuple[dict[str, Any], Evidence]:
    """The last run as JSON data, and its evidence; InputError when there was none, or its record cannot be read."""
    path = _path(lab)
    if not path.exists():
        hint = "./inv run --collective all-reduce makes one"
        raise InputError(Problem("", f"lab {lab.name}", "has no run to speak of", hint))
    try:
        data = json.loads(path.read_text())
        for row in data["run"]["flows"]:
            SentFlow.from_json(row)
        return data["run"], evidencefile.from_json(data["evidence"])
    except (ValueError, LookupError, TypeError, AttributeError):
        why = "is of another version of Heddle, or damaged"
        hint = "./inv run --collective all-reduce makes a new one"
        raise InputError(Problem("", f"the record of lab {lab.name}'s last run", why, hint)) from None


def last_paths(lab: Lab) -> PathsResult:
    """Where every QP of the last run went, by three sources."""
    _, evidence = load(lab)
    return prove(lab.fabric, evidence)
