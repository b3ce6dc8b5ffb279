"""The time between two passes of a worker's NICs: three full frames of the fastest NIC, and 1 ms at most."""

from __future__ import annotations

import pytest

from heddle.endpoints.nicloop import SEND_FRAMES, moderation_s
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.wire.layout import LAYOUTS


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize(("rate", "seconds"), [("10mbit", 0.001), ("50mbit", 0.001), ("1gbit", None), ("10gbit", None)])
def test_three_frames_or_a_millisecond(rate: str, seconds: float | None, family: str) -> None:
    overrides = [f"link.host={rate}", f"link.fabric={rate}", f"family={family}"]
    plan = build_plan(load_fabric("tiny", overrides=overrides).fabric, RunOptions(sizes=(1 << 16,)))
    bits = 8 * (4096 + LAYOUTS[plan.ip_version].overhead_bytes)
    rate_bps = plan.endpoints[0].rate_bps
    assert moderation_s(plan) == pytest.approx(3 * bits / rate_bps if seconds is None else seconds)
    assert moderation_s(plan) <= SEND_FRAMES * bits / rate_bps, "the port's queue would run empty"


def test_the_fastest_nic_decides() -> None:
    fabric = load_fabric("tiny", overrides=["link.host=1gbit", "link.exceptions.host2=100mbit"]).fabric
    plan = build_plan(fabric, RunOptions(sizes=(1 << 16,)))
    rates = {each.rate_bps for each in plan.endpoints}
    assert len(rates) == 2
    assert moderation_s(plan) == pytest.approx(3 * 8 * (4096 + LAYOUTS[4].overhead_bytes) / max(rates))
