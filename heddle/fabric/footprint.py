"""What the nodes of a fabric cost where they run: resident memory, and processor time until all routes are there.

In:  a fabric. Out: numbers for each node. docs/sharding.md has the measurements behind the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.fabric.model import Fabric, Node, Role

# Bytes, fitted to labs of 8 x 4, 64 x 8, 128 x 16 and 252 x 18 switches. Pages that processes share count once.
_SWITCH_BYTES: Final = 26_000_000  # zebra and bgpd without a neighbour
_SESSION_BYTES: Final = 700_000  # a BGP neighbour, with its port
_PATH_BYTES: Final = 250  # a next hop of a prefix, in bgpd, zebra and the kernel
_NAMESPACE_BYTES: Final = 600_000
_PORT_BYTES: Final = 150_000  # queues and maps of a port
# Processor time, seconds.
_START_S: Final = 0.24  # namespace and daemons of a switch
_SESSION_S: Final = 0.0065  # until it is established
_UPDATE_S: Final = 60e-6  # a prefix that a neighbour announces: refused, or up to a next hop in the kernel
_PACKET_S: Final = 30e-6  # a data packet from NIC to NIC (docs/performance.md)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one node. memory: bytes. work: processor seconds of its daemons until it has all routes. cpus: while its NICs
    send at line rate, with what their packets cost everywhere.
    """

    memory: int
    work: float
    cpus: float


def footprints(fabric: Fabric) -> Mapping[str, Footprint]:
    """Node -> its footprint."""
    return {node.name: _switch(fabric, node) if node.role is Role.SWITCH else _host(fabric, node)
            for node in fabric.nodes}  # fmt: skip


def _switch(fabric: Fabric, node: Node) -> Footprint:
    paths = _paths(fabric, node.name)
    peers = [port.peer_node for port in node.ports if not fabric.leads_to_host(port)]
    memory = _SWITCH_BYTES + len(peers) * _SESSION_BYTES + paths * _PATH_BYTES + _kernel(node)
    updates = sum(_prefixes(fabric, peer) for peer in peers)
    return Footprint(memory, _START_S + len(peers) * _SESSION_S + updates * _UPDATE_S, 0.0)


def _host(fabric: Fabric, node: Node) -> Footprint:
    rate = sum(port.rate_bps for port in fabric.nics_of[node.name])
    return Footprint(_kernel(node), 0.0, rate / 8 / fabric.policy.ib_mtu * _PACKET_S)


def _kernel(node: Node) -> int:
    return _NAMESPACE_BYTES + len(node.ports) * _PORT_BYTES


def _paths(fabric: Fabric, switch: str) -> int:
    """Next hops of all prefixes of a switch; 0 in an imported topology, whose routes only its kernels know."""
    return sum(len(group.ports) * group.edges.bit_count() for group in fabric.next_hop_groups[switch])


def _prefixes(fabric: Fabric, switch: str) -> int:
    """Prefixes that a switch announces: FRR sends also those that its neighbour will refuse (AS path)."""
    return sum(group.edges.bit_count() for group in fabric.next_hop_groups[switch]) + (switch in fabric.edge_of)
