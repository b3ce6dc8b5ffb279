"""Who may use a web server of Heddle: names under which it answers, requests of other sites, and the token.

In:  the headers of a request. Out: None, or the reason why it is refused.

Three attacks are met here. DNS rebinding: another site's name resolves to this machine, so the name in Host must be one
of ours. Cross-site requests: browsers tell the origin of a request (Origin, Sec-Fetch-Site), and a request that changes
something must come from this page. Other users, of this machine too: every request that shows or changes a lab needs
the token, as a cookie that scripts cannot read, as `Authorization: Bearer` (Prometheus), or as the password of
`Authorization: Basic`, which clients send for `https://heddle:TOKEN@HOST` (snappi).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final

from heddle.base.problems import InputError, Problem, machine_errors

SHORTEST: Final = 16  # characters of a user's token
SAFE_METHODS: Final = ("GET", "HEAD")
# The page loads its own files and talks to its own server, and nothing else; no script in the page's text runs.
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused. status: of HTTP."""

    status: int
    why: str


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone; `localhost` counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class PageAccess:
    """The rules of one server. bind: the address it listens on. token: in ASCII. name: of the server, for refusals."""

    def __init__(self, bind: str, port: int, token: str, name: str = "dashboard") -> None:
        self._token, self._name = token, name
        self._names = {"localhost", bind.lower()}
        if not is_loopback(bind):
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._loopback = is_loopback(bind)
        self._secret = secrets.token_bytes(32)
        self.cookie = f"heddle-{port}"

    def refusal(self, method: str, path: str, headers: Mapping[str, str], *, open_to_all: bool) -> Refusal | None:
        """Why this request is refused, or None. headers: names in lower case. open_to_all: it shows no lab."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Refusal(421, f"this name is not one of the {self._name}'s: use the address that it printed")
        if foreign := _foreign(method, path, headers, host):
            return Refusal(403, foreign)
        if not open_to_all and not self._knows(headers):
            return Refusal(401, f"a token is needed: use the address that the {self._name} printed")
        return None

    def matches(self, token: str) -> bool:
        """Whether this is the token. The comparison takes the same time wherever the two differ."""
        return token.isascii() and hmac.compare_digest(token, self._token)

    def session(self) -> str:
        """The value of the cookie: it shows that its owner knew the token, and ends with this server."""
        return hmac.new(self._secret, self._token.encode(), hashlib.sha256).hexdigest()

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header has a name of this server. An IP address cannot be rebound, so it is one."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.removeprefix("[").removesuffix("]").lower()
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return address.is_loopback or not self._loopback

    def _knows(self, headers: Mapping[str, str]) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.matches(given.strip())
        if kind.lower() == "basic":
            return self.matches(_password(given))
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return found is not None and found.value.isascii() and hmac.compare_digest(found.value, self.session())


def _foreign(method: str, path: str, headers: Mapping[str, str], host: str) -> str:
    """Why a request is not one of this page's own; empty when it may be.

    A browser sends Origin with every request that can change something. A program (curl, Prometheus) sends none of
    these headers; what it changes is sent as JSON, which another site's form cannot send.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    link = headers.get("sec-fetch-mode") == "navigate" and method in SAFE_METHODS and path == "/"
    if site not in (None, "same-origin", "none") and not link:
        return "requests of other sites are refused"
    if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
        return "requests of other sites are refused: Origin is not this page"
    if method not in SAFE_METHODS:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return "send JSON (Content-Type: application/json)"
        if site is not None and origin is None:
            return "Origin is missing"
    return ""


def _password(given: str) -> str:
    """The password of `Authorization: Basic` (RFC 7617); empty for what is none."""
    try:
        return base64.b64decode(given.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


def make_token() -> str:
    """A new token: 256 bits."""
    return secrets.token_urlsafe(32)


def read_token(path: Path, shown: str) -> str:
    """The token in a file, without white space at its ends. InputError when it is too short, or others can read it."""
    flag = f"--token-file {shown}"
    if not path.is_file():
        raise InputError(Problem("", flag, "is not a file", f"make one: (umask 077; openssl rand -hex 32 > {shown})"))
    with machine_errors(shown):
        if path.stat().st_mode & 0o077:
            raise InputError(Problem("", flag, "can be read by other users", f"chmod 600 {shown}"))
        token = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(token) < SHORTEST or not token.isascii() or any(each.isspace() for each in token):
        why = f"has no token of {SHORTEST} or more characters (ASCII, no spaces)"
        raise InputError(Problem("", flag, why, f"make one: (umask 077; openssl rand -hex 32 > {shown})"))
    return token
