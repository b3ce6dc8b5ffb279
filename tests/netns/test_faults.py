"""Links and switches that fail or are drained: what kernels do then, what is reported, and which paths move."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.checks.validate import validate
from heddle.fabric.ucmp import RELEASES, weights_of
from heddle.host.preflight import frr_release
from heddle.kernel.fib import read_fib
from heddle.lab.convergence import ExpectedRoutes, gaps
from heddle.lab.faults import kind
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, state_of, wait
from heddle.lab.outages import Fault, drain, link_down, link_up, undrain
from heddle.lab.rehash import set_hashing
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.proof.verdict import lookup_paths
from heddle.runs.explain import explain
from heddle.runs.moved import RESILIENT, THRESHOLD, now
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import load
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.counters import read_counters
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import now_text, paths_text
from tests.conftest import Borrow, FabricLab
from tests.machine import until
from tests.marks import deep, long
from tests.netns.live import failed, next_hops
from tests.netns.static_fabric import some_flows
from tests.typed import typed


@pytest.fixture(scope="module")
def dc(borrow: Borrow) -> Lab:
    """Three tiers, in namespaces; leave it as you find it."""
    return borrow("dc")


@pytest.fixture(autouse=True)
def left_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "dc" not in request.fixturenames:
        return
    dc: Lab = request.getfixturevalue("dc")
    assert state_of(dc) == State((), ())
    assert not gaps(dc.fabric, dc.snapshot(LabPart.FIBS).fibs, ExpectedRoutes.of(dc.fabric), strict=True)


def test_three_tiers_come_up_and_every_check_passes(dc: Lab) -> None:
    run(dc, RunOptions(qps=4, sizes=(65536,), iters=2, warmup=1), Silent())
    checks = {check.name: check for check in validate(dc)}
    assert not [check for check in checks.values() if not check.ok]
    assert checks["paths"].detail == "prediction, kernel lookup and counters agree on 32 QPs of the last run"
    assert checks["links"].detail == "24 links are up, and no switch is drained"
    assert next_hops(dc, "rtsw1", 3) == {"eth1", "eth2"}
    assert next_hops(dc, "ctsw1", 3) == {"eth3", "eth4"}
    assert next_hops(dc, "atsw1", 3) == {"eth3", "eth4"}


def test_a_link_that_is_down_is_gone_from_every_kernel_and_comes_back(dc: Lab) -> None:
    with link_down(dc, "rtsw1:eth1"):
        assert state_of(dc).dead == ("rtsw1:eth1",)
        assert next_hops(dc, "rtsw1", 3) == {"eth2"}
        assert next_hops(dc, "rtsw2", 1) == {"eth2"}, "BGP tells those that lie further away"
        assert next_hops(dc, "atsw2", 1) == {"eth2"}
        assert next_hops(dc, "ctsw1", 1) == set(), "no route climbs again"
        assert next_hops(dc, "ctsw3", 1) == {"eth3", "eth4"}
    assert next_hops(dc, "rtsw1", 3) == {"eth1", "eth2"}


@pytest.mark.deep
def test_plain_functions_do_the_same_and_a_drain_by_hand_is_seen(dc: Lab) -> None:
    link_down(dc, "atsw1:eth4")
    assert next_hops(dc, "ctsw4", 1) == {"eth4"}
    link_up(dc, "atsw1:eth4")
    link_down(dc, "ctsw4")
    assert next_hops(dc, "rtsw3", 1) == {"eth1"}
    link_up(dc, "ctsw4")
    asn = dc.fabric.by_name["atsw1"].asn
    commands = ["-c", "configure terminal", "-c", f"router bgp {asn}", "-c"]
    dc.output("atsw1", ["vtysh", *commands, "bgp graceful-shutdown"])
    assert state_of(dc).drained == ("atsw1",)
    wait(dc)
    assert next_hops(dc, "ctsw4", 1) == {"eth4"}
    undrain(dc, "atsw1")


@pytest.mark.deep
def test_a_hosts_link_goes_down_at_its_switch_so_that_the_host_keeps_its_routes(dc: Lab) -> None:
    before = dc.output("host1", ["ip", "route"])
    with link_down(dc, "host1:eth1"):
        assert state_of(dc).dead == ("rtsw1:eth3",)
    assert dc.output("host1", ["ip", "route"]) == before


def test_traffic_avoids_a_switch_that_is_down(dc: Lab) -> None:
    with link_down(dc, "ctsw1"):
        assert state_of(dc).dead == ("ctsw1:eth1", "ctsw1:eth2", "ctsw1:eth3", "ctsw1:eth4")
        assert next_hops(dc, "rtsw2", 1) == next_hops(dc, "rtsw2", 4) == {"eth2"}
        assert next_hops(dc, "atsw1", 1) == {"eth2"}
        checks = {check.name: check for check in validate(dc)}
        assert not checks["links"].ok
        assert not checks["routes"].ok
        assert checks["routes"].detail == "ctsw1:eth1, ctsw1:eth2, ctsw1:eth3, ctsw1:eth4 are down", "and nothing else"
        assert checks["reachability"].ok


@pytest.mark.deep
def test_a_job_is_placed_beside_a_dead_nic_and_runs_there(dc: Lab, tmp_path: Path) -> None:
    with link_down(dc, "host1:eth1"):
        words = ["--lab", dc.name, "--ranks", "4", "--out", f"{tmp_path}/ranks.txt", "--format", "json"]
        said = json.loads(typed("schedule", *words).stdout)
        assert said["down"] == ["rtsw1:eth3"]
        options = RunOptions(placement=f"{tmp_path}/ranks.txt", ranks=4, sizes=(65536,), iters=1, warmup=1)
        done = run(dc, options, Silent())
    assert {nic.partition(":")[0] for nic in said["candidates"][0]["nics"]} == {"host5", "host6", "host7", "host8"}
    assert done.wrong == 0
    assert done.proof is not None and done.proof.agree


def test_traffic_avoids_a_drained_switch_which_is_named(dc: Lab) -> None:
    with drain(dc, "ctsw2"):
        assert next_hops(dc, "rtsw1", 3) == next_hops(dc, "rtsw2", 1) == {"eth1"}
        assert next_hops(dc, "atsw2", 1) == {"eth1"}
        assert next_hops(dc, "ctsw2", 3) == {"eth3", "eth4"}, "it forwards what still comes"
        (row,) = status(dc.name)
        assert row.faults == ("ctsw2  BGP drains the switch (graceful-shutdown)",)
        assert not row.converged
        routes = next(check for check in validate(dc) if check.name == "routes")
        assert (routes.ok, routes.detail) == (False, "ctsw2 is drained")


@pytest.mark.deep
def test_two_drained_switches_are_used_where_there_are_no_others(dc: Lab) -> None:
    with drain(dc, "ctsw1"), drain(dc, "ctsw2"):
        assert next_hops(dc, "rtsw1", 3) == {"eth1", "eth2"}
        with link_down(dc, "rtsw1:eth2"):
            assert next_hops(dc, "rtsw1", 3) == {"eth1"}


def lost(lab: Lab) -> int:
    """RoCE packets that an RTSW took from its hosts and that no RTSW gave to a host, since the lab is up."""
    racks = {
        str(p.address.ip): host.group("rack") for host in lab.fabric.hosts for p in host.ports if p.address is not None
    }
    names = {node.group("rack"): node.name for node in lab.fabric.switches if node.group("rack") is not None}
    hosts = {p.name for p in lab.fabric.by_name["rtsw1"].ports if p.address is not None}
    entered = arrived = 0
    counters = read_counters(lab.fabric)
    for rack, name in names.items():
        for flow in counters[name].flows:
            entered += flow.packets if racks[flow.src] == rack else 0
            arrived += flow.packets if racks[flow.dst] == rack and flow.port in hosts else 0
    return entered - arrived


@pytest.mark.deep
@pytest.mark.parametrize("put", [drain, deep(undrain)], ids=["drain", "undrain"])
def test_no_packet_is_lost_while_a_switch_is_drained_under_load(dc: Lab, put: Callable[[Lab, str], object]) -> None:
    """Queue pairs move to ways of another length of queue, so packets may come out of order; none is missing.

    Runs follow each other until the switch is drained: on a busy machine a drain takes longer than any one of them.
    """
    if put is undrain:
        drain(dc, "ctsw1")
    before, stop, result = lost(dc), threading.Event(), list[RunRecord]()
    options = RunOptions(qps=4, sizes=(131072,), iters=4, warmup=0)

    def carry() -> None:
        while not stop.is_set():
            result.append(run(dc, options, Silent()))

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        arrives(dc, since=taken(dc))
        begun = taken(dc)
        put(dc, "ctsw1")
        moved = taken(dc)
        arrives(dc, since=moved)
    finally:
        stop.set()
        thread.join()
        undrain(dc, "ctsw1")
    assert moved > begun, "packets were under way all the time"
    assert result and {each.wrong for each in result} == {0}
    assert lost(dc) == before


def taken(lab: Lab) -> int:
    """RoCE packets that rtsw1 has forwarded."""
    return sum(port.roce_packets for port in read_counters(lab.fabric)["rtsw1"].ports)


def arrives(lab: Lab, since: int) -> None:
    """Wait until rtsw1 forwards more."""
    until(lambda: taken(lab) != since)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("make", "where", "error"),
    [(link_down, "rtsw1:eth1", CheckError), (link_down, "ctsw1", KeyboardInterrupt), (drain, "ctsw2", CheckError)],
)
def test_a_fault_that_times_out_or_is_interrupted_is_undone(
    dc: Lab, make: Callable[..., Fault], where: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends_early(*_: object) -> None:
        assert state_of(dc) != State((), ())
        raise error

    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr(kind, "wait", ends_early)
        make(dc, where)
    wait(dc)
    assert state_of(dc) == State((), ())


@pytest.mark.deep
def test_a_fault_inside_another_undoes_what_it_did_once_and_no_more(dc: Lab) -> None:
    with link_down(dc, "ctsw1:eth1") as fault, drain(dc, "ctsw2"):
        both = state_of(dc)
        with link_down(dc, "ctsw1"):
            assert len(state_of(dc).dead) == 4
        with drain(dc, "ctsw2"), link_down(dc, "ctsw1:eth1"):
            assert state_of(dc) == both
        assert state_of(dc) == both == State(("ctsw1:eth1",), ("ctsw2",))
        fault.undo()
        with link_down(dc, "ctsw1:eth1"):
            fault.undo()
            assert state_of(dc) == both, "an undone fault is not undone again"


MODES = [
    ("flow", HashOptions()),
    ("e-ecmp", HashOptions()),
    ("e-ecmp", HashOptions(resilient=True)),
    ("pinned", HashOptions()),
]


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    """Three racks below four CTSWs, and a run of 96 QPs on record."""
    made = fabric_lab(racks=3, ctsw=4, hosts_per_rack=2)
    run(made, RunOptions(qps=16, sizes=(65536,), iters=1, warmup=0), Silent())
    return made


def a_link(lab: Lab) -> Fault:
    return link_down(lab, "rtsw1:eth2")


def a_switch(lab: Lab) -> Fault:
    return link_down(lab, "ctsw1")


def a_drain(lab: Lab) -> Fault:
    return drain(lab, "ctsw3")


@pytest.mark.parametrize("fault", [a_link, long(a_switch), long(a_drain)])
def test_after_a_fault_prediction_is_what_the_kernels_do_and_resilient_hashing_moves_the_lost_share_alone(
    lab: Lab, fault: Callable[[Lab], Fault]
) -> None:
    flows = some_flows(lab.fabric, 300)
    whole, still = lookup_paths(lab, flows), now(lab, load(lab))
    assert still.result.agree and still.moved.by_rule == {THRESHOLD: (0, 0), RESILIENT: (0, 0)}
    assert (still.moved.moved, still.moved.gone, still.moved.spread) == (0, 0, 0), "nothing moves without a fault"
    with fault(lab):
        found = now(lab, load(lab))
        for mode, options in MODES:
            set_hashing(lab, mode, options)
            result = lookup_paths(lab, flows)
            assert result.agree, f"{mode}: {paths_text(result)}"
    set_hashing(lab, "flow", HashOptions())
    again = lookup_paths(lab, flows)
    assert [proof.predicted for proof in again.flows] == [proof.predicted for proof in whole.flows]

    assert found.result.agree, now_text(found)
    moved = found.moved
    assert moved.flows == 96 and moved.in_force == THRESHOLD
    assert 0 < moved.gone < moved.moved
    assert moved.by_rule[THRESHOLD] == (moved.moved, moved.gone), "the run was by hash-threshold"
    lost = moved.by_rule[RESILIENT]
    assert lost[0] == lost[1] > 0, "nothing but what had lost its way"
    rows = found.to_json()["flows"]
    assert sum(row["moved"] for row in rows) == moved.moved
    assert all((row["was"] != row["predicted"]) == row["moved"] for row in rows)
    assert f"{moved.moved} of 96 QPs" in now_text(found) and "(active)" in now_text(found)


@pytest.mark.deep
def test_every_step_of_a_choice_is_explained_in_every_mode_and_the_kernel_agrees(lab: Lab) -> None:
    word = "host1,host5,qpn=0x101,sport=50000"
    modes = [*MODES, ("flow", HashOptions(resilient=True)), ("flow", HashOptions(policy="l3"))]
    modes += [("flow", HashOptions(policy="l4")), ("spray", HashOptions()), ("flowlet", HashOptions())]
    modes += [("exact-match", HashOptions())]
    with link_down(lab, "rtsw1:eth3"):
        for mode, options in modes:
            set_hashing(lab, mode, options)
            found = explain(lab, word)
            assert found.agree, f"{mode}: {found.text()}"
            assert len(found.hops) == 3 and found.path[-1].startswith("rtsw3:"), found.text()
            data = found.to_json()
            assert [hop["switch"] for hop in data["hops"]][::2] == ["rtsw1", "rtsw3"]
            assert all(hop["steps"] for hop in data["hops"])
            if options == HashOptions() and mode in ("flow", "e-ecmp"):
                assert "<- the first that reaches it" in found.text()
    set_hashing(lab, "flow", HashOptions())
    with pytest.raises(InputError, match="is no QP number of run 0001"):
        explain(lab, "7")


def weights(lab: Lab, switch: str, rack: int) -> dict[str, int]:
    return {hop.port: hop.weight for hop in read_fib(lab.handle(switch)).routes[lab.fabric.prefixes[rack]]}


@pytest.mark.deep
@pytest.mark.containers
def test_weights_are_those_of_bandwidths_and_a_drained_switch_has_none(fabric_lab: FabricLab) -> None:
    link = {"host": "100mbit", "fabric": "100mbit", "exceptions": {"ctsw2": "30mbit"}}
    lab = fabric_lab(zones=2, racks=2, ctsw=2, atsw=2, hosts_per_rack=1, link=link, routing={"ucmp": True})
    here = frr_release() if lab.runtime.name == "netns" else None
    rights = [weights_of((100, 30), release) for release in ([here] if here else RELEASES)]
    assert tuple(weights(lab, "rtsw1", 3)[port] for port in ("eth1", "eth2")) in rights
    assert tuple(weights(lab, "atsw1", 1)[port] for port in ("eth1", "eth2")) in rights
    assert len(set(weights(lab, "atsw1", 3).values())) == 1
    with drain(lab, "ctsw2"):
        assert set(weights(lab, "rtsw1", 3)) == set(weights(lab, "atsw1", 1)) == {"eth1"}
    with link_down(lab, "ctsw1:eth3"):
        rest = [weights_of((30, 130), release) for release in ([here] if here else RELEASES)]
        assert tuple(weights(lab, "ctsw3", 1)[port] for port in ("eth3", "eth4")) in rest
        wanted = ExpectedRoutes.of(lab.fabric, ["ctsw1:eth3"])
        assert not gaps(lab.fabric, lab.snapshot(LabPart.FIBS).fibs, wanted, strict=True)
    assert failed(lab) == {}
