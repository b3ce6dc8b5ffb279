"""uc: what arrives whole is announced once and in order, and every gap is named; and how a run notices lost packets."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message
from heddle.endpoints.ranks import Waits
from heddle.endpoints.transports.rcstate import WritePacket
from heddle.endpoints.transports.uc import UcParams, UcReceiver, UcSender, UcState
from heddle.endpoints.worker import Stillness, qp_text, waiting_problem
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import plan_run
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire
from tests.answers import Answers
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_srd import info

MTU = 64
SENT = list[tuple[WritePacket, bytes]]


def packets_of(sizes: list[int], psn: int) -> SENT:
    """The packets of messages of these sizes, one after the other in memory. Message i has the bytes i + 1."""
    found: SENT = []
    va = 0
    for number, size in enumerate(sizes):
        count = max(1, -(-size // MTU))
        for index in range(count):
            first, last = index == 0, index == count - 1
            payload = bytes([number + 1]) * (min(MTU, size - index * MTU))
            reth, imm = (va, RKEY, size) if first else None, number if last else None
            found.append((WritePacket(psn & wire.PSN_MASK, first, last, False, reth, imm), payload))
            psn += 1
        va += size
    return found


fates = st.sampled_from(("deliver", "deliver", "deliver", "lose", "twice", "late"))


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(st.integers(0, 5 * MTU), min_size=1, max_size=8),
    st.one_of(st.integers(0, 40), st.integers(wire.PSN_MASK - 40, wire.PSN_MASK)),
    st.lists(fates, max_size=60),
)
def test_messages_with_a_hole_are_dropped_whole_and_all_others_arrive(
    sizes: list[int], psn: int, chosen: list[str]
) -> None:
    memory = Memory(bytearray(sum(sizes)))
    state = UcState(MTU, psn, memory)
    pending, late = deque(chosen), []
    sent, arrived = packets_of(sizes, psn), []  # arrived: indices of `sent`
    for index in range(len(sent)):
        fate = pending.popleft() if pending else "deliver"
        if fate == "late":
            late.append(index)
        elif fate != "lose":
            arrived += [index] * (2 if fate == "twice" else 1) + late
            late = []
    for index in arrived:
        state.receive(sent[index][0], memoryview(sent[index][1]))
    # The model: a packet counts if it comes before all later ones.
    counted, beyond = set(), -1
    for index in arrived:
        if index > beyond:
            counted.add(index)
            beyond = index
    whole, at = [], 0
    for number, size in enumerate(sizes):
        count = max(1, -(-size // MTU))
        if counted >= set(range(at, at + count)):
            whole.append(number)
        at += count
    assert memory.arrivals == whole
    va = 0
    for number, size in enumerate(sizes):
        if number in whole:
            assert memory.data[va : va + size] == bytes([number + 1]) * size
        va += size
    assert state.lost == beyond + 1 - len(counted)
    assert state.late == len(arrived) - len(counted)
    assert state.refused == ""
    gap = next((index for index in range(beyond) if index not in counted), None)
    assert (state.first_gap is None) == (gap is None)
    if gap is not None and state.first_gap is not None:
        assert state.first_gap[0] == (psn + gap - 1) & wire.PSN_MASK


def test_its_frames_are_those_of_uc_and_a_lost_one_is_named() -> None:
    params = UcParams(256)
    memory = Memory(bytearray(1300))
    sender = UcSender(params, info("10.0.0.1", "10.0.1.1", 5, 6, wire.PSN_MASK))
    receiver = UcReceiver(params, info("10.0.1.1", "10.0.0.1", 6, 5, wire.PSN_MASK), memory)
    data = bytes(range(256)) * 4
    sender.post(Message(memoryview(data), 0, RKEY, 9))
    sender.post(Message(memoryview(b"abc"), 1024, RKEY, 10))
    assert sender.ready and not sender.idle and sender.deadline == NEVER
    batch = SendBatch(256, slots=8)
    assert [sender.take(batch, 0, 3, 0.0), sender.take(batch, 3, 5, 0.0)] == [3, 2]
    assert sender.idle and not sender.ready
    got = parsed([bytes(batch.frame(i)) for i in range(5)])
    names = [wire.OPCODE_NAMES[kind.opcode] for kind in got.kinds]
    assert names == [
        "UC_RDMA_WRITE_FIRST", "UC_RDMA_WRITE_MIDDLE", "UC_RDMA_WRITE_MIDDLE", "UC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
    ]  # fmt: skip
    assert all(got.sounds) and not any(got.ackreqs)
    assert all(receiver.receive(got, i, 0.0) for i in (0, 3, 4))
    assert memory.arrivals == [10] and bytes(memory.data[1024:1027]) == b"abc"
    assert not receiver.answering
    assert receiver.counters() == {"lost": 2, "dropped_messages": 1, "late": 0}
    assert receiver.error == "2 packets, 0x0 to 0x1, are lost (last good PSN 0xffffff), and uc does not retransmit"
    assert receiver.standing == "last good PSN 0x3"


@pytest.mark.parametrize(
    ("packet", "payload", "why"),
    [
        (WritePacket(0, True, True, False, (0, RKEY + 1, 4), 1), b"1234", "a wrong key or address"),
        (WritePacket(0, True, True, False, (0, RKEY, 400), 1), b"1234", "a wrong key or address"),
        (WritePacket(0, True, True, False, (0, RKEY, 8), 1), b"1234", "a wrong length"),
        (WritePacket(0, True, False, False, (0, RKEY, 100), None), b"1234", "a wrong length"),
        (WritePacket(0, False, True, False, None, 1), b"1234", "no first packet"),
    ],
)
def test_a_wrong_write_is_refused_and_writes_nothing(packet: WritePacket, payload: bytes, why: str) -> None:
    memory = Memory(bytearray(128))
    state = UcState(MTU, 0, memory)
    state.receive(packet, memoryview(payload))
    assert (state.refused, state.dropped, state.received) == (why, 1, 0)
    assert memory.arrivals == [] and not any(memory.data)


def test_a_run_is_as_patient_as_a_sender_of_rc() -> None:
    fabric = load_fabric("tiny").fabric
    transport = plan_run(fabric, RunOptions(transport="uc", timeout=14, retries=2))[1]
    assert transport.fast() is None
    assert transport.patience_s() == pytest.approx(3 * 4.096e-6 * 2**14)
    assert plan_run(fabric, RunOptions())[1].patience_s() is None


def test_a_worker_is_still_when_no_packet_moves_for_long_enough() -> None:
    watch, counts = Stillness(8.0), iter([5, 5, 5, 6, 6, 7])
    now, seen = 100.0, []
    for step in (1.0, 7.0, 1.0, 1.0, 8.0, 1.0):
        changed = watch.changed(now, lambda: next(counts))
        seen.append((changed, watch.still))
        now += step
    # At 100, 101, 108 (8 s after the first), 109, 110, 118 s.
    assert seen == [(False, False), (False, False), (True, True), (True, False), (False, False), (False, False)]


def test_a_queue_pair_is_named_with_its_peer_at_both_ends() -> None:
    plan, _ = plan_run(load_fabric("tiny").fabric, RunOptions(qps=2))
    for q in plan.qps:
        src, dst = (plan.endpoints[rank] for rank in (q.flow.src_rank, q.flow.dst_rank))
        assert qp_text(plan, src.rank, q.src_qpn) == f"QP {q.src_qpn:#x} to rank {dst.rank} on {dst.nic}"
        assert qp_text(plan, dst.rank, q.flow.qpn) == f"QP {q.flow.qpn:#x} from rank {src.rank} on {src.nic}"
    assert qp_text(plan, 0, 7) == "QP 0x7"


def test_what_a_rank_waits_for_is_said_with_its_queue_pairs(answers: Answers) -> None:
    plan, _ = plan_run(load_fabric("tiny").fabric, RunOptions(transport="uc", qps=3))
    numbers = [q.flow.qpn for q in plan.qps if (q.flow.src_rank, q.flow.dst_rank) == (0, 1)]
    ends = {(1, number): f"last good PSN {at:#x}" for at, number in enumerate(numbers)}
    waits = Waits(3, 2, 6, (4, 1), 0)
    answers({f"still: {still}": str(waiting_problem(plan, 1, waits, ends, still=still)) for still in (True, False)})
