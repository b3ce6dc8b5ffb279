"""Kernel settings by their dotted names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SYSCTLS: Final = Path("/proc/sys")
WRITABLE: Final = "docker run --security-opt systempaths=unconfined (podman: --security-opt unmask=ALL)"
_ALWAYS_THERE: Final = "net/ipv4/ip_forward"
HASH_SEED: Final = "net.ipv4.fib_multipath_hash_seed"  # of both versions of IP


def sysctl_path(name: str) -> Path:
    """The file of a sysctl, in the network namespace of the calling thread."""
    return SYSCTLS / name.replace(".", "/")


def read_sysctl(name: str) -> str:
    """The value of a sysctl in the network namespace of the calling thread. OSError as for a file.

    A check of a large lab reads thousands: a Path for each would take most of the time.
    """
    file = os.open(f"{SYSCTLS}/{name.replace('.', '/')}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096).decode().strip()
    finally:
        os.close(file)


def sysctls_read_only(root: Path = SYSCTLS) -> bool:
    """Whether sysctls are visible here and cannot be written by anyone: /proc/sys of a container, as a rule."""
    known = root / _ALWAYS_THERE
    return known.exists() and not os.access(known, os.W_OK)


def sysctl_number(text: str) -> int:
    """A sysctl's value as the kernel reads it: 0x1 and 010 are not decimal (proc_get_long, strtoul with base 0).

    ValueError if it is not a number.
    """
    word = text.strip()
    octal = len(word) > 1 and word[0] == "0" and word.isdigit()
    return int(word, 8 if octal else 0)


def is_sysctl_number(text: str) -> bool:
    """Whether the kernel reads a sysctl's value as one number."""
    try:
        sysctl_number(text)
    except ValueError:
        return False
    return True
