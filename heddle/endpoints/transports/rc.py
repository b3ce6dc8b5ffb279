"""rc: InfiniBand's reliable connection over RoCEv2. Data are RDMA WRITEs with immediate, answers are ACKs and NAKs.

This module has parameters, frames and counters, and the recoveries from loss other than go-back-N. rcstate.py has the
state of a connection (PSNs, go-back-N), without frames.

| mode | the receiver, at a gap | the sender, after a NAK or a timeout |
|---|---|---|
| go-back-n (rcstate.py) | discards later packets, NAKs the first missing one | retransmits from that packet on |
| go-back-0 | also discards what it has of the message, NAKs its first packet | sends the whole message again |
| selective-repeat | keeps later packets, NAKs each missing one | sends only the requested packets again |

go-back-0 is the recovery of early RoCE adapters: with long messages and little loss it completes none of them (Guo et
al., "RDMA over Commodity Ethernet at Scale", SIGCOMM 2016, section 4.1). selective-repeat is that of newer adapters and
of IRN (Mittal et al., "Revisiting Network Support for RDMA", SIGCOMM 2018). Packets are kept for at most one window.
All three send the same packets. In selective-repeat a NAK does not acknowledge earlier packets.
selective-repeat also answers a packet that a switch has trimmed: a NACK (wire/sack.py) asks for it at once. What it
sends again may have a traffic class of its own, so that a switch can prefer it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

from heddle.base.declared import Declared
from heddle.base.problems import InputError, Problem
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Access, QpEnd, QpInfo, passes_on
from heddle.endpoints.transports.protocol import FastConnection, Transport
from heddle.endpoints.transports.rcstate import (
    WRITES,
    Burst,
    RcParams,
    Recovery,
    Requester,
    Responder,
    WritePacket,
    last_good,
    why_failed,
)
from heddle.traffic.plan import Plan
from heddle.wire import layout as wire
from heddle.wire.layout import NAK_SEQUENCE, PSN_MASK, psn_after
from heddle.wire.sack import Nack, Sack

_NAKS: Final = 16  # maximum number of packets to request at once after a timeout
_ASK_AGAIN: Final = 4  # a missing packet is requested again after this part of the sender's timeout at the earliest


class RestartRequester(Requester):
    """go-back-0: retransmits the incomplete message from its first packet on."""

    __slots__ = ()

    def acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Handle an ACK or NAK. A NAK acknowledges all messages before the one that contains its packet."""
        if syndrome != NAK_SEQUENCE:
            super().acknowledge(psn, syndrome, now)
            return
        at = self._unwrap(psn)
        self.counters.naks += 1
        self._advance(at, now)
        if self._queue and self._queue[0].first <= at < self.tried:
            self._rewind(now)

    def _advance(self, una: int, now: float) -> None:
        """As for go-back-N, but an ACK of packets that were not sent since the last restart is outdated.

        The receiver has discarded these packets, unless it has the whole message.
        """
        if una > self.next:
            ends = (posted.first + posted.packets for posted in self._queue)
            una = max((end for end in ends if end <= una), default=self.una)
        super()._advance(una, now)

    def _rewind(self, now: float) -> None:
        self.una = self._queue[0].first
        super()._rewind(now)


class RestartResponder(Responder):
    """go-back-0: at a gap, discards the packets of the message that it has accepted."""

    __slots__ = ("_start",)

    def __init__(self, params: RcParams, psn: int, memory: Access) -> None:
        super().__init__(params, psn, memory)
        self._start = self._psn  # of the first packet of the current message, or of the next one

    def receive(self, packet: WritePacket, payload: memoryview, now: float) -> None:
        later = psn_after(packet.psn, self._psn) > 0
        if self._target is not None and (later or packet.psn == self._start):
            discarded = (self._psn - self._start) & PSN_MASK
            self.counters.received -= discarded
            self.counters.duplicates += discarded
            self._psn, self._target = self._start, None
        super().receive(packet, payload, now)
        if self._target is None:
            self._start = self._psn


class SelectiveRequester(Requester):
    """selective-repeat: sends each packet once, and again only the requested ones."""

    __slots__ = ("_again", "_held", "_oldest")

    def __init__(self, params: RcParams, psn: int) -> None:
        super().__init__(params, psn)
        self._oldest = (-1, 0.0)  # of the latest NACK: the oldest packet without ACK, and since when it was that one
        self._again: dict[int, None] = {}  # PSNs to retransmit, in order
        self._held: set[int] = set()  # PSNs beyond `una` that the receiver has, as a SACK says

    @property
    def ready(self) -> int:
        return 0 if self.error else len(self._again) + super().ready

    @property
    def requested(self) -> int:
        """Packets to retransmit; a timeout counts as a request, too."""
        return len(self._again)

    @property
    def in_flight(self) -> int:
        return super().in_flight - len(self._held)

    def take(self, limit: int, now: float) -> list[Burst]:
        """Up to `limit` packets to send now, requested ones first."""
        bursts = [self._repeat(psn) for psn in list(self._again)[:limit] if not self.error]
        new = min(limit - len(bursts), super().ready)
        if bursts and self.deadline == NEVER:
            self.deadline = now + self.params.timeout_s
        return bursts + super().take(new, now) if new > 0 else bursts

    def _repeat(self, psn: int) -> Burst:
        del self._again[psn]
        self.counters.sent += 1
        self.counters.retransmitted += 1
        posted = next(p for p in self._queue if p.first <= psn < p.first + p.packets)
        return Burst(posted.message, psn - posted.first, 1, psn & PSN_MASK, posted.packets, repeated=True)

    def acknowledge(self, psn: int, syndrome: int, now: float) -> None:
        """Handle an ACK of all packets up to `psn`, or a NAK that requests the packet `psn`."""
        if syndrome != NAK_SEQUENCE:
            super().acknowledge(psn, syndrome, now)
            self._again = {each: None for each in self._again if each >= self.una}
            self._held = {each for each in self._held if each >= self.una}
            return
        at = self._unwrap(psn)
        self.counters.naks += 1
        self._request(at)

    def _request(self, psn: int) -> bool:
        found = self.una <= psn < self.next and psn not in self._held
        if found:
            self._again[psn] = None
        return found

    def selected(self, sack: Sack, now: float) -> None:
        """Handle a SACK: what it has beyond its cumulative PSN is neither in flight nor sent again."""
        self.acknowledge(sack.cack, wire.ACK_NO_LIMIT, now)
        last = self._unwrap(sack.cack)
        for offset in sack.psns():
            if self.una <= last + offset < self.next:
                self._held.add(last + offset)
                self._again.pop(last + offset, None)

    def trimmed(self, nack: Nack, now: float) -> None:
        """Handle a NACK: send the packet again, unless it is acknowledged. The timer restarts: the receiver lives.

        Not for ever: where switches trim each repetition, too, the connection fails as without answers.
        """
        self.counters.nacks += 1
        if self._oldest[0] != self.una:
            self._oldest = self.una, now
        in_time = now - self._oldest[1] < self.params.retries * self.params.timeout_s
        if self._request(self._unwrap(nack.psn)) and in_time:
            self.deadline = now + self.params.timeout_s

    def _retry(self, now: float) -> None:
        """After a timeout, retransmit the oldest packet and the latest one, which reveals all gaps."""
        self._request(self.una)
        self._request(self.next - 1)
        self.deadline = now + self.params.timeout_s


class SelectiveResponder(Responder):
    """selective-repeat: keeps packets that arrived too early, and requests each missing one.

    The kept packets are accepted in order when the missing ones have arrived, so WRITEs need no address in each packet.
    """

    __slots__ = ("_asked_at", "_beyond", "_kept", "_nacks", "_repeats", "_requests")

    def __init__(self, params: RcParams, psn: int, memory: Access) -> None:
        super().__init__(params, psn, memory)
        self._kept: dict[int, tuple[WritePacket, bytes]] = {}  # by PSN
        self._beyond = self._psn  # one past the latest PSN that has arrived
        self._requests: deque[int] = deque()  # missing PSNs whose NAKs follow the one in `reply`
        self._asked_at = 0.0  # the time of the latest requests
        self._nacks: deque[Nack] = deque()  # to send before all other answers
        self._repeats: set[int] = set()  # PSNs that NACKs have requested

    def receive(self, packet: WritePacket, payload: memoryview, now: float) -> None:
        psn = packet.psn
        ahead = psn_after(psn, self._psn)
        self._repeats.discard(psn)
        if psn in self._kept:
            self.counters.duplicates += 1
            self.ack_due = True
            self._ask_again(now)
            return
        if ahead <= 0:
            super().receive(packet, payload, now)
            if ahead == 0:
                self._settle(now)
            return
        self.counters.out_of_order += 1
        if ahead >= self.params.window:
            return  # no sender with this window sends it
        self._ask_again(now)
        self._kept[psn] = (packet, bytes(payload))
        if psn in self._requests:
            self._requests.remove(psn)
        if self.reply == (psn, NAK_SEQUENCE):
            self._next_request()
        if psn_after(psn, self._beyond) >= 0:
            gap = (self._beyond + i & PSN_MASK for i in range(psn - self._beyond & PSN_MASK))
            self._request([each for each in gap if each not in self._repeats], now)
            self._beyond = psn + 1 & PSN_MASK

    @property
    def nack(self) -> Nack | None:
        """The NACK to send before all other answers."""
        return self._nacks[0] if self._nacks else None

    def trimmed(self, psn: int, entropy: int, reason: int) -> bool:
        """Answer a packet that arrived without its payload: by a NACK, or by an ACK if the payload is here.

        Trimmed packets overtake others, so the ones before it are not missing yet. False for one beyond the window.
        """
        ahead = psn_after(psn, self._psn)
        if ahead >= self.params.window:
            return False
        if ahead < 0 or psn in self._kept:
            self.ack_due = True
            return True
        self._nacks.append(Nack(psn, reason, entropy))
        self._repeats.add(psn)
        return True

    def answered(self) -> None:
        """Reset the pending answer. After a NACK or a NAK, the others and an ACK are still pending."""
        if self._nacks:
            self._nacks.popleft()
            return
        if self.reply is not None and self.reply[1] == NAK_SEQUENCE:
            self._next_request()
        else:
            super().answered()

    def _settle(self, now: float) -> None:
        """After accepting a packet, accept the kept ones that follow it, and drop requests that are not needed."""
        while self._psn in self._kept:
            before = self._psn
            packet, payload = self._kept.pop(before)
            super().receive(packet, memoryview(payload), now)
            if self._psn == before:
                return  # the packet was invalid, and the connection fails
            self.ack_due = True
        if psn_after(self._psn, self._beyond) >= 0:
            self._beyond = self._psn
        if self.reply is not None and self.reply[1] == NAK_SEQUENCE and self._old(self.reply[0]):
            self._next_request()

    def _old(self, psn: int) -> bool:
        return psn_after(psn, self._psn) < 0

    def _next_request(self) -> None:
        while self._requests and self._old(self._requests[0]):
            self._requests.popleft()
        self.reply = (self._requests.popleft(), NAK_SEQUENCE) if self._requests else None

    def _request(self, psns: Sequence[int], now: float) -> None:
        for psn in psns:
            self.counters.naks += 1
            self._requests.append(psn)
        if psns:
            self._asked_at = now
        if self.reply is None:
            self._next_request()

    def _ask_again(self, now: float) -> None:
        """Request the missing packets again if the last requests are old: the requests or the packets were lost."""
        if now - self._asked_at < self.params.timeout_s / _ASK_AGAIN:
            return
        count = (self._beyond - self._psn) & PSN_MASK
        missing = [psn for i in range(count) if (psn := self._psn + i & PSN_MASK) not in self._kept]
        waiting = {*self._requests, self.reply[0] if self.reply else None}
        self._request([psn for psn in missing[:_NAKS] if psn not in waiting], now)


_REQUESTERS: Final[Mapping[Recovery, type[Requester]]] = {
    "go-back-n": Requester,
    "go-back-0": RestartRequester,
    "selective-repeat": SelectiveRequester,
}
_RESPONDERS: Final[Mapping[Recovery, type[Responder]]] = {
    "go-back-n": Responder,
    "go-back-0": RestartResponder,
    "selective-repeat": SelectiveResponder,
}


def requester_of(params: RcParams, psn: int) -> Requester:
    """The sending half of a QP with the recovery of `params`."""
    return _REQUESTERS[params.recovery](params, psn)


def responder_of(params: RcParams, psn: int, memory: Access) -> Responder:
    """The receiving half of a QP with the recovery of `params`."""
    return _RESPONDERS[params.recovery](params, psn, memory)


TIMER_S: Final = 0.02  # resolution of retransmission timers; that of a shorter timeout is the timeout
_ACK_EVERY: Final = 8
_ACK_DELAY_FRAMES: Final = 16  # frames that the slowest NIC sends while an acknowledgement waits
_ACK_DELAY_S: Final = 0.02
# The counters of a connection whose receiver acknowledges, and whose sender retransmits.
COLUMNS: Final = (
    Column("retransmitted", "packets", "retransmitted", "packets"),
    Column("naks", "packets", "NAKs received"),
    Column("timeouts", "times", "timeouts"),
    Column("out_of_order", "packets", "out of order", "order"),
    Column("duplicates", "packets", "duplicate"),
)
TRIM_COLUMNS: Final = (
    Column("trimmed", "packets", "arrived trimmed"),
    Column("nacks", "packets", "NACKs received"),
)


def repeat_header(flow: FlowHeader, params: RcParams) -> FlowHeader:
    """The header of packets that are sent again: `flow`, or with a traffic class of their own."""
    return flow if params.repeat_tos < 0 else flow.with_tos(params.repeat_tos)


def timer_after(exact: float, timeout_s: float) -> float:
    """When a retransmission timer for this time expires: rounded up to its resolution; NEVER for NEVER.

    So it expires before twice the timeout. IBTA vol. 1, section 9.7.6.1.3, allows four times.
    """
    step = min(TIMER_S, timeout_s)
    return exact if exact == NEVER else -(-exact // step) * step


@passes_on("_requester", "idle", "error", "post", "expire", "hold", "in_flight", "requested")
class RcSender(QpEnd):
    """A requester and its frames."""

    __slots__ = ("_flow", "_repeats", "_requester")

    def __init__(self, params: RcParams, qp: QpInfo) -> None:
        self._flow = qp.flow
        self._repeats = repeat_header(qp.flow, params)
        self._requester = requester_of(params, qp.psn)

    @property
    def ready(self) -> bool:
        return self._requester.ready > 0

    @property
    def deadline(self) -> float:
        return timer_after(self._requester.deadline, self._requester.params.timeout_s)

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        requester, at = self._requester, slot
        for burst in requester.take(limit, now):
            message = burst.message
            batch.put_write(
                at, self._repeats if burst.repeated else self._flow, burst.psn, message.payload,
                reth=(message.va, message.rkey, len(message.payload)), imm=message.imm,
                index=burst.start, count=burst.packets, ack_every=requester.params.ack_every,
            )  # fmt: skip
            at += burst.packets
        return at - slot

    def receive(self, got: Received, index: int, now: float) -> bool:
        opcode, requester = got.kinds[index].opcode, self._requester
        if opcode in (wire.NACK, wire.SACK) and isinstance(requester, SelectiveRequester):
            answer = got.extension(index)
            if opcode == wire.SACK:
                requester.selected(Sack.unpack(answer), now)
            else:
                requester.trimmed(Nack.unpack(answer), now)
            return True
        if opcode != wire.ACK:
            return False
        syndrome, _ = got.aeth(index)
        self._requester.acknowledge(got.psns[index], syndrome, now)
        return True

    def counters(self) -> Mapping[str, int]:
        seen = self._requester.counters
        found = {"retransmitted": seen.retransmitted, "naks": seen.naks, "timeouts": seen.timeouts}
        return {**found, "nacks": seen.nacks}


@passes_on("_responder", "expire")
class RcReceiver(QpEnd):
    """A responder and its frames: one ACK for several packets, the NAK of a gap, the NACK of a trimmed packet."""

    __slots__ = ("_flow", "_responder", "_trimmed")

    def __init__(self, params: RcParams, qp: QpInfo, memory: Access) -> None:
        self._flow, self._trimmed = qp.flow, 0
        self._responder = responder_of(params, qp.psn, memory)

    @property
    def answering(self) -> bool:
        return self._responder.ack_due or self._responder.reply is not None or self._nack is not None

    @property
    def _nack(self) -> Nack | None:
        return self._responder.nack if isinstance(self._responder, SelectiveResponder) else None

    @property
    def deadline(self) -> float:
        return self._responder.ack_at

    def answer(self, batch: SendBatch, slot: int) -> None:
        responder = self._responder
        psn, syndrome = responder.reply or (responder.acked, wire.ACK_NO_LIMIT)
        if (nack := self._nack) is not None:
            batch.put_nack(slot, self._flow, nack)
        else:
            batch.put_ack(slot, self._flow, psn, syndrome, responder.msn)
        responder.answered()

    def receive(self, got: Received, index: int, now: float) -> bool:
        write = WRITES.get(got.kinds[index].opcode)
        if write is None:
            return False
        self._responder.receive(write.packet(got, index), got.payload(index), now)
        return True

    def trimmed(self, got: Received, index: int, now: float) -> bool:
        kind, responder = got.kinds[index], self._responder
        if kind.opcode not in WRITES or not isinstance(responder, SelectiveResponder):
            return False
        taken = responder.trimmed(got.psns[index], kind.sport, kind.trimmed)
        self._trimmed += taken
        return taken

    @property
    def standing(self) -> str:
        return last_good(self._responder.acked + 1)

    def counters(self) -> Mapping[str, int]:
        seen = self._responder.counters
        return {"out_of_order": seen.out_of_order, "duplicates": seen.duplicates, "trimmed": self._trimmed}


@dataclass(frozen=True, slots=True)
class RepeatOptions:
    """What users choose of transports that send single packets again."""

    retransmission_dscp: Annotated[int, Declared(
        f"DSCP of single packets that srd or selective-repeat retransmits; -1: {wire.DSCP_REPEATED} where switches "
        "trim, else as the data", "Transport", value="N", least=-1, most=63,
    )] = -1  # fmt: skip


@dataclass(frozen=True, slots=True)
class RcOptions(RepeatOptions):
    """What users choose of `rc` alone."""

    recovery: Annotated[Recovery, Declared(
        "what rc retransmits after a loss: go-back-n, go-back-0 (the whole message), selective-repeat", "Transport",
        unlike="is not a recovery from loss",
    )] = "go-back-n"  # fmt: skip


def connection_params(plan: Plan) -> RcParams:
    """Parameters for a plan, with the largest window of its QPs: an ACK arrives long before a timeout."""
    slowest = min(each.rate_bps for each in plan.endpoints)
    frame_s = 8 * (plan.ib_mtu + wire.LAYOUTS[plan.ip_version].overhead_bytes) / slowest
    delay = min(_ACK_DELAY_FRAMES * frame_s, _ACK_DELAY_S, plan.timeout_s / 8)
    # A window that follows delays needs one for each packet, and may be smaller than the usual number of packets.
    every = 1 if plan.control is not None and plan.control.windowed else _ack_every(plan.window)
    o = plan.options
    dscp, recovery = o.of(RepeatOptions).retransmission_dscp, o.of(RcOptions).recovery
    if dscp < 0 and plan.trims:
        dscp = wire.DSCP_REPEATED
    if plan.trims and dscp in plan.trim_dscps:
        why = "is the DSCP of trimmed packets: data would fill their queue"
        raise InputError(Problem("", f"--retransmission-dscp {dscp}", why, "use another one, or leave it out"))
    tos = dscp << 2 | wire.ECT0 if dscp >= 0 else -1
    return RcParams(plan.ib_mtu, plan.window, every, plan.timeout_s, o.retries, delay, recovery, tos)


def of_qp(params: RcParams, qp: QpInfo) -> RcParams:
    """The parameters with the window of this QP in the plan."""
    if qp.window in (0, params.window):
        return params
    return replace(params, window=qp.window, ack_every=min(params.ack_every, _ack_every(qp.window)))


def _ack_every(window: int) -> int:
    """The number of packets after which an ACK is sent at once: before the window is full."""
    return max(1, min(_ACK_EVERY, window - max(1, window // 4)))


@dataclass(frozen=True, slots=True)
class Rc(Transport):
    """The reliable connection, with its parameters."""

    params: RcParams

    columns: ClassVar[tuple[Column, ...]] = (*COLUMNS, *TRIM_COLUMNS)
    options: ClassVar[type[Any] | None] = RcOptions

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(connection_params(plan))

    def fast(self) -> FastConnection | None:
        """The same state machines, compiled; None for recoveries that only Python has."""
        p = self.params
        if p.recovery != "go-back-n":
            return None
        return FastConnection(
            p.timeout_s, p.ack_delay_s, p.retries, self._pace,
            ("retransmitted", "naks", "timeouts"), ("out_of_order", "duplicates"), partial(why_failed, p),
        )  # fmt: skip

    @property
    def uncompiled(self) -> str:
        return f"--recovery {self.params.recovery}"

    @property
    def again_dscp(self) -> int:
        single = self.params.recovery == "selective-repeat" and self.params.repeat_tos >= 0
        return self.params.repeat_tos >> 2 if single else -1

    def _pace(self, qp: QpInfo) -> tuple[int, int]:
        params = of_qp(self.params, qp)
        return params.window, params.ack_every

    def sender(self, qp: QpInfo) -> QpEnd:
        return RcSender(of_qp(self.params, qp), qp)

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return RcReceiver(of_qp(self.params, qp), qp, memory)
