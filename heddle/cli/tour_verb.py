"""The verbs for newcomers: demo (demo.py has what it runs), tour, and workshop (unit_actions.py has what it does).

`./inv tour` is the main job in seven commands, each explained before it runs and discussed after it.
In:  a terminal (Enter goes on, q ends), or --yes.
Out: what the commands print, with explanations between. Each command is this program, started as a user would start
it. The lab has a name of its own, and is taken down however the tour ends.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import CheckError, HeddleError, InputError, Problem, did_you_mean
from heddle.base.process import left_to_child
from heddle.base.progname import as_started, program
from heddle.base.resources import HERE
from heddle.cli import helptexts as words
from heddle.cli.console import Console
from heddle.cli.endings import INTERRUPTED
from heddle.cli.helptexts import EXAMPLE_PORT
from heddle.cli.verbs import verb
from heddle.host import packages

_FABRIC: Final = "demo"
_WIDEST: Final = 80
_TABLES: Final = 118  # columns of the table of `run`
_END_S: Final = 60.0  # for a command to end after Ctrl-C: `up` and `run` put things in order first
_RUN: Final = "run --lab LAB --qps 16 --placement cyclic --sport fixed --iters 3"
_NEXT: Final = (
    "Next: `./inv up zone` starts a larger fabric, `./inv queues --watch` shows its queues while a run goes on, and "
    f"`./inv capture {EXAMPLE_PORT}` its packets. `./inv --help` lists all verbs, `./inv VERB --help` has examples."
)


@verb(group="Start", packages=packages.FABRIC, root=True)
def demo(out: Console) -> None:
    """Show Heddle in a minute: a fabric, three all-reduces, and the proof of every path.

    The same ring all-reduce runs with ECMP and 1 QP, with ECMP and 16 QPs, and with E-ECMP and 16 QPs. The lab is
    taken down at the end.
    """
    from heddle.cli.demo import demo as run_demo

    result = run_demo(out.observer, out.show)
    out.result(result.to_json(), result.text())
    out.fail(*result.problems)


@dataclass(frozen=True, slots=True)
class TourStep:
    """One command of the tour; LAB stands for the lab's name. before: what it does; after: what to look at."""

    title: str
    command: str
    before: str
    after: str

    def words(self, lab: str) -> list[str]:
        """The verb and what follows it."""
        return [word.replace("LAB", lab) for word in shlex.split(self.command)]


STEPS: Final = (
    TourStep(
        "Start a fabric",
        f"up {_FABRIC} --name LAB",
        "A fabric file describes a fabric in a few lines. Preset demo has 4 racks of 4 hosts and 4 spine switches. "
        "`up` makes every switch a network namespace in which FRR runs BGP, with real queues at every port, and waits "
        "until all routes are in the kernels.",
        "The last lines say how long it took, and which commands work now. `./inv status` lists running labs at any "
        "time.",
    ),
    TourStep(
        "Run a collective",
        _RUN,
        "16 ranks, one per NIC, do a ring all-reduce of 1 MiB: real data in RoCEv2 packets, which the ranks check. "
        "Neighbours of the ring are in different racks (cyclic), so every transfer crosses the spines. Each connection "
        "has 16 queue pairs (QPs), all with the same UDP source port, as with some NICs.",
        "The table is that of nccl-tests. busbw is the bandwidth to compare; #wrong is 0 because all sums are right. "
        "Bandwidths are emulated: the line #emulated has the scale factor k, so compare ratios only.",
    ),
    TourStep(
        "See which path each QP took",
        "paths --lab LAB",
        "For each QP Heddle predicts the path, asks each switch's kernel for it, and compares both with the counters "
        "of the switches. Only if all three agree is a path proven.",
        "The bars show the use of each uplink. Few uplinks carry much, others nothing: ECMP hashes the 5-tuple, "
        "which is the same for all 16 QPs of a pair. MMR is the busiest uplink's load over the mean; 1 is ideal.",
    ),
    TourStep(
        "Change one thing",
        "hashing e-ecmp --lab LAB",
        "E-ECMP also hashes the destination QP of each packet. The mode changes on all switches while the lab runs, "
        "and no packet is lost.",
        "Every switch now has mode e-ecmp, with a seed of its own. `./inv explain E-ECMP` says more, and "
        "`./inv explain` lists all terms.",
    ),
    TourStep(
        "Run it again",
        _RUN,
        "The same collective with the same options. Only the hashing differs, so a difference in busbw is due to it.",
        "Compare busbw and time with the first table. `./inv paths` would now show all uplinks in use.",
    ),
    TourStep(
        "Compare both runs",
        "compare 1 2 --lab LAB",
        "Each run is kept with its options, its result and the proof of its paths. `compare` shows two runs side by "
        "side.",
        "The settings that differ come first: only the hashing mode. Then comes B/A of each figure, and whether noise "
        "explains the difference. MMR is lower in the second run. On a busy machine, bandwidths have no verdict.",
    ),
    TourStep(
        "Take it down",
        "down LAB",
        "This removes every namespace, process and file of this lab, and its runs with it.",
        "Nothing of the tour is left on this machine.",
    ),
)


@verb(
    group="Start",
    help={"yes": "run through without waiting for Enter, and install missing system packages unasked"},
    root=True,
    typed_in=True,
)
def tour(out: Console, yes: bool = False) -> None:
    """A guided tour for newcomers, in five minutes: up, run, paths, one change, run again, compare, down.

    Each command is explained before it runs. Enter continues, q ends the tour; --yes runs through without questions.
    Ctrl-C ends it at any time. The tour has a lab of its own, and takes it down at the end.
    """
    if not yes and not (sys.stdin and sys.stdin.isatty()):
        raise InputError(Problem("", "./inv tour", "waits for Enter, and there is no terminal", "use ./inv tour --yes"))
    from heddle.cli.demo import free_name

    packages.ensure(packages.FABRIC, yes=yes, ask=out.confirm, say=out.say)
    lab = free_name("tour")
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < _TABLES:
        out.say(f"tables are up to {_TABLES} columns wide: a wider terminal shows them without broken lines")
    done: list[dict[str, Any]] = []
    try:
        for number, step in enumerate(STEPS, 1):
            _tell(out, f"\n[{number} of {len(STEPS)}] {step.title}\n", step.before, f"\n  {_line(step, lab)}\n")
            if not yes and not _goes_on():
                _tell(out, "\nThe tour ends here.")
                break
            done.append(_ran(out, step, lab))
            _tell(out, "", step.after)
        else:
            _tell(out, "", _NEXT)
    finally:
        from heddle.lab.lifecycle import down

        with left_to_child(signal.SIGINT):
            down(lab)  # nothing when it is not there: at the end of the tour
    if out.json:
        out.result({"lab": lab, "steps": done})


def _line(step: TourStep, lab: str) -> str:
    return shlex.join([program(), *step.words(lab)])


def _tell(out: Console, *texts: str) -> None:
    """Print for people: prose in narrow lines, and unchanged what is a line of its own. Not part of a document."""
    columns = min(_WIDEST, shutil.get_terminal_size().columns)
    lines = [text if "\n" in text else _filled(text, columns) for text in texts]
    out.show("\n".join(lines))


def _filled(text: str, columns: int) -> str:
    """The text in lines of that width; a command between backquotes stays on one line."""
    whole = re.sub(r"`[^`]*`", lambda command: command[0].replace(" ", "\0"), as_started(text))
    return textwrap.fill(whole, columns, break_on_hyphens=False).replace("\0", " ")


def _goes_on() -> bool:
    """Wait for Enter; False for q, and for the end of the input."""
    print("Enter runs it, q ends the tour: ", end="", file=sys.stderr, flush=True)
    typed = sys.stdin.readline()
    return typed.endswith("\n") and typed.strip().lower() not in ("q", "quit", "exit", "n", "no")


def _ran(out: Console, step: TourStep, lab: str) -> dict[str, Any]:
    """Run a step's command as a user does, with this terminal. CheckError when it fails."""
    began = time.monotonic()
    # Beside a JSON document there is no room on stdout.
    stdout = sys.stderr if out.json else None
    argv = [*HERE.command(), *step.words(lab)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout) as child:
        try:
            code = child.wait()
        except BaseException:
            _ended(child)
            raise
    if code == INTERRUPTED:  # Ctrl-C reached only the command
        raise KeyboardInterrupt
    if code:
        why = f"failed with exit code {code}, and the tour ends"
        raise CheckError(Problem("", _line(step, lab), why, "./inv doctor checks this machine"))
    return {"title": step.title, "command": _line(step, lab), "seconds": round(time.monotonic() - began, 1)}


def _ended(child: subprocess.Popen[bytes]) -> None:
    """Wait for a command that Ctrl-C has reached, too; SIGTERM to this process reached only this one."""
    with left_to_child(signal.SIGINT):
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()


ACTIONS: Final = ("list", "start", "check", "hint", "answer", "solve", "stop", "result")
_ROOTLESS: Final = frozenset({"list", "hint", "result"})


def _files(typed: Mapping[str, Any]) -> Sequence[str]:
    """The learner's copy of a fabric file, where it is in the working directory: a lab server needs it."""
    from pathlib import Path

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
    help=words.WORKSHOP,
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
