"""A fabric's topology in the words of schedulers: switches and their hosts as a tree.

In:  Fabric. Out: the text of a file. One function for each format, one line in EXPORTS.
A tree has one parent for each switch, and a fabric has several. So the tree has the edge switches, the areas above
them, and one root: hosts below one node of the tree are near each other. Hosts whose NICs are on several edge switches
are below their box, as pods in `rail`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from heddle.fabric.model import Fabric, Node

_ROOT: Final = "fabric"
_TIER: Final = "fabric.topograph.run/tier-{}"  # Topograph, pkg/topology; tier 0 is next to the node


@dataclass(frozen=True, slots=True)
class Branch:
    """A node of the tree: hosts, or branches below it."""

    name: str
    hosts: tuple[str, ...] = ()
    below: tuple[Branch, ...] = ()

    def every(self) -> Iterator[Branch]:
        """All nodes, those next to hosts first."""
        for each in self.below:
            yield from each.every()
        yield self


def tree(fabric: Fabric) -> Branch:
    """The whole fabric."""
    leaves: dict[tuple[int, str], list[str]] = {}
    for host in fabric.hosts:
        if edges := {port.peer_node for port in fabric.nics_of[host.name]}:
            leaves.setdefault((_area(fabric, host), _leaf(fabric, host, sorted(edges))), []).append(host.name)
    areas: dict[int, list[Branch]] = {}
    for (area, name), hosts in leaves.items():
        areas.setdefault(area, []).append(Branch(name, tuple(hosts)))
    if len(areas) == 1:
        return Branch(_ROOT, below=tuple(next(iter(areas.values()))))
    return Branch(_ROOT, below=tuple(Branch(f"{fabric.area}{n}", below=tuple(each)) for n, each in areas.items()))


def _area(fabric: Fabric, host: Node) -> int:
    return (host.group(fabric.area) or 0) if fabric.area != fabric.box else 0


def _leaf(fabric: Fabric, host: Node, edges: Sequence[str]) -> str:
    return edges[0] if len(edges) == 1 else f"{fabric.box or 'group'}{host.group(fabric.box) or 1}"


def hostlist(names: Sequence[str]) -> str:
    """`host[1-4,7],gpu1`: Slurm's list of names that end in numbers."""
    found = []
    parts = [re.fullmatch(r"(.*?)([1-9][0-9]{0,8}|0)?", name) for name in names]
    pairs = [(part[1], part[2]) for part in parts if part]
    for prefix, group in groupby(pairs, key=lambda pair: pair[0]):
        texts = [text for _, text in group]
        numbers = [int(text) for text in texts if text]
        found += [prefix] * (len(texts) - len(numbers))
        runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), lambda each: each[1] - each[0])]
        words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
        if len(numbers) == 1:
            found.append(f"{prefix}{words[0]}")
        elif numbers:
            found.append(f"{prefix}[{','.join(words)}]")
    return ",".join(found)


def _slurm(fabric: Fabric) -> Iterator[str]:
    """topology.conf of topology/tree (Slurm, topology.conf(5))."""
    yield f"# topology.conf of fabric {fabric.name}, for TopologyPlugin=topology/tree"
    for each in tree(fabric).every():
        below = f"Switches={hostlist([b.name for b in each.below])}"
        yield f"SwitchName={each.name} {below if each.below else f'Nodes={hostlist(each.hosts)}'}"


def _slurm_yaml(fabric: Fabric) -> Iterator[str]:
    """topology.yaml (Slurm 25.05 or newer, topology.yaml(5))."""
    yield from ("---", f"- topology: {_quoted(fabric.name)}", "  cluster_default: true", "  tree:", "    switches:")
    for each in tree(fabric).every():
        yield f"      - switch: {_quoted(each.name)}"
        key, names = ("children", [b.name for b in each.below]) if each.below else ("nodes", each.hosts)
        yield f"        {key}: {_quoted(hostlist(names))}"


def _quoted(name: str) -> str:
    """A string for YAML, also where the name alone would be a number, a truth value or null."""
    return json.dumps(name)


def _topograph(fabric: Fabric) -> Iterator[str]:
    """Node objects of Kubernetes with the labels of NVIDIA Topograph."""
    for host, above in _paths(tree(fabric), ()):
        yield from ("---", "apiVersion: v1", "kind: Node", "metadata:", f"  name: {_quoted(host)}", "  labels:")
        yield from (f"    {_TIER.format(tier)}: {_quoted(name)}" for tier, name in enumerate(above))


def _paths(branch: Branch, above: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each host, and the nodes of the tree above it, the nearest first."""
    here = (branch.name, *above)
    yield from ((host, here) for host in branch.hosts)
    for each in branch.below:
        yield from _paths(each, here)


EXPORTS: Final[Mapping[str, Callable[[Fabric], Iterator[str]]]] = {
    "slurm": _slurm,
    "slurm-yaml": _slurm_yaml,
    "topograph": _topograph,
}
