"""A reliable connection on scapy's layers: both halves, and the end of a NIC that drives them.

The teaching reference: slow and readable, with all that RC can do (WRITE, SEND, READ, atomics). It shares nothing with
`rc` but the interface of NICs, so each of the two tests the other one. Section numbers are those of IBTA vol. 1. The
halves take and make a BTH and what follows it; ScapyQp adds `Ether / IP / UDP`.

Requester: each posted operation takes a range of packet sequence numbers (PSNs), a READ one for each packet of its
response (9.7.3.1). Packets from `una` to `next` are in flight. An ACK for a PSN acknowledges all before it. After a NAK
or a timeout the next packet is the oldest without an acknowledgement (go-back-N). A missing READ response is requested
again. RNR NAK: wait for the time in it.
Responder: only the packet with the expected PSN is executed. An earlier one is a duplicate, and answered again. A later
one is discarded, and the first of them answered with NAK sequence error.
No ACK follows a READ that was accepted last: its response acknowledges all before it. An ACK between the packets of a
response would end a connection of rxe (docs/programs.md).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Literal, NamedTuple

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Access, Message, QpEnd, QpInfo
from heddle.endpoints.transports.scapyparams import Role, ScapyParams
from heddle.wire import layout as wire
from heddle.wire.roce import AETH, BTH, RETH, AtomicAckETH, AtomicETH, ImmDt, aeth

OpKind = Literal["write", "send", "read"]
RNR_CODE: Final = 12  # 0.64 ms
# Milliseconds of an RNR NAK's timer by its code (table 45).
RNR_MS: Final = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip
_ATOMIC: Final = struct.Struct(">Q")
_VERBS: Final = {"write": "RDMA_WRITE", "send": "SEND"}


@dataclass(frozen=True, slots=True)
class Operation(Message):
    """A message with its kind. payload: bytes to send, or writable memory that a READ fills.

    va, rkey: of a WRITE or READ. announced: with immediate data; never for a READ.
    """

    kind: OpKind = "write"
    announced: bool = False


class Arrival(NamedTuple):
    """A finished SEND: its bytes, and its immediate data."""

    length: int
    imm: int | None


@dataclass(frozen=True, slots=True)
class _Posted:
    """A posted operation: its first PSN and the one after its last, both unbounded."""

    message: Message
    kind: OpKind
    announced: bool
    first: int
    beyond: int


class ScapyRequester:
    """The half that posts operations: `request` is the next packet, without the layers below its BTH."""

    def __init__(self, params: ScapyParams, dqpn: int, psn: int) -> None:
        self.params, self._dqpn = params, dqpn
        self.una = self.next = self.tried = self._tail = psn  # oldest without ACK; next; one past those sent, posted
        self._posted: deque[_Posted] = deque()
        self.deadline, self._tries, self.error = NEVER, 0, ""
        self._waits = False  # after RNR NAK
        self._asked_again = False  # for a READ response, since the last one in order
        self.retransmitted = self.naks = self.timeouts = self.not_ready = 0

    @property
    def ready(self) -> bool:
        """Whether a packet is posted, and the window has room."""
        return not self.error and not self._waits and self.next < min(self._tail, self.una + self.params.window)

    @property
    def idle(self) -> bool:
        """Whether all is acknowledged."""
        return self.una == self._tail

    def post(self, message: Message) -> None:
        """Queue an operation; a plain Message is a WRITE with immediate."""
        packets = max(1, -(-len(message.payload) // self.params.mtu))
        kind: OpKind = message.kind if isinstance(message, Operation) else "write"
        announced = message.announced if isinstance(message, Operation) else True
        self._posted.append(_Posted(message, kind, announced, self._tail, self._tail + packets))
        self._tail += packets

    def request(self, now: float) -> Any:
        """The next packet; it counts as sent, and starts the timer."""
        posted = next(each for each in self._posted if each.beyond > self.next)
        message, mtu, index = posted.message, self.params.mtu, self.next - posted.first
        start, size = index * mtu, len(posted.message.payload)
        first, last = index == 0, self.next + 1 == posted.beyond
        packet, after = BTH(dqpn=self._dqpn, psn=self.next & wire.PSN_MASK, ackreq=1), self.next + 1
        if posted.kind == "read":
            packet.opcode, after = wire.READ_REQUEST, posted.beyond
            packet /= RETH(va=message.va + start, rkey=message.rkey, dmalen=size - start)
        else:
            part = "ONLY" if first and last else "FIRST" if first else "LAST" if last else "MIDDLE"
            announced = last and posted.announced
            name = f"RC_{_VERBS[posted.kind]}_{part}{'_WITH_IMMEDIATE' * announced}"
            packet.opcode = BTH.opcode.s2i[name]
            packet.ackreq = last or (index + 1) % self.params.ack_every == 0
            if first and posted.kind == "write":
                packet /= RETH(va=message.va, rkey=message.rkey, dmalen=size)
            if announced:
                packet /= ImmDt(data=message.imm)
            packet /= bytes(message.payload[start : start + mtu])
        self.retransmitted += max(0, min(after, self.tried) - self.next)
        self.next, self.tried = after, max(self.tried, after)
        if self.deadline == NEVER:
            self.deadline = now + self.params.timeout_s
        return packet

    def acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Take an ACK, a NAK or an RNR NAK. None completes a READ, nor what follows it: only its response does."""
        at, kind = self.una + wire.psn_after(psn, self.una), syndrome & wire.SYNDROME_KIND
        beyond = at if kind else at + 1
        read = next((each for each in self._posted if each.kind == "read" and each.first < beyond), None)
        if read is not None:
            self._advance(max(read.first, self.una), now)
            if beyond <= self.tried:
                self._ask_again(now)
            return
        self.naks += syndrome == wire.NAK_SEQUENCE
        self.not_ready += kind == wire.RNR_NAK
        self._advance(beyond, now)
        if kind == wire.RNR_NAK and at == self.una < self.tried:
            self._rewind(now + RNR_MS[syndrome & 0x1F] / 1000)
            self._waits = True
        elif syndrome == wire.NAK_SEQUENCE and at == self.una < self.tried:
            self._rewind(now + self.params.timeout_s)
        elif kind not in (0, wire.RNR_NAK) and syndrome != wire.NAK_SEQUENCE:
            self._fail(f"the receiver refused a request (AETH syndrome 0x{syndrome:02x}, {self._last_good})")

    def response(self, psn: int, payload: bytes, now: float) -> None:
        """Take a packet of a READ's response; only in order."""
        at = self.una + wire.psn_after(psn, self.una)
        read = next((each for each in self._posted if each.kind == "read"), None)
        if at < self.una or at >= self.tried or read is None:
            return  # a duplicate
        if not read.first <= at < read.beyond or at > max(self.una, read.first):
            self._ask_again(now)
            return
        place = (at - read.first) * self.params.mtu
        wanted = min(self.params.mtu, len(read.message.payload) - place)
        if len(payload) != wanted:
            self._fail(f"a READ response has {len(payload)} bytes in place of {wanted}")
            return
        read.message.payload[place : place + wanted] = payload
        self._asked_again = False
        self._advance(at + 1, now)

    def expire(self, now: float) -> None:
        """If the timer has expired, go back to the oldest packet without an acknowledgement."""
        if now < self.deadline:
            return
        if self._waits:
            self._waits, self.deadline = False, now + self.params.timeout_s
            return
        self._asked_again = False
        self.timeouts += 1
        self._tries += 1
        if self._tries > self.params.retries:
            retries = f"{self.params.retries} retries of {self.params.timeout_s:.3g} s"
            self._fail(f"no acknowledgement after {retries} ({self._last_good})")
        else:
            self._rewind(now + self.params.timeout_s)

    @property
    def _last_good(self) -> str:
        return f"last good PSN {(self.una - 1) & wire.PSN_MASK:#x}"

    def _advance(self, una: int, now: float) -> None:
        if not self.una < una <= self.tried:
            return  # outdated, or for packets that were never sent
        self.una, self.next, self._tries, self._waits = una, max(self.next, una), 0, False
        while self._posted and self._posted[0].beyond <= una:
            self._posted.popleft()
        self.deadline = NEVER if self.una == self.next else now + self.params.timeout_s

    def _rewind(self, deadline: float) -> None:
        self.next, self.deadline = self.una, deadline

    def _ask_again(self, now: float) -> None:
        """Once for each gap in the responses."""
        if not self._asked_again:
            self._asked_again = True
            self._rewind(now + self.params.timeout_s)

    def _fail(self, why: str) -> None:
        self.error, self.deadline = why, NEVER


class ScapyResponder:
    """The half that executes requests. `responses`: packets to send, before any other answer."""

    def __init__(self, params: ScapyParams, dqpn: int, psn: int, memory: Access | None) -> None:
        self._params, self._dqpn, self._memory = params, dqpn, memory
        self.expected, self.msn = psn & wire.PSN_MASK, 0
        self.due = False  # an ACK or a NAK
        self._nak = 0  # its syndrome, if it is a NAK
        self._early = -1  # the latest PSN that was discarded after a gap; -1: there is no gap
        self._after_read = -1  # the expected PSN, if the packet before it belongs to a READ
        self.responses: deque[Any] = deque()
        self._message = ""  # SEND or RDMA_WRITE: what the next packet continues
        self._target, self._at = memoryview(b""), 0
        self._inbox: deque[memoryview] = deque()
        self._atomics: dict[int, int] = {}  # PSN -> original value, of the latest ones: never executed twice
        self.arrivals: list[Arrival] = []
        self.received = self.out_of_order = self.duplicates = self.naks = 0

    def post_receive(self, memory: memoryview) -> None:
        """Give memory for one SEND."""
        self._inbox.append(memory)

    def request(self, packet: Any) -> None:
        """Take a request."""
        ahead, read = wire.psn_after(packet.psn, self.expected), packet.opcode == wire.READ_REQUEST
        if ahead > 0:
            self.out_of_order += 1
            if self._early < 0:  # one NAK for each gap
                self.due, self._nak, self.naks, self._early = True, wire.NAK_SEQUENCE, self.naks + 1, packet.psn
            elif wire.psn_after(packet.psn, self._early) > 0:
                self._early = packet.psn
            return
        if ahead < 0:
            self.duplicates += 1
            if AtomicETH in packet:
                self._atomic_answer(packet.psn)
            elif not read:
                self.due = self._after_read != self.expected
            elif (data := self._resolved(packet[RETH], packet[RETH].dmalen)) is not None:
                self._respond(packet.psn, data)
            return
        syndrome = self._execute(packet)
        if syndrome:
            self.naks += 1
            self.due, self._nak, self._early = True, syndrome, self.expected  # later packets get no NAK of their own
            return
        self.received += 1
        if not read and AtomicETH not in packet:
            self.expected = self.expected + 1 & wire.PSN_MASK
            self.due = self.due or bool(packet.ackreq)
        elif not self._nak:
            self.due = False
        if self._early >= 0 and not self._nak:
            self._early = -1

    def answer(self) -> Any:
        """The ACK of all that was executed, or the NAK of the PSN that is expected."""
        if self._nak == wire.NAK_SEQUENCE and wire.psn_after(self._early, self.expected) < 0:
            self._nak, self._early = 0, -1  # meanwhile all of the gap has arrived
        psn, syndrome = (self.expected, self._nak) if self._nak else (self.expected - 1, wire.ACK_NO_LIMIT)
        self.due, self._nak = False, 0
        return BTH(opcode=wire.ACK, dqpn=self._dqpn, psn=psn & wire.PSN_MASK) / aeth(syndrome, self.msn)

    def _execute(self, packet: Any) -> int:
        """Execute the request with the expected PSN; 0, or the syndrome of an error."""
        if packet.opcode == wire.READ_REQUEST:
            data = self._resolved(packet[RETH], packet[RETH].dmalen)
            if data is None or self._message:
                return wire.NAK_ACCESS if data is None else wire.NAK_INVALID
            self._finished()
            self._respond(packet.psn, data)
            packets = max(1, -(-len(data) // self._params.mtu))
            self.expected = self._after_read = packet.psn + packets & wire.PSN_MASK
            return 0
        return self._atomic(packet) if AtomicETH in packet else self._message_part(packet)

    def _message_part(self, packet: Any) -> int:
        """A packet of a WRITE or SEND."""
        name = wire.OPCODE_NAMES[packet.opcode]
        verb = "SEND" if "SEND" in name else "RDMA_WRITE"
        starts, ends = "_FIRST" in name or "_ONLY" in name, "_LAST" in name or "_ONLY" in name
        payload = payload_of(packet)
        if starts == bool(self._message) or (not starts and verb != self._message):
            return wire.NAK_INVALID  # a message begins within another one, or none has begun
        if starts:
            if verb == "RDMA_WRITE":
                target = self._resolved(packet[RETH], packet[RETH].dmalen)
            else:
                target = self._inbox[0] if self._inbox else None
            if target is None:
                return wire.NAK_ACCESS if verb == "RDMA_WRITE" else wire.RNR_NAK | RNR_CODE
            self._target, self._at = target, 0
        left, size = len(self._target) - self._at, len(payload)
        if size > left or (not ends and size != self._params.mtu) or (ends and verb == "RDMA_WRITE" and size != left):
            return wire.NAK_INVALID
        self._target[self._at : self._at + size] = payload
        self._at += size
        self._message = "" if ends else verb
        if starts and verb == "SEND":
            self._inbox.popleft()
        if ends:
            self._finished()
            imm = int(packet[ImmDt].data) if ImmDt in packet else None
            if verb == "SEND":
                self.arrivals.append(Arrival(self._at, imm))
            elif imm is not None and self._memory is not None:
                self._memory.arrived(imm)
        return 0

    def _finished(self) -> None:
        self.msn = self.msn + 1 & wire.PSN_MASK

    def _resolved(self, header: Any, length: int) -> memoryview | None:
        return None if self._memory is None else self._memory.resolve(header.va, header.rkey, length)

    def _respond(self, psn: int, data: memoryview) -> None:
        """Queue the packets of a READ's response."""
        mtu = self._params.mtu
        packets = max(1, -(-len(data) // mtu))
        for step in range(packets):
            part = "ONLY" if packets == 1 else "FIRST" if not step else "LAST" if step + 1 == packets else "MIDDLE"
            packet = BTH(opcode=f"RC_RDMA_READ_RESPONSE_{part}", dqpn=self._dqpn, psn=psn + step & wire.PSN_MASK)
            if part != "MIDDLE":
                packet /= aeth(wire.ACK_NO_LIMIT, self.msn)
            self.responses.append(packet / bytes(data[step * mtu : (step + 1) * mtu]))

    def _atomic(self, packet: Any) -> int:
        """Compare and swap, or fetch and add, of eight bytes in big-endian order."""
        asked = packet[AtomicETH]
        target = self._resolved(asked, _ATOMIC.size)
        if target is None or asked.va % _ATOMIC.size or self._message:
            return wire.NAK_ACCESS if target is None else wire.NAK_INVALID
        (was,) = _ATOMIC.unpack(target)
        swaps = packet.opcode == wire.COMPARE_SWAP
        now = (asked.swap if was == asked.compare else was) if swaps else was + asked.swap & (1 << 64) - 1
        _ATOMIC.pack_into(target, 0, now)
        self._finished()
        self._atomics[packet.psn] = was
        if len(self._atomics) > self._params.window:
            del self._atomics[next(iter(self._atomics))]
        self._atomic_answer(packet.psn)
        self.expected = self._after_read = packet.psn + 1 & wire.PSN_MASK
        return 0

    def _atomic_answer(self, psn: int) -> None:
        if psn in self._atomics:
            packet = BTH(opcode=wire.ATOMIC_ACK, dqpn=self._dqpn, psn=psn) / aeth(wire.ACK_NO_LIMIT, self.msn)
            self.responses.append(packet / AtomicAckETH(before=self._atomics[psn]))


def payload_of(packet: Any) -> bytes:
    """The bytes behind the last header."""
    return bytes(packet[Raw].load) if Raw in packet else b""


def below_bth(flow: FlowHeader) -> Any:
    """The layers below the BTH: `Ether / IP / UDP`, or with IPv6."""
    ether = Ether(src=flow.src_mac.hex(":"), dst=flow.dst_mac.hex(":"))
    src, dst = str(ip_address(flow.src_ip)), str(ip_address(flow.dst_ip))
    if flow.layout.version == 6:
        return ether / IPv6(src=src, dst=dst, tc=flow.tos, fl=0, hlim=64) / UDP(sport=flow.sport)
    return ether / IP(src=src, dst=dst, tos=flow.tos, id=0, flags="DF") / UDP(sport=flow.sport)


class ScapyQp(QpEnd):
    """Both halves of a queue pair, as an end of a NIC.

    role: `sends` posts WRITEs only, `receives` executes WRITEs only, `both` does everything. peer_psn: the first PSN of
    the peer's requests, if it differs from that of this end. answers: headers of ACKs and NAKs, if they have others.
    READ responses are data: they leave in the turn of the queue pair. An ACK waits for them, and leaves behind them.
    """

    def __init__(
        self,
        params: ScapyParams,
        qp: QpInfo,
        memory: Access | None = None,
        *,
        role: Role = "both",
        answers: FlowHeader | None = None,
        peer_psn: int | None = None,
    ) -> None:
        self._below, self._below_answers, self._role = below_bth(qp.flow), below_bth(answers or qp.flow), role
        self.requester = ScapyRequester(params, qp.flow.dqpn, qp.psn)
        self.responder = ScapyResponder(params, qp.flow.dqpn, qp.psn if peer_psn is None else peer_psn, memory)
        self._behind = False  # the next ACK leaves behind a response

    @property
    def ready(self) -> bool:
        return bool(self.responder.responses) or (self._behind and self.responder.due) or self.requester.ready

    @property
    def answering(self) -> bool:
        """Whether an ACK or a NAK is due, and no response has to be sent before it."""
        return self.responder.due and not self.responder.responses and not self._behind

    @property
    def deadline(self) -> float:
        return self.requester.deadline

    @property
    def idle(self) -> bool:
        return self.requester.idle and not self.responder.responses

    @property
    def in_flight(self) -> int:
        return self.requester.next - self.requester.una

    @property
    def error(self) -> str:
        return self.requester.error

    def post(self, message: Message) -> None:
        if self._role == "receives":
            return super().post(message)
        return self.requester.post(message)

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write READ responses, an ACK that waits for them, then requests."""
        at, responder = slot, self.responder
        while at < slot + limit and self.ready:
            if responder.responses:
                packet, self._behind = responder.responses.popleft(), True
            elif self._behind and responder.due:
                packet, self._behind = responder.answer(), False
            else:
                packet = self.requester.request(now)
            batch.put_frame(at, bytes(self._below / packet))
            at += 1
        return at - slot

    def answer(self, batch: SendBatch, slot: int) -> None:
        batch.put_frame(slot, bytes(self._below_answers / self.responder.answer()))

    def receive(self, got: Received, index: int, now: float) -> bool:
        kind = got.kinds[index]
        name = wire.OPCODE_NAMES[kind.opcode]
        write = name.startswith("RC_RDMA_WRITE")
        if not name.startswith("RC_") or (self._role == "receives" and not write):
            return False
        if self._role == "sends" and kind.opcode != wire.ACK:
            return False
        frame = got.buffer.frame_of(index, kind.frame_bytes)
        packet = Ether(bytes(frame))[BTH]
        if kind.opcode == wire.ACK:
            self.requester.acknowledge(packet.psn, packet[AETH].syndrome, now)
        elif "READ_RESPONSE" in name:
            self.requester.response(packet.psn, payload_of(packet), now)
        elif kind.opcode != wire.ATOMIC_ACK:
            self.responder.request(packet)
        return kind.opcode != wire.ATOMIC_ACK  # this requester has no atomics

    def expire(self, now: float) -> None:
        self.requester.expire(now)

    def hold(self, seconds: float) -> None:
        self.requester.deadline += seconds

    @property
    def standing(self) -> str:
        return f"last good PSN {(self.responder.expected - 1) & wire.PSN_MASK:#x}" if self._role != "sends" else ""

    def counters(self) -> Mapping[str, int]:
        asked, answered = self.requester, self.responder
        sender = {"retransmitted": asked.retransmitted, "naks": asked.naks, "timeouts": asked.timeouts}
        receiver = {"out_of_order": answered.out_of_order, "duplicates": answered.duplicates}
        if self._role == "both":
            return {**sender, "not_ready": asked.not_ready, **receiver}
        return sender if self._role == "sends" else receiver
