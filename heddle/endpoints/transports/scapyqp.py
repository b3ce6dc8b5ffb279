"""A queue pair on scapy's layers, as a NIC drives it: a packet is `Ether / IP / UDP / BTH / ...` (scapystate.py)."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.parse import Received
from heddle.endpoints.nic.qpend import Access, Message, QpEnd, QpInfo
from heddle.endpoints.transports.scapyparams import Role, ScapyParams
from heddle.endpoints.transports.scapystate import ScapyRequester, ScapyResponder, payload_of
from heddle.wire import layout as wire
from heddle.wire.roce import AETH, BTH


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
        self.responder = ScapyResponder(
            params, qp.flow.dqpn, qp.psn if peer_psn is None else peer_psn, memory or _Nothing()
        )
        self._behind = False  # the next ACK leaves behind a response

    @property
    def ready(self) -> bool:
        """Whether responses or requests may be sent."""
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
        """Whether everything that was posted is finished, and every response is sent."""
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
        """Take one packet: an answer, a READ response, or a request."""
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
        """Delay the timer by the time in which packets could not leave the port."""
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


class _Nothing:
    """The memory of an end that has none: no key permits access."""

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """None."""
        return None

    def arrived(self, imm: int) -> None:
        """Nothing arrives."""
