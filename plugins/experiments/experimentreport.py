"""The report of experiments: the HTML file of views/report/page.py with a chapter of their checks and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from heddle.base.plugins import folder
from heddle.base.tables import Table
from heddle.views.report.page import report_html
from heddle.views.report.section import Chapter, embedded
from heddle_plugins.experiments.experimentpicture import draw
from heddle_plugins.experiments.experimenttext import HEAD, cells, remarks

if TYPE_CHECKING:
    from heddle_plugins.experiments.outcome import ExperimentResult


def experiments_html(results: Sequence[ExperimentResult]) -> str:
    """The whole page, without the runs."""
    chapter = Chapter(
        "experiments", "Experiments", "experiments", {"experiments": [_values(each) for each in results]},
        folder("experiments") / "templates",
    )  # fmt: skip
    return report_html([], None, [chapter], ", ".join(each.experiment.name for each in results[:4]))


def _values(result: ExperimentResult) -> dict[str, Any]:
    spec, rows = result.experiment.spec, result.rows
    columns = tuple(f">{head}" if head in ("measured", "95 %", "CV") else head for head in HEAD)
    return {
        "name": result.experiment.name, "title": spec.title, "claim": spec.claim, "skipped": result.skipped,
        "table": Table("Checks", columns, tuple(cells(row) for row in rows)) if rows else None,
        "picture": embedded(draw("svg", result)) if rows else "",
        "remarks": [*remarks(result)], "directories": sorted(result.directories.values()),
    }  # fmt: skip
