"""A verb to run in another place, and the protocol of places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from heddle.base.events import Observer


@dataclass(frozen=True, slots=True)
class Call:
    """One verb to run in another place.

    words:     the verb and its words, without --place.
    files_in:  files that the verb reads, as typed. files_out: those that it writes.
    directory_out: files_out are directories, else they are files.
    endings_here: suffixes of a file that it may write to its working directory under a name of its choice.
    lasting:   it continues when the connection breaks; else it gets SIGHUP and undoes unfinished work.
    typed_in:  it reads stdin or a terminal (exec).
    """

    words: Sequence[str]
    files_in: Sequence[str] = ()
    files_out: Sequence[str] = ()
    directory_out: bool = False
    endings_here: Sequence[str] = ()
    lasting: bool = False
    typed_in: bool = False

    @property
    def verb(self) -> str:
        """`up`."""
        return self.words[0]


class Output(Protocol):
    """The part of the verb's console that a place uses: results go to stdout as they come, remarks to stderr."""

    @property
    def json(self) -> bool:
        """True when stdout must be one JSON document."""

    @property
    def observer(self) -> Observer:
        """Shows the progress of what a place does before the verb runs."""

    def say(self, text: str) -> None:
        """A remark on stderr."""

    def close(self) -> None:
        """End the live display, so that it does not overwrite later output."""


class Place(Protocol):
    """Somewhere that verbs can run."""

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there and return its exit code; MachineError when that is not possible."""
