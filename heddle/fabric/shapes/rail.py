"""A rail-optimised fabric: NIC i of every host of a pod is on leaf i of that pod, and spines join the pods.

Names: leaf1.., spine1.., host1..; leaves are counted pod by pod and NIC by NIC, spines plane by plane.
Planes: with several, NIC i and its leaf are in plane (i - 1) mod planes + 1; each plane has its own spines. No link
joins two planes, so a NIC reaches only the NICs of its plane.
Ports: a leaf's eth1..ethS are its uplinks to its plane's spines, the next ones its downlinks, host by host; a spine's
ethN leads to the Nth leaf of its plane; a host's ethN is its NIC N.
AS numbers (RFC 7938, section 5.2; RFC 6996): one for each plane's spines, one for each leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from heddle.base.families import Network
from heddle.fabric.builder import FabricBuilder, Groups
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Level
from heddle.spec.shapes.rail import RailSpec

_ASN_SPINE: Final = 4_200_000_000  # + plane
_ASN_LEAF: Final = 4_200_001_000  # + number
_LEAF, _SPINE = 1, 2
# Delays of links (docs/congestion-control.md): 500 ns for the pipeline of the switch or NIC at the end, and 5 ns a
# metre of cable: from hosts to the leaves of a pod, which are in another rack (20 m), and across the fabric (100 m).
_HOST_NS: Final = 600
_LEAF_NS: Final = 1_000


def build(spec: RailSpec) -> Fabric:
    """Add the nodes, then the links in a fixed order; each link takes the next port number at both ends."""
    levels = (
        Level("host", "hosts", "server", spec.link.host, _HOST_NS),
        Level("leaf", "leaf", "leaf", spec.link.fabric, _LEAF_NS, is_edge=True, counts_uplinks=True, boxed=True),
        Level("spine", "spine", "spine", above_edge=True),
    )
    builder = FabricBuilder(spec, levels)
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    prefixes = list(islice(subnets, spec.leaves))
    for number, prefix in enumerate(prefixes, 1):
        pod, nic = (number - 1) // spec.nics_per_host + 1, (number - 1) % spec.nics_per_host + 1
        groups = (("pod", pod), ("rail", nic), *_plane(spec, _plane_of(spec, nic)))
        builder.switch(_LEAF, number, _ASN_LEAF + number, groups, prefix)
    for number in range(1, spec.spines + 1):
        plane = (number - 1) // spec.spines_per_plane + 1
        builder.switch(_SPINE, number, _ASN_SPINE + plane, _plane(spec, plane))
    for number in range(1, spec.pods * spec.hosts_per_pod + 1):
        builder.host(number, (("pod", (number - 1) // spec.hosts_per_pod + 1),))

    for leaf in range(1, spec.leaves + 1):
        first = (_plane_of(spec, (leaf - 1) % spec.nics_per_host + 1) - 1) * spec.spines_per_plane
        for spine in range(first + 1, first + spec.spines_per_plane + 1):
            builder.join(f"leaf{leaf}", f"spine{spine}")
    for host in range(1, spec.pods * spec.hosts_per_pod + 1):
        pod, place = (host - 1) // spec.hosts_per_pod, (host - 1) % spec.hosts_per_pod
        for leaf in range(pod * spec.nics_per_host + 1, (pod + 1) * spec.nics_per_host + 1):
            base = int(prefixes[leaf - 1].network_address) + 2 * place
            builder.join(f"host{host}", f"leaf{leaf}", spec.ip.ends(base))
    return builder.fabric(box="pod", area="plane", sizes=("pods", "hosts_per_pod", "nics_per_host"))


def _plane_of(spec: RailSpec, nic: int) -> int:
    return (nic - 1) % spec.planes + 1


def _plane(spec: RailSpec, plane: int) -> Groups:
    return (("plane", plane),) if spec.planes > 1 else ()
