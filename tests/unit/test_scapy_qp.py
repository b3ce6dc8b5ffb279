"""A queue pair on scapy's layers: all operations, over a channel that loses, repeats and reorders frames; and rc."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.qpend import Message, QpInfo
from heddle.endpoints.transports.scapyparams import ScapyParams
from heddle.endpoints.transports.scapyqp import RNR_CODE, RNR_MS, Arrival, Operation, OpKind, ScapyQp, ScapyRequester
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import budget_of, plan_run
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire
from heddle.wire.roce import AETH, BTH, RETH, AtomicAckETH, AtomicETH
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_rc_model import first_psns
from tests.unit.test_srd import header_between, info
from tests.unit.test_transports import HERE, THERE, Cable, carry, loaded

KINDS: tuple[OpKind, ...] = ("write", "send", "read")
ROOM = 1000  # the most bytes of one operation: four packets
PARAMS = ScapyParams(mtu=256, window=16, ack_every=4, timeout_s=1.0, retries=7)


class Wire:
    """Two ends, and the frames between them, as bytes with an ICRC."""

    def __init__(
        self, seed: int, loss: float, psns: tuple[int, int] = (wire.PSN_MASK - 2, 5), params: ScapyParams = PARAMS
    ) -> None:
        self.params = params
        self.dice, self.loss = random.Random(seed), loss
        self.memories = [Memory(bytearray(self.dice.randbytes(8192))) for _ in range(2)]
        self.ends = [self._end(here, psns) for here in range(2)]
        self.under_way: list[list[bytes]] = [[], []]  # to each end
        self.opcodes: list[int] = []
        self.now = 0.0

    def _end(self, here: int, psns: tuple[int, int]) -> ScapyQp:
        own, other = f"10.0.0.{1 + here}", f"10.0.0.{2 - here}"
        qp = info(own, other, 0x11 + here, 0x12 - here, psns[here])
        return ScapyQp(self.params, qp, self.memories[here], peer_psn=psns[1 - here])

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

    def _receive(self, end: ScapyQp, frame: bytes) -> None:
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


@settings(max_examples=60, deadline=None, database=None)
@given(
    operations, first_psns, st.integers(1, 12), st.integers(1, 8), st.integers(0, 1 << 32),
    st.sampled_from((0.0, 0.15, 0.3)), st.lists(st.integers(0, 6), max_size=8),
)  # fmt: skip
def test_each_operation_is_done_once_whole_and_in_order(
    wanted: list[tuple[OpKind, int]], psn: int, window: int, ack_every: int, seed: int, loss: float, delays: list[int],
) -> None:  # fmt: skip
    """Each operation has its own part of the memory. delays: steps until the peer has memory for one SEND more."""
    channel, here = Wire(seed, loss, (psn, psn), ScapyParams(256, window, ack_every, 1.0, 10_000)), seed % 2
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
        assert end.requester.retransmitted == 0


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


def bth(psn: int, opcode: int, **more: Any) -> Any:
    return BTH(opcode=opcode, dqpn=0x12, psn=psn & wire.PSN_MASK, ackreq=1, **more)


def test_no_acknowledgement_follows_a_read_until_there_is_a_later_write() -> None:
    """rxe takes an ACK between the packets of a READ's response for one of them, and ends the connection."""
    responder = Wire(0, 0.0).ends[1].responder
    first = responder.expected
    write = RETH(va=0, rkey=RKEY, dmalen=3) / b"abc"
    responder.request(bth(first, wire.WRITE_ONLY) / write)
    assert responder.due
    for psn, length, packets in ((first + 1, 600, 3), (first + 4, 10, 4)):
        responder.request(bth(psn, wire.READ_REQUEST) / RETH(va=4096, rkey=RKEY, dmalen=length))
        assert not responder.due and len(responder.responses) == packets  # the responses acknowledge the WRITE, too
    responder.request(bth(first, wire.WRITE_ONLY) / write)  # it is repeated, so its READs will be repeated, too
    assert not responder.due and responder.duplicates == 1
    responder.request(bth(first + 1, wire.READ_REQUEST) / RETH(va=4096, rkey=RKEY, dmalen=600))
    assert len(responder.responses) == 7
    responder.request(bth(first + 7, wire.WRITE_ONLY) / write)  # its turn is two later
    nak = responder.answer()
    assert (nak.psn, nak[AETH].syndrome) == (first + 5 & wire.PSN_MASK, wire.NAK_SEQUENCE)
    responder.request(bth(first + 5, wire.WRITE_ONLY) / write)
    assert responder.due
    ack = responder.answer()
    assert (ack.psn, ack[AETH].syndrome) == (first + 5 & wire.PSN_MASK, wire.ACK_NO_LIMIT)


def test_an_atomic_is_executed_once_and_its_duplicate_gets_the_same_answer() -> None:
    channel = Wire(0, 0.0)
    responder, memory = channel.ends[1].responder, channel.memories[1].data
    memory[8:16] = (41).to_bytes(8, "big")
    add = bth(responder.expected, wire.FETCH_ADD) / AtomicETH(va=8, rkey=RKEY, swap=1)
    for _ in range(2):
        responder.request(add)
    swap = bth(responder.expected, wire.COMPARE_SWAP) / AtomicETH(va=8, rkey=RKEY, swap=7, compare=42)
    responder.request(swap)
    assert [packet[AtomicAckETH].before for packet in responder.responses] == [41, 41, 42]
    assert int.from_bytes(memory[8:16], "big") == 7
    for va, rkey, syndrome in ((4, RKEY, wire.NAK_INVALID), (8, RKEY + 1, wire.NAK_ACCESS)):
        responder.request(bth(responder.expected, wire.FETCH_ADD) / AtomicETH(va=va, rkey=rkey, swap=1))
        assert responder.answer()[AETH].syndrome == syndrome


def test_a_sender_waits_for_the_time_in_the_rnr_nak_and_no_timer_counts_it_as_a_retry() -> None:
    requester = ScapyRequester(PARAMS, 0x12, 0)
    requester.post(Operation(memoryview(bytearray(10)), 0, 0, 0, "send"))
    assert requester.request(1.0).psn == 0
    for _ in range(2 * PARAMS.retries):
        requester.acknowledge(0, wire.RNR_NAK | RNR_CODE, 1.0)
        assert not requester.ready
        assert requester.deadline == 1.0 + RNR_MS[RNR_CODE] / 1000
        requester.expire(requester.deadline)
        assert requester.request(1.0).psn == 0
    assert requester.not_ready == 2 * PARAMS.retries
    assert requester.error == "" and requester.timeouts == 0
    # A copy of the packet has found memory, and its ACK arrives during the wait: what was posted since may leave.
    requester.post(Operation(memoryview(bytearray(10)), 0, 0, 1, "send"))
    requester.acknowledge(0, wire.RNR_NAK | RNR_CODE, 2.0)
    requester.acknowledge(0, wire.ACK_NO_LIMIT, 2.0001)
    assert requester.request(2.0001).psn == 1 and not requester.ready


@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize("sends", ["scapy", "rc"])
def test_scapy_and_rc_understand_each_other(sends: str, loss: float) -> None:
    """Each as the sender of the other: two implementations that share no state machine, and build frames apart."""
    other = {"scapy": "rc", "rc": "scapy"}[sends]
    sizes = [4, 4097, 100_000, 12_288]
    total = random.Random(3).randbytes(sum(sizes))
    memory = Memory(bytearray(len(total)))
    sender, receiver = loaded(sends).sender(HERE), loaded(other).receiver(THERE, memory)
    at = 0
    for imm, size in enumerate(sizes):
        sender.post(Message(memoryview(total)[at : at + size], at, RKEY, imm))
        at += size
    carry(sender, receiver, Cable(loss, 5, 0))
    assert bytes(memory.data) == total
    assert memory.arrivals == list(range(len(sizes)))
    assert (sender.counters()["retransmitted"] > 0) == (loss > 0)


@pytest.mark.parametrize("version", [4, 6])
def test_its_frames_are_those_of_rc(version: int) -> None:
    ips = ("10.0.0.1", "10.0.1.1") if version == 4 else ("fd00::1", "fd00:1::1")
    flow = header_between(*ips, 6).with_tos(wire.TOS_DATA)
    qp, frames = QpInfo(5, flow, wire.PSN_MASK), []
    for end in (loaded("scapy").sender(qp), loaded("rc").sender(qp)):
        end.post(Message(memoryview(bytes(range(256)) * 160), 0x1000, RKEY, 9))
        batch = SendBatch(4096, slots=16, version=version)
        frames.append([bytes(batch.frame(at)) for at in range(end.take(batch, 0, 16, 0.0))])
    assert frames[0] == frames[1] and len(frames[0]) == 10


def test_the_budget_of_packets_is_that_of_its_cost() -> None:
    budgets = {name: budget_of(*plan_run(load_fabric("tiny").fabric, RunOptions(transport=name))).budget_pps
               for name in ("scapy", "srd")}  # fmt: skip
    assert budgets["scapy"] < budgets["srd"] / 10
