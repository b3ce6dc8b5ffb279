"""Connections: all queue pairs of a rank to one peer, and the distribution of messages over them.

In:  messages of a rank. Out: messages, or parts of them, posted to queue pairs.
Addresses and immediate data of messages identify their data. Virtual address = epoch (16 bits), step (16), byte offset
in the buffer (32). Immediate = epoch (4), step (16), message (12). The lowest bits of an epoch are enough: a neighbour
is at most one epoch ahead.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.nic.qpend import Message
from heddle.traffic.collectives.pattern import MAX_STEPS, OFFSET_BITS, STEP_BITS
from heddle.traffic.options import QpMode
from heddle.traffic.schedule import MAX_MESSAGES, MESSAGE_BITS, Key, Schedule

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


PART_ALIGN: Final = 128  # NCCL rounds the parts of a split message up to this


def part_bytes(length: int, qps: int) -> int:
    """Bytes of each part but the last of a message that is split over `qps` QPs, as NCCL splits it."""
    return -(-length // (qps * PART_ALIGN)) * PART_ALIGN


def part_sizes(length: int, qps: int) -> list[tuple[int, int]]:
    """(offset, bytes) of the parts of a message that is split over `qps` QPs."""
    part = part_bytes(length, qps)
    return [(offset, min(part, length - offset)) for offset in range(0, length, part)]


class Connection(Protocol):
    """All queue pairs from one rank to another."""

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Send a message: `data` to the peer's address `va`. The caller must not change it before the NIC is idle.

        turn: chooses the queue pair where each message has one.
        """


class Destinations(Protocol):
    """An object that needs the destinations of messages in advance: a NIC that writes them without asking the rank."""

    def expect(self, epoch: int, schedule: Schedule) -> None:
        """Announce the messages of an epoch."""

    def keep(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """Keep references to the arrays from which messages will be sent."""


class Wants(Protocol):
    """An object that grants messages to senders: admission (admission/admitted.py)."""

    def begin(self, epoch: int, schedule: Schedule) -> None:
        """The rank begins an epoch, and is ready for its messages."""

    def used(self, epoch: int, key: Key) -> None:
        """The rank has processed a message, and its buffer is free."""


class Poster(Protocol):
    """A QP that sends messages."""

    def post(self, message: Message) -> None:
        """Queue the message for sending."""


class QpConnection:
    """Splits each message over all queue pairs, or sends whole messages by one queue pair after the other."""

    def __init__(self, qps: Sequence[Poster], mode: QpMode) -> None:
        self._qps = qps
        self._split = mode == "split"

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Pass a message to the queue pairs."""
        view = data.data
        if self._split:
            for qp, (offset, size) in zip(self._qps, part_sizes(len(view), len(self._qps)), strict=False):
                qp.post(Message(view[offset : offset + size], va + offset, rkey, imm))
        else:
            self._qps[turn % len(self._qps)].post(Message(view, va, rkey, imm))
