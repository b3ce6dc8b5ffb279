"""Experiment file -> Experiment: everything that runs, checked before anything is brought up.

In:  a name below traffic/experiments, or a path.
Out: Experiment: a Variant for each run at each point of its grid, and the parsed checks. InputError with all problems,
with file and line.
Lists in the settings of a run make a grid: the run is made once for each combination of their values. A setting whose
value is a list by itself needs a list of lists to vary: `queues.lossless: [[3], [3, 4]]`. Runs that have the same list
below the same key vary together: a comparison takes both at the same value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.conditions import CHOICES, Expression, ExpressionError, FigureCall, points
from heddle.base.files import beside
from heddle.base.problems import InputError, MachineError, Problem, Problems, did_you_mean
from heddle.fabric.hashmodes import PREDICTED
from heddle.kernel import rdma
from heddle.runs.figures import counters, figures_with
from heddle.runs.measuring import Measure
from heddle.runs.parts import PARTS
from heddle.spec.yamlfile import Document, Mark, Trail, dotted, parse, read_text
from heddle_plugins.experiments.finding import READING, is_file
from heddle_plugins.experiments.livechanges import wrong_changes
from heddle_plugins.experiments.measures import MEASURES
from heddle_plugins.experiments.spec import NAME, CheckSpec, ExperimentSpec, RunSpec

if TYPE_CHECKING:
    from heddle.fabric.fabricfile import LoadedFabric
    from heddle.traffic.workload import Workload

_MOST: Final = 500  # runs of one experiment, without repeats
_LISTS: Final = ("ranks", "steps", "scale")  # keys of a run whose value may be a list


def _rxe() -> str:
    found = rdma.obstacle()
    return "" if found is None else f"{found.what} {found.why}".strip()


@cache
def _probed() -> Mapping[str, str]:
    from heddle.host.preflight import probe

    return probe()


def _kernel(name: str) -> Callable[[], str]:
    def missing() -> str:
        found = _probed().get(name, "was not tried")
        return "" if found == "ok" else f"the kernel has no {name}: {found}"

    return missing


# Word of `needs` -> the reason why it is missing; an empty text if it is there.
NEEDS: Final[Mapping[str, Callable[[], str]]] = {
    "root": lambda: "" if os.geteuid() == 0 else "needs root: start it with sudo, or as root",
    "rxe": _rxe,
    **{name: _kernel(name) for name in ("netem", "red", "ets", "clsact")},
}


def missing_need(needs: list[str]) -> str:
    """Why the first need is not met; empty if all are."""
    return next((why for each in needs if (why := NEEDS[each]())), "")


@dataclass(frozen=True)
class Variant:
    """A run at a point of its grid. point: key of each of its axes -> value. fabric_key: equal for equal fabrics.

    repeats: 1 for a prediction. workload: None for a measure.
    """

    run: str
    point: Mapping[str, str]
    spec: RunSpec
    fabric: LoadedFabric
    fabric_key: str
    fabric_text: str
    repeats: int
    workload: Workload | None = None
    measure: Measure | None = None

    @property
    def live(self) -> bool:
        """Whether it needs a lab."""
        return self.measure.live if self.measure is not None else not self.spec.offline

    @property
    def changes_paths(self) -> bool:
        """Whether paths may change while it lasts: a measure may do anything, and faults have times."""
        return self.measure is not None or any(job.options.faults for job in self.sent.jobs)

    @property
    def sent(self) -> Workload:
        """The workload. RuntimeError for a measure."""
        if self.workload is None:
            raise RuntimeError("a measure has no workload")
        return self.workload

    @property
    def title(self) -> str:
        """`sweep qps=4`."""
        return " ".join([self.run, *(f"{key.rpartition('.')[2]}={value}" for key, value in self.point.items())])


@dataclass(frozen=True)
class ExperimentCheck:
    """A comparison with its parsed expression. proof: whether the paths of its runs must be proven.

    broken: the runs that must make it fail; None where the file names none.
    """

    name: str
    spec: CheckSpec
    expression: Expression
    proof: bool
    broken: Experiment | None = None

    @property
    def broken_text(self) -> str:
        """What makes it fail, in words; empty of a value that is only shown."""
        by = self.spec.broken_by
        return by.text() if by is not None else "" if self.spec.bounds is None else "not shown: no broken_by"


@dataclass(frozen=True)
class Experiment:
    """A whole experiment file. name: of the file, without its ending. axes: of each run."""

    name: str
    file: str
    spec: ExperimentSpec
    variants: tuple[Variant, ...]
    checks: tuple[ExperimentCheck, ...]
    axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)

    def only(self, names: Sequence[str]) -> Experiment:
        """With these checks alone, and the runs that they use. InputError for a name that is no check."""
        wanted = [word for each in names for word in each.split(",") if word]
        if not wanted:
            return self
        known = [each.name for each in self.checks]
        for name in wanted:
            if name not in known:
                why = f"is not a check of {self.name}"
                raise InputError(Problem("--only", name, why, did_you_mean(name, known)))
        checks = tuple(each for each in self.checks if each.name in wanted)
        runs = {call.run for each in checks for call in each.expression.calls}
        return replace(self, checks=checks, variants=tuple(each for each in self.variants if each.run in runs))

    def axes_of(self, call: FigureCall) -> dict[str, tuple[str, ...]]:
        """What varies in the run of a figure, and is not chosen by a keyword of the call."""
        chosen = {key for key, _ in call.keys}
        return {axis.key: axis.texts for axis in self.axes[call.run] if axis.word not in chosen}

    def point_of(self, call: FigureCall, at: Mapping[str, str]) -> dict[str, str]:
        """The point of its run's grid that a figure is about."""
        keys = dict(call.keys)
        return {axis.key: keys[axis.word] if axis.word in keys else at[axis.key] for axis in self.axes[call.run]}


def load_experiment(path: Path, file: str) -> Experiment:
    """Read and check an experiment. file: its name in problems."""
    from heddle.spec.wording import in_order

    experiment, problems = _read(parse(read_text(path, file, READING), file, READING), path, file, _Loaded())
    if experiment is None or problems:
        raise InputError(*in_order(dict.fromkeys(problems)))
    return experiment


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What runs of one file share. fabrics: None for one with problems; workloads: those that fit their fabric."""

    fabrics: dict[str, LoadedFabric | None] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)


def _read(document: Document, path: Path, file: str, loaded: _Loaded) -> tuple[Experiment | None, list[Problem]]:
    """The experiment of a document, and everything that is wrong with it."""
    from heddle.spec.wording import examined

    found = examined(document, ExperimentSpec)
    if found.value is None or found.problems:
        return None, found.problems
    reader = _Reader(document, found.value, path, file, loaded)
    return reader.experiment(), reader.problems.found


class _Reader:
    """Makes the variants and checks of a file, and collects problems."""

    def __init__(self, document: Document, spec: ExperimentSpec, path: Path, file: str, loaded: _Loaded) -> None:
        self._document, self._spec, self._path, self._file = document, spec, path, file
        self.problems = Problems()
        self._loaded = loaded

    def experiment(self) -> Experiment:
        """The whole; with problems, only some of it."""
        axes = {name: self._axes(name, run) for name, run in self._spec.runs.items()}
        if not axes:
            self._wrong(("runs",), "has no run", "write a name, and below it run: {collective: all-reduce}")
        for group, names in (("runs", self._spec.runs), ("checks", self._spec.checks)):
            for name in names:
                if not NAME.fullmatch(name):
                    self._wrong((group, name), "is not a name", "use up to 32 letters, digits and _, a letter first")
        many = sum(len(points({axis.key: axis.texts for axis in each})) for each in axes.values())
        if many > _MOST:
            self._wrong(("runs",), f"are {many} runs with all lists, and {_MOST} is the most", "shorten the lists")
            raise InputError(*self.problems.found)
        self._needs(("needs",), self._spec.needs)
        variants = [each for name in self._spec.runs for each in self._variants(name, axes[name])]
        experiment = Experiment(self._path.stem, self._file, self._spec, tuple(variants), (), axes)
        checks = [each for name, spec in self._spec.checks.items() for each in self._check(name, spec, experiment)]
        return replace(experiment, checks=tuple(checks))

    def _axes(self, name: str, run: RunSpec) -> tuple[Axis, ...]:
        from heddle.endpoints.runoptions import option_fields

        lists = {*_LISTS, *(each.word for each in option_fields() if each.kind == "list")}

        def of_run(key: str) -> bool:
            return key.rpartition(".")[2] in lists or key.partition(".")[0] in _LISTS or ".steps." in f".{key}."

        found = [*axes_of(run.set, ("set",), self._of_fabric(run)), *axes_of(run.run or {}, ("run",), of_run)]
        found += [*axes_of(run.queues, ("queues",), lambda key: key == "lossless")]
        found += [*axes_of(run.options, ("options",), lambda _: False)]
        if isinstance(run.workload, list):
            found.append(Axis(("workload",), "workload", tuple(run.workload)))
        for key in dict.fromkeys(axis.key for axis in found):
            if len([axis for axis in found if axis.key == key]) > 1:
                self._wrong(("runs", name), f"has two lists for {key}", "vary it in one place")
        for axis in found:
            trail = ("runs", name, *axis.trail)
            if len(set(axis.texts)) < len(axis.texts):
                self._wrong(trail, "has a value twice", "name each value once")
            if axis.word in CHOICES[1:]:
                self._wrong(trail, "cannot vary: expressions use its name for something else", "write several runs")
        return tuple(found)

    def _of_fabric(self, run: RunSpec) -> Any:
        """Whether a key of the fabric file takes a list."""
        from heddle.spec.load import read_fabric
        from heddle.spec.shapes import DEFAULT, SHAPES
        from heddle.spec.wording import takes_list

        try:
            file = self._located((run.fabric or self._spec.fabric).use)
            shape = read_fabric(file, name=None, overrides=(), problems=Problems()).data.get("shape", DEFAULT)
        except InputError:  # `_fabric` reports it
            shape = DEFAULT
        model = SHAPES.get(shape, SHAPES[DEFAULT]) if isinstance(shape, str) else SHAPES[DEFAULT]
        return lambda key: takes_list(tuple(key.split(".")), model)

    def _located(self, file: str) -> str:
        """A fabric or workload file beside the experiment; a name stays a name."""
        return beside(self._file, file) if is_file(file) else file

    def _variants(self, name: str, axes: Sequence[Axis]) -> Iterator[Variant]:
        self._needs(("runs", name, "needs"), self._spec.runs[name].needs)
        raw = self._document.data["runs"][name]
        for point in points({axis.key: axis.texts for axis in axes}):
            data = at_point(raw, axes, point)
            spec = RunSpec.model_validate(data)
            before = len(self.problems.found)
            fabric, key, text = self._fabric(name, spec)
            measure = self._measure(name, spec)
            if fabric is None or (spec.measure is not None and measure is None):
                continue
            for word, problem in wrong_changes(fabric.fabric, spec):
                self.problems.found.append(replace(problem, where=self._document.where(("runs", name, word))))
            repeats = spec.repeats or self._spec.repeats
            if spec.mode is not None and spec.mode not in PREDICTED:
                self._wrong(("runs", name, "mode"), "is not a hashing mode", did_you_mean(spec.mode, PREDICTED))
            if spec.offline and spec.measure is None:
                repeats = 1
            variant = Variant(name, point, spec, fabric, key, text, repeats, measure=measure)
            if measure is None:
                one = json.dumps([name, key, spec.offline, spec.workload, spec.run], sort_keys=True, default=str)
                if one not in self._loaded.workloads and (fits := self._workload(name, spec, fabric)) is not None:
                    self._loaded.workloads[one] = fits
                variant = replace(variant, workload=self._loaded.workloads.get(one))
            if len(self.problems.found) == before:
                yield variant

    def _fabric(self, name: str, spec: RunSpec) -> tuple[LoadedFabric | None, str, str]:
        """The fabric of a variant, the key of it, and its name with what is changed."""
        from heddle.fabric.fabricfile import load_fabric
        from heddle.spec.load import settings_of, value_text

        use = spec.fabric or self._spec.fabric
        at: dict[str, Trail] = {}
        values: dict[str, object] = {}
        of_use: Trail = ("fabric", "set") if spec.fabric is None else ("runs", name, "fabric", "set")
        for trail, group in ((of_use, use.set), (("runs", name, "set"), spec.set)):
            for path, value in settings_of(group):
                nested = (*trail, *path.split("."))  # the file may have groups, or one word with dots
                at[path], values[path] = nested if nested in self._document.marks else (*trail, path), value
        overrides = [f"{path}={value_text(path, value)}" for path, value in values.items()]
        key = json.dumps([use.use, *overrides])
        if key not in self._loaded.fabrics:
            try:
                self._loaded.fabrics[key] = load_fabric(self._located(use.use), overrides=overrides)
            except InputError as error:
                self._loaded.fabrics[key] = None
                at_use = (*of_use[:-1], "use")
                for each in error.problems:
                    path = each.what.partition(":")[0]
                    trail = at.get(path) or next((at[p] for p in at if p.startswith(f"{path}.")), at_use)
                    place = self._document.where(trail)
                    self.problems.found.append(replace(each, where=place) if each.where in ("", "--set") else each)
        text = ", ".join([use.use, *(each for each in overrides)])
        return self._loaded.fabrics[key], key, text

    def _measure(self, name: str, spec: RunSpec) -> Measure | None:
        if spec.measure is None:
            return None
        try:
            found = MEASURES[spec.measure]
        except KeyError:
            self._wrong(("runs", name, "measure"), "is not a measure", did_you_mean(spec.measure, MEASURES))
            return None
        except InputError as error:  # of a plugin that is not here
            where = self._document.where(("runs", name, "measure"))
            self.problems.found += [replace(each, where=where) for each in error.problems]
            return None
        for key, value in spec.options.items():
            trail = ("runs", name, "options", key)
            kind = type(found.options.get(key))
            if key in found.options and not isinstance(value, (int, float) if kind is float else kind):
                word = {str: "a text", bool: "true or false"}.get(kind, "a number")
                self._wrong(trail, f"has {value}, which is not {word}", f"the default is {found.options[key]}")
            if key not in found.options:
                self._wrong(trail, f"is not an option of {spec.measure}", did_you_mean(key, found.options))
        return found

    def _workload(self, name: str, spec: RunSpec, fabric: LoadedFabric) -> Workload | None:
        """The workload of a run, planned on its fabric to find what does not fit."""
        from heddle.endpoints.workloadfile import load_workload, read_workload
        from heddle.runs.run import plan_workload

        trail = ("runs", name, "workload" if spec.run is None else "run")
        try:
            if spec.run is None:
                typed = str(spec.workload)
                found = load_workload(self._located(typed) if typed.endswith((".yml", ".yaml")) else typed).workload
            else:
                found = read_workload(self._inner(trail, spec.run), self._file, name)
            if not spec.offline:
                with suppress(MachineError):  # a stack that this machine does not have: `needs` skips the experiment
                    plan_workload(fabric.fabric, found)
        except InputError as error:
            self.problems.found += [
                replace(each, where=self._document.where(trail)) if each.where in ("", "--workload") else each
                for each in error.problems
            ]
            return None
        return found

    def _inner(self, trail: Trail, data: dict[str, Any]) -> Document:
        """A group of the file as a document of its own, whose errors name the lines of the file."""
        marks = {key[len(trail) :]: mark for key, mark in self._document.marks.items() if key[: len(trail)] == trail}
        for key, value in data.items():  # at a point of the grid
            place = marks.get((key,), Mark(self._document.where(trail)))
            marks[(key,)] = Mark(place.where, place.text if isinstance(value, dict | list) else str(value))
        return Document(data, self._file, marks)

    def _check(self, name: str, spec: CheckSpec, experiment: Experiment) -> Iterator[ExperimentCheck]:
        trail = ("checks", name)
        place = (*trail, "value") if (*trail, "value") in self._document.marks else trail
        try:
            expression = Expression.parse(spec.value, [*self._spec.runs])
            if not expression.calls:
                raise ExpressionError("names no figure of a run; write one, as in busbw(two) / busbw(one)")
            for call in expression.calls:
                self._known(call)
                self._chosen(call, experiment)
        except ExpressionError as error:
            why, _, hint = str(error).partition("; ")
            self._wrong(place, why, hint)
            return
        self._draws(name, spec, expression, experiment)
        proof = self._spec.proof if spec.proof is None else spec.proof
        yield ExperimentCheck(name, spec, expression, proof, self._broken(name, spec, expression))

    def _draws(self, name: str, spec: CheckSpec, expression: Expression, experiment: Experiment) -> None:
        """`draws` is one list, over which the expression goes, and of offline runs alone."""
        if spec.draws is None:
            return
        axes = [experiment.axes_of(call) for call in expression.calls]
        lists = {each[spec.draws] for each in axes if spec.draws in each}
        offline = all(self._spec.runs[call.run].offline for call in expression.calls)
        if len(lists) != 1 or spec.draws in expression.free(experiment.axes_of) or not offline:
            why = "is not one list of offline runs that this value reduces"
            self._wrong(("checks", name, "draws"), why, "name a list as routing.seed, and use mean(x) or deviation(x)")

    def _broken(self, name: str, spec: CheckSpec, expression: Expression) -> Experiment | None:
        """The runs of a check with the changes that must make it fail."""
        if spec.broken_by is None:
            return None
        used = [*dict.fromkeys(call.run for call in expression.calls)]
        for run in spec.broken_by.runs:
            if run not in used:
                trail = ("checks", name, "broken_by", "runs", run)
                self._wrong(trail, "is not a run of this check", did_you_mean(run, used))
        broken, problems = _read(perturbed(self._document, name, used), self._path, self._file, self._loaded)
        self.problems.found += problems
        return broken

    def _known(self, call: FigureCall) -> None:
        """ExpressionError for a figure that its run cannot have."""
        run = self._spec.runs[call.run]
        if run.measure is not None:
            known = MEASURES.usable().get(run.measure)  # an unknown one is reported with its run
            legal = [*known.figures] if known is not None else [call.figure]
        elif run.offline:
            legal = figures_with("predicted", "links")
        else:
            legal = [*figures_with("size", "run", "links"), *counters()]
            if "." in call.figure and call.figure.partition(".")[0] in PARTS:
                return
        if call.figure not in legal:
            hint = did_you_mean(call.figure, legal)
            raise ExpressionError(f"has {call.figure}({call.run}), which is not a figure of that run; {hint}")

    def _chosen(self, call: FigureCall, experiment: Experiment) -> None:
        axes = {axis.word: axis for axis in experiment.axes[call.run]}
        for key, value in call.keys:
            if key in axes and value not in axes[key].texts:
                why = f"has {key}={value}, which run {call.run} does not have"
                raise ExpressionError(f"{why}; values: {', '.join(axes[key].texts)}")
            if key not in axes and key not in CHOICES:
                why = f"has {key}={value}, but {key} does not vary in run {call.run}"
                raise ExpressionError(f"{why}; keywords: {', '.join([*axes, *CHOICES])}")

    def _needs(self, trail: Trail, needs: Sequence[str]) -> None:
        for each in needs:
            if each not in NEEDS:
                why = f"has {each}, which is not a need"
                self._wrong(trail, why, did_you_mean(each, NEEDS))

    def _wrong(self, trail: Trail, why: str, hint: str) -> None:
        text = self._document.text(trail)
        what = f"{dotted(trail)}: {text}" if text else dotted(trail)
        self.problems.add(where=self._document.where(trail), what=what, why=why, hint=hint)


@dataclass(frozen=True, slots=True)
class Axis:
    """One list of the settings of a run. trail: its place below the run; key: its key as the user knows it.

    values: as the file has them; texts: as tables and expressions name them.
    """

    trail: Trail
    key: str
    values: tuple[Any, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The values in words."""
        return tuple(_text(each) for each in self.values)

    @property
    def word(self) -> str:
        """The last word of its key, by which an expression chooses a value."""
        return self.key.rpartition(".")[2]


def axes_of(group: Mapping[str, Any], before: Trail, is_list: Callable[[str], bool]) -> Iterator[Axis]:
    """Every list of nested settings that varies. before: the trail of the group.

    is_list: whether the value of a dotted key, below the group, is a list by itself.
    """
    yield from _axes(group, before, (), is_list)


def _axes(group: Mapping[str, Any], before: Trail, inner: Trail, is_list: Callable[[str], bool]) -> Iterator[Axis]:
    for name, value in group.items():
        trail = (*inner, name)
        key = dotted(trail)
        if isinstance(value, Mapping):
            yield from _axes(value, before, trail, is_list)
        elif isinstance(value, list) and value and (not is_list(key) or all(isinstance(e, list) for e in value)):
            yield Axis((*before, *trail), key, tuple(value))


def at_point(data: Mapping[str, Any], axes: Sequence[Axis], point: Mapping[str, str]) -> dict[str, Any]:
    """A copy of a run's data with one value for each of its axes. point: key of an axis -> text of its value."""
    found: dict[str, Any] = deepcopy(dict(data))
    for axis in axes:
        here = found
        for step in axis.trail[:-1]:
            here = here[step]  # type: ignore[index]
        here[axis.trail[-1]] = axis.values[axis.texts.index(point[axis.key])]  # type: ignore[index]
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(map(_text, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def perturbed(document: Document, check: str, used: Sequence[str]) -> Document:
    """The changes of `set` and `runs` are laid over the keys of the file, group by group."""
    by = document.data["checks"][check]["broken_by"]
    marks, runs = dict(document.marks), {}

    def moved(below: Trail, new: Trail) -> None:
        old = ("checks", check, "broken_by", *below)
        marks.update({(*new, *key[len(old) :]): mark for key, mark in document.marks.items() if key[: len(old)] == old})

    for run in used:
        runs[run] = deepcopy(document.data["runs"][run])  # one by one: anchors of YAML share groups
        moved(("set",), ("runs", run, "set"))
        moved(("runs", run), ("runs", run))
        _merge(runs[run], {"set": by["set"]} if by.get("set") else {})
        _merge(runs[run], (by.get("runs") or {}).get(run, {}))
    alone = {key: value for key, value in document.data["checks"][check].items() if key != "broken_by"}
    return Document({**document.data, "runs": runs, "checks": {check: alone}}, document.source, marks)


def _merge(data: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _merge(data[key], value)
        else:
            data[key] = deepcopy(value)
