"""The section of experiments in the report: claim, table of checks, picture, where the runs are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heddle.base.tables import Table
from heddle.views.experimentpicture import draw
from heddle.views.experimenttext import HEAD, cells, remarks
from heddle.views.report.charts import embedded

if TYPE_CHECKING:
    from heddle.experiments.outcome import ExperimentResult


def experiments(results: Sequence[ExperimentResult]) -> list[dict[str, Any]]:
    """What the template needs of each."""
    return [_one(each) for each in results]


def _one(result: ExperimentResult) -> dict[str, Any]:
    spec, rows = result.experiment.spec, result.rows
    columns = tuple(f">{head}" if head in ("measured", "95 %", "CV") else head for head in HEAD)
    return {
        "name": result.experiment.name, "title": spec.title, "claim": spec.claim, "skipped": result.skipped,
        "table": Table("Checks", columns, tuple(cells(row) for row in rows)) if rows else None,
        "picture": embedded(draw("svg", result)) if rows else "",
        "remarks": [*remarks(result)], "directories": sorted(result.directories.values()),
    }  # fmt: skip
