"""WRITE, SEND and READ over a channel that loses, repeats and reorders frames, and against a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.parse import Parser
from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.transports.rcops import (
    RNR_CODE,
    RNR_MS,
    Arrival,
    Operation,
    OpKind,
    OpRequester,
    OpResponder,
    kind_of,
)
from heddle.endpoints.transports.rcqp import RcQp
from heddle.endpoints.transports.rcstate import RcParams, WritePacket
from heddle.wire import layout as wire
from heddle.wire.layout import ACK_NO_LIMIT, PSN_MASK
from tests.unit.test_rc import RKEY, Memory
from tests.unit.test_rc_model import FATES, MTU, TIMEOUT_S, Network, first_psns
from tests.unit.test_srd import info

PARAMS = RcParams(mtu=256, window=16, ack_every=4, timeout_s=1.0, retries=7)


class Wire:
    """Two ends, and the frames between them, as bytes with an ICRC."""

    def __init__(self, seed: int, loss: float, psns: tuple[int, int] = (wire.PSN_MASK - 2, 5)) -> None:
        self.dice, self.loss = random.Random(seed), loss
        self.memories = [Memory(bytearray(self.dice.randbytes(8192))) for _ in range(2)]
        self.ends = [self._end(here, psns) for here in range(2)]
        self.under_way: list[list[bytes]] = [[], []]  # to each end
        self.opcodes: list[int] = []
        self.now = 0.0

    def _end(self, here: int, psns: tuple[int, int]) -> RcQp:
        own, other = f"10.0.0.{1 + here}", f"10.0.0.{2 - here}"
        qp = info(own, other, 0x11 + here, 0x12 - here, psns[here])
        return RcQp(PARAMS, qp, qp.flow, self.memories[here], psns[1 - here])

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
        buffer = SendBatch(PARAMS.mtu, slots=1)
        start = buffer.starts[0]
        buffer.mem[start : start + len(frame)] = frame
        got = Parser().parse(buffer, [len(frame)])
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


def do_all(channel: Wire, here: int, sizes: Sequence[int]) -> None:
    """Every operation with each size, one after the other, and the result in memory."""
    end, there = channel.ends[here], channel.ends[1 - here].responder
    mine, theirs = channel.memories[here], channel.memories[1 - here]
    kept = bytes(theirs.data[4096:])
    read = [bytearray(size) for size in sizes]
    inbox = [bytearray(size + 10) for size in sizes]
    for number, size in enumerate(sizes):
        there.post_receive(memoryview(inbox[number]))
        data = memoryview(bytes(mine.data))[:size]
        end.post(Operation(data, 0, RKEY, number, "write", announced=number % 2 == 0))
        end.post(Operation(memoryview(read[number]), 4096, RKEY, 0, "read"))
        end.post(Operation(data, 0, 0, 100 + number, "send", announced=number % 2 == 1))
    wanted = bytes(mine.data)
    channel.run()
    assert theirs.data[: max(sizes)] == wanted[: max(sizes)]
    assert theirs.arrivals == [number for number in range(len(sizes)) if number % 2 == 0]
    for number, size in enumerate(sizes):
        assert read[number] == kept[:size]
        assert inbox[number][:size] == wanted[:size]
    arrivals = [Arrival(size, 100 + n if n % 2 == 1 else None) for n, size in enumerate(sizes)]
    assert there.arrivals == arrivals


@pytest.mark.parametrize("loss", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(2))
def test_every_operation_moves_the_right_bytes_whatever_is_lost_repeated_or_reordered(loss: float, seed: int) -> None:
    channel = Wire(seed, loss)
    do_all(channel, seed % 2, [1, 256, 257, 4000])
    again = sum(end.requester.counters.retransmitted for end in channel.ends)
    assert (again > 0) == (loss > 0)


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


KINDS: tuple[OpKind, ...] = ("write", "send", "read")
ROOM = 5 * MTU  # of memory for one SEND


@dataclass(frozen=True)
class Request:
    """A packet of the requester on the wire. read: the RETH of a READ request, or None."""

    packet: WritePacket
    payload: bytes
    send: bool
    read: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Reply:
    """A packet of the responder on the wire: a READ response, or an answer with its syndrome."""

    psn: int
    syndrome: int | None
    payload: bytes = b""


operations = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, ROOM)), min_size=1, max_size=8)
fates = st.lists(st.sampled_from(FATES), max_size=100)


@settings(max_examples=200, deadline=None, database=None)
@given(
    operations, first_psns, st.integers(1, 12), st.integers(1, 8), fates, fates,
    st.lists(st.integers(0, 6), max_size=8),
)  # fmt: skip
def test_each_operation_is_done_once_whole_and_in_order(
    wanted: list[tuple[OpKind, int]], psn: int, window: int, ack_every: int, ways: list[str], ways_back: list[str],
    delays: list[int],
) -> None:  # fmt: skip
    params = RcParams(MTU, window, ack_every, TIMEOUT_S, 10_000)
    work = Work(wanted)
    requester, responder = OpRequester(params, psn), OpResponder(params, psn, work.memory)
    for operation in work.operations:
        requester.post(operation)
    there, back = Network[Request](ways), Network[Reply](ways_back)
    now, posts_at, inbox = 0.0, list(accumulate(delays)), list[bytearray]()
    for turn in range(20_000):
        if requester.idle:
            break
        if len(inbox) < len(work.sends) and (len(inbox) >= len(posts_at) or posts_at[len(inbox)] <= turn):
            inbox.append(bytearray(ROOM))
            responder.post_receive(memoryview(inbox[-1]))
        arriving = [item for sent in requests(requester, now) for item in there.send(sent)] or there.quiet()
        for request in arriving:
            deliver(responder, request, now)
        replies = [each for reply in replies_of(responder) for each in back.send(reply)] or back.quiet()
        for reply in replies:
            take(requester, reply, now)
        assert not requester.error, requester.error
        if not arriving and not replies:
            now = max(now, min(requester.deadline, responder.ack_at))
            assert now != NEVER
            requester.expire(now)
            responder.expire(now)
    assert requester.idle
    assert responder.msn == len(wanted)
    work.check(responder, inbox)


class Work:
    """The operations, and what must be where when they are done."""

    def __init__(self, wanted: list[tuple[OpKind, int]]) -> None:
        size = sum(length for _, length in wanted)
        self.memory, self.expected = Memory(bytearray(size)), bytearray(size)
        self.operations: list[Operation] = []
        self.writes: list[int] = []
        self.sends: list[tuple[bytes, int]] = []
        self.reads: list[tuple[bytearray, bytes]] = []
        va = 0
        for number, (kind, length) in enumerate(wanted):
            data = bytes((7 * number + at) % 251 for at in range(length))
            payload = bytearray(length) if kind == "read" else bytearray(data)
            self.operations.append(Operation(memoryview(payload), va, RKEY, number, kind, announced=kind != "read"))
            if kind == "send":
                self.sends.append((data, number))
            else:
                self.expected[va : va + length] = data
            if kind == "read":
                self.memory.data[va : va + length] = data
                self.reads.append((payload, data))
            if kind == "write":
                self.writes.append(number)
            va += length

    def check(self, responder: OpResponder, inbox: list[bytearray]) -> None:
        assert self.memory.data == self.expected
        assert self.memory.arrivals == self.writes
        assert [(each.length, each.imm) for each in responder.arrivals] == [(len(d), imm) for d, imm in self.sends]
        assert all(room[: len(data)] == data for room, (data, _) in zip(inbox, self.sends, strict=False))
        assert all(into == data for into, data in self.reads)


def take(requester: OpRequester, reply: Reply, now: float) -> None:
    if reply.syndrome is None:
        requester.response(reply.psn, memoryview(reply.payload), now)
    else:
        requester.acknowledge(reply.psn, reply.syndrome, now)


def requests(requester: OpRequester, now: float) -> list[Request]:
    """All packets that may leave now."""
    found: list[Request] = []
    for burst in requester.take(1 << 20, now):
        message, size = burst.message, len(burst.message.payload)
        kind = kind_of(message)
        if kind == "read":
            start = burst.start * MTU
            reth = (message.va + start, message.rkey, size - start)
            found.append(Request(WritePacket(burst.psn, True, True, True), b"", False, reth))
            continue
        for number in range(burst.start, burst.start + burst.packets):
            first, last = number == 0, number == burst.of - 1
            reth_of: Any = (message.va, message.rkey, size) if first and kind == "write" else None
            asks = last or (number + 1) % requester.params.ack_every == 0
            psn = (burst.psn + number - burst.start) & PSN_MASK
            packet = WritePacket(psn, first, last, asks, reth_of, message.imm if last else None)
            found.append(Request(packet, bytes(message.payload[number * MTU : (number + 1) * MTU]), kind == "send"))
    return found


def deliver(responder: OpResponder, request: Request, now: float) -> None:
    if request.read is not None:
        responder.receive_read(request.packet.psn, request.read, now)
    elif request.send:
        responder.receive_send(request.packet, memoryview(request.payload), now)
    else:
        responder.receive(request.packet, memoryview(request.payload), now)


def replies_of(responder: OpResponder) -> list[Reply]:
    """READ responses, then the answer that is due, in the order of RcQp."""
    found: list[Reply] = []
    while responder.reads:
        reply = responder.reads.popleft()
        for at in range(max(1, -(-len(reply.data) // MTU))):
            found.append(Reply((reply.psn + at) & PSN_MASK, None, bytes(reply.data[at * MTU : (at + 1) * MTU])))
    if responder.ack_due or responder.reply is not None:
        psn, syndrome = responder.reply or (responder.acked, ACK_NO_LIMIT)
        responder.answered()
        found.append(Reply(psn, syndrome))
    return found
