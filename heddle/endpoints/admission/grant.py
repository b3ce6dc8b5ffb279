"""A grant, and the CTS message that carries it: the entry that a receiver writes into its sender's memory.

The entry has the 64 bytes of NCCL's `struct ncclIbSendFifo`: address, size, four remote keys, number of requests, tag,
index, padding; little-endian, as the hosts of NCCL write it. The tag is the immediate data of the granted message, the
index counts the entries of a connection from 1. NCCL uses one entry per request and a ring of entries, as here.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

CTS_BYTES: Final = 64
CTS_BASE: Final = 0xF1F0 << 48  # virtual address of the ring of entries; no rank has arrays there
_ENTRY: Final = struct.Struct("<QQ4IIIQ16x")
_REQUESTS: Final = 1


class Grant(NamedTuple):
    """A message that may be sent: its address and length at the receiver, and its immediate data."""

    va: int
    length: int
    imm: int


def pack_entry(grant: Grant, rkey: int, index: int) -> bytes:
    """The entry of a grant. rkey: of the receiver's memory, the same for all adapters of a host."""
    return _ENTRY.pack(grant.va, grant.length, rkey, 0, 0, 0, _REQUESTS, grant.imm, index)


def read_entry(entry: bytes | memoryview) -> tuple[Grant, int]:
    """The grant of an entry, and its index; the index is 0 if the entry was never written."""
    va, length, _, _, _, _, _, imm, index = _ENTRY.unpack(entry)
    return Grant(va, length, imm), index


def cts_rkey(qpn: int) -> int:
    """The remote key of the ring of entries at the end with this QP number. NCCL's ends exchange it at the start."""
    return zlib.crc32(f"cts/{qpn}".encode())


def cts_psn(psn: int) -> int:
    """The first packet sequence number of CTS packets, by that of the data of the same queue pair (24 bits)."""
    return (psn ^ 0x800000) & 0xFFFFFF
