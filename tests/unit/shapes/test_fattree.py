"""The fat tree: which port leads where, next hops against BGP itself, and what every other part makes of the shape."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.cutting import cut
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask, forecast
from heddle.views.fabricsvg import fabric_svg
from heddle.views.picturelayout import PictureLayout
from tests.answers import Answers
from tests.unit.test_three_tiers import compare, distances, spoken, ways


def tree(*overrides: str) -> Fabric:
    return load_fabric("fattree", overrides=overrides).fabric


def test_ports_lead_where_the_builder_says() -> None:
    fabric = tree()
    peers = {node.name: [port.peer_node for port in node.ports] for node in fabric.nodes}
    assert peers["edge4"] == ["agg3", "agg4", "host7", "host8"]
    assert peers["agg3"] == ["edge3", "edge4", "core1", "core2"]
    assert peers["agg4"] == ["edge3", "edge4", "core3", "core4"]
    assert peers["core3"] == ["agg2", "agg4", "agg6", "agg8"]
    assert [fabric.by_name[name].group("pod") for name in ("edge3", "agg8", "host16", "core1")] == [2, 4, 4, None]
    assert ways(fabric, "edge1") == dict.fromkeys(range(2, 9), "eth1 eth2")
    assert ways(fabric, "core4") == {edge: f"eth{(edge + 1) // 2}" for edge in range(1, 9)}


@pytest.mark.parametrize("radix", [2, 4, 6])
def test_sizes_are_those_of_the_paper_and_every_host_reaches_every_other(radix: int) -> None:
    fabric = tree(f"radix={radix}")
    count = {level.word: sum(fabric.level_of(node) is level for node in fabric.nodes) for level in fabric.levels}
    half = radix // 2
    assert count == {"host": radix**3 // 4, "edge": radix * half, "agg": radix * half, "core": half**2}
    assert {len(node.ports) for node in fabric.switches} == {radix}
    for node in fabric.switches:  # next hops are all shortest paths
        for edge in fabric.edges:
            if edge is not node and edge.prefix is not None:
                far = distances(fabric, edge.name)
                near = {port.name for port in node.ports if far.get(port.peer_node, 99) == far[node.name] - 1}
                assert fabric.expected_next_hops[node.name][edge.prefix] == near


@pytest.mark.parametrize("seed", range(3))
def test_next_hops_are_those_of_bgp_whatever_is_down_and_drained(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(8):
        compare(tree(f"radix={draw.choice([2, 4, 4, 6])}", "hosts_per_edge=1"), draw)


def test_one_as_for_the_aggregation_switches_of_a_pod_keeps_routes_from_climbing_twice() -> None:
    """agg1 has lost its link to edge1. With an AS of its own it hears of edge1 from edge2, and paths go down and up."""
    fabric = tree()
    dead = {"agg1:eth1"}
    assert 1 not in spoken(fabric, dead, set())["agg1"]
    alone = [replace(node, asn=4_200_009_000 + node.index) if node.level == 2 else node for node in fabric.nodes]
    assert spoken(replace(fabric, nodes=tuple(alone)), dead, set())["agg1"][1] == {"eth2"}


def test_a_value_that_does_not_fit_is_reported_by_its_key(answers: Answers) -> None:
    def refusal(text: str) -> str:
        with pytest.raises(InputError) as caught:
            tree(*text.split())
        return "\n".join(str(problem) for problem in caught.value.problems)

    answers(refusal)


def test_a_pod_is_a_shard_and_a_frame_of_the_picture() -> None:
    fabric = tree()
    shards = cut(fabric, 4).shards
    pods = [{fabric.by_name[name].group("pod") for name in shard.nodes} - {None} for shard in shards]
    assert pods == [{1}, {2}, {3}, {4}]
    layout = PictureLayout(fabric)
    assert [box.text.words for box in layout.frames() if box.text][-4:] == ["pod 1", "pod 2", "pod 3", "pod 4"]
    text = fabric_svg(layout, title="x")
    assert all(f">{word}</text>" in text for word in ("edge8", "agg8", "core4", "host16", "rack 8"))


def test_every_hashing_mode_is_predicted_and_pinned_slices_load_all_links_alike() -> None:
    fabric = tree("hosts_per_edge=4")
    result = forecast(fabric, load_workload("all-to-all,size=1M").workload, Ask(trials=2), Silent())
    ratio = {mode.mode: mode.ratio for mode in result.modes}
    assert ratio["pinned"] == ratio["te"] == 1 < (ratio["flow"] or 0)
    one_down = forecast(fabric, load_workload("ring").workload, Ask(down=("core4",), drain=("agg3",)), Silent())
    assert one_down.unreachable == 0
