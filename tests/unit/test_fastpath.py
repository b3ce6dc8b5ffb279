"""The compiled NIC against the Python one: the same frames for the same events, and nothing believed that is wrong."""

from __future__ import annotations

import platform
import random
import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from heddle.endpoints.connections import part_sizes
from heddle.endpoints.fastpath import constants, library
from heddle.endpoints.nic.framebuffer import FrameBuffer
from heddle.endpoints.nic.frames import SendBatch, ip_checksum
from heddle.endpoints.nic.parse import Parser
from heddle.endpoints.transports.rcstate import RcParams
from heddle.kernel.native.objects import FASTPATH, MACHINES
from heddle.wire import layout as wire
from tests.unit import committed
from tests.unit.fastpath_bench import (
    EPOCH,
    MTU,
    NS,
    QPS,
    RKEY,
    TICK_S,
    Bench,
    answer,
    both,
    by_queue_pair,
    flow,
    found,
    needs_object,
)


@needs_object
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_sender_makes_the_same_packets_for_the_same_events(version: int, seed: int) -> None:
    """Random messages, ACKs (also of what was never sent), NAKs, time-outs: byte for byte, and in their counters."""
    dice = random.Random(seed)
    params = RcParams(MTU, dice.choice([1, 4, 16]), dice.choice([1, 3, 8]), 1.0, 1000)
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    now, ahead = 10.0, [psn] * QPS
    with both(params, version, psn) as (python, fast):
        for step in range(300):
            now += dice.choice([0.0, 0.01, 0.3, 1.5])
            act = dice.random()
            if act < 0.25:
                data = np.frombuffer(dice.randbytes(dice.choice([4, 300, 768, 5000])), np.uint8)
                for bench in (python, fast):
                    bench.post(data, step << 20, step)
            elif act < 0.9:
                which = dice.randrange(QPS)
                back = dice.choice([-2, -1, 0, 1, 2, 5, 40])
                syndrome = wire.NAK_SEQUENCE if dice.random() < 0.2 else wire.ACK_NO_LIMIT
                at = (ahead[which] + back) & wire.PSN_MASK
                if back in (0, 1, 2) and syndrome == wire.ACK_NO_LIMIT:
                    ahead[which] = (at + 1) & wire.PSN_MASK
                for bench in (python, fast):
                    bench.give(answer(version, 0x100 + which, at, syndrome))
            for bench in (python, fast):
                bench.work(now, tick=act > 0.9)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            assert python.idle == fast.idle
        assert python.counters() == fast.counters()
        assert python.standings() == fast.standings()
        assert python.turned_away() == fast.turned_away() == (0, 0, 0)
        assert sum(row[0] for row in fast.counters()) > 50


def data_frames(version: int, psn: int, payload: bytes, imm: int, ack_every: int) -> list[list[bytes]]:
    """Per receiving queue pair, the packets of its part of one message."""
    batch, rows = SendBatch(MTU, version=version), []
    for which, (offset, size) in enumerate(part_sizes(len(payload), QPS)):
        part, count = payload[offset : offset + size], max(1, -(-size // MTU))
        header = flow(version, 0x300 + which, back=True)
        batch.put_write(
            0, header, psn, part, reth=(Bench.BASE + offset, RKEY, size), imm=imm, index=0, count=count,
            ack_every=ack_every,
        )  # fmt: skip
        rows.append([bytes(batch.frame(i)) for i in range(count)])
    return rows


DELAYS: Final = ((0.0,), (128 * TICK_S, 0.0, 256 * TICK_S))


@needs_object
@pytest.mark.parametrize("delays", DELAYS, ids=["at once", "held back"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_receiver_answers_alike_and_writes_the_same(version: int, seed: int, delays: tuple[float, ...]) -> None:
    """Packets that are lost, doubled, out of order, marked and damaged: the same answers, and whole data in the end."""
    dice = random.Random(100 + seed)
    params = RcParams(MTU, 16, dice.choice([1, 3, 8]), 1.0, 7, ack_delay_s=dice.choice([0.0, 10 * TICK_S]))
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    payload = dice.randbytes(9 * MTU * QPS - 40)
    imm = 0x05001002
    queues = data_frames(version, psn, payload, imm, 4)
    due = [0] * QPS
    now = 10.0
    with both(params, version, psn, len(payload), delays) as (python, fast):
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
                frame = mistreated(dice, frames[index], version)
                intact = frame[wire.UDP_AT :] == frames[index][wire.UDP_AT :]
                for bench in (python, fast):
                    bench.give(frame)
                due[which] += intact and index == due[which]
            for bench in (python, fast):
                bench.work(now)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
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


def mistreated(dice: random.Random, frame: bytes, version: int) -> bytes:
    """Some frames are marked on their way, and of some one bit behind the IP header changes."""
    made, tos_at = bytearray(frame), wire.IP_AT + 1
    if dice.random() < 0.1 and version == 4:
        made[tos_at] |= wire.ECN_CE  # ICRC does not cover it, IPv4's own checksum does
        made[tos_at + 9 : tos_at + 11] = bytes(2)
        made[tos_at + 9 : tos_at + 11] = ip_checksum(bytes(made[wire.IP_AT : wire.UDP_AT])).to_bytes(2, "big")
    if dice.random() < 0.05:
        made[dice.randrange(wire.LAYOUTS[version].udp_at, len(made))] ^= 1 << dice.randrange(8)
    return bytes(made)


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
            got = Parser()
            buffer = FrameBuffer(200)
            buffer.mem[buffer.starts[0] : buffer.starts[0] + len(answers[0][0])] = answers[0][0]
            assert got.parse(buffer, [len(answers[0][0])]).aeth(0)[0] == wire.NAK_ACCESS


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
        events = (library.EventStruct * 16)()
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
    assert constants.HEADER.read_text() == constants.header(), "python -m heddle.endpoints.fastpath.constants writes it"


@pytest.mark.skipif(platform.machine() not in MACHINES, reason=f"no object for {platform.machine()}")
def test_the_object_can_be_used_on_this_machine() -> None:
    assert isinstance(found, library.Library), found
