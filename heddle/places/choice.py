"""Places, and the one that the user chose: `--on`, else that of the config file, else this machine.

The config file is ~/.config/heddle/config.yml, or $HEDDLE_CONFIG. Unknown keys are errors, as in a fabric file.

    place: ssh:me@lab.example.org    # where verbs run without --on

Kinds of places are parts of plugins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from heddle.base.events import Observer
from heddle.base.extras import KUBERNETES
from heddle.base.files import expanded
from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem, printable

EXAMPLE: Final = "use ssh:user@host or ssh:user@host:2222, vm for a virtual machine, or here for this machine"


@dataclass(frozen=True, slots=True)
class Call:
    """One verb to run in another place.

    words:     the verb and its words, without --on.
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
    return InputError(Problem(where, ("place: " if where else "--on ") + foreign(text), why, hint))


def foreign(text: str) -> str:
    """A text of someone else, shortened and without control characters."""
    return printable(text, 200)


HERE: Final = "here"
VARIABLE: Final = "HEDDLE_CONFIG"
_KEY: Final = "place"


# Each makes a place of its text, and of the file and line that the text is from.
KINDS: Final[Registry[Callable[[str, str], Place]]] = Registry("place", {}, having("__call__"))


def place_for(typed: str | None) -> Place | None:
    """The place that was typed, else that of the config file; None: this machine.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    if typed is not None:
        return _place_named(typed, "")
    path = config_path()
    return _configured(path) if path else None


def _place_named(text: str, where: str) -> Place | None:
    """The place that a text names, None for `here`; InputError for any other text. where: its file and line."""
    kind = text.partition(":")[0]
    if text == HERE:
        return None
    if kind in KINDS:
        return KINDS[kind](text, where)
    if text == KUBERNETES:
        raise place_error(text, where, "is only for experiment", "use --runtime kubernetes for a lab in pods")
    raise place_error(text, where, "is not a place")


def config_path() -> Path | None:
    """The config file; None when there is none, or when $HEDDLE_CONFIG is empty."""
    named, base = os.environ.get(VARIABLE), os.environ.get("XDG_CONFIG_HOME", "")
    if named is not None:
        return expanded(named) if named else None
    try:  # XDG Base Directory Specification: ignore a path that is not absolute
        path = (Path(base) if base.startswith("/") else Path.home() / ".config") / "heddle" / "config.yml"
        return path if path.exists() else None
    except (OSError, RuntimeError):  # a home that this user may not enter; no HOME, and no such user
        return None


def _configured(path: Path) -> Place | None:
    """The place in a config file; InputError has the problems of the file, with their lines."""
    from heddle.spec.yamlfile import parse, read_text

    text = read_text(path, str(path))
    if not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return None  # comments only
    document = parse(text, str(path))
    if unknown := [key for key in document.data if key != _KEY]:
        why, hint = "is not a key of the config file", f"its only key is {_KEY}"
        raise InputError(*[Problem(document.where((key,)), key, why, hint) for key in unknown])
    value, where = document.data.get(_KEY, HERE), document.where((_KEY,))
    if not isinstance(value, str):
        raise place_error(document.text((_KEY,)), where, "is not a text")
    return _place_named(value, where)
