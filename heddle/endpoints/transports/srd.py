"""srd: a reliable connection whose packets may arrive in any order, for fabrics that spray.

Every packet is a separate RDMA WRITE with its own address (RETH). So the receiver writes it to its place in the message
at once, records its PSN, and announces messages in order. NICs for sprayed fabrics do the same (AWS SRD, "A
Cloud-Optimized Transport Protocol for Elastic and Scalable HPC", IEEE Micro 2020; UEC's RUD; RoCE NICs that place
WRITEs out of order).
A gap alone does not mean loss. A packet is missing from the arrival of the first later packet on. When it has been
missing for longer than reordering can last, the receiver requests that one packet (a NAK of its PSN), and the sender
retransmits only that one. Packets that have been missing for a shorter time are not requested with it.
With several entropy values the sender sprays: packets use the UDP source ports of the QP in turn, so switches that
hash 5-tuples send them by different paths. A repeated packet uses the next port, not that of the lost one. entropy.py
has the policies by which ports are chosen.
The window, its acknowledgements and the sender's timer are those of `rc`. The receiver answers a packet that a switch
has trimmed with a NACK, and the sender retransmits it at once. With a policy or a congestion control that learns from
single packets, each packet is answered by a SACK: its port, its mark, and what has arrived beyond a gap.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Self

from heddle.base.declared import Declared
from heddle.endpoints.countercolumn import Column
from heddle.endpoints.nic.frames import Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Access, PathUse, QpEnd, QpInfo
from heddle.endpoints.transports.entropy import CHOOSERS, EntropyChooser, EntropyPolicy
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rc import (
    COLUMNS,
    TRIM_COLUMNS,
    RcSender,
    RepeatOptions,
    connection_params,
    of_qp,
    repeat_header,
)
from heddle.endpoints.transports.rcstate import Burst, RcParams, last_good
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan
from heddle.wire import layout as wire
from heddle.wire.sack import BITMAP, MARKED, Nack, Sack

MAX_ENTROPY: Final = 256
_REPEAT_OVERTAKES: Final = 3  # a quarter of the sender's timeout is left


@dataclass(frozen=True, slots=True)
class SrdOptions(RepeatOptions):
    """What users choose of `srd` alone."""

    entropy: Annotated[int, Declared(
        "UDP source ports of each queue pair of srd, used packet by packet: 1 to 256 (1: no spraying by NICs)",
        "Transport", value="N", least=1, most=MAX_ENTROPY, hint="the default is 1: no spraying by NICs",
    )] = 1  # fmt: skip
    entropy_policy: Annotated[EntropyPolicy, Declared(
        "how srd chooses the port of a packet: oblivious (in turn), bitmap (skips marked and trimmed ones), "
        "reps (uses again what arrived unmarked)", "Transport", unlike="is not an entropy policy",
    )] = "oblivious"  # fmt: skip


@dataclass(frozen=True, slots=True)
class SrdParams:
    """Parameters of a connection. rc: those of `rc`. overtake_s: a packet missing for longer counts as lost.

    policy: of source ports. sacks: each packet is answered by a SACK, instead of ACKs for several.
    """

    rc: RcParams
    overtake_s: float = 0.05
    policy: EntropyPolicy = "oblivious"
    sacks: bool = False


class SrdSender(RcSender):
    """Sends each packet once, and retransmits the requested ones: selective-repeat of `rc` with frames of its own."""

    __slots__ = ("_again", "_by_header", "_chooser", "_headers", "_numbers")

    def __init__(self, params: SrdParams, qp: QpInfo) -> None:
        super().__init__(replace(params.rc, recovery="selective-repeat"), qp)
        self._headers = qp.sprayed or (qp.flow,)
        self._again = [repeat_header(header, params.rc) for header in self._headers]
        self._numbers = {header.sport: number for number, header in enumerate(self._headers)}
        self._chooser: EntropyChooser = CHOOSERS[params.policy](len(self._headers), qp.qpn)
        self._by_header = [[0, 0] for _ in self._headers]  # packets, bytes

    def take(self, batch: SendBatch, slot: int, limit: int, now: float) -> int:
        at = slot
        for burst in self._requester.take(limit, now):
            for step in range(burst.packets):
                self._put(batch, at, burst, step, now)
                at += 1
        return at - slot

    def receive(self, got: Received, index: int, now: float) -> bool:
        opcode = got.kinds[index].opcode
        if opcode == wire.SACK:
            sack = Sack.unpack(got.extension(index))
            self._answered(sack.entropy, "marked" if sack.marked else "good", now)
        elif opcode == wire.NACK:
            self._answered(Nack.unpack(got.extension(index)).entropy, "trimmed", now)
        return super().receive(got, index, now)

    def _answered(self, sport: int, what: str, now: float) -> None:
        if (number := self._numbers.get(sport)) is not None:
            self._chooser.feedback(number, what, now)

    def expire(self, now: float) -> None:
        timeouts = self._requester.counters.timeouts
        self._requester.expire(now)
        if self._requester.counters.timeouts > timeouts:
            self._chooser.timed_out(now)

    def _put(self, batch: SendBatch, slot: int, burst: Burst, step: int, now: float) -> None:
        """Write packet `step` of a burst."""
        params, message, index = self._requester.params, burst.message, burst.start + step
        start, last = index * params.mtu, index + 1 == burst.of
        part = message.payload[start : start + params.mtu]
        number = self._chooser.next(now)
        headers = self._again if burst.repeated else self._headers
        size = batch.put_data(
            slot, headers[number], wire.WRITE_ONLY_IMM if last else wire.WRITE_ONLY, burst.psn + step, part,
            ackreq=last or (index + 1) % params.ack_every == 0,
            reth=(message.va + start, message.rkey, len(part)), imm=message.imm if last else None,
        )  # fmt: skip
        self._by_header[number][0] += 1
        self._by_header[number][1] += size

    def paths(self, sent: PathUse) -> tuple[PathUse, ...]:
        rows = zip(self._headers, self._by_header, strict=True)
        return tuple(PathUse(header.sport, packets, size) for header, (packets, size) in rows)


class SrdReceiver(QpEnd):
    """Writes packets as they arrive, announces messages in order, and requests missing packets."""

    def __init__(self, params: SrdParams, qp: QpInfo, memory: Access) -> None:
        self._params, self._flow, self._memory = params, qp.flow, memory
        self._due = qp.psn  # unbounded: the oldest PSN that has not arrived
        self._beyond = qp.psn  # one past the latest PSN that has arrived
        self._early: dict[int, int | None] = {}  # PSNs that arrived early -> immediate to announce in order
        self._missing: OrderedDict[int, float] = OrderedDict()  # PSN -> since when, or when it was requested last
        # The same for trimmed ones: their repetition may have to wait for room in the sender's window.
        self._repeats: OrderedDict[int, float] = OrderedDict()
        self._replies: deque[tuple[int, int]] = deque()  # NAKs to send: (PSN, syndrome)
        self._nacks: deque[Nack] = deque()  # to send before all other answers
        self._sacks: deque[tuple[int, int, bool]] = deque()  # to send: PSN, source port, mark
        self._trimmed = 0
        self._ack_due = False
        self._ack_at = NEVER
        self._asked = self._acked = qp.psn  # one past the latest PSN that requested an ACK; `_due` in the latest ACK
        self._unacked = self._msn = 0
        self._out_of_order = self._duplicates = 0

    @property
    def answering(self) -> bool:
        return self._ack_due or bool(self._replies or self._nacks or self._sacks)

    @property
    def reports_marks(self) -> bool:
        return self._params.sacks

    @property
    def deadline(self) -> float:
        return min(self._ack_at, *(next(iter(late.values()), NEVER) + after for late, after in self._late))

    @property
    def _late(self) -> tuple[tuple[OrderedDict[int, float], float], ...]:
        """What is missing, with the time after which it is requested."""
        after = self._params.overtake_s
        return (self._missing, after), (self._repeats, _REPEAT_OVERTAKES * after)

    def answer(self, batch: SendBatch, slot: int) -> None:
        if self._nacks:
            batch.put_nack(slot, self._flow, self._nacks.popleft())
            return
        if self._replies:
            psn, syndrome = self._replies.popleft()
            batch.put_ack(slot, self._flow, psn & wire.PSN_MASK, syndrome, self._msn)
            return
        if self._sacks:
            batch.put_sack(slot, self._flow, self._sack(*self._sacks.popleft()))
        else:
            batch.put_ack(slot, self._flow, (self._due - 1) & wire.PSN_MASK, wire.ACK_NO_LIMIT, self._msn)
        self._ack_due, self._acked = False, self._due
        self._ack_at, self._unacked = NEVER, 0

    def _sack(self, psn: int, sport: int, marked: bool) -> Sack:
        last = self._due - 1
        # The latest packets: an earlier SACK has reported the others.
        base = max(1, self._beyond - last - BITMAP)
        bitmap = sum(1 << offset for offset in range(BITMAP) if last + base + offset in self._early)
        return Sack(last & wire.PSN_MASK, psn - last, base, bitmap, sport, MARKED * marked)

    def receive(self, got: Received, index: int, now: float) -> bool:
        opcode = got.kinds[index].opcode
        if opcode not in (wire.WRITE_ONLY, wire.WRITE_ONLY_IMM):
            return False
        psn = self._due + wire.psn_after(got.psns[index], self._due)
        if psn < self._due or psn in self._early:
            self._duplicates += 1
            self._ack_due = True  # its ACK was lost, or the sender's timer expired too early
            self._select(got, index, psn)
            return True
        if psn >= self._due + self._params.rc.window:
            return True  # no sender with this window sends it
        payload, (va, rkey, length) = got.payload(index), got.reth(index)
        target = self._memory.resolve(va, rkey, length) if length == len(payload) else None
        if target is None:
            self._replies.append((psn, wire.NAK_ACCESS if length == len(payload) else wire.NAK_INVALID))
            return True
        target[:] = payload
        self._select(got, index, psn)
        self._early[psn] = got.imm(index) if opcode == wire.WRITE_ONLY_IMM else None
        if self._repeats.pop(psn, None) is None and psn < self._beyond:
            del self._missing[psn]
        self._out_of_order += psn < self._beyond
        self._missing |= {each: now for each in range(self._beyond, psn) if each not in self._repeats}
        self._beyond = max(self._beyond, psn + 1)
        self._settle()
        self._unacked += 1
        if got.ackreqs[index]:
            self._asked = max(self._asked, psn + 1)
        self._owe(now)
        return True

    def _select(self, got: Received, index: int, psn: int) -> None:
        """Answer a packet by a SACK, if that is wanted, and its PSN is close enough for one."""
        if self._params.sacks and self._due - psn <= self._params.rc.window:
            self._sacks.append((psn, got.kinds[index].sport, got.kinds[index].ce))

    def trimmed(self, got: Received, index: int, now: float) -> bool:
        kind = got.kinds[index]
        psn = self._due + wire.psn_after(got.psns[index], self._due)
        if kind.opcode not in (wire.WRITE_ONLY, wire.WRITE_ONLY_IMM) or psn >= self._due + self._params.rc.window:
            return False
        self._trimmed += 1
        if psn < self._due or psn in self._early:
            self._ack_due = True
            return True
        self._nacks.append(Nack(psn & wire.PSN_MASK, kind.trimmed, kind.sport))
        self._missing.pop(psn, None)
        self._repeats[psn] = now
        self._repeats.move_to_end(psn)
        return True

    def _owe(self, now: float) -> None:
        """Make an ACK due, now or in a while, if one was requested and would say something new.

        A request stays open until an ACK covers its packet: packets that fill a gap before it request none themselves.
        """
        if self._acked < self._due and self._acked < self._asked:
            if self._unacked >= self._params.rc.ack_every:
                self._ack_due = True
            elif self._ack_at == NEVER:
                self._ack_at = now + self._params.rc.ack_delay_s

    def _settle(self) -> None:
        """Announce complete messages in order."""
        while self._due in self._early:
            imm = self._early.pop(self._due)
            self._due += 1
            if imm is not None:
                self._msn = (self._msn + 1) & wire.PSN_MASK
                self._memory.arrived(imm)

    def expire(self, now: float) -> None:
        """Make a pending ACK due, and request packets that have been missing for too long."""
        if self._ack_at <= now:
            self._ack_at, self._ack_due = NEVER, True
        for late, after in self._late:
            for psn, since in tuple(late.items()):  # oldest first
                if since + after > now:
                    break
                self._replies.append((psn, wire.NAK_SEQUENCE))
                late[psn] = now
                late.move_to_end(psn)

    def counters(self) -> Mapping[str, int]:
        return {"out_of_order": self._out_of_order, "duplicates": self._duplicates, "trimmed": self._trimmed}

    @property
    def standing(self) -> str:
        return last_good(self._due)


@dataclass(frozen=True, slots=True)
class Srd(Transport):
    """The connection, with its parameters."""

    params: SrdParams

    columns: ClassVar[tuple[Column, ...]] = (*COLUMNS, *TRIM_COLUMNS)
    answer_bytes: ClassVar[int] = wire.SETH_BYTES - wire.RETH_BYTES - wire.IMM_BYTES  # beyond headers that have room
    any_order: ClassVar[bool] = True
    addressed: ClassVar[bool] = True
    options: ClassVar[type[Any] | None] = SrdOptions

    @classmethod
    def spread(cls, options: RunOptions) -> int:
        return options.of(SrdOptions).entropy

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The parameters of `rc`; a packet counts as lost after a quarter of the sender's timeout."""
        rc, policy = connection_params(plan), plan.options.of(SrdOptions).entropy_policy
        sacks = policy != "oblivious" or (plan.control is not None and plan.control.selective)
        return cls(SrdParams(rc, rc.timeout_s / 4, policy, sacks))

    def sender(self, qp: QpInfo) -> QpEnd:
        return SrdSender(self._of(qp), qp)

    def receiver(self, qp: QpInfo, memory: Access) -> QpEnd:
        return SrdReceiver(self._of(qp), qp, memory)

    @property
    def again_dscp(self) -> int:
        return self.params.rc.repeat_tos >> 2  # of -1 it is -1

    def _of(self, qp: QpInfo) -> SrdParams:
        return replace(self.params, rc=of_qp(self.params.rc, qp))
