"""A node as all rooms above the runtimes see it: a name, and a network namespace at a path."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """A node of a running lab."""

    name: str
    netns: Path  # /run/netns/heddle-zone-rtsw1
