"""rc: InfiniBand's reliable connection over RoCEv2. Data are RDMA WRITEs with immediate, answers are ACKs and NAKs.

This module has parameters, frames and counters. The state of a connection (PSNs, go-back-N) is in rcstate.py, other
recoveries from loss are in recovery.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

from heddle.base.declared import Declared
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.parse import Received
from heddle.endpoints.nic.qpend import NEVER, Access, QpEnd, QpInfo, passes_on
from heddle.endpoints.transports.protocol import FastConnection, Transport
from heddle.endpoints.transports.rcstate import WRITES, RcParams, Recovery, last_good, why_failed
from heddle.endpoints.transports.recovery import requester_of, responder_of
from heddle.traffic.plan import Plan
from heddle.wire import layout as wire

TIMER_S: Final = 0.02  # resolution of retransmission timers; that of a shorter timeout is the timeout
_ACK_EVERY: Final = 8
_ACK_DELAY_FRAMES: Final = 16  # frames that the slowest NIC sends while an acknowledgement waits
_ACK_DELAY_S: Final = 0.02
# The counters of a connection whose receiver acknowledges, and whose sender retransmits.
COLUMNS: Final = (
    Column("retransmitted", "packets", "sent again", "packets"),
    Column("naks", "packets", "NAKs received"),
    Column("timeouts", "times", "time-outs"),
    Column("out_of_order", "packets", "out of order", "order"),
    Column("duplicates", "packets", "received again"),
)


def timer_after(exact: float, timeout_s: float) -> float:
    """When a retransmission timer for this time expires: rounded up to its resolution; NEVER for NEVER.

    So it expires before twice the timeout. IBTA vol. 1, section 9.7.6.1.3, allows four times.
    """
    step = min(TIMER_S, timeout_s)
    return exact if exact == NEVER else -(-exact // step) * step


@passes_on("_requester", "idle", "error", "post", "expire", "hold", "in_flight", "requested")
class RcSender(QpEnd):
    """A requester and its frames."""

    __slots__ = ("_flow", "_requester")

    def __init__(self, params: RcParams, qp: QpInfo) -> None:
        self._flow = qp.flow
        self._requester = requester_of(params, qp.psn)

    @property
    def ready(self) -> bool:
        """Whether packets are posted and the window has room."""
        return self._requester.ready > 0

    @property
    def deadline(self) -> float:
        """When the retransmission timer expires, rounded up to its resolution."""
        return timer_after(self._requester.deadline, self._requester.params.timeout_s)

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        """Write the next packets, new or retransmitted."""
        requester, flow, at = self._requester, self._flow, slot
        for burst in requester.take(limit, now):
            message = burst.message
            batch.put_write(
                at, flow, burst.psn, message.payload,
                reth=(message.va, message.rkey, len(message.payload)), imm=message.imm,
                index=burst.start, count=burst.packets, ack_every=requester.params.ack_every,
            )  # fmt: skip
            at += burst.packets
        return at - slot

    def receive(self, got: Received, index: int, now: float) -> bool:
        if got.kinds[index].opcode != wire.ACK:
            return False
        syndrome, _ = got.aeth(index)
        self._requester.acknowledge(got.psns[index], syndrome, now)
        return True

    def counters(self) -> Mapping[str, int]:
        seen = self._requester.counters
        return {"retransmitted": seen.retransmitted, "naks": seen.naks, "timeouts": seen.timeouts}


@passes_on("_responder", "expire")
class RcReceiver(QpEnd):
    """A responder and its frames: one ACK for several packets, or the NAK of a gap."""

    __slots__ = ("_flow", "_responder")

    def __init__(self, params: RcParams, qp: QpInfo, memory: Access) -> None:
        self._flow = qp.flow
        self._responder = responder_of(params, qp.psn, memory)

    @property
    def answering(self) -> bool:
        """Whether an ACK or a NAK is due."""
        return self._responder.ack_due or self._responder.reply is not None

    @property
    def deadline(self) -> float:
        """The latest time for a pending ACK."""
        return self._responder.ack_at

    def answer(self, batch: SendBatch, slot: int) -> None:
        """Write the NAK, or the ACK of everything that was accepted."""
        responder = self._responder
        psn, syndrome = responder.reply or (responder.acked, wire.ACK_NO_LIMIT)
        batch.put_ack(slot, self._flow, psn, syndrome, responder.msn)
        responder.answered()

    def receive(self, got: Received, index: int, now: float) -> bool:
        write = WRITES.get(got.kinds[index].opcode)
        if write is None:
            return False
        self._responder.receive(write.packet(got, index), got.payload(index), now)
        return True

    @property
    def standing(self) -> str:
        return last_good(self._responder.acked + 1)

    def counters(self) -> Mapping[str, int]:
        seen = self._responder.counters
        return {"out_of_order": seen.out_of_order, "duplicates": seen.duplicates}


@dataclass(frozen=True, slots=True)
class RcOptions:
    """What users choose of `rc` alone."""

    recovery: Annotated[Recovery, Declared(
        "what rc sends again after a loss: go-back-n, go-back-0 (the whole message), selective-repeat", "Transport",
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
    return RcParams(plan.ib_mtu, plan.window, every, plan.timeout_s, o.retries, delay, o.of(RcOptions).recovery)


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

    columns: ClassVar[tuple[Column, ...]] = COLUMNS
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
        """Another recovery than that of the compiled loop."""
        return f"--recovery {self.params.recovery}"

    def _pace(self, qp: QpInfo) -> tuple[int, int]:
        params = of_qp(self.params, qp)
        return params.window, params.ack_every

    def sender(self, qp: QpInfo) -> QpEnd:
        return RcSender(of_qp(self.params, qp), qp)

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return RcReceiver(of_qp(self.params, qp), qp, memory)
