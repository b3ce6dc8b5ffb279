"""Packets that a capture has more than once although they were sent once: copies are no retransmissions.

A mirror of both directions of a switch has a routed packet before and after it, with one TTL less and other addresses
in the Ethernet header. A capture on all devices of a host has it at a bond and at a member of the bond, byte for byte.

In:  the RoCEv2 packets of a capture, in order. Out: whether a packet is a copy of one that was seen before.
The ICRC covers what no switch changes, and the IP ID. A sender that counts its packets in the IP ID gives a
retransmission another one, so packets that are equal in both are copies. IPv6 has no ID, and some NICs send a constant
one. There, an equal packet is a copy only directly behind the other one, since no sender can know a loss that soon.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Final

from heddle.wire.dissect import Dissected
from heddle.wire.layout import BTH_BYTES, ICRC_BYTES, IPV6_BYTES, UDP_BYTES

_REMEMBERED: Final = 8192  # packets of the capture
_SOON_NS: Final = 50_000  # less than a NIC's timers, more than a packet takes through a switch
_BTH_MASKED: Final = 4  # the byte of the BTH that switches may change

Identity = tuple[object, int, bytes, bytes]  # queue pair, PSN, IP ID, ICRC


@dataclass(slots=True)
class OriginalPacket:
    """A packet that was seen. where: its TTL, tunnel and VLAN tags; marked: whether it or a copy of it was CE."""

    where: tuple[object, ...]
    time_ns: int
    marked: bool


@dataclass(slots=True)
class CountedSender:
    """One direction of a queue pair. last: its last packet; ids: the last IP ID of data, and of answers."""

    last: Identity | None = None
    ids: dict[bool, bytes] = field(default_factory=dict)
    counts: bool = False  # its IP IDs differ


@dataclass(slots=True)
class Copies:
    """The last packets of a capture, and the ports at which it has copies."""

    _seen: dict[Identity, OriginalPacket] = field(default_factory=dict)
    _ports: set[str] = field(default_factory=set)

    def original(
        self, key: tuple[str, str, str, int], sender: CountedSender, frame: bytes, what: Dissected, time_ns: int
    ) -> OriginalPacket | None:
        """The packet of which this one is a copy; None for a new packet. key: port, addresses and queue pair."""
        at, data = what.ip_at, what.kind == "RoCE data"
        four = frame[at] >> 4 == 4
        number = frame[at + 4 : at + 6] if four else b""
        where = frame[at + 8 if four else at + 7], what.tunnel, what.fields.get("pcp")
        identity = key, int(what.fields["psn"]), number, _digest(frame, at, four=four)
        seen = self._seen.get(identity)
        if seen is not None:
            soon = sender.last == identity and time_ns - seen.time_ns <= _SOON_NS
            directly = soon and (data or key[0] in self._ports)  # equal answers may be two answers
            if seen.where != where or (number and sender.counts) or directly:
                self._ports.add(key[0])
                return seen
        sender.counts = sender.counts or sender.ids.get(data, number) != number
        sender.ids[data], sender.last = number, identity
        self._seen.pop(identity, None)
        self._seen[identity] = OriginalPacket(where, time_ns, what.fields["ecn"] == "ce")
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return None


def _digest(frame: bytes, at: int, *, four: bool) -> bytes:
    """The ICRC; of a packet without one, a checksum over what the capture has of it and no switch changes."""
    if four:
        size, bth = int.from_bytes(frame[at + 2 : at + 4], "big"), at + 4 * (frame[at] & 0x0F) + UDP_BYTES
    else:
        size = IPV6_BYTES + int.from_bytes(frame[at + 4 : at + 6], "big")
        bth = at + IPV6_BYTES + UDP_BYTES
    icrc = frame[at + size - ICRC_BYTES : at + size]
    if len(icrc) == ICRC_BYTES and any(icrc) and at + size >= bth + BTH_BYTES + ICRC_BYTES:
        return icrc
    head = zlib.crc32(frame[bth : bth + _BTH_MASKED])
    return zlib.crc32(frame[bth + _BTH_MASKED + 1 : at + size], head).to_bytes(ICRC_BYTES, "big")
