"""The handle of a running lab: its fabric, its runtime, its directory, and its Blueprint.

A Blueprint describes the expected state of a lab. It is made from a fabric file (opening.py) or from a user-supplied
containerlab topology (imported/). `up`, `status` and `validate` use only the Blueprint, not the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from heddle.base.events import Observer, Silent
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Node
from heddle.kernel.namespace import NodeHandle
from heddle.lab.daemons import Daemons, MissingSession, SessionEnd, missing_of
from heddle.lab.snapshot import LabPart, Snapshot, merged, take
from heddle.lab.spread import nothing, spread
from heddle.runtimes.registry import Runtime

if TYPE_CHECKING:
    from heddle.base.state import Record
    from heddle.render.dialects import RenderOptions

Difference = tuple[str, Any, Any]  # key, value in the running lab, requested value


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a topology's own configuration gives a sysctl. source: the text that sets it.

    certain: False for a command, which may be in a branch that is not executed.
    """

    value: str
    source: str
    certain: bool


@dataclass(frozen=True)
class Blueprint(ABC):
    """The expected state of a lab, and how to write its topology.

    rendered: True for a fabric file: Heddle writes the whole topology, so every route can be predicted.
    """

    fabric: Fabric
    rendered: ClassVar[bool] = False

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user before the lab is created, a sentence each."""
        return ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the lab reaches this machine beyond its nodes, a line each, for the user before it is created."""
        return ()

    def kernel_faults(self) -> tuple[list[Problem], list[str]]:
        """What nodes need and this machine's kernel does not have, before the lab is created: problems and warnings."""
        return [], []

    @abstractmethod
    def write(self, out: Path, options: RenderOptions) -> Path:
        """Write the topology and the files that it binds into `out`; returns the topology's path."""

    def spec_data(self) -> Mapping[str, Any]:
        """The fabric file as stored in the lab's record; empty where there is none."""
        return {}

    def recorded(self) -> Mapping[str, Any]:
        """Further data for the record, from which `reopened` restores this object."""
        return {}

    @abstractmethod
    def differences(self, record: Record) -> list[Difference]:
        """Differences between the running lab of that name and this one."""

    def own_hashing(self) -> Mapping[str, Mapping[str, str]]:
        """Switch -> hashing sysctls that its topology sets itself, with their values."""
        return {}

    def own_sysctls(self) -> Mapping[str, Mapping[str, Sequence[Setting]]]:
        """Node -> sysctls that its own configuration sets, each with its possible settings."""
        return {}

    @abstractmethod
    def sysctls(self, topology: Path) -> Mapping[str, Mapping[str, str]]:
        """Node -> sysctls set at start, without those of hashing. topology: the one that runs."""

    def completed(self, handles: Mapping[str, NodeHandle]) -> Blueprint:
        """This blueprint, completed with data that only running nodes provide."""
        return self

    def refreshed(self, handles: Mapping[str, NodeHandle]) -> Blueprint:
        """This blueprint, with what users may have changed in running nodes."""
        return self

    @abstractmethod
    def daemons(self, switch: str) -> tuple[str, ...]:
        """The daemons that must answer on a switch."""

    @property
    def asked(self) -> type[Daemons]:
        """What is asked for the state of daemons."""
        return Daemons

    @property
    @abstractmethod
    def timeout(self) -> float:
        """Seconds for which a user waits for convergence who does not say how long."""

    @abstractmethod
    def wait(self, lab: Lab, observer: Observer, timeout: float) -> None:
        """Return when the lab has converged; CheckError with what is missing after `timeout` seconds."""

    @property
    @abstractmethod
    def gap_parts(self) -> LabPart:
        """The parts of a snapshot that `gaps` needs."""

    @abstractmethod
    def gaps(self, now: Snapshot) -> list[Problem]:
        """Routes that are missing in kernels."""

    @abstractmethod
    def routes_checked(self) -> str:
        """What `gaps` checks, for the report when no route is missing; empty where no route is expected."""

    def routing(self, now: Snapshot) -> bool:
        """Whether a routing program runs with a configuration on any node. Part: SESSIONS."""
        return bool(self.fabric.switches)

    @abstractmethod
    def session_pairs(self, now: Snapshot) -> list[tuple[SessionEnd, SessionEnd]]:
        """Both ends of each BGP session that is expected. Part: SESSIONS."""

    def missing_sessions(self, now: Snapshot) -> list[MissingSession]:
        """Sessions that are not established at both ends, without causes. Part: SESSIONS."""
        return missing_of(self.session_pairs(now))

    def sessions(self, now: Snapshot) -> tuple[int, int]:
        """BGP sessions established, and expected. Part: SESSIONS."""
        pairs = self.session_pairs(now)
        return len(pairs) - len(missing_of(pairs)), len(pairs)


@dataclass(frozen=True, slots=True)
class Lab:
    """A running fabric."""

    name: str
    fabric: Fabric
    runtime: Runtime
    dir: Path  # the lab's state directory, which `down` removes
    topology: Path  # the rendered NAME.clab.yml, or the copy of a user-supplied topology
    blueprint: Blueprint  # the expected state

    def handles(self) -> Mapping[str, NodeHandle]:
        """Every node's handle, by name."""
        return self.runtime.nodes(self.name, self.topology)

    def handle(self, node: str) -> NodeHandle:
        """One node's handle; InputError when the lab has no such node."""
        handles = self.handles()
        if node not in handles:
            raise InputError(Problem("", node, f"is not a node of {self.name}", did_you_mean(node, handles)))
        return handles[node]

    def missing_nodes(self) -> list[Problem]:
        """Nodes that are not running although the lab is up, one problem per node."""
        return self.runtime.missing_nodes(self.name, self.topology)

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run argv in a node with this terminal's streams; returns its exit code."""
        return self.runtime.exec(self.name, self.topology, self.handle(node).name, argv)

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """The argument list that runs argv in a node, without a terminal. MachineError when the node is stopped."""
        return self.runtime.command(self.name, self.topology, self.handle(node).name, argv)

    def output(self, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in a node and return its output; MachineError when it fails. timeout: seconds."""
        return self.runtime.output(self.name, self.topology, self.handle(node).name, argv, timeout)

    @property
    def daemons(self) -> Daemons:
        """The FRR daemons of its switches."""
        return self.blueprint.asked(self.fabric, self.runtime, self.topology, self.blueprint.daemons)

    def require_here(self, why: str, hint: str) -> None:
        """InputError for a lab in shards. why: what needs its nodes on this machine: `launch runs programs of ...`."""
        if not self.runtime.here:
            raise InputError(Problem("", f"lab {self.name}", f"is in shards ({self.runtime.name}), and {why}", hint))

    @property
    def own_nodes(self) -> Sequence[Node]:
        """The nodes that have a handle: all of the fabric, or those of a shard."""
        handles = self.handles()
        return [node for node in self.fabric.nodes if node.name in handles]

    @spread(merged, nodes=lambda _, nodes=None, **__: nodes)
    def snapshot(self, parts: LabPart, nodes: Collection[str] | None = None, *, keep_errors: bool = False) -> Snapshot:
        """Read these parts of the lab once. nodes: all by default.

        HeddleError when a part cannot be read. keep_errors: raise it when the part is used, not now.
        """
        handles = self.handles()
        here = handles.keys() if nodes is None else handles.keys() & set(nodes)
        return take(self.fabric, handles, parts, self.daemons, nodes=here, keep_errors=keep_errors)

    def wait(self, observer: Observer | None = None, timeout: float | None = None) -> None:
        """Wait until every route is in every kernel; CheckError with what is missing after `timeout` seconds.

        timeout: the blueprint's by default.
        """
        wait(self, observer or Silent(), self.blueprint.timeout if timeout is None else timeout)


@spread(nothing, waits=lambda _, timeout: timeout)
def wait(lab: Lab, observer: Observer, timeout: float) -> None:
    """Lab.wait."""
    lab.blueprint.wait(lab, observer, timeout)
