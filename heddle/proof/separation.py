"""Separation of networks: the packets that a network's ports sent from or to addresses of another one.

In:  a fabric with several networks, and counters of all its switches.
Out: Separation. Each flow that a port counted is judged by the pools of its addresses: RoCEv2, and TCP and UDP between
hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Any

from heddle.base.tables import some_of
from heddle.fabric.wiring import Wiring
from heddle.switch.counters import SwitchCounters


@dataclass(frozen=True, slots=True)
class Crossing:
    """A flow at a port of another network than that of one of its ends. network: of the port."""

    port: str
    network: str
    src: str
    dst: str
    packets: int
    bytes: int

    def text(self) -> str:
        """`rtsw1:eth5 (backend) sent 3 packets, 180 bytes, from 172.16.0.1 to 172.16.4.1`."""
        flow = f"{self.packets:,} packets, {self.bytes:,} bytes, from {self.src} to {self.dst}"
        return f"{self.port} ({self.network}) sent {flow}"


@dataclass(frozen=True, slots=True)
class Separation:
    """ports: network -> the ports of switches that counted for it. misses: packets that no port had room to count."""

    ports: Mapping[str, int]
    crossings: tuple[Crossing, ...]
    misses: int = 0

    @property
    def wrong(self) -> list[str]:
        """A sentence for each reason why the networks are not proven to be separate."""
        missed = [f"{self.misses:,} packets were not counted, so their networks are not known"] if self.misses else []
        return [*(each.text() for each in self.crossings), *missed]

    def text(self) -> str:
        """`0 bytes of other networks at 32 ports of backend and 30 ports of frontend, by their counters of ...`."""
        ports = " and ".join(f"{count} ports of {network}" for network, count in self.ports.items())
        crossed = f": {some_of(self.wrong)}" if self.wrong else ", by their counters of RoCEv2, TCP and UDP"
        return f"{sum(each.bytes for each in self.crossings):,} bytes of other networks at {ports}{crossed}"

    def to_json(self) -> dict[str, Any]:
        return {
            "ports": dict(self.ports),
            "crossings": [
                {"port": each.port, "network": each.network, "src": each.src, "dst": each.dst,
                 "packets": each.packets, "bytes": each.bytes}
                for each in self.crossings
            ],
        }  # fmt: skip


def separation(fabric: Wiring, counters: Mapping[str, SwitchCounters]) -> Separation:
    """Judge every flow of these counters. An address outside of all pools crosses nothing."""
    pools = {network: fabric.policy.of(network).pool for network in fabric.networks}

    @cache
    def networks_of(address: str) -> frozenset[str]:
        found = ip_address(address)
        return frozenset(network for network, pool in pools.items() if found in pool)

    ports: dict[str, int] = dict.fromkeys(pools, 0)
    crossings: list[Crossing] = []
    for switch in fabric.switches:
        network_of = {port.name: port.network for port in switch.ports}
        for network in network_of.values():
            ports[network] += 1
        for row in counters[switch.name].flows if switch.name in counters else ():
            network = network_of.get(row.port, "")
            if (networks_of(row.src) | networks_of(row.dst)) - {network}:
                ref = f"{switch.name}:{row.port}"
                crossings.append(Crossing(ref, network, row.src, row.dst, row.packets, row.bytes))
    return Separation(ports, tuple(crossings), sum(each.misses for each in counters.values()))
