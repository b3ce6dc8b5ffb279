"""The picture of an experiment, and the report of several: views/report/page.py with a chapter of checks and pictures.

A picture has a panel for each check, with the mean and its 95 % interval at every point of the grid.

In:  ExperimentResult. Out: SVG, PNG or PDF; the same input gives the same bytes. The band is shaded, and what is
outside of it is crossed out. The last list of the settings is the horizontal axis; each of the others makes lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.plugins import folder
from heddle.base.tables import Table
from heddle.views.report.page import report_html
from heddle.views.report.section import Chapter, embedded
from heddle.views.style import DPI, DROPPED, HELD, INK, QUIET, SERIES_OF_RUNS, PictureKind, saved
from heddle_plugins.experiments.experimenttext import HEAD, cells, remarks
from heddle_plugins.experiments.outcome import FAILED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heddle_plugins.experiments.outcome import ExperimentResult, Row

_MOST: Final = 24  # panels
_LABELLED: Final = 12  # points that each have a label


def draw(kind: PictureKind, result: ExperimentResult) -> bytes:
    """The picture as a file's bytes."""
    return saved(kind, result.experiment.spec.title, lambda: _figure(result))


def _figure(result: ExperimentResult) -> Figure:
    from matplotlib.figure import Figure

    panels: dict[str, list[Row]] = {}
    for row in result.rows:
        panels.setdefault(row.check.name, []).append(row)
    shown = list(panels.items())[:_MOST]
    columns = min(2, max(1, len(shown)))
    lines = max(1, -(-len(shown) // columns))
    figure = Figure(figsize=(5.5 * columns, 0.6 + 2.9 * lines), dpi=DPI, facecolor="white", layout="constrained")
    figure.suptitle(result.experiment.spec.title, fontsize=11, weight="bold", color=INK)
    for number, (name, rows) in enumerate(shown, 1):
        _panel(figure.add_subplot(lines, columns, number), name, rows)
    return figure


def _panel(axes: Axes, name: str, rows: list[Row]) -> None:
    check = rows[0].check.spec
    bounds = check.bounds
    axes.set_title(f"{name}: {check.value}"[:80], fontsize=8, color=INK)
    axes.set_ylabel(check.unit, fontsize=8, color=INK)
    axes.tick_params(labelsize=7, colors=INK)
    axes.grid(visible=True, axis="y", color=QUIET, linewidth=0.4)
    places = list(dict.fromkeys(_place(row) for row in rows))
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(" ".join([*row.point.values()][:-1]), []).append(row)
    for number, (label, each) in enumerate(series.items()):
        known = [(places.index(_place(row)), row.state, row.sample) for row in each if row.sample is not None]
        colour = SERIES_OF_RUNS[number % len(SERIES_OF_RUNS)]
        at, means = [x for x, _, _ in known], [sample.mean for _, _, sample in known]
        halves = [sample.half or 0.0 for _, _, sample in known]
        axes.errorbar(at, means, yerr=halves, color=colour, fmt="o-", lw=1, capsize=3, markersize=4, label=label)
        missed = [(x, sample.mean) for x, state, sample in known if state in FAILED]
        axes.plot([x for x, _ in missed], [y for _, y in missed], "x", color=DROPPED, markersize=9)
    if len(series) > 1:
        axes.legend(fontsize=7, title=", ".join([*rows[0].point][:-1]), title_fontsize=7)
    bottom, top = axes.get_ylim()
    if bounds is not None:
        low, high = bounds.low, bounds.high
        reach = [each for each in (low, high) if each is not None]
        bottom, top = min(bottom, *reach), max(top, *reach)
        margin = (top - bottom) * 0.05 or 0.5
        bottom, top = bottom - margin, top + margin
        axes.axhspan(bottom if low is None else low, top if high is None else high, color=HELD, alpha=0.15, lw=0)
        axes.set_ylim(bottom, top)
    step = max(1, -(-len(places) // _LABELLED))
    axes.set_xticks(range(0, len(places), step), places[::step], fontsize=7)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xlabel("".join([*rows[0].point][-1:]), fontsize=8, color=INK)


def _place(row: Row) -> str:
    return "".join([*row.point.values()][-1:])


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
