"""The dragonfly: links and minimal paths, next hops against BGP itself, and what other parts make of the shape."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.cutting import cut
from heddle.fabric.deadlock import deadlock_warning, waiting_ring
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.nexthops import edges_of
from heddle.fabric.pathdelay import PathDelays
from heddle.fabric.wiring import ports_above
from heddle.offline.forecast import Ask, forecast
from heddle.offline.wires import wires_of
from heddle.render.render import rendered
from heddle.views.fabricsvg import fabric_svg
from heddle.views.forecasttext import render
from heddle.views.heatmap import draw
from heddle.views.picturelayout import PictureLayout
from tests.answers import Answers
from tests.unit.test_three_tiers import compare


def dragonfly(*overrides: str) -> Fabric:
    return load_fabric("dragonfly", overrides=overrides).fabric


def hops(fabric: Fabric, start: str, end: str) -> set[tuple[str, ...]]:
    """All paths from a switch to another, as words: local or global."""
    if start == end:
        return {()}
    found = set()
    for group in fabric.next_hop_groups[start]:
        for name in group.ports if fabric.edge_of[end] in edges_of(group.edges) else ():
            port = fabric.by_name[start].port(name)
            word = "global" if fabric.is_global(port) else "local"
            found |= {(word, *rest) for rest in hops(fabric, port.peer_node, end)}
    return found


@pytest.mark.parametrize(
    ("sizes", "between"),
    [((), 1), (("groups=3",), 4), (("groups=4",), 2), (("groups=2",), 8), (("switches_per_group=1", "groups=2"), 1)],
)
def test_groups_are_joined_all_to_all_and_paths_are_minimal(sizes: tuple[str, ...], between: int) -> None:
    fabric = dragonfly(*sizes)
    pairs: dict[tuple[object, object], int] = {}
    for link in fabric.links:
        a, b = (fabric.by_name[name] for name, _ in (link.a, link.b))
        if a.level == b.level:
            ends = a.group("group"), b.group("group")
            key: tuple[object, object] = ends if ends[0] != ends[1] else (a.name, b.name)
            pairs[key] = pairs.get(key, 0) + 1
    groups = sorted({switch.group("group") or 0 for switch in fabric.switches})
    assert {pair: pairs.pop(pair) for pair in combinations(groups, 2)} == dict.fromkeys(
        combinations(groups, 2), between
    )
    size = len(fabric.switches) // len(groups)
    assert len(pairs) == len(groups) * size * (size - 1) // 2
    assert {*pairs.values()} <= {1}
    for one, other in combinations(fabric.switches, 2):
        for path in hops(fabric, one.name, other.name):
            inside = one.group("group") == other.group("group")
            assert path == ("local",) if inside else path.count("global") == 1 and len(path) <= 3, (one, other)


@pytest.mark.parametrize("seed", range(3))
def test_next_hops_are_those_of_bgp_whatever_is_down_and_drained(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(6):
        compare(dragonfly(f"groups={draw.choice([2, 3, 5, 7])}", "switches_per_group=3", "global_links=2"), draw)
    front = "frontend={racks: 3, spines: 2, storage: 2}"  # a Clos beside it, whose FSWs share an AS
    compare(dragonfly("groups=3", "hosts_per_switch=1", front), draw)


def test_with_one_prepend_a_third_group_would_be_as_near() -> None:
    """Then global, global is as long as local, global, local."""
    fabric = dragonfly()
    level = replace(fabric.levels[1], prepends=1)
    nearer = replace(fabric, levels=(fabric.levels[0], level))
    pairs = list(permutations(fabric.edge_of, 2))
    assert sum(any(path.count("global") > 1 for path in hops(nearer, *pair)) for pair in pairs) == 36


def test_a_third_group_is_passed_only_while_the_direct_link_is_down() -> None:
    fabric = dragonfly()
    direct = {port.ref for port in fabric.by_name["sw1"].ports if port.peer_node == "sw8"}
    table = fabric.next_hops(fabric.groups_without(direct))
    prefix = fabric.by_name["sw8"].prefix
    assert prefix is not None
    assert len(fabric.expected_next_hops["sw1"][prefix]) == 1 < len(table["sw1"][prefix])


def test_frr_prepends_over_global_links_and_takes_every_path_that_may_be_equal_later() -> None:
    text = rendered(dragonfly())["sw1/frr.conf"]
    assert [line.split()[1] for line in text.splitlines() if "route-map GLOBAL out" in line] == ["eth4", "eth5"]
    assert " set as-path prepend 4200001001 4200001001\n" in text
    assert "maximum-paths 5\n" in text
    assert " bgp route-map delay-timer 0\n" in text  # or nothing is announced for 5 s
    assert "route-map" not in rendered(load_fabric("tiny").fabric)["rtsw1/frr.conf"]


def test_pfc_is_off_unless_the_file_sets_it_and_a_ring_is_named() -> None:
    assert not dragonfly("queues.buffer=3MB").policy.queues.paused
    fabric = dragonfly("queues.pfc.enabled=true")
    assert fabric.policy.queues.paused
    ring = waiting_ring(fabric)
    for ref, after in zip(ring, ring[1:] + ring[:1], strict=True):
        node, _, name = ref.partition(":")
        assert fabric.by_name[node].port(name).peer_node == after.partition(":")[0]
    (said,) = deadlock_warning(fabric)
    assert said.startswith("PFC can stop packets until the watchdog drops them: sw") and "good" not in said
    (said,) = deadlock_warning(dragonfly("queues.pfc.enabled=true", "queues.pfc.watchdog.enabled=false"))
    assert said.startswith("PFC can stop packets for good: sw") and "watchdog" not in said
    assert not deadlock_warning(dragonfly())
    assert not waiting_ring(dragonfly("switches_per_group=1", "global_links=8"))  # global links alone: none waits
    assert not waiting_ring(load_fabric("dc").fabric)


def test_a_value_that_does_not_fit_is_reported_by_its_key(answers: Answers) -> None:
    def refusal(text: str) -> str:
        with pytest.raises(InputError) as caught:
            dragonfly(*text.split())
        return "\n".join(str(problem) for problem in caught.value.problems)

    answers(refusal)


def test_a_group_is_a_shard_and_a_box_on_the_ring_that_touches_no_other() -> None:
    fabric = dragonfly()
    shards = cut(fabric, 3).shards
    groups = [{fabric.by_name[name].group("group") for name in shard.nodes} for shard in shards]
    assert groups == [{1, 2, 3}, {4, 5, 6}, {7, 8, 9}]
    layout = PictureLayout(fabric)
    boxes = [*layout.frames()]
    assert [box.text.words for box in boxes if box.text] == [f"group {n}" for n in range(1, 10)]
    for one, other in combinations(boxes, 2):
        assert any(
            abs(one.corner[axis] - other.corner[axis]) >= one.size[axis] for axis in (0, 1)
        ), (one.name, other.name)  # fmt: skip
    for box in boxes:
        nodes = [node for node in layout.nodes() if fabric.by_name[node.name[5:]].group("group") == int(box.name[6:])]
        assert len(nodes) == 12
        for node in nodes:
            assert all(
                box.corner[a] <= node.corner[a] + node.size[a] / 2 <= box.corner[a] + box.size[a] for a in (0, 1)
            )
    assert ">sw36</text>" in fabric_svg(layout, title="x")


def test_links_of_both_classes_are_measured_each_for_itself() -> None:
    fabric = dragonfly("groups=3")
    assert [fabric.is_uplink(port) for port in fabric.by_name["sw1"].ports] == [False] * 3 + [True] * 2 + [False] * 2
    nics = {port.ref for port in fabric.nics if fabric.by_name[port.node].group("group") != 3}
    above = ports_above(fabric, nics)
    third = {port.ref for switch in fabric.switches for port in switch.ports if switch.group("group") == 3}
    assert above
    assert not above & third
    wires = wires_of(fabric)
    rows = wires.above(wires_of(fabric).other[[wires.id_of[port.peer_ref] for port in fabric.nics if port.ref in nics]])
    assert {port for port, row in zip(wires.ports, rows, strict=True) if row} == above
    result = forecast(fabric, load_workload("all-to-all").workload, Ask(down=("sw1:eth4",), drain=("sw5",)), Silent())
    assert result.unreachable == 0
    assert "switch>switch (local)  switch>switch (global)" in render(result)
    heat = draw("svg", result).decode()
    assert (heat.count("switch to switch (local)"), heat.count("switch to switch (global)")) == (1, 1)


def test_a_path_is_as_long_as_its_links() -> None:
    delays = PathDelays(dragonfly("link.delay={host: 1us, fabric: 10us}"))
    assert delays.between("sw1", "sw1") == 2_000
    assert delays.between("sw1", "sw2") == 12_000
    assert delays.between("sw1", "sw8") == 12_000
    assert max(delays.between("sw1", edge) for edge in ("sw19", "sw20", "sw36")) == 32_000
