"""Commands of Heddle that a unit runs for its setup and its solution, as a user types them: `./inv run --qps 16`.

In:  the text of lab.yml, the name of the unit's lab. Out: the argument list that runs it, and its output.
A command runs in a process of its own: units can use every verb, and no room below the command line has to know one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Final

from heddle.base import process, state
from heddle.base.problems import CheckError, Problem
from heddle.base.resources import HERE
from heddle.places.config import VARIABLE

# In a command: the name of the unit's lab, and the learner's copy of the fabric file.
LAB: Final = "{lab}"
FILE: Final = "{file}"
# Verbs that choose their lab by --lab. Others have it as a word: write {lab} there.
_BY_FLAG: Final = frozenset({"capture", "exec", "hashing", "paths", "plot", "queues", "run", "validate"})
_SECONDS: Final = 300.0
# Without colours, and on this machine: where to run was decided for the verb that runs these.
_HERE: Final = ("env", "NO_COLOR=1", f"{VARIABLE}=")


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
        raise CheckError(Problem(where.where, where.what, why, f"./inv lab start --fresh starts {lab} again"))


def _needs_lab(words: Sequence[str]) -> bool:
    """Whether the verb chooses its lab by --lab. A prediction, or a run with a fabric of its own, needs none."""
    return words[0] in _BY_FLAG and not {"--lab", "--predict", "--fabric"} & {word.partition("=")[0] for word in words}


def _words(command: str, lab: str, file: str) -> list[str]:
    return [word.replace(LAB, lab).replace(FILE, file) for word in shlex.split(command)[1:]]
