"""Experiments as text: the table of checks, and the claim above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from heddle.base.tables import many, some_of, table
from heddle.experiments.outcome import FAILED, WORDS
from heddle.experiments.running import Pods, plan_text

if TYPE_CHECKING:
    from heddle.experiments.folders import Folder, FolderResult
    from heddle.experiments.loading import Experiment
    from heddle.experiments.outcome import ExperimentResult, Row

HEAD = ("check", "published", "measured", "95 %", "CV", "band", "result", "paths")


def number(value: float | None) -> str:
    """Four digits; `-` for none."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def band_text(row: Row) -> str:
    """`1.2 to 2`, `at most 0`; `-` without a band."""
    low, high = row.check.spec.band
    if low is None and high is None:
        return "-"
    if low is not None and high is not None:
        return number(low) if low == high else f"{number(low)} to {number(high)}"
    return f"at most {number(high)}" if low is None else f"at least {number(low)}"


def cells(row: Row, before: str = "") -> tuple[str, ...]:
    """A row of the table. before: of the name."""
    spec, sample = row.check.spec, row.sample
    published = "-" if spec.published is None else str(spec.published)
    measured = "-" if sample is None else f"{number(sample.mean)} {spec.unit}".strip()
    half = None if sample is None else sample.half
    cv = None if sample is None else sample.cv
    paths = "-" if row.proven is None else "proven" if row.proven else "NOT PROVEN"
    result = WORDS[row.state] if row.state in ("ok", "shown") else WORDS[row.state].upper()
    name = f"{before}{row.name}"
    return (
        name, published, measured, "-" if half is None else f"+-{number(half)}", "-" if cv is None else f"{cv:.1f} %",
        band_text(row), result, paths,
    )  # fmt: skip


def result_text(result: ExperimentResult) -> str:
    """One experiment: title, claim, table, remarks."""
    spec = result.experiment.spec
    lines = [f"{result.experiment.name}: {spec.title}"]
    if spec.claim is not None:
        lines.append(f"claim: {spec.claim.text} ({spec.claim.source})")
    if result.skipped:
        return "\n".join([*lines, f"skipped: {result.skipped}"])
    rows = result.rows
    if rows:
        lines += ["", table(HEAD, [cells(row) for row in rows])]
    more = [*remarks(result)]
    return "\n".join([*lines, *([""] if more else []), *more])


def folder_text(result: FolderResult) -> str:
    """A folder: its table over all experiments, what failed and what is left out, the statement."""
    spec = result.folder.spec
    rows = [cells(row, f"{each.experiment.name}: ") for each in result.results for row in each.rows]
    lines = [f"{spec.title} ({spec.source})", *([spec.statement.strip()] if spec.statement else [])]
    lines += ["", table(HEAD, rows)] if rows else []
    more = [
        f"{each.experiment.name}: {line}"
        for each in result.results
        for line in ([f"skipped: {each.skipped}"] if each.skipped else remarks(each))
    ]
    out = [f"left out: {each.what}: {each.why}" for each in spec.left_out]
    return "\n".join([*lines, "", *more, *out, _sum(result)])


def list_text(experiments: Sequence[Experiment], repeats: int | None = None, pods: Pods | None = None) -> str:
    """Each experiment with its title and its estimate."""
    rows = [(plan_text(each, repeats, pods).partition(": ")[2], each.name, each.spec.title) for each in experiments]
    return table(("experiment", "title", "runs"), [(name, title, plan) for plan, name, title in rows])


def folder_list_text(folder: Folder, repeats: int | None = None) -> str:
    """The experiments of a folder, and what it leaves out."""
    out = [f"left out: {each.what}: {each.why}" for each in folder.spec.left_out]
    return "\n".join([f"{folder.spec.title} ({folder.spec.source})", list_text(folder.experiments, repeats), *out])


def remarks(result: ExperimentResult) -> Iterator[str]:
    """What makes a value doubtful, errors of runs, what the result shows."""
    whys: dict[str, list[str]] = {}
    for row in result.rows:
        for why in row.why:
            whys.setdefault(why, []).append(row.name)
    yield from (f"{some_of(names, 3)}: {why}" for why, names in whys.items())
    if not result.experiment.checks:
        yield from (each.why for each in result.done if each.why)
    if result.interrupted:
        yield "interrupted: the checks use what was measured"
    if result.experiment.spec.reads:
        yield f"reads: {' '.join(result.experiment.spec.reads.split())}"


def _sum(result: FolderResult) -> str:
    """`15 of 19 checks in their bands`; checks without a band are counted where their value cannot be used."""
    rows = [row for each in result.results for row in each.rows]
    banded = [row for row in rows if row.check.spec.band != (None, None)]
    inside, skipped = sum(row.state == "ok" for row in banded), sum(bool(each.skipped) for each in result.results)
    parts = [f"{inside} of {len(banded)} checks in their bands" if banded else "no check has a band"]
    for state in FAILED:
        if count := sum(row.state == state and row not in banded for row in rows):
            parts.append(f"{many(count, 'value')} without a band: {WORDS[state]}")
    return "; ".join([*parts, *([f"{skipped} experiments skipped"] if skipped else [])])
