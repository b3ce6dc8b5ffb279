"""Compare two runs: settings that differ, ratios of the figures, and which differences noise explains.

In:  StoredRun A and B. Out: Comparison, the same for (A, B) and (B, A). InputError when the runs are not comparable.
Equal runs have equal settings, and an equal state of the fabric and its links. The history of the lab may have some:
- A difference inside the 95 % interval that equal runs show is noise, a larger one is not. Times and bandwidths are
  compared by their logarithms, so a ratio counts the same in both directions.
- The spread of counts (marks, drops, pauses; one value per run) is not computed from the count: of eight equal runs on
  a fabric of 8 hosts, the variance of marks and pauses was 0.4 to 11 times their mean, and a Poisson process has 1.
Without enough equal runs, three rules are left:
- A time that differs by at most STEADY is noise. Two identical runs on an idle machine differ by up to STEADY
  (`./inv bench steady`). The iterations of one run do not show this.
- A larger one differs if it is outside the 95 % interval of Welch's test on the iterations of both runs (B. L. Welch,
  Biometrika 34, 1947), and each QP had one path. Inside it, or where packets of one QP take several paths, which may
  differ from run to run, the noise is not known.
- MMR differs if every path was fixed and proven; of bytes also only if no packet was lost or sent again.
Not known either: noise when the host CPU was the bottleneck, and noise of times of runs without recorded iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any, Final, Literal

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_size
from heddle.fabric.hashmodes import SPREADING
from heddle.predict.statistics import interval, spread_of
from heddle.runs.results import RunOutcome
from heddle.runs.runtable import SizeRow
from heddle.runs.settings import SettingDifference, differing_settings, equal_runs, faults_of_links
from heddle.runs.stored import StoredRun

Verdict = Literal["same", "noise", "differs", "unknown"]
STEADY: Final = 0.03  # of tests/bench/steady.py: what two identical runs may differ by
LEAST: Final = 3  # iterations of each run; fewer have no spread worth the name
_CPU: Final = "the host CPU was or may have been the bottleneck of a run"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of both runs. ratio: B / A; None where A is 0 or one is not known. why: of the verdict."""

    figure: str
    unit: str
    size: int | None
    a: float | None
    b: float | None
    ratio: float | None
    verdict: Verdict
    why: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of A and B. left_out: sizes that only one has. notes: what makes the whole doubtful.

    equal: how many equal runs are kept: of A and of B, or of both where A and B are equal.
    """

    a: StoredRun
    b: StoredRun
    settings: tuple[SettingDifference, ...]
    ratios: tuple[Ratio, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    equal: Sequence[int] = ()

    def to_json(self) -> dict[str, Any]:
        """The document of `./inv compare`."""
        runs = ({"run_id": run.id, "lab": run.record.header.lab, "path": str(run.path)} for run in (self.a, self.b))
        return {
            **dict(zip(("a", "b"), runs, strict=True)),
            "settings": [asdict(each) for each in self.settings],
            "ratios": [asdict(each) for each in self.ratios],
            "left_out": list(self.left_out),
            "noise": {"steady": STEADY, "least_iterations": LEAST, "confidence": 0.95, "equal_runs": list(self.equal)},
            "notes": list(self.notes),
            "emulated": {"k": self.a.record.header.k},
        }


def compare(a: StoredRun, b: StoredRun) -> Comparison:
    """Compare two runs; InputError when that has no meaning, with the reason."""
    if a.path == b.path:
        raise _refused(a, b, "are the same run", "name two runs; ./inv runs lists them")
    rows = [_rows(run) for run in (a, b)]
    one, other = a.record.header, b.record.header
    if one.options.collective != other.options.collective:
        names = f"{one.options.collective}, {other.options.collective}"
        why = f"have different collectives ({names}): their times and busbw are not comparable"
        raise _refused(a, b, why, "compare two runs of the same collective")
    if one.k != other.k:
        why = f"have different scales (k = {one.k}, k = {other.k}): their emulated bandwidths are not comparable"
        raise _refused(a, b, why, "compare two runs with the same k")
    common = [size for size in rows[0] if size in rows[1]]
    if not common:
        said = " and ".join(", ".join(format_size(size) for size in each) for each in rows)
        raise _refused(a, b, f"have no size in common: {said}", "run both with the same --size")
    equal = equal_runs(a), equal_runs(b)
    # One group where A and B are equal themselves.
    both = [{**equal[0], **equal[1]}] if equal[0].keys() & equal[1].keys() else equal
    groups = [tuple(each.values()) for each in both]
    ratios = [ratio for size in common for ratio in _of_size(a, b, rows[0][size], rows[1][size], groups)]
    left_out = tuple(
        f"{format_size(size)} (only {name})"
        for name, mine, theirs in (("A", rows[0], rows[1]), ("B", rows[1], rows[0]))
        for size in mine
        if size not in theirs
    )
    ratios += _of_run(a, b, groups)
    counts = [len(each) for each in groups]
    return Comparison(a, b, differing_settings(a, b), tuple(ratios), left_out, _notes(a, b), counts)


def _refused(a: StoredRun, b: StoredRun, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"{a.what} and {b.what}", why, hint))


def _rows(run: StoredRun) -> dict[int, SizeRow]:
    rows = run.record.measured
    run.check_sizes()
    if not rows:
        first = run.record.why_not_done
        hint = f"./inv runs {run.lab} lists runs that came to their end"
        raise InputError(Problem("", run.what, f"failed and has no figures: {first}", hint))
    return {row.size: row for row in rows}


def _of_size(
    a: StoredRun, b: StoredRun, one: SizeRow, other: SizeRow, groups: Sequence[Sequence[RunOutcome]]
) -> list[Ratio]:
    """Time and busbw of one size; only busbw if the number of ranks differs: the time is then of different work."""
    equal = [[row.busbw for each in group for row in each.rows if row.size == one.size] for group in groups]
    doubt = _CPU if _unreliable(a, one.size) or _unreliable(b, one.size) else ""
    verdict, why = judged(one, other, equal, doubt, _several_paths(a) or _several_paths(b))
    same_work = len(a.record.header.ranks) == len(b.record.header.ranks)
    found = [_ratio("busbw", "GB/s emulated", one.size, one.busbw, other.busbw, verdict, why)]
    if same_work:
        found.append(_ratio("time", "us an iteration", one.size, one.time_us, other.time_us, verdict, why))
    return found


def judged(
    one: SizeRow, other: SizeRow, equal: Sequence[Sequence[float]] = (), doubt: str = "", chance: str = ""
) -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of the bandwidths of one size; the reason in words.

    equal: busbw of equal runs. doubt: why it cannot be decided. chance: why a run does not show the noise of another.
    """
    if doubt:
        return "unknown", doubt
    apart = abs(math.log(other.busbw) - math.log(one.busbw))
    share = math.expm1(apart)
    if share <= STEADY:
        return "noise", f"{share:.1%}: two identical runs differ by up to {STEADY:.0%}"
    if (spread := spread_of([[math.log(each) for each in group] for group in equal])) is not None:
        said = f"a factor of {math.exp(apart):.3g} apart; {_kept(equal)} equal runs: the 95 % interval of two runs is "
        return _by(apart, spread.apart), f"{said}a factor of {math.exp(spread.apart):.3g}"
    few = min(len(row.iteration_us) for row in (one, other))
    if chance or few < LEAST:
        return "unknown", f"more than {STEADY:.0%}; {chance or f'{few} iterations are too few to estimate noise'}"
    # Time for equal work: with other ranks the times of an iteration are not of the same work.
    work = [[us / (row.busbw * row.time_us) for us in row.iteration_us] for row in (one, other)]
    middle, half = fmean([fmean(each) for each in work]), interval(*work)
    means = abs(fmean(work[1]) - fmean(work[0]))
    said = f"means are {means / middle:.1%} apart, the 95 % interval of the iterations is +-{half / middle:.1%}"
    return ("unknown", f"{said}: repeat A or B") if means <= half else ("differs", said)


def _by(apart: float, noise: float) -> Verdict:
    return "noise" if apart <= noise else "differs"


def _kept(groups: Sequence[Sequence[float]]) -> str:
    return " and ".join(str(len(each)) for each in groups)


def _several_paths(run: StoredRun) -> str:
    """Why the paths of a run may differ from those of an equal run; empty if each QP had one path."""
    proof = None if run.record.outcome is None else run.record.outcome.proof
    spread = None if proof is None else proof.spread
    if spread is None:  # an interrupted run, or one of an older Heddle
        spread = any(mode in run.record.header.ecmp for mode in SPREADING)
    return "packets of one QP took several paths, which differ from run to run" if spread else ""


def _unreliable(run: StoredRun, size: int) -> bool:
    """Whether the host CPU was or may have been the bottleneck at that size, or at one that is not named."""
    outcome = run.record.outcome
    return outcome is not None and any(cause.size in (None, size) for cause in outcome.doubts)


def _ratio(
    name: str, unit: str, size: int | None, a: float | None, b: float | None, verdict: Verdict, why: str
) -> Ratio:
    ratio = b / a if a and b is not None else None
    if a == b:
        verdict, why = "same", ""
    return Ratio(name, unit, size, a, b, ratio, verdict, why)


def _of_run(a: StoredRun, b: StoredRun, groups: Sequence[Sequence[RunOutcome]]) -> list[Ratio]:
    """Figures of the whole run. Ratios of counts need equal sizes and iterations. groups: equal runs of A, and of B."""
    one, other = a.record.outcome, b.record.outcome
    if one is None or other is None:
        return []
    doubt, found = _doubt(a, b), []
    for count in (*_MMR, *_of_parts(one), *_counters(one, other)):
        x, y = count.of(one), count.of(other)
        if x is None or y is None:
            continue
        values = [[value for each in group if (value := count.of(each)) is not None] for group in groups]
        verdict, why = judged_once(x, y, values, doubt)
        if count in _MMR:
            chance = _not_fixed(a, count) or _not_fixed(b, count)
            verdict, why = (verdict, f"{chance}; {why}") if chance else ("differs", "every path is fixed and proven")
        found.append(_ratio(count.name, count.unit, None, x, y, verdict, why))
    return found


def _not_fixed(run: StoredRun, mmr: _Count) -> str:
    """Why the MMR of an equal run may be another; empty if all paths, and the packets on them, are determined."""
    outcome = run.record.outcome
    if outcome is None or outcome.proof is None or outcome.proof.spread is None or not outcome.proof.agree:
        return "the paths of a run are not proven to be fixed"
    if chance := _several_paths(run):
        return chance
    if mmr is _MMR[0]:
        return ""
    if outcome.proof.qps > run.record.header.qps:  # a flow for each source port
        return "packets take the next source port of their QP, in the order in which data arrives"
    if outcome.lost is None or outcome.lost or any(outcome.counters.get(key) for key in _VARYING):
        return "packets were lost or sent again, or answered with the data"
    return ""


def _doubt(a: StoredRun, b: StoredRun) -> str:
    """Why equal runs cannot tell the noise of counts; empty if they can."""
    one, other = a.record.header.options, b.record.header.options
    if (one.sizes, one.iters, one.warmup) != (other.sizes, other.iters, other.warmup):
        return "sizes or iterations differ"
    if any(run.record.outcome is not None and run.record.outcome.limited for run in (a, b)):
        return _CPU
    return ""


def judged_once(one: float, other: float, groups: Sequence[Sequence[float]], doubt: str = "") -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of two counts, by the counts of equal runs; the reason in words.

    doubt: why that cannot be decided.
    """
    if doubt:
        return "unknown", doubt
    spread, kept = spread_of(groups), _kept(groups)
    if spread is None:
        return "unknown", f"one value per run, and too few equal runs in the history ({kept}): repeat A or B"
    said = f"{abs(other - one):,.4g} apart; {kept} equal runs: the 95 % interval of two runs is +-{spread.apart:,.4g}"
    return _by(abs(other - one), spread.apart), said


@dataclass(frozen=True, slots=True)
class _Count:
    """A figure with one value a run. of: the value; None where the run does not have it."""

    name: str
    unit: str
    of: Callable[[RunOutcome], float | None]


_MMR: Final = (
    _Count("MMR of flows", "max/mean", lambda outcome: None if outcome.proof is None else outcome.proof.mmr_flows),
    _Count("MMR of bytes", "max/mean", lambda outcome: None if outcome.proof is None else outcome.proof.mmr_bytes),
)
# Counters of what changes the bytes on links: packets sent twice, copies of the network, ACKs that count as data.
_VARYING: Final = ("retransmitted", "duplicates", "late", "cts_acks")


def _of_parts(one: RunOutcome) -> list[_Count]:
    """Figures of the parts of a run."""
    units = {each.name: each.unit for part in one.parts.values() for each in part.figures()}
    return [_Count(name, unit, partial(_figure, name)) for name, unit in units.items()]


def _figure(name: str, outcome: RunOutcome) -> float | None:
    figures = (each for part in outcome.parts.values() for each in part.figures())
    return next((each.value for each in figures if each.name == name), None)


def _counters(one: RunOutcome, other: RunOutcome) -> list[_Count]:
    """Counters that both transports have."""
    texts = {column.key: column.text for outcome in (one, other) for column in outcome.transport.columns}
    both = {key: text for key, text in texts.items() if key in one.counters and key in other.counters}
    return [_Count(text, "count", partial(_counter, key)) for key, text in both.items()]


def _counter(key: str, outcome: RunOutcome) -> float | None:
    return float(outcome.counters[key]) if key in outcome.counters else None


def _notes(a: StoredRun, b: StoredRun) -> tuple[str, ...]:
    notes = []
    for name, run in (("A", a), ("B", b)):
        outcome = run.record.outcome
        if outcome is None:
            notes.append(f"{name} was interrupted: its queues, paths and processors are not compared")
            continue
        if outcome.limited:
            notes.append(f"{name}: the host CPU was or may have been the bottleneck: do not trust its bandwidths")
        if outcome.wrong:
            notes.append(f"{name} has {outcome.wrong:,} wrong elements")
        if (state := outcome.fabric_state) is not None:
            if state.word != "converged":
                notes.append(f"{name}: the fabric was {state.word} during the run")
            if faults := faults_of_links(state):
                notes.append(f"{name}: faults were set on links: {faults}")
        if outcome.proof is not None and not outcome.proof.agree:
            notes.append(f"{name}: its paths are not proven")
        if run.fabric.value is None:
            notes.append(f"{name}: settings of its fabric are not compared: {run.fabric.why}")
    if len(a.record.header.ranks) != len(b.record.header.ranks):
        notes.append("the numbers of ranks differ: times are of different work and are not compared")
    return tuple(notes)
