"""A k-ary fat tree: k pods, each with k/2 edge and k/2 aggregation switches, and (k/2)² cores.

Names: edge1.., agg1.., core1.., host1.., each counted pod by pod; cores are counted group by group.
Ports: an edge switch's eth1.. are its uplinks to its pod's aggregation switches, the next ones its downlinks, host by
host and NIC by NIC; an aggregation switch's eth1.. lead to its pod's edge switches, the next ones to its group of
cores, which is the i-th for the i-th aggregation switch of a pod; a core's ethN leads to pod N.
AS numbers follow RFC 7938, section 5.2 (RFC 6996: the private range): one for all cores, one for each pod's aggregation
switches, one for each edge switch. So a route never climbs twice: an aggregation switch without its link to an edge
switch refuses the route that another edge switch of its pod offers, since that has the pod's AS in its path.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from heddle.base.families import Network
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Level
from heddle_plugins.shapes.fattree_spec import FatTreeSpec

_ASN_AGG: Final = 4_200_000_000  # + pod
_ASN_CORE: Final = 4_200_000_900
_ASN_EDGE: Final = 4_200_001_000  # + number
_EDGE, _AGG, _CORE = 1, 2, 3
# Delays of links, as in `clos`: 500 ns for the pipeline at the end, and 5 ns a metre of cable: in a rack (3 m, lost in
# the rounding), in a pod (100 m), to the cores (500 m).
_NS: Final = (500, 1_000, 3_000)


def build(spec: FatTreeSpec) -> Fabric:
    """Add the nodes, then the links in a fixed order; each link takes the next port number at both ends."""
    half, hosts, rate = spec.half, spec.hosts_at_edge, spec.link.fabric
    levels = (
        Level("host", "hosts", "server", spec.link.host, _NS[0]),
        Level("edge", "edge", "leaf", rate, _NS[1], is_edge=True, counts_uplinks=True, boxed=True),
        Level("agg", "agg", "spine", rate, _NS[2], above_edge=True),
        Level("core", "core", "superspine"),
    )
    builder = FabricBuilder(spec, levels)
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    prefixes = list(islice(subnets, spec.edges))
    for number, prefix in enumerate(prefixes, 1):
        builder.switch(_EDGE, number, _ASN_EDGE + number, (("rack", number), ("pod", _part(number, half))), prefix)
    for number in range(1, spec.edges + 1):
        pod = _part(number, half)
        builder.switch(_AGG, number, _ASN_AGG + pod, (("pod", pod),))
    for number in range(1, half * half + 1):
        builder.switch(_CORE, number, _ASN_CORE, ())
    for number in range(1, spec.edges * hosts + 1):
        rack = _part(number, hosts)
        builder.host(number, (("rack", rack), ("pod", _part(rack, half))))

    for edge in range(1, spec.edges + 1):
        first = (_part(edge, half) - 1) * half
        for agg in range(first + 1, first + half + 1):
            builder.join(f"edge{edge}", f"agg{agg}")
    for agg in range(1, spec.edges + 1):
        group = (agg - 1) % half
        for core in range(group * half + 1, (group + 1) * half + 1):
            builder.join(f"agg{agg}", f"core{core}")
    for edge, prefix in enumerate(prefixes, 1):
        base = int(prefix.network_address)
        for host in range((edge - 1) * hosts + 1, edge * hosts + 1):
            for _ in range(spec.nics_per_host):
                builder.join(f"host{host}", f"edge{edge}", spec.ip.ends(base))
                base += 2
    return builder.fabric(box="rack", area="pod", sizes=("radix", "hosts_per_edge", "nics_per_host"))


def _part(number: int, size: int) -> int:
    """The part, from 1, in which a node is that is counted part by part."""
    return (number - 1) // size + 1
