"""Keys of one boot: the guest's host key, and the key with which verbs log in. Nobody else has them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"  # where QEMU forwards the guest's port from; nothing beyond this machine reaches it


@dataclass(frozen=True, slots=True)
class BootKeys:
    """Files of the keys: for the guest, for the user, and the known_hosts that has the guest's."""

    host_key: Path
    authorized: Path
    user_key: Path
    known_hosts: Path


def key_files(directory: Path) -> BootKeys:
    """Where the keys of a guest are; they need not exist."""
    return BootKeys(
        directory / "host_key", directory / "authorized_key", directory / "user_key", directory / "known_hosts"
    )


def make_keys(directory: Path) -> BootKeys:
    """Make both keys in this directory."""
    files = key_files(directory)
    _write(files.authorized, _make(files.user_key) + b" heddle\n")
    _make(files.host_key)
    return files


def know_host(files: BootKeys, port: int) -> None:
    """Write the guest's key to known_hosts, for the port of this boot."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_private_key(files.host_key.read_bytes(), None).public_key()
    public = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(files.known_hosts, b"[%s]:%d %s\n" % (HOST.encode(), port, public))


def _make(path: Path) -> bytes:
    """Make an ed25519 key; its public half, as in authorized_keys."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = serialization.PrivateFormat.OpenSSH
    _write(path, key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _write(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
