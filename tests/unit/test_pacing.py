"""Congestion control around the ends of transports: pacing, windows, CNPs. No network, and the test sets the clock."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Literal

import pytest

from heddle.endpoints.congestion.controlled import CNP_COLUMNS, CONTROLLERS, Controlled, congestion_of
from heddle.endpoints.congestion.ratecontrol import (
    FAR_NS,
    CnpRule,
    NotifyingReceiver,
    PacedSender,
    SendTimes,
    Shaper,
    to_ns,
    to_seconds,
)
from heddle.endpoints.nic.frames import Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message, QpEnd
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import RcParams, Recovery
from heddle.endpoints.transports.srd import SrdParams, SrdSender
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import job_plan
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire
from heddle.wire import roce
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_transports import HERE, KINDS, MTU, RELIABLE, THERE, Cable, _planned, carry

LINE = 100e6
FRAME_BITS = 8 * (MTU + wire.LAYOUTS[4].overhead_bytes)


class Fixed:
    """A control that a test sets, and that notes what it is told."""

    def __init__(self, rate_bps: float = LINE, window: float = math.inf) -> None:
        self.rate_bps, self.window, self.deadline_ns = rate_bps, window, FAR_NS
        self.told: list[tuple[str, object]] = []

    def sent(self, size: int, now_ns: int) -> None:
        self.told.append(("sent", size))

    def notified(self, now_ns: int) -> None:
        self.told.append(("notified", now_ns))

    def acknowledged(self, packets: int, delay_ns: int | None, now_ns: int) -> None:
        self.told.append(("acknowledged", (packets, delay_ns)))

    def lost(self, timed_out: bool, now_ns: int) -> None:
        self.told.append(("lost", timed_out))

    def expire(self, now_ns: int) -> None:
        pass


def paced(inner: QpEnd, control: Fixed) -> PacedSender:
    return PacedSender(inner, Shaper(control, LINE, FRAME_BITS, 64), HERE)


def sender(
    control: Fixed, packets: int = 1000, window: int = 1000, kind: Recovery | Literal["srd"] = "go-back-n"
) -> PacedSender:
    params = RcParams(MTU, window, 8, 1e6)
    inner = SrdSender(SrdParams(params), HERE) if kind == "srd" else RcSender(replace(params, recovery=kind), HERE)
    end = paced(inner, control)
    end.post(Message(memoryview(bytes(packets * MTU)), 0, RKEY, 0))
    return end


def answer(psn: int, syndrome: int = wire.ACK_NO_LIMIT) -> Received:
    batch = SendBatch(0, slots=1)
    batch.put_ack(0, THERE.flow, psn & wire.PSN_MASK, syndrome, 0)
    return parsed([bytes(batch.frame(0))])


def departures(end: QpEnd, until: float, step: float = 0.001, start: float = 10.0) -> list[float]:
    """The times at which packets leave, for a NIC that looks every `step` seconds and when a deadline expires."""
    batch, found, turn = SendBatch(MTU, slots=16), [], 0
    while (now := start + turn * step) < start + until:
        if end.deadline <= now:
            end.expire(now)
            assert end.deadline > now
        while end.ready:
            found += [now] * end.take(batch, 0, 8, now)
        turn += 1
    return found


@pytest.mark.parametrize("rate", [1e6, 10e6, 33.3e6, 90e6])
def test_packets_leave_at_the_rate(rate: float) -> None:
    times = departures(sender(Fixed(rate), 4000, 4000), 1.0)
    gap = FRAME_BITS / rate
    for i, at in enumerate(times):
        # Never more than what 2 ms of catching up allow; never later than the next look of the NIC.
        assert at >= 10.0 + i * gap - 0.0021
        assert at <= 10.0 + i * gap + 0.0011
    assert len(times) == pytest.approx(1.0 / gap, abs=max(2, 0.003 / gap))


def test_at_the_line_rate_nothing_is_held_back_and_a_silence_saves_up_no_burst() -> None:
    end, batch = sender(Fixed(LINE)), SendBatch(MTU, slots=16)
    assert [end.take(batch, 0, 16, 10.0) for _ in range(4)] == [16] * 4
    assert end.ready
    assert end.rates() == ((10_000_000_000, LINE),)
    # A long silence saves up no burst.
    control = Fixed(FRAME_BITS / 0.01)  # a packet per 10 ms
    end, batch = sender(control), SendBatch(MTU, slots=16)
    assert end.take(batch, 0, 16, 10.0) == 1
    end.expire(50.0)
    assert end.take(batch, 0, 16, 50.0) == 1


def test_a_change_of_the_rate_moves_the_time_of_the_next_packet() -> None:
    control = Fixed(FRAME_BITS / 10.0)  # a packet per 10 s
    end, batch = sender(control), SendBatch(MTU, slots=16)
    assert end.take(batch, 0, 1, 100.0) == 1
    assert not end.ready and 109.9 < end.deadline < 110.1
    control.deadline_ns = to_ns(101.0)  # the control says when to look again
    end.expire(100.5)
    assert 101.0 <= end.deadline < 101.1
    control.rate_bps, control.deadline_ns = FRAME_BITS / 2.0, FAR_NS
    end.expire(101.0)
    assert not end.ready and 101.9 < end.deadline < 102.1
    batch.put_cnp(0, THERE.flow)
    control.rate_bps = FRAME_BITS / 4.0  # what the CNP does
    assert end.receive(parsed([bytes(batch.frame(0))]), 0, 101.5) == 1
    assert 103.9 < end.deadline < 104.1
    control.rate_bps = LINE
    end.expire(103.0)
    assert end.ready and end.deadline > 1e6 - 1, "only the retransmission timer is left"
    assert end.counters()["cnps_received"] == 1
    assert [rate for _, rate in end.rates()] == [FRAME_BITS / 10.0, FRAME_BITS / 2.0, FRAME_BITS / 4.0, LINE]


def test_deadlines_are_never_rounded_to_an_earlier_nanosecond() -> None:
    dice = random.Random(1)
    for _ in range(10_000):
        ns = dice.randrange(1 << 52)
        assert to_ns(to_seconds(ns)) >= ns
    assert to_seconds(FAR_NS) == NEVER


def test_a_slow_rate_is_no_loss() -> None:
    """The eighth packet is the first that asks for an acknowledgement, after 35 s: no timer of 1 s expires."""
    end = paced(RcSender(RcParams(MTU, 64, 8, 1.0, 2), HERE), Fixed(FRAME_BITS / 5.0))
    end.post(Message(memoryview(bytes(8 * MTU)), 0, RKEY, 0))
    times = departures(end, 35.9, 0.01)
    assert len(times) == 8 and not end.error
    assert end.counters()["timeouts"] == 0
    last = departures(end, 10.0, 0.01, start=45.9)
    assert last and end.counters()["timeouts"] > 0, "what was sent is missed after the usual time"


def test_a_window_limits_what_is_unacknowledged_also_after_a_timeout() -> None:
    control = Fixed(window=3.9)
    end, batch = sender(control), SendBatch(MTU, slots=16)
    first = HERE.psn
    assert end.take(batch, 0, 16, 1.0) == 3 and not end.ready
    assert end.receive(answer(first + 1), 0, 1.25) == 1
    assert control.told[-1] == ("acknowledged", (2, 250_000_000))
    assert end.take(batch, 0, 16, 2.0) == 2 and not end.ready
    assert end.receive(answer(first + 2, wire.NAK_SEQUENCE), 0, 2.5) == 1  # go back: three packets again
    assert control.told[-1:] == [("lost", False)]
    assert end.ready and end.take(batch, 0, 16, 3.0) == 3
    assert end.receive(answer(first + 4), 0, 3.5) == 1
    assert control.told[-1] == ("acknowledged", (3, None)), "no delay of packets that were sent twice"
    assert end.receive(answer(first + 4), 0, 3.6) == 1
    assert control.told[-1][1] == (3, None), "an acknowledgement of nothing is not told"
    # After a timeout the window counts from zero.
    control = Fixed(window=2.0)
    end = paced(RcSender(RcParams(MTU, 8, 8, 1.0, 7), HERE), control)
    end.post(Message(memoryview(bytes(8 * MTU)), 0, RKEY, 0))
    batch = SendBatch(MTU, slots=16)
    assert end.take(batch, 0, 16, 1.0) == 2 and not end.ready
    end.expire(end.deadline)
    assert end.ready and end.take(batch, 0, 16, 3.0) == 2
    assert end.counters()["timeouts"] == 1 and control.told.count(("lost", True)) == 1


@pytest.mark.parametrize("kind", ["srd", "selective-repeat"])
def test_a_request_for_one_packet_opens_no_new_window(kind: Recovery | Literal["srd"]) -> None:
    """The other packets stay in flight. What is requested leaves also when the window has become smaller."""
    control = Fixed(window=10.0)
    end, batch = sender(control, kind=kind), SendBatch(MTU, slots=16)
    assert end.take(batch, 0, 16, 1.0) == 10 and not end.ready
    control.window = 5.0  # what the loss does
    for lost in (3, 5, 7):
        assert end.receive(answer(HERE.psn + lost, wire.NAK_SEQUENCE), 0, 1.1)
    assert control.told[-3:] == [("lost", False)] * 3
    assert end.take(batch, 0, 16, 1.2) == 3 and not end.ready
    assert [parsed([bytes(batch.frame(i))]).psns[0] - HERE.psn & wire.PSN_MASK for i in range(3)] == [3, 5, 7]
    assert end.receive(answer(HERE.psn + 2), 0, 1.3) and not end.ready, "7 are in flight"
    assert control.told[-1] == ("acknowledged", (3, 300_000_000))
    assert end.receive(answer(HERE.psn + 9), 0, 1.4)
    assert control.told[-1:] == [("acknowledged", (7, None))], "some of them were sent twice"
    assert end.take(batch, 0, 16, 1.5) == 5


def test_packets_of_a_window_leave_at_once_and_below_one_packet_the_rate_counts() -> None:
    control = Fixed(FRAME_BITS / 10.0, window=3.0)
    end, batch = sender(control), SendBatch(MTU, slots=16)
    assert end.take(batch, 0, 16, 100.0) == 3 and end.rates() == ((100_000_000_000, FRAME_BITS / 10.0),)
    control.window = 0.5
    assert end.receive(answer(HERE.psn + 2), 0, 101.0)
    assert end.take(batch, 0, 16, 101.0) == 1
    assert end.receive(answer(HERE.psn + 3), 0, 102.0)
    assert end.take(batch, 0, 16, 102.0) == 0 and not end.ready and 110.9 < end.deadline < 111.1


def test_ends_of_a_shaper_take_turns_at_one_rate_and_an_idle_one_takes_none() -> None:
    control = Fixed(FRAME_BITS / 0.01)  # a packet per 10 ms
    shaper = Shaper(control, LINE, FRAME_BITS, 64)
    ends = [PacedSender(RcSender(RcParams(MTU, 1000, 8, 1e6), HERE), shaper, HERE) for _ in range(4)]
    for end in ends[:3]:  # the fourth has nothing to send
        end.post(Message(memoryview(bytes(20 * MTU)), 0, RKEY, 0))
    batch, left = SendBatch(MTU, slots=16), []
    for now in (10.0 + step / 1000 for step in range(300)):
        for number, end in enumerate(ends):
            if end.deadline <= now:
                end.expire(now)
            if end.ready:
                left += [(now, number)] * end.take(batch, 0, 8, now)
    times = [at for at, _ in left]
    assert len(left) == pytest.approx(30, abs=2)
    assert max(later - at for at, later in itertools.pairwise(times)) < 0.0131
    assert [number for _, number in left[4:28]] == [left[4][1], left[5][1], left[6][1]] * 8, "in turn"
    assert ends[0].rates()[0][1] == FRAME_BITS / 0.01 / 4
    control.rate_bps = FRAME_BITS / 1.0  # all of them wait for the new rate
    for end in ends[:3]:
        end.expire(10.31)
    assert sum(end.ready for end in ends[:3]) == 0


def test_send_times_have_psns_across_the_wrap() -> None:
    times = SendTimes(wire.PSN_MASK)
    times.add(wire.PSN_MASK, 10)
    times.add(0, 20)
    times.add(1, 30)
    assert times.acknowledge(wire.PSN_MASK - 5, 40) == (0, None)
    assert times.acknowledge(0, 50) == (2, 30)
    assert times.acknowledge(1, 50) == (1, 20)


def receiver(gap_ns: int = 1_000_000_000, dscp: int = 48) -> NotifyingReceiver:
    end = RcReceiver(RcParams(MTU, 64, 8, 1.0), THERE, Memory(bytearray(100 * MTU)))
    return NotifyingReceiver(end, CnpRule(gap_ns, dscp), THERE)


def marked(psn: int, ce: bool = True) -> Received:
    batch = SendBatch(MTU, slots=1)
    header = HERE.flow.with_dscp(wire.DSCP_DATA)
    header.tos |= wire.ECN_CE if ce else wire.ECT0
    batch.put_data(0, header, wire.WRITE_ONLY, psn & wire.PSN_MASK, bytes(MTU), reth=(0, RKEY, MTU))
    return parsed([bytes(batch.frame(0))])


def test_a_mark_is_answered_by_a_cnp_of_its_class() -> None:
    end, batch = receiver(dscp=46), SendBatch(0, slots=2)
    assert end.receive(marked(THERE.psn, ce=False), 0, 1.0)
    assert not end.answering
    assert end.receive(marked(THERE.psn + 1), 0, 1.0)
    assert end.answering
    end.answer(batch, 0)
    got = parsed([bytes(batch.frame(0))])
    kind = got.kinds[0]
    assert got.sounds == [True] and batch.frame(0)[wire.DQPN_WORD_AT] == 0x40, "BECN"
    assert (kind.opcode, kind.tos, got.dqpns[0], kind.sport) == (0x81, 46 << 2, THERE.flow.dqpn, THERE.flow.sport)
    assert not end.answering and end.counters()["cnps_sent"] == 1
    end.receive(marked(THERE.psn + 2), 0, 1.5)
    assert not end.answering and 2.0 <= end.deadline < 2.01
    end.expire(2.01)
    assert end.answering and end.deadline == NEVER


def test_a_damaged_or_foreign_packet_causes_no_cnp() -> None:
    end = receiver()
    batch = SendBatch(MTU, slots=1)
    batch.put_data(0, HERE.flow, wire.SEND_ONLY, 1, bytes(4))  # of a kind that the transport does not take
    assert end.receive(parsed([bytes(batch.frame(0))]), 0, 1.0) == 0
    assert not end.answering


def test_a_cnp_of_another_implementation_is_obeyed() -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    frame = bytes(
        Ether() / IP(src="10.0.1.1", dst="10.0.0.1", tos=48 << 2) / UDP(sport=1, dport=4791) / roce.cnp(HERE.qpn)
    )
    got = parsed([frame])
    assert got.sounds == [True]
    control = Fixed()
    assert sender(control).receive(got, 0, 2.0)
    assert control.told == [("notified", 2_000_000_000)]


def controlled(name: str, transport: str) -> tuple[Controlled, Transport]:
    with pytest.MonkeyPatch.context() as patch:
        from heddle.endpoints.transports import TRANSPORTS

        for kind, made in KINDS.items():
            patch.setitem(TRANSPORTS.core, kind, made)
        found = congestion_of(job_plan(load_fabric("tiny").fabric, RunOptions(congestion=name)))
    assert found is not None
    return found, _planned(transport, congestion=name)[1]


# uc has no acknowledgements, which windows need, and sends nothing again.
CONTROLLED_CASES = [
    (kind, name, loss)
    for kind in KINDS
    for name in CONTROLLERS
    for loss in (0.0, 0.1)
    if kind in RELIABLE or (not CONTROLLERS[name].windowed and not loss)
]


@pytest.mark.parametrize(("kind", "name", "loss"), CONTROLLED_CASES)
def test_every_transport_delivers_under_every_control(kind: str, name: str, loss: float) -> None:
    control, transport = controlled(name, kind)
    total = random.Random(3).randbytes(300_000)
    memory = Memory(bytearray(len(total)))
    near = control.sender(transport.sender(HERE), HERE, LINE, {})
    far = control.receiver(transport.receiver(THERE, memory), THERE)
    for imm, at in enumerate(range(0, len(total), 60_000)):
        near.post(Message(memoryview(total)[at : at + 60_000], at, RKEY, imm))
    carry(near, far, Cable(loss, 1, transport.answer_bytes))
    assert bytes(memory.data) == total
    keys = {*near.counters(), *far.counters()}
    assert keys == {column.key for column in (*transport.columns, *CNP_COLUMNS)}


def test_windows_have_an_acknowledgement_for_each_packet() -> None:
    for name in CONTROLLERS:
        for transport in ("rc", "scapy"):
            parameters = _planned(transport, congestion=name)[1].parameters()
            assert parameters["ack_every"] == (1 if CONTROLLERS[name].windowed else 8)
