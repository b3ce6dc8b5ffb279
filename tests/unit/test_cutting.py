"""The cut of a fabric into shards: racks stay whole, few links are cut, memory is balanced, costs are as measured."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.fabric.builder import FabricBuilder
from heddle.fabric.cutting import BUFFER_BYTES, MARGIN, Cut, cut, fitting_cut, footprints, racks_of
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Level
from heddle.lab.imported.choose import blueprint_of
from heddle.offline.sharding import ProcessorPace, sharding_forecast
from tests.answers import Answers

LEVELS = (
    Level("host", "hosts", "server", 10**8),
    Level("leaf", "leaf", "leaf", 10**8, is_edge=True, boxed=True),
    Level("mid", "mid", "mid", 10**8, above_edge=True),
    Level("top", "top", "top"),
)


_MIDDLE: dict[str, object] = {"racks": 32, "ctsw": 8, "hosts_per_rack": 1}


def fabric_of(preset: str, **keys: object) -> Fabric:
    return load_fabric(preset, overrides=tuple(f"{key}={value}" for key, value in keys.items())).fabric


SHAPED = [
    fabric_of("tiny"),
    fabric_of("zone"),
    fabric_of("zone", racks=13, ctsw=5, hosts_per_rack=1),
    fabric_of("dc"),
    fabric_of("dc", zones=3, racks=4, ctsw=3, atsw=4),
    fabric_of("rail", pods=5),
    fabric_of("rail", pods=4, planes=2, spines=4),
]


@st.composite
def irregular(draw: st.DrawFn) -> Fabric:
    """Hosts at one or two leaves, switches with any links upwards, and racks of different sizes."""
    builder = FabricBuilder(load_fabric("tiny").spec, LEVELS)
    names = {}
    for level, most in ((1, 8), (2, 5), (3, 3)):
        count = draw(st.integers(1, most))
        names[level] = [
            builder.switch(level, n, 65000 + level, (), ip_network(f"10.0.{n}.0/24") if level == 1 else None)
            for n in range(1, count + 1)
        ]
    below, middle, above = names.values()
    for n in range(1, draw(st.integers(1, 12)) + 1):
        host = builder.host(n, ())
        for leaf in draw(st.lists(st.sampled_from(below), min_size=1, max_size=2)):
            builder.join(host, leaf)
    for lower, upper in ((below, middle), (middle, above)):
        for low in lower:
            for high in draw(st.lists(st.sampled_from(upper), max_size=6)):
                builder.join(low, high)
    return builder.fabric(box="rack", area="", sizes=())


def check(fabric: Fabric, count: int) -> Cut:
    """All that holds for every cut."""
    found = cut(fabric, count)
    assert [shard.name for shard in found.shards] == [f"s{n}" for n in range(1, count + 1)]
    placed = [node for shard in found.shards for node in shard.nodes]
    assert sorted(placed) == sorted(node.name for node in fabric.nodes), "every node is in one shard"
    assert all(shard.nodes for shard in found.shards)
    for rack in racks_of(fabric):
        assert len({found.home[node.name] for node in rack}) == 1, "a rack stays whole"
    between = {link for link in fabric.links if found.home[link.a[0]] != found.home[link.b[0]]}
    assert {each.link for each in found.links} == between and len(found.links) == len(between)
    assert all(each.shards == (found.home[each.link.a[0]], found.home[each.link.b[0]]) for each in found.links)
    assert not any(port.peer_node in fabric.nics_of for port in fabric.host_ports), "no link of a host is cut"
    sizes = [shard.memory_bytes for shard in found.shards]
    largest = max(weights(fabric))
    granular = 1.04 * (sum(sizes) / count + MARGIN * largest)
    assert found.imbalance <= 0.1 or max(sizes) <= granular, "memory is balanced, as far as racks allow"
    assert cut(fabric, count) == found, "the same fabric is cut in the same way"
    return found


def weights(fabric: Fabric) -> list[int]:
    """The memory of each rack, and of each other switch."""
    return [sum(footprints(fabric, mgmtd=True)[name].memory for name in unit) for unit in units(fabric)]


def units(fabric: Fabric) -> list[list[str]]:
    racks = [[node.name for node in rack] for rack in racks_of(fabric)]
    inside = {name for rack in racks for name in rack}
    return [*racks, *([node.name] for node in fabric.nodes if node.name not in inside)]


@pytest.mark.parametrize("fabric", SHAPED, ids=lambda fabric: f"{fabric.name}-{len(fabric.nodes)}")
def test_every_number_of_shards_cuts_each_shape(fabric: Fabric) -> None:
    for count in range(1, len(racks_of(fabric)) + 1):
        found = check(fabric, count)
        assert bool(found.links) == (count > 1)


@settings(max_examples=60, deadline=None, database=None)
@given(irregular(), st.data())
def test_any_wiring_is_cut(fabric: Fabric, data: st.DataObject) -> None:
    check(fabric, data.draw(st.integers(1, len(racks_of(fabric)))))


def every_cut(fabric: Fabric, count: int) -> list[tuple[int, int]]:
    """Of all cuts without an empty shard: the cut links, and the bytes of the largest shard's nodes."""
    parts, sizes = units(fabric), weights(fabric)
    number = {name: at for at, part in enumerate(parts) for name in part}
    links = [(a, b) for a, b in ((number[link.a[0]], number[link.b[0]]) for link in fabric.links) if a != b]
    found = []
    for rest in product(range(count), repeat=len(parts) - 1):
        places = (0, *rest)
        loads = [0] * count
        for place, size in zip(places, sizes, strict=True):
            loads[place] += size
        if min(loads) > 0:
            found.append((sum(places[a] != places[b] for a, b in links), max(loads)))
    return found


SMALL = [
    *(fabric_of("tiny", racks=racks, ctsw=ctsw) for racks in (2, 3, 5) for ctsw in (1, 2, 3)),
    *(fabric_of("dc", zones=2, racks=racks, ctsw=2, atsw=atsw) for racks in (1, 2) for atsw in (1, 2)),
    fabric_of("rail", pods=3, spines=2),
    fabric_of("rail", pods=3, spines=2, planes=2),
]


@pytest.mark.parametrize("fabric", SMALL, ids=lambda fabric: f"{fabric.name}-{len(fabric.nodes)}")
def test_no_cut_of_a_small_fabric_is_better(fabric: Fabric) -> None:
    """Against all cuts that are balanced as well: none has fewer links."""
    for count in (2, 3):
        if count > len(racks_of(fabric)):
            continue
        found, costs, every = cut(fabric, count), footprints(fabric, mgmtd=True), every_cut(fabric, count)
        loads = [sum(costs[name].memory for name in shard.nodes) for shard in found.shards]
        assert len(found.links) == min(links for links, most in every if most <= max(loads))
        with_more = min(links for links, most in every if most <= 1.02 * max(loads))
        assert len(found.links) <= 1.2 * with_more, "some bytes more do not save many links"
        if min(most for _, most in every) <= 1.1 * sum(loads) / count:
            assert found.imbalance <= 0.1


def test_a_zone_of_several_is_not_cut_when_each_fits_a_shard() -> None:
    fabric = fabric_of("dc", zones=4, racks=6, ctsw=3, atsw=4)
    found = cut(fabric, 4)
    zones = [{fabric.by_name[node].group("zone") for node in shard.nodes} - {None} for shard in found.shards]
    assert sorted(zones, key=str) == [{1}, {2}, {3}, {4}]
    assert len(found.tunnels) == 6 and sum(found.tunnels.values()) == len(found.links)


@pytest.mark.parametrize("name", ["ospf-ring", "two-tier-frr"])
def test_an_imported_topology_is_cut(name: str) -> None:
    made, _ = blueprint_of(f"topologies/examples/{name}.clab.yml", "netns")
    for count in (1, 2):
        check(made.fabric, count)


def test_hosts_at_two_switches_keep_these_together() -> None:
    assert [len([n for n in rack if n.name.startswith("leaf")]) for rack in racks_of(fabric_of("rail", pods=2))] == [
        4,
        4,
    ]


def test_a_number_of_shards_that_is_not_possible_is_an_error(answers: Answers) -> None:
    answers(lambda name, keys, count: cut(fabric_of(name, **keys), count))


def test_by_default_shards_are_two_or_as_many_as_fit_into_machines() -> None:
    assert len(fitting_cut(fabric_of("zone")).shards) == 2
    large = fabric_of("zone", racks=128, ctsw=16, hosts_per_rack=1)
    found = fitting_cut(large, memory=2 << 30)
    assert max(shard.memory_bytes for shard in found.shards) <= 2 << 30
    fewer = cut(large, len(found.shards) - 1)
    assert max(shard.memory_bytes for shard in fewer.shards) > 2 << 30
    assert len(fitting_cut(fabric_of("rail", pods=1)).shards) == 1
    assert len(fitting_cut(fabric_of("tiny"), memory=1).shards) == 2, "each rack has a shard"


# With a host in each rack.
@pytest.mark.parametrize(("racks", "ctsw", "measured"), [(64, 8, 2.6e9), (252, 18, 15.0e9)])
def test_footprints_are_those_measured(racks: int, ctsw: int, measured: float) -> None:
    fabric = fabric_of("zone", racks=racks, ctsw=ctsw, hosts_per_rack=1)
    without_runs = sum(each.memory for each in footprints(fabric).values()) - len(fabric.nics) * BUFFER_BYTES
    assert without_runs == pytest.approx(measured, rel=0.1)


def test_a_forecast_names_what_limits_a_fabric() -> None:
    zone = fabric_of("zone")
    ahead = sharding_forecast(zone, cut(zone, 2))
    assert not ahead.limits and ahead.total == sum(ahead.seconds.values())
    large = fabric_of("zone", racks=252, ctsw=18, hosts_per_rack=4)
    slow = sharding_forecast(large, cut(large, 2))
    assert slow.seconds["routes"] > 5 * ahead.seconds["routes"]
    assert [limit.split(",")[0] for limit in slow.limits] == [
        "2 of 2 shards do not fit into a machine of 8 GiB",
    ]
    assert slow.seconds["ports"] > 10 * ahead.seconds["ports"]
    assert sharding_forecast(large, cut(large, 2), cpus=8).total < slow.total


# Processor seconds of all processes of `up`, on two processors; shards were on one machine. None: one kernel.
@pytest.mark.parametrize(
    ("shards", "keys", "measured"),
    [
        (None, {}, 2.3), (2, {}, 4.5), *((count, _MIDDLE, each) for count, each in ((None, 9.4), (1, 10.9), (2, 11.4))),
        (3, _MIDDLE, 14.2), (None, {**_MIDDLE, "routing.daemons": "shared"}, 7.2),
        (None, {**_MIDDLE, "racks": 56, "routing.control": "static"}, 4.6),
        (2, {**_MIDDLE, "routing.control": "static"}, 6.1),
    ],
)  # fmt: skip
def test_a_forecast_is_within_30_percent_of_what_was_measured(
    shards: int | None, keys: Mapping[str, object], measured: float
) -> None:
    fabric = fabric_of("zone", **keys)
    found = cut(fabric, shards or 1)
    one, two = (
        sharding_forecast(fabric, found, cpus / (shards or 1), local=shards is None).total for cpus in (0.5, 0.25)
    )
    assert (two - one) / 2 == pytest.approx(measured, rel=0.3), "without what only waits"


def test_a_forecast_counts_the_control_plane_that_a_fabric_has() -> None:
    kinds = [{}, {"routing.daemons": "shared"}, {"routing.control": "static"}]
    every = [fabric_of("zone", **_MIDDLE, **kind) for kind in kinds]
    own, shared, static = (sharding_forecast(fabric, cut(fabric, 1), local=True) for fabric in every)
    assert [*own.seconds] == ["render", "create", "ports", "start", "routes", "check"] and own.api_calls == 0
    assert own.seconds["start"] > 3 * shared.seconds["start"] and "start" not in static.seconds
    assert own.seconds["routes"] > 10 * static.seconds["routes"] > 0
    sizes = [sum(each.memory for each in footprints(fabric).values()) for fabric in every]
    assert sizes[0] > sizes[1] > sizes[2]
    slow = sharding_forecast(every[0], cut(every[0], 1), local=True, pace=ProcessorPace(2.0, 6.0))
    assert slow.total == pytest.approx(2 * own.total - 0.3) and slow.busy == pytest.approx(3 * slow.total)


@pytest.mark.parametrize("share", ["false", "true"])
def test_a_host_that_serves_costs_what_its_port_carries(share: str) -> None:
    sets = ["link.host=50mbit", "frontend.link.host=50mbit", "frontend.link.storage=50mbit"]
    fabric = load_fabric("frontend", overrides=[*sets, f"frontend.share_nics={share}"]).fabric
    costs = footprints(fabric)
    trainer, *servers = (costs[name] for name in ("host1", "storage1", "preprocess2"))
    assert all(each.cpus == trainer.cpus > 0 and each.memory > BUFFER_BYTES for each in servers)
