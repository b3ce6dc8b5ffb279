"""One fabric of an experiment in a pod: what the agent there (heddle/shards/agent.py) calls.

In:  GroupOrder: the experiment's files, and which of its fabrics this is.
Out: a SentRepeat for each repeat as soon as it has ended. The runs are made by Running, as on the user's machine.
The coordinator (sweep.py) calls `run_group`, a part of kind `shardcall`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.conditions import LARGEST, UnknownValueError
from heddle.base.extras import KUBERNETES
from heddle.base.files import VARIABLE
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, first_lines
from heddle.base.untrusted import LINE_BYTES
from heddle.base.version import VERSION
from heddle.runs.figures import Keys
from heddle.runtimes.clusterkind import CLUSTERS, ClusterKind
from heddle.runtimes.netns_topology import packed
from heddle_plugins.experiments.figures import RunFigures
from heddle_plugins.experiments.finding import find_experiment
from heddle_plugins.experiments.loading import Experiment, Variant, load_experiment
from heddle_plugins.experiments.outcome import Repeat
from heddle_plugins.experiments.running import Running

if TYPE_CHECKING:
    from heddle.shards.agent import Told

BEAT, DONE = b"\n", b"done\n"  # what the coordinator writes beside the call: it still waits; it has all
_MOST: Final = 1 << 12
_MOST_RUNS: Final = LINE_BYTES * 3 // 4  # of the text of all runs of a repeat: they are in one line with its figures


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """What a pod does. experiment, only, repeats: as typed. files: of the user, by their typed names.

    group: the number in Running.groups. copies: whether stored runs are sent. cluster: the kind of the pod's. version,
    print: of the coordinator; the image may be another Heddle's.
    """

    experiment: str
    only: tuple[str, ...]
    repeats: int | None
    files: Mapping[str, bytes]
    group: int
    copies: bool
    print: str
    cluster: str = KUBERNETES
    version: str = VERSION


@dataclass(frozen=True)
class SentFigures:
    """Implements RunFigures. values: what the checks ask for, by name and keywords; a text is why there is none."""

    ids: tuple[str, ...]
    proven: bool | None
    doubt: str
    values: tuple[tuple[str, Mapping[str, str], float | str], ...]
    every: Mapping[str, float]

    def value(self, name: str, keys: Keys) -> float:
        """A figure that a check asks for."""
        for known, having, value in self.values:
            if (known, dict(having)) == (name, dict(keys)):
                if isinstance(value, str):
                    raise UnknownValueError(value)
                return value
        raise UnknownValueError(f"the run has no {name}")

    @property
    def finite(self) -> bool:
        """Whether all figures are numbers that arithmetic can use."""
        found = [*self.every.values(), *(value for *_, value in self.values if not isinstance(value, str))]
        return all(abs(each) <= LARGEST for each in found)

    def to_json(self) -> dict[str, float]:
        return dict(self.every)

    @classmethod
    def of(cls, figures: RunFigures, variant: Variant, experiment: Experiment) -> SentFigures:
        """The figures of a run, evaluated for all checks."""
        asked = {(call.figure, call.keys) for check in experiment.checks for call in check.expression.calls
                 if call.run == variant.run}  # fmt: skip
        values: list[tuple[str, Mapping[str, str], float | str]] = []
        for name, keys in sorted(asked):
            try:
                values.append((name, dict(keys), figures.value(name, dict(keys))))
            except UnknownValueError as error:
                values.append((name, dict(keys), str(error)))
        return cls(tuple(figures.ids), figures.proven, figures.doubt, tuple(values), figures.to_json())


@dataclass(frozen=True, slots=True)
class SentRepeat:
    """A repeat. variant: its number in the experiment. runs: its stored runs, each as `packed` gives it.

    The coordinator chooses where they are written.
    """

    variant: int
    repeat: int
    figures: SentFigures | None
    why: str
    runs: tuple[str, ...] = ()


# What a pod reports: a repeat has ended; all have ended, or the need that the pod does not have; why it cannot do it.
EVENTS: Final[Mapping[str, Any]] = {"repeated": SentRepeat, "finished": str, "refused": tuple[Problem, ...]}


def fingerprint(experiment: Experiment) -> str:
    """Equal for experiments with equal runs on equal fabrics."""
    rows = [[each.title, each.spec.model_dump_json(), each.fabric.spec.model_dump_json(), each.repeats]
            for each in experiment.variants]  # fmt: skip
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def run_group(order: GroupOrder, told: Told) -> None:
    """The runs of one fabric. The last event is `finished`, or `refused`; then this waits for the end of the pod.

    finished: the need that this pod does not have; empty when all is done. refused: why the image cannot do it.
    """
    following = threading.Thread(target=_follow_input, args=(CLUSTERS[order.cluster],), daemon=True)
    following.start()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            experiment = _received(order, Path(scratch, "files"))
        except HeddleError as error:
            told.event("refused", error.problems)
        else:
            told.event("finished", _run(experiment, order, Path(scratch, "runs"), told))
    following.join()


def _run(experiment: Experiment, order: GroupOrder, copies: Path, told: Told) -> str:
    running = Running(experiment, told, order.repeats, copies if order.copies else None)
    numbers = {id(each): number for number, each in enumerate(experiment.variants)}

    def heard(repeat: Repeat) -> None:
        figures = None if repeat.figures is None else SentFigures.of(repeat.figures, repeat.variant, experiment)
        runs = tuple(packed(Path(copy)) for copy in running.directories.values())
        running.directories.clear()
        if sum(map(len, runs)) > _MOST_RUNS:
            told.warn(f"{repeat.variant.title}: its stored runs are not copied: they have more than {_MOST_RUNS} bytes")
            runs = ()
        told.event("repeated", SentRepeat(numbers[id(repeat.variant)], repeat.repeat, figures, repeat.why, runs))
        shutil.rmtree(copies, ignore_errors=True)

    running.heard = heard
    if why := running.missing():
        return why
    running.run_group(order.group)
    return ""


def _follow_input(cluster: ClusterKind) -> None:
    """The coordinator needs this pod as long as it writes."""
    done = False
    with suppress(OSError):
        while not done and (data := os.read(0, _MOST)):
            cluster.renew_pod()
            done = DONE.strip() in data
    cluster.end_pod(done=done)


def _received(order: GroupOrder, directory: Path) -> Experiment:
    why = f"has Heddle {VERSION}, and this is {order.version}" if order.version != VERSION else ""
    if not why:
        paths = {typed: directory / str(number) / Path(typed).name for number, typed in enumerate(order.files)}
        for typed, path in paths.items():
            path.parent.mkdir(parents=True)
            path.write_bytes(order.files[typed])
        os.environ[VARIABLE] = json.dumps({typed: str(path) for typed, path in paths.items()})
        try:
            experiment = load_experiment(*find_experiment(order.experiment)).only(order.only)
            if fingerprint(experiment) == order.print:
                return experiment
            why = "has other presets, measures or experiments than this Heddle"
        except InputError as error:
            why = f"is another Heddle than this: {first_lines(error.problems)[0]}"
    raise MachineError(Problem("", "the image", why, "build it again: ./inv image --archive FILE (docs/kubernetes.md)"))
