"""The report: one HTML file with all that it needs, for runs that need not be of a lab that is up.

In:  WholeRuns; chapters that stand above them, as that of a comparison.
Out: the page. It asks for nothing: styles, script and drawings are in it, and its Content-Security-Policy forbids the
browser everything else. Jinja escapes every value; what is not escaped is SVG of fabricsvg.py and of matplotlib.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup

from heddle.base import resources
from heddle.base.plugins import Registry
from heddle.base.progname import as_started
from heddle.base.version import VERSION
from heddle.views.fabricsvg import style
from heddle.views.linkloads import describe_run
from heddle.views.report import runparts
from heddle.views.report.section import Chapter, NotCarriedError, Section, palette

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison
    from heddle.runs.stored import StoredRun


def _fits(name: str, found: Any) -> str:
    return "" if isinstance(found, Section) and found.key == name else f"it is no Section of the key {name}"


# The sections of a run, in the order of the page: of the core, a line each; those of plugins name one that they follow.
SECTIONS: Final[Registry[Section]] = Registry(
    "section",
    {
        each.key: each
        for each in (
            Section("summary", "At a glance", "summary", runparts.summary),
            Section("fabric", "Fabric and link utilization", "fabric", runparts.fabric),
            Section("results", "Results", "tables", runparts.results),
            Section("bandwidth", "Bandwidth and iterations", "charts", runparts.bandwidth),
            Section("queues", "Queues and pauses over time", "queues", runparts.queues),
            Section("paths", "Proof of paths", "paths", runparts.paths),
            Section("parameters", "Parameters and versions", "parameters", runparts.parameters),
            Section("reproduce", "How to reproduce it", "reproduce", runparts.reproduce),
        )
    },
    _fits,
)


def sections() -> list[Section]:
    """Every section that can be used, in the order of the page."""
    place = {key: at for at, key in enumerate(SECTIONS.core)}
    return sorted(SECTIONS.values(), key=lambda each: place.get(each.key, place.get(each.after, len(place))))


def report_html(
    runs: Sequence[StoredRun],
    comparison: Comparison | None = None,
    chapters: Sequence[Chapter] = (),
    title: str = "",
) -> str:
    """The whole page. chapters: stand above the comparison and the runs. title: instead of one that names the runs."""
    above = [*chapters]
    if comparison is not None:
        above.append(Chapter("comparison", "Comparison", "comparison", runparts.comparison(comparison)))
    shown = sections()
    page = _environment([*above, *shown]).get_template("page.html.j2")
    return page.render(
        title=f"Heddle: {title or _title(runs, comparison)}",
        version=VERSION,
        runs=[_run(run, shown) for run in runs],
        chapters=above,
        fabric_style=Markup(style()),  # noqa: S704 - Heddle's own
        palette=palette(),
    )


def _title(runs: Sequence[StoredRun], comparison: Comparison | None) -> str:
    names = [f"run {run.id} of {run.record.lab}" for run in runs]
    if comparison is not None:
        return f"{names[0]} against {names[1]}"
    return names[0] if len(names) == 1 else f"{len(names)} runs"


def _run(run: StoredRun, shown: Sequence[Section]) -> Mapping[str, Any]:
    """A run's part: its heading, and its sections with their values, or the reason why one is not there."""
    found = []
    for section in shown:
        try:
            values, why = section.values(run), ""
        except NotCarriedError as error:
            values, why = {}, str(error)
        found.append({"section": section, "values": values, "why": why})
    record = run.record
    return {
        "name": run.name, "heading": f"Run {run.id} of lab {record.lab}", "when": record.when, "k": record.k,
        "described": describe_run(record), "state": "" if record.done else record.state,
        "sections": found,
    }  # fmt: skip


def _environment(parts: Sequence[Section | Chapter]) -> Environment:
    """The templates of templates/report, and those of each part as `KEY/NAME.html.j2`."""
    core = resources.HERE.content("templates") / "report"
    own = {each.key: FileSystemLoader(_templates(each) or core) for each in parts}
    found = Environment(
        loader=ChoiceLoader([FileSystemLoader(core), PrefixLoader(own)]),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters["command"] = as_started
    return found


def _templates(part: Section | Chapter) -> Path | None:
    """The folder of a plugin's template; None of the core's."""
    if isinstance(part, Chapter):
        return part.templates
    return None if part.key in SECTIONS.core else Path(inspect.getfile(part.values)).with_name("templates")
