"""A shard's own ids, maps and part of the topology, and one reading of all shards."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.base import state
from heddle.base.problems import InputError
from heddle.fabric.cutting import Cut, cut
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab.opening import Rendered
from heddle.offline.sharding import sharding_forecast
from heddle.render.dialects import RenderOptions
from heddle.runs.series import COLUMNS, QueueRecord, QueueTotals, Series
from heddle.runs.watching import joined
from heddle.runtimes.netns_topology import Topology, read_topology, unpack
from heddle.runtimes.shardparts import change_addresses, parts
from heddle.spec.plain import dump_spec
from heddle.switch.queues import cells
from heddle.switch.queues.classes import check_ids, far_ids, policies_of, port_ids, row

ADDRESSES = {f"s{number}": f"10.9.0.{number}" for number in range(1, 17)}
LARGE = ("zones=8", "racks=252", "ctsw=18", "atsw=18", "hosts_per_rack=1")


def cut_parts(preset: str, count: int, out: Path, *sets: str) -> tuple[Fabric, Cut, dict[str, Topology]]:
    """A rendered fabric, its cut, and each shard's topology as the shard reads it."""
    loaded = load_fabric(preset, overrides=sets)
    path = Rendered(loaded.fabric, loaded.spec).write(out / "whole", RenderOptions())
    found = cut(loaded.fabric, count)
    shards = {each.name: each.nodes for each in found.shards}
    read = {}
    for name, text in parts(path, loaded.fabric, shards, ADDRESSES, 14789, list(shards)):
        unpack(text, out / name)
        read[name] = read_topology(out / name / path.name)
    return loaded.fabric, found, read


@pytest.mark.parametrize(("preset", "count"), [("tiny", 2), ("dc", 3), ("rail", 2), ("zone", 1)])
def test_the_parts_of_shards_are_the_whole_topology(preset: str, count: int, tmp_path: Path) -> None:
    fabric, found, read = cut_parts(preset, count, tmp_path)
    whole = read_topology(tmp_path / "whole" / f"{fabric.name}.clab.yml")
    for shard in found.shards:
        part, place = read[shard.name], tmp_path / shard.name
        assert list(part.nodes) == list(shard.nodes)
        for name, node in part.nodes.items():
            binds = tuple(
                replace(each, source=tmp_path / "whole" / each.source.relative_to(place)) for each in node.binds
            )
            assert replace(node, binds=binds) == whole.nodes[name]
            assert all(each.source.read_bytes() == whole.source.read_bytes()
                       for each, whole in zip(node.binds, binds, strict=True))  # fmt: skip
        there = {file.relative_to(place).parts[0] for file in place.rglob("*/*")}
        assert there <= {*shard.nodes}, "files of other shards are not sent"
    inside = [link for part in read.values() for link in part.links]
    assert len(inside) + len(found.links) == len(whole.links) and {*inside} <= {*whole.links}
    # The two ends of a link that is cut name each other, by numbers that no other port of the fabric has.
    cuts = {(name, (each.end.node, each.end.interface)): each for name, part in read.items() for each in part.cuts}
    assert len(cuts) == 2 * len(found.links) and len({each.own_vni for each in cuts.values()}) == len(cuts)
    for link in found.links:
        one, two = (cuts[name, end] for name, end in zip(link.shards, (link.link.a, link.link.b), strict=True))
        assert (one.vni, two.vni) == (two.own_vni, one.own_vni) and one.mtu == two.mtu
        assert (str(one.remote), str(two.remote)) == tuple(ADDRESSES[name] for name in reversed(link.shards))
    for shard in found.shards:  # the ids in the topology are those of the shard's own fabric
        own = fabric.of_shard(shard.nodes)
        ids, far = port_ids(own), far_ids(own)
        for each in read[shard.name].cuts:
            port = fabric.by_name[each.end.node].port(each.end.interface)
            ends = ids[port.node, port.name], far[port.peer_node, port.peer_port]
            assert (each.number, each.far) == ends


@pytest.mark.parametrize(("preset", "count"), [("tiny", 2), ("dc", 3), ("rail", 2)])
def test_ids_are_a_shards_own_and_no_two_of_its_ports_have_the_same(preset: str, count: int) -> None:
    fabric = load_fabric(preset).fabric
    taken = []
    for shard in cut(fabric, count).shards:
        own = fabric.of_shard(shard.nodes)
        ids, far = port_ids(own), far_ids(own)
        numbers = [*ids.values(), *far.values()]
        assert numbers == list(range(1, len(numbers) + 1)) and not ids.keys() & far.keys()
        assert {node for node, _ in ids} == {*shard.nodes} and not {node for node, _ in far} & {*shard.nodes}
        for node in own.nodes_here:
            assert all(b - a == 1 for a, b in pairwise(ids[node.name, port.name] for port in node.ports))
        assert policies_of(own).keys() == ids.keys()
        taken.append({*ids.values()})
    assert all(one & two for one, two in pairwise(taken)), "shards use the same ids"
    assert far_ids(fabric) == {}


def test_a_shard_that_changes_its_neighbours_addresses_keeps_everything_else(tmp_path: Path) -> None:
    _, _, read = cut_parts("tiny", 2, tmp_path)
    path = tmp_path / "s1" / "tiny.clab.yml"
    change_addresses(path, {ADDRESSES["s2"]: "10.9.9.9", "10.9.0.77": "10.1.1.1"})
    before, now = read["s1"], read_topology(path)
    assert {str(each.remote) for each in now.cuts} == {"10.9.9.9"} and now.nodes == before.nodes
    assert [replace(each, remote=before.cuts[0].remote) for each in now.cuts] == [*before.cuts]


def test_readings_of_all_shards_are_one_of_the_lab() -> None:
    """Each row of the whole lab comes from the shard that has the port, whatever its id is there."""
    fabric = load_fabric("dc").fabric
    ids, random = port_ids(fabric), np.random.default_rng(1)
    size, rows = fabric.space, [row(id_, number) for id_ in ids.values() for number in range(8)]
    shape = dict.fromkeys(("cells", "ingress", "gates", "agent"), row(size[1], 0))
    places = [fabric.places[node.name].index for node in fabric.nodes]
    whole: dict[str, Any] = {}
    for name, length in {**shape, "switches": size[0]}.items():
        layout = cells.LAYOUTS[name]
        whole[name] = np.zeros(length, layout)  # ids have gaps
        at_rows = places if name == "switches" else rows
        words = random.integers(0, 1 << 40, (len(at_rows), layout.itemsize // 8)).astype("<u8")
        whole[name][at_rows] = words.view(layout)[:, 0]
    counts, late = np.zeros((row(size[1], 0), 3), np.int64), 5_000_000
    counts[rows] = random.integers(0, 1000, (len(rows), 3))
    states, records = [], []
    for at, shard in enumerate(cut(fabric, 3).shards):
        own = fabric.of_shard(shard.nodes)
        ports = [row(ids[ref], number) for ref in port_ids(own) for number in range(8)]
        nodes = [fabric.places[node.name].index for node in own.nodes_here]
        part: dict[str, Any] = {
            name: each[nodes] if name == "switches" else each[[*range(8), *ports]] for name, each in whole.items()
        }
        for each in part.values():  # the clocks of other shards are ahead
            for field in cells._TIMES.intersection(each.dtype.names):
                each[field] += np.where(each[field] > 0, at * late, 0).astype(np.uint64)
        where = cells.ShardRows.of(own)
        states.append(cells.QueueState(10**15 + at * late, **part, shard=where))
        totals = QueueTotals(counts[[*range(8), *ports]], counts[[*range(8), *ports]], at)
        first = 8 * at + 8
        columns = {name: np.full((1, 1), at) for name in COLUMNS}
        series = Series(np.array([0.01]), np.array([first], np.int32), columns, 0.01, 1, 0.0)
        records.append((QueueRecord(totals, totals, series, (), where), ports[first - 8]))
    found = states[0].joined(states[1:])
    assert found.shard is None and all((getattr(found, name) == each).all() for name, each in whole.items())
    record = joined([each for each, _ in records])
    assert (record.before.counts == counts).all() and (record.after.drops == counts).all()
    assert record.before.storms == 3 and sorted(record.series.rows.tolist()) == sorted(at for _, at in records)


def test_the_record_of_a_shard_opens_as_its_own_part_and_is_built_once() -> None:
    loaded = load_fabric("tiny")
    record = state.Record("tiny", "netns", "running", dump_spec(loaded.spec), shard=["rtsw1", "host1"])
    opened = Rendered.of_record(record)
    assert [node.name for node in opened.fabric.nodes_here] == ["rtsw1", "host1"]
    assert opened.fabric.nodes == loaded.fabric.nodes
    assert Rendered.of_record(replace(record, hashing={"rtsw1": {}})) is opened
    assert Rendered.of_record(replace(record, shard=[])).fabric == loaded.fabric
    other = {**record.spec, "racks": 3}
    assert len(Rendered.of_record(replace(record, spec=other)).fabric.edges) == 3


def test_a_data_centre_of_2178_switches_fits_into_16_shards() -> None:
    fabric = load_fabric("dc", overrides=LARGE).fabric
    found = cut(fabric, 16)
    assert len(port_ids(fabric)) == 81_792
    assert not any("ports" in each for each in sharding_forecast(fabric, found).limits)
    with pytest.raises(InputError, match=r"dc has 81792 ports; the maximum of one kernel is 65535"):
        check_ids(fabric)
    for shard in (found.shards[0], found.shards[-1]):
        own = fabric.of_shard(shard.nodes)
        check_ids(own)
        entries = cells._sizes(own)
        assert sum(entries[name] * layout.itemsize for name, layout in cells.LAYOUTS.items()) <= 100 << 20
