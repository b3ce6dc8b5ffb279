"""srd: packets in any order are no loss, and what is lost goes again alone; by examples and against a model."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message, PathUse, QpEnd, QpInfo
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.transports.srd import SrdParams, SrdReceiver, SrdSender
from heddle.wire import layout as wire
from heddle.wire.sport import entropy_sports
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_rc_model import FATES, TIMEOUT_S, Network, first_psns
from tests.unit.test_rc_model import MTU as MODEL_MTU

MTU = 256
SPORT = 50000
PARAMS = SrdParams(RcParams(MTU, 32, 8, 1.0, 7, 0.02), 0.2)


def info(src: str, dst: str, qpn: int, dqpn: int, psn: int) -> QpInfo:
    return QpInfo(qpn, header_between(src, dst, dqpn), psn)


def header_between(src: str, dst: str, dqpn: int, sport: int = SPORT) -> FlowHeader:
    macs = ("02:00:00:00:00:01", "02:00:00:00:00:02")
    return FlowHeader(src_mac=macs[0], dst_mac=macs[1], src_ip=src, dst_ip=dst, sport=sport, dqpn=dqpn)


def give(frame: bytes, end: QpEnd, now: float) -> None:
    assert end.receive(parsed([frame]), 0, now)


def answers(receiver: SrdReceiver, batch: SendBatch) -> list[bytes]:
    found = []
    while receiver.answering:
        receiver.answer(batch, 0)
        found.append(bytes(batch.frame(0)))
    return found


class Pair:
    """A sender with one message of so many packets, their frames, and its receiver."""

    def __init__(self, count: int, va: int = 0) -> None:
        self.memory = Memory(bytearray(count * MTU))
        self.sender = SrdSender(PARAMS, info("10.0.0.1", "10.0.1.1", 5, 6, 0))
        self.receiver = SrdReceiver(PARAMS, info("10.0.1.1", "10.0.0.1", 6, 5, 0), self.memory)
        self.sender.post(Message(memoryview(bytes(count * MTU)), va, RKEY, 1))
        batch = SendBatch(MTU, slots=count)
        self.sender.take(batch, 0, count, 0.0)
        self.frames = [bytes(batch.frame(i)) for i in range(count)]

    def give(self, now: float, *numbers: int) -> None:
        for number in numbers:
            give(self.frames[number], self.receiver, now)


def test_a_gap_is_asked_for_only_when_it_has_lasted() -> None:
    pair = Pair(3)
    pair.give(1.0, 2)
    pair.receiver.expire(1.0 + PARAMS.rc.ack_delay_s)
    assert not pair.receiver.answering and pair.memory.arrivals == [], "nothing to acknowledge yet"
    assert pair.receiver.deadline == 1.0 + PARAMS.overtake_s
    pair.receiver.expire(1.0 + PARAMS.overtake_s)
    got = parsed(answers(pair.receiver, SendBatch(0, slots=1)))
    assert [(got.aeth(i)[0], got.psns[i]) for i in range(2)] == [(wire.NAK_SEQUENCE, 0), (wire.NAK_SEQUENCE, 1)]
    # Each packet has its own time: what is in flight when a lost one is requested is not requested with it.
    pair = Pair(32)
    pair.give(1.0, *range(1, 10))  # packet 0 is lost
    pair.give(1.15, 20)  # it overtakes 10 to 19
    asked = []
    for now in (1.2, 1.349, 1.35, 1.4):  # 0 is requested again, and at last the others
        assert pair.receiver.deadline <= now or now == 1.349
        pair.receiver.expire(now)
        asked.append(parsed(answers(pair.receiver, SendBatch(0, slots=1))).psns)
        if now == 1.2:
            pair.give(1.21, *range(10, 18))
    assert asked == [[0], [], [18, 19], [0]]


def test_a_request_for_an_ack_stays_open_until_an_ack_covers_its_packet() -> None:
    pair, batch = Pair(9), SendBatch(0, slots=1)
    # The packets 7 and 8 request an ACK (every 8th one, and the last one). 0 to 6 arrive later than an ACK may wait.
    pair.give(0.01, 8, 7, 0, 1, 2)
    pair.receiver.expire(0.01 + PARAMS.rc.ack_delay_s)
    assert len(answers(pair.receiver, batch)) == 1
    pair.give(0.1, 6, 3, 5, 4)
    assert pair.memory.arrivals == [1]
    assert pair.receiver.deadline == 0.1 + PARAMS.rc.ack_delay_s, "long before the sender's timer"
    pair.receiver.expire(0.1 + PARAMS.rc.ack_delay_s)
    (frame,) = answers(pair.receiver, batch)
    give(frame, pair.sender, 0.2)
    assert pair.sender.idle and pair.sender.deadline == NEVER
    assert pair.receiver.deadline == NEVER


def test_a_write_that_does_not_fit_is_refused_and_ends_the_sender() -> None:
    pair = Pair(1, va=4)
    pair.give(0.0, 0)
    for frame in answers(pair.receiver, SendBatch(0, slots=1)):
        give(frame, pair.sender, 0.0)
    assert "refused a write" in pair.sender.error
    assert not pair.sender.ready and pair.memory.arrivals == []


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.lists(st.integers(1, 5 * MODEL_MTU), min_size=1, max_size=8), first_psns, st.integers(1, 12), st.integers(1, 8),
    st.integers(1, 4), st.randoms(use_true_random=False), *(st.lists(st.sampled_from(FATES), max_size=100),) * 2,
)  # fmt: skip
def test_every_message_arrives_once_whole_and_is_announced_in_order(
    sizes: list[int], psn: int, window: int, ack_every: int, entropy: int, dice: random.Random, ways: list[str],
    ways_back: list[str],
) -> None:  # fmt: skip
    params = SrdParams(RcParams(MODEL_MTU, window, min(ack_every, window), TIMEOUT_S, 10_000, 0.1), TIMEOUT_S / 4)
    total = dice.randbytes(sum(sizes))
    memory = Memory(bytearray(len(total)))
    here = info("10.0.0.1", "10.0.1.1", 5, 6, psn)
    headers = tuple(header_between("10.0.0.1", "10.0.1.1", 6, sport) for sport in entropy_sports(SPORT, entropy))
    sender = SrdSender(params, replace(here, flow=headers[0], sprayed=headers if entropy > 1 else ()))
    receiver = SrdReceiver(params, info("10.0.1.1", "10.0.0.1", 6, 5, psn), memory)
    at = 0
    for imm, size in enumerate(sizes):
        sender.post(Message(memoryview(total)[at : at + size], at, RKEY, imm))
        at += size
    data, back = SendBatch(MODEL_MTU, slots=32), SendBatch(0, slots=1)
    there, home = Network[bytes](ways), Network[bytes](ways_back)
    now, sent, arrived = 0.0, 0, 0
    for _ in range(20_000):
        if sender.idle:
            break
        count = sender.take(data, 0, 32, now)
        sent += count
        frames = [bytes(data.frame(i)) for i in range(count)]
        dice.shuffle(frames)  # each takes its own path
        arriving = [item for frame in frames for item in there.send(frame)] or there.quiet()
        arrived += len(arriving)
        for frame in arriving:
            give(frame, receiver, now)
        replies = [item for frame in answers(receiver, back) for item in home.send(frame)] or home.quiet()
        for frame in replies:
            give(frame, sender, now)
        assert not sender.error
        if not arriving and not replies:
            now = max(now, min(sender.deadline, receiver.deadline))
            sender.expire(now)
            receiver.expire(now)
    assert sender.idle
    assert memory.data == total
    assert memory.arrivals == list(range(len(sizes)))
    packets = sum(-(-size // MODEL_MTU) for size in sizes)
    assert sent - sender.counters()["retransmitted"] == packets
    assert receiver.counters()["duplicates"] == arrived - packets
    if "lose" not in {*ways, *ways_back}:
        assert sender.counters() == dict.fromkeys(("retransmitted", "naks", "timeouts", "nacks"), 0), (
            "any order is no loss"
        )
    if entropy > 1:
        used = [use.packets for use in sender.paths(PathUse(headers[0].sport, 0))]
        assert sum(used) == sent and max(used) - min(used) <= 1
