"""A rank's NIC as a plan names it: where it is connected, and its addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One rank's NIC: where it hangs and what it is addressed by."""

    rank: int
    host: str
    port: str
    ip: str
    mac: str
    gateway_ip: str
    gateway_mac: str
    first_hop: str  # the switch port that its packets come in by: rtsw1:eth5
    rate_bps: int
    mtu: int

    @property
    def nic(self) -> str:
        """`host1:eth1`."""
        return f"{self.host}:{self.port}"
