"""Where the shards of a lab run: one protocol, implemented with Kubernetes; tests implement it with namespaces.

A shard runs the namespace runtime on its part of a fabric, on a kernel of its own. Everything else in Heddle reaches a
shard by one way: a command that runs in it, with its standard input, output and exit code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from heddle.base.events import Observer
from heddle.base.problems import Problem


@dataclass(frozen=True, slots=True)
class ShardNeed:
    """What a shard needs. memory_bytes: of all its nodes, from measured costs. cpus: may be a part of a processor."""

    name: str  # s1, s2, ...
    nodes: tuple[str, ...]
    memory_bytes: int
    cpus: float


class ShardCommand(Protocol):
    """A command in a shard with pipes to this process: what subprocess.Popen has, and nothing more."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. subprocess.TimeoutExpired after `timeout` seconds."""

    def kill(self) -> None:
        """Give it up."""


class Cluster(Protocol):
    """The shards of labs. Every object that it makes carries its lab's name."""

    name: str
    python: Sequence[str]  # in a shard: the start of a command that runs a module of Heddle, such as `python3 -P -m`

    def create(self, lab: str, shards: Sequence[ShardNeed], observer: Observer) -> None:
        """Start all shards; they accept commands when this returns. MachineError with the shard, its nodes and why not.

        Idempotent: shards that run are left alone, so it also restores lost ones.
        """

    def addresses(self, lab: str) -> Mapping[str, str]:
        """Shard -> its address on the network that joins them. Shards that do not run are absent."""

    def argv(self, lab: str, shard: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        """A command of this machine that runs argv in a shard: standard streams, exit code and signals pass."""

    def open(self, lab: str, shard: str, argv: Sequence[str], errors: IO[bytes]) -> ShardCommand:
        """Start argv in a shard, with pipes. errors: a pipe for its standard error, and for why it could not run."""

    def place(self, lab: str, shard: str) -> str:
        """Where a shard is, to be named in an error: ` on node n2`; may be empty."""

    def lost(self, lab: str) -> list[Problem]:
        """Shards that do not run, with the reason: evicted, out of memory, image missing. One problem each."""

    def exists(self, lab: str) -> bool:
        """True when anything of the lab is there."""

    def remove(self, lab: str, observer: Observer) -> int:
        """Remove everything of the lab, in any state; returns the number of objects."""
