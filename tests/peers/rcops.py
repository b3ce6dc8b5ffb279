"""All operations of a reliable connection: WRITE, SEND and READ in both directions, on top of the states in rcstate.py.

In:  operations to do, posted memory for SENDs, packets and answers that arrived, the time.
Out: bursts of requests, READ responses, answers, finished operations. No frames, no sockets, no clock.

A READ request takes as many PSNs as its response has packets (IBTA vol. 1, section 9.7.3.1). A response acknowledges
all earlier requests. A missing response is requested again from its PSN on. A later ACK does not replace it.
No ACK follows a READ that was accepted last: its response acknowledges everything before it. An ACK that names the
READ, or a request before it, would arrive between the packets of the response; rxe takes it for one of them, and ends
the connection (docs/soft-roce.md).
A SEND without posted memory is answered by RNR NAK: the sender waits for the time in it and sends again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from heddle.endpoints.nic.qpend import Access, Message
from heddle.endpoints.transports.rcstate import Burst, RcParams, Requester, Responder, WritePacket
from heddle.wire.layout import NAK_ACCESS, NAK_INVALID, PSN_MASK, RNR_NAK, SYNDROME_KIND, psn_after

OpKind = Literal["write", "send", "read"]
RNR_CODE: Final = 12  # 0.64 ms
# Milliseconds of an RNR NAK's timer by its code (IBTA vol. 1, table 45).
RNR_MS: Final = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operation(Message):
    """A message with its kind. payload: bytes to send, or writable memory that a READ fills.

    va, rkey: of a WRITE or READ. announced: with immediate data; never for a READ.
    """

    kind: OpKind = "write"
    announced: bool = False


class OpRequester(Requester):
    """The requesting half of a QP: posts Operations only."""

    __slots__ = ("_asked_again", "_waits", "not_ready")

    def __init__(self, params: RcParams, psn: int) -> None:
        super().__init__(params, psn)
        self._asked_again = False  # since the last response in order
        self._waits = False  # for the receiver, after RNR NAK
        self.not_ready = 0  # RNR NAKs

    @property
    def ready(self) -> int:
        """The number of PSNs that may be sent now."""
        return 0 if self._waits else super().ready

    def take(self, limit: int, now: float) -> list[Burst]:
        """Up to `limit` packets. A READ request is one packet, and its burst has as many PSNs as its response."""
        bursts: list[Burst] = []
        at = self.next
        while limit > 0 and not self.error and not self._waits and at < min(self._tail, self.una + self.params.window):
            posted = self._queue[self._unsent]
            beyond = posted.first + posted.packets
            if kind_of(posted.message) == "read":
                stop = beyond
                limit -= 1
            else:
                stop = min(beyond, at + limit, self.una + self.params.window)
                limit -= stop - at
            bursts.append(Burst(posted.message, at - posted.first, stop - at, at & PSN_MASK, posted.packets))
            self._unsent += stop == beyond
            at = stop
        if bursts:
            self._sent(at, now)
        return bursts

    def acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Handle an ACK or NAK. It does not complete a READ, and nothing after an incomplete one."""
        at = self._unwrap(psn)
        beyond = at + 1 if syndrome & SYNDROME_KIND == 0 else at
        read = next((p.first for p in self._queue if kind_of(p.message) == "read" and p.first < beyond), None)
        missing = None if read is None else max(read, self.una)
        if missing is not None and missing < beyond:
            self._advance(missing, now)
            if beyond <= self.tried:
                self._ask_again(now)
            return
        if syndrome & SYNDROME_KIND == RNR_NAK:
            self.not_ready += 1
            self._advance(at, now)
            if at == self.una and self.una < self.tried:
                self._rewind(now)
                self._waits, self.deadline = True, now + RNR_MS[syndrome & 0x1F] / 1000
            return
        super().acknowledge(psn, syndrome, now)

    def response(self, psn: int, payload: memoryview, now: float) -> None:
        """Handle a packet of a READ response."""
        at = self._unwrap(psn)
        posted = next((p for p in self._queue if p.first <= at < p.first + p.packets), None)
        if posted is None or kind_of(posted.message) != "read" or at < self.una or at >= self.tried:
            return  # a duplicate
        earlier = any(kind_of(p.message) == "read" and p.first < posted.first for p in self._queue)
        if earlier or at > max(self.una, posted.first):
            self._ask_again(now)
            return
        start = (at - posted.first) * self.params.mtu
        wanted = min(self.params.mtu, len(posted.message.payload) - start)
        if len(payload) != wanted:
            self._fail(f"a READ response has {len(payload)} bytes in place of {wanted}")
            return
        posted.message.payload[start : start + wanted] = payload
        self._asked_again = False
        self._advance(at + 1, now)

    def expire(self, now: float) -> None:
        """Retry after the receiver was not ready; else as for every timer."""
        if now < self.deadline:
            return
        if self._waits:
            self._waits, self.deadline = False, now + self.params.timeout_s
            return
        self._asked_again = False
        super().expire(now)

    def _advance(self, una: int, now: float) -> None:
        """As for every requester; progress ends the wait for the receiver, which has memory for the refused packet."""
        before = self.una
        super()._advance(una, now)
        self._waits = self._waits and self.una == before

    def _ask_again(self, now: float) -> None:
        """Go back once for each gap in the responses."""
        if not self._asked_again:
            self._asked_again = True
            self._rewind(now)


class ReadReply(NamedTuple):
    """A response to send: the PSN of its next packet, and the bytes that are left. first, last: of the whole reply."""

    psn: int
    data: memoryview
    first: bool = True


class Arrival(NamedTuple):
    """A finished SEND: its bytes, and its immediate data."""

    length: int
    imm: int | None


class OpResponder(Responder):
    """The responding half of a QP. `reads` are the responses to send, before any other answer."""

    __slots__ = ("_after_read", "_inbox", "_is_send", "_sending", "arrivals", "reads")

    def __init__(self, params: RcParams, psn: int, memory: Access) -> None:
        super().__init__(params, psn, memory)
        self._inbox: deque[memoryview] = deque()
        self._sending = False  # the message that is incomplete is a SEND
        self._is_send = False  # the packet that is handled now belongs to a SEND
        self._after_read = -1  # the PSN after the READ that was accepted last
        self.arrivals: list[Arrival] = []
        self.reads: deque[ReadReply] = deque()

    def post_receive(self, memory: memoryview) -> None:
        """Give memory for one SEND."""
        self._inbox.append(memory)

    def receive(self, packet: WritePacket, payload: memoryview, now: float) -> None:
        """Handle a packet of a WRITE or SEND. A repeated one from before the last READ gets no ACK: a peer that repeats
        it repeats the READ, too."""
        before = self._psn
        super().receive(packet, payload, now)
        if self._psn != before:
            self._after_read = -1
        self._leave_to_response()

    def receive_send(self, packet: WritePacket, payload: memoryview, now: float) -> None:
        """Handle a packet of a SEND."""
        before = self._psn
        self._is_send = True
        # The immediate of a SEND is in its Arrival, not in `memory`.
        self.receive(packet._replace(imm=None), payload, now)
        self._is_send = False
        if self._psn != before and packet.last:
            self.arrivals.append(Arrival(self._at, packet.imm))

    def receive_read(self, psn: int, reth: tuple[int, int, int], now: float) -> None:
        """Handle a READ request, a new one or one that is repeated, perhaps from its middle."""
        ahead = psn_after(psn, self._psn)
        if ahead > 0:
            self.receive(WritePacket(psn, True, True, True), memoryview(b""), now)  # out of order, as for any request
            return
        target = self.memory.resolve(*reth)
        if target is None or (ahead == 0 and self._target is not None):
            self._nak(NAK_ACCESS if target is None else NAK_INVALID)
            return
        packets = max(1, -(-len(target) // self.params.mtu))
        if ahead < 0:
            self.counters.duplicates += 1
        else:
            self.counters.received += 1
            self._psn = self._after_read = (psn + packets) & PSN_MASK
            self.msn = (self.msn + 1) & PSN_MASK
            if self._nak_sent:
                self._close_gap()
            self._leave_to_response()
        self.reads.append(ReadReply(psn, target))

    def _leave_to_response(self) -> None:
        """Drop a due ACK, but no NAK, where the request accepted last is a READ."""
        if self._psn == self._after_read and self.reply is None:
            self.answered()

    def _write(self, packet: WritePacket, payload: memoryview) -> int:
        if not self._is_send:
            return NAK_INVALID if self._target is not None and self._sending else super()._write(packet, payload)
        size = len(payload)
        if packet.first:
            if self._target is not None:
                return NAK_INVALID
            if not self._inbox:
                return RNR_NAK | RNR_CODE
            self._target, self._sending = self._inbox.popleft(), True
            self._at, self._left = 0, len(self._target)
        if self._target is None or not self._sending or size > self._left:
            return NAK_INVALID
        if not packet.last and size != self.params.mtu:
            return NAK_INVALID
        self._target[self._at : self._at + size] = payload
        self._at += size
        self._left -= size
        if packet.last:
            self._target, self._sending = None, False
        return 0


def kind_of(message: Message) -> OpKind:
    """The kind of a posted message."""
    return message.kind if isinstance(message, Operation) else "write"
