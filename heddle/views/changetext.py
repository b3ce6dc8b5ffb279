"""The result of `./inv check` as text and as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from heddle.base.tables import many, table

if TYPE_CHECKING:
    from heddle.experiments.changes import ChangeResult, Changes

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
