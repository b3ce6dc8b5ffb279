"""The addresses and immediate data of messages, which identify their data.

Virtual address = epoch (16 bits), step (16), byte offset in the buffer (32). Immediate = epoch (4), step (16), message
(12). The lowest bits of an epoch are enough: a neighbour is at most one epoch ahead.
"""

from __future__ import annotations

import zlib
from typing import Final

from heddle.traffic.collectives.pattern import MAX_STEPS, OFFSET_BITS, STEP_BITS
from heddle.traffic.schedule import MAX_MESSAGES, MESSAGE_BITS, Key

EPOCH_BITS: Final = 4  # of an immediate
EPOCH_SHIFT: Final = STEP_BITS + OFFSET_BITS


def rkey_of(lab: str, nic: str) -> int:
    """The 32-bit remote key of a rank's memory."""
    return zlib.crc32(f"{lab}/{nic}/rkey".encode())


def address_of(epoch: int, step: int, offset: int) -> int:
    """The virtual address of a byte of the buffer that a step writes into."""
    return (epoch & 0xFFFF) << EPOCH_SHIFT | step << OFFSET_BITS | offset


def place_of(va: int) -> tuple[int, int, int]:
    """The lowest 16 bits of the epoch, the step, and the offset of a virtual address."""
    return va >> EPOCH_SHIFT, (va >> OFFSET_BITS) & (MAX_STEPS - 1), va & ((1 << OFFSET_BITS) - 1)


def announced_by(epoch: int, key: Key) -> int:
    """The immediate data of a message."""
    return (epoch & (1 << EPOCH_BITS) - 1) << 32 - EPOCH_BITS | key[0] << MESSAGE_BITS | key[1]


def announced(imm: int) -> tuple[int, Key]:
    """The lowest bits of the epoch of a message, and its key, from its immediate data."""
    return imm >> 32 - EPOCH_BITS, (imm >> MESSAGE_BITS & MAX_STEPS - 1, imm & MAX_MESSAGES - 1)
