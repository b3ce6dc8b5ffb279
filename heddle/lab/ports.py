"""Ports of a running lab by their names, and programs that run in the network of a node.

In:  a Lab or its fabric; names (`rtsw1:eth3`, `rtsw1` for all its ports) and patterns. Out: ports, and what `ip` did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.base.process import Done, run
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Port
from heddle.kernel.netlink import down_ports
from heddle.lab.spread import only, spread, union

if TYPE_CHECKING:
    from heddle.lab.lab import Lab


def ports_of(fabric: Fabric, refs: Sequence[str]) -> list[Port]:
    """The ports that names or patterns select; InputError for one that selects none. A node is all of its ports."""
    every = [port for node in fabric.nodes for port in node.ports]
    typed = [each.strip() for ref in refs for each in ref.split(",") if each.strip()]
    patterns = [each if ":" in each else f"{each}:*" for each in typed]
    names = [port.ref for port in every]
    problems = [
        Problem("", word, f"is not a port of {fabric.name}", nearest_port(word, fabric))
        for word, pattern in zip(typed, patterns, strict=True)
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise InputError(*problems)
    return [port for port in every if any(fnmatchcase(port.ref, pattern) for pattern in patterns)]


def nearest_port(word: str, fabric: Fabric) -> str:
    """A hint for a word that is no port: the nearest node, or the ports of the node."""
    node = fabric.by_name.get(word.partition(":")[0])
    if node is None:
        return did_you_mean(word.partition(":")[0], fabric.by_name)
    names = [port.name for port in node.ports]
    return f"{node.name} has {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def ends_of(fabric: Fabric, ref: str) -> set[str]:
    """The ports at both ends of a port's link; a node alone."""
    node, colon, name = ref.partition(":")
    return {ref, fabric.by_name[node].port(name).peer_ref} if colon else {ref}


def switch_end(fabric: Fabric, ref: str) -> str:
    """The end of a port's link at which it goes down: a switch's, since a host loses its routes with its port."""
    node, _, name = ref.partition(":")
    return fabric.by_name[node].port(name).peer_ref if fabric.by_name[node].role is Role.HOST else ref


def by_node(refs: Sequence[str]) -> Mapping[str, list[str]]:
    """Node -> the names of its ports."""
    found: dict[str, list[str]] = {}
    for ref in refs:
        node, _, name = ref.partition(":")
        found.setdefault(node, []).append(name)
    return found


@spread(only, nodes=lambda node, *_: [node])
def in_network(lab: Lab, node: str, argv: Sequence[str], stdin: str = "") -> Done:
    """Run a program of the node's machine, such as ip or tc, in the node's network. Its exit code is the caller's."""
    return run(["nsenter", f"--net={lab.handle(node).netns}", *argv], stdin=stdin, check=False)


@spread(union, nodes=lambda nodes: nodes)
def down_of(lab: Lab, nodes: Collection[str]) -> dict[str, Mapping[str, bool]]:
    """Node -> its ports without a carrier -> whether they are set down at this end."""
    handles = lab.handles()
    return {name: down_ports(handles[name]) for name in nodes if name in handles}


def down_among(lab: Lab, refs: Sequence[str]) -> set[str]:
    """Those of these ports that have no carrier and are set down at their own end."""
    down = down_of(lab, [*by_node(refs)])
    return {ref for ref in refs for node, _, name in [ref.partition(":")] if down[node].get(name)}


def set_links(lab: Lab, refs: Sequence[str], word: str) -> None:
    """Set ports down or up at their own ends, without a record. MachineError when ip fails."""
    for node, names in by_node(refs).items():
        lines = "".join(f"link set dev {name} {word}\n" for name in names)
        done = in_network(lab, node, ["ip", "-batch", "-"], lines)
        if done.code != 0:
            raise MachineError(Problem(node, f"ports {word}", f"failed: {done.err.strip()}"))
