"""A node, in the form that all runtimes provide: a name, and the path of a network namespace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeHandle:
    """A node of a running lab."""

    name: str
    netns: Path  # /run/netns/heddle-zone-rtsw1
