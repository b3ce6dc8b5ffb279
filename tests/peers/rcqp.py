"""A queue pair that requests and responds, with all operations of a reliable connection: its frames.

`--transport rc` needs WRITEs in one direction only, and has faster ends (rc.py). This one talks to other stacks.
READ responses are data: they leave in the turn of the queue pair, before its own requests. An ACK waits for them, since
it would acknowledge requests after the READ. It then leaves with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.parse import Received
from heddle.endpoints.nic.qpend import Access, QpEnd, QpInfo, passes_on
from heddle.endpoints.transports.rcstate import OPCODES, REQUESTS, Burst, RcParams
from heddle.wire import layout as wire
from tests.peers.rcops import OpRequester, OpResponder, ReadReply, kind_of

_RESPONSES: Final = {
    (True, False): wire.READ_RESPONSE_FIRST,
    (False, False): wire.READ_RESPONSE_MIDDLE,
    (False, True): wire.READ_RESPONSE_LAST,
    (True, True): wire.READ_RESPONSE_ONLY,
}


@passes_on("requester", "error", "post", "hold")
class RcQp(QpEnd):
    """Both halves of a queue pair, which posts Operations.

    answers: headers of its ACKs and NAKs, which may have another traffic class. psn, peer_psn: the first
    PSN of its own requests, and of the peer's.
    """

    __slots__ = ("_after_reads", "_answers", "_flow", "requester", "responder")

    def __init__(
        self, params: RcParams, qp: QpInfo, answers: FlowHeader, memory: Access, peer_psn: int | None = None
    ) -> None:
        self._flow, self._answers = qp.flow, answers
        self._after_reads = False  # a response was finished: look whether an answer waits
        self.requester = OpRequester(params, qp.psn)
        self.responder = OpResponder(params, qp.psn if peer_psn is None else peer_psn, memory)

    @property
    def ready(self) -> bool:
        """Whether responses or requests may be sent."""
        return bool(self.responder.reads) or self._after_reads or self.requester.ready > 0

    @property
    def answering(self) -> bool:
        """Whether an ACK or a NAK is due, and no response has to be sent before it."""
        return self._due and not self.responder.reads and not self._after_reads

    @property
    def _due(self) -> bool:
        return self.responder.ack_due or self.responder.reply is not None

    @property
    def deadline(self) -> float:
        """The retransmission timer, or a pending ACK."""
        return min(self.requester.deadline, self.responder.ack_at)

    @property
    def idle(self) -> bool:
        """Whether everything that was posted is finished, and every response is sent."""
        return self.requester.idle and not self.responder.reads

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write READ responses, then requests."""
        at = slot
        while self.responder.reads and at - slot < limit:
            self._respond(batch, at)
            at += 1
        if self._after_reads and not self.responder.reads and at - slot < limit:
            self._after_reads = False
            if self._due:
                self.answer(batch, at)
                at += 1
        for burst in self.requester.take(limit - (at - slot), now):
            at += self._request(batch, at, burst)
        return at - slot

    def _respond(self, batch: SendBatch, slot: int) -> None:
        responder, mtu = self.responder, self.requester.params.mtu
        reply = responder.reads.popleft()
        part, rest = reply.data[:mtu], reply.data[mtu:]
        opcode = _RESPONSES[reply.first, not len(rest)]
        aeth = wire.WORD.pack(wire.ACK_NO_LIMIT << 24 | responder.msn)
        extension = b"" if opcode == wire.READ_RESPONSE_MIDDLE else aeth
        batch.put_packet(slot, self._flow, opcode, reply.psn, part, extension=extension)
        if len(rest):
            responder.reads.appendleft(ReadReply((reply.psn + 1) & wire.PSN_MASK, rest, first=False))
        else:
            self._after_reads = True

    def _request(self, batch: SendBatch, slot: int, burst: Burst) -> int:
        """Write the packets of a burst; return their number."""
        message, mtu, size = burst.message, self.requester.params.mtu, len(burst.message.payload)
        kind = kind_of(message)
        if kind == "read":
            start = burst.start * mtu
            reth = wire.RETH.pack(message.va + start, message.rkey, size - start)
            batch.put_packet(slot, self._flow, wire.READ_REQUEST, burst.psn, extension=reth, ackreq=True)
            return 1
        announced, every = getattr(message, "announced", True), self.requester.params.ack_every
        for i in range(burst.packets):
            index = burst.start + i
            first, last = index == 0, index == burst.of - 1
            opcode = OPCODES[kind == "send", first, last, last and announced]
            batch.put_data(
                slot + i, self._flow, opcode, burst.psn + i & wire.PSN_MASK,
                message.payload[index * mtu : (index + 1) * mtu], ackreq=last or (index + 1) % every == 0,
                reth=(message.va, message.rkey, size) if first and kind == "write" else None,
                imm=message.imm if last and announced else None,
            )  # fmt: skip
        return burst.packets

    def answer(self, batch: SendBatch, slot: int) -> None:
        """Write the NAK, or the ACK of everything that was accepted."""
        responder = self.responder
        psn, syndrome = responder.reply or (responder.acked, wire.ACK_NO_LIMIT)
        batch.put_ack(slot, self._answers, psn, syndrome, responder.msn)
        responder.answered()

    def receive(self, got: Received, index: int, now: float) -> bool:
        """Take one packet: an answer, a READ response, or a request."""
        opcode, psn = got.kinds[index].opcode, got.psns[index]
        if opcode == wire.ACK:
            self.requester.acknowledge(psn, got.aeth(index)[0], now)
        elif wire.READ_RESPONSE_FIRST <= opcode <= wire.READ_RESPONSE_ONLY:
            self.requester.response(psn, got.payload(index), now)
        elif opcode == wire.READ_REQUEST:
            self.responder.receive_read(psn, got.reth(index), now)
        elif (request := REQUESTS.get(opcode)) is not None:
            take = self.responder.receive_send if request.send else self.responder.receive
            take(request.packet(got, index), got.payload(index), now)
        else:
            return False
        return True

    def expire(self, now: float) -> None:
        """Handle both timers."""
        self.requester.expire(now)
        self.responder.expire(now)

    def counters(self) -> Mapping[str, int]:
        """Of both halves."""
        asked, answered = self.requester.counters, self.responder.counters
        return {
            "retransmitted": asked.retransmitted, "naks": asked.naks, "timeouts": asked.timeouts,
            "not_ready": self.requester.not_ready, "out_of_order": answered.out_of_order,
            "duplicates": answered.duplicates,
        }  # fmt: skip
