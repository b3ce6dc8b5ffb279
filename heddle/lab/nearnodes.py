"""Small readings and commands that need a node's own kernel: done on this machine, or in the node's shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from heddle.base.process import Done, run
from heddle.kernel.netlink import down_ports
from heddle.lab.spread import only, spread, union

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


@spread(only, nodes=lambda node, *_: [node])
def in_network(lab: Lab, node: str, argv: Sequence[str], stdin: str = "") -> Done:
    """Run a program of the node's machine, such as ip or tc, in the node's network. Its exit code is the caller's."""
    return run(["nsenter", f"--net={lab.handle(node).netns}", *argv], stdin=stdin, check=False)


@spread(union, nodes=lambda nodes: nodes)
def down_of(lab: Lab, nodes: Collection[str]) -> dict[str, Mapping[str, bool]]:
    """Node -> its ports without a carrier -> whether they are set down at this end."""
    handles = lab.handles()
    return {name: down_ports(handles[name]) for name in nodes if name in handles}
