"""Which process a pid means: pids are used again, with another start."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_START_FIELD: Final = 19  # starttime of proc(5), counted behind the command's closing parenthesis


def start_of(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when there is no such process, or it has ended."""
    try:
        fields = (
            Path("/proc", str(pid), "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[_START_FIELD])
