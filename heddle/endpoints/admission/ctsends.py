"""Admission around both ends of a queue pair of any transport: the receiver writes CTS entries, the sender reads them.

A CTS is an RDMA WRITE without immediate in the reverse direction of the queue pair that carries the data, as NCCL
writes it (src/transport/net_ib). That direction is a reliable connection of its own: it has its own PSNs, ACKs, timers
and retries, whatever the transport of the data is. The first queue pair of a connection carries the CTS packets for all
of them. An entry has the 64 bytes of NCCL's `struct ncclIbSendFifo`: address, size, four remote keys, number of
requests, tag, index, padding; little-endian, as the hosts of NCCL write it. The tag is the immediate data of the
granted message, the index counts the entries of a connection from 1. NCCL uses one entry per request and a ring of
entries, as here.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message, PathUse, QpEnd, QpInfo, WrappedEnd
from heddle.endpoints.transports.rc import RcReceiver, timer_after
from heddle.endpoints.transports.rcstate import RcParams, Requester
from heddle.traffic.admission import WaitCounts, WaitRecord
from heddle.wire import layout as wire

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
    """The slots of a receiver: which of the expected messages may be sent now. No more are granted and not processed.

    Peers that have messages are granted one each in turn, as NCCL does for the peers of one operation
    (recvProxyProgress in src/transport/net.cc): so an incast stays one. A peer has at most its share of the slots, so
    that a slow one does not hold all of them. Messages that depend on others belong to a later round, which begins when
    the earlier ones are granted. So receivers cannot wait for each other in a circle: of all missing messages, those of
    the earliest round have their data at the sender, and only such messages hold the slots that others of this round
    wait for. Messages must differ as long as they are not processed.
    """

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
    """It keeps the messages of one connection until they are granted. A grant names its message, so any order is right.

    A message waits from the time when it is ready and its predecessor was released: as in NCCL, whose proxy looks for
    the CTS of one message after the other. limit_s: seconds without a grant after which it fails; 0: never.
    """

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


ADMISSION_COLUMNS: Final = (
    Column("cts_sent", "packets", "CTS sent"),
    Column("cts_received", "packets", "CTS received"),
    Column("cts_resent", "packets", "CTS retransmitted"),
    Column("cts_acks", "packets", "ACKs of CTS"),
)


class Posted(NamedTuple):
    """A message of a rank, as it is passed to a Connection."""

    data: NDArray[np.uint8]
    va: int
    rkey: int
    imm: int
    turn: int


class GrantingReceiver(WrappedEnd):
    """A receiving end that also sends CTS packets.

    flow: their headers, with the traffic class. as_data: they share the socket and the queue of data; else they leave
    like answers. rkey: of the rank's memory, part of every entry. ring: entries of the sender's memory.
    """

    __slots__ = ("_as_data", "_flow", "_now", "_requester", "_ring", "_ring_rkey", "_rkey", "_written")

    def __init__(
        self, end: QpEnd, params: RcParams, qp: QpInfo, flow: FlowHeader, as_data: bool, rkey: int, ring: int
    ) -> None:
        super().__init__(end)
        self._flow, self._as_data = flow, as_data
        self._requester = Requester(params, cts_psn(qp.psn))
        self._rkey, self._ring, self._ring_rkey = rkey, ring, cts_rkey(qp.flow.dqpn)
        self._written = 0  # entries so far
        self._now = 0.0  # the time of the last call that had one: `answer` has none

    def grant(self, grant: Grant, now: float) -> None:
        """Queue the CTS of a message."""
        self._now = now
        va = CTS_BASE + self._written % self._ring * CTS_BYTES
        self._written += 1
        entry = pack_entry(grant, self._rkey, self._written)
        self._requester.post(Message(memoryview(entry), va, self._ring_rkey, 0))

    @property
    def ready(self) -> bool:
        return (self._as_data and self._requester.ready > 0) or self._end.ready

    @property
    def answering(self) -> bool:
        return (not self._as_data and self._requester.ready > 0) or self._end.answering

    @property
    def deadline(self) -> float:
        own = timer_after(self._requester.deadline, self._requester.params.timeout_s)
        return min(self._end.deadline, own)

    @property
    def idle(self) -> bool:
        return self._requester.idle and self._end.idle

    @property
    def error(self) -> str:
        if self._requester.error:
            return f"its clear-to-send (CTS) packets: {self._requester.error}"
        return self._end.error

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write CTS packets in the class of data, then as the end."""
        self._now, at = now, slot
        if self._as_data:
            at += self._put(batch, slot, limit)
        return at - slot + (self._end.take(batch, at, limit - (at - slot), now) if at - slot < limit else 0)

    def answer(self, batch: SendBatch, slot: int) -> None:
        if self._as_data or not self._put(batch, slot, 1):
            self._end.answer(batch, slot)

    def _put(self, batch: SendBatch, slot: int, limit: int) -> int:
        """Write up to `limit` CTS packets; return their number."""
        at = slot
        for burst in self._requester.take(limit, self._now):
            entry = burst.message
            reth = (entry.va, entry.rkey, CTS_BYTES)
            batch.put_data(at, self._flow, wire.WRITE_ONLY, burst.psn, entry.payload, ackreq=True, reth=reth)
            at += 1
        return at - slot

    def receive(self, got: Received, index: int, now: float) -> bool:
        self._now = now
        if got.kinds[index].opcode != wire.ACK:
            return self._end.receive(got, index, now)
        syndrome, _ = got.aeth(index)
        self._requester.acknowledge(got.psns[index], syndrome, now)
        return True

    def expire(self, now: float) -> None:
        """Send CTS packets again, or give up; as the end."""
        self._now = now
        self._requester.expire(now)
        super().expire(now)

    def hold(self, seconds: float) -> None:
        """As the end; CTS packets in the class of data wait for the same port."""
        if self._as_data:
            self._requester.hold(seconds)
        self._end.hold(seconds)

    def counters(self) -> Mapping[str, int]:
        seen = self._requester.counters
        return {**self._end.counters(), "cts_sent": seen.sent, "cts_resent": seen.retransmitted}


class _Ring:
    """The memory for CTS entries; `arrived` is never called, since these WRITEs have no immediate."""

    __slots__ = ("_memory", "_next", "_rkey")

    def __init__(self, entries: int, rkey: int) -> None:
        self._memory = bytearray(entries * CTS_BYTES)
        self._rkey = rkey
        self._next = 1  # the index of the next entry

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """The bytes of an entry; None for a wrong key or address."""
        start = va - CTS_BASE
        if rkey != self._rkey or length != CTS_BYTES or start % CTS_BYTES or not 0 <= start < len(self._memory):
            return None
        return memoryview(self._memory)[start : start + CTS_BYTES]

    def arrived(self, imm: int) -> None:
        """Nothing: no write of an entry has an immediate."""

    def poll(self) -> Grant | None:
        """The next grant, if its entry has arrived."""
        entries = len(self._memory) // CTS_BYTES
        start = (self._next - 1) % entries * CTS_BYTES
        grant, index = read_entry(bytes(self._memory[start : start + CTS_BYTES]))
        if index != self._next:
            return None
        self._next += 1
        return grant


class GatedSender(WrappedEnd):
    """A sending end that also takes CTS packets, and passes their grants to the gate of its connection.

    answers: headers of the acknowledgements of CTS packets. release: posts a message that the gate has
    released, to the queue pairs of the connection.
    """

    __slots__ = ("_acks", "_cts", "_layout", "_psn", "_ring", "gate", "release")

    def __init__(
        self, end: QpEnd, params: RcParams, qp: QpInfo, answers: FlowHeader, gate: GrantGate[Posted], ring: int
    ) -> None:
        super().__init__(end)
        self.gate = gate
        self._ring = _Ring(ring, cts_rkey(qp.qpn))
        self._cts = RcReceiver(params, QpInfo(qp.qpn, answers, cts_psn(qp.psn)), self._ring)
        self.release: Callable[[Posted], None] | None = None
        self._layout = answers.layout
        self._psn = 0  # of the last CTS in order
        self._acks = 0

    @property
    def answering(self) -> bool:
        return self._cts.answering or self._end.answering

    @property
    def deadline(self) -> float:
        return min(self._end.deadline, self._cts.deadline, self.gate.deadline)

    @property
    def idle(self) -> bool:
        return not self.gate.held and self._end.idle

    @property
    def error(self) -> str:
        if self.gate.error:
            seen = f"the last CTS had PSN {self._psn}" if self.gate.grants else "none has arrived so far"
            return f"{self.gate.error}; {seen}"
        return self._end.error

    def answer(self, batch: SendBatch, slot: int) -> None:
        if self._cts.answering:
            self._cts.answer(batch, slot)
            self._acks += 1
        else:
            self._end.answer(batch, slot)

    def receive(self, got: Received, index: int, now: float) -> bool:
        if got.kinds[index].opcode != wire.WRITE_ONLY:
            return self._end.receive(got, index, now)
        taken = self._cts.receive(got, index, now)
        while (grant := self._ring.poll()) is not None:
            self._psn = got.psns[index]
            released = self.gate.granted(grant, now)
            if released is not None and self.release is not None:
                self.release(released)
        return taken

    def expire(self, now: float) -> None:
        super().expire(now)
        self._cts.expire(now)
        self.gate.expire(now)

    def counters(self) -> Mapping[str, int]:
        return {**self._end.counters(), "cts_received": self.gate.grants, "cts_acks": self._acks}

    def paths(self, sent: PathUse) -> tuple[PathUse, ...]:
        """As the end, and the acknowledgements of CTS packets: addresses, port and QP are those of its first path."""
        first, *others = self._end.paths(sent)
        size = self._acks * (self._layout.overhead_bytes + wire.AETH_BYTES)
        return (PathUse(first.sport, first.packets + self._acks, first.bytes + size), *others)

    def waits(self) -> WaitCounts:
        return self.gate.waits.counts()
