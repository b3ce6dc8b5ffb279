"""Keys of one boot: the guest's host key, and the key with which verbs log in. No other program has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.places.vm.hardware import HOST

if TYPE_CHECKING:
    import paramiko


@dataclass(frozen=True, slots=True)
class BootKeys:
    """Files of the keys: for the guest, for the user, and the known_hosts with the guest's key."""

    host_key: Path
    authorized: Path
    user_key: Path
    known_hosts: Path


def key_files(directory: Path) -> BootKeys:
    """The files of a guest's keys; they need not exist."""
    return BootKeys(*(directory / name for name in ("host_key", "authorized_key", "user_key", "known_hosts")))


def make_keys(directory: Path) -> BootKeys:
    """Make both keys in this directory."""
    files = key_files(directory)
    _write(files.authorized, f"{_public(_make(files.user_key))} heddle\n")
    _make(files.host_key)
    return files


def know_host(files: BootKeys, port: int) -> None:
    """Write the guest's key to known_hosts, for the port of this boot."""
    import paramiko

    key = paramiko.ECDSAKey.from_private_key_file(str(files.host_key))
    _write(files.known_hosts, f"[{HOST}]:{port} {_public(key)}\n")


def _make(path: Path) -> paramiko.PKey:
    import io

    import paramiko

    # Curve P-256: paramiko makes no ed25519 keys.
    key, text = paramiko.ECDSAKey.generate(bits=256), io.StringIO()
    key.write_private_key(text)
    _write(path, text.getvalue())
    return key


def _public(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.get_base64()}"


def _write(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(content)
