"""Propagation delay of a path on hardware: the sum of `link.delay` over its links.

In:  a Fabric whose policy has delays.
Out: nanoseconds on hardware, one way, from host to host. Queueing and serialization are not included.
All equal-cost paths of a Clos have links of the same levels, and so the same sum. In a fabric where they differ, the
longest one counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND


class PathDelays:
    """The delays of one fabric. Those from a leaf are computed on first use."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._from: dict[str, Mapping[str, int]] = {}

    def between(self, src: str, dst: str) -> int:
        """From a host at leaf `src` to a host at leaf `dst`, which may be the same. KeyError if there is no path.

        0 in other networks than the ranks': `link` is not for them.
        """
        policy, leaf = self._fabric.policy, self._fabric.by_name[src]
        if not policy.delays or self._fabric.level_of(leaf).network != BACKEND:
            return 0
        return 2 * policy.delay_ns(0) + self._reached(src)[dst]

    def _reached(self, leaf: str) -> Mapping[str, int]:
        """Switch -> the delay of the shortest paths to it, by number of links."""
        found = self._from.get(leaf)
        if found is None:
            found = self._from[leaf] = _search(self._fabric, leaf)
        return found


def _search(fabric: Fabric, start: str) -> dict[str, int]:
    """Breadth-first search: of all paths with the fewest links, each switch gets the longest delay.

    A path leaves its box once, by a global link of that box: as without faults, a third box is not passed.
    """
    box = fabric.by_name[start].group(fabric.box)
    found = {start: 0}
    edge = [start]
    while edge:
        beyond: dict[str, int] = {}
        for name in edge:
            node = fabric.by_name[name]
            for port in node.ports:
                peer = fabric.by_name[port.peer_node]
                if peer.name in found or fabric.leads_to_host(port):
                    continue
                if fabric.is_global(port) and node.group(fabric.box) != box:
                    continue
                delay = found[name] + fabric.policy.delay_ns(min(node.level, peer.level))
                beyond[peer.name] = max(delay, beyond.get(peer.name, 0))
        found |= beyond
        edge = [*beyond]
    return found
