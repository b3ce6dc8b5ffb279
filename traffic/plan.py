"""What a run will send: ranks, connections and queue pairs, all known before the first packet.

In:  Fabric and RunOptions (what was typed after `./inv run`).
Out: Plan, frozen and plain data, so that a worker in another process, container or machine can be handed it as JSON.
QP numbers, source ports and packet sequence numbers are functions of the fabric and the options alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ROCE_PORT: Final = 4791


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


@dataclass(frozen=True, slots=True)
class Qp:
    """One RC queue pair, seen from the side that sends data. PSNs are 24 bits."""

    src_rank: int
    dst_rank: int
    index: int  # within its connection
    src_qpn: int
    dst_qpn: int
    sport: int
    psn: int  # the first that the sender uses


@dataclass(frozen=True, slots=True)
class Flow:
    """The data direction of one QP, as switches see it: what paths are asked about."""

    src: str  # host names
    dst: str
    src_ip: str
    dst_ip: str
    sport: int
    qpn: int  # destination QP number
    first_hop: str  # ingress port at the source's RTSW: rtsw1:eth5
    dport: int = ROCE_PORT
