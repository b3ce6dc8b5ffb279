"""Where a rendered topology runs. One protocol, two members: namespaces of our own, and containerlab.

In:  a rendered `NAME.clab.yml` (never the fabric), so whatever runs in one runs in the other.
Out: node handles: a network namespace at a path. Queues, BPF, counters, captures and traffic are written once,
against handles, and do not know the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from heddle.base.events import Observer
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.process import Journal
from heddle.kernel.handle import NodeHandle

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.render.dialects import RenderOptions


class Runtime(Protocol):
    """What a runtime can do. Everything is idempotent where its name allows it."""

    name: str
    daemons_here: bool  # whether the switches' daemons are this machine's own FRR

    def exists(self, lab: str) -> bool:
        """True when anything of that lab (a namespace, a container, a process, a file) is on this machine."""

    def name_conflict(self, lab: str) -> Problem | None:
        """What has the lab's name on this machine and is not Heddle's, if anything has."""

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        """See to it that this machine can run it, and choose what rendering leaves open (a free subnet).

        InputError for options that this runtime cannot take, MachineError for what is missing, with the remedy.
        """

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Namespaces, links, sysctls, addresses: everything but daemons. MachineError names the node and line."""

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Binds and start scripts: the daemons run when this returns (they need not have converged)."""

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        """Handles of all nodes of the topology, whether or not they are up."""

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        """Nodes that do not run although their lab is up, a problem each: what somebody did to it by hand."""

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        """Where on this machine a file of a node is (`/run/frr/bgpd.vty`); None when it is not there."""

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        """Note what create and start would run, without running it."""

    def exec(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> int:
        """Run argv in the node with this terminal's streams and return its exit code."""

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        """The argument list that runs argv in the node, without a terminal; MachineError when the node is stopped."""

    def output(self, lab: str, topology: Path, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in the node and return its standard output; MachineError when it fails."""

    def destroy(self, lab: str, observer: Observer) -> int:
        """End every process and remove every namespace and file of that lab; how many objects were removed."""


# Name -> where its class is, so that naming runtimes imports none of them.
RUNTIMES: Final[Mapping[str, str]] = {
    "netns": "heddle.runtimes.netns:NetnsRuntime",
    "containerlab": "heddle.runtimes.containerlab:ContainerlabRuntime",
}


def get_runtime(name: str) -> Runtime:
    """The runtime of that name; InputError when there is none."""
    if name not in RUNTIMES:
        raise InputError(Problem("", f"--runtime {name}", "is no runtime", did_you_mean(name, RUNTIMES)))
    module, _, attribute = RUNTIMES[name].partition(":")
    return cast(Runtime, getattr(import_module(module), attribute)())


def on_machine(lab: str) -> bool:
    """Whether anything of a lab is on this machine, in any runtime and of any user."""
    return any(get_runtime(name).exists(lab) for name in RUNTIMES)
