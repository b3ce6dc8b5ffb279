"""Fabrics over the pods of a real cluster: the same paths as on one machine, and what becomes of them in trouble."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
from collections.abc import Callable

import pytest

from heddle.base.problems import MachineError
from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle
from heddle.lab.cutlinks import cut_counts, tunnels
from heddle.lab.lab import Lab
from heddle.lab.ports import down_of
from heddle.lab.status import status
from heddle_plugins.kubernetes import manifests
from tests.kube.api import eventually
from tests.kube.spaces import LINKS, RUNTIME, Space, start
from tests.machine import until
from tests.netns.test_shards import (
    PAUSING,
    captured_at_both_ends,
    carrier_crosses_a_cut,
    crafted_and_probed,
    faults_with_a_process,
    flapped,
    paused_across_a_cut,
    ran,
    round_trips,
    routes_avoid_a_cut_that_is_down,
    shown_by_the_page,
    taken,
)

OF_S2 = "(rtsw2, ctsw2, host3, host4)"


@pytest.mark.parametrize("shards", [2, 3])
def test_zone_over_shards_takes_the_paths_that_it_takes_on_one_machine(
    space: Callable[[str], Space], name: str, shards: int
) -> None:
    there, found = space(f"zone{shards}"), []
    for runtime in ("netns", RUNTIME):
        began = time.monotonic()
        if runtime == RUNTIME:
            lab = there.up(name, "zone", *LINKS, shards=shards)
            pods = there.cluster.api.pods(there.name).values()
            assert {each["spec"]["nodeName"] for each in pods} == set(there.cluster.nodes) and len(pods) == shards
        else:
            lab = lifecycle.up(load_fabric("zone", name=name, overrides=LINKS)).lab
        took = time.monotonic() - began
        try:
            before = {each.port: each for each in tunnels(lab)}
            result, paths = ran(lab, sizes=(1 << 17,), iters=1)
            assert result.wrong == 0 and paths.agree and not paths.lost
            assert all(each.lost == before[each.port].lost for each in tunnels(lab)), "the tunnel is a wire"
            crossed = sum(each.sent - before[each.port].sent for each in tunnels(lab))
            assert (crossed > 1000) == (runtime == RUNTIME)
            assert [each for each in validate(lab) if not each.ok] == []
            print(f"{runtime}: up {took:.1f} s, busbw {result.largest.busbw:.6f} GB/s emulated", file=sys.stderr)
            found.append(({each.flow.key: each.predicted for each in paths.flows}, taken(paths)))
        finally:
            lifecycle.down(name)
    assert found[0] == found[1]
    assert there.is_empty()


def test_an_incast_across_a_cut_pauses_both_of_its_ends_and_loses_nothing(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("incast")
    lab = there.up(name, "tiny", *PAUSING)
    try:
        paused_across_a_cut(lab)
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def test_a_cut_link_that_goes_down_loses_its_carrier_at_both_ends_and_routes_avoid_it(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("carrier")
    lab = there.up(name)
    try:
        took = carrier_crosses_a_cut(lab)
        print(f"carrier across a cut: down {took['down']:.3f} s, up {took['up']:.3f} s", file=sys.stderr)
        assert took["down"] < 5, took
        routes_avoid_a_cut_that_is_down(lab)
        _, paths = ran(lab)
        assert paths.agree and not paths.lost
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def test_captures_faults_probes_and_the_page_work_in_all_pods(space: Callable[[str], Space], name: str) -> None:
    there = space("seen")
    lab = there.up(name)
    try:
        captured_at_both_ends(lab)
        shown_by_the_page(lab)
        crafted_and_probed(lab)
        faults_with_a_process(lab)
        flapped(lab)
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def test_a_shard_that_is_killed_during_a_run_is_named_and_repair_restores_it(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("lost")
    lab = there.up(name)
    try:
        near = _near(lab)
        with start("run", "--lab", name, "-b", "1M", "-e", "1M", "-n", "1000", "--format", "json") as process:
            before = _sent(lab)
            until(lambda: _sent(lab) > before + 500, process=process)
            assert there.cluster.kill_pod(manifests.pod_name(name, "s2"), there.name) > 4
            killed = time.monotonic()
            took = until(lambda: near in down_of(lab, ["rtsw1"])["rtsw1"])
            said, errors = process.communicate(timeout=60)
            ended = time.monotonic() - killed
        print(f"carrier lost after {took:.2f} s, the run ended after {ended:.1f} s", file=sys.stderr)
        assert took < 10, took  # it is 2 s on an idle machine
        assert process.returncode == 3 and "Traceback" not in errors, errors
        assert "results" not in json.loads(said)
        problems = json.loads(said)["error"]["problems"]
        assert (problems[0]["where"], problems[0]["what"]) == ("shard s2", OF_S2), problems
        until(lambda: f"shard s2  {OF_S2} has started again, and is empty" in " ".join(status(name)[0].faults))
        (found,) = status(name)
        assert (found.state, found.switches, found.hosts) == ("broken", 4, 4)
        with pytest.raises(MachineError, match=r"shard s2  \(rtsw2, ctsw2, host3, host4\)"):
            ran(lab)
        _repaired(lab)
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def test_repair_restores_shards_whose_pods_were_deleted_and_a_drain_waits_for_down(
    space: Callable[[str], Space], name: str
) -> None:
    there = space("moved")
    api, pod = there.cluster.api, manifests.pod_name(name, "s2")
    lab = there.up(name)
    try:
        uid = api.pods(there.name)[pod]["metadata"]["uid"]
        api.delete(there.path(f"pods/{pod}"))
        until(lambda: f"shard s2  {OF_S2}" in " ".join(status(name)[0].faults))
        eventually(
            "there is a new pod", lambda: api.pods(there.name).get(pod, {}).get("metadata", {}).get("uid") != uid
        )
        _repaired(lab)
        node = api.pods(there.name)[pod]["spec"]["nodeName"]
        try:
            with pytest.raises(urllib.error.HTTPError, match="429"):  # its disruption budget
                api.drain(node)
            assert api.pods(there.name)[pod]["spec"]["nodeName"] == node and not status(name)[0].faults
            api.delete(there.path(f"poddisruptionbudgets/heddle-{name}", "apis/policy/v1"))
            assert api.drain(node) == [pod]
            until(lambda: f"shard s2  {OF_S2}" in " ".join(status(name)[0].faults))
            _repaired(lab)
            assert api.pods(there.name)[pod]["spec"]["nodeName"] != node
        finally:
            api.uncordon(node)
    finally:
        lifecycle.down(name)
    assert there.is_empty()


def _near(lab: Lab) -> str:
    """The port of rtsw1 that is the end of a cut link."""
    (port,) = {each.port.partition(":")[2] for each in tunnels(lab) if each.port.startswith("rtsw1:")}
    return port


def _sent(lab: Lab) -> int:
    return sum(each.sent for each in cut_counts(lab))


def _repaired(lab: Lab) -> None:
    """`up --repair` starts shard s2 again; the fabric converges, and paths are proven."""
    began = time.monotonic()
    again = lifecycle.repair_lab(lab.name)
    assert again.converged and again.repaired is not None
    assert again.repaired.done[0] == f"shard s2: started again {OF_S2}"
    print(f"repaired in {time.monotonic() - began:.1f} s: {again.repaired.done}", file=sys.stderr)
    assert [each for each in validate(lab) if not each.ok] == []
    result, paths = ran(lab)
    assert result.wrong == 0 and paths.agree and not paths.lost
    assert all(each.alive for each in round_trips(lab))


def test_labs_of_one_namespace_and_of_two_do_not_touch_each_other(
    space: Callable[[str], Space], lab_name: Callable[[], str]
) -> None:
    there, other = space("one"), space("two")
    labs = [there.up(lab_name()), there.up(lab_name()), other.up(lab_name())]
    names = [each.name for each in labs]
    try:
        for lab in labs:
            _, paths = ran(lab)
            assert paths.agree and not paths.lost
            assert all(each.alive for each in round_trips(lab))
        lifecycle.down(names[0])
        eventually("nothing of it is left", lambda: not [each for each in there.objects() if names[0] in each])
        lifecycle.down(names[2])
        assert other.is_empty()
        (found,) = status(names[1])
        assert found.state == "up" and found.converged, found
        _, paths = ran(labs[1])
        assert paths.agree
    finally:
        for lab in labs:
            lifecycle.down(lab.name)
    assert there.is_empty()
