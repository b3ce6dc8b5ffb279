"""The verb `lab`: workshop units, from the list to the solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.verbs import verb
from heddle.host import packages

if TYPE_CHECKING:
    from heddle.workshop.catalogue import WorkshopUnit
    from heddle.workshop.unittext import ListedUnit

ACTIONS: Final = ("list", "start", "check", "hint", "answer", "solve", "stop")
_ROOTLESS: Final = frozenset({"list", "hint"})


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    """The learner's copy of a fabric file, where it is in the working directory: a lab server needs it."""
    from pathlib import Path

    from heddle.workshop.catalogue import find_unit

    if typed["action"] != "start" or not typed["what"]:
        return []
    try:
        file = find_unit(typed["what"][0]).spec.file
    except HeddleError:  # the verb reports it
        return []
    return [file] if file and Path(file).exists() else []


@verb(
    name="lab",
    help=words.LAB_UNITS,
    positional=["action", "what"],
    root=lambda typed: typed["action"] not in _ROOTLESS,
    files_in=_files,
    endings_here=[".yml"],
)
def lab_units(
    out: Console,
    action: str = "list",
    what: Sequence[str] = (),
    runtime: str | None = None,
    name: str | None = None,
    fresh: bool = False,
    yes: bool = False,
) -> None:
    """Workshop units: exercises on a running fabric that check your work.

    list shows the units. start NN brings the lab of a unit up; check reports for each step what was observed; hint
    gives one more hint; answer STEP VALUE answers a question; solve explains and applies the solution; stop takes the
    lab down. Name a unit by its number or its name: ./inv lab start 02, ./inv lab start entropy. The other actions
    use the running unit by default. check ends with exit code 1 until every step is right. labs/README.md is for
    instructors.
    """
    if action not in ACTIONS:
        raise InputError(Problem("", f"lab {action}", "is not something that lab does", did_you_mean(action, ACTIONS)))
    of_start = {"--fresh": fresh, "--runtime": runtime, "--name": name}
    if action != "start" and (typed := [flag for flag, value in of_start.items() if value]):
        raise InputError(Problem("", typed[0], f"has no meaning for lab {action}", "leave it out: it is for lab start"))
    most = {"list": 0, "hint": 2, "answer": 3}.get(action, 1)
    if len(what) > most:
        hint = {"list": "./inv lab list", "answer": "./inv lab answer STEP VALUE"}.get(action, f"./inv lab {action} NN")
        raise InputError(Problem("", what[most], f"is one word too many for lab {action}", hint))
    if action == "list":
        return _list(out)
    if action == "start":
        return _start(out, what, runtime or "netns", name or "", fresh=fresh, yes=yes)
    if action == "solve":
        return _solve(out, what, yes=yes)
    verbs: Mapping[str, Callable[[Console, Sequence[str]], None]]
    verbs = {"check": _check, "hint": _hint, "answer": _answer, "stop": _stop}
    return verbs[action](out, what)


def _list(out: Console) -> None:
    from heddle.workshop.unittext import list_text

    rows = listed_units()
    out.result({"labs": [row.to_json() for row in rows]}, list_text(rows))


def listed_units() -> list[ListedUnit]:
    """Every unit, and those that come later, by number. A unit with a wrong file is in the list, as broken."""
    from heddle.workshop.catalogue import find_unit, later, unit_ids
    from heddle.workshop.unitlife import running_unit
    from heddle.workshop.unitprogress import read_progress
    from heddle.workshop.unittext import ListedUnit, state_word

    running = running_unit()
    rows = [ListedUnit(number, number, title, None, "later") for number, title in later().items()]
    for each in unit_ids():
        try:
            spec = find_unit(each).spec
            word = state_word(read_progress(each), running=each == running)
            rows.append(ListedUnit(each[:2], each, spec.title, spec.minutes, word))
        except InputError as error:
            first = str(error).partition("\n")[0]
            rows.append(ListedUnit(each[:2], each, first, None, "broken"))
    return sorted(rows, key=lambda row: row.number)


def _start(out: Console, what: Sequence[str], runtime: str, name: str, *, fresh: bool, yes: bool) -> None:
    from heddle.runtimes.registry import get_runtime
    from heddle.workshop.catalogue import find_unit
    from heddle.workshop.unitlife import start
    from heddle.workshop.unitprogress import read_progress
    from heddle.workshop.unittext import start_text

    if not what:
        raise InputError(Problem("", "lab start", "needs a unit", "./inv lab start 01; ./inv lab list shows the units"))
    unit = find_unit(what[0])
    get_runtime(runtime)  # InputError for a word that is none
    for needed in (packages.for_runtime(runtime), unit.spec.packages):
        packages.ensure(needed, yes=yes, ask=out.confirm, say=out.say)
    created = start(unit, runtime, out.observer, lambda question: yes or out.confirm(question), name=name, fresh=fresh)
    progress = read_progress(unit.id)
    data = {
        "unit": unit.id,
        "lab": progress.lab,
        "runtime": progress.runtime,
        "created": created,
        "file": progress.file,
    }
    out.result(
        data | {"readme": unit.readme, "steps": list(unit.spec.steps)}, start_text(unit, progress, created=created)
    )


def _meant(what: Sequence[str]) -> WorkshopUnit:
    from heddle.workshop.unitlife import meant_unit

    return meant_unit(what[0] if what else None)


def _check(out: Console, what: Sequence[str]) -> None:
    from heddle.workshop.unitlife import check
    from heddle.workshop.unittext import check_text

    report = check(_meant(what))
    out.result(report.to_json(), check_text(report))
    out.exit_code = 0 if report.solved else 1


def _hint(out: Console, what: Sequence[str]) -> None:
    from heddle.workshop.unitlife import hint
    from heddle.workshop.unittext import hint_text

    unit, rest = _unit_first(what, most=1)
    shown = hint(unit, rest[0] if rest else None)
    data = {"unit": unit.id, "step": shown.step, "hints": list(shown.texts), "count": shown.count, "new": shown.new}
    out.result(data, hint_text(unit, shown))


def _answer(out: Console, what: Sequence[str]) -> None:
    from heddle.workshop.unitlife import answer

    unit, rest = _unit_first(what, most=2)
    if len(rest) < 2:
        asked = [name for name, step in unit.spec.steps.items() if step.look == "answer"]
        hint = f"./inv lab answer {asked[0]} VALUE" if asked else "./inv lab check: this unit asks no question"
        raise InputError(Problem("", "lab answer", "needs a step and a value", hint))
    answer(unit, *rest)
    _check(out, [unit.id])


def _unit_first(what: Sequence[str], most: int) -> tuple[WorkshopUnit, Sequence[str]]:
    """The unit that the first word names; without one, the unit that runs. most: words that may follow the unit."""
    from heddle.workshop.catalogue import find_unit, names_unit
    from heddle.workshop.unitlife import running_unit

    running = running_unit()
    unit = find_unit(running) if running is not None else None
    if unit is not None and what and len(what) <= most and what[0] in unit.spec.steps:
        return unit, what
    if what and names_unit(what[0]):
        return find_unit(what[0]), what[1:]
    unit = _meant(())
    if what:
        unit.step(what[0])
    return unit, what


def _solve(out: Console, what: Sequence[str], *, yes: bool) -> None:
    from heddle.workshop.unitlife import opened, solve
    from heddle.workshop.unittext import check_text

    unit = _meant(what)
    opened(unit)
    if not yes and not out.confirm(f"Show the solution of unit {unit.id} and apply it to the lab?"):
        raise InputError(
            Problem(
                "", f"unit {unit.id}", "was not solved: the question was not answered with yes", "./inv lab solve --yes"
            )
        )
    report = solve(unit, out.observer, out.part, lambda line: out.part(f"    {line}"))
    out.result(report.to_json(), "\n" + check_text(report))
    out.exit_code = 0 if report.solved else 1


def _stop(out: Console, what: Sequence[str]) -> None:
    from heddle.workshop.unitlife import stop
    from heddle.workshop.unitprogress import read_progress

    unit = _meant(what)
    name = read_progress(unit.id).lab
    removed = stop(unit, out.observer)
    done = f"unit {unit.id}: its lab {name} is down; progress is kept"
    out.result(
        {"unit": unit.id, "down": [name] if removed else []}, done if removed else f"unit {unit.id} is not running"
    )
