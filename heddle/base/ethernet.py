"""Constants of Ethernet and its priorities that several rooms use."""

from __future__ import annotations

from typing import Final

CLASSES: Final = 8  # priorities of 802.1Q; a PFC frame has a bit and a time for each
DSCPS: Final = 64
HEADER: Final = 14  # bytes of an Ethernet header, part of every depth and threshold
MAX_QUANTA: Final = 0xFFFF
QUANTUM_BITS: Final = 512  # 802.1Q, clause 36: times are in units of 512 bit times of the port
LARGEST_PFC_MTU: Final = 60_000  # a closed gate refuses what it counts as 65,535 bytes, and a packet must be less
