"""What every transport must do, for all that are registered and one more; and how a run chooses one.

Two ends of a queue pair talk through real frames over a cable that loses some.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import get_args

import pytest

from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.nic.qpend import NEVER, Message, QpEnd
from heddle.endpoints.transports import TRANSPORTS
from heddle.endpoints.transports.protocol import Transport
from heddle.endpoints.transports.rc import Rc, RcSender
from heddle.endpoints.transports.rcstate import RcParams, Recovery
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.measured import FlowRow
from heddle.runs.run import plan_run
from heddle.traffic.flow import Flow, Sent
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire
from tests.stopandwait import NAME, StopAndWait
from tests.unit.test_rc import RKEY, Memory, parsed
from tests.unit.test_srd import info

# A transport of the hosts' own stack has no ends: tests/netns/test_rxe.py.
KINDS: dict[str, type[Transport]] = {**{n: t for n, t in TRANSPORTS.items() if t.stack is None}, NAME: StopAndWait}
RECOVERIES = {f"rc {recovery}": recovery for recovery in get_args(Recovery)[1:]}
# A peer of uc says nothing, and uc sends nothing again.
RELIABLE = [*(name for name in KINDS if name != "uc"), *RECOVERIES]
MTU = 4096
NEAR, FAR = "10.0.0.1", "10.0.1.1"


HERE = info(NEAR, FAR, 5, 6, wire.PSN_MASK - 2)
THERE = info(FAR, NEAR, 6, 5, wire.PSN_MASK - 2)


@pytest.fixture(params=list(KINDS))
def transport(request: pytest.FixtureRequest) -> Transport:
    """With the parameters that it gives a plan, after their way to a worker."""
    return loaded(request.param)


@pytest.fixture(params=RELIABLE)
def reliable(request: pytest.FixtureRequest) -> Transport:
    """The same for transports with acknowledgements."""
    return loaded(request.param)


def loaded(word: str) -> Transport:
    name = word.partition(" ")[0]
    _, made = _planned(name, **({"own": {"recovery": RECOVERIES[word]}} if word in RECOVERIES else {}))
    return KINDS[name].load(json.loads(json.dumps(made.parameters())))


def _planned(name: str, **options: object) -> tuple[object, Transport]:
    patch = pytest.MonkeyPatch()
    with patch.context() as m:
        m.setitem(TRANSPORTS.core, NAME, StopAndWait)
        return plan_run(load_fabric("tiny").fabric, RunOptions(transport=name, **options))  # type: ignore[arg-type]


class Cable:
    """Carries frames from end to end, and loses some. Reads what a NIC would read."""

    def __init__(self, loss: float, seed: int, answer_bytes: int) -> None:
        self._dice, self._loss = random.Random(seed), loss
        self._data, self._answers = SendBatch(MTU, slots=16), SendBatch(answer_bytes, slots=1)

    def turn(self, sender: QpEnd, receiver: QpEnd, now: float) -> None:
        for end in (sender, receiver):
            if end.deadline <= now:
                end.expire(now)
                assert end.deadline > now
        if sender.ready:
            count = sender.take(self._data, 0, self._dice.randint(1, 16), now)
            assert count > 0
            self._carry(self._data, count, receiver, now)
        while receiver.answering:
            receiver.answer(self._answers, 0)
            self._carry(self._answers, 1, sender, now)

    def _carry(self, batch: SendBatch, count: int, end: QpEnd, now: float) -> None:
        frames = [bytes(batch.frame(i)) for i in range(count) if self._dice.random() >= self._loss]
        got = parsed(frames)
        assert all(got.sounds)
        assert all(end.receive(got, at, now) for at in range(len(frames)))


def _times() -> Iterator[float]:
    now = 0.0
    for _ in range(100_000):
        yield now
        now += 0.01


def carry(sender: QpEnd, receiver: QpEnd, cable: Cable) -> None:
    """Until all that was posted is acknowledged."""
    for now in _times():
        cable.turn(sender, receiver, now)
        if sender.idle:
            break
    assert sender.idle and not sender.error


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_every_message_arrives_once_and_whole(reliable: Transport, loss: float) -> None:
    transport = reliable
    sizes = [4, 1, 4096, 4097, 100_000, 12_288, 131_072]
    total = random.Random(3).randbytes(sum(sizes))
    memory = Memory(bytearray(len(total)))
    sender, receiver = transport.sender(HERE), transport.receiver(THERE, memory)
    assert sender.idle and not sender.ready and sender.deadline == NEVER
    at = 0
    for imm, size in enumerate(sizes):
        sender.post(Message(memoryview(total)[at : at + size], at, RKEY, imm))
        at += size
    assert sender.ready and not sender.idle
    carry(sender, receiver, Cable(loss, 1, transport.answer_bytes))
    assert bytes(memory.data) == total
    assert sorted(memory.arrivals) == list(range(len(sizes)))


def test_the_two_ends_report_the_columns_between_them(transport: Transport) -> None:
    sent, took = transport.sender(HERE).counters(), transport.receiver(THERE, Memory(bytearray())).counters()
    assert not set(sent) & set(took)
    assert {*sent, *took} == {column.key for column in transport.columns}
    assert all(column.unit and column.text for column in transport.columns)
    own = {"src", "dst", "src_rank", "dst_rank", "src_ip", "dst_ip", "sport", "dport", "qpn", "first_hop"}
    assert not {*own, "packets", "bytes", "ce"} & {column.key for column in transport.columns}


def test_an_end_leaves_frames_that_are_not_its_own(transport: Transport) -> None:
    batch = SendBatch(MTU, slots=1)
    batch.put_data(0, HERE.flow, wire.SEND_ONLY, 1, b"1234")
    got = parsed([bytes(batch.frame(0))])
    for end in (transport.sender(HERE), transport.receiver(THERE, Memory(bytearray(8)))):
        assert not end.receive(got, 0, 0.0)
        assert not end.answering


def test_a_peer_that_says_nothing_ends_in_an_error(reliable: Transport) -> None:
    sender, batch = reliable.sender(HERE), SendBatch(MTU, slots=16)
    sender.post(Message(memoryview(b"x"), 0, RKEY, 0))
    for now in _times():
        if sender.deadline <= now:
            sender.expire(now)
        if sender.ready:
            sender.take(batch, 0, 16, now)
        if sender.error:
            break
    assert "no acknowledgement" in sender.error
    assert sender.error.endswith(f"(last good PSN {(HERE.psn - 1) & wire.PSN_MASK:#x})")


def test_timers_of_what_could_not_leave_are_moved(reliable: Transport) -> None:
    sender, batch = reliable.sender(HERE), SendBatch(MTU, slots=16)
    sender.post(Message(memoryview(b"x"), 0, RKEY, 0))
    sender.take(batch, 0, 16, 0.0)
    while sender.deadline < 0.1:  # not a timer for an answer
        sender.expire(sender.deadline)
    before = sender.deadline
    sender.hold(1.0)
    assert sender.deadline == pytest.approx(before + 1.0, abs=0.021)


def test_a_receiving_end_takes_no_messages(transport: Transport) -> None:
    with pytest.raises(ValueError, match="only receives"):
        transport.receiver(THERE, Memory(bytearray())).post(Message(memoryview(b"x"), 0, RKEY, 0))


def test_rows_of_rc_keep_their_keys() -> None:
    counters = {column.key: at for at, column in enumerate(Rc.columns)}
    flow = Flow("host1", "host2", NEAR, FAR, 50000, 6, "rtsw1:eth3", src_rank=0, dst_rank=1)
    row = FlowRow(Sent(flow, 10, 41580), 2, counters)
    assert list(row.to_json()) == [
        "src", "dst", "src_rank", "dst_rank", "src_ip", "dst_ip", "sport", "dport", "qpn", "first_hop", "packets",
        "bytes", "retransmitted", "naks", "timeouts", "out_of_order", "duplicates", "trimmed", "nacks", "ce",
        "received", "damaged",
    ]  # fmt: skip


def test_rc_gets_its_parameters_from_the_plan_and_its_timers_a_grid() -> None:
    assert _planned("rc", window=3, timeout=14, retries=2)[1].parameters() == {
        "mtu": 4096, "window": 3, "ack_every": 2, "timeout_s": pytest.approx(0.0671, rel=1e-3), "retries": 2,
        "ack_delay_s": pytest.approx(16 * 8 * 4154 / 100e6), "recovery": "go-back-n", "repeat_tos": -1,
    }  # fmt: skip
    assert _planned("rc")[1].parameters()["ack_every"] == 8
    # Timers of rc run out on a grid, never early, and before twice the timeout.
    for timeout_s, expires in ((0.05, 7.08), (0.001, 7.014), (0.004, 7.02)):
        sender, batch = RcSender(RcParams(timeout_s=timeout_s), HERE), SendBatch(MTU, slots=1)
        sender.post(Message(memoryview(b"x"), 0, RKEY, 0))
        sender.take(batch, 0, 1, 7.0125)
        assert sender.deadline == pytest.approx(expires)
