"""WRITE, SEND and READ mixed against a model, and a receiver that posts memory for SENDs late (RNR NAK).

Whatever a network does to requests, responses and answers: each operation is done once, whole and in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.qpend import NEVER
from heddle.endpoints.transports.rcops import Operation, OpKind, OpRequester, OpResponder, kind_of
from heddle.endpoints.transports.rcstate import RcParams, WritePacket
from heddle.wire.layout import ACK_NO_LIMIT, PSN_MASK
from tests.unit.test_rc_model import FATES, MTU, TIMEOUT_S, Memory, Network, first_psns

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


@settings(max_examples=300, deadline=None, database=None)
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
        self.memory, self.expected = Memory(size), bytearray(size)
        self.operations: list[Operation] = []
        self.writes: list[int] = []
        self.sends: list[tuple[bytes, int]] = []
        self.reads: list[tuple[bytearray, bytes]] = []
        va = 0
        for number, (kind, length) in enumerate(wanted):
            data = bytes((7 * number + at) % 251 for at in range(length))
            payload = bytearray(length) if kind == "read" else bytearray(data)
            self.operations.append(Operation(memoryview(payload), va, 1, number, kind, announced=kind != "read"))
            if kind == "send":
                self.sends.append((data, number))
            else:
                self.expected[va : va + length] = data
            if kind == "read":
                self.memory.bytes[va : va + length] = data
                self.reads.append((payload, data))
            if kind == "write":
                self.writes.append(number)
            va += length

    def check(self, responder: OpResponder, inbox: list[bytearray]) -> None:
        assert self.memory.bytes == self.expected
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
