"""A fabric over several kernels: shards of this machine (tests/localshards.py), joined by cut links over VXLAN."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from heddle.base import owners, state
from heddle.base import process as machine
from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.cli.capture_live import LiveNotes
from heddle.endpoints.programruns import ProgramOptions
from heddle.fabric.fabricfile import LoadedFabric, load_fabric
from heddle.fabric.model import Role
from heddle.host import capacity
from heddle.lab import lifecycle, linkstate, outages, rehash, thresholds
from heddle.lab.capture import Bounds, capture, find_ports
from heddle.lab.cutlinks import FarTrip, carriers, cut_counts, lost_carriers, tunnels
from heddle.lab.faults import orders, record
from heddle.lab.faults.packets import fault_differences, wanted_faults
from heddle.lab.lab import Lab
from heddle.lab.ports import down_of, set_links
from heddle.lab.queues import QueueWatch
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.proof.verdict import PathsResult
from heddle.runs.parts.effects import FaultEffects
from heddle.runs.programs import run_program
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import paths_of
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.shardcalls import AGENT, CLOCK, AgentCall
from heddle.spec.impairments import LinkFault
from heddle.switch.links import portfaults
from heddle.switch.queues.classes import numbered_ports, port_ids, row
from heddle.traffic.options import RunOptions
from heddle.wire.dissect import dissect
from heddle.wire.pcapng import Frame
from heddle_plugins.dashboard.labwatch import LabWatch
from heddle_plugins.engineering import te as controller
from heddle_plugins.engineering.diagnosis.case import Case
from heddle_plugins.engineering.diagnosis.diagnosis import judged, probe_paths
from heddle_plugins.packets.craft import craft
from tests import localshards
from tests.conftest import Borrow
from tests.machine import commands, patience, until
from tests.netns.control.test_static import STATIC, differences
from tests.netns.live import failed

LOSSLESS = 3
LINKS = ("link.host=20mbit", "link.fabric=40mbit")
OTHER_ROUTE = "via 169.254.0.1 dev eth1 onlink proto static metric 20"
PAUSING = ("queues.pfc.xoff=20KB", "queues.pfc.xon=12KB", *LINKS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localshards.LocalCluster]:
    """The runtime of shards on this machine, registered for this module."""
    yield from localshards.registered(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def lab(cluster: localshards.LocalCluster, lab_name: Callable[[], str]) -> Iterator[Lab]:
    """The preset tiny over two shards."""
    made = lifecycle.up(load_fabric("tiny", name=lab_name()), runtime=localshards.NAME).lab
    yield made
    lifecycle.down(made.name)


def ran(lab: Lab, **more: object) -> tuple[RunRecord, PathsResult]:
    options = RunOptions(**{"sizes": (1 << 18,), "iters": 2, "warmup": 1, "qps": 4, **more})  # type: ignore[arg-type]
    return run(lab, options, Silent()), paths_of(lab)


def round_trips(lab: Lab) -> list[FarTrip]:
    """From each shard to each of the others that it has cut links to."""
    return [trip for each in carriers(lab) for trip in each.trips]


def taken(paths: PathsResult) -> dict[tuple[str, str, int, int], tuple[tuple[str, ...], int]]:
    """Each flow, with the path that its packets took and their number."""
    return {each.flow.key: (each.measured, each.sent.packets) for each in paths.flows}


def captured_at_both_ends(lab: Lab) -> None:
    """A capture at both ends of a cut sees the same packets, on one clock."""
    near = next(each.port for each in tunnels(lab) if each.port.startswith("rtsw1:"))
    node, _, name = near.partition(":")
    far = lab.fabric.by_name[node].port(name).peer_ref
    taps, frames, ended = find_ports(lab, f"{near},{far}"), list[Frame](), threading.Event()
    assert len({tap.shard for tap in taps}) == 2

    def reduce() -> None:
        ran(lab)
        ended.set()

    worker = threading.Thread(target=reduce)
    bounds = Bounds(10**6, patience(60))
    done = capture(
        taps, "udp dst port 4791", bounds, frames.extend, whole=True, stop=ended.is_set, listening=worker.start
    )
    worker.join()
    assert (done.ended, done.packets, done.problems) == ("asked", len(frames), ())
    assert done.dropped == {near: 0, far: 0}
    for ref, peer in ((near, far), (far, near)):
        left = {each.data[14:]: each.time_ns for each in frames if each.port == ref and each.outgoing}
        came = {each.data[14:]: each.time_ns for each in frames if each.port == peer and not each.outgoing}
        assert len(left) > 20 and left.keys() == came.keys()
        took = sorted(came[key] - left[key] for key in left)
        assert took[0] > -5e6 and took[len(took) // 2] < 50e6, took  # the clocks differ by at most their bound


def paused_across_a_cut(lab: Lab) -> None:
    """An incast that a switch stops by pauses to its neighbour in the other shard: nothing is lost. Fabric: PAUSING."""
    before = lab.snapshot(LabPart.QUEUES).queues
    result, paths = ran(lab, collective="incast", placement="host3,host1,host2,host4", qps=1, iters=1, warmup=0)
    assert result.wrong == 0 and paths.agree and not paths.lost
    now, ids = lab.snapshot(LabPart.QUEUES).queues, port_ids(lab.fabric)
    found = {}
    for node, _, name in (each.port.partition(":") for each in tunnels(lab)):
        port = lab.fabric.by_name[node].port(name)
        peer, _, its = port.peer_ref.partition(":")
        here, there = row(ids[node, name], LOSSLESS), row(ids[peer, its], LOSSLESS)
        received = int(now.gates["pfc_received"][here] - before.gates["pfc_received"][here])
        sent = int(now.agent["pfc_sent"][there] - before.agent["pfc_sent"][there])
        found[f"{port.peer_ref} -> {port.ref}"] = sent, received
    assert any(received for _, received in found.values()), "a switch has paused its neighbour in the other shard"
    assert all(sent == received for sent, received in found.values()), found
    print("pauses sent and received over cuts:", found, file=sys.stderr)


def carrier_crosses_a_cut(lab: Lab) -> dict[str, float]:
    """A port that is set down or up is seen at the other end of its cut; seconds of both."""
    cut = {each.port for each in tunnels(lab)}
    port = next(port for node in lab.fabric.nodes for port in node.ports if port.ref in cut)
    took = {}
    for word, gone in (("down", True), ("up", False)):
        began = time.monotonic()
        set_links(lab, [port.peer_ref], word)
        until(lambda gone=gone: (port.name in down_of(lab, [port.node])[port.node]) == gone)  # type: ignore[misc]
        took[word] = time.monotonic() - began
    linkstate.wait(lab)
    return took


def routes_avoid_a_cut_that_is_down(lab: Lab) -> None:
    """Paths are proven while a cut link is down, and none uses it. Afterwards all is as before."""
    far = next(
        each.port for each in tunnels(lab) if lab.fabric.by_name[each.port.partition(":")[0]].role is Role.SWITCH
    )
    with outages.link_down(lab, far):
        _, paths = ran(lab)
        assert paths.agree and not any(far in step for each in paths.flows for step in each.measured)
    assert failed(lab, ["links", "routes", "bgp"]) == {}


def cut_port(lab: Lab, node: str) -> str:
    """A cut port of a node."""
    return next(each.port for each in tunnels(lab) if each.port.startswith(f"{node}:"))


def flapped(lab: Lab) -> None:
    """A cut link flaps, is known by both ends, and ends."""
    flapping = cut_port(lab, "rtsw2")
    node, _, name = flapping.partition(":")
    values = {"period": 4 * 10**8, "duty": 0.5}
    ((_, effect),) = orders.set_kind(lab, "flap", [flapping], values)
    assert f"the carrier of {flapping} has changed" in effect
    with pytest.raises(InputError, match=f"{flapping} has the fault flap"):  # a link has two ends
        orders.set_kind(lab, "flap", [lab.fabric.by_name[node].port(name).peer_ref], values)
    assert orders.clear(lab) == [f"{flapping}: flap every 400ms, down for 50% of it"]
    assert failed(lab) == {}


def faults_with_a_process(lab: Lab) -> None:
    """They show an effect, and end; a process that dies is noticed, and a storm ends by itself."""
    dying = cut_port(lab, "rtsw1")
    orders.set_kind(lab, "bit-errors", [dying], {"rate": 0.5, "ramp": 60 * 10**9})
    assert 0 < wanted_faults(lab)[dying].corrupt < 0.5 and fault_differences(lab, wanted_faults(lab)) == {}
    assert orders.lost_faults(lab) == []
    (errors,) = (each for each in record.read(lab.dir) if each.kind == "bit-errors")
    assert errors.worker is not None
    lab.output(dying.partition(":")[0], ["kill", "-9", str(errors.worker[0])])
    until(lambda: [each.where for each in orders.lost_faults(lab)] == [dying])
    orders.clear(lab, [dying])
    assert record.read(lab.dir) == () and fault_differences(lab, {}) == {}
    ((_, effect),) = orders.set_kind(lab, "pfc-storm", ["host4"], {"time": 4 * 10**8})
    assert "pause frame" in effect
    until(lambda: not orders.fault_rows(lab))


def crafted_and_probed(lab: Lab) -> None:
    """A packet by hand is answered over a cut; notes know the queues of shards; probes find the link with errors."""
    with LiveNotes(lab) as notes:
        found = craft(lab, "host1", "host4", wait=0.5)
        frame = Frame("rtsw2:eth4", 0, 0.0, True, 100, found.sent[0].frame)
        what = dissect(frame.data)
        notes.arrived(frame, what)
        said = notes.of(frame, what)
    assert (said.queue, said.paused, notes.troubles) == (0, False, [])
    assert found.proof is not None and found.proof.agree and len(found.proof.flows) == 2
    assert len(found.proof.flows[0].measured) == 3 and said.path == found.proof.flows[0].measured
    assert found.answers and found.responder is not None and found.responder.expected == 1
    assert found.sent[0].at_s == 0 <= found.arrived[0].at_s + 5e-3
    bad = cut_port(lab, "rtsw2")
    outages.set_fault(lab, [bad], LinkFault(corrupt=0.25))
    try:
        seen = judged(replace(Case.of(lab.fabric, None, lab), traffic=(probe_paths(lab, Silent()),), probed=True))
    finally:
        outages.clear_faults(lab)
    assert seen.verdict is not None and (seen.verdict.cause, seen.verdict.object) == ("bit-errors", bad)
    assert sum(each.lost for each in seen.case.probes) == 0 and sum(each.packets for each in seen.case.probes) > 1000


def shown_by_the_page(lab: Lab) -> None:
    """The page of a lab in shards follows all of them."""
    messages: list[tuple[str, str]] = []
    watch = LabWatch(lab.name, lambda kind, text: messages.append((kind, text)))
    watch.join()
    try:
        until(lambda: any(kind == "state" for kind, _ in messages))
        first = json.loads(next(text for kind, text in messages if kind == "state"))
        assert (first["trouble"], first["up"], first["totals"]["links_down"]) == ("", True, 0)
        assert first["totals"]["established"] == first["totals"]["expected"] == 4
        _, paths = ran(lab)
        assert paths.agree
        places = {port.ref: at for at, (_, port) in enumerate(numbered_ports(lab.fabric), 1)}  # ids have gaps
        used = {places[step] for each in paths.flows for step in each.measured}
        assert len(used) > 4

        def seen() -> bool:
            rows = json.loads(watch.hello())["rows"]
            return all(rows[number][2] > 0 for number in used)  # the longest queue

        until(seen)
    finally:
        watch.leave()
        watch.close()


@pytest.mark.deep
@pytest.mark.parametrize("shards", [2, pytest.param(3, marks=pytest.mark.long)])
def test_zone_over_shards_takes_the_paths_that_it_takes_on_one_machine(
    cluster: localshards.LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    fabric = load_fabric("zone", name=name, overrides=["link.host=40mbit", "link.fabric=40mbit"])
    found = []
    for runtime in ("netns", localshards.NAME):
        monkeypatch.setattr(localshards.LocalShards, "shards_wanted", shards)
        where = lifecycle.up(fabric, runtime=runtime).lab
        before = {each.port: each for each in tunnels(where)}
        result, paths = ran(where, sizes=(1 << 17,), iters=1)
        assert result.wrong == 0 and paths.agree and not paths.lost
        crossed = [each.sent - before[each.port].sent for each in tunnels(where)]
        assert all(each.lost == before[each.port].lost for each in tunnels(where)), "the tunnel is a wire"
        assert (sum(crossed) > 1000) == (runtime != "netns")
        found.append(taken(paths))
        lifecycle.down(name)
    assert found[0] == found[1]


def test_every_check_passes_over_shards(lab: Lab) -> None:
    assert failed(lab) == {}


@pytest.mark.deep
def test_static_routes_of_shards_are_those_of_one_machine(
    cluster: localshards.LocalCluster, borrow: Borrow, name: str
) -> None:
    one = borrow("tiny", STATIC)
    shards = lifecycle.up(load_fabric("tiny", name=name, overrides=[STATIC]), runtime=localshards.NAME).lab
    assert not differences(one, shards) and failed(shards) == {}
    _, paths = ran(shards)
    assert paths.agree and not paths.lost
    with ExitStack() as outages_of:
        for outage, where in ((outages.link_down, cut_port(shards, "rtsw2")), (outages.drain, "ctsw1")):
            for lab in (one, shards):
                outages_of.enter_context(outage(lab, where))
            assert not differences(one, shards), where
    prefix = shards.fabric.prefixes[1]
    shards.output("rtsw1", ["ip", "route", "replace", str(prefix), *OTHER_ROUTE.split()])
    assert differences(one, shards) == [f"rtsw1 {prefix}"]
    done = lifecycle.repair_lab(name).repaired
    assert done is not None and done.done == ("rtsw1: routes installed again",) and not differences(one, shards)


@pytest.mark.deep
def test_a_pause_crosses_a_cut_and_no_packet_is_lost(cluster: localshards.LocalCluster, name: str) -> None:
    where = lifecycle.up(load_fabric("tiny", name=name, overrides=PAUSING), runtime=localshards.NAME).lab
    paused_across_a_cut(where)


@pytest.mark.deep
def test_hashing_and_thresholds_change_in_all_shards(lab: Lab) -> None:
    rehash.set_hashing(lab, "e-ecmp")
    assert {each.mode for each in lab.snapshot(LabPart.HASHING).hashing.values()} == {"e-ecmp"}
    thresholds.set_queues(lab, ["ecn.kmin=20KB"])
    assert failed(lab, ["thresholds", "hashing"]) == {}
    _, paths = ran(lab)
    assert paths.agree
    assert thresholds.restore_queues(lab)
    rehash.set_hashing(lab, "flow")


@pytest.mark.deep
def test_routes_of_all_shards_avoid_a_link_that_is_down(lab: Lab) -> None:
    routes_avoid_a_cut_that_is_down(lab)


def test_a_port_that_is_set_down_has_no_carrier_at_the_other_end_of_its_cut(lab: Lab) -> None:
    took = carrier_crosses_a_cut(lab)
    assert took["down"] < 2, took  # `./inv bench kubernetes` has the figure
    trips = round_trips(lab)
    assert len(trips) == 2 and all(each.alive and 0 < each.rtt_ns < 10**9 for each in trips)


@pytest.mark.deep
def test_a_process_of_carriers_that_has_ended_is_named_and_started_again(
    cluster: localshards.LocalCluster, lab: Lab
) -> None:
    words = ["sh", "-c", f"kill -9 $(cat {RUN_DIR / lab.name}/carrier.json.lock)"]
    machine.run(cluster.argv(lab.name, "s1", words))
    found = [("shard s1", "does not run: ports at the other ends lose their carrier")]
    until(lambda: [(each.where, each.why) for each in lost_carriers(lab)] == found)
    done = lifecycle.repair_lab(lab.name).repaired
    assert done is not None and done.done[0] == "shard s1: the process that carries the state of ports started again"
    assert lost_carriers(lab) == []


def test_commands_run_in_nodes_of_any_shard(lab: Lab) -> None:
    for node in lab.fabric.nodes:
        assert lab.output(node.name, ["hostname"]).strip() == node.name
    with pytest.raises(MachineError, match=r"rtsw2: false failed with exit code 1"):
        lab.output("rtsw2", ["false"])


def test_the_answer_of_an_interrupted_call_is_not_taken_for_that_of_the_next(
    cluster: localshards.LocalCluster, lab: Lab
) -> None:
    agent = AgentCall("s1", partial(cluster.open, lab.name, "s1", [*cluster.python, AGENT]), lambda: None)
    try:
        assert agent._process.stdin is not None
        request = {
            "call": "heddle.shards.building:missing",
            "args": [lab.name],
            "kwargs": {},
            "number": 0,
        }
        agent._process.stdin.write(json.dumps(request).encode() + b"\n")  # its caller has gone
        assert isinstance(agent.call({"call": CLOCK, "args": [], "kwargs": {}}), int)
    finally:
        agent.close()


def test_a_capture_at_both_ends_of_a_cut_sees_the_same_packets_on_one_clock(lab: Lab) -> None:
    captured_at_both_ends(lab)


def test_a_capture_in_a_shard_leaves_no_process_and_names_a_port_that_is_not_there(lab: Lab) -> None:
    with pytest.raises(InputError, match="rtsw2:eth9"):
        find_ports(lab, "rtsw2:eth9")
    with pytest.raises(InputError, match="rtsw9"):
        find_ports(lab, "rtsw9:eth1")
    began = _tcpdumps()
    done = capture(find_ports(lab, "rtsw1,rtsw2"), "", Bounds(None, 0.5), lambda _: None)
    assert done.ended == "time" and set(done.dropped.values()) == {0}
    until(lambda: _tcpdumps() == began)


def _tcpdumps() -> int:
    return sum(Path(each[0]).name == "tcpdump" for each in commands().values() if each)


@pytest.mark.deep
def test_the_page_of_a_lab_in_shards_follows_all_of_them(lab: Lab) -> None:
    shown_by_the_page(lab)


def test_queues_are_watched_over_shards(lab: Lab) -> None:
    _, paths = ran(lab)
    rows = {each.port for each in QueueWatch(lab, None).read().rows if each.packets}
    assert rows >= {step for each in paths.flows for step in each.measured}


def test_a_run_that_does_not_fit_into_the_memory_of_shards_names_them(lab: Lab) -> None:
    with pytest.raises(MachineError) as caught:
        ran(lab, sizes=tuple((1 << 28) - 4096 * each for each in range(capacity.free_bytes() // (1 << 28) + 1)))
    assert [each.where for each in caught.value.problems] == ["shard s1", "shard s2"]
    assert "for the arrays of its ranks" in caught.value.problems[0].why


@pytest.mark.long
def test_faults_with_a_process_are_kept_going_in_the_shard_of_their_port(lab: Lab) -> None:
    faults_with_a_process(lab)


@pytest.mark.long
def test_a_cut_link_flaps(lab: Lab) -> None:
    flapped(lab)


@pytest.mark.deep
def test_packets_by_hand_and_probes_cross_cuts(lab: Lab) -> None:
    crafted_and_probed(lab)


@pytest.mark.long
def test_a_link_that_goes_down_in_a_run_is_followed_by_the_routes_of_all_shards(lab: Lab) -> None:
    rounds = list[str]()
    worker = threading.Thread(target=lambda: rounds.append(next(controller.rounds(lab, 3600, "test")).reason))
    worker.start()
    result, _ = ran(lab, faults=(f"{cut_port(lab, 'rtsw2')},down,from=0.02s",), sizes=(1 << 19,))
    worker.join(patience(10))
    assert rounds == ["a link or a route changed"]
    # The link goes down under traffic: packets that come before the routes follow are lost, and sent again.
    assert result.wrong == 0
    assert ran(lab)[1].lost == {}, "none is when the routes are as before"
    assert [each.settled_s is not None for each in result[FaultEffects].faults] == [True]
    assert failed(lab, ["links", "routes", "bgp"]) == {}


@pytest.mark.long
def test_what_is_done_beside_a_run_works_or_says_that_a_run_is_at_work(lab: Lab) -> None:
    found = list[PathsResult]()

    def work() -> None:
        found.append(ran(lab, sizes=(1 << 20,), iters=100)[1])

    worker = threading.Thread(target=work)
    worker.start()
    try:
        until(lambda: owners.working_on(lab.name))
        for other in (
            lambda: ran(lab), lambda: lifecycle.down(lab.name), lambda: lifecycle.repair_lab(lab.name),
        ):  # fmt: skip
            with pytest.raises(InputError, match=r"its run \(.*\) goes on"):
                other()
        (seen,) = status(lab.name)
        assert seen.state == "up" and seen.converged
        assert QueueWatch(lab, None).read().rows and worker.is_alive()
    finally:
        worker.join()
    assert len(found) == 1 and found[0].agree and not found[0].lost


def test_what_needs_one_machine_says_so(lab: Lab) -> None:
    with pytest.raises(InputError, match=r"is in shards \(localshards\), and soft-RoCE is made on this machine"):
        ran(lab, transport="rxe")
    with pytest.raises(InputError, match=r"is in shards \(localshards\), and launch runs programs of this machine"):
        run_program(lab, ProgramOptions(2), ["true"], Silent(), lambda *_: None)


@pytest.mark.long
def test_a_lost_shard_is_named_and_down_leaves_nothing(cluster: localshards.LocalCluster, name: str) -> None:
    where = lifecycle.up(load_fabric("tiny", name=name), runtime=localshards.NAME).lab
    assert len(cut_counts(where)) == 4
    edge = where.fabric.by_name["rtsw1"]
    (near,) = {each.port for each in tunnels(where)} & {port.ref for port in edge.ports}
    cluster.kill(name, "s2")
    until(lambda: near.partition(":")[2] in down_of(where, ["rtsw1"])["rtsw1"])  # neighbours notice by themselves
    (lost,) = where.missing_nodes()
    assert (lost.where, lost.why) == ("shard s2", "has ended")
    with pytest.raises(MachineError, match="shard s2"):
        where.snapshot(LabPart.FIBS)
    again = lifecycle.repair_lab(name)
    assert again.repaired is not None and again.repaired.done[0].startswith("shard s2: started again (")
    _, paths = ran(where)
    assert paths.agree and failed(where) == {}
    for shard in ("s1", "s2"):
        cluster.kill(name, shard)
    assert (status(name)[0].state, len(status(name)[0].faults) > 0) == ("broken", True)
    (state.lab_dir(name) / "lab.json").write_text("{")  # then its plan says where it is
    assert lifecycle.down(name)
    until(lambda: not cluster.exists(name))
    assert not state.lab_dir(name).exists()
    assert not [*Path("/run/netns").glob(f"heddle-{name}*")]


@pytest.mark.skipif(bool(portfaults.missing()), reason=portfaults.missing())
def test_a_cut_link_delays_each_direction_as_a_whole_link_does(lab: Lab) -> None:
    one_way_ns = 5_000
    outages.set_fault(lab, [each.port for each in tunnels(lab)], LinkFault(delay_ns=one_way_ns))
    try:
        found = craft(lab, "host1", "host4")
        assert failed(lab) == {}
    finally:
        outages.clear_faults(lab)
    took_s = found.answers[0].at_s - found.sent[0].at_s
    wanted_s = 2 * one_way_ns * lab.fabric.policy.k / 1e9  # a path crosses one cut in each direction
    assert wanted_s <= took_s < wanted_s + patience(0.1)
    assert craft(lab, "host1", "host4").answers[0].at_s < wanted_s


def test_a_fabric_that_cannot_be_cut_leaves_nothing(
    cluster: localshards.LocalCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localshards.LocalShards, "shards_wanted", 3)
    fabric: LoadedFabric = load_fabric("tiny", name=name)
    with pytest.raises(InputError, match="--shards 3"):
        lifecycle.up(fabric, runtime=localshards.NAME)
    assert not state.lab_dir(name).exists()
