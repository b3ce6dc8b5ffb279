"""A diagnosis as text: the verdict, then from the slow rank to the cause, the evidence, and what was ruled out."""

from __future__ import annotations

from typing import Final

from heddle.base.tables import some_of
from heddle.engineering.diagnosis.case import Finding
from heddle.engineering.diagnosis.diagnosis import CAUSES, Diagnosis

_SHOWN: Final = 4  # findings beside the verdict


def verdict_text(found: Diagnosis) -> str:
    """One sentence: `rtsw1:eth1 loses packets on its link (established)`."""
    verdict = found.verdict
    if verdict is None:
        return "No cause is established: no fault was found" + (", and no probe was lost" if found.case.probed else "")
    fault = "" if CAUSES[verdict.cause].fault else "; this is no fault of the fabric"
    return f"{verdict.what} ({verdict.confidence}){fault}"


def diagnosis_text(found: Diagnosis) -> str:
    """The first screen."""
    lines = [f"{verdict_text(found)}.", ""]
    lines += _chain(found)
    if found.verdict is not None:
        lines += _evidence(found.verdict)
        others = [f"{each.what} ({each.confidence})" for each in found.findings[1 : 1 + _SHOWN]]
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
        return [_row("run", "none; the lab was read twice, a second apart")]
    lines = [
        _row("run", f"{run.id}: {run.record.header.work}, {len(run.record.header.ranks)} ranks, {run.record.state}")
    ]
    if run.record.failure:
        lines.append(_row("failed", run.record.why_not_done))
    if (slowest := found.case.slowest) is not None:
        lines += [_row("slowest", line.partition(": ")[2]) for line in slowest.lines()]
    return lines


def _probes(found: Diagnosis) -> list[str]:
    """How many probes were lost, and the slowest path against the median."""
    timed = sorted((each for each in found.case.probes if each.latency_s), key=lambda each: each.latency_s or 0.0)
    if not timed:
        return []
    sent, lost = (sum(each.packets + each.lost for each in timed), sum(each.lost for each in timed))
    middle, last = timed[len(timed) // 2].latency_s or 0.0, timed[-1]
    times = f"one way {middle * 1e3:.3g} ms (median), at most {(last.latency_s or 0.0) * 1e3:.3g} ms"
    return [_row("probes", f"{lost:,} of {sent:,} lost over {len(timed)} paths; {times} ({' '.join(last.ports)})")]


def _evidence(finding: Finding) -> list[str]:
    rows = [
        _row("evidence" if at == 0 else "", f"{each.text} ({each.source})") for at, each in enumerate(finding.evidence)
    ]
    if finding.also:
        rows.append(_row("", f"the same evidence fits {some_of(finding.also)}"))
    return rows
