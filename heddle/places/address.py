"""`ssh:user@host:port` -> Address, or the mistake in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from heddle.base.problems import InputError, Problem

EXAMPLE: Final = "use ssh:user@host or ssh:user@host:2222, vm for a virtual machine, or here for this machine"
_BRACKETS: Final = "write it as ssh:user@[::1]:22"
# Names can be aliases of ~/.ssh/config. No character that a shell or ssh could read as a flag or a command.
_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
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
    rest = text.removeprefix("ssh:")
    user, at, typed = rest.rpartition("@")
    bracketed = typed.startswith("[")
    host, bracket, tail = typed[1:].partition("]") if bracketed else (typed.partition(":")[0], "]", "")
    colon, port = (tail[:1], tail[1:]) if bracketed else typed.partition(":")[1:]
    bad_user = at and not _USER.fullmatch(user)
    if bad_user and ":" in user:  # the password is not printed: output ends up in logs
        text = f"ssh:{user.partition(':')[0]}:...@{typed}"
    for wrong, why, hint in (
        (rest.startswith("//"), "has slashes", f"did you mean ssh:{rest.strip('/')}?"),
        (bad_user and ":" in user, "contains a password", "remove it; log in with a key, which ssh-copy-id installs"),
        (bad_user and not user, "names no user", EXAMPLE),
        (bad_user, f"has an invalid user name: {user[:60]!r}", EXAMPLE),
        (not bracket, "has a bracket that is not closed", _BRACKETS),
        (bracketed and colon not in ("", ":"), "has text after its bracket", _BRACKETS),
        (bracketed and not _is_ipv6(host), f"has an invalid IPv6 address in its brackets: {host[:60]!r}", EXAMPLE),
        (":" in port, "has several colons", f"write an IPv6 address in brackets: ssh:[{typed}]"),
        (colon and not _is_port(port), f"has an invalid port: {port[:20]!r}", "use a number from 1 to 65535"),
        (not host, "names no host", EXAMPLE),
        (not bracketed and not _HOST.fullmatch(host), f"has an invalid host name: {host[:60]!r}", EXAMPLE),
    ):
        if wrong:
            raise InputError(Problem(where, shown_place(text, where), why, hint))
    return Address(host, user or None, int(port) if colon else None)


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _is_port(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,5}", text)) and 1 <= int(text) <= 65535


def shown_place(text: str, where: str) -> str:
    """The text as it stands in the config file (`where`) or was typed."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:80])
    return f"place: {shown}".rstrip() if where else f"--place {shown}".rstrip()
