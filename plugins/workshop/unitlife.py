"""The life of a unit: started (its lab, its setup, the learner's copy of a file), checked, solved, stopped.

In:  a WorkshopUnit. Out: UnitReport. One unit runs at a time: its lab is the only one that a learner has,
so no command needs --lab. The progress of a learner outlives it (STATE/workshop/02-entropy.json); a damaged file counts
as no progress, and so does a record whose seal is wrong.

A unit's setup and solution are commands as a user types them (`./inv run --qps 16`). Each runs in a process of its own:
units can use every verb, and no room below the command line has to know one.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from heddle.base import process, state
from heddle.base.conditions import Fact
from heddle.base.events import Observer
from heddle.base.files import real, result_name
from heddle.base.problems import CheckError, HeddleError, InputError, MachineError, Problem, machine_errors
from heddle.base.resources import HERE
from heddle.base.userfiles import as_caller, give_to_caller
from heddle.fabric.fabricfile import LoadedFabric, load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.lab.opening import blueprint_from, open_lab
from heddle.places.choice import VARIABLE
from heddle_plugins.workshop.catalogue import WorkshopUnit, find_unit, unit_ids
from heddle_plugins.workshop.observe import UnitLab
from heddle_plugins.workshop.record import (
    OK,
    StepRecord,
    StepVerdict,
    UnitResult,
    begun_facts,
    check_steps,
    hinted,
    now,
    recorded,
    seal,
)

Say = Callable[[str], None]
Ask = Callable[[str], bool]
_START: Final = "./inv workshop start {} starts it"
_ANSWER: Final = ("./inv workshop answer ", "./inv workshop answer ")  # the second one: units for the last version
_EXEC: Final = "./inv exec "  # ends with the exit code of the command in the node
_REFUSED: Final = 2  # the exit code of wrong input; 1 is the finding of a check
# In a command: the name of the unit's lab, and the learner's copy of the fabric file.
LAB: Final = "{lab}"
FILE: Final = "{file}"
# Verbs that choose their lab by --lab. Others have it as a word: write {lab} there.
_BY_FLAG: Final = frozenset({"capture", "exec", "fault", "hashing", "paths", "plot", "queues", "run", "validate"})
_SECONDS: Final = 300.0
# Without colours, and on this machine: where to run was decided for the verb that runs these.
_HERE: Final = ("env", "NO_COLOR=1", f"{VARIABLE}=")


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What a check found. lab: the name of the unit's lab."""

    unit: WorkshopUnit
    lab: str
    runtime: str
    steps: tuple[StepVerdict, ...]

    @property
    def solved(self) -> bool:
        """Whether every step is right."""
        return all(step.state == OK for step in self.steps)

    @property
    def next_step(self) -> StepVerdict | None:
        """The first step that is not right."""
        return next((step for step in self.steps if step.state != OK), None)

    def to_json(self) -> dict[str, Any]:
        """The document that `workshop check --format json` prints."""
        return {
            "unit": self.unit.id, "lab": self.lab, "runtime": self.runtime, "solved": self.solved,
            "steps": [step.to_json() for step in self.steps],
        }  # fmt: skip


def running_unit() -> str | None:
    """The ID of the unit that runs: it was started, not stopped, and its lab has a record."""
    known = set(state.labs())
    for each in unit_ids():
        progress = read_progress(each)
        if progress.running and progress.lab in known:
            return each
    return None


def meant_unit(word: str | None = None) -> WorkshopUnit:
    """The unit that a word names; without a word the one that runs. InputError when there is none."""
    if word is not None:
        return find_unit(word)
    found = running_unit()
    if found is None:
        raise InputError(
            Problem("", "no unit", "is running", "./inv workshop list shows the units; ./inv workshop start 01")
        )
    return find_unit(found)


def start(
    unit: WorkshopUnit, runtime: str, observer: Observer, ask: Ask, *, name: str = "", fresh: bool = False
) -> bool:
    """Start a unit; False when it runs already, with the learner's file.

    name: of its lab, in place of unit02; a unit that runs keeps its own. fresh: take its lab down and begin again,
    without answers and hints. ask: called before the learner's work is replaced.
    InputError when another unit runs, or the unit does not work in this runtime.
    """
    running = running_unit()
    if running not in (None, unit.id):
        hint = f"./inv workshop stop {running[:2] if running else ''}"
        raise InputError(Problem("", f"unit {unit.id}", f"cannot start: unit {running} is running", hint))
    if runtime not in unit.spec.runtimes:
        why = f"does not work in runtime {runtime}"
        hint = f"use --runtime {unit.spec.runtimes[0]}"
        raise InputError(Problem("", f"unit {unit.id}", why, hint))
    before = read_progress(unit.id)
    lab_name = before.lab if running == unit.id else name or unit.lab
    if name and name != lab_name:
        why = f"is not the name of the lab that runs, {lab_name}"
        raise InputError(Problem("", f"--name {name}", why, f"./inv workshop stop {unit.number} first"))
    copy = _copy(unit, before, ask, fresh=fresh)
    loaded = load_fabric(copy or unit.fabric, name=lab_name, overrides=unit.spec.set)
    if running == unit.id and not fresh:
        if not copy or not _differs(loaded, lab_name):
            return False
        if not ask(f"{copy} has changed. Take the lab down, and start it with the changed file?"):
            raise InputError(Problem("", copy, "has changed since the lab was started", "add --yes to start it again"))
    begun = UnitProgress(unit.id, solved=before.solved, steps=before.steps) if fresh else before
    first = before.started or now()
    begun = replace(begun, lab=lab_name, runtime=runtime, running=True, file=copy, begun={}, started=first)
    if running == unit.id:
        labs.down(lab_name, observer)
    write_progress(begun)
    done = labs.up(loaded, runtime=runtime, observer=observer, rollback=True, source=copy or unit.spec.fabric)
    try:
        for index, command in enumerate(unit.spec.setup):
            run_setup(command.run, lab_name, unit.problem(("setup", index, "run"), ""))
    except BaseException:
        labs.down(lab_name, observer)  # a learner must not begin with half of it
        raise
    write_progress(replace(begun, begun=begun_facts(unit, UnitLab(done.lab, {}))))
    return True


def check(unit: WorkshopUnit) -> UnitReport:
    """Look at the live fabric and the learner's runs, and keep what was found. InputError when it is not started."""
    progress, lab = opened(unit)
    seen = UnitLab(lab, progress.answers)
    verdicts = check_steps(unit, seen, progress.begun)
    report = UnitReport(unit, lab.name, lab.runtime.name, tuple(verdicts))
    states = {step.step: step.state for step in verdicts}
    steps = recorded(unit, progress.steps, verdicts, seen, with_solution=progress.solution_seen)
    write_progress(replace(progress, states=states, solved=progress.solved or report.solved, steps=steps))
    return report


def opened(unit: WorkshopUnit) -> tuple[UnitProgress, Lab]:
    """The progress, and the running lab. InputError when the unit is not started or its lab cannot be used."""
    progress = read_progress(unit.id)
    if not progress.running or progress.lab not in state.labs():
        other = running_unit()
        hint = _START.format(unit.number) + (f"; unit {other} is running" if other else "")
        raise InputError(Problem("", f"unit {unit.id}", "is not started", hint))
    hint = f"./inv workshop start {unit.number} --fresh starts it again"
    try:
        lab = open_lab(progress.lab)
        if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
            raise MachineError(*lost)
    except HeddleError as error:
        broken = Problem("", f"the lab of unit {unit.id}", "cannot be checked", hint)
        raise CheckError(*error.problems, broken) from None
    return progress, lab


def answer(unit: WorkshopUnit, step: str, value: str) -> None:
    """Keep the learner's answer to a question. InputError for a step without one."""
    if unit.step(step).look != "answer":
        asked = [name for name, each in unit.spec.steps.items() if each.look == "answer"]
        hint = f"steps with a question: {', '.join(asked)}" if asked else "change the fabric; then ./inv workshop check"
        raise InputError(Problem("", f"step {step}", "has no question to answer", hint))
    progress, _ = opened(unit)
    write_progress(replace(progress, answers={**progress.answers, step: value.strip()}))


@dataclass(frozen=True, slots=True)
class ShownHint:
    """The hints of a step that are shown now: `count` in all, the last one of `texts` is new unless all were shown."""

    step: str
    title: str
    texts: tuple[str, ...]
    count: int
    new: bool


def hint(unit: WorkshopUnit, step: str | None) -> ShownHint:
    """One more hint: of the step, else of the first one that was not right at the last check."""
    progress = read_progress(unit.id)
    name = step or next(
        (each for each in unit.spec.steps if progress.states.get(each) != OK), next(iter(unit.spec.steps))
    )
    spec = unit.step(name)
    before = progress.hints.get(name, 0)
    shown = min(before + 1, len(spec.hints))
    steps = hinted(progress.steps, name) if shown > before else progress.steps
    write_progress(replace(progress, hints={**progress.hints, name: shown}, steps=steps))
    return ShownHint(name, spec.title, tuple(spec.hints[:shown]), len(spec.hints), shown > before)


def solve(unit: WorkshopUnit, observer: Observer, say: Say, line: Say) -> UnitReport:
    """Run the commands of the solution, each with its reason, then check. say: before each; line: of its output."""
    solution = unit.solution()
    progress, lab = opened(unit)
    write_progress(replace(progress, solution_seen=True))
    if solution.file and progress.file:
        text = (unit.folder / solution.file).read_text(encoding="utf-8")
        say(f"# {progress.file} is replaced by the solution's file; the lab starts again with it.")
        _write(Path(progress.file), text)
        start(unit, progress.runtime, observer, lambda _: True)
    for name in write_files(unit, solution.files):
        say(f"# {name} is written:")
        for each in real(name).read_text(encoding="utf-8").splitlines():
            line(each)
    for command in solution.commands:
        reason = f"# {command.why}\n" if command.why else ""
        say(f"{reason}$ {typed(command.run, lab.name, progress.file)}")
        # An answer prints the verdicts of all steps; they come once, at the end.
        quiet = command.run.startswith(_ANSWER)
        done = run_command(command.run, lab.name, (lambda _: None) if quiet else line, progress.file)
        if done.code >= _REFUSED and not command.run.startswith(_EXEC):
            said = "; ".join(done.err.splitlines()[-3:])
            why = f"ended with exit code {done.code}: {said}"
            hint = f"./inv workshop start {unit.number} --fresh, then ./inv workshop solve"
            raise CheckError(Problem("", command.run, why, hint))
    return check(unit)


def write_files(unit: WorkshopUnit, files: Mapping[str, str]) -> Sequence[str]:
    """Write files of the unit's folder into the learner's directory, in place of those there; their names.

    files: name there -> name in the folder.
    """
    for name, source in files.items():
        with machine_errors(source, "reinstall Heddle: a file of this unit is missing"):
            text = (unit.folder / source).read_text(encoding="utf-8")
        _write(real(name), text)
    return tuple(files)


def stop(unit: WorkshopUnit, observer: Observer) -> bool:
    """Take the unit's lab down; False when there was none. Progress stays."""
    progress = read_progress(unit.id)
    removed = progress.running and bool(progress.lab) and bool(labs.down(progress.lab, observer))
    if progress.running:
        write_progress(replace(progress, running=False))
    return removed


def _copy(unit: WorkshopUnit, before: UnitProgress, ask: Ask, *, fresh: bool) -> str:
    """The path of the learner's copy of the fabric file, written where it is missing; empty when the unit has none.

    A file that is there is the learner's work. It is replaced only with `fresh` and after a question.
    """
    if not unit.spec.file:
        return ""
    mine = before.file if before.running and before.file and Path(before.file).is_file() else ""
    name = mine or result_name(unit.spec.file)
    path = Path(mine) if mine else real(unit.spec.file)
    text = Path(unit.fabric).read_text(encoding="utf-8")
    if not path.exists():
        _write(path, text)
    elif fresh and path.read_text(encoding="utf-8", errors="replace") != text:
        if not ask(f"{name} is not as the unit began. Replace it?"):
            raise InputError(Problem("", name, "was not replaced", "rename it, or add --yes to replace it"))
        _write(path, text)
    return name


def _write(path: Path, text: str) -> None:
    with machine_errors(str(path), "use a directory that this user can write to"), as_caller(path):
        draft = path.with_name(f".{path.name}.new")
        draft.write_text(text, encoding="utf-8")
        give_to_caller(draft)
        draft.replace(path)


def _differs(loaded: LoadedFabric, lab: str) -> bool:
    """Whether the running lab was started with another fabric than the file describes now."""
    record = state.read_record(lab)
    return record is not None and bool(blueprint_from(loaded).differences(record))


def typed(command: str, lab: str, file: str = "") -> str:
    """The command as the learner types it: with the lab's name where it is needed, because several labs run."""
    words = _words(command, lab, file)
    if _needs_lab(words) and len(state.labs()) > 1:
        words.insert(1, f"--lab={lab}")
    return "./inv " + shlex.join(words)


def run_command(command: str, lab: str, line: Callable[[str], None] = lambda _: None, file: str = "") -> process.Done:
    """Run one and pass each line of its output on. Its exit code is in the result: of `run` and `validate` 1 is a
    finding.
    """
    words = _words(command, lab, file)
    if _needs_lab(words):
        words.insert(1, f"--lab={lab}")
    return process.follow([*_HERE, *HERE.command(), *words], line, timeout=_SECONDS)


def run_setup(command: str, lab: str, where: Problem) -> None:
    """Run one that must succeed. CheckError with its last lines; where: the problem that names the key of lab.yml."""
    done = run_command(command, lab)
    if done.code:
        said = "; ".join(done.err.strip().splitlines()[-3:]) or "it printed nothing"
        why = f"failed with exit code {done.code}: {said}"
        raise CheckError(Problem(where.where, where.what, why, f"./inv workshop start --fresh starts {lab} again"))


def _needs_lab(words: Sequence[str]) -> bool:
    """Whether the verb chooses its lab by --lab. A run with a fabric of its own needs none."""
    return words[0] in _BY_FLAG and not {"--lab", "--predict", "--fabric"} & {word.partition("=")[0] for word in words}


def _words(command: str, lab: str, file: str) -> list[str]:
    return [word.replace(LAB, lab).replace(FILE, file) for word in shlex.split(command)[1:]]


_DIR: Final = "workshop"
_PROGRESS_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """Of one unit. running: it was started and not stopped; lab: the name of its lab.

    hints: step -> hints shown. states: of the last check. begun: step -> its facts when the unit was started.
    file: the learner's copy of the fabric file, or empty. solution_seen: the learner used `solve`.
    started: UTC, of the first start. steps: what checks have recorded; both outlive `start --fresh`.
    """

    unit: str
    lab: str = ""
    runtime: str = "netns"
    running: bool = False
    solved: bool = False
    solution_seen: bool = False
    file: str = ""
    hints: Mapping[str, int] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    begun: Mapping[str, Mapping[str, Fact]] = field(default_factory=dict)
    started: str = ""
    steps: Mapping[str, StepRecord] = field(default_factory=dict)


_ADAPTER: Final = TypeAdapter(UnitProgress)


def read_progress(unit: str) -> UnitProgress:
    """The progress in a unit; an empty one when there is none, and without records when their seal is wrong."""
    try:
        data: Any = json.loads(_path(unit).read_text(encoding="utf-8"))
        if data.pop("format", None) != _PROGRESS_FORMAT:
            return UnitProgress(unit)
        sealed = data.pop("seal", "")
        found = _ADAPTER.validate_python(data)
    except (OSError, ValueError, TypeError, ValidationError, AttributeError, RecursionError):
        return UnitProgress(unit)
    if found.unit != unit:
        return UnitProgress(unit)
    return found if sealed == _seal(found) else replace(found, started="", steps={})


def write_progress(progress: UnitProgress) -> None:
    """Write it, as a whole or not at all."""
    data = {"format": _PROGRESS_FORMAT, **asdict(progress), "seal": _seal(progress)}
    state.write_json(_path(progress.unit), data, indent=1)


def _seal(progress: UnitProgress) -> str:
    return seal(progress.unit, progress.started, progress.steps)


def _path(unit: str) -> Path:
    return state.state_dir() / _DIR / f"{unit}.json"


def results(word: str | None = None) -> tuple[UnitResult, ...]:
    """What checks have recorded of one unit, or of all units with a solved step. InputError if there is nothing."""
    units = [find_unit(each) for each in ([word] if word is not None else unit_ids())]
    found = [UnitResult(unit, (own := read_progress(unit.id)).started, own.steps) for unit in units]
    if solved := tuple(each for each in found if each.done):
        return solved
    what = f"unit {units[0].id}" if word is not None else "no unit"
    why = "has no solved step on record" if word is not None else "has a solved step on record"
    raise InputError(Problem("", what, why, "./inv workshop check records each step that is right"))
