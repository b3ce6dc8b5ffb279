"""After a fault, prediction follows the kernels; and how much of a run would move, by either rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.fabric.policy import HashOptions
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.outages import Fault, drain, link_down, switch_down
from heddle.lab.rehash import set_hashing
from heddle.proof.verdict import lookup_paths
from heddle.runs.explain import explain
from heddle.runs.moved import RESILIENT, THRESHOLD, now
from heddle.runs.run import run
from heddle.runs.store import load
from heddle.spec.shapes.clos import ClosSpec
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import now_text, paths_text
from tests.marks import deep
from tests.netns.static_fabric import some_flows

MODES = [
    ("flow", HashOptions()),
    ("e-ecmp", HashOptions()),
    ("e-ecmp", HashOptions(resilient=True)),
    ("pinned", HashOptions()),
]


@pytest.fixture(scope="module")
def lab(lab_name: Callable[[], str]) -> Iterator[Lab]:
    """Three racks below four CTSWs, and a run of 96 QPs on record."""
    name = lab_name()
    try:
        made = life.up(ClosSpec(name=name, racks=3, ctsw=4, hosts_per_rack=2)).lab
        run(made, RunOptions(qps=16, sizes=(65536,), iters=1, warmup=0), Silent())
        yield made
    finally:
        life.down(name)


def a_link(lab: Lab) -> Fault:
    return link_down(lab, "rtsw1:eth2")


def a_switch(lab: Lab) -> Fault:
    return switch_down(lab, "ctsw1")


def a_drain(lab: Lab) -> Fault:
    return drain(lab, "ctsw3")


@pytest.mark.parametrize("fault", [a_link, deep(a_switch), deep(a_drain)])
def test_after_a_fault_prediction_is_what_the_kernels_do_and_resilient_hashing_moves_the_lost_share_alone(
    lab: Lab, fault: Callable[[Lab], Fault]
) -> None:
    flows = some_flows(lab.fabric, 300)
    whole, still = lookup_paths(lab, flows), now(lab, load(lab))
    assert still.result.agree and still.moved.by_rule == {THRESHOLD: (0, 0), RESILIENT: (0, 0)}
    assert (still.moved.moved, still.moved.gone, still.moved.spread) == (0, 0, 0), "nothing moves without a fault"
    with fault(lab):
        found = now(lab, load(lab))
        for mode, options in MODES:
            set_hashing(lab, mode, options)
            result = lookup_paths(lab, flows)
            assert result.agree, f"{mode}: {paths_text(result)}"
    set_hashing(lab, "flow", HashOptions())
    again = lookup_paths(lab, flows)
    assert [proof.predicted for proof in again.flows] == [proof.predicted for proof in whole.flows]

    assert found.result.agree, now_text(found)
    moved = found.moved
    assert moved.flows == 96 and moved.in_force == THRESHOLD
    assert 0 < moved.gone < moved.moved
    assert moved.by_rule[THRESHOLD] == (moved.moved, moved.gone), "the run was by hash-threshold"
    lost = moved.by_rule[RESILIENT]
    assert lost[0] == lost[1] > 0, "nothing but what had lost its way"
    rows = found.to_json()["flows"]
    assert sum(row["moved"] for row in rows) == moved.moved
    assert all((row["was"] != row["predicted"]) == row["moved"] for row in rows)
    assert f"{moved.moved} of 96 QPs" in now_text(found) and "(in force)" in now_text(found)


@pytest.mark.deep
def test_every_step_of_a_choice_is_explained_in_every_mode_and_the_kernel_agrees(lab: Lab) -> None:
    word = "host1,host5,qpn=0x101,sport=50000"
    modes = [*MODES, ("flow", HashOptions(resilient=True)), ("flow", HashOptions(policy="l3"))]
    modes += [("flow", HashOptions(policy="l4")), ("spray", HashOptions()), ("flowlet", HashOptions())]
    modes += [("exact-match", HashOptions())]
    with link_down(lab, "rtsw1:eth3"):
        for mode, options in modes:
            set_hashing(lab, mode, options)
            found = explain(lab, word)
            assert found.agree, f"{mode}: {found.text()}"
            assert len(found.hops) == 3 and found.path[-1].startswith("rtsw3:"), found.text()
            data = found.to_json()
            assert [hop["switch"] for hop in data["hops"]][::2] == ["rtsw1", "rtsw3"]
            assert all(hop["steps"] for hop in data["hops"])
            if options == HashOptions() and mode in ("flow", "e-ecmp"):
                assert "<- the first that reaches it" in found.text()
    set_hashing(lab, "flow", HashOptions())
    with pytest.raises(InputError, match="is no QP number of run 0001"):
        explain(lab, "7")
