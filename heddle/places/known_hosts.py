"""Check a server's host key against OpenSSH's known_hosts files, with OpenSSH's rules.

In:  the text of known_hosts files, the server's name, and the key that it presented.
Out: a HostKeyState. This module never adds a key to a file: the user must verify an unknown key.
Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": plain names, [name]:port, patterns, hashed names, @revoked.
Certificate authorities (@cert-authority) are ignored, because Heddle does not request host certificates.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

SYSTEM: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
DEFAULT_PORT: Final = 22
# A key of type ssh-rsa is proven with any of these signatures (RFC 8332).
_RSA: Final = ("rsa-sha2-512", "rsa-sha2-256")


class HostKeyState(Enum):
    """The state of a key according to the files."""

    KNOWN = "known"
    UNKNOWN = "unknown"  # no key of this server is known
    CHANGED = "changed"  # another key of this server is known
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a file. `where` is file and line; `key` the public key in wire format."""

    where: str
    marker: str
    names: str
    type: str
    key: bytes

    def matches(self, name: str) -> bool:
        """Whether the line is about this server."""
        if self.names.startswith("|1|"):
            return _hashed(self.names, name)
        found = False
        for pattern in self.names.split(","):
            if pattern.startswith("!") and _matches(pattern[1:], name):
                return False
            found = found or _matches(pattern, name)
        return found


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and the line that decides it (empty when no line names the server)."""

    verdict: HostKeyState
    where: str = ""


def read_entries(files: Iterable[Path]) -> list[Entry]:
    """All lines of the files that hold a key; other lines and unreadable files are ignored, as in ssh."""
    entries = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        entries += parse_entries(text, str(file))
    return entries


def parse_entries(text: str, source: str) -> list[Entry]:
    """The lines of one file."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3:
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        entries.append(Entry(f"{source}:{number}", marker, words[0], words[1], key))
    return entries


def known_name(host: str, port: int) -> str:
    """The server's name in known_hosts: `host`, or `[host]:port` where the port is not 22."""
    host = host.lower()
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def judge(entries: Sequence[Entry], host: str, port: int, key: bytes) -> Judgement:
    """Judge a key that the server at host and port presented.

    As in OpenSSH, a key for the host at the default port is valid at another port that has no key of its own.
    """
    names = [known_name(host, port)] + ([known_name(host, DEFAULT_PORT)] if port != DEFAULT_PORT else [])
    for at_port, name in enumerate(names):
        about = [e for e in entries if e.matches(name)]
        for entry in about:
            if entry.marker == "@revoked" and entry.key == key:
                return Judgement(HostKeyState.REVOKED, entry.where)
        plain = [e for e in about if not e.marker]
        for entry in plain:
            if entry.key == key:
                return Judgement(HostKeyState.KNOWN, entry.where)
        if plain and not at_port:
            return Judgement(HostKeyState.CHANGED, plain[0].where)
    return Judgement(HostKeyState.UNKNOWN)


def algorithms(entries: Sequence[Entry], host: str, port: int, offered: Sequence[str]) -> list[str]:
    """`offered` (signature algorithms, best first) with the algorithms of known keys first.

    A server presents one key: the first type of the client's list that it has. With another type first than the
    one in known_hosts, a known server would look unknown.
    """
    types: set[str] = set()
    for name in (known_name(host, port), known_name(host, DEFAULT_PORT)):
        types |= {e.type for e in entries if not e.marker and e.matches(name)}
        if types:
            break
    wanted = {a for t in types for a in (_RSA if t == "ssh-rsa" else (t,))}
    return [a for a in offered if a in wanted] + [a for a in offered if a not in wanted]


def fingerprint(key: bytes) -> str:
    """`SHA256:...`, as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _hashed(names: str, name: str) -> bool:
    """`|1|SALT|HASH`: HMAC-SHA1 of the name with the salt as its key (HashKnownHosts of ssh_config)."""
    parts = names.split("|")
    if len(parts) != 4:
        return False
    try:
        salt, want = base64.b64decode(parts[2], validate=True), base64.b64decode(parts[3], validate=True)
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), want)


def _matches(pattern: str, name: str) -> bool:
    # Only * and ? are special: brackets are part of [host]:port.
    wild = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern.lower())
    return re.fullmatch(wild, name) is not None
