"""Compare two runs: settings that differ, ratios of the figures, and which differences noise explains.

In:  StoredRun A and B. Out: Comparison, the same for (A, B) and (B, A). InputError when the runs are not comparable.
No verdict rests on a run that is not fit for one (runrecord.py): wrong data, unproven paths, or UNRELIABLE, which does
not concern MMR.
Equal runs have equal settings, and an equal state of the fabric and its links. If the history of the lab has enough,
they decide (noise.py has the tests and their sources). Without enough equal runs, three rules are left:
- A time that differs by at most STEADY is noise. Two identical runs on an idle machine differ by up to STEADY
  (`./inv bench steady`). The iterations of one run do not show this.
- A larger one differs if it is outside the 95 % interval of Welch's test on the iterations of both runs (B. L. Welch,
  Biometrika 34, 1947), and each QP had one path. Inside it, or where packets of one QP take several paths, which may
  differ from run to run, the noise is not known.
- MMR differs if every path was fixed and proven; of bytes also only if no packet was lost or retransmitted.
Not known either: noise of times of runs without recorded iterations.
Settings of a run are words: name -> value, by the part of the run that has them.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.problems import InputError, Problem
from heddle.base.tables import flat, value_text
from heddle.base.units import format_size
from heddle.fabric.hashmodes import SPREADING
from heddle.fabric.policydata import dump_policy, fabric_to_json
from heddle.predict.statistics import interval
from heddle.runs.figures import FIGURES, Figure
from heddle.runs.noise import LEVEL, STEADY, Chance, chance_of, outliers
from heddle.runs.runrecord import RunRecord, unfit
from heddle.runs.runtable import RunHead, SizeRow
from heddle.runs.store import History
from heddle.runs.stored import StoredRun

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.fabricstate import FabricState
    from heddle.runs.surroundings import Surroundings

Verdict = Literal["same", "noise", "differs", "unknown"]
REPEAT: Final = "repeat A or B"
LEAST: Final = 3  # iterations of each run; fewer have no spread worth the name
_LEAST: Final = 1e-30  # of a time or bandwidth, and 1 / the most: no run has such
_MMR: Final = "max/mean"
_COUNTED: Final = ("packets", "frames", "count")
DESPITE: Final = "despite"  # before what makes a run unreliable that counts all the same
_NAMED: Final = ("A: ", "B: ")  # what is not fit for a verdict
Group = Mapping[Path, RunRecord]  # equal runs, by directory


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of both runs. ratio: B / A; None where A is 0 or one is not known. why: of the verdict.

    means: a and b are means of the equal runs of A and of B, because these decide.
    """

    figure: str
    unit: str
    size: int | None
    a: float | None
    b: float | None
    ratio: float | None
    verdict: Verdict
    why: str
    means: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of A and B. left_out: sizes that only one has. notes: what makes the whole doubtful, and outliers.

    equal: how many equal runs are kept: of A and of B, or of both where A and B are equal. ok: the data of A and B are
    right, and their paths proven.
    """

    a: StoredRun
    b: StoredRun
    settings: tuple[SettingDifference, ...]
    ratios: tuple[Ratio, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    equal: Sequence[int] = ()
    ok: bool = True

    def to_json(self) -> dict[str, Any]:
        runs = ({"run_id": run.id, "lab": run.record.lab, "path": str(run.path)} for run in (self.a, self.b))
        return {
            **dict(zip(("a", "b"), runs, strict=True)),
            "settings": [asdict(each) for each in self.settings],
            "ratios": [asdict(each) for each in self.ratios],
            "left_out": list(self.left_out),
            "noise": {"steady": STEADY, "least_iterations": LEAST, "level": LEVEL, "equal_runs": list(self.equal)},
            "ok": self.ok,
            "notes": list(self.notes),
            "emulated": {"k": self.a.record.k},
        }


def compare(a: StoredRun, b: StoredRun, *, unreliable: bool = False) -> Comparison:
    """Compare two runs; InputError when that has no meaning, with the reason.

    unreliable: give verdicts on UNRELIABLE runs, too; they then name it.
    """
    if a.path == b.path:
        raise _refused(a, b, "are the same run", "name two runs; ./inv runs lists them")
    # Recorded runs have figures of the whole run only.
    foreign = bool(a.record.recorded and b.record.recorded)
    rows = [{} if foreign else _rows(run) for run in (a, b)]
    one, other = a.record, b.record
    if one.options.collective != other.options.collective:
        names = f"{one.options.collective}, {other.options.collective}"
        why = f"have different collectives ({names}): their times and busbw are not comparable"
        raise _refused(a, b, why, "compare two runs of the same collective")
    if one.k != other.k:
        why = f"have different scales (k = {one.k}, k = {other.k}): their emulated bandwidths are not comparable"
        raise _refused(a, b, why, "compare two runs with the same k")
    common = [size for size in rows[0] if size in rows[1]]
    if not common and not foreign:
        said = " and ".join(", ".join(format_size(size) for size in each) for each in rows)
        raise _refused(a, b, f"have no size in common: {said}", "run both with the same --size")
    equal = equal_runs(a), equal_runs(b)
    # One group where A and B are equal themselves.
    groups = [{**equal[0], **equal[1]}] if equal[0].keys() & equal[1].keys() else list(equal)
    pair = _Pair(a, b, groups, unreliable)
    ratios = [ratio for size in common for ratio in pair.of_size(rows[0][size], rows[1][size])]
    left_out = tuple(
        f"{format_size(size)} (only {name})"
        for name, mine, theirs in (("A", rows[0], rows[1]), ("B", rows[1], rows[0]))
        for size in mine
        if size not in theirs
    )
    ratios += pair.of_run()
    notes = (*pair.notes(), *_notes(a, b))
    ok = all(each is None or each.kind == "unreliable" for each in pair.unfit.values())
    return Comparison(a, b, differing_settings(a, b), tuple(ratios), left_out, notes, [*map(len, groups)], ok)


def _refused(a: StoredRun, b: StoredRun, why: str, hint: str) -> InputError:
    return InputError(Problem("", f"{a.what} and {b.what}", why, hint))


def _rows(run: StoredRun) -> dict[int, SizeRow]:
    rows = run.record.rows
    run.check_sizes()
    if not rows:
        first = run.record.why_not_done
        hint = f"./inv runs {run.lab} lists runs that came to their end"
        raise InputError(Problem("", run.what, f"failed and has no figures: {first}", hint))
    return {row.size: row for row in rows}


class _Pair:
    """A and B with their groups of equal runs. unfit: of each that is not fit for a verdict."""

    def __init__(self, a: StoredRun, b: StoredRun, groups: Sequence[Group], unreliable: bool) -> None:
        self.a, self.b, self._groups, self._unreliable = a, b, groups, unreliable
        self.unfit = {name: unfit(run.record) for name, run in (("A", a), ("B", b))}
        self._strange: dict[str, list[str]] = {}  # run -> figures in which it is an outlier

    def of_size(self, one: SizeRow, other: SizeRow) -> list[Ratio]:
        """Time and busbw of one size; only busbw if the number of ranks differs: the time is then of different work."""
        busbw = partial(busbw_of, one.size)
        self._name_outliers(f"busbw {format_size(one.size)}", busbw, counted=False)
        doubt, but = self._doubt(one.size)
        chance = several_paths(self.a.record) or several_paths(self.b.record)
        verdict, why = judged(one, other, self._values(busbw), doubt, chance)
        both, row = (one.busbw, other.busbw), partial(self._ratio, size=one.size, doubt=doubt, verdict=verdict, but=but)
        found = [row("busbw", "GB/s emulated", both, of=busbw, why=why)]
        if len(self.a.record.ranks) == len(self.b.record.ranks):
            both, of = (one.time_us, other.time_us), partial(_of_row, one.size, "time_us")
            found.append(row("time", "us an iteration", both, of=of, why=why))
        return found

    def _ratio(
        self, name: str, unit: str, both: tuple[float, float], *, size: int | None,
        of: Callable[[RunRecord], float | None], verdict: Verdict, why: str, doubt: str, but: str,
        counted: bool = False,
    ) -> Ratio:  # fmt: skip
        """The row of a figure; of means where groups of equal runs decide. but: to be said before the reason."""
        found = None if doubt else chance_of(*both, self._values(of), counted=counted)
        means = None if found is None else found.means
        a, b = map(float, means or both)
        ratio = b / a if a else math.inf
        if a == b and not why.startswith(_NAMED):  # no verdict on a run that is not fit for one
            verdict, why = "same", but.removesuffix("; ")
        else:
            why = but + why
        return Ratio(name, unit, size, a, b, ratio if math.isfinite(ratio) else None, verdict, why, means is not None)

    def of_run(self) -> list[Ratio]:
        """Figures of the whole run. Ratios of counts need equal sizes and iterations."""
        one, other = self.a.record, self.b.record
        if not (one.done and other.done):
            return []
        found = []
        options = one.options, other.options
        alike = len({(each.sizes, each.iters, each.warmup) for each in options}) == 1
        for figure in (*(each for each in FIGURES.values() if each.title), *_counters(one, other)):
            x, y = figure.of(one), figure.of(other)
            if x is None or y is None:
                continue
            counted = figure.unit in _COUNTED
            # A busy host CPU changes no path and no count of a proven one.
            unfit_doubt, but = self._doubt(None, busy_matters=figure.unit != _MMR)
            doubt = unfit_doubt or ("" if alike else "sizes or iterations differ")
            verdict, why = judged_once(x, y, self._values(figure.of), doubt, counted=counted)
            if figure.unit == _MMR and not unfit_doubt:
                of_flows = figure is FIGURES["mmr_flows"]
                chance = _not_fixed(self.a, of_flows=of_flows) or _not_fixed(self.b, of_flows=of_flows)
                verdict, why = (
                    (verdict, f"{chance}; {why}") if chance else ("differs", "every path is fixed and proven")
                )
            self._name_outliers(figure.title, figure.of, counted=counted)
            row = partial(self._ratio, size=None, doubt=doubt, verdict=verdict, but=but, counted=counted)
            found.append(row(figure.title, figure.unit, (x, y), of=figure.of, why=why))
        return found

    def notes(self) -> Iterator[str]:
        """Why A or B is not fit for a verdict; outliers among equal runs."""
        yield from (f"{name}: {each.why}" for name, each in self.unfit.items() if each is not None)
        for run, figures in self._strange.items():
            yield f"{run} is an outlier among its equal runs: {', '.join(figures)}"

    def _doubt(self, size: int | None, *, busy_matters: bool = True) -> tuple[str, str]:
        """Why there is no verdict, or what is to be said before one. size: causes at others do not count, bytes.

        busy_matters: for figures that change when the host CPU is the bottleneck.
        """
        found = [(name, each) for name, run in (("A", self.a), ("B", self.b)) if (each := unfit(run.record, size))]
        found = [(name, each) for name, each in found if busy_matters or each.kind != "unreliable"]
        said = "; ".join(f"{name}: {each.why}" for name, each in found)
        allowed = self._unreliable and all(each.kind == "unreliable" for _, each in found)
        return ("", f"{DESPITE} {said}; " if said else "") if allowed else (said, "")

    def _values(self, of: Callable[[RunRecord], float | None]) -> list[list[float]]:
        return [[value for run in group.values() if (value := of(run)) is not None] for group in self._groups]

    def _name_outliers(self, figure: str, of: Callable[[RunRecord], float | None], *, counted: bool) -> None:
        for group in self._groups:
            known = [(path, value) for path, run in group.items() if (value := of(run)) is not None]
            for at in outliers([value for _, value in known], counted=counted):
                name = {self.a.path: "A: run", self.b.path: "B: run"}.get(known[at][0], "run")
                said = f"{figure} {known[at][1]:,.4g}"
                self._strange.setdefault(f"{name} {known[at][0].name}", []).append(said)


def busbw_of(size: int, outcome: RunRecord) -> float | None:
    """The busbw of a size, GB/s, emulated; None for a run without it."""
    return _of_row(size, "busbw", outcome)


def _of_row(size: int, name: str, outcome: RunRecord) -> float | None:
    return next((getattr(row, name) for row in outcome.rows if row.size == size), None)


def judged(
    one: SizeRow, other: SizeRow, equal: Sequence[Sequence[float]] = (), doubt: str = "", chance: str = ""
) -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of the bandwidths of one size; the reason in words.

    equal: busbw of equal runs. doubt: why it cannot be decided. chance: why a run does not show the noise of another.
    """
    if doubt:
        return "unknown", doubt
    if (found := chance_of(one.busbw, other.busbw, equal, counted=False) if equal else None) is not None:
        return _by(found)
    if not all(
        _LEAST < each < 1 / _LEAST for row in (one, other) for each in (row.busbw, row.time_us, *row.iteration_us)
    ):
        return "unknown", "a time or bandwidth is not that of a measurement"
    apart = abs(math.log(other.busbw) - math.log(one.busbw))
    share = math.expm1(apart)
    if share <= STEADY:
        return "noise", f"{share:.1%}: two identical runs differ by up to {STEADY:.0%}"
    few = min(len(row.iteration_us) for row in (one, other))
    if chance or few < LEAST:
        return "unknown", f"more than {STEADY:.0%}; {chance or f'{few} iterations are too few to estimate noise'}"
    # Time for equal work: with other ranks the times of an iteration are not of the same work.
    work = [[us / (row.busbw * row.time_us) for us in row.iteration_us] for row in (one, other)]
    middle, half = fmean([fmean(each) for each in work]), interval(*work)
    means = abs(fmean(work[1]) - fmean(work[0]))
    said = f"means are {means / middle:.1%} apart, the 95 % interval of the iterations is +-{half / middle:.1%}"
    return ("unknown", f"{said}: {REPEAT}") if means <= half else ("differs", said)


def _by(found: Chance) -> tuple[Verdict, str]:
    """The verdict of equal runs."""
    return found.verdict, f"{found.words}: {REPEAT}" if found.verdict == "unknown" else found.words


def several_paths(run: RunRecord) -> str:
    """Why the paths of a run may differ from those of an equal run; empty if each QP had one path."""
    spread = None if run.proof is None else run.proof.spread
    if spread is None:  # an interrupted run, or one of an older Heddle
        spread = any(mode in run.ecmp for mode in SPREADING)
    return "packets of one QP took several paths, which differ from run to run" if spread else ""


def _not_fixed(run: StoredRun, *, of_flows: bool) -> str:
    """Why the MMR of an equal run may be another; empty if all paths, and the packets on them, are determined."""
    record = run.record
    if record.proof is None or record.proof.spread is None:
        return "the paths of a run are not proven to be fixed"
    if chance := several_paths(record):
        return chance
    if of_flows:
        return ""
    if record.proof.qps > record.qps:  # a flow for each source port
        return "packets take the next source port of their QP, in the order in which data arrives"
    if record.lost is None or record.lost or any(record.counters.get(key) for key in _VARYING):
        return "packets were lost or retransmitted, or answered with the data"
    return ""


def judged_once(
    one: float, other: float, groups: Sequence[Sequence[float]], doubt: str = "", *, counted: bool = True
) -> tuple[Verdict, str]:
    """Decide whether noise explains the difference of two figures with one value a run; the reason in words.

    groups: the values of equal runs. doubt: why that cannot be decided. counted: packets, frames.
    """
    if doubt:
        return "unknown", doubt
    if (found := chance_of(one, other, groups, counted=counted)) is not None:
        return _by(found)
    kept = " and ".join(str(len(each)) for each in groups)
    return "unknown", f"one value per run, and too few equal runs in the history ({kept}): {REPEAT}"


# Counters of what changes the bytes on links: packets sent twice, copies of the network, ACKs that count as data.
_VARYING: Final = ("retransmitted", "duplicates", "late", "cts_acks")


def _counters(one: RunRecord, other: RunRecord) -> list[Figure]:
    texts = {column.key: column.text for outcome in (one, other) for column in outcome.transport.columns}
    both = {key: text for key, text in texts.items() if key in one.counters and key in other.counters}
    return [Figure(title=text, unit="count", text=text, run=partial(_counter, key)) for key, text in both.items()]


def _counter(key: str, outcome: RunRecord) -> float | None:
    return float(outcome.counters[key]) if key in outcome.counters else None


def _notes(a: StoredRun, b: StoredRun) -> tuple[str, ...]:
    notes = []
    for name, run in (("A", a), ("B", b)):
        if not run.record.done:
            notes.append(f"{name} was interrupted: its queues, paths and processors are not compared")
            continue
        if (state := run.record.fabric_state) is not None:
            if state.word != "converged":
                notes.append(f"{name}: the fabric was {state.word} during the run")
            if faults := faults_of_links(state):
                notes.append(f"{name}: faults were set on links: {faults}")
        if run.fabric.value is None:
            notes.append(f"{name}: settings of its fabric are not compared: {run.fabric.why}")
    if len(a.record.ranks) != len(b.record.ranks):
        notes.append("the numbers of ranks differ: times are of different work and are not compared")
    return tuple(notes)


_LOOKED_AT: Final = 50  # the latest runs: no more are kept by default


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting that differs, in words."""

    name: str
    a: str
    b: str


def differing_settings(a: StoredRun, b: StoredRun) -> tuple[SettingDifference, ...]:
    """Options, fabric, versions, machine, faults and state of the fabric, if they differ. A part that one run misses
    gives no row.
    """
    one, other = settings_of(a), settings_of(b)
    shared = [part for part in one if part in other]
    pairs = (
        (name, one[part].get(name, "-"), other[part].get(name, "-"))
        for part in shared
        for name in dict.fromkeys((*one[part], *other[part]))
    )
    return tuple(SettingDifference(*each) for each in pairs if each[1] != each[2])


def settings_of(run: StoredRun) -> dict[str, dict[str, str]]:
    """Every setting of a run in words, by the part of the run that has it. Parts that it does not carry are absent."""
    from heddle.endpoints.runoptions import plain

    record, built, around = run.record, run.fabric.value, run.surroundings.value
    told = {f"run.{name}": value_text(each) for name, each in flat(plain(record.options)).items() if name != "sizes"}
    told |= {"lab made from": record.fabric, "hashing": record.ecmp, "ranks": str(len(record.ranks))}
    told["hosts of the ranks"] = " ".join(f"{rank.host}:{rank.port}" for rank in record.ranks)
    told["jobs beside it"] = "; ".join(record.beside) or "none"
    told["Heddle"] = record.heddle
    found = {"record": told}
    if built is not None:
        found["fabric"] = _of_fabric(built)
    if around is not None:
        found["around"] = {f"version of {name}": each for name, each in around.versions.items() if name != "Heddle"}
        found["around"] |= {"runtime": around.runtime, "processors": f"{around.processors} x {around.processor}"}
        found["around"] |= _live(around)
    if record.fabric_state is not None:
        found["state"] = _of_state(record.fabric_state)
    return found


def _of_fabric(built: Fabric) -> dict[str, str]:
    told = {f"fabric.{name}": value_text(each) for name, each in flat(dump_policy(built.policy)).items()}
    told["switches, hosts, links"] = ", ".join(str(len(each)) for each in (built.switches, built.hosts, built.links))
    told["rates of links (bit/s)"] = ", ".join(f"{rate:,}" for rate in sorted({link.rate_bps for link in built.links}))
    # All the rest, such as which of the links is the slow one, and addresses, which a hash sees.
    rest = {name: value for name, value in fabric_to_json(built).items() if name not in ("name", "policy")}
    told["wiring and addresses"] = f"checksum {zlib.crc32(json.dumps(rest, sort_keys=True).encode()):08x}"
    return told


def faults_of_links(state: FabricState) -> str:
    """What was set on links, and what after the run if that differs; empty for none."""
    found = _before_after("; ".join(state.before.link_faults), "; ".join(state.after.link_faults))
    return "" if found == "none" else found


def _of_state(state: FabricState) -> dict[str, str]:
    gaps = ("; ".join((*reading.faults, *reading.gaps)) for reading in (state.before, state.after))
    return {
        "faults of links": faults_of_links(state) or "none",
        "faults of the fabric": _before_after(*gaps),
        "changed during the run": ", ".join(state.changed) or "none",
    }


def _before_after(*texts: str) -> str:
    return ", then ".join(dict.fromkeys(text or "none" for text in texts))


def _live(around: Surroundings) -> dict[str, str]:
    found: dict[str, dict[str, list[str]]] = {}
    for node, settings in around.queues.items():
        for path, value in settings.items():
            found.setdefault(f"live queues.{path}", {}).setdefault(value_text(value), []).append(node)
    usual = flat({"options": around.fabric.policy.routing.hash.to_json(), "exact": []})
    seeds = {node.name: node.hash_seed for node in around.fabric.switches}
    for switch, rule in around.hashing.items():
        for path, value in flat(rule).items():
            if path != "mode" and {**usual, "seed": seeds.get(switch)}.get(path) != value:  # the mode is in `hashing`
                found.setdefault(f"live hashing.{path}", {}).setdefault(value_text(value), []).append(switch)
    return {
        name: "; ".join(f"{value} on {', '.join(at)}" for value, at in each.items()) for name, each in found.items()
    }


def equal_runs(run: StoredRun) -> Mapping[Path, RunRecord]:
    """By directory, the run itself and its repetitions; empty for a run without an outcome.

    Equal: all settings and sizes, faults of links and the state of the fabric. Left out: others that are not fit for a
    verdict (runrecord.py).
    """
    if not run.record.done:
        return {}
    found = {run.path: run.record}
    wanted = settings_of(run)
    for other in History(run.lab, run.path.parent).newest(_LOOKED_AT):
        if other.damage or not other.record.done or unfit(other.record) or other.path in found:
            continue
        if _about(other.record) == _about(run.record) and settings_of(other) == wanted:
            found[other.path] = other.record
    return found


def _about(record: RunRecord) -> list[object]:
    return [getattr(record, each.name) for each in fields(RunHead) if each.name != "when"]
