"""The report: one HTML file with all that it needs, for runs that need not be of a lab that is up.

In:  WholeRuns; for a comparison, Comparison.
Out: the page. It asks for nothing: styles, script and drawings are in it, and its Content-Security-Policy forbids the
browser everything else. Jinja escapes every value; what is not escaped is SVG of fabricsvg.py and of matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from heddle.base import resources
from heddle.base.progname import as_started
from heddle.base.tables import Table
from heddle.base.version import VERSION
from heddle.views.fabricsvg import STYLE
from heddle.views.linkloads import describe_run
from heddle.views.report import fabricparts, runparts
from heddle.views.report.section import NotCarriedError, Section, embedded, palette
from heddle_plugins.experiments.experimentpicture import draw
from heddle_plugins.experiments.experimenttext import HEAD, cells, remarks

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison
    from heddle.runs.stored import StoredRun
    from heddle_plugins.experiments.outcome import ExperimentResult

# The sections of a run, in the order of the page. A new one is a line here.
SECTIONS: Final = (
    Section("summary", "At a glance", "summary", runparts.summary),
    Section("fabric", "Fabric and use of links", "fabric", fabricparts.fabric),
    Section("results", "Results", "tables", runparts.results),
    Section("bandwidth", "Bandwidth and iterations", "charts", runparts.bandwidth),
    Section("queues", "Queues and pauses over time", "queues", fabricparts.queues),
    Section("paths", "Proof of paths", "paths", fabricparts.paths),
    Section("diagnosis", "Diagnosis", "diagnosis", runparts.diagnosis),
    Section("parameters", "Parameters and versions", "parameters", runparts.parameters),
    Section("reproduce", "How to reproduce it", "reproduce", runparts.reproduce),
)


def report_html(
    runs: Sequence[StoredRun],
    comparison: Comparison | None = None,
    experiments: Sequence[ExperimentResult] = (),
) -> str:
    """The whole page. comparison, experiments: stand above the runs."""
    page = _environment().get_template("page.html.j2")
    return page.render(
        title=_title(runs, comparison, experiments),
        version=VERSION,
        runs=[_run(run) for run in runs],
        comparison=None if comparison is None else runparts.comparison(comparison),
        experiments=[_experiment(each) for each in experiments],
        fabric_style=Markup(STYLE),  # noqa: S704 - Heddle's own
        palette=palette(),
    )


def _title(runs: Sequence[StoredRun], comparison: Comparison | None, experiments: Sequence[ExperimentResult]) -> str:
    if experiments:
        return f"Heddle: {', '.join(each.experiment.name for each in experiments[:4])}"
    names = [f"run {run.id} of {run.record.header.lab}" for run in runs]
    if comparison is not None:
        return f"Heddle: {names[0]} against {names[1]}"
    return f"Heddle: {names[0]}" if len(names) == 1 else f"Heddle: {len(names)} runs"


def _run(run: StoredRun) -> Mapping[str, Any]:
    """A run's part: its heading, and its sections with their values, or the reason why one is not there."""
    sections = []
    for section in SECTIONS:
        try:
            values, why = section.values(run), ""
        except NotCarriedError as error:
            values, why = {}, str(error)
        sections.append({"section": section, "values": values, "why": why})
    header = run.record.header
    return {
        "name": run.name, "heading": f"Run {run.id} of lab {header.lab}", "when": header.when, "k": header.k,
        "described": describe_run(header), "state": "" if run.record.outcome else run.record.state,
        "sections": sections,
    }  # fmt: skip


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(resources.HERE.content("templates") / "report"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters["command"] = as_started
    return found


def _experiment(result: ExperimentResult) -> dict[str, Any]:
    spec, rows = result.experiment.spec, result.rows
    columns = tuple(f">{head}" if head in ("measured", "95 %", "CV") else head for head in HEAD)
    return {
        "name": result.experiment.name, "title": spec.title, "claim": spec.claim, "skipped": result.skipped,
        "table": Table("Checks", columns, tuple(cells(row) for row in rows)) if rows else None,
        "picture": embedded(draw("svg", result)) if rows else "",
        "remarks": [*remarks(result)], "directories": sorted(result.directories.values()),
    }  # fmt: skip
