"""srd: packets in any order are no loss, and what is lost goes again alone; by examples and against a model."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.framebuffer import FrameBuffer
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.parse import Parser
from heddle.endpoints.nic.qpend import NEVER, Message, QpEnd, QpInfo
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.transports.srd import SrdParams, SrdReceiver, SrdSender
from heddle.wire import layout as wire
from heddle.wire.sport import entropy_sports
from tests.unit.test_rc import RKEY, Memory
from tests.unit.test_rc_model import FATES, TIMEOUT_S, Network, first_psns
from tests.unit.test_rc_model import MTU as MODEL_MTU

MTU = 256
PARAMS = SrdParams(RcParams(MTU, 32, 8, 1.0, 7, 0.02), 0.2)


def info(src: str, dst: str, qpn: int, dqpn: int, psn: int) -> QpInfo:
    return QpInfo(qpn, header_between(src, dst, dqpn), psn)


def header_between(src: str, dst: str, dqpn: int, sport: int = 50000) -> FlowHeader:
    macs = ("02:00:00:00:00:01", "02:00:00:00:00:02")
    return FlowHeader(src_mac=macs[0], dst_mac=macs[1], src_ip=src, dst_ip=dst, sport=sport, dqpn=dqpn)


class Fabric:
    """Carries frames between two ends: `shuffle` puts those of a burst in any order, `lose` says which are lost."""

    def __init__(self, total: bytes, psn: int, seed: int) -> None:
        self.memory = Memory(bytearray(len(total)))
        self.sender = SrdSender(PARAMS, info("10.0.0.1", "10.0.1.1", 5, 6, psn))
        self.receiver = SrdReceiver(PARAMS, info("10.0.1.1", "10.0.0.1", 6, 5, psn), self.memory)
        self.dice = random.Random(seed)
        self.batch, self.answers = SendBatch(MTU, slots=32), SendBatch(0, slots=1)
        self.near, self.parser = FrameBuffer(self.batch.frame_bytes, slots=1), Parser()
        self.sent = 0

    def turn(self, now: float, loss: float) -> None:
        for end in (self.sender, self.receiver):
            if end.deadline <= now:
                end.expire(now)
                assert end.deadline > now
        count = self.sender.take(self.batch, 0, 32, now)
        self.sent += count
        frames = [bytes(self.batch.frame(i)) for i in range(count)]
        self.dice.shuffle(frames)
        for frame in frames:
            if self.dice.random() >= loss:
                self.give(frame, self.receiver, now)
        while self.receiver.answering:
            self.receiver.answer(self.answers, 0)
            if self.dice.random() >= loss:
                self.give(bytes(self.answers.frame(0)), self.sender, now)

    def give(self, frame: bytes, end: SrdSender | SrdReceiver, now: float) -> None:
        start = self.near.starts[0]
        self.near.mem[start : start + len(frame)] = frame
        assert end.receive(self.parser.parse(self.near, [len(frame)]), 0, now)


def test_a_gap_is_asked_for_only_when_it_has_lasted() -> None:
    fabric = Fabric(bytes(3 * MTU), 0, 1)
    fabric.sender.post(Message(memoryview(bytes(3 * MTU)), 0, RKEY, 1))
    fabric.sender.take(fabric.batch, 0, 3, 0.0)
    frames = [bytes(fabric.batch.frame(i)) for i in range(3)]
    fabric.give(frames[2], fabric.receiver, 1.0)
    fabric.receiver.expire(1.0 + PARAMS.rc.ack_delay_s)
    assert not fabric.receiver.answering and fabric.memory.arrivals == [], "nothing to acknowledge yet"
    assert fabric.receiver.deadline == 1.0 + PARAMS.overtake_s
    fabric.receiver.expire(1.0 + PARAMS.overtake_s)
    asked: list[tuple[int, int]] = []
    while fabric.receiver.answering:
        fabric.receiver.answer(fabric.answers, 0)
        got = fabric.parser.parse(fabric.answers, [int(fabric.answers.lengths[0])])
        asked.append((got.aeth(0)[0], got.psns[0]))
    assert asked == [(wire.NAK_SEQUENCE, 0), (wire.NAK_SEQUENCE, 1)]


def test_a_request_for_an_ack_stays_open_until_an_ack_covers_its_packet() -> None:
    fabric = Fabric(bytes(9 * MTU), 0, 1)
    fabric.sender.post(Message(memoryview(bytes(9 * MTU)), 0, RKEY, 1))
    fabric.sender.take(fabric.batch, 0, 9, 0.0)
    frames = [bytes(fabric.batch.frame(i)) for i in range(9)]
    # The packets 7 and 8 request an ACK (every 8th one, and the last one). 0 to 6 arrive later than an ACK may wait.
    for number in (8, 7, 0, 1, 2):
        fabric.give(frames[number], fabric.receiver, 0.01)
    fabric.receiver.expire(0.01 + PARAMS.rc.ack_delay_s)
    fabric.receiver.answer(fabric.answers, 0)
    assert not fabric.receiver.answering
    for number in (6, 3, 5, 4):
        fabric.give(frames[number], fabric.receiver, 0.1)
    assert fabric.memory.arrivals == [1]
    assert fabric.receiver.deadline == 0.1 + PARAMS.rc.ack_delay_s, "long before the sender's timer"
    fabric.receiver.expire(0.1 + PARAMS.rc.ack_delay_s)
    fabric.receiver.answer(fabric.answers, 0)
    fabric.give(bytes(fabric.answers.frame(0)), fabric.sender, 0.2)
    assert fabric.sender.idle and fabric.sender.deadline == NEVER
    assert fabric.receiver.deadline == NEVER


def test_a_write_that_does_not_fit_is_refused_and_ends_the_sender() -> None:
    fabric = Fabric(bytes(MTU), 0, 1)
    fabric.sender.post(Message(memoryview(bytes(MTU)), 4, RKEY, 1))
    fabric.turn(0.0, 0.0)
    assert "refused a write" in fabric.sender.error
    assert not fabric.sender.ready and fabric.memory.arrivals == []


SPORT = 50000
NEAR, PARSER = FrameBuffer(SendBatch(MODEL_MTU).frame_bytes, slots=1), Parser()


def give(frame: bytes, end: QpEnd, now: float) -> None:
    start = NEAR.starts[0]
    NEAR.mem[start : start + len(frame)] = frame
    assert end.receive(PARSER.parse(NEAR, [len(frame)]), 0, now)


def answers(receiver: SrdReceiver, batch: SendBatch) -> list[bytes]:
    found = []
    while receiver.answering:
        receiver.answer(batch, 0)
        found.append(bytes(batch.frame(0)))
    return found


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
        assert sender.counters() == {"retransmitted": 0, "naks": 0, "timeouts": 0}, "any order is no loss"
    if entropy > 1:
        used = [sender.by_sport()[header.sport][0] for header in headers]
        assert sum(used) == sent and max(used) - min(used) <= 1
