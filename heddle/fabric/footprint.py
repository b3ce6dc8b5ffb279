"""What the nodes of a fabric cost where they run: resident memory, and processor time until all routes are there.

In:  a fabric. Out: numbers for each node. docs/sharding.md has the measurements behind the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.fabric.model import Fabric, Node, Role

# Bytes, fitted to labs of 12 to 270 switches. Pages that processes share count once.
_SWITCH_BYTES: Final = 23_300_000  # namespace, zebra and bgpd, without a neighbour
_MANAGER_BYTES: Final = 6_000_000  # mgmtd, which FRR has from version 10 on
_SESSION_BYTES: Final = 630_000  # a BGP neighbour, in bgpd and the kernel
_PATH_BYTES: Final = 520  # a next hop of a prefix, in bgpd and zebra
_HOST_BYTES: Final = 300_000  # namespace
BUFFER_BYTES: Final = 12_000_000  # of a NIC: three buffers of a run of up to 4 MB (heddle/host/capacity.py)
_PORT_BYTES: Final = 220_000  # link, queues, programs and maps
# Processor time, seconds.
_START_S: Final = 0.24  # namespace and daemons of a switch
_SESSION_S: Final = 0.008  # an end of a session, until it is established
_PATH_S: Final = 65e-6  # a next hop that a neighbour announces, up to the kernel; 9 us if all come at once
_REFUSED_S: Final = 2e-6  # an announcement with the switch's own AS in its path
_PACKET_S: Final = 30e-6  # a data packet from NIC to NIC (docs/performance.md)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of one node. memory: bytes. work: processor seconds of its daemons until it has all routes. cpus: while its NICs
    send at line rate, with what their packets cost everywhere.
    """

    memory: int
    work: float
    cpus: float


def footprints(fabric: Fabric, *, mgmtd: bool = False) -> Mapping[str, Footprint]:
    """Node -> its footprint. Routes of an imported topology are known only to its kernels, and count nothing here.

    mgmtd: whether switches run it: FRR 10 does.
    """
    manager = _MANAGER_BYTES if mgmtd else 0
    known = {name: sum(group.edges.bit_count() for group in groups) for name, groups in fabric.next_hop_groups.items()}
    return {node.name: _switch(fabric, node, known, manager) if node.role is Role.SWITCH else _host(fabric, node)
            for node in fabric.nodes}  # fmt: skip


def _switch(fabric: Fabric, node: Node, known: Mapping[str, int], manager: int) -> Footprint:
    """known: switch -> prefixes that it learns. manager: bytes of mgmtd."""
    peers = [port.peer_node for port in node.ports if not fabric.leads_to_host(port)]
    paths = sum(len(group.ports) * group.edges.bit_count() for group in fabric.next_hop_groups[node.name])
    # FRR announces all that it knows to each neighbour, also what that one will refuse for its AS path.
    refused = sum(known[peer] + (peer in fabric.edge_of) for peer in peers) - paths
    memory = _SWITCH_BYTES + manager + len(peers) * _SESSION_BYTES + paths * _PATH_BYTES + len(node.ports) * _PORT_BYTES
    work = _START_S + len(peers) * _SESSION_S + paths * _PATH_S + refused * _REFUSED_S
    return Footprint(memory, work, 0.0)


def _host(fabric: Fabric, node: Node) -> Footprint:
    rate = sum(port.rate_bps for port in fabric.nics_of[node.name])
    memory = _HOST_BYTES + len(node.ports) * _PORT_BYTES + len(fabric.nics_of[node.name]) * BUFFER_BYTES
    return Footprint(memory, 0.0, rate / 8 / fabric.policy.ib_mtu * _PACKET_S)
