"""The ideal iteration of a job, as formulas give it, and the part of a run that compares with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.offline import ideal as ideal_module
from heddle.offline.forecast import Ask, forecast
from heddle.offline.ideal import ideal_seconds
from heddle.runs.parts.ideal import IdealUse
from heddle.runs.runtable import SizeRow, figures
from heddle.traffic.collectives import find_pattern
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.traffic.sequence import Part, steps_text
from heddle.traffic.workload import Workload

TINY = load_fabric("tiny").fabric
DELAYED = load_fabric("tiny", overrides=["link.delay=2us"]).fabric
RATE = TINY.nics[0].rate_bps / 8
MIB = 1 << 20
HEADERS = 0.03  # at most: of packets and messages


def planned(*parts: Part, fabric: Fabric = TINY, **more: Any) -> Plan:
    options = RunOptions("steps", "list", steps=steps_text(parts), **more) if parts else RunOptions(**more)
    return build_plan(fabric, options)


@pytest.mark.parametrize(
    ("collective", "busiest"),
    [("all-reduce", 2 * 3 / 4), ("all-gather", 3 / 4), ("all-to-all", 3 / 4), ("incast", 3 / 4), ("send-recv", 1.0)],
)
@pytest.mark.parametrize("qps", [1, 3])
def test_the_ideal_of_a_collective_is_the_bound_of_its_busiest_rank(collective: str, busiest: float, qps: int) -> None:
    plan = planned(collective=collective, sizes=(4 * MIB,), qps=qps)
    ideal = ideal_seconds(plan, 4 * MIB)
    bound = 4 * MIB * busiest / RATE
    assert ideal is not None and bound < ideal < bound * (1 + HEADERS) + 2 * (128 << 10) / RATE


def test_a_broadcast_that_goes_on_overlaps_and_a_single_one_pays_for_each_hop() -> None:
    message = 1.02 * (128 << 10) / RATE
    first = ideal_seconds(planned(collective="broadcast", sizes=(MIB,), warmup=0, iters=1), MIB)
    assert first == pytest.approx(8 * message + 2 * message * (0 + 1 + 1 + 1) / 4, rel=0.3)
    many = ideal_seconds(planned(collective="broadcast", sizes=(MIB,), iters=5), MIB)
    assert many is not None and first is not None and many > 8 * message * 0.98


def test_ranks_that_receive_less_get_ahead_and_do_not_shorten_the_ideal() -> None:
    eight = load_fabric("tiny", overrides=["racks=1", "hosts_per_rack=8"]).fabric
    few, many = (planned(collective="all-to-all-v", sizes=(8 * MIB,), iters=n, fabric=eight) for n in (2, 5))
    bound = forecast(eight, Workload.of(many.options), Ask(), Silent()).roofline.nic_s
    first, ideal = ideal_seconds(few, 8 * MIB), ideal_seconds(many, 8 * MIB)
    assert first is not None and ideal is not None and first < 0.98 * bound and 0.99 * bound < ideal < 1.02 * bound


def test_propagation_and_computations_add_to_the_path_of_steps() -> None:
    send = find_pattern("send-recv")
    parts = (
        Part("work", (0, 1, 2, 3), seconds=5e-6),
        Part("there", (0, 1), send, 4096, after=(0,)),
        Part("more", (0,), seconds=2e-6, after=(1,)),
        Part("back", (1, 0), send, 4096, after=(2,)),
    )
    plan = planned(*parts, fabric=DELAYED, warmup=0, iters=1)
    message = 8 * 4096 * 1.03 / DELAYED.nics[0].rate_bps
    one_way = max(qp.rtt_s for qp in plan.qps) / 2
    assert one_way > 0
    k, hop = plan.k, one_way + message
    ranks = (7e-6 * k + hop, 7e-6 * k + 2 * hop, 5e-6 * k, 5e-6 * k)  # rank 1 takes no part in `more`
    ideal = ideal_seconds(plan, plan.options.sizes[0])
    assert ideal == pytest.approx(sum(ranks) / 4, rel=0.02)


def measured(plan: Plan, *seconds: float) -> Any:
    """A run in which each rank measured these seconds for each iteration, at every size."""
    each = [[s, s] for s in seconds]
    total = [2 * s for s in seconds]
    rows = [SizeRow.of(size, figures(size, 2, 1.0, total, 0, each)) for size in plan.options.sizes]
    return SimpleNamespace(plan=plan, sizes=rows)


def test_a_run_has_its_ratio_and_the_time_of_each_rank_that_no_computation_hides() -> None:
    us = 1e6 * TINY.policy.k
    parts = (Part("", (0, 1), seconds=10e-6), Part("", (0, 1, 2, 3), find_pattern("all-reduce"), MIB, after=(0,)))
    plan = planned(*parts)
    ideal = ideal_seconds(plan, plan.options.sizes[0])
    assert ideal is not None
    found = IdealUse.of_run(measured(plan, *[2 * ideal] * 4))
    assert found is not None and found.ratio == pytest.approx(2.0)
    assert [rank.computing_us for rank in found.ranks] == pytest.approx([10e-6 * us, 10e-6 * us, 0, 0])
    first = found.ranks[0]
    assert first.exposed_us == pytest.approx(2e6 * ideal - 10e-6 * us)
    assert first.share == pytest.approx(first.exposed_us / (2e6 * ideal))
    ratio, exposed = found.lines()
    assert ratio.startswith("#ideal    : job completion ratio 2.00: ") and "most at rank 2" in exposed
    assert found.share is not None and [found.ratio, found.share] == pytest.approx([2.0, found.share])
    assert found.to_json()["completion_ratio"] == pytest.approx(2.0) and len(found.table().rows) == 4


def test_an_iteration_of_too_many_messages_has_no_ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(Part("", (0,), seconds=1e-6), Part("", (0, 1), find_pattern("send-recv"), 4096))
    monkeypatch.setattr(ideal_module, "_MOST_MESSAGES", 1)
    found = IdealUse.of_run(measured(plan, 1.0, 1.0, 1.0, 1.0))
    assert found is not None and found.ratio is None and found.to_json()["completion_ratio"] is None
    assert [line.partition(":")[0] for line in found.lines()] == ["#exposed  "]
    assert [name for name, _, _ in found.cards()] == ["exposed communication"]


def test_a_plain_collective_has_a_ratio_for_each_size_and_nothing_exposed() -> None:
    plan = planned(sizes=(65536, MIB))
    found = IdealUse.of_run(measured(plan, 1.0, 1.0, 1.0, 1.0))
    assert found is not None and [each.size for each in found.sizes] == [65536, MIB]
    assert len(found.lines()) == 1 and not found.ranks and len(found.table().rows) == 2
    assert IdealUse.of_run(SimpleNamespace(plan=plan, sizes=())) is None  # type: ignore[arg-type]
