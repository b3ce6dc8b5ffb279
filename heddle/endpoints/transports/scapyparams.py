"""The parameters of a connection on scapy's layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["both", "sends", "receives"]  # of an end: what it does


@dataclass(frozen=True, slots=True)
class ScapyParams:
    """Parameters of a connection: bytes, packets, seconds. ack_every: packets for which an ACK is requested."""

    mtu: int
    window: int
    ack_every: int
    timeout_s: float
    retries: int
