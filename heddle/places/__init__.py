"""Where a verb runs: here, or on a lab server over SSH (`--place ssh:user@host[:port]`, or `place:` in a config file).

In:  what was typed, and the user's config file.
Out: None (here), or a Place that runs the same verb elsewhere and returns its exit code.

address.py      the text of a place -> Address, or what is wrong with it
config.py       ~/.config/heddle/config.yml
known_hosts.py  is this the server that it says it is
ssh.py          connect and authenticate
sync.py         what of the project is brought over
session.py      one verb over there: its streams, its signals, its files, its end
wire.py         the frames between here and there
agent.py        what runs there; it is sent along with each call
files.py        names of files as typed, and where those files really stand

A new kind of place: one file, one line in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from heddle.cli.console import Console

HERE: Final = "here"


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


class Place(Protocol):
    """Somewhere that verbs can run."""

    def run(self, call: Call, out: Console) -> int:
        """Run the verb there and return its exit code; MachineError when there is no way."""


def _ssh(text: str, where: str) -> Place:
    from heddle.places.address import parse_address
    from heddle.places.session import SshPlace

    return SshPlace(parse_address(text, where))


KINDS: Final[Mapping[str, Callable[[str, str], Place]]] = {"ssh": _ssh}


def place_for(typed: str | None) -> Place | None:
    """The place that was typed, else that of the config file; None is here.

    Raises InputError when the text names no place, or the config file is wrong.
    """
    from heddle.places.config import config_path

    if typed is not None:
        return _named(typed, "")
    path = config_path()
    if path is None:
        return None
    from heddle.places.config import read_config

    config = read_config(path)
    return _named(config.place, config.where("place"))


def _named(text: str, where: str) -> Place | None:
    from heddle.places.address import check_kind

    if text == HERE:
        return None
    return KINDS[check_kind(text, where, KINDS)](text, where)


def real(typed: str) -> Path:
    """Where a file stands that was named on the command line: there, or where it was brought to from another machine.

    Verbs open what `files_in` and `files_out` of `@verb` name through this, and show the name as it was typed.
    """
    from heddle.base.files import real as find

    return find(typed)
