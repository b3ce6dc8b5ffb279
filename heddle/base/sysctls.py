"""Kernel settings by their dotted names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SYSCTLS: Final = Path("/proc/sys")
HASH_SEED: Final = "net.ipv4.fib_multipath_hash_seed"  # of both versions of IP
