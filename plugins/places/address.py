"""The address of a server: `ssh:user@host:port`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from heddle.places.choice import EXAMPLE, place_error

# Names can be aliases of ~/.ssh/config. No character that a shell or ssh could read as a flag or a command.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_IPV6: Final = re.compile(r"\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\](?:(:)(.*))?", re.DOTALL)
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\+-]{0,63}")


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
        (at and not _USER.fullmatch(user), f"has an invalid user name: {user[:60]!r}", EXAMPLE),
        (":" in port, "has several colons", "write an IPv6 address in brackets: ssh:user@[::1]:22"),
        (bad_port, f"has an invalid port: {port[:20]!r}", "use a number from 1 to 65535"),
        (not bracketed and not _HOST.fullmatch(host), f"has an invalid host name: {host[:60]!r}", EXAMPLE),
    ):
        if wrong:
            raise place_error(text, where, why, hint)
    return Address(host, user or None, int(port) if colon else None)
