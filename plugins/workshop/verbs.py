"""The verb `workshop`: its words. unit_actions.py has what it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from heddle.base.problems import HeddleError, InputError, Problem, did_you_mean
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.helptexts import SHARED
from heddle.cli.verbs import verb

ACTIONS: Final = ("list", "start", "check", "hint", "answer", "solve", "stop", "result")
_ROOTLESS: Final = frozenset({"list", "hint", "result"})
_WORKSHOP: Final[Options] = {
    "action": Option("list, start, check, hint, answer, solve, stop or result", ACTIONS),
    "what": Option(
        "a unit (02 or entropy); then a step for hint, or a step and a value for answer",
        "heddle_plugins.workshop.catalogue:unit_ids",
    ),
    "runtime": f"{SHARED['runtime'].help} (with start; default: netns)",
    "name": "with start: name of the lab, in place of unit02",
    "fresh": "with start: begin again with a new lab, without hints and answers",
    "yes": "answer all questions with yes: apply the solution, start again with a changed file, install packages",
    "out": "with result: file to write, to hand in",
}


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    """The learner's copy of a fabric file, where it is in the working directory: a lab server needs it."""
    from heddle_plugins.workshop.catalogue import find_unit

    if typed["action"] != "start" or not typed["what"]:
        return []
    try:
        file = find_unit(typed["what"][0]).spec.file
    except HeddleError:  # the verb reports it
        return []
    return [file] if file and Path(file).exists() else []


@verb(
    group="Learn",
    name="workshop",
    help=_WORKSHOP,
    positional=["action", "what"],
    root=lambda typed: typed["action"] not in _ROOTLESS,
    files_in=_files,
    files_out=["out_"],
    endings_here=[".yml"],
)
def workshop(
    out: Console,
    action: str = "list",
    what: Sequence[str] = (),
    runtime: str | None = None,
    name: str | None = None,
    fresh: bool = False,
    yes: bool = False,
    out_: str | None = None,
) -> None:
    """Workshop units: exercises on a running fabric that check your work.

    Action list shows the units. Action start NN brings the lab of a unit up, and stop takes it down. Action check
    reports what was observed for each step. Its exit code is 1 until every step is right. Action hint gives one more
    hint, answer STEP VALUE answers a question, and solve explains and applies the solution. Action result writes what
    you solved in all units, with the path proofs of your runs, to hand in. Name a unit by its number or its name:
    ./inv workshop start 02, ./inv workshop start entropy. Other actions use the running unit by default.
    labs/README.md is for instructors.
    """
    if action not in ACTIONS:
        raise InputError(
            Problem("", f"workshop {action}", "is not an action of workshop", did_you_mean(action, ACTIONS))
        )
    of_start = {"--fresh": fresh, "--runtime": runtime, "--name": name}
    if action != "start" and (typed := [flag for flag, value in of_start.items() if value]):
        hint = "leave it out: it is for workshop start"
        raise InputError(Problem("", typed[0], f"has no meaning for workshop {action}", hint))
    if action != "result" and out_:
        hint = "leave it out: it is for workshop result"
        raise InputError(Problem("", "--out", f"has no meaning for workshop {action}", hint))
    most = {"list": 0, "hint": 2, "answer": 3}.get(action, 1)
    if len(what) > most:
        hint = {"list": "./inv workshop list", "answer": "./inv workshop answer STEP VALUE"}.get(
            action, f"./inv workshop {action} NN"
        )
        raise InputError(Problem("", what[most], f"is one word too many for workshop {action}", hint))
    from heddle_plugins.workshop import unit_actions as units

    match action:
        case "list":
            rows = units.listed_units()
            out.result({"labs": [row.to_json() for row in rows]}, units.list_text(rows))
        case "start":
            units.start_unit(out, what, runtime or "netns", name or "", fresh=fresh, yes=yes)
        case "check":
            units.check_unit(out, what)
        case "hint":
            units.show_hint(out, what)
        case "answer":
            units.take_answer(out, what)
        case "solve":
            units.solve_unit(out, what, yes=yes)
        case "result":
            units.hand_in(out, what, out_)
        case _:
            units.stop_unit(out, what)
