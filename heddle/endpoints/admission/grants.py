"""Grants of messages: the entry that carries one, the slots of a receiver, the gate of a sender. No packets, no clock.

Entry: the CTS message, which a receiver writes into its sender's memory. It has the 64 bytes of NCCL's
`struct ncclIbSendFifo`: address, size, four remote keys, number of requests, tag, index, padding; little-endian, as the
hosts of NCCL write it. The tag is the immediate data of the granted message, the index counts the entries of a
connection from 1. NCCL uses one entry per request and a ring of entries, as here.
Slots: which of the expected messages may be sent now. No more messages than slots are granted and not processed. Peers
that have messages are granted one each in turn, as NCCL does for the peers of one operation (recvProxyProgress in
src/transport/net.cc): so an incast stays one. A peer has at most its share of the slots, so that a slow one does not
hold all of them. Messages that depend on others belong to a later round, which begins when the earlier ones are
granted. So receivers cannot wait for each other in a circle: of all missing messages, those of the earliest round have
their data at the sender, and only such messages hold the slots that others of this round wait for.
Gate: it keeps messages until they are granted. A grant names its message, so grants and messages may come in any order.
A message waits from the time when it is ready and its predecessor was released: as in NCCL, whose proxy looks for the
CTS of one message after the other.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from heddle.endpoints.admission.waits import WaitRecord
from heddle.endpoints.nic.qpend import NEVER

CTS_BYTES: Final = 64
CTS_BASE: Final = 0xF1F0 << 48  # virtual address of the ring of entries; no rank has arrays there
_ENTRY: Final = struct.Struct("<QQ4IIIQ16x")
_REQUESTS: Final = 1
Held = TypeVar("Held")
Item = TypeVar("Item", bound=Hashable)


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


class Slots(Generic[Item]):
    """The slots of a receiver. Messages must differ as long as they are not processed."""

    __slots__ = ("_count", "_held", "_peers", "_rounds")

    def __init__(self, count: int) -> None:
        self._count = count
        self._rounds: deque[dict[int, deque[Item]]] = deque()  # messages without a slot, by peer
        self._peers: dict[Item, int] = {}  # of granted messages that are not processed
        self._held: Counter[int] = Counter()  # their number, by peer

    def post(self, rounds: Iterable[Mapping[int, Iterable[Item]]]) -> None:
        """The receiver expects these messages. A round has the messages of each peer, in order."""
        self._rounds.extend({peer: deque(items) for peer, items in each.items()} for each in rounds)

    def granted(self) -> list[Item]:
        """The messages that have a slot now and had none before: send a CTS for each."""
        found: list[Item] = []
        while self._rounds and self.outstanding < self._count:
            waiting = self._rounds[0]
            share = -(-self._count // len(waiting))
            peer = next((each for each in waiting if self._held[each] < share), None)
            if peer is None:
                break
            items = waiting.pop(peer)
            found.append(items.popleft())
            self._peers[found[-1]] = peer
            self._held[peer] += 1
            if items:
                waiting[peer] = items  # its next turn comes after those of the others
            elif not waiting:
                self._rounds.popleft()
        return found

    def consumed(self, item: Item) -> None:
        """The receiver has processed a message. KeyError if it was not granted, or was processed before."""
        self._held[self._peers.pop(item)] -= 1

    @property
    def outstanding(self) -> int:
        """Messages that are granted and not processed."""
        return len(self._peers)

    @property
    def waiting(self) -> int:
        """Messages that are expected and have no slot yet."""
        return sum(len(items) for each in self._rounds for items in each.values())


class GrantGate(Generic[Held]):
    """Messages and grants of one connection. limit_s: seconds without a grant after which it fails; 0: never."""

    __slots__ = ("_early", "_held", "_last", "_limit", "error", "grants", "waits")

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s
        self._held: dict[Grant, tuple[Held, float]] = {}  # with the time when each was ready, in order
        self._early: set[Grant] = set()  # granted, but not ready
        self._last = -NEVER  # when the last message was released
        self.waits = WaitRecord()
        self.grants = 0
        self.error = ""

    @property
    def held(self) -> int:
        """Messages that wait."""
        return len(self._held)

    @property
    def deadline(self) -> float:
        """When the oldest message has waited too long without any release."""
        if not self._held or not self._limit or self.error:
            return NEVER
        _, ready = next(iter(self._held.values()))
        return max(ready, self._last) + self._limit

    def post(self, grant: Grant, message: Held, now: float) -> Held | None:
        """A message is ready; return it if it may be sent at once."""
        if grant in self._early:
            self._early.remove(grant)
            self.waits.add(0.0)
            self._last = now
            return message
        self._held[grant] = message, now
        return None

    def granted(self, grant: Grant, now: float) -> Held | None:
        """A grant has arrived; return its message if that is ready."""
        self.grants += 1
        found = self._held.pop(grant, None)
        if found is None:
            self._early.add(grant)
            return None
        message, ready = found
        self.waits.add(now - max(ready, self._last))
        self._last = now
        return message

    def expire(self, now: float) -> None:
        """Fail if the deadline has passed."""
        if now >= self.deadline:
            count = len(self._held)
            messages = f"{count} message{' waits' if count == 1 else 's wait'}"
            self.error = f"no clear-to-send (CTS) for {self._limit:.3g} s, and {messages} for it"
