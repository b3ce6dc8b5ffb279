"""Experiments as text: the table of checks, and the claim above it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from heddle.base.tables import many, some_of, table
from heddle.experiments.outcome import State
from heddle.experiments.running import Pods, plan_text

if TYPE_CHECKING:
    from heddle.experiments.folders import Folder, FolderResult
    from heddle.experiments.loading import Experiment, ExperimentCheck
    from heddle.experiments.outcome import ExperimentResult, Row

HEAD = ("check", "published", "measured", "95 %", "CV", "claimed", "result", "paths", "could it fail, and how")


def number(value: float | None) -> str:
    """Four digits; `-` for none."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def claim_text(check: ExperimentCheck) -> str:
    """`1.2 to 2`, `above 1`; `-` without a claim."""
    bounds = check.spec.bounds
    return check.spec.sign or ("-" if bounds is None else f"{number(bounds.low)} to {number(bounds.high)}")


def break_text(check: ExperimentCheck) -> str:
    """What makes it fail; `-` of a value that is only shown."""
    return check.broken_text or "-"


def cells(row: Row, before: str = "") -> tuple[str, ...]:
    """A row of the table. before: of the name."""
    spec, sample = row.check.spec, row.sample
    published = "-" if spec.published is None else str(spec.published)
    measured = "-" if sample is None else f"{number(sample.mean)} {spec.unit}".strip()
    half = None if sample is None else sample.half
    cv = None if sample is None else sample.cv
    paths = "-" if row.proven is None else "proven" if row.proven else "NOT PROVEN"
    name = f"{before}{row.name}"
    return (
        name, published, measured, "-" if half is None else f"+-{number(half)}", "-" if cv is None else f"{cv:.1f} %",
        claim_text(row.check), row.result, paths, break_text(row.check),
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
    lists = (list_text(folder.experiments, repeats), "", checks_text(folder.experiments))
    return "\n".join([f"{folder.spec.title} ({folder.spec.source})", *lists, *out])


def checks_text(experiments: Sequence[Experiment]) -> str:
    """Every check with what it claims, and what makes it fail."""
    rows = [
        (f"{each.name}: {check.name}", claim_text(check), break_text(check))
        for each in experiments for check in each.checks
    ]  # fmt: skip
    return table(("check", "claimed", "could it fail, and how"), rows)


def breaks_text(results: Sequence[ExperimentResult], left: Mapping[str, str]) -> str:
    """Every check with its runs broken, and those that did not fail, with the reason."""
    rows = [cells(row, f"{each.experiment.name}: ") for each in results for row in each.rows]
    more = [line for each in results for line in ([f"skipped: {each.skipped}"] if each.skipped else remarks(each))]
    lines = [*dict.fromkeys(more), *(f"NOT BROKEN: {name} {why}" for name, why in left.items())]
    return "\n".join(
        [*([table(HEAD, rows), ""] if rows else []), *lines, *([] if left else ["every check fails when it is broken"])]
    )


def remarks(result: ExperimentResult) -> Iterator[str]:
    """What makes a value doubtful, errors of runs, what the result shows."""
    whys: dict[str, list[str]] = {}
    for row in result.rows:
        for why in row.why:
            whys.setdefault(why, []).append(row.name)
    yield from (f"{some_of(names, 3)}: {why}" for why, names in whys.items())
    bad = [each for each in result.done if each.unfit and each.unfit.kind != "unreliable"]
    said = [f"{each.variant.title}: {each.unfit.why}" for each in bad if each.unfit and each.unfit.why not in whys]
    yield from dict.fromkeys([*said, *(each.why for each in result.done if each.why and each.why not in whys)])
    if result.interrupted:
        yield "interrupted: the checks use what was measured"
    if result.experiment.spec.reads:
        yield f"reads: {' '.join(result.experiment.spec.reads.split())}"


def _sum(result: FolderResult) -> str:
    """`15 in band, 2 sign only, 1 out of band, 4 shown`, over all rows."""
    count = Counter(row.state for each in result.results for row in each.rows)
    skipped = sum(bool(each.skipped) for each in result.results)
    parts = [f"{count[state]} {state}" for state in get_args(State) if count[state]]
    return ", ".join([*parts, *([f"{many(skipped, 'experiment')} skipped"] if skipped else [])]) or "no check"
