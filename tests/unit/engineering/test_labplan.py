"""The plan of an edited fabric: what stays keeps its names and numbers, and what cannot change is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from heddle.base.problems import InputError
from heddle.base.state import Record
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab.opening import Rendered, blueprint_from
from heddle.switch.queues.classes import port_ids
from heddle_plugins.engineering.labchange import plan
from heddle_plugins.engineering.labplan import LabPlan, plan_of

SMALL = ("racks=3", "hosts_per_rack=1")


def edited(fabric: str, *overrides: str) -> Rendered:
    found = blueprint_from(load_fabric(fabric, overrides=overrides))
    assert isinstance(found, Rendered)
    return found


def recorded(fabric: str, *overrides: str) -> Record:
    made = edited(fabric, *overrides)
    return Record(made.fabric.name, "netns", "running", made.spec_data())


def followed(record: Record, *steps: Sequence[str], fabric: str = "tiny") -> tuple[Record, list[LabPlan]]:
    """The record after some edits, one after the other, and their plans."""
    plans = []
    for overrides in steps:
        plans.append(plan_of(record, edited(fabric, *overrides)))
        record = replace(record, spec=plans[-1].new.spec_data(), numbers=plans[-1].numbers)
        assert Rendered.of_record(record).fabric == plans[-1].new.fabric
    return record, plans


def check_kept(found: LabPlan) -> None:
    """Every link that stays has its ports, with MACs, addresses, ids and places; no id and no cell is used twice."""
    old, new = found.old, found.new.fabric
    ids = port_ids(old), port_ids(new)
    links = {tuple(sorted((link.a, link.b))) for link in new.links}
    stays = [link for link in old.links if tuple(sorted((link.a, link.b))) in links]
    assert len(stays) == len(old.links) - len(found.gone_links)
    for node, port in (end for link in stays for end in (link.a, link.b)):
        was, now = old.by_name[node].port(port), new.by_name[node].port(port)
        assert (was.mac, was.address, was.peer_ref) == (now.mac, now.address, now.peer_ref)
        assert ids[0][node, port] == ids[1][node, port]
    assert len(set(ids[1].values())) == len(ids[1])
    spots = [(place.cross, place.cross + place.pairs) for place in map(new.places.__getitem__, _switches(new))]
    assert all(one[1] <= other[0] or other[1] <= one[0] for one in spots for other in spots if one != other)
    assert len({place.index for place in new.places.values()}) == len(new.nodes)
    assert all(max(place.ids) < place.first + place.width for place in new.places.values())


def _switches(fabric: Fabric) -> list[str]:
    return [node.name for node in fabric.switches]


def test_what_stays_keeps_its_numbers_and_after_the_way_back_all_are_as_before() -> None:
    first = recorded("tiny", *SMALL)
    steps = ((*SMALL[1:], "racks=4"), (*SMALL[1:], "racks=4", "ctsw=3"), (*SMALL, "ctsw=3"), SMALL)
    last, plans = followed(first, *steps)
    for each in plans:
        check_kept(each)
    assert plans[1].new.fabric.by_name["rtsw1"].port("eth4").peer_node == "ctsw3"
    assert "no port is renamed: rtsw1:eth3 stays, and would be rtsw1:eth4 after down and up" in plans[1].lines
    before, after = Rendered.of_record(first).fabric, Rendered.of_record(last).fabric
    assert after.places == before.places and after.nodes == before.nodes and after.links == before.links


@pytest.mark.parametrize(
    ("fabric", "before", "after"),
    [
        ("rail", ["pods=2"], ["pods=3"]),
        ("zone", ["racks=8"], ["racks=7", "ctsw=3"]),
        ("dc", [], ["atsw=3"]),
    ],
)
def test_other_shapes_change_as_well(fabric: str, before: list[str], after: list[str]) -> None:
    found = plan_of(recorded(fabric, *before), edited(fabric, *after))
    check_kept(found)
    assert found.fresh or found.gone


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (["racks=3", "hosts_per_rack=2"], "host2 +would be another node: its group is rack 2, not rack 1"),
        ([*SMALL, "routing.ecmp=spray"], "routing.ecmp: spray +was requested, but the running lab uses flow"),
        ([*SMALL, "link.mtu=5000"], "link.mtu: 5000 +was requested, but the running lab uses 4200"),
        (["racks=40", "hosts_per_rack=1"], "ctsw1 +has room for 7 ports, and needs 40"),
        ([*SMALL, "queues.burst=4"], "queues.burst: 4 +was requested"),
    ],
)
def test_what_cannot_change_is_named(edit: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        plan_of(recorded("tiny", *SMALL), edited("tiny", *edit))


def test_rates_and_thresholds_are_lines_of_the_plan() -> None:
    found = plan_of(recorded("tiny", *SMALL), edited("tiny", *SMALL, "link.fabric=50mbit", "queues.ecn.kmax=300KB"))
    assert "set the rate of 6 links from 100mbit to 50mbit: rtsw1:eth1 - ctsw1:eth1" in found.lines[0]
    assert found.lines[1:] == ["set thresholds of queues: queues.ecn.kmax 300000", "8 nodes and 9 links stay"]
    assert not (found.fresh or found.gone or found.configs)


def test_routes_that_no_daemon_computes_exclude_a_change() -> None:
    static = [*SMALL, "routing.control=static"]
    with pytest.raises(InputError, match=r"routing\.control: static +excludes a change"):
        plan(recorded("tiny", *static), edited("tiny", *static, "link.fabric=50mbit"))
