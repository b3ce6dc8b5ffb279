"""A dragonfly: groups of switches with all-to-all local links, joined all-to-all by global links.

Names: sw1.., host1.., counted through all groups. Ports of a switch: local links, then global ones, then hosts.
Global links: port N of a group, counted through its switches, leads to the group N (mod groups - 1) + 1 further on;
ports that are left over when this has no whole turns stay without a link.
Routes are minimal: local, global, local. Each switch has its own AS (RFC 6996). Over a global link it prepends its
number twice, or two global links would be shorter than local, global, local. So no route passes a third group in a
fabric without faults. With links or switches down or drained, one can, where that is as short or the only clean route.
There is no Valiant routing.
Deadlock: minimal paths of one class wait for each other in a ring (local, global, local of each group), so PFC can stop
them for good. Real switches change the class after the global link, which Linux routes do not. So PFC is off here
unless the file sets it (Dally and Towles, chapter 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from heddle.base.families import Network
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Level
from heddle_plugins.shapes.dragonfly_spec import DragonflySpec

_ASN: Final = 4_200_001_000  # + number
_SWITCH: Final = 1
# A path by a third group starts with a global link, and has at least two hops; a minimal one has three at most.
_PREPENDS: Final = 2
# Delays of links as in a Clos (docs/congestion-control.md): 3 m of cable to hosts, 100 m between switches.
_HOST_NS: Final = 500
_SWITCH_NS: Final = 1_000


def build(spec: DragonflySpec) -> Fabric:
    """Add the nodes, then local links, global links and hosts; each link takes the next port number at both ends."""
    levels = (
        Level("host", "hosts", "server", spec.link.host, _HOST_NS),
        Level(
            "sw", "switch", "leaf", spec.link.fabric, _SWITCH_NS, is_edge=True, counts_uplinks=True, boxed=True,
            prepends=_PREPENDS,
        ),
    )  # fmt: skip
    builder = FabricBuilder(spec, levels)
    size, hosts = spec.switches_per_group, spec.hosts
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    prefixes = list(islice(subnets, spec.switches))
    for n, prefix in enumerate(prefixes, 1):
        builder.switch(_SWITCH, n, _ASN + n, (("group", (n - 1) // size + 1),), prefix)
    for n in range(1, spec.switches * hosts + 1):
        builder.host(n, (("group", (n - 1) // (size * hosts) + 1),))
    for first in range(1, spec.switches + 1, size):
        for low in range(first, first + size):
            for high in range(low + 1, first + size):
                builder.join(f"sw{low}", f"sw{high}")
    for low, high in _global_links(spec):
        builder.join(f"sw{low}", f"sw{high}")
    for n in range(1, spec.switches * hosts + 1):
        switch, place = (n - 1) // hosts + 1, (n - 1) % hosts
        base = int(prefixes[switch - 1].network_address) + 2 * place * spec.nics_per_host
        for nic in range(base, base + 2 * spec.nics_per_host, 2):
            builder.join(f"host{n}", f"sw{switch}", spec.ip.ends(nic))
    return builder.fabric(
        box="group", area="group", sizes=("groups", "switches_per_group", "hosts_per_switch", "nics_per_host")
    )


def _global_links(spec: DragonflySpec) -> Iterator[tuple[int, int]]:
    """The numbers of both switches of each global link."""
    size, others = spec.switches_per_group, spec.groups - 1
    for group in range(spec.groups):
        for port in range(size * spec.wide // others * others):
            turn, offset = divmod(port, others)
            peer = (group + offset + 1) % spec.groups
            back = turn * others + others - 1 - offset
            if group < peer:
                yield group * size + port // spec.wide + 1, peer * size + back // spec.wide + 1
