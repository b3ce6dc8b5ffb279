"""The verbs for newcomers: demo (demo.py has what it runs), and tour.

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
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.problems import CheckError, InputError, Problem
from heddle.base.process import left_to_child
from heddle.base.progname import as_started, program
from heddle.base.resources import HERE
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

    The same ring all-reduce runs with ECMP and 1 QP, with ECMP and 16 QPs, and with E-ECMP and 16 QPs. All QPs have
    the same UDP source port. The lab is taken down at the end.
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
        "The bars show the utilization of each uplink. Few carry much, others nothing: ECMP hashes the 5-tuple, "
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
        "explains the difference. MMR goes from 3.00 to 1.56: the QPs of a pair now use several uplinks. On a busy "
        "machine, bandwidths have no verdict.",
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
    packages=packages.FABRIC,
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
