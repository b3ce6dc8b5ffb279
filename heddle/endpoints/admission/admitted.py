"""Admission of one run in the Python loop: it joins ranks, their slots, and the ends of their queue pairs.

In:  a plan with admission; ranks that begin iterations and process messages; messages to send.
Out: CTS packets, and messages that leave after theirs.
A rank is ready for the messages of an iteration when it begins it. The steps that a pattern has under way at once are a
round of ctsends.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.admission.ctsends import GatedSender, Grant, GrantGate, GrantingReceiver, Posted, Slots
from heddle.endpoints.connections import Connection, address_of, announced_by, rkey_of
from heddle.endpoints.nic.nic import QueuePair
from heddle.endpoints.nic.qpend import QpEnd, QpInfo
from heddle.endpoints.transports.rc import connection_params
from heddle.endpoints.transports.rcstate import RcParams
from heddle.traffic.admission import Admission
from heddle.traffic.plan import Plan
from heddle.traffic.schedule import Key, Schedule
from heddle.wire import layout as wire

_LEAST_TIMEOUT_S: Final = 120.0
_OF_RUN: Final = 5  # this part of the time after which a run counts as hung, which is 50 times that on idle links


def cts_timeout_s(plan: Plan, admission: Admission) -> float:
    """Seconds without any CTS after which a sender fails: as set, or ten times the run's duration on idle links.

    A sender may rightly wait while its receiver serves all others.
    """
    return admission.cts_timeout_s or max(_LEAST_TIMEOUT_S, plan.max_seconds / _OF_RUN)


class RankWants:
    """The receiving half of one rank: its slots, and the ends that send its CTS packets, by the peer's number.

    at_once: steps of the pattern that are a round.
    """

    def __init__(self, admission: Admission, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots: Slots[tuple[int, Key]] = Slots(admission.slots)
        self._at_once = at_once
        self._ends: dict[int, tuple[GrantingReceiver, QueuePair]] = {}
        self._schedules: dict[int, Schedule] = {}  # of epochs with messages that are not processed
        self._clock = clock

    def add(self, peer: int, end: GrantingReceiver, pair: QueuePair) -> None:
        """The queue pair whose reverse direction leads to a peer. peer: its number in the communicator."""
        self._ends[peer] = (end, pair)

    def begin(self, epoch: int, schedule: Schedule) -> None:
        """The rank begins an epoch: all earlier messages are processed."""
        self._schedules = {epoch: schedule}
        rounds: dict[int, dict[int, list[tuple[int, Key]]]] = {}
        for key, receive in schedule.receives.items():
            rounds.setdefault(key[0] // self._at_once, {}).setdefault(receive.peer, []).append((epoch, key))
        self._slots.post(rounds.values())
        self._grant()

    def used(self, epoch: int, key: Key) -> None:
        """The rank has processed a message: its slot is free."""
        self._slots.consumed((epoch, key))
        self._grant()

    def _grant(self) -> None:
        for epoch, key in self._slots.granted():
            receive = self._schedules[epoch].receives[key]
            va, length = address_of(epoch, key[0], receive.lo), receive.hi - receive.lo
            end, pair = self._ends[receive.peer]
            end.grant(Grant(va, length, announced_by(epoch, key)), self._clock())
            pair.changed()


class GatedConnection:
    """The queue pairs to one peer, behind a gate. pair: the one whose end takes the CTS packets."""

    def __init__(self, inner: Connection, pair: QueuePair, end: GatedSender) -> None:
        self._inner, self._pair, self._gate = inner, pair, end.gate
        end.release = self._release

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Send a message when it is granted."""
        message = Posted(data, va, rkey, imm, turn)
        released = self._gate.post(Grant(va, len(data), imm), message, time.monotonic())
        if released is not None:
            self._release(released)
        else:
            self._pair.changed()  # the gate has a deadline now

    def _release(self, message: Posted) -> None:
        self._inner.post(*message)


class Admitted:
    """Admission for the ranks of one worker."""

    def __init__(self, plan: Plan, admission: Admission) -> None:
        self._plan, self._admission = plan, admission
        self._at_once = plan.pattern.at_once(plan.size)
        rc = connection_params(plan)
        # A window for all slots, since slots limit CTS packets.
        self._params = RcParams(
            plan.ib_mtu, max(2, admission.slots), min(8, admission.slots), rc.timeout_s, rc.retries, rc.ack_delay_s
        )
        number = {rank: place for ranks in plan.communicators for place, rank in enumerate(ranks)}
        first = [qp for qp in plan.qps if qp.index == 0]
        self._sending = {(qp.flow.src_rank, qp.src_qpn) for qp in first}
        # Receiving end -> the number of its sender in their communicator.
        self._sender_of = {(qp.flow.dst_rank, qp.flow.qpn): number[qp.flow.src_rank] for qp in first}
        self._wants: dict[int, RankWants] = {}

    def wants(self, rank: int) -> RankWants:
        """The receiving half of a rank."""
        return self._wants.setdefault(rank, RankWants(self._admission, self._at_once))

    def sender(self, rank: int, qp: QpInfo, end: QpEnd) -> QpEnd:
        """The sending end of a queue pair: behind a gate if it is the first one of its connection."""
        if (rank, qp.qpn) not in self._sending:
            return end
        gate: GrantGate[Posted] = GrantGate(cts_timeout_s(self._plan, self._admission))
        answers = qp.flow.with_dscp(wire.DSCP_ANSWER)
        return GatedSender(end, self._params, qp, answers, gate, self._admission.slots)

    def link(self, inner: Connection, pair: QueuePair) -> Connection:
        """The connection behind its gate. pair: its first queue pair."""
        end = pair.end
        return GatedConnection(inner, pair, end) if isinstance(end, GatedSender) else inner

    def receiver(self, rank: int, qp: QpInfo, end: QpEnd) -> QpEnd:
        """The receiving end of a queue pair: it sends CTS packets if it is the first one of its connection."""
        if (rank, qp.qpn) not in self._sender_of:
            return end
        as_data = self._admission.cts_class == "data"
        flow = qp.flow.with_tos(self._plan.options.tos) if as_data else qp.flow
        rkey = rkey_of(self._plan.lab, self._plan.endpoints[rank].nic)
        return GrantingReceiver(end, self._params, qp, flow, as_data, rkey, self._admission.slots)

    def open(self, rank: int, pair: QueuePair) -> None:
        """A receiving end was opened at its NIC."""
        end = pair.end
        if isinstance(end, GrantingReceiver):
            self.wants(rank).add(self._sender_of[rank, pair.qpn], end, pair)


def admitted_of(plan: Plan) -> Admitted | None:
    """Admission of a plan; None when it is off."""
    return Admitted(plan, plan.admission) if plan.admission is not None else None
