"""Errors as data: place, value, reason and hint. They are collected and shown together, never as a traceback.

A `Problem` is one line for the user (and a hint below it). Rooms raise one of the three errors here; the command line
prints their problems and exits with their exit code. Any other exception that reaches the user is a defect of Heddle.

What a terminal gets must not be steered by texts of files, nodes, kernels and servers that others wrote. All text for
people passes through `shown` where it is printed: in `tables.written` (stdout), `Problem.__str__`, the observers
(stderr) and the console. Names also pass through `printable` where they are read, since a line feed in a name would
begin another line.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from heddle.base.progname import as_started

_DOUBTFUL: Final = re.compile(r"[^\n\t -~]")


def printable(text: str, most: int | None = None) -> str:
    """The text as part of one line, cut to `most` characters."""
    return (text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text))[:most]


def shown(text: str) -> str:
    """The text as it is printed, with its lines and tabs, and the program's name as the user started it."""
    return _DOUBTFUL.sub(lambda found: found[0] if found[0].isprintable() else "?", as_started(text))


@dataclass(frozen=True, slots=True)
class Problem:
    """One error.

    where: `zone.yml:14`, `--set`, or the part of the machine it is about (`frr`); may be empty.
    what:  the wrong path and value, as the user wrote it: `queues.buffer: 12parsec`.
    why:   the reason, as the rest of the sentence: `is not a size`.
    hint:  an imperative, or the command that fixes it; may be empty.
    """

    where: str
    what: str
    why: str
    hint: str = ""

    def __str__(self) -> str:
        """`zone.yml:14  queues.buffer: 12parsec is not a size`, and the hint indented below it."""
        head = shown(f"{self.where}  {self.what} {self.why}".strip())
        if not self.hint:
            return head
        pad = " " * (len(self.where) + 2 if self.where else 2)
        first, *more = shown(self.hint).split("\n")
        return "\n".join([head, f"{pad}hint: {first}", *(f"{pad}      {line}" for line in more)])


def first_lines(problems: Iterable[Problem]) -> tuple[str, ...]:
    """Each problem in one line, without its hint."""
    return tuple(str(problem).partition("\n")[0] for problem in problems)


class HeddleError(Exception):
    """The base of all errors that a user or a machine can cause; has problems and an exit code."""

    exit_code: ClassVar[int] = 1

    def __init__(self, *problems: Problem) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.problems


class CheckError(HeddleError):
    """A check or a comparison failed (exit code 1)."""

    exit_code = 1


class InputError(HeddleError):
    """The user's input is wrong (exit code 2)."""

    exit_code = 2


class MachineError(HeddleError):
    """Something is missing on this machine (exit code 3); the hint is the command that fixes it."""

    exit_code = 3


# Hints for system errors that any step can meet; other errors have only the reason.
_FIXES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "free some space there; check with df -h and df -i",
    errno.EDQUOT: "free some space there: your quota is used up",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENFILE: "raise the limit of open files: sysctl -w fs.file-max=1000000",
    errno.EAGAIN: "raise the limit of processes (ulimit -u unlimited), or end some",
    errno.ENOMEM: "free some memory, or use a smaller fabric",
    errno.ENOBUFS: "free some memory, or use a smaller fabric",
}


def trouble(error: OSError, what: str = "", hint: str = "") -> MachineError:
    """An OSError as a MachineError with its reason. what: its subject; by default the file that the error names."""
    about = what or str(error.filename or "")
    why = "cannot be used" if about else "reports an error"
    fix = _FIXES.get(error.errno or 0, hint)
    return MachineError(Problem("", about or "this machine", f"{why}: {error.strerror or error}", fix))


def exhausted(error: BaseException) -> MachineError | None:
    """An error of this machine's limits, which any statement can raise, as a MachineError; None for other errors."""
    if isinstance(error, MemoryError):
        error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    elif isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        error = OSError(errno.EAGAIN, "it cannot start another thread")
    return trouble(error) if isinstance(error, OSError) and error.errno in _FIXES else None


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
        """Add one problem; the caller goes on to find more."""
        self.found.append(Problem(where, what, why, hint))

    def raise_if_any(self, kind: type[HeddleError] = InputError) -> None:
        """Raise `kind` with all problems, or return when there are none."""
        if self.found:
            raise kind(*self.found)


# A hint names up to _MANY words; if there are more, only the first _SOME. A zone has too many nodes to read.
_MANY: Final = 40
_SOME: Final = 12


def nearest(word: str, legal: Iterable[str], likeness: float = 0.6) -> str:
    """The word most similar to `word`, or an empty string when none is similar.

    likeness: the minimum ratio of equal letters, 0 to 1 (difflib.SequenceMatcher.ratio).
    """
    matches = difflib.get_close_matches(word.lower(), list(legal), n=1, cutoff=likeness)
    return matches[0] if matches else ""


def did_you_mean(word: str, legal: Iterable[str]) -> str:
    """A hint with the most similar word; if none is similar, the list of words, or the first few of it."""
    words = list(legal)
    near = nearest(word, words)
    return f"did you mean {near}?" if near else f"allowed: {some_of(words)}"


def some_of(words: Sequence[str]) -> str:
    """The words of a list, or the first few and their number."""
    return ", ".join(words if len(words) <= _MANY else [*words[:_SOME], f"... ({len(words)} in all)"])
