"""Fabrics of three tiers and of rails: how they are drawn, which way leads where; next hops against BGP itself."""

from __future__ import annotations

import random
import resource
from collections import deque

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.hashmodes import seed_for, switch_seed
from heddle.fabric.model import Fabric, Role
from heddle.fabric.nexthops import edges_of
from heddle.fabric.shapes import build
from heddle.offline.forecast import Ask, forecast
from heddle.predict.polarisation import synthetic_flows
from heddle.spec.linkspec import LinkSpec
from heddle.spec.plain import dump_spec
from heddle.spec.routingpolicy import DEFAULT_OPTIONS
from heddle.spec.shapes.clos import ClosSpec
from heddle.spec.shapes.rail import RailSpec
from heddle.switch.hashing.maps import steering_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan
from heddle.views.forecasttext import render
from tests.answers import Answers


@pytest.fixture(scope="module")
def dc() -> Fabric:
    return load_fabric("dc").fabric


@pytest.fixture(scope="module")
def largest() -> Fabric:
    return build(
        ClosSpec(
            name="big", zones=8, racks=252, ctsw=18, atsw=18, hosts_per_rack=2, nics_per_host=8, oversubscription=7
        )
    )


def ways(fabric: Fabric, switch: str, dead: tuple[str, ...] = (), drained: tuple[str, ...] = ()) -> dict[int, str]:
    groups = fabric.groups_without(dead, drained)[switch]
    return {rack: " ".join(group.ports) for group in groups for rack in edges_of(group.edges)}


def test_ports_lead_where_the_reference_says(dc: Fabric) -> None:
    peers = {node.name: [port.peer_node for port in node.ports] for node in dc.nodes}
    assert peers["rtsw3"] == ["ctsw3", "ctsw4", "host5", "host6"]
    assert peers["ctsw1"] == ["rtsw1", "rtsw2", "atsw1", "atsw2"]
    assert peers["ctsw4"] == ["rtsw3", "rtsw4", "atsw1", "atsw2"]
    assert peers["atsw2"] == ["ctsw1", "ctsw2", "ctsw3", "ctsw4"]
    assert [dc.by_name[name].group("zone") for name in ("rtsw2", "ctsw3", "host8", "atsw1")] == [1, 2, 2, None]
    # The top is as narrow as the file says.
    below = sum(port.rate_bps for port in dc.by_name["ctsw1"].ports[:2])
    above = sum(port.rate_bps for port in dc.by_name["ctsw1"].ports[2:])
    assert below / above == dump_spec(load_fabric("dc").spec)["oversubscription"]
    # Each tier has an as and so has each zone.
    asns = {name: dc.by_name[name].asn for name in ("ctsw1", "ctsw2", "ctsw3", "atsw1", "atsw2", "rtsw1", "rtsw2")}
    assert asns["ctsw1"] == asns["ctsw2"] == 4_200_000_001 != asns["ctsw3"]
    assert asns["atsw1"] == asns["atsw2"]
    assert len(set(asns.values())) == 5
    # A rack is reached upwards across and down.
    assert ways(dc, "rtsw1") == {2: "eth1 eth2", 3: "eth1 eth2", 4: "eth1 eth2"}
    assert ways(dc, "ctsw1") == {1: "eth1", 2: "eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "atsw1") == {1: "eth1 eth2", 2: "eth1 eth2", 3: "eth3 eth4", 4: "eth3 eth4"}


@pytest.mark.deep
def test_nothing_collides_in_the_largest_fabric(largest: Fabric) -> None:
    assert len(largest.hosts) * 8 == 32_256
    switches = largest.switches
    assert len({node.loopback for node in switches}) == len(switches) == 8 * 252 + 8 * 18 + 18
    macs = [port.mac for node in largest.nodes for port in node.ports]
    addresses = [port.address.ip for node in largest.nodes for port in node.ports if port.address is not None]
    assert len(set(macs)) == len(macs)
    assert len(set(addresses)) == len(addresses) == 2 * 32_256
    tiers = [{node.asn for node in switches if node.level == level} for level in (1, 2, 3)]
    assert [len(each) for each in tiers] == [2016, 8, 1]
    assert len(set.union(*tiers)) == 2025


@pytest.mark.deep
def test_next_hops_of_the_largest_fabric_are_in_few_groups(largest: Fabric) -> None:
    groups = largest.groups_without()
    sizes = {name: [(len(g.ports), g.edges.bit_count()) for g in groups[name]] for name in ("rtsw1", "ctsw1", "atsw1")}
    assert sizes["rtsw1"] == [(18, 2015)]
    assert sizes["ctsw1"] == [(1, 1)] * 252 + [(18, 2016 - 252)]
    assert sizes["atsw1"] == [(18, 252)] * 8


def test_no_route_climbs_again_where_a_link_is_down(dc: Fabric) -> None:
    """ctsw1 hears of rack 1 from rtsw2 and from the ATSWs, with its own AS in the path, and refuses that."""
    dead = ("ctsw1:eth1",)
    assert ways(dc, "ctsw1", dead) == {2: "eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "rtsw2", dead) == {1: "eth2", 3: "eth1 eth2", 4: "eth1 eth2"}
    assert ways(dc, "rtsw1", dead) == {2: "eth2", 3: "eth2", 4: "eth2"}
    assert ways(dc, "atsw1", dead) == {1: "eth2", 2: "eth1 eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "ctsw3", dead) == ways(dc, "ctsw3"), "the ATSWs still know a way"
    assert dc.groups_without(["rtsw1:eth1"]) == dc.groups_without(dead), "either end names the link"


def test_a_drained_switch_or_unlike_links_change_only_the_ways_that_they_must(dc: Fabric) -> None:
    assert ways(dc, "rtsw1", drained=("ctsw1",)) == {2: "eth2", 3: "eth2", 4: "eth2"}
    assert ways(dc, "rtsw3", drained=("ctsw1",)) == ways(dc, "rtsw3")
    assert ways(dc, "atsw1", drained=("ctsw1",))[1] == "eth2"
    assert ways(dc, "ctsw1", drained=("ctsw1",)) == ways(dc, "ctsw1"), "it forwards what still comes"
    assert ways(dc, "rtsw2", drained=("rtsw1",)) == ways(dc, "rtsw2"), "rack 1 is nowhere else"
    both = ways(dc, "rtsw1", drained=("ctsw1", "ctsw2"))
    assert both == ways(dc, "rtsw1")
    assert ways(dc, "ctsw3", drained=("atsw2",)) == {3: "eth1", 4: "eth2", 1: "eth3", 2: "eth3"}
    only = ways(dc, "rtsw1", dead=("rtsw1:eth2",), drained=("ctsw1",))
    assert only == {2: "eth1", 3: "eth1", 4: "eth1"}
    # A rack behind unlike links is in a group of its own.
    dead = ("ctsw1:eth3", "ctsw4:eth1")
    assert ways(dc, "ctsw1", dead) == {1: "eth1", 2: "eth2", 3: "eth4", 4: "eth4"}
    assert ways(dc, "atsw1", dead) == {1: "eth2", 2: "eth2", 3: "eth3", 4: "eth3 eth4"}
    assert ways(dc, "rtsw4", dead) == {3: "eth1", 1: "eth1 eth2", 2: "eth1 eth2"}


@pytest.mark.parametrize("seed", ["per-switch", "per-tier", "shared", 77])
def test_seeds_follow_the_choice(seed: str | int) -> None:
    spec = load_fabric("dc", overrides=[f"routing.seed={seed}"]).spec
    seeds = {node.name: node.hash_seed for node in build(spec).switches}
    kinds = {"per-switch": 10, "per-tier": 3, "shared": 1, 77: 1}
    assert len(set(seeds.values())) == kinds[seed]
    fabric = build(spec)
    assert seeds == {n.name: seed_for(seed, fabric.level_of(n).word, n.name) for n in fabric.switches}
    if seed == 77:
        assert seeds["atsw1"] == 77


def test_seeds_of_two_tiers_stay_and_a_seed_must_be_a_choice() -> None:
    spec = ClosSpec(name="t", racks=2, ctsw=2)
    assert {n.name: n.hash_seed for n in build(spec).switches} == {
        name: switch_seed(name) for name in ("rtsw1", "rtsw2", "ctsw1", "ctsw2")
    }
    # A seed must be a choice.
    with pytest.raises(ValueError, match="per-port is not one of"):
        seed_for("per-port", "rtsw", "rtsw1")


def test_links_have_the_rate_of_their_exception_at_both_ends() -> None:
    exceptions = {"ctsw2": "50mbit", "rtsw1:eth2": "10mbit", "host3": "5mbit", "rtsw2": "60mbit"}
    link = LinkSpec.model_validate({"exceptions": exceptions})
    fabric = build(ClosSpec(name="t", racks=2, ctsw=2, link=link))
    rates = {port.ref: port.rate_bps // 10**6 for node in fabric.nodes for port in node.ports}
    assert rates["rtsw1:eth2"] == rates["ctsw2:eth1"] == 10, "a port counts before a node"
    assert rates["ctsw2:eth2"] == rates["rtsw2:eth2"] == 50, "of two nodes the slower one counts"
    assert rates["host3:eth1"] == 5
    assert rates["rtsw2:eth1"] == 60
    assert rates["rtsw1:eth1"] == rates["host1:eth1"] == 100


def rail(**keys: object) -> Fabric:
    return build(RailSpec.model_validate({"name": "r", "shape": "rail", "pods": 2, "spines": 4, **keys}))


def test_every_nic_of_a_host_is_on_the_leaf_of_its_number() -> None:
    fabric = rail(pods=3, hosts_per_pod=2, nics_per_host=4)
    assert [len(fabric.hosts), len(fabric.edges), len(fabric.switches)] == [6, 12, 16]
    for host in fabric.hosts:
        pod = host.group("pod")
        leaves = [fabric.by_name[port.peer_node] for port in host.ports]
        assert [(leaf.group("pod"), leaf.group("rail")) for leaf in leaves] == [(pod, nic) for nic in range(1, 5)]
    for leaf in fabric.edges:
        ends = [port.peer_node for port in leaf.ports]
        pod = leaf.group("pod") or 0
        assert ends == ["spine1", "spine2", "spine3", "spine4", f"host{2 * pod - 1}", f"host{2 * pod}"]
        assert all(port.address in leaf.prefix for port in leaf.ports[4:] if leaf.prefix and port.address)
    assert len({node.asn for node in fabric.switches}) == 12 + 1
    assert len({node.asn for node in fabric.switches if node.level == 2}) == 1
    macs = [port.mac for node in fabric.nodes for port in node.ports]
    addresses = [port.address.ip for node in fabric.nodes for port in node.ports if port.address is not None]
    assert len(set(macs)) == len(macs)
    assert len(set(addresses)) == len(addresses) == 2 * 24
    assert fabric == rail(pods=3, hosts_per_pod=2, nics_per_host=4)


@pytest.mark.parametrize("planes", [1, 2, 4])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_next_hops_are_all_shortest_paths_and_none_leaves_its_plane(planes: int, family: str) -> None:
    fabric = rail(planes=planes, family=family)
    assert len(set(fabric.part_of.values())) == planes
    for node in fabric.switches:
        table = fabric.expected_next_hops[node.name]
        for edge in fabric.edges:
            assert edge.prefix is not None
            if edge is node:
                assert edge.prefix not in table
                continue
            distance = distances(fabric, edge.name)
            near = {
                port.name for port in node.ports if distance.get(port.peer_node, 99) == distance.get(node.name, 0) - 1
            }
            assert table.get(edge.prefix, frozenset()) == near
            assert bool(near) == (fabric.part_of[node.name] == fabric.part_of[edge.name])
    for leaf in fabric.edges:
        assert leaf.group("plane") == (None if planes == 1 else (leaf.index - 1) % planes + 1)


def distances(fabric: Fabric, start: str) -> dict[str, int]:
    """Links from a switch to every other that it reaches, by breadth-first search; hosts forward nothing."""
    found, waiting = {start: 0}, deque([start])
    while waiting:
        name = waiting.popleft()
        for port in fabric.by_name[name].ports:
            if port.peer_node not in found and fabric.by_name[port.peer_node].role is Role.SWITCH:
                found[port.peer_node] = found[name] + 1
                waiting.append(port.peer_node)
    return found


def test_ranks_follow_planes_and_pods() -> None:
    fabric = rail(planes=2)
    plan = build_plan(fabric, RunOptions())
    assert plan.communicators == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    parts = [fabric.part_of[end.first_hop.partition(":")[0]] for end in plan.endpoints]
    assert all(parts[flow.src_rank] == parts[flow.dst_rank] for flow in plan.flows())
    assert build_plan(rail(), RunOptions()).communicators == (tuple(range(16)),)
    one = build_plan(fabric, RunOptions(placement="host1,host3", split="MOD 2"))
    assert [len(ranks) for ranks in one.communicators] == [4, 4]
    four = build_plan(fabric, RunOptions(split="MOD 4"))
    assert len(four.communicators) == 4
    # Cyclic placement deals ranks to the pods.
    fabric = rail()
    ends = build_plan(fabric, RunOptions(ranks=4, placement="cyclic")).endpoints
    assert [end.nic for end in ends] == ["host1:eth1", "host3:eth1", "host1:eth2", "host3:eth2"]
    # More ranks than nics name the keys of the shape.
    with pytest.raises(InputError, match="try --ranks 16, or more pods, hosts_per_pod or nics_per_host"):
        build_plan(rail(), RunOptions(ranks=17))


def test_ranks_that_cannot_reach_each_other_are_refused(answers: Answers) -> None:
    answers(lambda options: build_plan(rail(planes=2), RunOptions(**options)))


def test_buffers_and_rates_have_the_words_of_the_shape() -> None:
    loaded = load_fabric("rail", overrides=["queues.buffer={leaf: 2MB, spine: 8MB}", "link.exceptions={spine2: 5mbit}"])
    assert loaded.fabric.policy.queues.buffer.switches == (2_000_000, 8_000_000)
    assert {port.rate_bps for port in loaded.fabric.by_name["spine2"].ports} == {5_000_000}


def test_rails_have_words_of_their_shape_and_pinned_uses_every_uplink_alike() -> None:
    fabric = rail(hosts_per_pod=4)
    steering = steering_of(fabric, fabric.by_name["leaf1"], DEFAULT_OPTIONS)
    assert [len(group) for group in steering.groups] == [4]
    assert {(rule.slice, rule.shift) for rule in steering.prefixes.values()} == {(0, 1)}
    assert len(steering.prefixes) == len(fabric.edges) - 1
    # Synthetic flows stay in their plane.
    fabric = rail(planes=2)
    flows = synthetic_flows(fabric, 500)
    leaf = {str(p.address.ip): p.peer_node for host in fabric.hosts for p in host.ports if p.address is not None}
    ends = [(leaf[flow.src_ip], leaf[flow.dst_ip]) for flow in flows]
    assert len(ends) == 500
    assert all(a != b and fabric.part_of[a] == fabric.part_of[b] for a, b in ends)


@pytest.mark.deep
def test_32k_nics_are_predicted_in_little_memory() -> None:
    fabric = rail(pods=64, hosts_per_pod=64, nics_per_host=8, spines=64, planes=8)
    assert sum(len(host.ports) for host in fabric.hosts) == 32_768
    result = forecast(fabric, load_workload("all-reduce,size=64M,qps=2").workload, Ask(), Silent())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 10**6, "KiB"
    assert (result.unreachable, result.flows) == (0, 65_536)
    text = render(result)
    assert "512 leaf x 64 spine, 32,768 NICs" in text
    assert "leaf>spine" in text
    assert "8 communicators of 4096 ranks at the same time, one per plane" in text


Route = tuple[tuple[int, ...], bool]  # AS path, the nearest first; whether GRACEFUL_SHUTDOWN is on it
Table = dict[str, dict[int, frozenset[str]]]
_USUAL, _SHUTDOWN = 100, 0  # local preference


def spoken(fabric: Fabric, dead: set[str], drained: set[str]) -> Table:
    """Rounds of announcements until nothing changes: switch -> edge -> ports of all best paths."""
    switches = {node.name: node for node in fabric.switches}
    links = {
        name: [
            (port.name, port.peer_node, fabric.is_global(port) * fabric.level_of(node).prepends)
            for port in node.ports
            if port.peer_node in switches and not {port.ref, port.peer_ref} & dead
        ]
        for name, node in switches.items()
    }
    table: Table = {name: {} for name in switches}
    for origin in fabric.edges:
        said: dict[str, Route] = {}
        while True:
            now: dict[str, Route] = {origin.name: ((origin.asn or 0,), origin.name in drained)}
            for name, node in switches.items():
                heard = [
                    ((_SHUTDOWN if route[1] or name in drained else _USUAL, -len(path)), port, (path, route[1]))
                    for port, peer, more in links[name]
                    if (route := said.get(peer)) is not None
                    if node.asn not in (path := (route[0][0],) * more + route[0])
                ]
                if node is origin or not heard:
                    continue
                rank = max(each[0] for each in heard)
                best = [each for each in heard if each[0] == rank]
                table[name][fabric.edge_of[origin.name]] = frozenset(port for _, port, _ in best)
                path, marked = best[0][2]
                now[name] = ((node.asn or 0, *path), marked or name in drained)
            if now == said:
                break
            for name in switches.keys() - now.keys():
                table[name].pop(fabric.edge_of[origin.name], None)
            said = now
    return table


@pytest.mark.parametrize("seed", range(4))
def test_next_hops_are_those_of_bgp_whatever_is_down_and_drained(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        zones = draw.choice([1, 2, 2, 3])
        racks, ctsw = draw.randint(1, 3), draw.randint(1, 3)
        atsw = draw.randint(1, 3) if zones > 1 else None
        fabric = build(ClosSpec(name="x", zones=zones, racks=racks, ctsw=ctsw, atsw=atsw, hosts_per_rack=1))
        compare(fabric, draw)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_of_rails_in_planes(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(25):
        planes = draw.randint(1, 3)
        sizes = {"pods": draw.randint(1, 3), "nics_per_host": planes * draw.randint(1, 2), "hosts_per_pod": 1}
        spec = {"name": "x", "shape": "rail", "planes": planes, "spines": planes * draw.randint(1, 3), **sizes}
        compare(build(RailSpec.model_validate(spec)), draw)


def compare(fabric: Fabric, draw: random.Random) -> None:
    """Some links down and some switches drained: the next hops found at once, and those of the routes spoken."""
    names = [node.name for node in fabric.switches]
    ports = [p.ref for node in fabric.switches for p in node.ports if p.address is None]
    dead = set(draw.sample(ports, draw.randint(0, len(ports) // draw.choice([2, 3, 6]))))
    drained = set(draw.sample(names, draw.randint(0, min(4, len(names)))))
    found = {
        name: {edge: frozenset(group.ports) for group in groups for edge in edges_of(group.edges)}
        for name, groups in fabric.groups_without(dead, drained).items()
    }
    assert found == spoken(fabric, dead, drained), (fabric.name, dead, drained)
