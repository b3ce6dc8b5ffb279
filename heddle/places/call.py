"""A verb that is to run elsewhere, and what a place is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """One verb as it is to run elsewhere.

    words:     the verb and all that was typed, but for --place.
    files_in:  names of files, as typed, that it reads; files_out: of files or directories that it writes.
    endings_here: those of the files that it may write to its working directory without having been told a name.
    lasting:   it goes on to its end when the connection breaks; else it is hung up on, and undoes what is half made.
    typed_in:  it is for people at a terminal, or reads stdin (exec).
    """

    words: Sequence[str]
    files_in: Sequence[str] = ()
    files_out: Sequence[str] = ()
    endings_here: Sequence[str] = ()
    lasting: bool = False
    typed_in: bool = False

    @property
    def verb(self) -> str:
        """`up`."""
        return self.words[0]


class Output(Protocol):
    """What a place needs of the verb's console: results go through to stdout as they come, remarks to stderr."""

    @property
    def json(self) -> bool:
        """True when stdout must be one JSON document."""

    def say(self, text: str) -> None:
        """A remark on stderr."""

    def close(self) -> None:
        """End the live display, so that nothing is drawn over what follows."""


class Place(Protocol):
    """Somewhere that verbs can run."""

    def run(self, call: Call, out: Output) -> int:
        """Run the verb there and return its exit code; MachineError when there is no way."""
