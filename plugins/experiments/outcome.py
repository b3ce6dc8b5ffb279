"""What came of an experiment: samples of each comparison, their mean and interval, the verdict; as JSON and CSV.

In:  figures of every run and repeat (figures.py), the checks of the file.
Out: ExperimentResult with a Row for each check and point of the grid.
The interval is that of the mean, 95 %, by Student's t over repeats; None with a single value. No verdict rests on a run
with wrong data or unproven paths, none on an unreliable run unless it was asked for, and none on an interval that
crosses an edge of the band. With `draws` the values are pseudo-values of the jackknife, one for each of n draws:
n times the value of all, minus n - 1 times that without this draw (Tukey 1958).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean, stdev
from typing import Any, Final, Literal

from heddle.base.conditions import Condition, FigureCall, UnknownValueError, points
from heddle.base.tables import many
from heddle.predict.statistics import quantile
from heddle.runs.runrecord import Unfit
from heddle_plugins.experiments.figures import RunFigures
from heddle_plugins.experiments.loading import Experiment, ExperimentCheck, Variant
from heddle_plugins.experiments.spec import CheckSpec

State = Literal["in band", "sign only", "out of band", "not known", "wrong data", "shown"]
FAILED: Final = ("out of band", "not known", "wrong data")
UNPROVEN: Final = "unproven paths"
LEAST_REPEATS: Final = 3  # repeats behind a verdict on a value that varies


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one comparison over repeats. half: of the 95 % interval of the mean; cv: in percent of the mean."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return fmean(self.values)

    @property
    def cv(self) -> float | None:
        """The coefficient of variation in percent; None with one value, or where the mean is 0."""
        if len(self.values) < 2 or not self.mean:
            return None
        return 100 * stdev(self.values) / abs(self.mean)

    @property
    def half(self) -> float | None:
        """Half of the interval; None with one value."""
        count = len(self.values)
        return None if count < 2 else quantile(count - 1) * stdev(self.values) / math.sqrt(count)

    def to_json(self) -> dict[str, Any]:
        return {"values": list(self.values), "mean": self.mean, "cv_percent": self.cv, "half_interval": self.half}


@dataclass(frozen=True)
class Row:
    """One check at one point of the grid. point: what varies in it. proven: None where no run has paths.

    cause: of `not known`, in two or three words. accepted: why a run is unreliable that counts all the same.
    why: of a state that fails, and what makes the value doubtful. runs: IDs of the stored runs.
    """

    check: ExperimentCheck
    point: Mapping[str, str]
    sample: Sample | None
    state: State
    proven: bool | None
    cause: str = ""
    accepted: str = ""
    why: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`gain qps=4`."""
        return " ".join([self.check.name, *(f"{k.rpartition('.')[2]}={v}" for k, v in self.point.items())])

    @property
    def fails(self) -> bool:
        """Whether the check found something wrong; what is not known for another reason shows nothing."""
        return self.state in ("out of band", "wrong data") or self.cause == UNPROVEN

    @property
    def broken(self) -> bool:
        """Whether it fails and its value left the claim: any run with wrong data fails, whatever its check claims."""
        return self.fails and self.sample is not None and not _inside(self.check.spec, self.sample)

    @property
    def result(self) -> str:
        """The state in words: `in band`, `NOT KNOWN: too few repeats`."""
        word = self.state.upper() if self.state in FAILED else self.state
        return f"{word}{f': {self.cause}' if self.cause else ''}{', UNRELIABLE' if self.accepted else ''}"

    def to_json(self) -> dict[str, Any]:
        spec, bounds = self.check.spec, self.check.spec.bounds
        low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
        return {
            "check": self.check.name, "value": spec.value, "point": dict(self.point),
            "unit": spec.unit, "published": spec.published, "low": low, "high": high,
            "sign": spec.sign, "measured": None if self.sample is None else self.sample.to_json(), "state": self.state,
            "not_known": self.cause, "unreliable": self.accepted, "proven": self.proven, "why": list(self.why),
            "runs": list(self.runs), "broken_by": self.check.broken_text,
        }  # fmt: skip


@dataclass(frozen=True)
class Repeat:
    """One repeat of a variant: its figures, or why there are none."""

    variant: Variant
    repeat: int
    figures: RunFigures | None
    why: str = ""

    @property
    def unfit(self) -> Unfit | None:
        """Why no verdict rests on it."""
        return None if self.figures is None else Unfit.read(self.figures.doubt)

    @property
    def wrong(self) -> bool:
        """Whether it has wrong data."""
        return self.unfit is not None and self.unfit.kind == "wrong data"

    @property
    def unproven(self) -> bool:
        """Whether its paths are known not to be proven."""
        return self.figures is not None and self.figures.proven is False

    def to_json(self) -> dict[str, Any]:
        found = self.figures
        return {
            "run": self.variant.run, "point": dict(self.variant.point), "repeat": self.repeat,
            "fabric": self.variant.fabric_text, "ids": [] if found is None else list(found.ids),
            "proven": None if found is None else found.proven, "unfit": "" if found is None else found.doubt,
            "why": self.why, "figures": {} if found is None else found.to_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class ExperimentResult:
    """The result of one experiment. skipped: the need that is missing. interrupted: Ctrl-C ended it.

    directories: where runs were copied, by ID. accept_unreliable: verdicts may rest on unreliable runs.
    """

    experiment: Experiment
    done: tuple[Repeat, ...]
    skipped: str = ""
    interrupted: bool = False
    directories: Mapping[str, str] = field(default_factory=dict)
    accept_unreliable: bool = False

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every check at every point; without runs, none."""
        if self.skipped:
            return ()
        judged = _Judge(self.experiment, self.done, self.accept_unreliable)
        return tuple(row for check in self.experiment.checks for row in judged.rows(check))

    @property
    def failed(self) -> bool:
        """Whether a run failed, has wrong data or unproven paths, or a check fails."""
        proven = self.experiment.spec.proof and all(check.proof for check in self.experiment.checks)
        bad = (
            each.why or each.wrong or (each.unproven and (proven or not each.variant.changes_paths))
            for each in self.done
        )
        return any(bad) or any(row.state in FAILED for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        spec = self.experiment.spec
        return {
            "experiment": self.experiment.name, "file": self.experiment.file, "title": spec.title,
            "claim": None if spec.claim is None else spec.claim.model_dump(), "reads": spec.reads,
            "skipped": self.skipped, "interrupted": self.interrupted, "ok": None if self.skipped else not self.failed,
            "checks": [row.to_json() for row in self.rows], "runs": [each.to_json() for each in self.done],
            "directories": dict(self.directories),
        }  # fmt: skip

    def checks_csv(self) -> str:
        """A line for each row."""
        axes = list(dict.fromkeys(key for row in self.rows for key in row.point))
        head = [
            "experiment", "check", *axes, "mean", "half_interval", "cv_percent", "repeats", "low", "high", "sign",
            "state", "not_known", "unreliable", "broken_by",
        ]  # fmt: skip
        lines = []
        for row in self.rows:
            measured = {"values": []} if row.sample is None else row.sample.to_json()
            repeats = {"experiment": self.experiment.name, "repeats": len(measured["values"])}
            known = {**row.to_json(), **measured, **row.point, **repeats}
            lines.append([known.get(each, "") for each in head])
        return _csv(head, lines)

    def runs_csv(self) -> str:
        """A line for each figure of each run and repeat."""
        lines = [
            [
                self.experiment.name, each.variant.run, " ".join(f"{k}={v}" for k, v in each.variant.point.items()),
                each.repeat, name, value,
            ]
            for each in self.done if each.figures is not None
            for name, value in each.figures.to_json().items()
        ]  # fmt: skip
        return _csv(["experiment", "run", "point", "repeat", "figure", "value"], lines)


def _csv(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([head, *lines])
    return out.getvalue()


class _Judge:
    """Evaluates checks over what was done."""

    def __init__(self, experiment: Experiment, done: Sequence[Repeat], accept: bool) -> None:
        self._experiment, self._accept = experiment, accept
        self._of: dict[tuple[str, frozenset[tuple[str, str]]], list[Repeat]] = {}
        for each in done:
            self._of.setdefault((each.variant.run, frozenset(each.variant.point.items())), []).append(each)

    def rows(self, check: ExperimentCheck) -> list[Row]:
        """The check at every point of what varies in it."""
        return [self._row(check, at) for at in points(check.expression.free(self._experiment.axes_of))]

    def _row(self, check: ExperimentCheck, at: Mapping[str, str]) -> Row:
        used = self._used(check, at)
        most = max((len(each) for each in used), default=0)
        values, whys = [], [done.why for each in used for done in each if done.why]
        for repeat in range(most):
            try:
                values += self._values(check, at, repeat)
            except UnknownValueError as error:
                whys.append(str(error))
        every = [done for each in used for done in each]
        known = [done.figures.proven for done in every if done.figures is not None and done.figures.proven is not None]
        proven = all(known) if known else None
        ids = tuple(dict.fromkeys(run for done in every if done.figures is not None for run in done.figures.ids))
        doubts = {done.unfit.kind: done.unfit.why for done in reversed(every) if done.unfit is not None}
        sample = Sample(tuple(values)) if values else None
        complete = bool(values) and (len(values) == most or check.spec.draws is not None)
        state, cause, why = self._state(check, sample if complete else None, used)
        accepted = doubts.get("unreliable", "") if state in ("in band", "sign only", "out of band") else ""
        whys = [*filter(None, [why]), *whys, *doubts.values()]
        return Row(check, at, sample, state, proven, cause, accepted, tuple(dict.fromkeys(whys)), ids)

    def _state(
        self, check: ExperimentCheck, sample: Sample | None, used: Sequence[Sequence[Repeat]]
    ) -> tuple[State, str, str]:
        """The state; the cause of `not known`; and a sentence where the figures alone do not say why."""
        every = [done for each in used for done in each]
        if any(done.wrong for done in every):
            return "wrong data", "", ""
        if sample is None:
            return "not known", "a run failed" if any(done.why for done in every) else "no value", ""
        if any(done.unproven and (check.proof or not done.variant.changes_paths) for done in every):
            return "not known", UNPROVEN, ""
        if check.spec.bounds is None:
            return "shown", "", ""
        if not self._accept and any(done.unfit is not None and done.unfit.kind == "unreliable" for done in every):
            return "not known", "unreliable", ""
        least = min((len(each) for each in used if not each[0].variant.spec.offline), default=None)
        least = least if check.spec.draws is None else len(sample.values)
        return _compared(check.spec, check.spec.bounds, sample, least)

    def _used(self, check: ExperimentCheck, at: Mapping[str, str]) -> list[list[Repeat]]:
        """What was done of every run at the points that the check uses."""
        found = {}
        for call in check.expression.calls:
            axes = self._experiment.axes_of(call)
            for more in points({key: values for key, values in axes.items() if key not in at}):
                key = self._key(call, {**at, **more})
                found[key] = self._of.get(key, [])
        return [*found.values()]

    def _key(self, call: FigureCall, at: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
        return call.run, frozenset(self._experiment.point_of(call, at).items())

    def _values(self, check: ExperimentCheck, at: Mapping[str, str], repeat: int) -> list[float]:
        """The value of a repeat; of a check with draws, a pseudo-value for each of them."""

        @cache
        def known(call: FigureCall, key: tuple[str, frozenset[tuple[str, str]]]) -> float:
            every = self._of.get(key, [])
            if not every:
                raise UnknownValueError(f"run {call.run} did not run")
            last = every[-1].variant.spec  # one that runs less often than others keeps its last value
            if repeat >= len(every) and not (last.offline or last.repeats is not None):
                raise UnknownValueError(f"run {call.run} has no repeat {repeat + 1}")
            done = every[min(repeat, len(every) - 1)]
            if done.figures is None:
                raise UnknownValueError(f"run {call.run} ended with an error")
            return done.figures.value(call.figure, dict(call.keys))

        def value(without: str = "") -> float:
            def axes(call: FigureCall) -> dict[str, Sequence[str]]:
                found = self._experiment.axes_of(call)
                return {k: [v for v in texts if k != check.spec.draws or v != without] for k, texts in found.items()}

            return check.expression.value(at, lambda call, here: known(call, self._key(call, here)), axes)

        whole, axes = value(), [self._experiment.axes_of(call) for call in check.expression.calls]
        draws: Sequence[str] = next((each[key] for each in axes if (key := check.spec.draws or "") in each), ("",))
        return [len(draws) * whole - (len(draws) - 1) * value(without=each) for each in draws]


def _compared(spec: CheckSpec, bounds: Condition, sample: Sample, least: int | None) -> tuple[State, str, str]:
    """The state of a value that can be judged, as `_state`. least: repeats of the live run with the fewest, if any."""
    why, inside, one = "", _inside(spec, sample), bounds.low == bounds.high
    if spec.exact and least == 1:
        return "not known", "too few repeats", "1 repeat; a value that does not vary needs 2, which are equal"
    if spec.exact:
        if len(set(sample.values)) > 1:
            inside, why = False, f"repeats differ: {', '.join(f'{each:.6g}' for each in sample.values)}"
    elif least is not None and (inside or not one) and (why := _too_few(sample, least, bounds)):
        return "not known", "too few repeats", why
    return "out of band" if not inside else "sign only" if spec.sign else "in band", "", why


def _inside(spec: CheckSpec, sample: Sample) -> bool:
    """Whether a value is as claimed: its mean; where it cannot vary, each repeat."""
    bounds = spec.bounds
    if bounds is None:
        return True
    fixed = spec.exact or bounds.low == bounds.high
    return all(map(bounds.holds, sample.values if fixed else [sample.mean]))


def _too_few(sample: Sample, repeats: int, bounds: Condition) -> str:
    """Why so many repeats allow no verdict; empty if they do. repeats: of the run that has the fewest."""
    if repeats < LEAST_REPEATS:
        return f"{many(repeats, 'repeat')}; a verdict on a value that varies needs {LEAST_REPEATS}"
    half = sample.half or 0.0
    crossed = [edge for edge in (bounds.low, bounds.high) if edge is not None and abs(edge - sample.mean) < half]
    ends = f"{sample.mean - half:.4g} to {sample.mean + half:.4g}"
    return f"the 95 % interval, {ends}, crosses the edge {crossed[0]:g}" if crossed else ""


def breaks(experiment: Experiment) -> list[Experiment]:
    """What to run."""
    found: dict[str, Experiment] = {}
    for each in experiment.checks:
        if each.broken is None or each.spec.broken_by is None:
            continue
        key = each.spec.broken_by.model_dump_json(exclude={"why"})
        before = found.get(key, replace(each.broken, variants=(), checks=()))
        known = {variant.run for variant in before.variants}
        more = [variant for variant in each.broken.variants if variant.run not in known]
        checks, axes = (*before.checks, replace(each, broken=None)), {**before.axes, **each.broken.axes}
        found[key] = replace(before, variants=(*before.variants, *more), checks=checks, axes=axes)
    return [*found.values()]


def unbroken(experiment: Experiment, results: Sequence[ExperimentResult]) -> dict[str, str]:
    """The checks with a band or a sign whose value did not leave it, and why; without those that were skipped."""
    found = {
        each.name: "has no broken_by" if each.broken is None else "did not run"
        for each in experiment.checks if each.spec.bounds is not None
    }  # fmt: skip
    for result in results:
        for check in result.experiment.checks:
            rows = [row for row in result.rows if row.check.name == check.name]
            passed = [row for row in rows if not row.broken]
            if passed:
                how = "but its value does not leave the claim" if passed[0].fails else "though it was broken"
                found[check.name] = f"{passed[0].result}, {how}"
            elif rows or result.skipped:
                del found[check.name]
    return found
