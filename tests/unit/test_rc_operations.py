"""WRITE, SEND and READ over a channel that loses, repeats and reorders frames."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.transports.rcstate import RcParams, WritePacket
from heddle.wire import layout as wire
from tests.peers.rcops import (
    RNR_CODE,
    RNR_MS,
    Arrival,
    Operation,
    OpKind,
    OpRequester,
)
from tests.peers.rcqp import RcQp
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_rc_model import first_psns
from tests.unit.test_srd import info

KINDS: tuple[OpKind, ...] = ("write", "send", "read")
ROOM = 1000  # the most bytes of one operation: four packets
PARAMS = RcParams(mtu=256, window=16, ack_every=4, timeout_s=1.0, retries=7)


class Wire:
    """Two ends, and the frames between them, as bytes with an ICRC."""

    def __init__(
        self, seed: int, loss: float, psns: tuple[int, int] = (wire.PSN_MASK - 2, 5), params: RcParams = PARAMS
    ) -> None:
        self.params = params
        self.dice, self.loss = random.Random(seed), loss
        self.memories = [Memory(bytearray(self.dice.randbytes(8192))) for _ in range(2)]
        self.ends = [self._end(here, psns) for here in range(2)]
        self.under_way: list[list[bytes]] = [[], []]  # to each end
        self.opcodes: list[int] = []
        self.now = 0.0

    def _end(self, here: int, psns: tuple[int, int]) -> RcQp:
        own, other = f"10.0.0.{1 + here}", f"10.0.0.{2 - here}"
        qp = info(own, other, 0x11 + here, 0x12 - here, psns[here])
        return RcQp(self.params, qp, qp.flow, self.memories[here], psns[1 - here])

    def step(self) -> None:
        self.now += 0.05
        for here, end in enumerate(self.ends):
            batch = SendBatch(PARAMS.mtu, slots=64)
            end.expire(self.now)
            count = end.take(batch, 0, self.dice.randint(1, 9), self.now)
            while end.answering:
                end.answer(batch, count)
                count += 1
            for slot in range(count):
                self._put(1 - here, bytes(batch.frame_of(slot, int(batch.lengths[slot]))))
        for there, end in enumerate(self.ends):
            frames, self.under_way[there] = self.under_way[there], []
            for frame in frames:
                self._receive(end, frame)

    def _put(self, there: int, frame: bytes) -> None:
        self.opcodes.append(frame[wire.BTH_AT])
        copies = 0 if self.dice.random() < self.loss else 2 if self.dice.random() < self.loss else 1
        queue = self.under_way[there]
        for _ in range(copies):
            back = self.dice.randint(0, min(3, len(queue))) if self.dice.random() < self.loss else 0
            queue.insert(len(queue) - back, frame)

    def _receive(self, end: RcQp, frame: bytes) -> None:
        got = parsed([frame])
        assert got.sounds[0]
        assert end.receive(got, 0, self.now)

    def run(self) -> None:
        for _ in range(20_000):
            if all(end.idle for end in self.ends) and not any(self.under_way):
                break
            self.step()
            assert not any(end.error for end in self.ends), [end.error for end in self.ends]
        else:
            raise AssertionError("never came to an end")
        for _ in range(30):
            self.step()


operations = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, ROOM)), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None, database=None)
@given(
    operations, first_psns, st.integers(1, 12), st.integers(1, 8), st.integers(0, 1 << 32),
    st.sampled_from((0.0, 0.15, 0.3)), st.lists(st.integers(0, 6), max_size=8),
)  # fmt: skip
def test_each_operation_is_done_once_whole_and_in_order(
    wanted: list[tuple[OpKind, int]], psn: int, window: int, ack_every: int, seed: int, loss: float, delays: list[int],
) -> None:  # fmt: skip
    """Each operation has its own part of the memory. delays: steps until the peer has memory for one SEND more."""
    channel, here = Wire(seed, loss, (psn, psn), RcParams(256, window, ack_every, 1.0, 10_000)), seed % 2
    end, responder = channel.ends[here], channel.ends[1 - here].responder
    own, peer = channel.memories[here], channel.memories[1 - here]
    expected, at = bytearray(peer.data), 0
    sends, reads, announced = list[tuple[bytes, int | None]](), list[tuple[bytearray, bytes]](), list[int]()
    for number, (kind, length) in enumerate(wanted):
        part, data = slice(at, at + length), bytearray(own.data[at : at + length])
        imm = number if kind != "read" and number % 2 == 0 else None
        if kind == "write":
            expected[part] = data
            announced += [] if imm is None else [imm]
        elif kind == "send":
            sends.append((bytes(data), imm))
        else:
            data = bytearray(length)
            reads.append((data, bytes(peer.data[part])))
        end.post(Operation(memoryview(data), at, RKEY, number, kind, announced=imm is not None))
        at += length
    inbox = [bytearray(ROOM) for _ in sends]
    for number, room in enumerate(inbox):
        for _ in range(delays[number] if number < len(delays) else 0):
            channel.step()
        responder.post_receive(memoryview(room))
    channel.run()
    assert peer.data == expected
    assert peer.arrivals == announced
    assert responder.arrivals == [Arrival(len(data), imm) for data, imm in sends]
    assert all(room[: len(data)] == data for room, (data, _) in zip(inbox, sends, strict=True))
    assert all(data == there for data, there in reads)
    if not loss and not any(delays) and ack_every <= window:
        assert end.requester.counters.retransmitted == 0


def test_a_read_is_one_request_and_a_send_without_memory_waits() -> None:
    channel = Wire(0, 0.0)
    channel.ends[0].post(Operation(memoryview(b"x" * 700), 0, 0, 9, "send", announced=True))
    for _ in range(5):
        channel.step()
    assert channel.ends[0].requester.not_ready > 0
    inbox = bytearray(1000)
    channel.ends[1].responder.post_receive(memoryview(inbox))
    channel.run()
    assert channel.ends[1].responder.arrivals == [Arrival(700, 9)]
    assert inbox[:700] == b"x" * 700
    assert RNR_MS[RNR_CODE] == 0.64
    # A read is one request and its response has the opcodes of the standard.
    channel = Wire(0, 0.0)
    got = bytearray(600)
    channel.ends[0].post(Operation(memoryview(got), 4096, RKEY, 0, "read"))
    channel.run()
    assert channel.opcodes == [
        wire.READ_REQUEST, wire.READ_RESPONSE_FIRST, wire.READ_RESPONSE_MIDDLE, wire.READ_RESPONSE_LAST,
    ]  # fmt: skip
    assert got == channel.memories[1].data[4096:4696]


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_wrong_key_is_refused(kind: str) -> None:
    channel = Wire(0, 0.0)
    channel.ends[0].post(Operation(memoryview(bytearray(10)), 0, RKEY + 1, 0, "read" if kind == "read" else "write"))
    for _ in range(10):
        channel.step()
    assert "0x62" in channel.ends[0].error


def test_no_acknowledgement_follows_a_read_until_there_is_a_later_write() -> None:
    """rxe takes an ACK between the packets of a READ's response for one of them, and ends the connection."""
    responder = Wire(0, 0.0).ends[1].responder
    first = responder.acked + 1 & wire.PSN_MASK
    write = WritePacket(first, True, True, True, (0, RKEY, 3))
    responder.receive(write, memoryview(b"abc"), 0.0)
    assert responder.acked == first and responder.ack_at < NEVER
    for psn, length in ((first + 1, 600), (first + 4, 10)):  # three responses, and one
        responder.receive_read(psn & wire.PSN_MASK, (4096, RKEY, length), 0.0)
        responder.expire(1.0)
        assert not responder.ack_due and responder.ack_at == NEVER  # the responses acknowledge the WRITE, too
    responder.receive(write, memoryview(b"abc"), 0.0)  # it is repeated, so its READs will be repeated, too
    assert not responder.ack_due and len(responder.reads) == 2
    responder.receive_read(first + 1 & wire.PSN_MASK, (4096, RKEY, 600), 0.0)
    assert len(responder.reads) == 3
    responder.receive(write._replace(psn=first + 7 & wire.PSN_MASK), memoryview(b"abc"), 0.0)  # its turn is two later
    assert responder.reply == (first + 5 & wire.PSN_MASK, wire.NAK_SEQUENCE)
    responder.answered()
    responder.receive(write._replace(psn=first + 5 & wire.PSN_MASK), memoryview(b"abc"), 0.0)
    assert responder.ack_at < NEVER and responder.acked == first + 5 & wire.PSN_MASK
    responder.receive(write, memoryview(b"abc"), 0.0)
    assert responder.ack_due


def test_a_sender_waits_for_the_time_in_the_rnr_nak_and_no_timer_counts_it_as_a_retry() -> None:
    requester = OpRequester(PARAMS, 0)
    requester.post(Operation(memoryview(bytearray(10)), 0, 0, 0, "send"))
    assert len(requester.take(8, 1.0)) == 1
    for _ in range(2 * PARAMS.retries):
        requester.acknowledge(0, wire.RNR_NAK | RNR_CODE, 1.0)
        assert requester.ready == 0 and requester.take(8, 1.0) == []
        assert requester.deadline == 1.0 + RNR_MS[RNR_CODE] / 1000
        requester.expire(requester.deadline)
        assert len(requester.take(8, 1.0)) == 1
    assert requester.not_ready == 2 * PARAMS.retries
    assert requester.error == "" and requester.counters.timeouts == 0
    # A copy of the packet has found memory, and its ACK arrives during the wait: what was posted since may leave.
    requester.post(Operation(memoryview(bytearray(10)), 0, 0, 1, "send"))
    requester.acknowledge(0, wire.RNR_NAK | RNR_CODE, 2.0)
    requester.acknowledge(0, wire.ACK_NO_LIMIT, 2.0001)
    assert [burst.psn for burst in requester.take(8, 2.0001)] == [1]
