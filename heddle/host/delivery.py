"""How a port keeps the order of its packets on this machine. kernel/inorder.py sets it and reads it back.

Without these settings a veth hands a packet to the backlog of the CPU that dequeued it (veth_forward_skb, __netif_rx).
HTB dequeues on several CPUs: that of its timer, those of senders. A backlog can wait for milliseconds while another CPU
delivers later packets of the same link.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MERGES_NOTHING: Final = 1  # gro_max_size, in bytes: smaller than any two packets
_LISTS: Final = (6, 6)
_RING: Final = (6, 18)


class Delivery(StrEnum):
    """The mechanism that gives a port one receive queue.

    NAPI: with GRO on, a veth's receive queue is one ring that one NAPI instance polls (veth_xdp_rx, veth_poll). GRO
    merges nothing when `gro_max_size` is one byte (skb_gro_receive), so queues and counters see each packet.
    RPS: `rps_cpus` with one CPU puts all packets of a port into the backlog of that CPU (get_rps_cpu).
    """

    NAPI = "napi"
    RPS = "rps"

    @property
    def settings(self) -> str:
        """The settings of a port, in words."""
        if self is Delivery.NAPI:
            return f"GRO on with gro_max_size {MERGES_NOTHING}"
        return "GRO off and one CPU in rps_cpus"


@dataclass(frozen=True, slots=True)
class DeliveryChoice:
    """The delivery for a kernel, and the reason."""

    delivery: Delivery
    reason: str


def choose(release: str) -> DeliveryChoice:
    """The delivery for a kernel of this release (`6.18.44`), and why. An unreadable release gets RPS."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version < _LISTS:
        # ip_list_rcv_finish with a hint of the packet before: 6ac66cb03ae3 (6.6).
        return DeliveryChoice(Delivery.RPS, "before Linux 6.6 packets of one NAPI batch share an ECMP next hop")
    if version < _RING:
        # dc82a33297fc (6.16) stops the sender's queue when the ring is full; 5442a9da6978 (6.18) always wakes it again.
        return DeliveryChoice(Delivery.RPS, "before Linux 6.18 a veth with NAPI can lose packets in its receive ring")
    return DeliveryChoice(Delivery.NAPI, "from Linux 6.18 on a full receive ring of a veth stops the sender")


def chosen() -> DeliveryChoice:
    """The delivery for this machine's kernel."""
    return choose(os.uname().release)
