"""Sections of what a run measured: its figures at a glance, its table in nccl-tests' form, its bandwidth, and the part
that compares two runs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from heddle.base.tables import Table, some_of
from heddle.base.units import format_size
from heddle.runs.fitness import unfit
from heddle.runs.runtable import SizeRow
from heddle.views import runpicture
from heddle.views.report.charts import Chart
from heddle.views.report.section import NotCarriedError, Values, counted, figure
from heddle.views.runstext import how_judged, number_text, ratio_name

if TYPE_CHECKING:
    from heddle.runs.compare import Comparison
    from heddle.runs.results import RunOutcome
    from heddle.runs.stored import StoredRun

Card = tuple[str, str, str]  # name, value, what it means or whether it is good
_WORDS = {"same": "the same", "noise": "noise explains it", "differs": "differs", "unknown": "not known"}


def summary(run: StoredRun) -> Values:
    """What came of the run, in cards; and everything that makes its figures doubtful."""
    record, outcome = run.record, run.record.outcome
    rows = run.record.measured
    cards: list[Card] = []
    scale = f"emulated, k = {record.header.k}"
    if rows:
        largest = max(rows, key=lambda row: row.size)
        wrong = sum(row.wrong for row in rows)
        size, time = format_size(largest.size), f"{figure(largest.time_us / 1e3)} ms"
        cards += [
            (f"busbw at {size}", f"{figure(largest.busbw)} GB/s", scale),
            (f"time at {size}", time, "an iteration, mean over ranks; emulated"),
            ("wrong elements", counted(wrong), "every array was checked" if not wrong else "the result is wrong"),
        ]  # fmt: skip
    if outcome is not None:
        if outcome.exit_code is not None:
            cards.append(("exit code", str(outcome.exit_code), "of the first rank that failed; 0 if none did"))
        cards += _counted(outcome, "flows" if record.header.launch else "QPs")
    return {"cards": cards, "doubts": _doubts(run), "failure": "\n".join(record.failure)}


def _counted(outcome: RunOutcome, units: str) -> list[Card]:
    cards: list[Card] = []
    if (proof := outcome.proof) is not None:
        names = " and ".join(filter(None, (", ".join(proof.sources[:-1]), proof.sources[-1])))
        said = f"{names} agree" if proof.agree else f"{proof.unproven} {units} are not proven"
        cards.append(("paths", f"{proof.qps - proof.unproven} of {proof.qps} {units} proven", said))
        cards.append(
            (
                "MMR of the uplinks",
                figure(proof.mmr_bytes, 3),
                f"bytes, max/mean; of flows {figure(proof.mmr_flows, 3)}",
            )
        )
    return [*cards, *(card for part in outcome.parts.values() for card in part.cards())]


def _doubts(run: StoredRun) -> list[str]:
    outcome = run.record.outcome
    if outcome is None:
        return []
    reason = unfit(outcome)
    found = [f"no verdict rests on this run: {reason.why}"] if reason is not None else []
    found += [line for part in outcome.parts.values() for line in part.doubt_lines()]
    if outcome.icrc_errors:
        found.append(f"{outcome.icrc_errors:,} packets arrived with a wrong ICRC")
    state = outcome.fabric_state
    if state is not None and state.word != "converged":
        found.append(f"the fabric was {state.word} during this run")
    return [*found, *outcome.warnings]


def diagnosis(run: StoredRun) -> Values:
    """The verdict of a diagnosis from the files of the run alone, with its evidence and what it ruled out."""
    from heddle.engineering.diagnosis.diagnosis import CAUSES, diagnose
    from heddle.views.diagnosistext import verdict_text

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


def results(run: StoredRun) -> Values:
    """The table of nccl-tests, with the range of single iterations; the transport's counters."""
    rows, options = run.record.measured, run.record.header.options
    if not rows:
        raise NotCarriedError("no size was measured")
    pattern = options.pattern
    spread = any(row.iteration_us for row in rows)
    columns = (
        ">size (B)",
        ">count (elements)",
        "type",
        "redop",
        ">root",
        ">time (us)",
        ">algbw (GB/s)",
        ">busbw (GB/s)",
        ">#wrong",
    )
    lines = []
    for row in rows:
        common = (
            counted(row.size), counted(row.size // pattern.element_bytes), pattern.printed_type, pattern.redop,
            str(pattern.printed_root),
            figure(row.time_us, 6), figure(row.algbw), figure(row.busbw), counted(row.wrong),
        )  # fmt: skip
        lines.append((*common, _range(row)) if spread else common)
    k = run.record.header.k
    table = Table(
        f"Results, out of place. Bandwidths are emulated: rates are 1/{k} of the hardware's (k = {k}).",
        (*columns, ">iterations (us)") if spread else columns, tuple(lines),
        "time is the mean over ranks and iterations. algbw = size / time; busbw = algbw x the factor of nccl-tests "
        f"for this collective. Average busbw: {figure(sum(row.busbw for row in rows) / len(rows))} GB/s, emulated.",
    )  # fmt: skip
    return {"tables": [table, *_transport(run)]}


def _range(row: SizeRow) -> str:
    if not row.iteration_us:
        return "-"
    return f"{figure(min(row.iteration_us), 6)} to {figure(max(row.iteration_us), 6)} ({len(row.iteration_us)})"


def _transport(run: StoredRun) -> list[Table]:
    outcome = run.record.outcome
    if outcome is None or not outcome.transport.columns:
        return []
    rows = [(c.text, c.unit, counted(outcome.counters.get(c.key, 0))) for c in outcome.transport.columns]
    more = [
        ("with a wrong ICRC", "packets", counted(outcome.icrc_errors)),
        ("stray", "packets", counted(outcome.stray)),
        ("for another MAC", "packets", counted(outcome.foreign)),
    ]
    caption = f"Transport {outcome.transport.name}, all queue pairs together"
    return [Table(caption, ("what", "unit", ">count"), (*rows, *more))]


def bandwidth(run: StoredRun) -> Values:
    """busbw by size, the load of each uplink, the timed iterations of each rank."""
    rows = run.record.measured
    if not rows:
        raise NotCarriedError("no size was measured")
    best = max(rows, key=lambda row: row.busbw)
    told = f"Highest busbw: {best.busbw:.4g} GB/s emulated at {format_size(best.size)}."
    return {"charts": [Chart.of("run", "Bandwidth, uplinks and iterations", told, runpicture.draw("svg", [run]))]}


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
        count = Counter(_WORDS[row.verdict] for row in sized)
        told = f"{len(sized)} sizes: {', '.join(f'{word}: {many}' for word, many in count.items())}."
        chart = Chart.of("runs", "A and B", told, runpicture.draw("svg", [found.a, found.b]))
    heads = ("figure", "unit", ">A", ">B", ">B / A", "verdict", "why")
    return {
        "a": found.a, "b": found.b,
        "settings": Table("Settings that differ", ("setting", "A", "B"), settings) if settings else None,
        "ratios": Table("Ratios", heads, rows, how_judged()),
        "chart": chart, "left_out": found.left_out, "notes": found.notes,
    }  # fmt: skip
