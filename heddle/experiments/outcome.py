"""What came of an experiment: samples of each comparison, their mean and interval, the verdict; as JSON and CSV.

In:  figures of every run and repeat (figures.py), the checks of the file.
Out: ExperimentResult with a Row for each check and point of the grid.
The interval is that of the mean, 95 %, by Student's t over repeats; None with a single value.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Final, Literal

from heddle.experiments.expressions import FigureCall, UnknownValueError, points
from heddle.experiments.figures import RunFigures
from heddle.experiments.loading import Experiment, ExperimentCheck, Variant
from heddle.predict.statistics import quantile

State = Literal["ok", "missed", "unproven", "unknown", "shown"]
FAILED: Final = ("missed", "unproven", "unknown")
WORDS: Final[Mapping[State, str]] = {
    "ok": "in the band",
    "missed": "outside the band",
    "unproven": "paths are not proven",
    "unknown": "no value",
    "shown": "no band",
}


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
        many = len(self.values)
        return None if many < 2 else quantile(many - 1) * stdev(self.values) / math.sqrt(many)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"values": list(self.values), "mean": self.mean, "cv_percent": self.cv, "half_interval": self.half}


@dataclass(frozen=True)
class Row:
    """One check at one point of the grid. point: what varies in it. proven: None where no run has paths.

    why: of a state that is not `ok`, and what makes the value doubtful. runs: IDs of the stored runs.
    """

    check: ExperimentCheck
    point: Mapping[str, str]
    sample: Sample | None
    state: State
    proven: bool | None
    why: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`gain qps=4`."""
        return " ".join([self.check.name, *(f"{k.rpartition('.')[2]}={v}" for k, v in self.point.items())])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        low, high = self.check.spec.band
        return {
            "check": self.check.name, "point": dict(self.point), "value": self.check.spec.value,
            "unit": self.check.spec.unit, "published": self.check.spec.published, "low": low, "high": high,
            "measured": None if self.sample is None else self.sample.to_json(), "state": self.state,
            "proven": self.proven, "why": list(self.why), "runs": list(self.runs),
        }  # fmt: skip


@dataclass(frozen=True)
class Repeat:
    """One repeat of a variant: its figures, or why there are none."""

    variant: Variant
    repeat: int
    figures: RunFigures | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        found = self.figures
        return {
            "run": self.variant.run, "point": dict(self.variant.point), "repeat": self.repeat,
            "fabric": self.variant.fabric_text, "ids": [] if found is None else list(found.ids),
            "proven": None if found is None else found.proven, "unreliable": "" if found is None else found.doubt,
            "why": self.why, "figures": {} if found is None else found.to_json(),
        }  # fmt: skip


@dataclass(frozen=True)
class ExperimentResult:
    """The result of one experiment. skipped: the need that is missing. interrupted: Ctrl-C ended it.

    directories: where runs were copied, by ID.
    """

    experiment: Experiment
    done: tuple[Repeat, ...]
    skipped: str = ""
    interrupted: bool = False
    directories: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every check at every point; without runs, none."""
        if self.skipped:
            return ()
        judged = _Judge(self.experiment, self.done)
        return tuple(row for check in self.experiment.checks for row in judged.rows(check))

    @property
    def failed(self) -> bool:
        """Whether a run failed, a check is outside of its band, or could not be judged."""
        return any(each.why for each in self.done) or any(row.state in FAILED for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The whole result."""
        spec = self.experiment.spec
        return {
            "experiment": self.experiment.name, "file": self.experiment.file, "title": spec.title,
            "claim": None if spec.claim is None else spec.claim.model_dump(), "reads": spec.reads,
            "skipped": self.skipped, "interrupted": self.interrupted, "ok": not self.failed and not self.skipped,
            "checks": [row.to_json() for row in self.rows], "runs": [each.to_json() for each in self.done],
            "directories": dict(self.directories),
        }  # fmt: skip

    def checks_csv(self) -> str:
        """A line for each row."""
        axes = list(dict.fromkeys(key for row in self.rows for key in row.point))
        head = ["experiment", "check", *axes, "mean", "half_interval", "cv_percent", "repeats", "low", "high", "state"]
        lines = []
        for row in self.rows:
            low, high = row.check.spec.band
            s = row.sample
            figures = ["", "", "", 0] if s is None else [s.mean, _or(s.half), _or(s.cv), len(s.values)]
            where = [row.point.get(axis, "") for axis in axes]
            name = self.experiment.name
            lines.append([name, row.check.name, *where, *figures, _or(low), _or(high), row.state])
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


def _or(value: float | None) -> float | str:
    return "" if value is None else value


def _csv(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([head, *lines])
    return out.getvalue()


class _Judge:
    """Evaluates checks over what was done."""

    def __init__(self, experiment: Experiment, done: Sequence[Repeat]) -> None:
        self._experiment = experiment
        self._of: dict[tuple[str, frozenset[tuple[str, str]]], list[Repeat]] = {}
        for each in done:
            self._of.setdefault((each.variant.run, frozenset(each.variant.point.items())), []).append(each)

    def rows(self, check: ExperimentCheck) -> list[Row]:
        """The check at every point of what varies in it."""
        return [self._row(check, at) for at in points(check.expression.free(self._experiment.axes_of))]

    def _row(self, check: ExperimentCheck, at: Mapping[str, str]) -> Row:
        used = self._used(check, at)
        many = max((len(each) for each in used), default=0)
        values, whys = [], [done.why for each in used for done in each if done.why]
        for repeat in range(many):
            try:
                values.append(self._value(check, at, repeat))
            except UnknownValueError as error:
                whys.append(str(error))
        found = [done.figures for each in used for done in each if done.figures is not None]
        known = [each.proven for each in found if each.proven is not None]
        proven = all(known) if known else None
        ids = tuple(dict.fromkeys(run for each in found for run in each.ids))
        doubts = [each.doubt for each in found if each.doubt]
        sample = Sample(tuple(values)) if values else None
        state = _state(check, sample, proven, complete=bool(values) and len(values) == many)
        return Row(check, at, sample, state, proven, tuple(dict.fromkeys([*whys, *doubts])), ids)

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

    def _value(self, check: ExperimentCheck, at: Mapping[str, str], repeat: int) -> float:
        def lookup(call: FigureCall, here: Mapping[str, str]) -> float:
            every = self._of.get(self._key(call, here), [])
            if not every:
                raise UnknownValueError(f"run {call.run} did not run")
            last = every[-1].variant.spec  # one that runs less often than others keeps its last value
            if repeat >= len(every) and not (last.offline or last.repeats is not None):
                raise UnknownValueError(f"run {call.run} has no repeat {repeat + 1}")
            done = every[min(repeat, len(every) - 1)]
            if done.figures is None:
                raise UnknownValueError(f"run {call.run} ended with an error")
            return done.figures.value(call.figure, dict(call.keys))

        return check.expression.value(at, lookup, self._experiment.axes_of)


def _state(check: ExperimentCheck, sample: Sample | None, proven: bool | None, *, complete: bool) -> State:
    low, high = check.spec.band
    if sample is None or not complete:
        return "unknown"
    if check.proof and proven is False:
        return "unproven"
    if low is None and high is None:
        return "shown"
    inside = (low is None or sample.mean >= low) and (high is None or sample.mean <= high)
    return "ok" if inside else "missed"
