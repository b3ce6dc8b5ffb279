"""Before `./inv` sets up Heddle's Python packages: name the system packages that are missing, when it may install none.

In:  the words after ./inv, with a Python that has none of these packages.
Out: exit code 3, and every missing system package with the command that installs all; else 0, and the setup goes on.
Setting up takes a minute, and a verb that then ends for a missing system package has wasted it.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.cli import endings
from heddle.cli.argv import parse, wants_json
from heddle.cli.front import tasks
from heddle.cli.oldnames import present_name
from heddle.cli.program import after_help, commands_in
from heddle.host import packages
from heddle.places import choice

_OF_RUNS: Final = ("run", "perf", "tuner")  # their options are declared with numpy


def main(words: Sequence[str], more: Sequence[str] = ()) -> int:
    """Check and return the exit code. more: packages of Debian that the setup itself needs."""
    return endings.ended(lambda: check(words, more), ["./inv", *words], as_json=wants_json(words))


def check(words: Sequence[str], more: Sequence[str] = ()) -> None:
    """MachineError when the verb needs system packages that are missing."""
    absent = [part for part in packages.missing(needed(words)) if not part.optional]
    if not absent:
        return
    names = ", ".join(dict.fromkeys([*more, *(part.packages[0] for part in absent)]))
    *others, last = absent
    at = words.index("--") if "--" in words else len(words)
    again = shlex.join([*words[:at], "--yes", *words[at:]])
    hint = f"run ./inv {again}: it installs {names} by apt-get, and Heddle's Python packages in .venv"
    if shutil.which("apt-get") is None:
        hint = "install them with the package manager of this system (the names are Debian's)"
    found = [Problem("", part.packages[0], f"is missing: {part.why}") for part in others]
    raise MachineError(*found, Problem("", last.packages[0], f"is missing: {last.why}", hint))


def needed(words: Sequence[str]) -> Sequence[str]:
    """The parts that the verb needs here; none where that is not known yet, or the verb will not run here."""
    commands = commands_in(vars(tasks()))
    name = present_name(words[0], commands, noted=False) if words else ""
    if name not in commands:
        return ()
    rest = words[1:]
    try:
        command = commands[name]
        if after_help(command.verb, rest) is not None:
            return ()
        typed = parse(command.verb, rest)
        place = choice.place_for(typed.get("on"))
        return command.packages(typed) if place is None else ()
    except HeddleError:  # a wrong word is reported after the setup, when all can be read
        return ()
    except ImportError:
        flags = {word.partition("=")[0] for word in rest}
        unclear = flags & {"--runtime", "--on", "--place", "--help", "-h"} or choice.config_path() is not None
        return packages.FABRIC if name in _OF_RUNS and "--fabric" in flags and not unclear else ()
