"""Fabrics of three tiers: how they are drawn, which way leads where, and what of them is refused."""

from __future__ import annotations

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.nexthops import edges_of
from heddle.fabric.seeds import seed_for, switch_seed
from heddle.fabric.shapes import build
from heddle.fabric.ucmp import next_hop_groups
from heddle.spec.linkspec import LinkSpec
from heddle.spec.plain import dump_spec
from heddle.spec.shapes.clos import ClosSpec


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
    groups = next_hop_groups(fabric, dead, drained)[switch]
    return {rack: " ".join(group.ports) for group in groups for rack in edges_of(group.edges)}


def test_ports_lead_where_the_reference_says(dc: Fabric) -> None:
    peers = {node.name: [port.peer_node for port in node.ports] for node in dc.nodes}
    assert peers["rtsw3"] == ["ctsw3", "ctsw4", "host5", "host6"]
    assert peers["ctsw1"] == ["rtsw1", "rtsw2", "atsw1", "atsw2"]
    assert peers["ctsw4"] == ["rtsw3", "rtsw4", "atsw1", "atsw2"]
    assert peers["atsw2"] == ["ctsw1", "ctsw2", "ctsw3", "ctsw4"]
    assert [dc.by_name[name].group("zone") for name in ("rtsw2", "ctsw3", "host8", "atsw1")] == [1, 2, 2, None]


def test_the_top_is_as_narrow_as_the_file_says(dc: Fabric) -> None:
    below = sum(port.rate_bps for port in dc.by_name["ctsw1"].ports[:2])
    above = sum(port.rate_bps for port in dc.by_name["ctsw1"].ports[2:])
    assert below / above == dump_spec(load_fabric("dc").spec)["oversubscription"]


def test_each_tier_has_an_as_and_so_has_each_zone(dc: Fabric) -> None:
    asns = {name: dc.by_name[name].asn for name in ("ctsw1", "ctsw2", "ctsw3", "atsw1", "atsw2", "rtsw1", "rtsw2")}
    assert asns["ctsw1"] == asns["ctsw2"] == 4_200_000_001 != asns["ctsw3"]
    assert asns["atsw1"] == asns["atsw2"]
    assert len(set(asns.values())) == 5


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
    groups = next_hop_groups(largest)
    sizes = {name: [(len(g.ports), g.edges.bit_count()) for g in groups[name]] for name in ("rtsw1", "ctsw1", "atsw1")}
    assert sizes["rtsw1"] == [(18, 2015)]
    assert sizes["ctsw1"] == [(1, 1)] * 252 + [(18, 2016 - 252)]
    assert sizes["atsw1"] == [(18, 252)] * 8


def test_a_rack_is_reached_upwards_across_and_down(dc: Fabric) -> None:
    assert ways(dc, "rtsw1") == {2: "eth1 eth2", 3: "eth1 eth2", 4: "eth1 eth2"}
    assert ways(dc, "ctsw1") == {1: "eth1", 2: "eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "atsw1") == {1: "eth1 eth2", 2: "eth1 eth2", 3: "eth3 eth4", 4: "eth3 eth4"}


def test_no_route_climbs_again_where_a_link_is_down(dc: Fabric) -> None:
    """ctsw1 hears of rack 1 from rtsw2 and from the ATSWs, with its own AS in the path, and refuses that."""
    dead = ("ctsw1:eth1",)
    assert ways(dc, "ctsw1", dead) == {2: "eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "rtsw2", dead) == {1: "eth2", 3: "eth1 eth2", 4: "eth1 eth2"}
    assert ways(dc, "rtsw1", dead) == {2: "eth2", 3: "eth2", 4: "eth2"}
    assert ways(dc, "atsw1", dead) == {1: "eth2", 2: "eth1 eth2", 3: "eth3 eth4", 4: "eth3 eth4"}
    assert ways(dc, "ctsw3", dead) == ways(dc, "ctsw3"), "the ATSWs still know a way"
    assert next_hop_groups(dc, ["rtsw1:eth1"]) == next_hop_groups(dc, dead), "either end names the link"


def test_a_drained_switch_is_used_only_where_nothing_else_is(dc: Fabric) -> None:
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


def test_a_rack_behind_unlike_links_is_in_a_group_of_its_own(dc: Fabric) -> None:
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


def test_a_switch_of_two_tiers_keeps_its_seed() -> None:
    spec = ClosSpec(name="t", racks=2, ctsw=2)
    assert {n.name: n.hash_seed for n in build(spec).switches} == {
        name: switch_seed(name) for name in ("rtsw1", "rtsw2", "ctsw1", "ctsw2")
    }


def test_a_seed_must_be_a_choice() -> None:
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
