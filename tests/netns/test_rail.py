"""A fabric of rails with two planes: the same verbs, and paths that prediction and counters agree on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.checks.validate import validate
from heddle.kernel.fib import read_fib
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down
from heddle.lab.queues import read_queues
from heddle.lab.rehash import set_hashing
from heddle.proof.verdict import PathsResult
from heddle.runs.runrecord import RunRecord
from heddle.views.graph import drawing
from heddle.views.linkloads import usage_of
from tests.conftest import Borrow
from tests.marks import long
from tests.netns.collectives import proven, ran
from tests.netns.live import failed

PLANES = 2


@pytest.fixture(scope="module")
def lab(borrow: Borrow, runtime: str) -> Lab:
    """The preset rail with two planes and two uplinks a leaf, in IPv6."""
    return borrow("rail", f"planes={PLANES}", f"spines={2 * PLANES}", "family=ipv6", runtime=runtime)


def all_reduce(lab: Lab, **options: Any) -> RunRecord:
    return ran(lab, **{"sizes": (1 << 16,), "qps": 2, **options})


def prove(lab: Lab, result: RunRecord) -> PathsResult:
    """Prediction, kernels and counters agree on every QP."""
    assert (result.icrc_errors, result.stray) == (0, 0)
    paths = proven(lab)
    assert len(paths.flows) == len(result.flows) > 0
    busy = [proof for proof in paths.flows if proof.sent.packets]  # a word of a few bytes leaves its second QP idle
    assert all(proof.predicted == proof.oracle == proof.measured for proof in busy)
    assert all(proof.predicted == proof.oracle for proof in paths.flows)
    assert len(busy) >= len(paths.flows) // 2
    return paths


def test_every_check_passes(lab: Lab) -> None:
    checks = {check.name: check for check in validate(lab)}
    assert [name for name, check in checks.items() if not check.ok] == []
    assert checks["reachability"].detail.startswith(f"{PLANES * 8 * 7} pairs of hosts")


def test_no_route_leads_to_another_plane(lab: Lab) -> None:
    fabric = lab.fabric
    for switch in fabric.switches:
        routes = read_fib(lab.handle(switch.name), fabric.policy.ip_version).routes
        for edge in fabric.edges:
            assert (edge.prefix in routes) == (
                fabric.part_of[edge.name] == fabric.part_of[switch.name] and edge is not switch
            )


@pytest.mark.parametrize("mode", ["flow", long("e-ecmp"), long("pinned")])
def test_paths_are_proven_in_every_mode(lab: Lab, mode: str) -> None:
    set_hashing(lab, mode)
    try:
        paths = prove(lab, all_reduce(lab))
        if mode == "pinned":
            uplinks = [link.flows for link in paths.links if link.uplink]
            assert len(set(uplinks)) == 1, uplinks
    finally:
        set_hashing(lab, "flow")


@pytest.mark.parametrize("collective", ["all-reduce", long("all-to-all"), long("incast")])
def test_every_plane_has_a_communicator_of_its_own(lab: Lab, collective: str) -> None:
    result = all_reduce(lab, collective=collective, algorithm="")
    prove(lab, result)
    assert result.communicators == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert "#split    : 2 communicators of 8 ranks at the same time, one per plane" in result.table()
    assert "Rank  0 Group  0 " in result.table() and "Rank  1 Group  1 " in result.table()


@pytest.mark.deep
def test_one_communicator_per_rail_stays_on_its_leaves(lab: Lab) -> None:
    rails = {node.name: node.group("rail") for node in lab.fabric.edges}
    for proof in prove(lab, all_reduce(lab, split="MOD 4")).flows:
        leaves = [step.partition(":")[0] for step in proof.oracle if step.startswith("leaf")]
        assert len({rails[leaf] for leaf in leaves}) == 1
    with pytest.raises(InputError, match="no path between their planes"):
        all_reduce(lab, split="DIV 8")


@pytest.mark.deep
def test_a_link_and_a_spine_can_be_taken_out(lab: Lab) -> None:
    with link_down(lab, "leaf1:eth1"):
        prove(lab, all_reduce(lab))
    with drain(lab, "spine2"):
        links = prove(lab, all_reduce(lab)).links
        assert not [link for link in links if link.port.startswith("spine2:") and link.flows]
    assert failed(lab) == {}


@pytest.mark.deep
def test_the_picture_and_the_queues_have_the_words_of_the_shape(lab: Lab) -> None:
    all_reduce(lab)
    usage = usage_of(lab)
    assert usage is not None
    picture = drawing("svg", lab.fabric, usage.loads, usage.caption).decode()
    words = {"leaf1", "spine2", "pod 1", "pod 2", "plane 1", "plane 2"}
    assert words <= set(re.findall(r"<text[^>]*>([^<]*)</text>", picture))
    assert "leaf to spine: busiest leaf" in picture
    queues = read_queues(lab)
    assert {row.port.partition(":")[0] for row in queues.rows} >= {"leaf1", "spine1", "host1"}
