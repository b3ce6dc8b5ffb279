"""Runs that are equal to a run: the same settings on the same fabric, kept beside it.

In:  a WholeRun. Out: the outcomes of the run and of those of its neighbours that repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.runs.history import History
from heddle.runs.keptrun import WholeRun
from heddle.runs.runsettings import settings_of

if TYPE_CHECKING:
    from heddle.runs.runrecord import RunHeader, RunOutcome

_LOOKED_AT: Final = 50  # the latest runs: no more are kept by default


def equal_runs(run: WholeRun) -> Mapping[Path, RunOutcome]:
    """By directory, the run itself and its repetitions; empty for a run without an outcome.

    Equal: all settings and sizes, and the state of the fabric. Left out: runs where the host CPU was or may have been
    the bottleneck.
    """
    mine = run.record.outcome
    if mine is None:
        return {}
    found = {run.kept.path: mine}
    wanted = settings_of(run, with_fabric=True, with_around=True)
    for kept in History(run.kept.lab, run.kept.path.parent).newest(_LOOKED_AT):
        other = kept.record
        if other is None or other.outcome is None or other.outcome.machine.limited or kept.path in found:
            continue
        if _about(other.header) != _about(run.record.header) or _state(other.outcome) != _state(mine):
            continue
        if settings_of(WholeRun(kept, other), with_fabric=True, with_around=True) == wanted:
            found[kept.path] = other.outcome
    return found


def _about(header: RunHeader) -> RunHeader:
    """The header without its time."""
    return replace(header, when="")


def _state(outcome: RunOutcome) -> str:
    return "" if outcome.fabric_state is None else outcome.fabric_state.word
