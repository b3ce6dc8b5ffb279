"""Ports that can wait for each other in a ring, so that PFC stops their packets.

In:  a Fabric, without faults. Out: the ports of a ring, in order; empty where there is none.
A packet in a lossless class keeps its place in a switch until the next port is free. So a port waits for the next ports
of the paths that use it. Without a ring of such waits there is no deadlock (Dally and Seitz, IEEE Transactions on
Computers C-36(5), 1987). Paths that climb and then descend have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from heddle.base.tables import some_of

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric


def deadlock_warning(fabric: Fabric) -> tuple[str, ...]:
    """A sentence if a class that PFC pauses can be stopped for good."""
    ring = waiting_ring(fabric) if fabric.policy.queues.paused else ()
    watchdog = fabric.policy.queues.pfc.watchdog
    how = f"until the watchdog {watchdog.action}s them" if watchdog.enabled else "for good"
    why = f"PFC can stop packets {how}: {some_of(ring)} can wait for each other in a ring"
    return (f"{why}; use queues.pfc.enabled: false",) if ring else ()


def waiting_ring(fabric: Fabric) -> tuple[str, ...]:
    """The ports of a ring, each waiting for the next, the last for the first."""
    if not fabric.sideways:
        return ()
    bits = {f"{name}:{port}": 0 for name, groups in fabric.next_hop_groups.items() for g in groups for port in g.ports}
    for name, groups in fabric.next_hop_groups.items():
        for group in groups:
            for port in group.ports:
                bits[f"{name}:{port}"] |= group.edges

    def after(ref: str) -> Iterator[str]:
        node, _, name = ref.partition(":")
        peer = fabric.by_name[node].port(name).peer_node
        for group in fabric.next_hop_groups[peer]:
            if group.edges & bits[ref]:
                yield from (f"{peer}:{port}" for port in group.ports)

    done: set[str] = set()
    for start in bits:
        path, nexts = [start], [after(start)]
        while path:
            there = next((each for each in nexts[-1] if each not in done), None)
            if there is None:
                done.add(path.pop())
                nexts.pop()
            elif there in path:
                return tuple(path[path.index(there) :])
            else:
                path.append(there)
                nexts.append(after(there))
    return ()
