"""Run an experiment: each fabric is brought up once, its runs are made in turn, and it is taken down.

In:  Experiment; an observer; where to copy stored runs.
Out: ExperimentResult. Runs of one fabric share its lab; after each run all live changes are undone. Repeats take turns:
all runs once, then all again, so that a slow drift of the machine meets all runs alike. A run that fails is kept with
its reason, and the others go on. Ctrl-C takes the lab down, and what was measured is kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.base.events import Observer
from heddle.base.problems import HeddleError, first_lines, machine_errors
from heddle.base.tables import many
from heddle.base.userfiles import as_caller
from heddle.runs.measuring import Measuring
from heddle_plugins.experiments.figures import LiveFigures, OfflineFigures, OwnFigures, RunFigures
from heddle_plugins.experiments.livechanges import changed_for_run, downs, drains
from heddle_plugins.experiments.loading import Experiment, Variant, missing_need
from heddle_plugins.experiments.outcome import ExperimentResult, Repeat

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.offline.result import Prediction
    from heddle.traffic.workload import Workload

_UP_S, _UP_NODE_S = 2.5, 0.12  # of a fabric, and more for each of its nodes
_POD_S: Final = 6.0  # of a pod: start, first command, end
_RUN_S: Final = 1.5  # around the packets of a run
_PREDICT_S: Final = 0.2
_LONGEST: Final = 80  # letters of a directory's name
_LATE: Final = 1.3  # how much longer than on NICs alone


@dataclass(frozen=True, slots=True)
class Pods:
    """Fabrics run in pods of a cluster. parallel: at most so many at once; None: one on each node that is free."""

    parallel: int | None = None


@dataclass
class Running:
    """State of an experiment that runs. copies: where stored runs go; None: they are not kept.

    accept_unreliable: verdicts may rest on unreliable runs. heard: called with each repeat when it has ended.
    """

    experiment: Experiment
    observer: Observer
    repeats: int | None = None
    copies: Path | None = None
    accept_unreliable: bool = False
    heard: Callable[[Repeat], None] = lambda _: None
    done: list[Repeat] = field(default_factory=list)
    directories: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def run(self) -> ExperimentResult:
        """All of it. InputError and MachineError of a fabric that cannot be brought up are those of its runs."""
        if why := self.missing():
            return self.result(skipped=why)
        try:
            for number in range(len(self.groups())):
                self.run_group(number)
        except KeyboardInterrupt:
            return self.result(interrupted=True)
        return self.result()

    def missing(self) -> str:
        """The reason why this machine cannot run it; empty if it can."""
        spec = self.experiment.spec
        every = [*spec.needs, *(need for run in spec.runs.values() for need in run.needs)]
        return missing_need([*dict.fromkeys(every)])

    def result(self, *, skipped: str = "", interrupted: bool = False) -> ExperimentResult:
        """What was done until now, in the order of the file."""
        order = {id(each): number for number, each in enumerate(self.experiment.variants)}
        done = sorted(self.done, key=lambda each: (order[id(each.variant)], each.repeat))
        found = ExperimentResult(self.experiment, tuple(done), skipped, interrupted, self.directories)
        return replace(found, accept_unreliable=self.accept_unreliable)

    def times(self, variant: Variant) -> int:
        """How often a variant runs."""
        if variant.repeats == 1 and variant.spec.offline:
            return 1
        return variant.repeats if self.repeats is None or variant.spec.repeats is not None else self.repeats

    def seconds(self, parallel: int = 0) -> float:
        """An estimate of the whole, from rates and sizes alone. parallel: so many pods at once; 0: on this machine."""
        ends = [0.0] * max(1, parallel)  # of the pods, each of which takes the next fabric
        offline = 0.0
        for group in self.groups():
            seconds = sum(self.times(each) * seconds_of(each) for each in group)
            if not group[0].live:
                offline += seconds
                continue
            up = _UP_S + _UP_NODE_S * len(group[0].fabric.fabric.nodes) + (_POD_S if parallel else 0.0)
            ends[ends.index(min(ends))] += up + seconds
        return offline + max(ends)

    def groups(self) -> list[list[Variant]]:
        """Variants by fabric: those without a lab first, then in the file's order."""
        offline = [each for each in self.experiment.variants if not each.live]
        found: dict[str, list[Variant]] = {}
        for each in self.experiment.variants:
            if each.live:
                found.setdefault(each.fabric_key, []).append(each)
        return [*([offline] if offline else []), *found.values()]

    def run_group(self, number: int) -> None:
        """The runs of one of `groups`."""
        groups = self.groups()
        group = groups[number]
        self._count = sum(self.times(each) for before in groups[:number] for each in before)
        if not group[0].live:
            self._rounds(group, None)
            return
        try:
            with _lab(group[0], self.observer) as lab:
                self._rounds(group, lab)
        except HeddleError as error:  # the lab did not come up, or could not be restored
            why = f"{group[0].fabric_text}: {first_lines(error.problems)[0]}"
            ran = {id(each.variant) for each in self.done}
            for each in group:
                if id(each) not in ran:
                    self.keep(Repeat(each, 1, None, why))
            self.observer.warn(why)

    def keep(self, repeat: Repeat) -> None:
        """One more is done."""
        self.done.append(repeat)
        self.heard(repeat)

    def _rounds(self, group: Sequence[Variant], lab: Lab | None) -> None:
        for repeat in range(1, max(map(self.times, group)) + 1):
            for variant in group:
                if repeat <= self.times(variant):
                    self.keep(self._once(variant, repeat, lab))

    def _once(self, variant: Variant, repeat: int, lab: Lab | None) -> Repeat:
        self._count += 1
        whole = sum(map(self.times, self.experiment.variants))
        again = f", repeat {repeat}" if repeat > 1 else ""
        self.observer.say(f"run {self._count} of {whole}: {variant.title}{again}")
        try:
            with nullcontext() if lab is None else changed_for_run(lab, variant.spec, variant.workload):
                found = self._figures(variant, repeat, lab)
        except HeddleError as error:
            why = f"{variant.title}: {first_lines(error.problems)[0]}"
            self.observer.warn(why)
            return Repeat(variant, repeat, None, why)
        return Repeat(variant, repeat, found)

    def _figures(self, variant: Variant, repeat: int, lab: Lab | None) -> RunFigures:
        if variant.measure is not None:
            options = {**variant.measure.options, **variant.spec.options}
            at = Measuring(variant.fabric.fabric, options, self.observer, lab, repeat)
            values = variant.measure.call(at)
            ids = [each.id for each in at.runs]
            agree = [each.proof is not None and each.proof.agree for each in at.runs]
            doubt = LiveFigures(at.runs, None).doubt
            self._copy(variant, repeat, lab, ids)
            return OwnFigures(values, ids, all(agree) if agree else None, doubt)
        workload = variant.sent
        if lab is None:
            return OfflineFigures(_predicted(variant, workload, self.observer))
        from heddle.runs.run import run_workload
        from heddle.runs.store import History

        jobs = run_workload(lab, workload, self.observer).jobs
        self._copy(variant, repeat, lab, [job.id for job in jobs])
        return LiveFigures(jobs, History.of(lab).open(jobs[0].id).proof.value)

    def copy_name(self, variant: Variant, repeat: int) -> str:
        """The name of the directory for the stored run of a repeat."""
        words = [self.experiment.name, variant.run, *variant.point.values(), str(repeat)]
        return directory_name(words, self._count)

    def _copy(self, variant: Variant, repeat: int, lab: Lab | None, ids: Sequence[str]) -> None:
        """Copy stored runs before their lab goes down, so that `./inv report` can show them."""
        from heddle.runs.store import History

        if self.copies is None or lab is None:
            return
        name = self.copy_name(variant, repeat)
        for number, each in enumerate(ids, 1):
            target = self.copies / (name if len(ids) == 1 else f"{name}-{number}")
            stored = History.of(lab).open(each).path
            with machine_errors(str(target)), as_caller(target):
                shutil.copytree(stored, target, dirs_exist_ok=True)
            self.directories[f"{variant.title} {repeat} {each}"] = str(target)


def directory_name(words: Sequence[str], number: int) -> str:
    """The words in letters, digits and `._-`. With the number of the run where other words can give the same name."""
    name = "-".join("".join(c if c.isalnum() or c in "._" else "_" for c in word) for word in words)
    if len(name) <= _LONGEST and all(c.isalnum() or c in "._-" for word in words for c in word):
        return name
    return f"{name[:_LONGEST]}-{number}"


def seconds_of(variant: Variant) -> float:
    """An estimate of one repeat."""
    from heddle.offline.ideal import ideal_seconds
    from heddle.runs.run import plan_workload

    if variant.measure is not None:
        return variant.measure.seconds
    if not variant.live or variant.workload is None:
        return _PREDICT_S
    total = 0.0
    try:
        jobs, _ = plan_workload(variant.fabric.fabric, variant.workload)
    except HeddleError:  # the run will report it
        return _RUN_S
    for each in jobs:
        options = each.plan.options
        for size, _ in each.plan.passes:
            ideal = ideal_seconds(each.plan, size) or 0.0
            total += _LATE * ideal * (options.iters + options.warmup) * max(1, each.job.repeat)
    return _RUN_S + total


def array_bytes_of(variant: Variant) -> int:
    """Memory of the arrays of one repeat, bytes; 0 where that is not known before: of a measure."""
    from heddle.endpoints.crew import worker_count
    from heddle.runs.run import array_bytes, plan_workload

    if variant.workload is None:
        return 0
    try:
        jobs, _ = plan_workload(variant.fabric.fabric, variant.workload)
    except HeddleError:  # the run will report it
        return 0
    return sum(array_bytes(each.plan, worker_count(each.plan)) for each in jobs)


@contextmanager
def _lab(variant: Variant, observer: Observer) -> Iterator[Lab]:
    """A lab of the variant's fabric, with a name of this process; it is taken down at the end, also after an error."""
    from heddle.fabric.fabricfile import checked
    from heddle.lab import lifecycle

    spec = variant.fabric.spec.model_copy(update={"name": f"exp{os.getpid() % 10**8}"})
    done = lifecycle.up(checked(spec), observer=observer, rollback=True, source=variant.fabric_text)
    try:
        yield done.lab
    finally:
        lifecycle.down(done.lab.name, observer)


def _predicted(variant: Variant, workload: Workload, observer: Observer) -> Prediction:
    from heddle.offline.forecast import Ask, forecast

    fabric, spec = variant.fabric.fabric, variant.spec
    ask = Ask(spec.mode, 0, downs(fabric, spec), drains(fabric, spec))
    return forecast(fabric, workload, ask, observer)


def time_text(seconds: float) -> str:
    """`40 s`, `3 min`."""
    return f"{max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def plan_text(experiment: Experiment, repeats: int | None, pods: Pods | None = None) -> str:
    """`queue-pairs: 6 runs on 2 fabrics, about 40 s`. pods: in a cluster."""
    running = Running(experiment, Observer(), repeats)
    runs = sum(map(running.times, experiment.variants))
    fabrics = len({each.fabric_key for each in experiment.variants if each.live})
    on = f" on {many(fabrics, 'fabric')}" if fabrics else ", offline"
    if pods is None or not fabrics:
        return f"{experiment.name}: {many(runs, 'run')}{on}, about {time_text(running.seconds())}"
    least, most = (running.seconds(pods.parallel or number) for number in (fabrics, 1))
    if pods.parallel is None and fabrics > 1:
        about = f"about {time_text(most)} on one node, {time_text(least)} on {many(fabrics, 'node')}"
    else:
        about = f"about {time_text(most)}"
    return f"{experiment.name}: {many(runs, 'run')}{on}, {about}"
