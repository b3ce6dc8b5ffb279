"""`ssh:user@host:port` -> Address, or the mistake in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final

from heddle.base.problems import InputError, Problem

EXAMPLE: Final = "use ssh:user@host or ssh:user@host:2222, vm for a virtual machine, or here for this machine"
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
    what = shown_place(text, where)  # used by wrong()

    def wrong(why: str, hint: str = EXAMPLE) -> InputError:
        return InputError(Problem(where, what, why, hint))

    rest = text.removeprefix("ssh:")
    if rest.startswith("//"):
        raise wrong("has slashes", f"did you mean ssh:{rest.strip('/')}?")
    user, at, host = rest.rpartition("@")
    if at and not _USER.fullmatch(user):
        if ":" in user:  # the password is not printed: output ends up in logs
            what = shown_place(f"ssh:{user.partition(':')[0]}:...@{host}", where)
            raise wrong("contains a password", "remove it; log in with a key, which ssh-copy-id installs")
        raise wrong("names no user" if not user else f"has an invalid user name: {user[:60]!r}")
    host, port = _split(host, wrong)
    if not host:
        raise wrong("names no host")
    if ":" not in host and not _HOST.fullmatch(host):
        raise wrong(f"has an invalid host name: {host[:60]!r}")
    return Address(host, user or None, port)


def _split(host: str, wrong: Callable[..., InputError]) -> tuple[str, int | None]:
    """Host and port of `host:port`, `[v6]:port`."""
    if host.startswith("["):
        host, bracket, tail = host[1:].partition("]")
        if not bracket:
            raise wrong("has a bracket that is not closed", "write it as ssh:user@[::1]:22")
        if tail and not tail.startswith(":"):
            raise wrong("has text after its bracket", "write it as ssh:user@[::1]:22")
        try:
            IPv6Address(host)
        except AddressValueError:
            raise wrong(f"has an invalid IPv6 address in its brackets: {host[:60]!r}") from None
        colon, port = tail[:1], tail[1:]
    elif host.count(":") > 1:
        raise wrong("has several colons", f"write an IPv6 address in brackets: ssh:[{host}]")
    else:
        host, colon, port = host.partition(":")
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise wrong(f"has an invalid port: {port[:20]!r}", "use a number from 1 to 65535")
    return host, int(port)


def shown_place(text: str, where: str) -> str:
    """The text as it stands in the config file (`where`) or was typed."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:80])
    return f"place: {shown}".rstrip() if where else f"--place {shown}".rstrip()
