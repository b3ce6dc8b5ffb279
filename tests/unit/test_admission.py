"""Admission without a network: slots, gates, CTS entries, waits, and the ends around a transport."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.admission.admitted import RankWants
from heddle.endpoints.admission.ctsends import (
    CTS_BYTES,
    GatedSender,
    Grant,
    GrantGate,
    GrantingReceiver,
    Posted,
    Slots,
    pack_entry,
    read_entry,
)
from heddle.endpoints.nic.frames import FlowHeader, Received, SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message, PathUse, QpEnd, QpInfo
from heddle.endpoints.ranks import Pace
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.transports.rcstate import RcParams
from heddle.runs.parts.admission import WaitFigures
from heddle.traffic.admission import WaitRecord, bucket_of, end_of, merged, percentile
from heddle.traffic.collectives import find_pattern
from heddle.traffic.schedule import build_schedule
from heddle.wire import layout as wire
from tests.unit.test_rc import parsed


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.integers(1, 20), st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8),
    st.lists(st.integers(0, 9), max_size=400),
)  # fmt: skip
def test_all_messages_arrive_and_never_more_than_the_budget_is_in_flight(
    count: int, senders: list[int], size: int, choices: list[int]
) -> None:
    """A receiver, its senders, and a network and a processor that choose what happens next. Messages have a slot each.

    `size` messages are a round. A sender has a message ready only when the receiver has processed all of the rounds
    before: dependencies that lead back to earlier messages, as in a collective.
    """
    slots: Slots[int] = Slots(count)
    gates: list[GrantGate[int]] = [GrantGate(0.0) for _ in range(4)]
    for start in range(0, len(senders), size):
        part = [*enumerate(senders)][start : start + size]
        slots.post([{peer: [n for n, sender in part if sender == peer] for _, peer in part}])
    cts: deque[int] = deque()  # written, not arrived
    data: list[int] = []  # sent, not arrived
    arrived: list[int] = []  # not processed
    done: set[int] = set()
    ready: set[int] = set()
    granted: set[int] = set()
    picks = deque(choices)

    def pick(count: int) -> int:
        return picks.popleft() % count if picks else 0

    def grant() -> None:
        fresh = slots.granted()
        granted.update(fresh)
        cts.extend(fresh)
        assert slots.outstanding == len(granted - done) <= count, "the budget"

    grant()
    for _ in range(20 * len(senders)):
        if len(done) == len(senders):
            break
        waiting = [n for n in range(len(senders)) if n not in ready and done >= {*range(n // size * size)}]
        moves = [name for name, some in (("ready", waiting), ("cts", cts), ("data", data), ("work", arrived)) if some]
        assert moves, "no step is possible: a deadlock"
        move = moves[pick(len(moves))]
        if move == "ready":
            number = waiting[pick(len(waiting))]
            ready.add(number)
            if gates[senders[number]].post(Grant(number, 8, number), number, 0.0) is not None:
                data.append(number)
        elif move == "cts":
            number = cts.popleft()
            if gates[senders[number]].granted(Grant(number, 8, number), 0.0) is not None:
                data.append(number)
        elif move == "data":
            number = data.pop(pick(len(data)))
            assert number in granted, "data only after its CTS"
            arrived.append(number)
        else:
            number = arrived.pop(pick(len(arrived)))
            done.add(number)
            slots.consumed(number)
            grant()
    assert done == set(range(len(senders)))
    assert slots.outstanding == slots.waiting == 0
    assert all(gate.held == 0 for gate in gates)


def test_peers_are_granted_in_turn_and_a_slow_one_holds_only_its_share() -> None:
    slots: Slots[str] = Slots(4)
    slots.post([{1: ["a1", "a2", "a3"], 2: ["b1", "b2", "b3"], 3: ["c1"]}, {1: ["d1"]}])
    assert slots.granted() == ["a1", "b1", "c1", "a2"]
    slots.consumed("b1")
    assert slots.granted() == ["b2"]
    slots.consumed("b2")  # rank 1 has not processed anything, and holds its share of 2
    assert slots.granted() == ["b3"]
    slots.consumed("c1")
    assert slots.granted() == ["a3"], "the only peer with messages: all slots"
    with pytest.raises(KeyError):
        slots.consumed("c1")
    assert slots.granted() == [] and slots.waiting == 1
    slots.consumed("b3")
    assert slots.granted() == ["d1"], "the next round"


@pytest.mark.parametrize(("collective", "most"), [("incast", 15), ("all-to-all", 1), ("all-reduce", 1)])
def test_peers_whose_messages_wait_for_no_other_have_slots_at_the_same_time(collective: str, most: int) -> None:
    options = run_options(collective=collective, admission="on", admission_set=["buffsize=128K", "steps=32"])
    pattern = find_pattern(options.collective, options.algorithm)
    schedule = build_schedule(pattern, 16, 0, 1 << 16, 4096)
    wants, peers = RankWants(options.admitted, pattern.at_once(16)), []  # type: ignore[arg-type]
    for peer in range(16):
        end = SimpleNamespace(grant=lambda grant, now, peer=peer: peers.append(peer))
        wants.add(peer, end, SimpleNamespace(changed=lambda: None))  # type: ignore[arg-type]
    wants.begin(0, schedule)
    assert len(peers) == min(32, len(schedule.receives))
    turns = [*dict.fromkeys(peers)]
    assert len(turns) >= most and peers[: 2 * most] == turns[:most] * 2


def test_a_gate_measures_the_wait_behind_the_previous_message() -> None:
    gate: GrantGate[str] = GrantGate(10.0)
    a, b, c = (Grant(n, 4, n) for n in range(3))
    assert gate.post(a, "a", 1.0) is None and gate.post(b, "b", 1.0) is None
    assert gate.deadline == 11.0
    assert gate.granted(a, 3.0) == "a"  # 2 s
    assert gate.deadline == 13.0, "from the last release"
    assert gate.granted(c, 3.5) is None, "its message is not ready"
    assert gate.granted(b, 4.0) == "b"  # 1 s, behind a
    assert gate.post(c, "c", 9.0) == "c"  # no wait
    assert gate.waits.counts() == ((0, 1), (bucket_of(1.0), 1), (bucket_of(2.0), 1))
    assert gate.deadline == NEVER and gate.grants == 3


def test_waits_are_counted_in_buckets_of_a_logarithmic_scale() -> None:
    for seconds in (1e-6, 3.7e-5, 1e-3, 0.5, 900.0):
        assert seconds <= end_of(bucket_of(seconds)) * (1 + 1e-9) <= seconds * 10 ** (1 / 20) * (1 + 1e-6)
    record = WaitRecord()
    for milliseconds in [0] * 50 + [1] * 40 + [100] * 10:
        record.add(milliseconds / 1e3)
    counts = merged([record.counts(), record.counts()])
    assert sum(count for _, count in counts) == 200
    assert percentile(counts, 0.5) == 0.0
    assert percentile(counts, 0.9) == pytest.approx(1e-3, rel=0.13)
    assert percentile(counts, 1.0) == pytest.approx(0.1, rel=0.13)
    assert percentile((), 0.9) == 0.0
    figures = WaitFigures.of(counts)
    assert (figures.messages, figures.at_once) == (200, 100)
    assert figures.text() == "wait for CTS: P50 0, P90 1 ms, longest 100 ms; 100 of 200 messages did not wait"


def test_a_slow_rank_processes_one_message_after_the_other() -> None:
    pace: Pace[str] = Pace(bytes_per_s=100.0)
    assert pace.due == NEVER and pace.done(5.0) is None
    pace.add("a", 50, 1.0)
    pace.add("b", 100, 1.2)
    assert (pace.due, pace.done(1.4), pace.done(1.5)) == (1.5, None, "a")
    assert pace.due == 2.5
    assert pace.done(2.6) == "b"
    pace.add("c", 50, 10.0)
    assert pace.due == 10.5, "it was idle meanwhile"


# CTS packets


def test_an_entry_has_the_64_bytes_of_ncclibsendfifo() -> None:
    grant = Grant(0x1234_5678_9ABC_DEF0, 8192, 0xAABBCCDD)
    entry = pack_entry(grant, 0x11223344, 7)
    assert len(entry) == CTS_BYTES == 64
    assert entry[:8] == bytes.fromhex("f0debc9a78563412"), "the address, little-endian"
    assert entry[8:16] == (8192).to_bytes(8, "little")
    assert entry[16:20] == bytes.fromhex("44332211")
    assert entry[32:36] == (1).to_bytes(4, "little") and entry[36:40] == bytes.fromhex("ddccbbaa")
    assert entry[40:48] == (7).to_bytes(8, "little") and not any(entry[48:])
    assert read_entry(entry) == (grant, 7)


HERE = FlowHeader(
    src_mac="02:00:00:00:00:01", dst_mac="02:00:00:00:00:02", src_ip="10.0.0.1", dst_ip="10.0.0.2", sport=49152,
    dqpn=0x222, tos=wire.TOS_DATA,
)  # fmt: skip
BACK = FlowHeader(
    src_mac="02:00:00:00:00:02", dst_mac="02:00:00:00:00:01", src_ip="10.0.0.2", dst_ip="10.0.0.1", sport=49152,
    dqpn=0x111, tos=wire.TOS_ANSWER,
)  # fmt: skip
PARAMS = RcParams(4096, 4, 1, 1.0, 3)
PSN = 0x7FFFFE  # CTS packets wrap


class Sink(QpEnd):
    """An end of another transport: it keeps what it gets."""

    __slots__ = ("frames", "held", "posted")

    def __init__(self) -> None:
        self.posted: list[Message] = []
        self.frames = 0
        self.held = 0.0

    def post(self, message: Message) -> None:
        self.posted.append(message)

    def receive(self, got: Received, index: int, now: float) -> bool:
        self.frames += 1
        return True

    def hold(self, seconds: float) -> None:
        self.held += seconds


class Pair:
    """The two ends of a queue pair, and frames between them."""

    def __init__(self, as_data: bool = False, ring: int = 4) -> None:
        self.at_sender, self.at_receiver = Sink(), Sink()
        self.gate: GrantGate[Posted] = GrantGate(5.0)
        here, there = QpInfo(0x111, HERE, PSN), QpInfo(0x222, BACK, PSN)
        answers = HERE.with_dscp(wire.DSCP_ANSWER)
        self.sender = GatedSender(self.at_sender, PARAMS, here, answers, self.gate, ring)
        self.released: list[Posted] = []
        self.sender.release = self.released.append
        flow = BACK.with_tos(wire.TOS_DATA) if as_data else BACK
        self.receiver = GrantingReceiver(self.at_receiver, PARAMS, there, flow, as_data, 0x99, ring)

    def frames_of(self, end: QpEnd, now: float = 0.0) -> list[bytes]:
        """Everything that an end sends now: data, then answers."""
        batch, frames = SendBatch(4096, slots=16), []
        while end.ready and (count := end.take(batch, 0, 8, now)):
            frames += [bytes(batch.frame(slot)) for slot in range(count)]
        while end.answering:
            end.answer(batch, 0)
            frames.append(bytes(batch.frame(0)))
        return frames

    def pass_on(self, frames: list[bytes], end: QpEnd, now: float = 0.0) -> None:
        got = parsed(frames)
        assert all(got.sounds)
        for i in range(len(frames)):
            end.receive(got, i, now)


def grant_of(number: int) -> Grant:
    return Grant(number << 20, 4096, number)


@pytest.mark.parametrize("as_data", [False, True])
def test_a_cts_is_a_write_in_the_reverse_direction_and_releases_its_message(as_data: bool) -> None:
    pair = Pair(as_data)
    message = Posted(np.zeros(4096, np.uint8), 3 << 20, 0x99, 3, 0)
    assert pair.gate.post(grant_of(3), message, 0.0) is None
    assert not pair.sender.idle and pair.sender.deadline == 5.0
    pair.receiver.grant(grant_of(3), 1.0)
    assert (pair.receiver.ready, pair.receiver.answering) == (as_data, not as_data)
    frames = pair.frames_of(pair.receiver, 1.0)
    kind = parsed(frames).kinds[0]
    assert len(frames) == 1 and kind.opcode == wire.WRITE_ONLY and kind.payload_bytes == CTS_BYTES
    assert kind.tos == (wire.TOS_DATA if as_data else wire.TOS_ANSWER)
    pair.pass_on(frames, pair.sender, 1.0)
    assert pair.released == [message] and pair.sender.idle
    pair.sender.expire(2.0)
    acks = pair.frames_of(pair.sender)
    assert [k.opcode for k in parsed(acks).kinds] == [wire.ACK]
    assert not pair.receiver.idle
    pair.pass_on(acks, pair.receiver, 2.0)
    assert pair.receiver.idle and pair.receiver.deadline == NEVER
    assert dict(pair.receiver.counters()) == {"cts_sent": 1, "cts_resent": 0}
    assert dict(pair.sender.counters()) == {"cts_received": 1, "cts_acks": 1}
    assert pair.sender.waits() == ((bucket_of(1.0), 1),)
    # The ACK has the port of the data, so it counts with them.
    assert pair.sender.paths(PathUse(HERE.sport, 2, 300)) == (PathUse(HERE.sport, 3, 300 + len(acks[0])),)


def test_lost_and_repeated_cts_packets_release_each_message_once() -> None:
    pair = Pair()
    for round_ in range(3):  # the ring of 4 entries is used three times
        numbers = range(4 * round_, 4 * round_ + 4)
        for each in numbers:
            pair.gate.post(grant_of(each), Posted(np.zeros(1, np.uint8), 0, 0, each, 0), 0.0)
            pair.receiver.grant(grant_of(each), 0.0)
        frames = pair.frames_of(pair.receiver)
        assert len(frames) == 4
        pair.pass_on(frames[:2], pair.sender)  # the others are lost
        pair.receiver.expire(1.5)
        again = pair.frames_of(pair.receiver, 1.5)
        assert len(again) == 4
        pair.pass_on(again, pair.sender, 1.5)
        pair.pass_on(pair.frames_of(pair.sender, 1.5), pair.receiver, 1.5)
        assert pair.receiver.idle
    assert [message.imm for message in pair.released] == list(range(12))
    assert pair.receiver.counters()["cts_resent"] == 12


def test_a_peer_that_disappears_ends_the_run() -> None:
    pair = Pair()
    pair.receiver.grant(grant_of(0), 0.0)
    pair.frames_of(pair.receiver)
    now = 0.0
    while not pair.receiver.error and now < 10:
        now = pair.receiver.deadline
        pair.receiver.expire(now)
        pair.frames_of(pair.receiver, now)
    assert now == pytest.approx(4.0)
    last = (PSN ^ 0x800000) - 1
    text = f"no acknowledgement after 3 retries of 1 s (last good PSN {last:#x})"
    assert pair.receiver.error == f"its clear-to-send (CTS) packets: {text}"
    # A receiver that never grants ends the run.
    pair = Pair()
    pair.gate.post(grant_of(0), Posted(np.zeros(1, np.uint8), 0, 0, 0, 0), 0.0)
    pair.sender.expire(pair.sender.deadline)
    assert pair.sender.error.endswith("1 message waits for it; none has arrived so far")
    assert "no clear-to-send (CTS) for 5 s" in pair.sender.error


def test_everything_else_passes_through() -> None:
    pair = Pair()
    batch = SendBatch(4096)
    batch.put_ack(0, BACK, 0, wire.ACK_NO_LIMIT, 0)
    pair.pass_on([bytes(batch.frame(0))], pair.sender)
    batch.put_data(0, HERE, wire.WRITE_ONLY_IMM, 0, b"data", reth=(0, 0, 4), imm=1)
    pair.pass_on([bytes(batch.frame(0))], pair.receiver)
    assert (pair.at_sender.frames, pair.at_receiver.frames) == (1, 1)
    pair.sender.post(Message(memoryview(b"x"), 0, 0, 0))
    pair.sender.hold(1.0)
    pair.receiver.hold(2.0)
    assert len(pair.at_sender.posted) == 1 and (pair.at_sender.held, pair.at_receiver.held) == (1.0, 2.0)
