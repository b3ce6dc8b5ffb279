"""Compare two runs: settings that differ, ratios of the figures, and which differences noise explains.

In:  WholeRun A and B. Out: Comparison. InputError when the runs are not comparable.
Noise of times and bandwidths of one size:
- Each run measures every iteration. A difference of the means inside the 95 % interval of Welch's test (B. L. Welch,
  Biometrika 34, 1947) is noise: with other iterations its sign could change.
- A difference up to STEADY is always noise. Two identical runs on an idle machine differ by up to STEADY
  (`./inv bench steady`). The iterations of one run do not show this.
Not known: noise when the host CPU was the bottleneck, noise of runs without recorded iterations, and noise of counts
(marks, drops, pauses): there is one count per run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import InputError, Problem
from heddle.base.units import format_size
from heddle.base.valuetext import flat, value_text
from heddle.fabric.policydata import dump_policy

if TYPE_CHECKING:
    from heddle.runs.keptrun import WholeRun
    from heddle.runs.runtable import SizeRow
    from heddle.runs.surroundings import Surroundings

Verdict = Literal["same", "noise", "differs", "unknown"]
STEADY: Final = 0.03  # of tests/bench/steady.py: what two identical runs may differ by
_SHOWN: Final = 4  # nodes that a setting names
LEAST: Final = 3  # iterations of each run; fewer have no spread worth the name
# Quantiles of Student's t, 97.5 %, by degrees of freedom: NIST/SEMATECH e-Handbook, 1.3.6.7.2.
_T: Final = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.000), (120, 1.980), (10**9, 1.960),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs, in words."""

    name: str
    a: str
    b: str


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
    """Of A and B. left_out: sizes that only one has. notes: what makes the whole doubtful."""

    a: WholeRun
    b: WholeRun
    settings: tuple[SettingDifference, ...]
    ratios: tuple[Ratio, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of `./inv compare`."""
        runs = (
            {"run_id": run.id, "lab": run.record.header.lab, "path": str(run.kept.path)} for run in (self.a, self.b)
        )
        return {
            **dict(zip(("a", "b"), runs, strict=True)),
            "settings": [asdict(each) for each in self.settings],
            "ratios": [asdict(each) for each in self.ratios],
            "left_out": list(self.left_out),
            "noise": {"steady": STEADY, "least_iterations": LEAST, "confidence": 0.95},
            "notes": list(self.notes),
            "emulated": {"k": self.a.record.header.k},
        }


def compare(a: WholeRun, b: WholeRun) -> Comparison:
    """Compare two runs; InputError when that has no meaning, with the reason."""
    if a.kept.path == b.kept.path:
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
    settings = _settings(a, b)
    ratios = [ratio for size in common for ratio in _of_size(a, b, rows[0][size], rows[1][size])]
    left_out = tuple(
        f"{format_size(size)} (only {name})"
        for name, mine, theirs in (("A", rows[0], rows[1]), ("B", rows[1], rows[0]))
        for size in mine
        if size not in theirs
    )
    return Comparison(a, b, settings, (*ratios, *_of_run(a, b)), left_out, _notes(a, b))


def _refused(a: WholeRun, b: WholeRun, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"{a.kept.what} and {b.kept.what}", why, hint))


def _rows(run: WholeRun) -> dict[int, SizeRow]:
    outcome = run.record.outcome
    rows = run.record.rows if outcome is None else outcome.rows
    if not rows:
        first = run.record.failure[0].partition("\n")[0] if run.record.failure else "no reason is known"
        hint = f"./inv runs {run.kept.lab} lists runs that came to their end"
        raise InputError(Problem("", run.kept.what, f"failed and has no figures: {first}", hint))
    return {row.size: row for row in rows}


def _settings(a: WholeRun, b: WholeRun) -> tuple[SettingDifference, ...]:
    """Options, policy of the fabric, versions and machine, if they differ. A part that one run misses gives no row."""
    fabrics = a.fabric is not None and b.fabric is not None
    around = a.surroundings is not None and b.surroundings is not None
    told = [_told(run, fabrics, around) for run in (a, b)]
    names = dict.fromkeys((*told[0], *told[1]))
    pairs = ((name, told[0].get(name, "-"), told[1].get(name, "-")) for name in names)
    return tuple(SettingDifference(name, one, other) for name, one, other in pairs if one != other)


def _told(run: WholeRun, with_fabric: bool, with_around: bool) -> dict[str, str]:
    """Every setting of a run in words."""
    header, built, around = run.record.header, run.fabric, run.surroundings
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


def _of_size(a: WholeRun, b: WholeRun, one: SizeRow, other: SizeRow) -> list[Ratio]:
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


def interval(one: Sequence[float], other: Sequence[float]) -> float:
    """Half of the 95 % interval of the difference of two means, by Welch's test."""
    parts = [variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True))
    # The next smaller degree of freedom in the table: its quantile is larger, so that doubt counts as noise.
    quantile = next((t for degrees, t in reversed(_T) if degrees <= freedom), _T[0][1])
    return quantile * math.sqrt(total)


def _unreliable(run: WholeRun, size: int) -> bool:
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


def _of_run(a: WholeRun, b: WholeRun) -> list[Ratio]:
    """Figures of the whole run: one count per run. Ratios of counts need equal sizes and iterations."""
    one, other = a.record.outcome, b.record.outcome
    if one is None or other is None:
        return []
    once = "one count per run: its noise is not known"
    options = [run.record.header.options for run in (a, b)]
    if (options[0].sizes, options[0].iters, options[0].warmup) != (
        options[1].sizes,
        options[1].iters,
        options[1].warmup,
    ):
        once += "; sizes or iterations differ"
    found = []
    if one.proof is not None and other.proof is not None:
        exact = "determined by the paths: the same fabric and settings give the same paths"
        found += [
            _ratio("MMR of flows", "max/mean", None, one.proof.mmr_flows, other.proof.mmr_flows, "differs", exact),
            _ratio("MMR of bytes", "max/mean", None, one.proof.mmr_bytes, other.proof.mmr_bytes, "differs", exact),
        ]
    if (p := one.queues) is not None and (q := other.queues) is not None:
        found += [
            _ratio(name, unit, None, float(x), float(y), "unknown", once)
            for name, unit, x, y in (
                ("marks", "packets", p.marks, q.marks),
                ("drops", "packets", p.dropped, q.dropped),
                ("pause frames", "frames", p.pauses, q.pauses),
                ("paused", "ms of all ports", p.paused_ms, q.paused_ms),
                ("deepest queue", "bytes", p.deepest, q.deepest),
            )
        ]
    texts = {column.key: column.text for run in (one, other) for column in run.transport.columns}
    for key, text in texts.items():
        if key in one.counters and key in other.counters:
            found.append(
                _ratio(text, "count", None, float(one.counters[key]), float(other.counters[key]), "unknown", once)
            )
    why = "one mean per run: its noise is not known"
    found.append(
        _ratio("processors busy", "share", None, one.machine.cpu_share, other.machine.cpu_share, "unknown", why)
    )
    return found


def _notes(a: WholeRun, b: WholeRun) -> tuple[str, ...]:
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
        if run.fabric is None:
            notes.append(f"{name}: settings of its fabric are not compared: {run.why('fabric')}")
    if len(a.record.header.ranks) != len(b.record.header.ranks):
        notes.append("the numbers of ranks differ: times are of different work and are not compared")
    return tuple(notes)
