"""A comparison of two runs as text of at most 100 columns: settings that differ, ratios with verdicts, notes."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from heddle.base.units import emulated_words, format_size
from heddle.runs.compare import LEAST, STEADY
from heddle.views.style import WIDTH
from heddle.views.usage import describe_run

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison, Ratio
    from heddle.runs.stored import StoredRun

_CELL: Final = 32  # letters of a setting's value
VERDICTS: Final = {"same": "same", "noise": "noise", "differs": "differs", "unknown": "not known"}


def ratio_name(ratio: Ratio) -> str:
    """`busbw 64 KiB`, or the figure alone where it is of the whole run."""
    return ratio.figure if ratio.size is None else f"{ratio.figure} {format_size(ratio.size)}"


def number_text(value: float | None) -> str:
    """A figure of a run."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def how_judged() -> str:
    """How noise is judged, in sentences."""
    return (
        f"noise: the difference is at most {STEADY:.0%} (two identical runs can differ by that), or inside the 95 % "
        "interval of the iterations of both runs (Welch's test). Counts: inside the 95 % interval that equal runs in "
        f"the history show. not known: fewer than {LEAST} iterations, too few equal runs, or the host CPU was the "
        "bottleneck. Repeat a run to see how much repeated runs differ: its iterations do not show that."
    )


def equal_text(found: Comparison) -> str:
    """How many runs, with A and B themselves, tell the spread of counts."""
    names = ("A", "B") if len(found.equal) > 1 else ("A and B",)
    return ", ".join(f"{count} of {name}" for name, count in zip(names, found.equal, strict=False))


def compare_text(found: Comparison) -> str:
    """All of it."""
    lines = [_which("A", found.a), _which("B", found.b), ""]
    if found.settings:
        lines.append(f"{'setting':<34} {'A':<{_CELL}} B")
        lines += [f"{row.name:<34.34} {_short(row.a):<{_CELL}} {_short(row.b)}".rstrip() for row in found.settings]
    else:
        lines.append("no setting differs")
    lines += ["", f"{'figure':<24} {'unit':<15} {'A':>14} {'B':>14} {'B/A':>8}  verdict"]
    for row in found.ratios:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3f}"
        values = f"{number_text(row.a):>14} {number_text(row.b):>14} {ratio:>8}"
        lines.append(f"{ratio_name(row):<24.24} {row.unit:<15.15} {values}  {VERDICTS[row.verdict]}")
    lines.append("")
    k = found.a.record.header.k
    said = [f"emulated, k = {k}: {emulated_words(k)}", how_judged()]
    said.append(f"equal runs in the history: {equal_text(found)}")
    if found.left_out:
        said.append(f"not compared, because only one run has them: {', '.join(found.left_out)}")
    for line in (*said, *(f"note: {note}" for note in found.notes)):
        lines += textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return "\n".join(lines)


def _which(name: str, run: StoredRun) -> str:
    text = f"{name} = run {run.id} of lab {run.record.header.lab}: {describe_run(run.record.header)}"
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent="    "))


def _short(text: str) -> str:
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
