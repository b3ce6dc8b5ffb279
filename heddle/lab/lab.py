"""A running lab as every room above takes it: its fabric, its runtime, its directory, and what it was made from.

Blueprint says what a lab should be: made from a fabric file (rendered.py) or from a user-supplied containerlab topology
(imported/). `up`, `status` and `validate` ask the blueprint, and know of no file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from heddle.base.events import Observer, Silent
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.fabric.model import Fabric
from heddle.kernel.handle import NodeHandle
from heddle.lab import daemons as bgp
from heddle.lab.sessions import MissingSession
from heddle.lab.snapshot import DaemonQuestions, LabPart, Snapshot, take
from heddle.runtimes.registry import Runtime

if TYPE_CHECKING:
    from heddle.base.state import Record
    from heddle.render.dialects import RenderOptions

Difference = tuple[str, Any, Any]  # what, as it runs, as it was asked for


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that a topology's own configuration gives a sysctl. source: the words there that do it.

    certain: False for a command, which may be in a branch that does not run.
    """

    value: str
    source: str
    certain: bool


class Blueprint(Protocol):
    """What a lab is made from."""

    @property
    def fabric(self) -> Fabric:
        """All that is above the runtime takes."""

    @property
    def rendered(self) -> bool:
        """True when Heddle has written all of it, so that everything about it is known beforehand."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know before it is made, a sentence each."""

    def write(self, out: Path, options: RenderOptions) -> Path:
        """Write the topology and what it binds into `out`; the topology's path."""

    def spec_data(self) -> Mapping[str, Any]:
        """The fabric file as the lab's record keeps it; empty where there is none."""

    def recorded(self) -> Mapping[str, Any]:
        """What the record keeps beside that, so that `reopened` has the same again."""

    def differences(self, record: Record) -> list[Difference]:
        """How a running lab of that name differs from this one."""

    def kept(self) -> Mapping[str, Mapping[str, str]]:
        """Switch -> sysctls of hashing that its topology sets in its own way, with their values."""

    def decided(self) -> Mapping[str, Mapping[str, Sequence[Setting]]]:
        """Node -> sysctls that its own configuration sets, each with its settings: one of them is right."""

    def sysctls(self, lab: Lab) -> Mapping[str, Mapping[str, str]]:
        """Node -> sysctls that it was given, those of hashing aside."""

    def settled(self, lab: Lab) -> Blueprint:
        """The same, with what can be known only when nodes run."""

    def daemons(self, switch: str) -> tuple[str, ...]:
        """The daemons that have to answer on a switch."""

    def wait(self, lab: Lab, observer: Observer, timeout: float | None) -> None:
        """Return when the lab has converged; CheckError with what is missing after `timeout` seconds."""

    def peers(self, lab: Lab, switch: str) -> Mapping[str, str] | None:
        """Port or peer -> state of a switch's BGP session, asked now; None when its bgpd does not answer."""

    @property
    def gap_parts(self) -> LabPart:
        """The parts of a snapshot that `gaps` goes by."""

    def gaps(self, now: Snapshot) -> list[str]:
        """Routes that the kernels should have and do not have, in lines."""

    def routes_checked(self) -> str:
        """What `gaps` looks for, when nothing lacks; empty where nothing is known that should be there."""

    def sessions(self, now: Snapshot) -> tuple[int, int]:
        """BGP sessions established, and expected. Part: SESSIONS."""

    def session_faults(self, now: Snapshot) -> list[str]:
        """Ends of sessions that are not established, in lines. Part: SESSIONS."""

    def missing_sessions(self, now: Snapshot) -> list[MissingSession]:
        """Sessions that are not established at both ends, without their causes. Part: SESSIONS."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A running fabric."""

    name: str
    fabric: Fabric
    runtime: Runtime
    dir: Path  # the lab's state directory; what is written there goes with the lab
    topology: Path  # the rendered NAME.clab.yml, or a copy of somebody's own
    made: Blueprint  # what it was made from, and so what it should be

    def handles(self) -> Mapping[str, NodeHandle]:
        """Every node's handle, by name."""
        return self.runtime.nodes(self.name, self.topology)

    def handle(self, node: str) -> NodeHandle:
        """One node's handle; InputError when the lab has no such node."""
        handles = self.handles()
        if node not in handles:
            raise InputError(Problem("", node, f"is no node of {self.name}", did_you_mean(node, handles)))
        return handles[node]

    def exec(self, node: str, argv: Sequence[str]) -> int:
        """Run argv in a node with this terminal's streams; its exit code."""
        return self.runtime.exec(self.name, self.topology, self.handle(node).name, argv)

    def command(self, node: str, argv: Sequence[str]) -> list[str]:
        """The argument list that runs argv in a node, without a terminal. MachineError when the node is stopped."""
        return self.runtime.command(self.name, self.topology, self.handle(node).name, argv)

    def output(self, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in a node and return what it prints; MachineError when it fails. timeout: seconds."""
        return self.runtime.output(self.name, self.topology, self.handle(node).name, argv, timeout)

    def neighbours(self, switch: str) -> Mapping[str, str] | None:
        """Port -> BGP state of a switch; None when its bgpd does not answer."""
        return bgp.neighbours(self.runtime, self.name, self.topology, switch, self.fabric.policy.ip_version)

    def bgp_peers(self, switch: str) -> Mapping[str, bgp.BgpPeer] | None:
        """Peer (port or address) -> what a switch's bgpd reports of it; None when it does not answer."""
        return bgp.bgp_peers(self.runtime, self.name, self.topology, switch)

    def snapshot(self, parts: LabPart, nodes: Collection[str] | None = None, *, keep_errors: bool = False) -> Snapshot:
        """Read these parts of the lab once, in bulk. nodes: of which nodes, all by default.

        HeddleError when a part cannot be read. keep_errors: raise it when the part is used, not now.
        """
        where = self.runtime, self.name, self.topology
        questions = DaemonQuestions(
            sessions=lambda switch: self.made.peers(self, switch),
            drained=lambda switch: bgp.drained(*where, self.fabric.by_name[switch], self.fabric.policy.ip),
            silent=lambda switch: tuple(bgp.silent(*where, switch, self.made.daemons(switch))),
        )
        return take(self.fabric, self.handles(), parts, questions, nodes=nodes, keep_errors=keep_errors)

    def wait(self, observer: Observer | None = None, timeout: float | None = None) -> None:
        """Wait until every route is in every kernel; CheckError with what is missing after `timeout` seconds."""
        self.made.wait(self, observer or Silent(), timeout)
