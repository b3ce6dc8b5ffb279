"""uc: InfiniBand's unreliable connection. Data are RDMA WRITEs with immediate, and nothing is acknowledged or repeated.

The receiver detects a gap in the PSNs, and drops every message with a hole whole (IBTA vol. 1, section 9.8.3). A
collective cannot finish without the message. So a gap is an error of the receiving end, which ends the run and names
what was lost. The loss of the last packets reveals no gap: the run ends when no packet has moved for `patience_s`
(../worker.py).
A late packet or a copy, with a PSN that has passed, is discarded and counted. IBTA lets a responder take such a first
packet for a new message; without repetitions it cannot be one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from heddle.base.problems import InputError, Problem
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import Received, SendBatch
from heddle.endpoints.nic.qpend import Access, Message, QpEnd, QpInfo
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rcstate import OPCODES, WRITES, WritePacket
from heddle.traffic.plan import Plan
from heddle.wire import layout as wire


@dataclass(frozen=True, slots=True)
class UcParams:
    """mtu: bytes of payload of a packet. patience_s: a run in which no packet has moved for so long has lost data."""

    mtu: int = 4096
    patience_s: float = 4.0


@dataclass(slots=True)
class UcState:
    """The receiving half of a QP, without frames. psn: the next one. Feeds it packets; read the counters.

    received: packets that were written. lost: PSNs missing before a packet that came. late: packets behind the expected
    PSN, also those that counted as lost.
    dropped: messages of which some packets arrived, and some did not. first_gap: (last PSN in order before the first
    gap, number of PSNs missing there). refused: why the first refused packet was refused, empty for none.
    """

    mtu: int
    psn: int
    memory: Access
    received: int = 0
    lost: int = 0
    late: int = 0
    dropped: int = 0
    first_gap: tuple[int, int] | None = None
    refused: str = ""
    _target: memoryview | None = None
    _at: int = 0
    _broken: bool = False  # the latest message has a hole: its packets are ignored

    @property
    def last_good(self) -> int:
        """The last PSN that arrived."""
        return (self.psn - 1) & wire.PSN_MASK

    def receive(self, packet: WritePacket, payload: memoryview) -> None:
        """Handle a data packet with a correct ICRC."""
        ahead = wire.psn_after(packet.psn, self.psn)
        if ahead < 0:
            self.late += 1
            return
        if ahead > 0:
            self._gap(ahead)
        self.psn = (packet.psn + 1) & wire.PSN_MASK
        if packet.first:
            self._begin(packet)
        elif self._target is None and not self._broken:
            if ahead:
                self._drop()  # the message began in the gap
            else:
                self._refuse("no first packet")
        if self._target is not None:
            self._write(packet, payload)
        if packet.last:
            self._target = None

    def _gap(self, missing: int) -> None:
        self.lost += missing
        if self.first_gap is None:
            self.first_gap = self.last_good, missing
        if self._target is not None:
            self._drop()

    def _drop(self) -> None:
        self.dropped += 1
        self._target, self._broken = None, True

    def _begin(self, packet: WritePacket) -> None:
        if self._target is not None:
            self._drop()
        self._broken = False
        va, rkey, length = packet.reth if packet.reth is not None else (0, 0, 0)
        self._target, self._at = self.memory.resolve(va, rkey, length) if packet.reth is not None else None, 0
        if self._target is None:
            self._refuse("a wrong key or address")

    def _write(self, packet: WritePacket, payload: memoryview) -> None:
        assert self._target is not None  # noqa: S101
        left, size = len(self._target) - self._at, len(payload)
        if size > left or (size != left if packet.last else size != self.mtu):
            self._refuse("a wrong length")
            return
        self._target[self._at : self._at + size] = payload
        self._at += size
        self.received += 1
        if packet.last and packet.imm is not None:
            self.memory.arrived(packet.imm)

    def _refuse(self, why: str) -> None:
        self.refused = self.refused or why
        self._drop()


class UcSender(QpEnd):
    """Sends each packet once."""

    __slots__ = ("_flow", "_mtu", "_next", "_psn", "_queue")

    def __init__(self, params: UcParams, qp: QpInfo) -> None:
        self._mtu, self._flow, self._psn = params.mtu, qp.flow, qp.psn
        self._queue: deque[Message] = deque()
        self._next = 0  # packet of the first message

    @property
    def ready(self) -> bool:
        return bool(self._queue)

    @property
    def idle(self) -> bool:
        """Whether everything that was posted is sent: this transport cannot know more."""
        return not self._queue

    def post(self, message: Message) -> None:
        self._queue.append(message)

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        at, mtu = slot, self._mtu
        while self._queue and at < slot + limit:
            message, index = self._queue[0], self._next
            size = len(message.payload)
            first, last = index == 0, (index + 1) * mtu >= size
            opcode = wire.UC + OPCODES[False, first, last, last]
            batch.put_data(
                at, self._flow, opcode, self._psn, message.payload[index * mtu : (index + 1) * mtu],
                reth=(message.va, message.rkey, size) if first else None, imm=message.imm if last else None,
            )  # fmt: skip
            self._psn = (self._psn + 1) & wire.PSN_MASK
            self._next += 1
            if last:
                self._queue.popleft()
                self._next = 0
            at += 1
        return at - slot


class UcReceiver(QpEnd):
    """Writes packets in order, and fails at the first gap."""

    __slots__ = ("state",)

    def __init__(self, params: UcParams, qp: QpInfo, memory: Access) -> None:
        self.state = UcState(params.mtu, qp.psn, memory)

    @property
    def error(self) -> str:
        if self.state.first_gap is not None:
            last, missing = self.state.first_gap
            first, end = (last + 1) & wire.PSN_MASK, (last + missing) & wire.PSN_MASK
            which = f"packet {first:#x} is" if missing == 1 else f"{missing} packets, {first:#x} to {end:#x}, are"
            return f"{which} lost (last good PSN {last:#x}), and uc does not retransmit"
        if self.state.refused:
            return f"a write has {self.state.refused} (last good PSN {self.state.last_good:#x})"
        return ""

    @property
    def standing(self) -> str:
        return f"last good PSN {self.state.last_good:#x}"

    def receive(self, got: Received, index: int, now: float) -> bool:
        write = WRITES.get(got.kinds[index].opcode - wire.UC)
        if write is None:
            return False
        self.state.receive(write.packet(got, index), got.payload(index))
        return True

    def counters(self) -> Mapping[str, int]:
        return {"lost": self.state.lost, "dropped_messages": self.state.dropped, "late": self.state.late}


@dataclass(frozen=True, slots=True)
class Uc(Transport):
    """The connection, with its parameters."""

    params: UcParams

    columns: ClassVar[tuple[Column, ...]] = (
        Column("lost", "packets", "lost", "packets"),
        Column("dropped_messages", "messages", "messages dropped for a hole", "packets"),
        Column("late", "packets", "late or duplicate", "order"),
    )

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """A run is as patient as a sender of `rc`. InputError for congestion control that needs acknowledgements."""
        o = plan.options
        if plan.control is not None and plan.control.windowed:
            why = "measures the delay of acknowledgements, and uc has none"
            raise InputError(Problem("", f"--cc {o.congestion}", why, "use --transport rc, or --cc dcqcn"))
        return cls(UcParams(plan.ib_mtu, (o.retries + 1) * plan.timeout_s))

    def patience_s(self) -> float | None:
        return self.params.patience_s

    def sender(self, qp: QpInfo) -> QpEnd:
        return UcSender(self.params, qp)

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return UcReceiver(self.params, qp, memory)
