"""A verb to run in another place, the protocol of places, and the address of a server: `ssh:user@host:port`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, printable

_EXAMPLE: Final = "use ssh:user@host or ssh:user@host:2222, vm for a virtual machine, or here for this machine"
# Names can be aliases of ~/.ssh/config. No character that a shell or ssh could read as a flag or a command.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_IPV6: Final = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\](?:(:)(.*))?", re.DOTALL)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,63}")


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


@dataclass(frozen=True, slots=True)
class Address:
    """A server as the user named it; user and port are None when ~/.ssh/config or a default decides."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        """`ssh:user@host:2222`, as the user types it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"ssh:{user}{host}" + (f":{self.port}" if self.port else "")


def parse_address(text: str, where: str = "") -> Address:
    """Read `ssh:[user@]host[:port]`; IPv6 addresses are in brackets. InputError names the mistake."""
    user, at, rest = text.removeprefix("ssh:").rpartition("@")
    bracketed = _IPV6.fullmatch(rest)
    host, colon, port = bracketed.groups("") if bracketed else rest.partition(":")
    bad_port = colon and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535)
    if ":" in user:  # the password is not printed: output ends up in logs
        text = f"ssh:{user.partition(':')[0]}:...@{rest}"
    for wrong, why, hint in (
        (":" in user, "contains a password", "remove it; log in with a key, which ssh-copy-id installs"),
        (at and not _USER.fullmatch(user), f"has an invalid user name: {user[:60]!r}", _EXAMPLE),
        (":" in port, "has several colons", "write an IPv6 address in brackets: ssh:user@[::1]:22"),
        (bad_port, f"has an invalid port: {port[:20]!r}", "use a number from 1 to 65535"),
        (not bracketed and not _HOST.fullmatch(host), f"has an invalid host name: {host[:60]!r}", _EXAMPLE),
    ):
        if wrong:
            raise place_error(text, where, why, hint)
    return Address(host, user or None, int(port) if colon else None)


def place_error(text: str, where: str, why: str, hint: str = _EXAMPLE) -> InputError:
    """The error for a place as it stands in the config file (`where`) or was typed."""
    return InputError(Problem(where, ("place: " if where else "--place ") + foreign(text), why, hint))


def foreign(text: str) -> str:
    """A text of someone else, shortened and without control characters."""
    return printable(text, 200)
