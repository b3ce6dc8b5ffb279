"""DCQCN in the compiled NIC against the Python one: the same frames at the same times, and the same rates."""

from __future__ import annotations

import random

import numpy as np
import pytest

from heddle.endpoints.congestion.controlled import Controlled
from heddle.endpoints.congestion.dcqcn import Dcqcn, DcqcnRule
from heddle.endpoints.congestion.ratecontrol import CnpRule
from heddle.endpoints.fastpath.fastloop import dcqcn_struct, drives
from heddle.endpoints.nic.frames import SendBatch
from heddle.endpoints.transports.rcstate import RcParams
from heddle.wire import layout as wire
from tests.unit.fastpath_bench import MTU, QPS, RKEY, TICK_S, Bench, answer, both, by_queue_pair, flow, needs_object


def control(dice: random.Random) -> Controlled:
    """Times that are no whole number of ticks: whether a timer expires never depends on a nanosecond."""
    rule = DcqcnRule(
        keep=dice.choice([0.5, 1019 / 1024, 0.0]), alpha_ns=3_000_001, first_alpha=1023 / 1024,
        first_bps=dice.choice([0.0, 600_000.0]), least_factor=dice.choice([0.5, 0.9]), min_bps=10_000.0,
        cut_divisor=dice.choice([1.0, 2.0]), cut_ns=7_000_003, clamp=dice.random() < 0.5,
        clamp_after_time=dice.random() < 0.5, time_ns=dice.choice([11_000_001, 90_000_007]),
        byte_reset=dice.choice([0, 640, 6400]), threshold=dice.choice([1, 3]), ai_bps=5_000.0, hai_bps=50_000.0,
    )  # fmt: skip
    gap = dice.choice([0, 5_000_001, 50_000_001])
    return Controlled("dcqcn", {}, Dcqcn(rule, CnpRule(gap, dice.choice([48, 46]))), dice.choice([4, 64]))


def cnp(version: int, qpn: int) -> bytes:
    batch = SendBatch(0, slots=1, version=version)
    batch.put_cnp(0, flow(version, qpn, back=True))
    return bytes(batch.frame(0))


@needs_object
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_sender_waits_alike(version: int, seed: int) -> None:
    """Random messages, CNPs, ACKs, NAKs, silences: after each step the same packets, in the end the same rates."""
    dice = random.Random(seed)
    params = RcParams(MTU, dice.choice([4, 16, 64]), dice.choice([1, 8]), 1.0, 1000)
    psn = dice.choice([0, wire.PSN_MASK - 3])
    delays = dice.choice([(0.0,), (16 * TICK_S, 0.0, 32 * TICK_S)])
    now, out = 10.0, [psn] * QPS
    with both(params, version, psn, MTU, delays, control(dice)) as (python, fast):
        for step in range(500):
            now += TICK_S * dice.choice([0, 1, 1, 2, 5, 200])
            act = dice.random()
            if act < 0.2:
                data = np.frombuffer(dice.randbytes(dice.choice([300, 5000, 20_000])), np.uint8)
                for bench in (python, fast):
                    bench.post(data, step << 20, step)
            elif act < 0.8:
                which = dice.randrange(QPS)
                if act < 0.4:
                    frame = cnp(version, 0x100 + which)
                else:
                    syndrome = wire.NAK_SEQUENCE if dice.random() < 0.1 else wire.ACK_NO_LIMIT
                    frame = answer(version, 0x100 + which, (out[which] - 1) & wire.PSN_MASK, syndrome)
                for bench in (python, fast):
                    bench.give(frame)
            for bench in (python, fast):
                bench.work(now, tick=act > 0.95)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            at = wire.LAYOUTS[version].psn_word_at
            for which in range(QPS):
                for each in sent[0].get(0x200 + which, []):
                    out[which] = int.from_bytes(each[at : at + 4], "big") + 1 & wire.PSN_MASK
            assert python.idle == fast.idle
        assert python.counters() == fast.counters()
        assert python.rates() == fast.rates()
        assert python.turned_away() == fast.turned_away() == (0, 0, 0)
        assert all(row[-1] > 10 for row in fast.counters()[:QPS]), "CNPs have arrived"
        assert all(len(steps) > 1 for steps in fast.rates()[:QPS])


@needs_object
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(6))
def test_a_receiver_notifies_alike(version: int, seed: int) -> None:
    """Marked packets and others, in order, doubled or early: the same CNPs, ACKs and NAKs."""
    dice = random.Random(50 + seed)
    params = RcParams(MTU, 16, dice.choice([1, 3, 8]), 1.0, 7, ack_delay_s=dice.choice([0.0, 10 * TICK_S]))
    now, due, batch, cnps = 10.0, [0] * QPS, SendBatch(MTU, slots=1, version=version), 0
    with both(params, version, 0, 100 * MTU, (0.0,), control(dice)) as (python, fast):
        fast.expect(100 * MTU, 7, 1)
        for step in range(400):
            now += TICK_S * dice.choice([0, 1, 3, 40])
            for _ in range(dice.randint(0, 3)):
                which = dice.randrange(QPS)
                header = flow(version, 0x300 + which, back=True).with_dscp(wire.DSCP_DATA)
                header.tos |= dice.choice([wire.ECT0, wire.ECN_CE])
                psn = max(0, due[which] + dice.choice([0, 0, 0, 0, 1, -1]))
                reth = (Bench.BASE, RKEY, MTU)
                batch.put_data(0, header, wire.WRITE_ONLY, psn, bytes(MTU), ackreq=dice.random() < 0.3, reth=reth)
                due[which] += psn == due[which]
                for bench in (python, fast):
                    bench.give(bytes(batch.frame(0)))
            for bench in (python, fast):
                bench.work(now)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            opcode_at = wire.LAYOUTS[version].ext_at - wire.BTH_BYTES
            cnps += sum(frame[opcode_at] == wire.CNP for frames in sent[0].values() for frame in frames)
        assert [row[:3] + row[-1:] for row in python.counters()] == [row[:3] + row[-1:] for row in fast.counters()]
        assert cnps == sum(row[-1] for row in fast.counters()[QPS:]) > 3


def test_the_compiled_loop_has_dcqcn_only() -> None:
    from heddle.endpoints.congestion.controlled import congestion_of
    from heddle.fabric.fabricfile import load_fabric
    from heddle.traffic.options import RunOptions
    from heddle.traffic.plan import build_plan

    fabric = load_fabric("tiny").fabric
    dcqcn, swift = (congestion_of(build_plan(fabric, RunOptions(congestion=name))) for name in ("dcqcn", "swift"))
    assert drives(None) and drives(dcqcn) and not drives(swift)
    assert swift is not None
    with pytest.raises(TypeError, match="swift is not compiled"):
        dcqcn_struct(swift)
