"""Jobs of several parts: collectives among groups of ranks, transfers and computations, with dependencies."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.traffic.collectives import find_pattern, patterns
from heddle.traffic.collectives.pattern import CREDIT_BYTES, MAX_STEPS
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.traffic.schedule import Compute, Send, build_schedule
from heddle.traffic.sequence import Part, steps_text
from tests.unit.test_collectives import Exchange

TINY = load_fabric("tiny").fabric
ALL = (0, 1, 2, 3)
MIXED = (
    Part("forward", ALL, seconds=1e-9),
    Part("tp", (0, 1), find_pattern("all-reduce"), 400, after=(0,)),
    Part("tp", (2, 3), find_pattern("all-reduce", "tree"), 800, after=(0,)),
    Part("pp", (0, 2), find_pattern("send-recv"), 160, after=(1, 2)),
    Part("experts", (3, 2, 1, 0), find_pattern("all-to-all"), 1024, after=(3,)),
    Part("backward", (0, 3), seconds=2e-9, after=(4,)),
    Part("gather", (1, 3, 2), find_pattern("all-gather"), 960),
    Part("mean", (1, 3, 2), find_pattern("all-reduce", operation="avg"), 100, after=(5,)),
    Part("cells", (1, 3, 2), find_pattern("matrix", matrix="0,1,400;2,1,36"), 0, after=(6,)),
    Part("weights", (3, 1, 0), find_pattern("broadcast", "tree", root=1), 96, after=(8,)),
)


def planned(*parts: Part, **more: Any) -> Plan:
    options = RunOptions("steps", "list", steps=steps_text(parts), iters=4, **more)
    return build_plan(TINY, options)


def exchanged(plan: Plan, seed: int = 0, lost: int = 0) -> Exchange:
    """Two sizes of four iterations in small messages, delivered in a random order."""
    options = replace(plan.options, chunk=128, sizes=plan.options.sizes * 2)
    exchange, dice = Exchange(options, options.pattern, 4, lost), random.Random(seed)
    exchange.run(lambda to: dice.randrange(len(to)))
    return exchange


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_every_element_of_every_part_is_right_in_any_order_of_messages(dtype: str) -> None:
    plan = planned(*MIXED, parameters=(("dtype", dtype),))
    for seed in range(4):
        assert exchanged(plan, seed).wrong() == [0] * 4
    data = exchanged(plan).data
    for lost in range(1, data + 1, 41):
        assert sum(exchanged(plan, lost=lost).wrong()) > 0
    first = plan.pattern.result(4, 3, 0)
    assert {piece.ranks for piece in first if piece.source is None} == {(2, 3), (1, 3, 2)}


@pytest.mark.parametrize("name", patterns(), ids="-".join)
def test_every_pattern_is_a_part(name: tuple[str, str]) -> None:
    """Twice, one after the other, with ranks in another order than the job's."""
    pattern, four = patterns()[name], (3, 1, 0, 2)
    if pattern.hosted([f"host{rank}" for rank in four]).unfit(4):
        pytest.skip("it needs several ranks on a host")
    plan = planned(Part("", four, pattern, 640), Part("", four, pattern, 1280, after=(0,)))
    assert [piece.buffer for piece in plan.pattern.result(4, 3, 0)].count("") == 0
    assert exchanged(plan).wrong() == [0] * 4
    assert exchanged(plan, seed=1).wrong() == [0] * 4


def test_sends_and_computations_wait_for_the_parts_that_are_named_and_for_no_other() -> None:
    plan = planned(
        Part("a", (0, 1), find_pattern("send-recv"), 400),
        Part("work", (0, 1, 2), seconds=3e-9, after=(0,)),
        Part("more", (0,), seconds=2e-9),
        Part("free", (0, 1), find_pattern("send-recv"), 80),
        Part("b", (2, 1, 0), find_pattern("send-recv"), 40, after=(1, 2)),
    )
    schedule = build_schedule(plan.pattern, 4, 0, 0, 4096)
    computes = {each.key: each for each in schedule.actions if isinstance(each, Compute)}
    (end_of_a, work, more) = sorted(computes.values(), key=lambda each: each.key)
    assert (end_of_a.seconds, work.seconds, more.seconds) == pytest.approx((0.0, 3e-9 * plan.k, 2e-9 * plan.k))
    assert work.needs == (end_of_a.key,) and more.needs == (work.key,), "computations never overlap"
    sends = {each.hi - each.lo: each.needs for each in schedule.actions if isinstance(each, Send)}
    assert sends[400] == sends[80] == () and set(sends[40]) == {work.key, more.key}
    third = build_schedule(plan.pattern, 4, 2, 0, 4096)
    assert [each.needs for each in third.actions if isinstance(each, Compute)] == [()]
    assert plan.pattern.computing(0) == pytest.approx(5e-9 * plan.k) and plan.pattern.computing(3) == 0.0
    assert build_schedule(plan.pattern, 4, 3, 0, 4096).operations == 0


def test_a_rank_that_only_sends_has_a_credit_and_a_plan_has_the_bytes_of_all_parts() -> None:
    plan = planned(Part("", (0, 1, 2), find_pattern("broadcast"), 4096), Part("", (0, 3), find_pattern("incast"), 64))
    assert plan.pattern.credits(4).tolist() == [[0, 3], [1, 0], [2, 1]]
    assert {(qp.flow.src_rank, qp.flow.dst_rank) for qp in plan.qps} == {(0, 1), (1, 0), (1, 2), (2, 1), (3, 0), (0, 3)}
    sent = [(to, length) for to, length in plan.pattern.sent_by(4, 0, 0)]
    assert sent == [(1, 1024), (3, CREDIT_BYTES // 4)]
    assert plan.options.sizes == (4096,) and plan.pattern.busbw_factor(4) == 1.0


def test_thousands_of_steps_are_planned_and_more_than_an_address_can_number_are_refused() -> None:
    chain = [Part("", ALL, find_pattern("all-reduce"), 4096, after=(at - 1,) if at else ()) for at in range(300)]
    plan = planned(*chain)
    assert build_schedule(plan.pattern, 4, 0, 0, 4096).operations == 300 * 7 - 1
    long = Part("", ALL, find_pattern("all-reduce", "direct"), 64)  # 8 steps, and a mark of its end
    assert MAX_STEPS < 9 * 7300
    with pytest.raises(InputError, match=r"steps make 65,70. steps of one rank in an iteration; the limit is 65,536"):
        planned(*[long] * 7300)


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (Part("x", (0,), find_pattern("all-reduce"), 64), "step 1 (x) are one rank, but a collective needs two"),
        (Part("x", (0, 4), find_pattern("all-reduce"), 64), "step 1 (x) names rank 4, which this job does not have"),
        (Part("x", ALL, find_pattern("all-reduce"), 3), "step 1 (x) is rounded down to 0 bytes by all-reduce"),
        (Part("x", (0, 1), find_pattern("broadcast", root=2), 64), "step 1 (x) has root 2: ranks are 0 to 1"),
        (Part("x", (0, 1), find_pattern("matrix", matrix="0,2,64")), "step 1 (x) --matrix row 1: dst: 2 is not a rank"),
        (Part("x", ALL, seconds=1.0), "steps have no collective, so no rank sends anything"),
    ],
)
def test_a_part_that_cannot_run_is_refused(part: Part, why: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(part)
    assert why in str(caught.value)
