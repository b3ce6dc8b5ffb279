"""Which binds a node in a namespace can have: it sees this machine's files in its own view, see netns_root.py."""

from __future__ import annotations

import os
from pathlib import Path

from heddle.runtimes.netns_root import DEVICES
from heddle.runtimes.netns_space import PROVIDED, shown


def seen_anyway(source: Path, target: str) -> bool:
    """True for a bind of a file to its own path, where a node sees it without the bind."""
    if target == "/lib/modules":
        return True
    own = shown(source) or target.startswith(("/proc/", "/sys/")) or target.removeprefix("/dev/") in DEVICES
    return str(source) == os.path.normpath(target) and own


def no_view(source: Path, target: str, read_only: str) -> tuple[str, str] | None:
    """Why a namespace cannot see `source` at `target`, and a hint; None when it can.

    read_only: why nodes cannot create a mount point in their view; empty when they can.
    """
    there, engine = Path(target), "use --runtime containerlab"
    if not source.is_file() and not source.is_dir():
        return "is a socket or device of this machine, which nodes do not get", f"leave it out, or {engine}"
    if target.startswith(("/proc/", "/sys/")):
        return "covers a file of the kernel, which a namespace has in common with this machine", engine
    if any(target.startswith(f"{each}/") for each in PROVIDED):
        return None
    if there.exists() and there.is_dir() != source.is_dir():
        kinds = ("directory", "file") if there.is_dir() else ("file", "directory")
        why = f"is not possible: on this machine {target} is a {kinds[0]}, and {source} is a {kinds[1]}"
        return why, f"bind at another path, or {engine}"
    if not there.exists() and read_only:
        why = f"needs {target}, which this machine does not have; nodes cannot create it, since {read_only}"
        return why, f"load the kernel module overlay, use --place vm, or {engine}"
    return None
