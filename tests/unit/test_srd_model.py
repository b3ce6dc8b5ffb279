"""srd against a model, with real frames: whatever a network does, every message arrives whole, is announced once and in
order, and the source ports of a spraying queue pair are used in turn.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.framebuffer import FrameBuffer
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.parse import Parser
from heddle.endpoints.nic.qpend import Message, QpEnd
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.transports.srd import SrdParams, SrdReceiver, SrdSender
from heddle.wire.sport import entropy_sports
from tests.unit.test_rc_model import FATES, MTU, TIMEOUT_S, Memory, Network, first_psns
from tests.unit.test_srd import info

SPORT = 50000
NEAR, PARSER = FrameBuffer(SendBatch(MTU).frame_bytes, slots=1), Parser()


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
    st.lists(st.integers(1, 5 * MTU), min_size=1, max_size=8), first_psns, st.integers(1, 12), st.integers(1, 8),
    st.integers(1, 4), st.randoms(use_true_random=False), *(st.lists(st.sampled_from(FATES), max_size=100),) * 2,
)  # fmt: skip
def test_every_message_arrives_once_whole_and_is_announced_in_order(
    sizes: list[int], psn: int, window: int, ack_every: int, entropy: int, dice: random.Random, ways: list[str],
    ways_back: list[str],
) -> None:  # fmt: skip
    params = SrdParams(RcParams(MTU, window, min(ack_every, window), TIMEOUT_S, 10_000, 0.1), TIMEOUT_S / 4)
    total = dice.randbytes(sum(sizes))
    memory = Memory(len(total))
    here = info("10.0.0.1", "10.0.1.1", 5, 6, psn)
    headers = tuple(_header(sport) for sport in entropy_sports(SPORT, entropy))
    sender = SrdSender(params, replace(here, flow=headers[0], sprayed=headers if entropy > 1 else ()))
    receiver = SrdReceiver(params, info("10.0.1.1", "10.0.0.1", 6, 5, psn), memory)
    at = 0
    for imm, size in enumerate(sizes):
        sender.post(Message(memoryview(total)[at : at + size], at, 1, imm))
        at += size
    data, back = SendBatch(MTU, slots=32), SendBatch(0, slots=1)
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
    assert memory.bytes == total
    assert memory.arrivals == list(range(len(sizes)))
    packets = sum(-(-size // MTU) for size in sizes)
    assert sent - sender.counters()["retransmitted"] == packets
    assert receiver.counters()["duplicates"] == arrived - packets
    if entropy > 1:
        used = [sender.by_sport()[header.sport][0] for header in headers]
        assert sum(used) == sent and max(used) - min(used) <= 1


def _header(sport: int) -> FlowHeader:
    return FlowHeader(
        src_mac="02:00:00:00:00:01", dst_mac="02:00:00:00:00:02", src_ip="10.0.0.1", dst_ip="10.0.1.1", sport=sport,
        dqpn=6,
    )  # fmt: skip
