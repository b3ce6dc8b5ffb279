"""A diagnosis as text, and as the section Diagnosis of a run in the report."""

from __future__ import annotations

from typing import Final

from heddle.base.tables import Table, many, some_of
from heddle.runs.stored import StoredRun
from heddle.views.report.section import NotCarriedError, Section, Values
from heddle_plugins.engineering.diagnosis.case import Finding
from heddle_plugins.engineering.diagnosis.diagnosis import CAUSES, Diagnosis, diagnose

_SHOWN: Final = 4  # findings beside the verdict, and lines of evidence; the first one of each kind always


def verdict_text(found: Diagnosis) -> str:
    """One sentence: `rtsw1:eth1 loses packets on its link (established)`."""
    verdict = found.verdict
    if verdict is None:
        lost = sum(each.lost for each in found.case.probes)
        said = f", and {f'{lost:,} probes were' if lost else 'no probe was'} lost" if found.case.probes else ""
        return f"No cause is established: no fault was found{said}"
    fault = "" if CAUSES[verdict.cause].fault else "; this is no fault of the fabric"
    return f"{verdict.what} ({verdict.confidence}){fault}"


def diagnosis_text(found: Diagnosis) -> str:
    """The first screen."""
    lines = [f"{verdict_text(found)}.", ""]
    lines += _chain(found)
    if found.verdict is not None:
        lines += _evidence(found.verdict)
        firsts = {(each.cause, each.fact, each.over): each for each in reversed(found.findings)}
        rest = sorted(found.findings[1:], key=lambda each: each not in firsts.values())
        others = [f"{each.what} ({each.confidence})" for each in rest[: max(_SHOWN, len(firsts) - 1)]]
        lines += [_row("also" if at == 0 else "", text) for at, text in enumerate(others)]
        if more := len(found.findings) - 1 - len(others):
            lines.append(_row("", f"and {more} more, in --format json"))
    lines += _probes(found)
    for at, (name, why) in enumerate(found.ruled_out.items()):
        lines.append(_row("ruled out" if at == 0 else "", f"{CAUSES[name].words}: {why}"))
    for at, (name, why) in enumerate(found.not_checked.items()):
        lines.append(_row("not judged" if at == 0 else "", f"{CAUSES[name].words}: {why}"))
    return "\n".join(lines)


def _row(label: str, text: str) -> str:
    return f"{label:<11}{': ' if label else '  '}{text}"


def _chain(found: Diagnosis) -> list[str]:
    """The slow rank, the slow QP, the port where packets waited, as the table of the run has them."""
    run = found.case.run
    if run is None:
        measured = found.case.live is not None and found.case.live.settings is None
        return [_row("run", f"{'one is measured now' if measured else 'none'}; the lab was read twice, a second apart")]
    head = run.record
    lines = [_row("run", f"{run.id}: {head.work}, {len(head.ranks)} ranks, {run.record.state}")]
    lines += [_row("warning", each) for each in head.warnings]
    if run.record.failure:
        lines.append(_row("failed", run.record.why_not_done))
    if (slowest := found.case.slowest) is not None:
        lines += [_row("slowest", line.partition(": ")[2]) for line in slowest.lines()]
    return lines


def _probes(found: Diagnosis) -> list[str]:
    """How many probes were lost, on how many paths all of them, and the slowest path against the median."""
    probes = found.case.probes
    if not probes:
        return []
    sent, lost = sum(each.packets + each.lost for each in probes), sum(each.lost for each in probes)
    said = f"{lost:,} of {sent:,} lost over {many(len(probes), 'path')}"
    if dead := [each for each in probes if each.lost and not each.packets]:
        ends = [f"{each.ports[0]} to {each.ports[-1]}" for each in dead]
        said += f", all of them over {many(len(dead), 'path')} ({some_of(ends)})"
    timed = sorted((each for each in probes if each.latency_s), key=lambda each: each.latency_s or 0.0)
    if timed:
        middle, last = timed[len(timed) // 2].latency_s or 0.0, timed[-1]
        times = f"one way {middle * 1e3:.3g} ms (median), at most {(last.latency_s or 0.0) * 1e3:.3g} ms"
        said += f"; {times} ({' '.join(last.ports)})"
    return [_row("probes", said)]


def _evidence(finding: Finding) -> list[str]:
    shown = finding.evidence[: _SHOWN + 1]
    rows = [_row("evidence" if at == 0 else "", f"{each.text} ({each.source})") for at, each in enumerate(shown)]
    if more := len(finding.evidence) - len(shown):
        rows.append(_row("", f"and {more} more, in --format json"))
    if finding.also:
        rows.append(_row("", f"the same evidence fits {some_of(finding.also)}"))
    return rows


def _diagnosis(run: StoredRun) -> Values:
    """The verdict of a diagnosis from the files of the run alone, with its evidence and what it ruled out."""
    if run.fabric.value is None:
        raise NotCarriedError(run.fabric.why)
    found = diagnose(run, None)
    verdict, rest = found.verdict, found.findings[1:]
    rows = [(CAUSES[name].words, "ruled out", why) for name, why in found.ruled_out.items()]
    rows += [(CAUSES[name].words, "not judged", why) for name, why in found.not_checked.items()]
    others = tuple((each.what, each.confidence, some_of([line.text for line in each.evidence])) for each in rest)
    return {
        "good": not found.fault, "verdict": f"{verdict_text(found)}.",
        "evidence": [] if verdict is None else [f"{each.text} ({each.source})" for each in verdict.evidence],
        "others": Table("Other findings", ("finding", "certain", "evidence"), others) if others else None,
        "checked": Table("Other causes", ("cause", "result", "why"), tuple(rows)),
    }  # fmt: skip


DIAGNOSIS: Final = Section("diagnosis", "Diagnosis", "diagnosis", _diagnosis, after="paths")
