"""Errors as data: what is wrong, where, why, and what to try. Collected, shown together, never a traceback.

A `Problem` is one line for the user (and a hint below it). Rooms raise one of the three errors here; the command
line prints their problems and leaves with their exit code. Anything else that escapes is a defect of Heddle.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final

from heddle.base.progname import as_started


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    where: `zone.yml:14`, `--set`, or the part of the machine it is about (`frr`); may be empty.
    what:  the path and value at fault, as the user wrote it: `queues.buffer: 12parsec`.
    why:   the reason, as the rest of the sentence: `is not a size`.
    hint:  what to try, or the command that mends it; may be empty.
    """

    where: str
    what: str
    why: str
    hint: str = ""

    def __str__(self) -> str:
        """`zone.yml:14  queues.buffer: 12parsec is not a size`, and the hint indented below it."""
        head = as_started(f"{self.where}  {self.what} {self.why}".strip())
        if not self.hint:
            return head
        pad = " " * (len(self.where) + 2 if self.where else 2)
        first, *more = as_started(self.hint).split("\n")
        return "\n".join([head, f"{pad}hint: {first}", *(f"{pad}      {line}" for line in more)])


class HeddleError(Exception):
    """The base of all that a user or a machine can cause; carries problems and an exit code."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


class CheckError(HeddleError):
    """A check or a comparison failed (exit code 1)."""

    exit_code = 1


class InputError(HeddleError):
    """What the user asked for is wrong (exit code 2)."""

    exit_code = 2


class MachineError(HeddleError):
    """This machine lacks something (exit code 3); the hint is the command that mends it."""

    exit_code = 3


# What mends the system's refusals that any step can meet; without a word here the reason has to do.
_MENDS: Final[Mapping[int, str]] = {
    errno.ENOSPC: "free some space there: df -h and df -i tell",
    errno.EDQUOT: "free some space there: your quota is used up",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENFILE: "raise the limit of open files: sysctl -w fs.file-max=1000000",
    errno.EAGAIN: "raise the limit of processes (ulimit -u unlimited), or end some",
    errno.ENOMEM: "free some memory, or take a smaller fabric",
}


def trouble(error: OSError, what: str = "", hint: str = "") -> MachineError:
    """A refusal of the system as an error of the machine: what it was about (else the file named in it), and why."""
    about = what or str(error.filename or "")
    why = "cannot be used" if about else "refuses to go on"
    mend = _MENDS.get(error.errno or 0, hint)
    return MachineError(Problem("", about or "this machine", f"{why}: {error.strerror or error}", mend))


@contextmanager
def machine_errors(what: str = "", hint: str = "") -> Iterator[None]:
    """Turn the OSErrors of a with block into MachineErrors, see `trouble`."""
    try:
        yield
    except OSError as error:
        raise trouble(error, what, hint) from None


@dataclass(slots=True)
class Problems:
    """Collects problems so that all of them are shown at once."""

    found: list[Problem] = field(default_factory=list)

    def add(self, *, where: str, what: str, why: str, hint: str = "") -> None:
        """Note one problem and go on looking for the next."""
        self.found.append(Problem(where, what, why, hint))

    def raise_if_any(self, kind: type[HeddleError] = InputError) -> None:
        """Raise `kind` with everything found, or return when there is nothing."""
        if self.found:
            raise kind(*self.found)


# A hint names so many words at most, and so many where there are more: the nodes of a zone are no reading matter.
_MANY: Final = 40
_SOME: Final = 12


def nearest(word: str, legal: Iterable[str], likeness: float = 0.6) -> str:
    """The legal word that looks most like `word`, or an empty string when none is near.

    likeness: the least ratio of equal letters, 0 to 1 (difflib.SequenceMatcher.ratio).
    """
    matches = difflib.get_close_matches(word.lower(), list(legal), n=1, cutoff=likeness)
    return matches[0] if matches else ""


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """A hint with the nearest legal word, or the list when nothing is near: of hundreds of words the first few."""
    words = list(legal)
    near = nearest(word, words)
    if near:
        return f"did you mean {near}?"
    some = words if len(words) <= _MANY else [*words[:_SOME], f"... ({len(words)} in all)"]
    return "legal here: " + ", ".join(some)
