"""The state of a reliable connection (RC) as InfiniBand defines it, without frames, sockets and clocks.

In:  messages to write (`Requester.post`), packets and acknowledgements that arrived, the time.
Out: bursts of packets to send (`Requester.take`), the answers to send (`Responder.receive`).
Go-back-N: after a NAK or a timeout, the requester retransmits from the oldest packet not acknowledged.
PSNs are 24 bits on the wire, and unbounded integers in this module (IBTA vol. 1, section 9.7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from heddle.endpoints.nic.frames import Received
from heddle.endpoints.nic.qpend import NEVER, Access, Message
from heddle.wire import layout as wire
from heddle.wire.layout import NAK_ACCESS, NAK_INVALID, NAK_SEQUENCE, PSN_MASK, psn_after

Recovery = Literal["go-back-n", "go-back-0", "selective-repeat"]


@dataclass(frozen=True, slots=True)
class RcParams:
    """Parameters of a connection. Times in seconds, sizes in bytes, the window in packets.

    ack_every: number of packets after which the receiver sends a requested ACK at once.
    ack_delay_s: the longest time that it otherwise delays the ACK, so that one ACK answers several packets (IBTA
    vol. 1, section 9.7.5.1.2, allows a responder to coalesce acknowledgements).
    recovery: from loss; this module has go-back-n, and rc.py the others.
    repeat_tos: traffic class of what selective repeat sends again; -1: that of the data.
    """

    mtu: int = 4096
    window: int = 64
    ack_every: int = 8
    timeout_s: float = 0.54
    retries: int = 7
    ack_delay_s: float = 0.0
    recovery: Recovery = "go-back-n"
    repeat_tos: int = -1


def last_good(psn: int) -> str:
    """How far an end has come, from the oldest PSN that is missing or not acknowledged."""
    return f"last good PSN {(psn - 1) & PSN_MASK:#x}"


def why_failed(params: RcParams, syndrome: int, una: int) -> str:
    """The error of a requester that got no answer (syndrome 0), or an answer with this syndrome.

    una: the oldest PSN without an acknowledgement.
    """
    if syndrome == 0:
        return f"no acknowledgement after {params.retries} retries of {params.timeout_s:.3g} s ({last_good(una)})"
    return f"the receiver refused a write (AETH syndrome 0x{syndrome:02x}, {last_good(una)})"


@dataclass(frozen=True, slots=True)
class _Posted:
    """A posted message: its first PSN (unbounded), and its number of packets."""

    message: Message
    first: int
    packets: int


class Burst(NamedTuple):
    """Consecutive packets of one message: `packets` of them from packet `start` on, the first with PSN `psn` (24 bits).

    of: number of packets of the whole message. repeated: requested one by one.
    """

    message: Message
    start: int
    packets: int
    psn: int
    of: int
    repeated: bool = False


@dataclass(slots=True)
class RequesterCounters:
    """Counters of a requester, in packets; timeouts: number of times."""

    sent: int = 0
    retransmitted: int = 0
    naks: int = 0
    timeouts: int = 0
    nacks: int = 0


class Requester:
    """The sending half of a QP."""

    __slots__ = (
        "_queue", "_tail", "_tries", "_unsent", "counters", "deadline", "error", "next", "params", "tried", "una",
    )  # fmt: skip

    def __init__(self, params: RcParams, psn: int) -> None:
        self.params = params
        self.una = psn  # oldest PSN not acknowledged
        self.next = psn  # next PSN to send
        self.tried = psn  # one past the highest PSN ever sent
        self._tail = psn  # one past the last posted PSN
        self._queue: deque[_Posted] = deque()  # messages not completely acknowledged, oldest first
        self._unsent = 0  # index in _queue of the message that contains `next`
        self._tries = 0
        self.deadline = NEVER
        self.error = ""
        self.counters = RequesterCounters()

    @property
    def idle(self) -> bool:
        """True when everything that was posted is acknowledged."""
        return self.una == self._tail

    @property
    def ready(self) -> int:
        """The number of packets that may be sent now."""
        return 0 if self.error else min(self._tail, self.una + self.params.window) - self.next

    @property
    def requested(self) -> int:
        """Packets that the peer has requested one by one."""
        return 0

    @property
    def in_flight(self) -> int:
        """Packets that are not acknowledged, without those that will be retransmitted."""
        return self.next - self.una - self.requested

    def post(self, message: Message) -> None:
        """Queue a message; it is sent in order, when the window allows."""
        packets = max(1, -(-len(message.payload) // self.params.mtu))
        self._queue.append(_Posted(message, self._tail, packets))
        self._tail += packets

    def take(self, limit: int, now: float) -> list[Burst]:
        """Up to `limit` packets to send now, as bursts. They count as sent; starts the retransmission timer."""
        bursts: list[Burst] = []
        start = at = self.next
        end = min(start + limit, start + self.ready)
        while at < end:
            posted = self._queue[self._unsent]
            beyond = posted.first + posted.packets
            stop = end if end < beyond else beyond
            bursts.append(Burst(posted.message, at - posted.first, stop - at, at & PSN_MASK, posted.packets))
            self._unsent += stop == beyond
            at = stop
        if bursts:
            self._sent(end, now)
        return bursts

    def _sent(self, end: int, now: float) -> None:
        """Count the packets from `next` to `end` as sent."""
        start, self.next = self.next, end
        self.counters.sent += end - start
        if start < self.tried:
            self.counters.retransmitted += min(self.tried, end) - start
        self.tried = max(self.tried, end)
        if self.deadline == NEVER:
            self.deadline = now + self.params.timeout_s

    def acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Handle an ACK or NAK for `psn` (24 bits)."""
        at = self._unwrap(psn)
        if syndrome & 0x60 == 0:
            self._advance(at + 1, now)
        elif syndrome == NAK_SEQUENCE:
            self.counters.naks += 1
            self._advance(at, now)
            if at == self.una and self.una < self.tried:
                self._rewind(now)
        else:
            self._fail(why_failed(self.params, syndrome, self.una))

    def expire(self, now: float) -> None:
        """If the timer has expired at `now`, retransmit, or give up."""
        if now < self.deadline:
            return
        self.counters.timeouts += 1
        self._tries += 1
        if self._tries > self.params.retries:
            self._fail(why_failed(self.params, 0, self.una))
        else:
            self._retry(now)

    def hold(self, seconds: float) -> None:
        """Delay the timer by the time in which its packets could not leave the port."""
        self.deadline += seconds

    def _retry(self, now: float) -> None:
        """After a timeout, go back to the oldest unacknowledged packet."""
        self._rewind(now)

    def _fail(self, why: str) -> None:
        self.error = why
        self.deadline = NEVER

    def _unwrap(self, psn: int) -> int:
        """The unbounded PSN nearest to `una` that has these 24 bits."""
        return self.una + psn_after(psn, self.una)

    def _advance(self, una: int, now: float) -> None:
        if not self.una < una <= self.tried:
            return  # an outdated acknowledgement, or one for packets that were never sent
        self.una = una
        self._tries = 0
        while self._queue and self._queue[0].first + self._queue[0].packets <= una:
            self._queue.popleft()
            self._unsent -= 1
        if self.next <= una:  # acknowledged during go-back-N: continue from there
            self.next = una
            self._unsent = 0
        self.deadline = NEVER if self.una == self.next else now + self.params.timeout_s

    def _rewind(self, now: float) -> None:
        self.next = self.una
        self._unsent = 0
        self.deadline = now + self.params.timeout_s


class WritePacket(NamedTuple):
    """The header fields of an RDMA WRITE packet that a responder needs. `reth` is (va, rkey, length)."""

    psn: int
    first: bool
    last: bool
    ack_request: bool
    reth: tuple[int, int, int] | None = None
    imm: int | None = None


class RequestForm(NamedTuple):
    """What an opcode says of a request's packet, of RC or UC."""

    first: bool
    last: bool
    reth: bool
    imm: bool
    send: bool

    def packet(self, got: Received, index: int) -> WritePacket:
        """The packet in frame `index`."""
        reth = got.reth(index) if self.reth else None
        imm = got.imm(index) if self.imm else None
        return WritePacket(got.psns[index], self.first, self.last, got.ackreqs[index], reth, imm)


REQUESTS: Final[Mapping[int, RequestForm]] = {
    wire.SEND_FIRST: RequestForm(True, False, False, False, True),
    wire.SEND_MIDDLE: RequestForm(False, False, False, False, True),
    wire.SEND_LAST: RequestForm(False, True, False, False, True),
    wire.SEND_LAST_IMM: RequestForm(False, True, False, True, True),
    wire.SEND_ONLY: RequestForm(True, True, False, False, True),
    wire.SEND_ONLY_IMM: RequestForm(True, True, False, True, True),
    wire.WRITE_FIRST: RequestForm(True, False, True, False, False),
    wire.WRITE_MIDDLE: RequestForm(False, False, False, False, False),
    wire.WRITE_LAST: RequestForm(False, True, False, False, False),
    wire.WRITE_LAST_IMM: RequestForm(False, True, False, True, False),
    wire.WRITE_ONLY: RequestForm(True, True, True, False, False),
    wire.WRITE_ONLY_IMM: RequestForm(True, True, True, True, False),
}
WRITES: Final[Mapping[int, RequestForm]] = {opcode: form for opcode, form in REQUESTS.items() if not form.send}
# (is a SEND, first, last, with immediate) -> opcode. Only the last packet has the immediate.
OPCODES: Final = {(form.send, form.first, form.last, form.imm): opcode for opcode, form in REQUESTS.items()}


@dataclass(slots=True)
class ResponderCounters:
    """Counters of a responder, in packets; `duplicates` and `out_of_order` were not accepted."""

    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    invalid: int = 0
    naks: int = 0


class Responder:
    """The receiving half of a QP: accepts packets in order, writes them to memory, decides the answers."""

    __slots__ = (
        "_asked", "_at", "_early", "_left", "_nak_sent", "_psn", "_target", "_unacked", "ack_at", "ack_due", "counters",
        "memory", "msn", "params", "reply",
    )  # fmt: skip

    def __init__(self, params: RcParams, psn: int, memory: Access) -> None:
        self.params = params
        self.memory = memory
        self.msn = 0
        self.ack_due = False
        self.ack_at = NEVER  # when a delayed acknowledgement is due
        self.reply: tuple[int, int] | None = None  # a NAK to send: (PSN, syndrome)
        self.counters = ResponderCounters()
        self._psn = psn & PSN_MASK  # the expected PSN
        self._asked = False  # an acknowledgement was requested
        self._unacked = 0  # packets accepted since the last acknowledgement
        self._nak_sent = False
        self._early = self._psn  # the highest PSN since the NAK that arrived too early and was discarded
        self._target: memoryview | None = None  # the destination of the current message
        self._at = 0
        self._left = 0

    @property
    def acked(self) -> int:
        """The PSN for an ACK that is sent now: the last one accepted in order."""
        return (self._psn - 1) & PSN_MASK

    def expire(self, now: float) -> None:
        """Make a delayed acknowledgement due."""
        if self.ack_at <= now:
            self.ack_at, self.ack_due = NEVER, True

    def answered(self) -> None:
        """Reset the pending answers after one was sent: a NAK acknowledges earlier packets, too."""
        self.reply, self.ack_due, self.ack_at = None, False, NEVER
        self._asked, self._unacked = False, 0

    def receive(self, packet: WritePacket, payload: memoryview, now: float) -> None:
        """Handle a data packet with a correct ICRC. Afterwards `ack_due`, `ack_at` and `reply` show what to send."""
        ahead = psn_after(packet.psn, self._psn)
        if ahead < 0:
            self.counters.duplicates += 1
            self.ack_due = True  # its ACK was lost, or the sender's timer expired too early: acknowledge again
            return
        if ahead > 0:
            self.counters.out_of_order += 1
            if not self._nak_sent or psn_after(packet.psn, self._early) >= 0:
                self._early = packet.psn
            if not self._nak_sent:  # one NAK per gap, until the missing packet arrives
                self._nak(NAK_SEQUENCE)
            return
        problem = self._write(packet, payload)
        if problem:
            self.counters.invalid += 1
            self._nak(problem)
            return
        self.counters.received += 1
        self._psn = (self._psn + 1) & PSN_MASK
        if self._nak_sent:
            self._close_gap()
        self._owe(packet.ack_request, now)
        if packet.last:
            self.msn = (self.msn + 1) & PSN_MASK
            if packet.imm is not None:
                self.memory.arrived(packet.imm)

    def _owe(self, asked: bool, now: float) -> None:
        """After accepting a packet, decide whether an acknowledgement is due now, later, or not at all."""
        self._unacked += 1
        self._asked = self._asked or asked
        if self._asked and self._unacked >= self.params.ack_every:
            self.ack_due = True
        elif self._asked and self.ack_at == NEVER:
            self.ack_at = now + self.params.ack_delay_s

    def _close_gap(self) -> None:
        """Handle the arrival of a missing packet. If its NAK is still unsent, change it to request the packets after it
        that were discarded.

        When those have also arrived again, the NAK is not needed any more.
        """
        waits = self.reply is not None and self.reply[1] == NAK_SEQUENCE
        if waits and psn_after(self._early, self._psn) >= 0:
            self.reply = (self._psn, NAK_SEQUENCE)
            return
        self._nak_sent = False
        if waits:
            self.reply = None
            self.ack_due = True

    def _nak(self, syndrome: int) -> None:
        self.counters.naks += 1
        self._nak_sent = True
        self.reply = (self._psn, syndrome)

    def _write(self, packet: WritePacket, payload: memoryview) -> int:
        """Copy a packet's payload to its destination; return 0, or the syndrome of an error."""
        size = len(payload)
        if packet.first:
            if self._target is not None or packet.reth is None:
                return NAK_INVALID
            va, rkey, length = packet.reth
            target = self.memory.resolve(va, rkey, length)
            if target is None:
                return NAK_ACCESS
            self._target, self._at, self._left = target, 0, length
        if self._target is None or size > self._left or (not packet.last and size != self.params.mtu):
            return NAK_INVALID
        if packet.last and size != self._left:
            return NAK_INVALID
        self._target[self._at : self._at + size] = payload
        self._at += size
        self._left -= size
        if packet.last:
            self._target = None
        return 0
