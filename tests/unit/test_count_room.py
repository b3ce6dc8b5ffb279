"""Whether the switches' counters have room for a plan: the rows that it needs, and what is said before it runs."""

from __future__ import annotations

import pytest

from heddle.base.families import Network
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.kernel.fib import Fib, NextHop
from heddle.predict.predict import predict
from heddle.predict.walk import ports_of
from heddle.proof.collect import refusal, rows_of
from heddle.switch.counters import rows_for
from heddle.switch.hashing.hashing import hashing_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan


def fabric_of(preset: str) -> Fabric:
    return load_fabric(preset).fabric


def plan_of(fabric: Fabric, qps: int) -> Plan:
    return build_plan(fabric, RunOptions(collective="all-to-all", qps=qps))


def fibs(fabric: Fabric) -> dict[str, Fib]:
    """What BGP gives this fabric."""
    found = {}
    for switch in fabric.switches:
        routes: dict[Network, tuple[NextHop, ...]] = {
            prefix: tuple(NextHop(p.name, i, "169.254.0.1") for i, p in enumerate(switch.ports) if p.name in ports)
            for prefix, ports in fabric.expected_next_hops[switch.name].items()
        }
        found[switch.name] = Fib(switch.name, routes)
    return found


@pytest.mark.parametrize("preset", ["tiny", "zone", "dc", "rail"])
@pytest.mark.parametrize("mode", ["flow", "spray"])
def test_a_plan_needs_a_row_at_each_port_of_each_path_and_as_many_for_the_answers(preset: str, mode: str) -> None:
    fabric = fabric_of(preset)
    flows = [qp.flow for qp in plan_of(fabric, 2).qps]
    hashing = {switch.name: hashing_of(fabric, switch, mode) for switch in fabric.switches}
    paths = predict(fabric, fibs(fabric), hashing, flows)
    assert all(paths)
    rows = 2 * sum(len(ports_of(step)) for path in paths for step in path)
    assert rows_of(fabric, flows, spread=mode == "spray") == rows


@pytest.mark.parametrize("preset", ["tiny", "demo", "zone", "rail"])
def test_a_lab_has_room_for_the_maximum_of_queue_pairs_in_every_mode(preset: str) -> None:
    fabric = fabric_of(preset)
    for modes in ({"e-ecmp"}, {"flow", "spray"}):
        assert refusal(fabric, plan_of(fabric, 128), modes, rows_for(fabric)) is None


def test_a_plan_that_needs_more_rows_than_there_are_is_refused_with_both_numbers() -> None:
    fabric = fabric_of("tiny")
    plan = plan_of(fabric, 8)
    flows = [qp.flow for qp in plan.qps]
    needed = rows_of(fabric, flows, spread=False)
    assert refusal(fabric, plan, {"flow"}, needed) is None
    problem = refusal(fabric, plan, {"flow"}, needed - 1)
    assert problem is not None
    assert f"--qps 8 on {len(plan.endpoints)} ranks" in str(problem)
    assert f"needs {needed:,} rows of the switches' counters, but tiny has {needed - 1:,}" in str(problem)
    assert "use fewer --qps or --ranks" in str(problem)
    assert refusal(fabric, plan, {"flow", "adaptive"}, needed) is not None  # bursts of a QP may take several paths
