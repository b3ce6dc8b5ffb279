"""The part of the report that compares two runs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heddle.base.units import format_size
from heddle.views.comparetext import how_judged, number_text, ratio_name
from heddle.views.report import charts
from heddle.views.report.section import Table, Values

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison

_WORDS = {"same": "the same", "noise": "noise explains it", "differs": "differs", "unknown": "not known"}


def comparison(found: Comparison) -> Values:
    """Settings that differ, ratios with their verdicts, a chart."""
    settings = tuple((row.name, row.a, row.b) for row in found.settings)
    rows = tuple(
        (
            ratio_name(row), row.unit, number_text(row.a), number_text(row.b),
            "-" if row.ratio is None else f"{row.ratio:.3f}", _WORDS[row.verdict], row.why,
        )
        for row in found.ratios
    )  # fmt: skip
    sized = [row for row in found.ratios if row.size is not None and row.figure == "busbw" and row.ratio is not None]
    chart = None
    if sized:
        bars = [(format_size(row.size or 0), row.ratio or 0.0, _WORDS[row.verdict]) for row in sized]
        count = Counter(word for _, _, word in bars)
        told = f"{len(bars)} sizes: {', '.join(f'{word}: {many}' for word, many in count.items())}."
        chart = charts.ratios(bars, told)
    heads = ("figure", "unit", ">A", ">B", ">B / A", "verdict", "why")
    return {
        "a": found.a, "b": found.b,
        "settings": Table("Settings that differ", ("setting", "A", "B"), settings) if settings else None,
        "ratios": Table("Ratios", heads, rows, how_judged()),
        "chart": chart, "left_out": found.left_out, "notes": found.notes,
    }  # fmt: skip
