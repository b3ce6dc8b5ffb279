"""The two ends of a queue pair of Open Traffic Generator: Heddle's reliable connection, with SENDs and its own headers.

In:  a RoceFlow. Out: ends for a NIC (endpoints/nic), and their counters as OTG names them.
The sender posts messages without end until it is stopped. Its payload is zeros, and the receiver writes all messages
into the same memory: what is checked is that each packet arrives, in order and sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from heddle.endpoints.congestion.dcqcn import Dcqcn
from heddle.endpoints.congestion.ratecontrol import (
    FAR_NS,
    NotifyingReceiver,
    PacedSender,
    SendControl,
    Shaper,
    to_ns,
)
from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import Message, QpEnd, QpInfo
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import OPCODES, REQUESTS, RcParams
from heddle.traffic.flow import Endpoint
from heddle.wire import layout as wire
from heddle_plugins.otg.documents import ECN
from heddle_plugins.otg.flows import MOST_MESSAGE, WINDOW, OtgPort, RoceFlow

AHEAD: Final = 2  # messages that wait at a sender
_ACK_EVERY: Final = 8
_ACK_DELAY_S: Final = 0.005
_STEPS: Final = 16  # of the record of a rate, which nothing reads here
# Pages that nothing has written take no memory.
_ZEROS: Final = memoryview(bytes(MOST_MESSAGE))
_SCRATCH: Final = memoryview(bytearray(MOST_MESSAGE))


class FixedRate:
    """A rate that stays: a share of the line rate. A `SendControl`."""

    window = float("inf")
    deadline_ns = FAR_NS

    def __init__(self, rate_bps: float) -> None:
        self.rate_bps = rate_bps

    def sent(self, size: int, now_ns: int) -> None:
        """The rate stays."""

    def notified(self, now_ns: int) -> None:
        """The rate stays."""

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        """The rate stays."""

    def lost(self, timed_out: bool, now_ns: int) -> None:
        """The rate stays."""

    def expire(self, now_ns: int) -> None:
        """The rate stays."""


def params_of(flow: RoceFlow) -> RcParams:
    """The parameters of its connection."""
    return RcParams(flow.qp.ib_mtu, WINDOW, _ACK_EVERY, flow.timeout_s, flow.retries, _ACK_DELAY_S)


def header_of(here: Endpoint, there: Endpoint, sport: int, dqpn: int, tos: int) -> FlowHeader:
    """The headers of packets from one NIC to another."""
    return FlowHeader(
        src_mac=here.mac, dst_mac=here.gateway_mac, src_ip=here.ip, dst_ip=there.ip, sport=sport, dqpn=dqpn, tos=tos
    )


class MessageSender(RcSender):
    """A requester of any of the verbs, whose messages follow each other until `stop`.

    posted: messages so far. acks, naks, cnps: that arrived.
    """

    __slots__ = ("_first", "_form", "_message", "_packets", "_running", "acks", "cnps", "naks", "posted")

    def __init__(self, flow: RoceFlow, qp: QpInfo) -> None:
        super().__init__(params_of(flow), qp)
        self._message = Message(
            _ZEROS[: flow.message_bytes], flow.qp.data["virtual_address"], flow.qp.data["remote_key"], flow.imm
        )
        self._form = flow.verb.startswith("send"), flow.verb.endswith("immediate")
        self._running = False
        self._first, self._packets = qp.psn, -(-flow.message_bytes // flow.qp.ib_mtu)
        self.posted = self.acks = self.naks = self.cnps = 0

    def run(self) -> None:
        """Begin to post messages."""
        self._running = True
        self._refill()

    def stop(self) -> None:
        """Post no more messages; those that were posted go on."""
        self._running = False

    @property
    def running(self) -> bool:
        """Whether it posts messages."""
        return self._running

    @property
    def complete(self) -> int:
        """Messages of which all packets are acknowledged."""
        return (self._requester.una - self._first) // self._packets

    def _refill(self) -> None:
        while self._running and self.posted - self.complete < AHEAD:
            self._requester.post(self._message)
            self.posted += 1

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        send, immediate = self._form
        requester, at = self._requester, slot
        for burst in requester.take(limit, now):
            payload, mtu = burst.message.payload, requester.params.mtu
            for index in range(burst.start, burst.start + burst.packets):
                first, last = index == 0, index == burst.of - 1
                batch.put_data(
                    at, self._flow, OPCODES[send, first, last, last and immediate], burst.psn + index - burst.start,
                    payload[index * mtu : (index + 1) * mtu],
                    ackreq=last or (index + 1) % requester.params.ack_every == 0,
                    reth=(burst.message.va, burst.message.rkey, len(payload)) if first and not send else None,
                    imm=burst.message.imm if last and immediate else None,
                )  # fmt: skip
                at += 1
        return at - slot

    def receive(self, got: Received, index: int, now: float) -> bool:
        if got.kinds[index].opcode == wire.CNP:
            self.cnps += 1  # without a rate that it could change
            return True
        taken = super().receive(got, index, now)
        if taken:
            refused = bool(got.aeth(index)[0] & wire.SYNDROME_KIND)
            self.acks += not refused
            self.naks += refused
            self._refill()
        return taken


class MessageMemory:
    """The memory of a receiver: every message is written to the same bytes. size: of a message."""

    def __init__(self, size: int) -> None:
        self.size = size

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        """Memory for a message; None for one that is longer than those of the flow."""
        return _SCRATCH[:length] if length <= self.size else None

    def arrived(self, imm: int) -> None:
        """Messages are counted by the receiver: most have no immediate."""


class MessageReceiver(RcReceiver):
    """A responder of any of the verbs. messages: complete ones. acks, naks: that it has sent. bytes: of data frames."""

    __slots__ = ("_acks_flow", "_memory", "_naks_flow", "acks", "bytes", "messages", "naks")

    def __init__(self, flow: RoceFlow, qp: QpInfo, memory: MessageMemory) -> None:
        super().__init__(params_of(flow), qp, memory)
        self._memory = memory
        answers = flow.rx.roce["connection_type"][1]
        self._acks_flow, self._naks_flow = (qp.flow.with_tos(tos_of(answers[each])) for each in ("ack", "nak"))
        self.messages = self.acks = self.naks = self.bytes = 0

    def answer(self, batch: SendBatch, slot: int) -> None:
        nak = self._responder.reply is not None
        self._flow = self._naks_flow if nak else self._acks_flow
        self.naks += nak
        self.acks += not nak
        super().answer(batch, slot)

    def receive(self, got: Received, index: int, now: float) -> bool:
        form = REQUESTS.get(got.kinds[index].opcode)
        if form is None:
            return False
        packet = form.packet(got, index)
        if form.send and form.first:  # a SEND has no address: its message goes where a receive was posted
            packet = packet._replace(reth=(0, 0, self._memory.size))
        before = self._responder.msn
        self._responder.receive(packet, got.payload(index), now)
        self.messages += (self._responder.msn - before) & wire.PSN_MASK
        self.bytes += got.kinds[index].frame_bytes
        return True


def tos_of(answer: Mapping[str, Any]) -> int:
    """The traffic class of a kind of answers."""
    return int(answer["ip_dscp"]["value"]) << 2 | ECN[answer["ecn_value"]]


class CnpSender(NotifyingReceiver):
    """A receiving end that answers marks, with the traffic class that its port's settings give CNPs."""

    __slots__ = ()

    def __init__(self, end: QpEnd, port: OtgPort, k: int, qp: QpInfo) -> None:
        super().__init__(end, dcqcn_of(port, k).cnp, qp)
        self._flow = qp.flow.with_tos(tos_of(port.roce["cnp"]))


def dcqcn_of(port: OtgPort, k: int) -> Dcqcn:
    """DCQCN with the settings of a port. Rates in percent are of its line rate; times are multiplied by k."""
    own, line_mbps = port.roce["dcqcn_settings"], port.end.rate_bps * k / 1e6

    def rate(name: str) -> float:
        return float(max(1, round(own[name] * line_mbps / 100)))

    values = {each.name: each.default for each in Dcqcn.tunables}
    values |= {
        "dce_tcp_g": own["alpha_g"], "initial_alpha_value": own["initial_alpha"],
        "dce_tcp_rtt": own["alpha_update_period"], "rate_reduce_monitor_period": own["rate_reduction_time_period"],
        "rate_to_set_on_first_cnp": rate("initial_rate_after_first_cnp"), "rpg_min_rate": rate("minimum_rate_limmit"),
        "rpg_min_dec_fac": 100 - own["maximum_rate_decrement_at_time"], "clamp_tgt_rate": own["clamp_target_rate"],
        "rpg_time_reset": own["rate_increment_time"], "rpg_byte_reset": own["rate_increment_byte_counter"],
        "rpg_threshold": own["rate_increment_threshold"], "rpg_ai_rate": rate("additive_increment_rate"),
        "rpg_hai_rate": rate("hyper_increment_rate"), "min_time_between_cnps": port.roce["cnp"]["cnp_delay_timer"],
        "cnp_dscp": port.roce["cnp"]["ip_dscp"]["value"],
    }  # fmt: skip
    return Dcqcn.of(values, k, 0)


def paced(end: QpEnd, flow: RoceFlow, qp: QpInfo, shared: Shaper | None, k: int, frame_bits: int) -> QpEnd:
    """A sending end under its port's rate and its own congestion control. shared: the shaper of the port's rate."""
    if shared is not None:
        end = PacedSender(end, shared, qp)
    if flow.qp.port.dcqcn:
        line = flow.qp.port.end.rate_bps * flow.share
        control: SendControl = dcqcn_of(flow.qp.port, k).control(line, to_ns(flow.rtt_s))
        end = PacedSender(end, Shaper(control, line, frame_bits, _STEPS), replace(qp))
    return end


def shaper_of(flow: RoceFlow, frame_bits: int) -> Shaper | None:
    """A shaper for the rate of a port; None at the line rate, where the port itself sets the pace."""
    line = flow.qp.port.end.rate_bps
    return None if flow.share >= 1 else Shaper(FixedRate(flow.share * line), line, frame_bits, _STEPS)
