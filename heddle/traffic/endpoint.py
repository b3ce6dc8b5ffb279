"""A rank's NIC in a plan: its connection and its addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One rank's NIC: host, port, link and addresses."""

    rank: int
    host: str
    port: str
    ip: str
    mac: str
    gateway_ip: str
    gateway_mac: str
    first_hop: str  # the switch port where its packets enter the fabric: rtsw1:eth5
    rate_bps: int
    mtu: int

    @property
    def nic(self) -> str:
        """`host1:eth1`."""
        return f"{self.host}:{self.port}"
