"""The runtimes of a rendered topology: one protocol, implemented with plain namespaces, with containerlab, and by
plugins.

In:  a rendered `NAME.clab.yml` (never the fabric), so a topology that runs in one runs in the other.
Out: node handles: a network namespace at a path. Queues, BPF, counters, captures and traffic use handles only and do
not depend on the runtime.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from heddle.base.events import Observer
from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.process import Journal, attached, run
from heddle.kernel.namespace import NodeHandle

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.render.dialects import RenderOptions
    from heddle.runtimes.shardcalls import Shards


class Runtime(Protocol):
    """The operations of a runtime. They are idempotent where possible."""

    name: str
    daemons_here: bool  # whether the switches run this machine's FRR
    here: bool  # whether the nodes are on this machine; else in shards

    def shards(self, lab: str) -> Shards | None:
        """The shards of a lab; None when its nodes are on this machine."""
        return None

    def exists(self, lab: str) -> bool:
        """True when this machine has any object of that lab (a namespace, a container, a process, a file)."""

    def name_conflict(self, lab: str) -> Problem | None:
        """The problem of an object on this machine with the lab's name that is not Heddle's; None if there is none."""
        return None

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        """Check that this machine can run the fabric, and choose options that rendering needs (a free subnet).

        InputError for options that this runtime does not support; MachineError for missing parts, with a hint.
        """

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Make namespaces, links, sysctls, addresses: everything except daemons. MachineError names node and line."""

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Run the start scripts: the daemons are running when this returns (they need not have converged)."""

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        """Handles of all nodes of the topology, whether or not they are up."""

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        """Nodes that are not running although their lab is up, one problem per node."""

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        """The path of a node's file (`/run/frr/bgpd.vty`) on this machine; None if it does not exist."""

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        """Record the commands of create and start, without running them."""

    def exec(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> int:
        """Run argv in the node with this terminal's streams and return its exit code, 128 + n after signal n."""
        return attached(self.command(lab, topology, node, argv))

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        """The argument list that runs argv in the node, without a terminal; MachineError when the node is stopped."""

    def output(self, lab: str, topology: Path, node: str, argv: Sequence[str], timeout: float = 20.0) -> str:
        """Run argv in the node and return its standard output; MachineError when it fails. timeout: seconds."""
        words = self.command(lab, topology, node, argv)
        return run(words, timeout=timeout, called=f"{node}: {shlex.join(argv)}").out

    def destroy(self, lab: str, observer: Observer) -> int:
        """End every process and remove every namespace and file of that lab. Returns the number of objects."""


def _fits(name: str, found: Any) -> str:
    """What is wrong with the class that a plugin registers; empty if nothing."""
    wrong = having(*Runtime.__annotations__, *(each for each in vars(Runtime) if not each.startswith("_")))(name, found)
    return wrong or ("" if found.name == name else f"its name is {found.name}")


# Name -> what makes one, so that listing the runtimes imports none of them.
RUNTIMES: Final[Registry[Callable[..., Runtime]]] = Registry(
    "runtime",
    {
        "netns": lambda: cast(Runtime, resolve_name("heddle.runtimes.netns:NetnsRuntime")()),
        "containerlab": lambda: cast(Runtime, resolve_name("heddle.runtimes.containerlab:ContainerlabRuntime")()),
    },
    _fits,
)
HERE: Final = ("netns", "containerlab")  # those whose nodes are on this machine


def get_runtime(name: str, place: Mapping[str, str] | None = None) -> Runtime:
    """The runtime of that name; InputError when there is none. place: of a runtime with shards, see ShardedRuntime."""
    if name not in RUNTIMES:
        raise InputError(Problem("", f"--runtime {name}", "is not a runtime", did_you_mean(name, RUNTIMES)))
    return RUNTIMES[name](*[place] * (place is not None))


def all_runtimes() -> list[Runtime]:
    """Every runtime that can be used."""
    return [get_runtime(name) for name in RUNTIMES.usable()]


def on_machine(lab: str) -> bool:
    """Whether anything of a lab is on this machine, in any runtime and of any user."""
    return any(each.exists(lab) for each in all_runtimes())
