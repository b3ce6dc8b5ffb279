"""Compare two runs: settings that differ, ratios of the figures, and which differences noise explains.

In:  StoredRun A and B. Out: Comparison. InputError when the runs are not comparable.
Noise of times and bandwidths of one size:
- Each run measures every iteration. A difference of the means inside the 95 % interval of Welch's test (B. L. Welch,
  Biometrika 34, 1947) is noise: with other iterations its sign could change.
- A difference up to STEADY is always noise. Two identical runs on an idle machine differ by up to STEADY
  (`./inv bench steady`). The iterations of one run do not show this.
Noise of counts (marks, drops, pauses; one value per run): the spread of equal runs that are kept beside A and B
(equal_runs). It is not computed from the count: of eight equal runs on a fabric of 8 hosts, the variance of marks and
pauses was 0.4 to 11 times their mean, and a Poisson process has 1. With fewer than three equal runs it is not known.
Not known either: noise when the host CPU was the bottleneck, and noise of times of runs without recorded iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import InputError, Problem
from heddle.base.tables import flat, value_text
from heddle.base.units import format_size
from heddle.fabric.policydata import dump_policy
from heddle.predict.statistics import interval, spread_of
from heddle.runs.parts import QueueUse
from heddle.runs.results import RunOutcome
from heddle.runs.runrecord import RunHeader
from heddle.runs.runtable import SizeRow
from heddle.runs.store import History
from heddle.runs.stored import StoredRun

if TYPE_CHECKING:
    from heddle.runs.surroundings import Surroundings

_SHOWN: Final = 4  # nodes that a setting names
_LOOKED_AT: Final = 50  # the latest runs: no more are kept by default


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs, in words."""

    name: str
    a: str
    b: str


def differing_settings(a: StoredRun, b: StoredRun) -> tuple[SettingDifference, ...]:
    """Options, policy of the fabric, versions and machine, if they differ. A part that one run misses gives no row."""
    fabrics = a.fabric.value is not None and b.fabric.value is not None
    around = a.surroundings.value is not None and b.surroundings.value is not None
    told = [settings_of(run, fabrics, around) for run in (a, b)]
    names = dict.fromkeys((*told[0], *told[1]))
    pairs = ((name, told[0].get(name, "-"), told[1].get(name, "-")) for name in names)
    return tuple(SettingDifference(name, one, other) for name, one, other in pairs if one != other)


def settings_of(run: StoredRun, with_fabric: bool, with_around: bool) -> dict[str, str]:
    """Every setting of a run in words."""
    header, built, around = run.record.header, run.fabric.value, run.surroundings.value
    told = {f"run.{name}": value_text(each) for name, each in flat(asdict(header.options)).items() if name != "sizes"}
    told |= {"lab made from": header.fabric, "hashing": header.ecmp, "ranks": str(len(header.ranks))}
    told["hosts of the ranks"] = " ".join(f"{rank.host}:{rank.port}" for rank in header.ranks)
    told["Heddle"] = run.record.heddle
    if built is not None and with_fabric:
        told |= {f"fabric.{name}": value_text(each) for name, each in flat(dump_policy(built.policy)).items()}
        sizes = (built.switches, built.hosts, built.links)
        told["switches, hosts, links"] = ", ".join(str(len(each)) for each in sizes)
        told["rates of links (bit/s)"] = ", ".join(
            f"{rate:,}" for rate in sorted({link.rate_bps for link in built.links})
        )
    if around is not None and with_around:
        told |= {f"version of {name}": version for name, version in around.versions.items() if name != "Heddle"}
        told |= {"runtime": around.runtime, "processors": f"{around.processors} x {around.processor}"}
        told |= _live(around)
    return told


def _live(around: Surroundings) -> dict[str, str]:
    """What was set while the lab ran."""
    found: dict[str, dict[str, list[str]]] = {}
    for node, settings in around.queues.items():
        for path, value in settings.items():
            found.setdefault(f"live queues.{path}", {}).setdefault(value_text(value), []).append(node)
    usual = flat({"options": around.fabric.policy.routing.hash.to_json(), "exact": []})
    for switch, rule in around.hashing.items():
        for path, value in flat(rule).items():
            # The mode is in `hashing`; seeds differ from switch to switch.
            if path not in ("mode", "seed") and usual.get(path) != value:
                found.setdefault(f"live hashing.{path}", {}).setdefault(value_text(value), []).append(switch)
    return {name: "; ".join(f"{value} on {_some(at)}" for value, at in each.items()) for name, each in found.items()}


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= _SHOWN else f"{len(nodes)} nodes"


Verdict = Literal["same", "noise", "differs", "unknown"]
STEADY: Final = 0.03  # of tests/bench/steady.py: what two identical runs may differ by
LEAST: Final = 3  # iterations of each run; fewer have no spread worth the name


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
    settings = differing_settings(a, b)
    equal = equal_runs(a), equal_runs(b)
    # One group where A and B are equal themselves.
    groups = [tuple(each.values()) for each in (equal if not equal[0].keys() & equal[1].keys() else equal[:1])]
    ratios = [ratio for size in common for ratio in _of_size(a, b, rows[0][size], rows[1][size])]
    left_out = tuple(
        f"{format_size(size)} (only {name})"
        for name, mine, theirs in (("A", rows[0], rows[1]), ("B", rows[1], rows[0]))
        for size in mine
        if size not in theirs
    )
    return Comparison(
        a, b, settings, (*ratios, *_of_run(a, b, groups)), left_out, _notes(a, b), [len(each) for each in groups]
    )


def _refused(a: StoredRun, b: StoredRun, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"{a.what} and {b.what}", why, hint))


def _rows(run: StoredRun) -> dict[int, SizeRow]:
    rows = run.record.measured
    if not rows:
        first = run.record.why_not_done
        hint = f"./inv runs {run.lab} lists runs that came to their end"
        raise InputError(Problem("", run.what, f"failed and has no figures: {first}", hint))
    return {row.size: row for row in rows}


def _of_size(a: StoredRun, b: StoredRun, one: SizeRow, other: SizeRow) -> list[Ratio]:
    """Time and busbw of one size; only busbw if the number of ranks differs: the time is then of different work."""
    verdict, why = judged(one, other, _unreliable(a, one.size) or _unreliable(b, one.size))
    same_work = len(a.record.header.ranks) == len(b.record.header.ranks)
    found = [_ratio("busbw", "GB/s emulated", one.size, one.busbw, other.busbw, verdict, why)]
    if same_work:
        found.append(_ratio("time", "us an iteration", one.size, one.time_us, other.time_us, verdict, why))
    return found


def judged(one: SizeRow, other: SizeRow, unreliable: bool = False) -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of the times of one size; the reason in words."""
    if unreliable:
        return "unknown", "the host CPU was or may have been the bottleneck of a run"
    share = abs(other.time_us / one.time_us - 1)
    if share <= STEADY:
        return "noise", f"{share:.1%}: two identical runs differ by up to {STEADY:.0%}"
    counts = [len(row.iteration_us) for row in (one, other)]
    if min(counts) < LEAST:
        return "unknown", f"more than {STEADY:.0%}; {min(counts)} iterations are too few to estimate noise"
    half = interval(one.iteration_us, other.iteration_us)
    apart = abs(fmean(other.iteration_us) - fmean(one.iteration_us))
    said = f"means are {apart:,.0f} us apart, the 95 % interval is +-{half:,.0f} us"
    return ("noise", said) if apart <= half else ("differs", said)


def _unreliable(run: StoredRun, size: int) -> bool:
    """Whether the host CPU was or may have been the bottleneck at that size, or at one that is not named."""
    outcome = run.record.outcome
    return outcome is not None and any(cause.size in (None, size) for cause in outcome.machine.unreliable)


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
    found = []
    if one.proof is not None and other.proof is not None:
        exact = "determined by the paths: the same fabric and settings give the same paths"
        found += [
            _ratio("MMR of flows", "max/mean", None, one.proof.mmr_flows, other.proof.mmr_flows, "differs", exact),
            _ratio("MMR of bytes", "max/mean", None, one.proof.mmr_bytes, other.proof.mmr_bytes, "differs", exact),
        ]
    doubt = _doubt(a, b)
    for count in (*_COUNTS, *_counters(one, other), _BUSY):
        x, y = count.of(one), count.of(other)
        if x is None or y is None:
            continue
        values = [[value for each in group if (value := count.of(each)) is not None] for group in groups]
        found.append(_ratio(count.name, count.unit, None, x, y, *judged_once(x, y, values, doubt)))
    return found


def _doubt(a: StoredRun, b: StoredRun) -> str:
    """Why equal runs cannot tell the noise of counts; empty if they can."""
    one, other = a.record.header.options, b.record.header.options
    if (one.sizes, one.iters, one.warmup) != (other.sizes, other.iters, other.warmup):
        return "sizes or iterations differ"
    if any(run.record.outcome is not None and run.record.outcome.machine.limited for run in (a, b)):
        return "the host CPU was or may have been the bottleneck of a run"
    return ""


def judged_once(one: float, other: float, groups: Sequence[Sequence[float]], doubt: str = "") -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of two counts, by the counts of equal runs; the reason in words.

    doubt: why that cannot be decided.
    """
    if doubt:
        return "unknown", doubt
    spread = spread_of(groups)
    kept = " and ".join(str(len(each)) for each in groups)
    if spread is None:
        return "unknown", f"one count per run, and too few equal runs in the history ({kept}): repeat A or B"
    said = f"{abs(other - one):,.4g} apart; {kept} equal runs: the 95 % interval of two runs is +-{spread.apart:,.4g}"
    return ("noise", said) if abs(other - one) <= spread.apart else ("differs", said)


@dataclass(frozen=True, slots=True)
class _Count:
    """A figure with one value a run. of: the value; None where the run does not have it."""

    name: str
    unit: str
    of: Callable[[RunOutcome], float | None]


def _queue_count(name: str, unit: str, of: Callable[[QueueUse], float]) -> _Count:
    return _Count(name, unit, lambda outcome: None if outcome.queues is None else float(of(outcome.queues)))


_COUNTS: Final = (
    _queue_count("marks", "packets", lambda queues: queues.marks),
    _queue_count("drops", "packets", lambda queues: queues.dropped),
    _queue_count("pause frames", "frames", lambda queues: queues.pauses),
    _queue_count("paused", "ms of all ports", lambda queues: queues.paused_ms),
    _queue_count("deepest queue", "bytes", lambda queues: queues.deepest),
)
_BUSY: Final = _Count("processors busy", "share", lambda outcome: outcome.machine.cpu_share)


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
        if outcome.machine.limited:
            notes.append(f"{name}: the host CPU was or may have been the bottleneck: do not trust its bandwidths")
        if outcome.wrong:
            notes.append(f"{name} has {outcome.wrong:,} wrong elements")
        if outcome.fabric_state is not None and outcome.fabric_state.word != "converged":
            notes.append(f"{name}: the fabric was {outcome.fabric_state.word} during the run")
        if outcome.proof is not None and not outcome.proof.agree:
            notes.append(f"{name}: its paths are not proven")
        if run.fabric.value is None:
            notes.append(f"{name}: settings of its fabric are not compared: {run.fabric.why}")
    if len(a.record.header.ranks) != len(b.record.header.ranks):
        notes.append("the numbers of ranks differ: times are of different work and are not compared")
    return tuple(notes)


def equal_runs(run: StoredRun) -> Mapping[Path, RunOutcome]:
    """By directory, the run itself and its repetitions; empty for a run without an outcome.

    Equal: all settings and sizes, and the state of the fabric. Left out: runs where the host CPU was or may have been
    the bottleneck.
    """
    mine = run.record.outcome
    if mine is None:
        return {}
    found = {run.path: mine}
    wanted = settings_of(run, with_fabric=True, with_around=True)
    for other in History(run.lab, run.path.parent).newest(_LOOKED_AT):
        outcome = None if other.damage else other.record.outcome
        if outcome is None or outcome.machine.limited or other.path in found:
            continue
        if _about(other.record.header) != _about(run.record.header) or _state(outcome) != _state(mine):
            continue
        if settings_of(other, with_fabric=True, with_around=True) == wanted:
            found[other.path] = outcome
    return found


def _about(header: RunHeader) -> RunHeader:
    """The header without its time."""
    return replace(header, when="")


def _state(outcome: RunOutcome) -> str:
    return "" if outcome.fabric_state is None else outcome.fabric_state.word
