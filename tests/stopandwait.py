"""A second transport, as a user would add one: this file, and one line of TRANSPORTS (`register`).

Stop-and-wait: one packet is under way. Every packet is a write of its own, placed by its own address. A rate limiter
leaves at least `gap_s` between two packets. The receiver can ignore every N-th packet, as if it had been lost. The
sender can use several source ports, of which the plan has only the first: it reports them, or does not.
`python -m tests.stopandwait` is a worker that knows it.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import ClassVar, Self

from heddle.base.problems import InputError, Problem
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Access, Message, PathUse, QpEnd, QpInfo
from heddle.endpoints.transports import TRANSPORTS
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rcstate import last_good
from heddle.traffic.plan import Plan
from heddle.wire import layout as wire

NAME = "stop-and-wait"
_RETRIES = 200


@dataclass(frozen=True, slots=True)
class WaitParams:
    mtu: int
    timeout_s: float
    gap_s: float = 0.001
    ignore_every: int = 0
    ports: int = 1
    silent: bool = False


def with_sport(flow: FlowHeader, sport: int) -> FlowHeader:
    found = flow.with_tos(flow.tos)
    found.sport = sport
    return found


class WaitingSender(QpEnd):
    def __init__(self, params: WaitParams, qp: QpInfo) -> None:
        self._params, self._psn = params, qp.psn
        self._flows = [with_sport(qp.flow, qp.flow.sport ^ step) for step in range(params.ports)]
        self._packets, self._bytes = Counter[int](), Counter[int]()  # by source port
        self._messages: deque[Message] = deque()
        self._at = 0  # offset in the first message
        self._waits = False  # for the acknowledgement of the packet that is under way
        self._paused = False  # by the rate limiter
        self._next_at, self._timer = 0.0, NEVER
        self._tries = self._pauses = self._again = 0

    @property
    def ready(self) -> bool:
        return bool(self._messages) and not self._waits and not self._paused

    @property
    def deadline(self) -> float:
        return min(self._timer, self._next_at if self._paused else NEVER)

    @property
    def idle(self) -> bool:
        return not self._messages

    @property
    def in_flight(self) -> int:
        return int(self._waits)

    @property
    def error(self) -> str:
        if self._tries <= _RETRIES:
            return ""
        return f"no acknowledgement after {_RETRIES} retries ({last_good(self._psn)})"

    def post(self, message: Message) -> None:
        self._messages.append(message)

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        if not self.ready:
            return 0
        message = self._messages[0]
        part = message.payload[self._at : self._at + self._params.mtu]
        last = self._at + len(part) == len(message.payload)
        flow = self._flows[self._psn % len(self._flows)]
        self._packets[flow.sport] += 1
        self._bytes[flow.sport] += batch.put_data(
            slot, flow, wire.WRITE_ONLY_IMM if last else wire.WRITE_ONLY, self._psn, part, ackreq=True,
            reth=(message.va + self._at, message.rkey, len(part)), imm=message.imm if last else None,
        )  # fmt: skip
        self._waits = self._paused = True
        self._timer, self._next_at = now + self._params.timeout_s, now + self._params.gap_s
        return 1

    def receive(self, got: Received, index: int, now: float) -> bool:
        if got.kinds[index].opcode != wire.ACK:
            return False
        if self._waits and got.psns[index] == self._psn:
            self._at += self._params.mtu
            if self._at >= len(self._messages[0].payload):
                self._messages.popleft()
                self._at = 0
            self._psn = self._psn + 1 & wire.PSN_MASK
            self._waits, self._timer, self._tries = False, NEVER, 0
        return True

    def expire(self, now: float) -> None:
        if self._paused and now >= self._next_at:
            self._paused = False
            self._pauses += 1
        if now >= self._timer:
            self._waits, self._timer = False, NEVER
            self._tries += 1
            self._again += 1

    def hold(self, seconds: float) -> None:
        self._timer += seconds

    def counters(self) -> Mapping[str, int]:
        return {"again": self._again, "pauses": self._pauses}

    def paths(self, sent: PathUse) -> tuple[PathUse, ...]:
        ports = (flow.sport for flow in self._flows)
        used = tuple(PathUse(port, self._packets[port], self._bytes[port]) for port in ports)
        return (sent,) if self._params.silent else used


class WaitingReceiver(QpEnd):
    def __init__(self, params: WaitParams, qp: QpInfo, memory: Access) -> None:
        self._params, self._flow, self._memory = params, qp.flow, memory
        self._psn = qp.psn  # the next that is new
        self._answers = False
        self._seen = self._ignored = 0

    @property
    def answering(self) -> bool:
        return self._answers

    def answer(self, batch: SendBatch, slot: int) -> None:
        batch.put_ack(slot, self._flow, self._psn - 1, wire.ACK_NO_LIMIT, 0)
        self._answers = False

    def receive(self, got: Received, index: int, now: float) -> bool:
        opcode = got.kinds[index].opcode
        if opcode not in (wire.WRITE_ONLY, wire.WRITE_ONLY_IMM):
            return False
        self._seen += 1
        if self._params.ignore_every and self._seen % self._params.ignore_every == 0:
            self._ignored += 1
            return True
        if got.psns[index] == self._psn:
            payload = got.payload(index)
            target = self._memory.resolve(*got.reth(index))
            if target is None:
                return False
            target[:] = payload
            self._psn = self._psn + 1 & wire.PSN_MASK
            if opcode == wire.WRITE_ONLY_IMM:
                self._memory.arrived(got.imm(index))
        self._answers = True
        return True

    def counters(self) -> Mapping[str, int]:
        return {"ignored": self._ignored}


@dataclass(frozen=True, slots=True)
class StopAndWait(Transport):
    params: WaitParams

    columns: ClassVar[tuple[Column, ...]] = (
        Column("again", "packets", "sent a second time", "packets"),
        Column("ignored", "packets", "ignored on purpose", "packets"),
        Column("pauses", "times", "pauses of the rate limiter"),
    )
    # For runs of the test's process; workers have them from their parameters.
    ignore_every: ClassVar[int] = 0
    ports: ClassVar[int] = 1
    silent: ClassVar[bool] = False

    @classmethod
    def of(cls, plan: Plan) -> Self:
        if plan.options.window not in (None, 1):
            raise InputError(Problem("", f"--window {plan.options.window}", f"is not 1, as {NAME} needs"))
        return cls(WaitParams(plan.ib_mtu, plan.timeout_s, 0.001, cls.ignore_every, cls.ports, cls.silent))

    def sender(self, qp: QpInfo) -> QpEnd:
        return WaitingSender(self.params, qp)

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return WaitingReceiver(self.params, qp, memory)


def register(transports: MutableMapping[str, type[Transport]]) -> None:
    """The one line."""
    transports[NAME] = StopAndWait


if __name__ == "__main__":
    from heddle.endpoints import worker

    register(TRANSPORTS.core)
    sys.exit(worker.main())
