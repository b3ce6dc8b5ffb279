"""The fluid bound counts the bytes that NICs really send: IPv6 headers, short last packets, small messages."""

from __future__ import annotations

from collections import defaultdict

import pytest

from heddle.endpoints.connections import part_sizes
from heddle.fabric.fabricfile import load_fabric
from heddle.forecast.nicbound import nic_bound
from heddle.traffic.collectives import find_pattern
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.traffic.schedule import build_schedule
from heddle.wire.layout import LAYOUTS

RETH, IMMEDIATE = 16, 4


def sent_by_ranks(options: RunOptions, ranks: int, version: int, ib_mtu: int = 4096) -> tuple[float, float]:
    """Most bytes that a rank sends, and that one receives, packet by packet, as ranks post them."""
    pattern = find_pattern(options.collective, options.algorithm)
    out: dict[int, int] = defaultdict(int)
    into: dict[int, int] = defaultdict(int)
    overhead = LAYOUTS[version].overhead_bytes
    for rank in range(ranks):
        for send in build_schedule(pattern, ranks, rank, options.sizes[0] // 4, options.chunk).sends:
            message = (send.hi - send.lo) * 4
            parts = part_sizes(message, options.qps) if options.qp_mode == "split" else [(0, message)]
            for _, part in parts:
                left, first = part, True
                while left > 0:
                    payload = min(ib_mtu, left)
                    left -= payload
                    frame = overhead + payload + RETH * first + IMMEDIATE * (left == 0)
                    out[rank] += frame
                    into[send.peer] += frame
                    first = False
    return max(out.values()), max(into.values())


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize(
    "options",
    [
        RunOptions(sizes=(4 << 20,)),
        RunOptions(sizes=(4 << 20,), qps=16),
        RunOptions(sizes=(1 << 20,), qps=128),
        RunOptions(sizes=(1 << 20,), qps=5, qp_mode="round-robin", chunk=4224),
        RunOptions(sizes=(4,)),
        RunOptions(sizes=(100_000,), qps=3),
        RunOptions("all-to-all", sizes=(1 << 19,), qps=2),
        RunOptions("incast", sizes=(1 << 16,)),
    ],
    ids=lambda o: f"{o.collective}-{o.sizes[0]}-{o.qps}",
)
def test_the_bound_is_what_the_packets_take_on_the_busiest_link(options: RunOptions, family: str) -> None:
    fabric = load_fabric("demo", overrides=[f"family={family}"]).fabric
    plan = build_plan(fabric, options)
    out, into = sent_by_ranks(plan.options, 16, fabric.policy.ip_version)
    size = plan.options.sizes[0]
    found = nic_bound(fabric, plan, size)
    assert found.seconds == pytest.approx(max(out, into) * 8 / 50e6, rel=1e-12)
    assert found.algbw == pytest.approx(size / found.seconds / 1e9)
    factor = find_pattern(options.collective, options.algorithm).busbw_factor(16)
    assert found.busbw == pytest.approx(found.algbw * factor)


def test_full_packets_over_ipv4_are_the_simple_case() -> None:
    """rate x payload / frame holds for these, but for RETH and immediate of each message."""
    fabric = load_fabric("tiny").fabric
    plan = build_plan(fabric, RunOptions(sizes=(4 << 20,)))
    simple = 100e6 / 8 * 4096 / (4096 + LAYOUTS[4].overhead_bytes) / 1e9
    found = nic_bound(fabric, plan, 4 << 20).busbw
    assert simple * 0.999 < found < simple
    six = load_fabric("tiny", overrides=["family=ipv6"]).fabric
    assert nic_bound(six, build_plan(six, RunOptions(sizes=(4 << 20,))), 4 << 20).busbw < found * 0.996
    many = build_plan(fabric, RunOptions(sizes=(4 << 20,), qps=128))
    assert nic_bound(fabric, many, 4 << 20).busbw < found * 0.95, "1 KB packets"


def test_the_slowest_nic_bounds_all() -> None:
    fabric = load_fabric("tiny", overrides=["link.exceptions={host2: 10mbit}"]).fabric
    quick = load_fabric("tiny").fabric
    options = RunOptions(sizes=(1 << 20,))
    slow, fast = (nic_bound(each, build_plan(each, options), 1 << 20) for each in (fabric, quick))
    assert slow.seconds == pytest.approx(10 * fast.seconds)


def test_communicators_run_side_by_side() -> None:
    fabric = load_fabric("rail", overrides=["planes=2"]).fabric
    plan = build_plan(fabric, RunOptions(sizes=(1 << 20,)))
    assert len(plan.communicators) == 2
    out, _ = sent_by_ranks(plan.options, plan.size, 4)
    assert nic_bound(fabric, plan, 1 << 20).seconds == pytest.approx(out * 8 / 50e6)
