"""Ethernet as 802.1Q has it: priorities, pause times, header."""

from __future__ import annotations

from typing import Final

CLASSES: Final = 8  # priorities of 802.1Q; a PFC frame has a bit and a time for each
HEADER: Final = 14  # bytes; in every depth and threshold
MAX_QUANTA: Final = 0xFFFF
QUANTUM_BITS: Final = 512  # 802.1Q, clause 36: times are in units of 512 bit times of the port
