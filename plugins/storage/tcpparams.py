"""The parameters of TCP connections, and how a message begins."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

LEAD: Final = struct.Struct(">QIII")  # before each message: virtual address, key, immediate, bytes


@dataclass(frozen=True, slots=True)
class TcpParams:
    """Parameters of all connections. control: of congestion, in the kernel. tos: of data and acknowledgements.

    mss: payload of a full segment in bytes, by the MTU. timeout_s: without any acknowledgement, until a connection has
    failed.
    """

    control: str
    ecn: bool
    tos: int
    mss: int
    timeout_s: float
