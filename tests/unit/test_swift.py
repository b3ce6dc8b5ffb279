"""Swift against steps that were computed by hand, and what must hold for any events."""

from __future__ import annotations

import random
from math import sqrt

import pytest

from heddle.endpoints.congestion.ratecontrol import FAR_NS
from heddle.endpoints.congestion.swift import Swift, SwiftControl, SwiftRule

# frame_bits / base: the line of 1 Gb/s carries 10 packets of 1,000 bits in the base target of 10 us.
RULE = SwiftRule(
    base_ns=10_000, fs_ns=0, fs_min=0.1, fs_max=100.0, ai=1.0, beta=0.8, max_mdf=0.5, least=0.01, frame_bits=1000
)
LINE = 1e9


def test_the_window_follows_the_target_delay() -> None:
    control = SwiftControl(RULE, LINE)
    assert (control.packets, control.window, control.rate_bps) == (10.0, 10.0, LINE)
    control.acknowledged(5, 4_000, 100_000)  # below the target: + 5 / 10
    assert control.packets == 10.5
    control.acknowledged(1, 16_000, 200_000)  # above: x (1 - 0.8 x 6 / 16)
    assert control.packets == pytest.approx(10.5 * 0.7)
    control.acknowledged(1, 16_000, 215_999)  # within one round trip (16,000): no second decrease
    assert control.packets == pytest.approx(10.5 * 0.7)
    control.acknowledged(1, 100_000, 216_000)  # 1 - 0.8 x 0.9 = 0.28 is limited to 1 - max_mdf
    assert control.packets == pytest.approx(10.5 * 0.7)  # the new delay is the round trip: 100,000
    control.acknowledged(1, 100_000, 300_000)
    assert control.packets == pytest.approx(10.5 * 0.7 * 0.5)
    control.acknowledged(3, None, 500_000)  # no delay is known of packets that were sent again
    assert control.packets == pytest.approx(10.5 * 0.7 * 0.5)


def test_a_cnp_counts_as_twice_the_target() -> None:
    control = SwiftControl(RULE, LINE)
    control.notified(0)  # 1 - 0.8 / 2
    assert control.packets == pytest.approx(6.0)
    control.notified(9_999)
    assert control.packets == pytest.approx(6.0)
    control.notified(10_000)
    assert control.packets == pytest.approx(3.6)


def test_a_window_below_one_packet_is_a_rate() -> None:
    control = SwiftControl(RULE, LINE)
    for step in range(10):
        control.notified(step * 10_000)
    assert control.packets == pytest.approx(10 * 0.6**10)
    assert control.window == 1.0
    assert control.rate_bps == pytest.approx(10 * 0.6**10 * 1000 / 10e-6)
    control.acknowledged(1, 5_000, 200_000)  # below 1, a packet adds ai
    assert control.packets == pytest.approx(10 * 0.6**10 + 1.0)


def test_small_windows_have_larger_targets() -> None:
    rule = SwiftRule(10_000, 3_000, 0.25, 100.0, 1.0, 0.8, 0.5, 0.01, 1000)
    a = 3_000 / (1 / sqrt(0.25) - 1 / sqrt(100))  # 3,000 / 1.9
    assert rule.target_ns(100.0) == pytest.approx(10_000)
    assert rule.target_ns(400.0) == pytest.approx(10_000)
    assert rule.target_ns(0.25) == pytest.approx(13_000)
    assert rule.target_ns(0.01) == pytest.approx(13_000)
    assert rule.target_ns(4.0) == pytest.approx(10_000 + a * 0.5 - a * 0.1)


def test_values_of_hardware_are_scaled() -> None:
    made = Swift.of({each.name: each.default for each in Swift.tunables}, 4000, 4154, 7_000)
    assert (made.rule.base_ns, made.rule.fs_ns) == (16_007_000, 16_000_000)
    assert (made.rule.frame_bits, made.cnp.gap_ns) == (33232, 16_000_000)


@pytest.mark.parametrize("seed", range(20))
def test_invariants_for_any_events(seed: int) -> None:
    dice = random.Random(seed)
    control, now = SwiftControl(RULE, LINE), 0
    for _ in range(2000):
        now += dice.choice([0, 1, 999, 50_000])
        delay = dice.choice([None, 0, 1, 9_999, 10_001, 10**9])
        if dice.random() < 0.3:
            control.notified(now)
        else:
            control.acknowledged(dice.randrange(20), delay, now)
        assert RULE.least <= control.packets <= 4096
        assert control.window >= 1
        assert 0 < control.rate_bps <= LINE
        assert control.deadline_ns == FAR_NS
