"""The section Diagnosis of a run in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from heddle.base.tables import Table, some_of
from heddle.views.report.section import NotCarriedError, Section, Values
from heddle_plugins.engineering.diagnosis.diagnosis import CAUSES, diagnose
from heddle_plugins.engineering.diagnosistext import verdict_text

if TYPE_CHECKING:
    from heddle.runs.stored import StoredRun


def _diagnosis(run: StoredRun) -> Values:
    """The verdict of a diagnosis from the files of the run alone, with its evidence and what it ruled out."""
    if run.fabric.value is None:
        raise NotCarriedError(run.fabric.why)
    found = diagnose(run, None)
    verdict, rest = found.verdict, found.findings[1:]
    rows = [(CAUSES[name].words, "ruled out", why) for name, why in found.ruled_out.items()]
    rows += [(CAUSES[name].words, "not judged", why) for name, why in found.not_checked.items()]
    others = tuple((each.what, each.confidence, some_of([line.text for line in each.evidence])) for each in rest)
    return {
        "good": not found.fault, "verdict": f"{verdict_text(found)}.",
        "evidence": [] if verdict is None else [f"{each.text} ({each.source})" for each in verdict.evidence],
        "others": Table("Other findings", ("finding", "certain", "evidence"), others) if others else None,
        "checked": Table("Other causes", ("cause", "result", "why"), tuple(rows)),
    }  # fmt: skip


DIAGNOSIS: Final = Section("diagnosis", "Diagnosis", "diagnosis", _diagnosis, after="paths")
