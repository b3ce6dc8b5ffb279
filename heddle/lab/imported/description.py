"""A user-supplied containerlab file as plain values: every node with all inherited values, and every link.

The reader (reader.py) creates them. They do not depend on YAML, nor on this machine, except for paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from heddle.lab.imported import frr


@dataclass(frozen=True, slots=True)
class BindDescription:
    """A file or directory for a node. source: absolute, or relative to a directory that containerlab creates."""

    source: Path
    target: str
    mode: str = ""

    @property
    def text(self) -> str:
        """The bind in containerlab's notation."""
        return ":".join(word for word in (str(self.source), self.target, self.mode) if word)


@dataclass(frozen=True)
class NodeDescription:
    """A node of kind linux. passed: keys that only a container engine uses, unchanged from the file."""

    name: str
    where: str  # lab.clab.yml:12
    binds: tuple[BindDescription, ...] = ()
    exec: tuple[str, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    image: str = ""
    command: str = ""  # entrypoint and cmd: the command of the container
    isolated: bool = False  # network-mode: none
    passed: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def sources(self) -> Mapping[str, Path]:
        """Target of each bind -> its source."""
        return {bind.target: bind.source for bind in self.binds}

    @cached_property
    def frr(self) -> bool:
        """True when FRR runs in the node, which makes it a switch."""
        below = any(t == frr.FRR_DIR or t.startswith(f"{frr.FRR_DIR}/") for t in self.sources)
        return below or any(frr.is_service(line) for line in (*self.exec, self.command))

    @cached_property
    def starts_itself(self) -> bool:
        """True when a command of the file starts the daemons."""
        return any(frr.starts_itself(line, self.sources) for line in self.exec)

    def text(self, name: str) -> str | None:
        """The text of a file below /etc/frr, or None when the topology binds none that can be read."""
        path = frr.bound_file(self.sources, name)
        try:
            return None if path is None else path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class EndDescription:
    """One end of a link. mac: empty if Heddle chooses it."""

    node: str
    interface: str
    mac: str = ""


@dataclass(frozen=True, slots=True)
class LinkDescription:
    """A link between two nodes. mtu in bytes; rate_bps None where the file names no rate."""

    ends: tuple[EndDescription, EndDescription]
    mtu: int
    rate_bps: int | None = None


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """A whole file. notes: what Heddle changes or leaves out, a sentence each."""

    name: str
    path: Path
    nodes: Mapping[str, NodeDescription]
    links: tuple[LinkDescription, ...]
    notes: tuple[str, ...] = ()
