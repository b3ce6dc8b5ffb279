"""Measured paths: what the counters of every switch port saw of every QP.

In:  the counters of all switches (a difference over a run) and the flows of that run.
Out: for each flow the ordered egress ports that counted it, how many packets each counted, and what was seen elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topologies.fabric import Fabric
from topologies.switch.counters import FlowCount, SwitchCounters
from traffic.plan import Flow

FlowKey = tuple[str, str, int]  # source address, destination address, destination QP


@dataclass(frozen=True, slots=True)
class Measured:
    """One flow. packets and bytes have an entry for each port of path; stray: ports off that path, with packets."""

    path: tuple[str, ...]
    packets: tuple[int, ...]
    bytes: tuple[int, ...]
    stray: tuple[tuple[str, int], ...] = ()


def key_of(flow: Flow) -> FlowKey:
    """What counters know a flow by."""
    return flow.src_ip, flow.dst_ip, flow.qpn


def measure(fabric: Fabric, counters: Mapping[str, SwitchCounters], flows: Sequence[Flow]) -> list[Measured]:
    """Follow every flow from its first switch along the ports that counted it.

    Where two ports of a switch did (a path that moved during the run, or was sprayed) the busier one is followed and
    the other is a stray.
    """
    seen: dict[FlowKey, dict[str, list[FlowCount]]] = {}
    for switch, table in counters.items():
        for row in table.flows:
            seen.setdefault((row.src, row.dst, row.qpn), {}).setdefault(switch, []).append(row)
    peers = {port.ref: port.peer_node for node in fabric.switches for port in node.ports}
    return [_follow(flow, dict(seen.get(key_of(flow), {})), peers) for flow in flows]


def _follow(flow: Flow, seen: dict[str, list[FlowCount]], peers: Mapping[str, str]) -> Measured:
    path: list[str] = []
    packets: list[int] = []
    sizes: list[int] = []
    stray: list[tuple[str, int]] = []
    switch = flow.first_hop.partition(":")[0]
    while switch in seen:
        busiest, *others = sorted(seen.pop(switch), key=lambda row: -row.packets)
        ref = f"{switch}:{busiest.port}"
        path.append(ref)
        packets.append(busiest.packets)
        sizes.append(busiest.bytes)
        stray += [(f"{switch}:{row.port}", row.packets) for row in others]
        switch = peers.get(ref, "")
    stray += [(f"{name}:{row.port}", row.packets) for name, rows in seen.items() for row in rows]
    return Measured(tuple(path), tuple(packets), tuple(sizes), tuple(sorted(stray)))
