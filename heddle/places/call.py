"""A verb to run in another place, and the protocol of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, printable

EXAMPLE: Final = "use ssh:user@host or ssh:user@host:2222, vm for a virtual machine, or here for this machine"


@dataclass(frozen=True, slots=True)
class Call:
    """One verb to run in another place.

    words:     the verb and its words, without --place.
    files_in:  files that the verb reads, as typed. files_out: those that it writes.
    directory_out: files_out are directories, else they are files.
    endings_here: suffixes of a file that it may write to its working directory under a name of its choice.
    lasting:   it continues when the connection breaks; else it gets SIGHUP and undoes unfinished work.
    typed_in:  it reads stdin or a terminal (exec).
    yes:       what the place needs on this machine may be installed without a question.
    """

    words: Sequence[str]
    files_in: Sequence[str] = ()
    files_out: Sequence[str] = ()
    directory_out: bool = False
    endings_here: Sequence[str] = ()
    lasting: bool = False
    typed_in: bool = False
    yes: bool = False

    @property
    def verb(self) -> str:
        """`up`."""
        return self.words[0]


class Output(Protocol):
    """The part of the verb's console that a place uses. json: stdout must be one JSON document."""

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""

    @property
    def observer(self) -> Observer:
        """Who is told of progress."""

    def confirm(self, question: str) -> bool:
        """Ask the user; False without a terminal."""

    def close(self) -> None:
        """End the live display, so that it does not overwrite later output."""


class Place(Protocol):
    """Somewhere that verbs can run."""

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there and return its exit code; MachineError when that is not possible."""


def place_error(text: str, where: str, why: str, hint: str = EXAMPLE) -> InputError:
    """The error for a place as it stands in the config file (`where`) or was typed."""
    return InputError(Problem(where, ("place: " if where else "--place ") + foreign(text), why, hint))


def foreign(text: str) -> str:
    """A text of someone else, shortened and without control characters."""
    return printable(text, 200)
