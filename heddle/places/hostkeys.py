"""Check a server's host key against OpenSSH's known_hosts files. No key is ever added: the user must verify a new one.

paramiko reads the lines, and hashes names. What its HostKeys leaves out is here: patterns (`*.org,!old.org`), @revoked,
several keys of one type, and port 22 for other ports. Format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
Certificate authorities (@cert-authority) are ignored, because Heddle does not request host certificates.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from paramiko import PKey, SSHException
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

PORT: Final = 22
SYSTEM: Final = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
_RSA: Final = ("rsa-sha2-512", "rsa-sha2-256")  # signatures that prove a key of type ssh-rsa (RFC 8332)


class HostKeyState(Enum):
    """The state of a key according to the files."""

    KNOWN = "known"
    UNKNOWN = "unknown"  # no key of this server is known
    CHANGED = "changed"  # another key of this server is known
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a file. `where` is file and line."""

    where: str
    marker: str
    names: Sequence[str]
    key: PKey

    def matches(self, name: str) -> bool:
        """Whether the line is about this server."""
        no = [each[1:] for each in self.names if each.startswith("!")]
        return any(_match(each, name) for each in self.names) and not any(_match(each, name) for each in no)


def _match(pattern: str, name: str) -> bool:
    if not pattern.startswith("|1|"):
        # Only * and ? are special: brackets are part of [host]:port.
        return fnmatchcase(name, pattern.lower().replace("[", "[[]"))
    try:
        return bool(HostKeys.hash_host(name, pattern) == pattern)
    except (ValueError, IndexError, AssertionError):  # not base64, or not a salt
        return False


def read_known(files: Iterable[Path]) -> list[KnownKey]:
    """The lines of the files that hold a key; other lines and unreadable files are ignored, as in ssh."""
    found = []
    for file in files:
        with suppress(OSError):
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                marker, rest = line.split(None, 1) if line.startswith("@") and " " in line else ("", line)
                with suppress(InvalidHostKey, SSHException, ValueError, binascii.Error):
                    entry = HostKeyEntry.from_line(" ".join(rest.split()[:3]))
                    if entry is not None and entry.key is not None and not rest.startswith("#"):
                        found.append(KnownKey(f"{file}:{number}", marker, entry.hostnames, entry.key))
    return found


def known_name(host: str, port: int) -> str:
    """The server's name in known_hosts: `host`, or `[host]:port` where the port is not 22."""
    return host.lower() if port == PORT else f"[{host.lower()}]:{port}"


def judge(known: Sequence[KnownKey], host: str, port: int, key: PKey) -> tuple[HostKeyState, str]:
    """The state of a key that the server at host and port presented, and the line that decides (or nothing).

    As in OpenSSH, a key for the host at port 22 is valid at another port that has no key of its own.
    """
    for name in (known_name(host, port), known_name(host, PORT)):
        about = [each for each in known if each.matches(name)]
        plain = [each for each in about if not each.marker]
        for each in about:
            if each.marker == "@revoked" and each.key == key:
                return HostKeyState.REVOKED, each.where
        for each in plain:
            if each.key == key:
                return HostKeyState.KNOWN, each.where
        if plain and name == known_name(host, port):
            return HostKeyState.CHANGED, plain[0].where
    return HostKeyState.UNKNOWN, ""


def algorithms(known: Sequence[KnownKey], host: str, port: int, offered: Sequence[str]) -> list[str]:
    """`offered` (signature algorithms, best first) with the algorithms of known keys first.

    A server presents one key: the first type of the client's list that it has. With another type first than the
    one in known_hosts, a known server would look unknown.
    """
    for name in (known_name(host, port), known_name(host, PORT)):
        types = {each.key.get_name() for each in known if not each.marker and each.matches(name)}
        if types:
            wanted = {a for kind in types for a in (_RSA if kind == "ssh-rsa" else (kind,))}
            return sorted(offered, key=lambda algorithm: algorithm not in wanted)
    return list(offered)
