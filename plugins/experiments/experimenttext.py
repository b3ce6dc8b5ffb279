"""Experiments as text: the table of checks, and the claim above it; `./inv impact` as text and as JUnit XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args
from xml.sax.saxutils import escape, quoteattr

from heddle.base.tables import many, some_of, table
from heddle_plugins.experiments.outcome import State
from heddle_plugins.experiments.running import Pods, plan_text

if TYPE_CHECKING:
    from heddle_plugins.experiments.changes import ChangeResult, Changes
    from heddle_plugins.experiments.folders import Folder, FolderResult
    from heddle_plugins.experiments.loading import Experiment, ExperimentCheck
    from heddle_plugins.experiments.outcome import ExperimentResult, Row

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
    """Every check with its runs broken, and those whose value did not leave the claim, with the reason."""
    rows = [cells(row, f"{each.experiment.name}: ") for each in results for row in each.rows]
    more = [line for each in results for line in ([f"skipped: {each.skipped}"] if each.skipped else remarks(each))]
    lines = [*dict.fromkeys(more), *(f"NOT BROKEN: {name} {why}" for name, why in left.items())]
    if not left:
        lines.append("every check that ran fails when it is broken" if rows else "no check was broken")
    return "\n".join([*([table(HEAD, rows), ""] if rows else []), *lines])


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


_HEAD = ("fabric", "workload", "paths moved", "worst link", "MMR", "completion", "result")


def changes_text(changes: Changes) -> str:
    """A row for each pair and workload, and what is beyond a limit."""
    rows = [_row(each) for each in changes.results]
    lines = [table(_HEAD, rows), *_remarks(changes)]
    return "\n".join(lines)


def junit_xml(changes: Changes) -> str:
    """A test case for each pair and workload."""
    cases = []
    for each in changes.results:
        name = f"{each.name} {each.workload}"
        text = "\n".join(each.beyond)
        failed = f"<failure message={quoteattr(each.beyond[0])}>{escape(text)}</failure>" if each.beyond else ""
        out = "\n".join(f"{head}: {cell}" for head, cell in zip(_HEAD, _row(each), strict=True))
        said = f"<system-out>{escape(out)}</system-out>"
        cases.append(f'  <testcase classname="heddle.check" name={quoteattr(name)}>{failed}{said}</testcase>\n')
    for name in changes.removed:
        failed = '<failure message="the file is gone"/>'
        cases.append(f'  <testcase classname="heddle.check" name={quoteattr(name)}>{failed}</testcase>\n')
    failures = sum(bool(each.beyond) for each in changes.results) + len(changes.removed)
    head = f'<testsuite name="heddle check" tests="{len(cases)}" failures="{failures}" errors="0" skipped="0">'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}\n{"".join(cases)}</testsuite>\n'


def _row(each: ChangeResult) -> tuple[str, ...]:
    paths = each.paths
    moved = "no fixed paths" if paths is None else f"{paths.moved:,} of {paths.common:,} ({paths.share:.1%})"
    old, new = each.worst
    at = f" ({old or '-'})" if old == new else f" ({old or '-'} -> {new or '-'})"
    return (
        each.name, each.workload, moved, f"{_both(each, 'worst-link', ' s')}{at}", _both(each, "mmr"),
        _both(each, "completion"), "BEYOND A LIMIT" if each.beyond else "ok",
    )  # fmt: skip


def _both(each: ChangeResult, name: str, unit: str = "") -> str:
    base, head = each.figure(name)
    if base is None or head is None:
        return " -> ".join("-" if value is None else f"{value:.4g}{unit}" for value in (base, head))
    if base == head:
        return f"{base:.4g}{unit}"
    grown = f" ({head / base - 1:+.1%})" if base else ""
    return f"{base:.4g} -> {head:.4g}{unit}{grown}"


def _remarks(changes: Changes) -> Iterator[str]:
    for each in changes.results:
        yield from (f"{each.name}, {each.workload}: {line}" for line in each.beyond)
        paths, (before, after) = each.paths, each.links
        if before != after:
            why = "the MMR is relative to their mean, so compare the time of the worst link"
            yield f"{each.name}, {each.workload}: {before} links upwards, then {after}: {why}"
        if paths is not None and (paths.added or paths.removed or paths.lost):
            lost = f", {many(paths.lost, 'flow')} lost their path" if paths.lost else ""
            counts = f"{many(paths.added, 'flow')} only after the change, {paths.removed:,} only before"
            yield f"{each.name}, {each.workload}: {counts}{lost}"
    if changes.added:
        yield f"only after the change: {', '.join(changes.added)}"
    if changes.removed:
        yield f"only before the change: {', '.join(changes.removed)}: a fabric file that is gone is an error"
