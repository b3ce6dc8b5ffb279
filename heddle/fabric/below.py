"""The links above some NICs: those over which the ranks there can send or receive.

In:  a fabric, and the ports of hosts that carry ranks.
Out: the ports of all links above them, both ends.
"""

from __future__ import annotations

from collections.abc import Collection

from heddle.fabric.wiring import Wiring


def ports_above(fabric: Wiring, nics: Collection[str]) -> frozenset[str]:
    """Both ends of every link whose lower end is one of these NICs, or a switch above one of them.

    nics: ports of hosts, `host1:eth1`. A switch is above a NIC when links lead down from it to that NIC, level by
    level. A link within one level has its lower end at `a`, and leads no higher.
    """
    found: set[str] = set()
    nodes: set[str] = set()  # switches above the NICs
    level = {node.name: node.level for node in fabric.nodes}
    for link in sorted(fabric.links, key=lambda each: level[each.a[0]]):
        low = ":".join(link.a)
        if low in nics if level[link.a[0]] == 0 else link.a[0] in nodes:
            found |= {low, ":".join(link.b)}
            if level[link.b[0]] > level[link.a[0]]:
                nodes.add(link.b[0])
    return frozenset(found)
