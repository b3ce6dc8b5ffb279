"""Bursts of tc's lines: the kernel takes them as the time that they take at the rate, 32 bits of psched ticks."""

from __future__ import annotations

import pytest

from heddle.base.units import parse_rate
from heddle.fabric.fabricfile import load_fabric
from heddle.switch.queues.disciplines import DISCIPLINES

TICK_S = 64e-9  # PSCHED_SHIFT in include/net/pkt_sched.h
PAIRS = (("rate", "burst"), ("ceil", "cburst"))


@pytest.mark.parametrize("name", DISCIPLINES)
@pytest.mark.parametrize("burst", [1, 2, 4])
@pytest.mark.parametrize("rate", ["1mbit", "100mbit", "10gbit"])
def test_every_burst_fits_in_32_bits_of_ticks(rate: str, burst: int, name: str) -> None:
    """tc of iproute2 7.3 refuses others ("htb: burst out of range"); older ones cut them off without a word."""
    overrides = [f"link.host={rate}", f"link.fabric={rate}", f"queues.burst={burst}"]
    fabric = load_fabric("tiny", overrides=overrides).fabric
    found = 0
    for line in DISCIPLINES[name].lines(fabric.switches[0].ports[0], fabric.policy.queues):
        words = dict(zip(line.split(), line.split()[1:], strict=False))
        for per_second, at_once in PAIRS:
            if at_once in words:
                found += 1
                seconds = 8 * int(words[at_once].removesuffix("b")) / parse_rate(words[per_second])
                assert seconds / TICK_S < 1 << 32, line
    assert found >= 2
