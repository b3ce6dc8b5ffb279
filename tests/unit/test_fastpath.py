"""The compiled NIC against the Python one: the same frames for the same events, and nothing believed that is wrong."""

from __future__ import annotations

import platform
import random
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from heddle.endpoints.congestion.controlled import Controlled, congestion_of
from heddle.endpoints.congestion.dcqcn import Dcqcn, DcqcnRule
from heddle.endpoints.congestion.ratecontrol import CnpRule
from heddle.endpoints.connections import part_sizes
from heddle.endpoints.fastpath import fastloop
from heddle.endpoints.fastpath.fastloop import dcqcn_struct
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.transports.rc import Rc
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.worker import why_not_compiled
from heddle.fabric.fabricfile import load_fabric
from heddle.runs.run import job_plan
from heddle.traffic.options import RunOptions
from heddle.wire import layout as wire
from tests.objects import constants
from tests.objects.shared import FASTPATH, MACHINES
from tests.unit import committed
from tests.unit.fastpath_bench import (
    EPOCH,
    MTU,
    NS,
    QPS,
    TICK_S,
    Bench,
    answer,
    both,
    by_queue_pair,
    flow,
    found,
    needs_object,
)
from tests.unit.test_rc import RKEY, parsed


def control(dice: random.Random) -> Controlled:
    """Times that are no whole number of ticks: whether a timer expires never depends on a nanosecond."""
    rule = DcqcnRule(
        keep=dice.choice([0.5, 1019 / 1024, 0.0]), alpha_ns=3_000_001, first_alpha=1023 / 1024,
        first_bps=dice.choice([0.0, 600_000.0]), least_factor=dice.choice([0.5, 0.9]), min_bps=10_000.0,
        cut_divisor=dice.choice([1.0, 2.0]), cut_ns=7_000_003, clamp=dice.random() < 0.5,
        clamp_after_time=dice.random() < 0.5, time_ns=dice.choice([11_000_001, 90_000_007]),
        byte_reset=dice.choice([0, 640, 6400]), threshold=dice.choice([1, 3]), ai_bps=5_000.0, hai_bps=50_000.0,
        start_bps=dice.choice([0.0, 300_000.0]), growth=dice.choice([1.0, 1.5]), coalesce=dice.random() < 0.5,
    )  # fmt: skip
    gap, bits = dice.choice([0, 5_000_001, 50_000_001]), 8 * (MTU + 58)
    return Controlled("dcqcn", Dcqcn(rule, CnpRule(gap, dice.choice([48, 46]))), dice.choice([4, 64]), bits)


def cnp(version: int, qpn: int) -> bytes:
    batch = SendBatch(0, slots=1, version=version)
    batch.put_cnp(0, flow(version, qpn, back=True))
    return bytes(batch.frame(0))


@needs_object
@pytest.mark.parametrize("controlled", [False, True], ids=["plain", "dcqcn"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_sender_makes_the_same_packets_for_the_same_events(version: int, seed: int, controlled: bool) -> None:
    """Random messages, CNPs, ACKs (also of what was never sent), NAKs, time-outs: byte for byte, and all counters."""
    dice = random.Random(seed)
    timeout_s = dice.choice([1.0, 3 * TICK_S])  # the second is shorter than the usual grid of timers
    params = RcParams(MTU, dice.choice([1, 4, 16, 64]), dice.choice([1, 3, 8]), timeout_s, 1000)
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    delays = dice.choice([(0.0,), (16 * TICK_S, 0.0, 32 * TICK_S)])
    now, last = 10.0, [(psn - 1) & wire.PSN_MASK] * QPS
    with both(params, version, psn, MTU, delays, control(dice) if controlled else None) as (python, fast):
        for step in range(500):
            now += TICK_S * dice.choice([0, 1, 2, 5, 150, 800])
            act, which = dice.random(), dice.randrange(QPS)
            if act < 0.2:
                data = np.frombuffer(dice.randbytes(dice.choice([4, 300, 768, 5000, 20_000])), np.uint8)
                for bench in (python, fast):
                    bench.post(data, step << 20, step)
            elif act < 0.95:
                frame = cnp(version, 0x100 + which)
                if not controlled or act > 0.4:
                    at = (last[which] + dice.choice([-3, -1, 0, 0, 0, 0, 1, 40])) & wire.PSN_MASK
                    syndrome = wire.NAK_SEQUENCE if dice.random() < 0.15 else wire.ACK_NO_LIMIT
                    frame = answer(version, 0x100 + which, at, syndrome)
                for bench in (python, fast):
                    bench.give(frame)
            for bench in (python, fast):
                bench.work(now, tick=act > 0.9)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            psn_at = wire.LAYOUTS[version].psn_word_at
            for which in range(QPS):
                for each in sent[0].get(0x200 + which, []):
                    last[which] = int.from_bytes(each[psn_at : psn_at + 4], "big") & wire.PSN_MASK
            assert python.idle == fast.idle
        assert python.counters() == fast.counters()
        assert python.standings() == fast.standings()
        assert python.turned_away() == fast.turned_away() == (0, 0, 0)
        assert sum(row[0] for row in fast.counters()) > 50
        if controlled:
            assert python.rates() == fast.rates()
            assert all(row[-1] > 10 for row in fast.counters()[:QPS]), "CNPs have arrived"
            assert all(len(steps) > 1 for steps in fast.rates()[:QPS])


def data_frames(
    version: int, psn: int, payload: bytes, imm: int, ack_every: int, mark: int = wire.ECT0
) -> list[list[bytes]]:
    """Per receiving queue pair, the packets of its part of one message."""
    batch, rows = SendBatch(MTU, version=version), []
    for which, (offset, size) in enumerate(part_sizes(len(payload), QPS)):
        part, count = payload[offset : offset + size], max(1, -(-size // MTU))
        header = flow(version, 0x300 + which, back=True).with_dscp(wire.DSCP_DATA)
        header.tos |= mark
        batch.put_write(
            0, header, psn, part, reth=(Bench.BASE + offset, RKEY, size), imm=imm, index=0, count=count,
            ack_every=ack_every,
        )  # fmt: skip
        rows.append([bytes(batch.frame(i)) for i in range(count)])
    return rows


RECEIVERS: Final = (((0.0,), False), ((128 * TICK_S, 0.0, 256 * TICK_S), False), ((0.0,), True))


@needs_object
@pytest.mark.parametrize(("delays", "controlled"), RECEIVERS, ids=["at once", "held back", "dcqcn"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_receiver_answers_alike_and_writes_the_same(
    version: int, seed: int, delays: tuple[float, ...], controlled: bool
) -> None:
    """Packets that are lost, doubled, out of order, marked and damaged: the same answers, and whole data in the end."""
    dice = random.Random(100 + seed)
    params = RcParams(MTU, 16, dice.choice([1, 3, 8]), 1.0, 7, ack_delay_s=dice.choice([0.0, 10 * TICK_S]))
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    payload = dice.randbytes(9 * MTU * QPS - 40)
    imm = 0x05001002
    queues, marked = (data_frames(version, psn, payload, imm, 4, mark) for mark in (wire.ECT0, wire.ECN_CE))
    due = [0] * QPS
    now, cnps = 10.0, 0
    with both(params, version, psn, len(payload), delays, control(dice) if controlled else None) as (python, fast):
        fast.expect(len(payload), imm, QPS)
        for step in range(600):
            now += TICK_S * dice.choice([0, 2, 25])
            which = dice.randrange(QPS)
            frames = queues[which]
            for _ in range(dice.randint(1, 4)):
                index = dice.choice(
                    [due[which], due[which], due[which], due[which] + 1, due[which] - 1, due[which] + 3]
                )
                if not 0 <= index < len(frames):
                    continue
                frame, intact = dice.choice((frames, frames, marked[which]))[index], dice.random() > 0.05
                if not intact:  # one bit behind the IP header changes
                    made = bytearray(frame)
                    made[dice.randrange(wire.LAYOUTS[version].udp_at, len(made))] ^= 1 << dice.randrange(8)
                    frame = bytes(made)
                for bench in (python, fast):
                    bench.give(frame)
                due[which] += intact and index == due[which]
            for bench in (python, fast):
                bench.work(now)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            opcode_at = wire.LAYOUTS[version].ext_at - wire.BTH_BYTES
            cnps += sum(frame[opcode_at] == wire.CNP for frames in sent[0].values() for frame in frames)
        for which, frames in enumerate(queues):
            for rest in frames[due[which] :]:
                for bench in (python, fast):
                    bench.give(rest)
                    bench.work(now)
        now += 1.0  # longer than any delay
        for bench in (python, fast):
            bench.work(now)
        assert python.written() == fast.written() == payload
        assert python.complete() == [imm] * QPS and fast.done == [0]
        assert [row[2:] for row in python.counters()] == [row[2:] for row in fast.counters()]
        assert python.standings() == fast.standings()
        assert python.turned_away() == fast.turned_away()
        assert sum(python.turned_away()) > 0
        assert not controlled or cnps == sum(row[-1] for row in fast.counters()[QPS:]) > 3
        # At the end of a run, what arrives counts, and no answer leaves: the peer may have stopped.
        before, _ = fast.counters()[QPS], fast.sent()
        fast.give(marked[0][0])
        for at in (now, now + 3600):
            fast.code.hd_take(fast.engine, round(at * NS))
        assert fast.sent() == []
        changes = [new - old for new, old in zip(fast.counters()[QPS], before, strict=True)]
        assert changes[2:] == [1, 0, 0, 1, *[0] * controlled], "a mark, and a packet received again"


@needs_object
@pytest.mark.parametrize("version", [4, 6])
def test_frames_that_are_wrong_are_turned_away_for_the_same_reason(version: int) -> None:
    """Every byte of the headers changed in turn, cut at every length, and random garbage."""
    dice = random.Random(4)
    params = RcParams(MTU, 16, 8, 1.0, 7)
    good = data_frames(version, 0, bytes(3 * MTU), 1, 4)[0][0]
    wrong = []
    for at in range(wire.LAYOUTS[version].ext_at + 20):
        for bit in (0x01, 0x10, 0x80, 0xFF):
            wrong.append(bytes([*good[:at], good[at] ^ bit, *good[at + 1 :]]))
    wrong += [good[:size] for size in range(len(good))] + [good + b"\0", good + bytes(100), good + bytes(9000)]
    wrong += [dice.randbytes(dice.randint(0, 400)) for _ in range(200)]
    wrong += [good[: wire.IP_AT] + dice.randbytes(len(good) - wire.IP_AT) for _ in range(200)]
    with both(params, version, 0, 3 * MTU) as (python, fast):
        fast.expect(3 * MTU, 1, QPS)
        for frame in wrong:
            if not frame:
                continue
            for bench in (python, fast):
                bench.give(frame)
                bench.work(1.0)
            assert python.turned_away() == fast.turned_away(), frame.hex()
        assert sum(row[3] for row in fast.counters()) > 0, "a wrong ICRC, of a known queue pair"
        assert [row[2:] for row in python.counters()] == [row[2:] for row in fast.counters()]
        assert python.standings() == fast.standings()


@needs_object
def test_writes_outside_the_region_and_with_a_wrong_key_are_refused() -> None:
    for reth in ((Bench.BASE + 1, RKEY, MTU), (Bench.BASE, RKEY + 1, MTU), (Bench.BASE - 1, RKEY, 4),
                 (Bench.BASE, RKEY, 0xFFFFFFFF), (1 << 63, RKEY, 4), ((EPOCH + 2) << 48, RKEY, 4)):  # fmt: skip
        batch = SendBatch(MTU, slots=1)
        size = min(reth[2], MTU)
        batch.put_data(0, flow(4, 0x300, back=True), wire.WRITE_ONLY_IMM, 0, bytes(size), ackreq=True, reth=reth, imm=1)
        with both(RcParams(MTU, 16, 1, 1.0, 7), 4, 0, MTU) as (python, fast):
            fast.expect(MTU, 1, 1)
            for bench in (python, fast):
                bench.give(bytes(batch.frame(0)))
                bench.work(1.0)
            answers = [bench.sent() for bench in (python, fast)]
            assert answers[0] == answers[1]
            assert parsed(answers[0][:1]).aeth(0)[0] == wire.NAK_ACCESS


@needs_object
def test_a_sender_that_gets_no_answer_gives_up() -> None:
    data = np.zeros(100, np.uint8)
    with both(RcParams(MTU, 16, 1, 1.0, 2), 4, 0) as (python, fast):
        for bench in (python, fast):
            bench.post(data, 0, 0)
            for second in range(8):
                bench.work(10.0 + 1.1 * second, tick=True)
        why = "no acknowledgement after 2 retries of 1 s (last good PSN 0xffffff)"
        assert python.nic.errors() == [(qpn, why) for _, qpn, _ in fast.failed]
        assert {(kind, said) for kind, _, said in fast.failed} == {(2, why)}
        assert len(python.sent()) == len(fast.sent())


@needs_object
@pytest.mark.parametrize("version", [4, 6])
def test_the_loop_returns_when_a_message_is_complete(version: int) -> None:
    """hd_run: the sockets, the clock and the waiting are the kernel's; the answers are those of the Python NIC."""
    payload = bytes(range(256)) * 12
    with both(RcParams(MTU, 16, 3, 1.0, 7), version, 0, len(payload)) as (python, fast):
        fast.expect(len(payload), 9, QPS)
        for frames in data_frames(version, 0, payload, 9, 4):
            for frame in frames:
                python.give(frame)
                fast.give(frame)
        python.work(1.0)
        events = (fastloop.EventStruct * 16)()
        until = time.monotonic_ns() + 60 * NS
        stop = fast.pairs[2][0].fileno()
        assert fast.code.hd_run(fast.engine, until, stop, NS, events, 16) == 1
        assert (events[0].kind, events[0].nic, events[0].b) == (1, 0, 0)
        assert fast.written() == payload
        fast.code.hd_pass(fast.engine, time.monotonic_ns(), 1)
        assert by_queue_pair(fast.sent(), version) == by_queue_pair(python.sent(), version)
        assert fast.code.hd_run(fast.engine, time.monotonic_ns() + NS // 100, stop, NS, events, 16) == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_the_committed_object_is_what_its_sources_give(machine: str, tmp_path: Path) -> None:
    committed.compare_shared(FASTPATH, machine, tmp_path / "built.so")


def test_the_header_of_shared_constants_is_what_python_has() -> None:
    assert constants.HEADER.read_text() == constants.header(), "python -m tests.objects.constants writes it"


@pytest.mark.skipif(platform.machine() not in MACHINES, reason=f"no object for {platform.machine()}")
def test_the_object_can_be_used_on_this_machine() -> None:
    assert isinstance(found, fastloop.Library), found


def test_the_compiled_loop_has_dcqcn_only() -> None:
    fabric = load_fabric("tiny").fabric
    plans = [job_plan(fabric, RunOptions(congestion=name)) for name in ("none", "dcqcn", "swift")]
    why = [why_not_compiled(plan, Rc.of(plan)) for plan in plans]
    assert why == ["", "", "--cc swift, which the compiled loop does not have"]
    swift = congestion_of(plans[-1])
    assert swift is not None
    with pytest.raises(TypeError, match="swift is not compiled"):
        dcqcn_struct(swift)
