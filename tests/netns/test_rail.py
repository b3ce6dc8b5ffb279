"""A fabric of rails, with one plane and with two: the same verbs, and paths that prediction and counters agree on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.checks.validate import validate
from heddle.kernel.fib import read_fib
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down, link_up, undrain
from heddle.lab.queues import read_queues
from heddle.lab.rehash import set_hashing
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.graph import drawing
from heddle.views.pathstext import paths_text
from heddle.views.usage import usage_of
from tests.conftest import Up
from tests.marks import deep


@pytest.fixture(scope="module", params=[deep(1), 2])
def lab(request: pytest.FixtureRequest, lab_name: Callable[[], str], up: Up) -> Iterator[Lab]:
    """The preset rail with as many uplinks a leaf, in this module's runtime; with two planes, in IPv6."""
    name, planes = lab_name(), int(request.param)
    family = "ipv6" if planes == 2 else "ipv4"
    try:
        yield up(name, f"planes={planes}", f"spines={2 * planes}", f"family={family}", fabric="rail").lab
    finally:
        life.down(name)


def all_reduce(lab: Lab, **options: object) -> RunResult:
    defaults: dict[str, object] = {"sizes": (1 << 16,), "iters": 2, "warmup": 1, "qps": 2}
    return run(lab, RunOptions(**{**defaults, **options}), Silent())  # type: ignore[arg-type]


def planes_of(lab: Lab) -> int:
    return len(set(lab.fabric.part_of.values()))


def prove(lab: Lab, result: RunResult) -> None:
    """The sums are right, and prediction, kernels and counters agree on every QP."""
    paths = paths_of(lab)
    assert (result.wrong, result.icrc_errors, result.stray) == (0, 0, 0)
    assert paths.agree, paths_text(paths)
    assert len(paths.flows) == len(result.flows) > 0
    busy = [proof for proof in paths.flows if proof.sent.packets]  # a word of a few bytes leaves its second QP idle
    assert all(proof.predicted == proof.oracle == proof.measured for proof in busy)
    assert all(proof.predicted == proof.oracle for proof in paths.flows)
    assert len(busy) >= len(paths.flows) // 2


def test_every_check_passes(lab: Lab) -> None:
    checks = {check.name: check for check in validate(lab)}
    assert [name for name, check in checks.items() if not check.ok] == []
    pairs = 16 * 15 if planes_of(lab) == 1 else 2 * 8 * 7
    assert checks["reachability"].detail.startswith(f"{pairs} pairs of hosts")


def test_no_route_leads_to_another_plane(lab: Lab) -> None:
    fabric = lab.fabric
    for switch in fabric.switches:
        routes = read_fib(lab.handle(switch.name), fabric.policy.ip_version).routes
        for edge in fabric.edges:
            assert (edge.prefix in routes) == (
                fabric.part_of[edge.name] == fabric.part_of[switch.name] and edge is not switch
            )


@pytest.mark.parametrize("mode", ["flow", deep("e-ecmp"), deep("pinned")])
def test_paths_are_proven_in_every_mode(lab: Lab, mode: str) -> None:
    set_hashing(lab, mode)
    try:
        result = all_reduce(lab)
        prove(lab, result)
        if mode == "pinned":
            uplinks = [link.flows for link in paths_of(lab).links if link.uplink]
            assert len(set(uplinks)) == 1, uplinks
    finally:
        set_hashing(lab, "flow")


@pytest.mark.parametrize("collective", ["all-reduce", deep("all-to-all"), deep("incast")])
def test_every_plane_has_a_communicator_of_its_own(lab: Lab, collective: str) -> None:
    result = all_reduce(lab, collective=collective, algorithm="")
    prove(lab, result)
    if planes_of(lab) == 1:
        assert result.communicators == (tuple(range(16)),)
        assert "#split" not in result.table()
    else:
        assert result.communicators == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
        assert "#split    : 2 communicators of 8 ranks at the same time, one per plane" in result.table()
        assert " Group  1 on " in result.table()


def test_one_communicator_per_rail_stays_on_its_leaves(lab: Lab) -> None:
    result = all_reduce(lab, split="MOD 4")
    prove(lab, result)
    rails = {node.name: node.group("rail") for node in lab.fabric.edges}
    for proof in paths_of(lab).flows:
        leaves = [step.partition(":")[0] for step in proof.oracle if step.startswith("leaf")]
        assert len({rails[leaf] for leaf in leaves}) == 1


@pytest.mark.deep
def test_ranks_without_a_path_are_refused(lab: Lab) -> None:
    if planes_of(lab) == 1:
        prove(lab, all_reduce(lab, split="DIV 8"))
    else:
        with pytest.raises(InputError, match="no path between their planes"):
            all_reduce(lab, split="DIV 8")


@pytest.mark.deep
def test_a_link_and_a_spine_can_be_taken_out(lab: Lab) -> None:
    link_down(lab, "leaf1:eth1")
    try:
        prove(lab, all_reduce(lab))
    finally:
        link_up(lab, "leaf1:eth1")
    drain(lab, "spine2")
    try:
        prove(lab, all_reduce(lab))
        assert not [link for link in paths_of(lab).links if link.port.startswith("spine2:") and link.flows]
    finally:
        undrain(lab, "spine2")
    assert [check.name for check in validate(lab) if not check.ok] == []


def test_the_picture_and_the_queues_have_the_words_of_the_shape(lab: Lab) -> None:
    all_reduce(lab)
    usage = usage_of(lab)
    assert usage is not None
    picture = drawing("svg", lab.fabric, usage.loads, usage.caption).decode()
    words = {"leaf1", "spine2", "pod 1", "pod 2"} | ({"plane 1", "plane 2"} if planes_of(lab) == 2 else set())
    assert words <= set(re.findall(r"<text[^>]*>([^<]*)</text>", picture))
    assert "leaf to spine: busiest leaf" in picture
    queues = read_queues(lab)
    assert {row.port.partition(":")[0] for row in queues.rows} >= {"leaf1", "spine1", "host1"}
