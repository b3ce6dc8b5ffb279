"""A diagnosis judges what an operator sees: states and counters in, a cause with its object out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from heddle.base.problems import Problem
from heddle.base.sysctls import HASH_SEED
from heddle.checks.validate import CHECKS, CheckResult
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric, Role
from heddle.fabric.shapes import build
from heddle.kernel.fib import Fib, NextHop
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.lab.fact import Fact
from heddle.lab.facts import FACTS, NEXT_HOPS
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.proof.evidence import Evidence
from heddle.runs.parts.slowest import Slowest, SlowQp, SlowRank
from heddle.runs.series import COLUMNS, Recorded, RowLabel, Series
from heddle.runs.stations import PortWait
from heddle.runs.stored import Stored, StoredRun
from heddle.spec.routingpolicy import RoutingPolicy
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.switch.hashing.hashing import hashing_of
from heddle.switch.queues.cells import Tally
from heddle.switch.queues.portqueues import PortQueue
from heddle.traffic.flow import Sent
from heddle.traffic.plan import build_plan
from heddle_plugins.engineering.diagnosis import diagnosis
from heddle_plugins.engineering.diagnosis.case import OF_PROBES, OF_RUN, Case, Finding, FlowSeen, LiveState, TrafficSeen
from heddle_plugins.engineering.diagnosis.diagnosis import CAUSES, Diagnosis, _placed, judged
from heddle_plugins.engineering.diagnosis.symptoms import damaged_at, drain_rates
from heddle_plugins.engineering.runsection import diagnosis_text
from tests.unit import run_samples as samples
from tests.unit import test_paths_report as made
from tests.unit.kept_runs import keep, series
from tests.unit.run_samples import FABRIC

ALL = LabPart(0)
for each in LabPart:
    ALL |= each


def switch(name: str, fabric: Fabric = FABRIC, **found: object) -> NodeSnapshot:
    """A switch as configured, except for what is given."""
    node = fabric.by_name[name]
    routes = {
        prefix: tuple(NextHop(port, 1, "", 1, False) for port in sorted(ports))
        for prefix, ports in fabric.expected_next_hops[name].items()
    }
    usual = NodeSnapshot(
        name, Role.SWITCH, fib=Fib(name, routes), hashing=hashing_of(fabric, node), down={}, sessions={},
        drained=False, silent=(), carrier_changes=dict.fromkeys((port.name for port in node.ports), 0), shapers={},
    )  # fmt: skip
    return replace(usual, **found)  # type: ignore[arg-type]


def diagnosed(
    *changed: NodeSnapshot, traffic: tuple[TrafficSeen, ...] = (), stopped: tuple[str, ...] = (),
    settings: Mapping[str, Mapping[str, int]] | None = None, facts: tuple[Fact, ...] = (),
    failing: Mapping[str, str] | None = None, run: StoredRun | None = None, skipped: tuple[str, ...] = (),
) -> Diagnosis:  # fmt: skip
    """failing: check -> its detail; the others pass. skipped: those that do not apply to the lab."""
    checks = (
        CheckResult(name, name not in (failing or {}), (failing or {}).get(name, f"9 {name} read"), name in skipped)
        for name in CHECKS
    )
    nodes = {node.name: switch(node.name) for node in FABRIC.switches} | {each.node: each for each in changed}
    now = Snapshot("tiny", ALL, nodes, 0)
    live = LiveState(now, stopped, settings or {}, facts)
    return judged(Case(FABRIC, run, None, live, traffic, probed=bool(traffic), checks=tuple(checks)))


def named(found: Diagnosis) -> tuple[str, str, str]:
    assert found.verdict is not None
    return found.verdict.cause, found.verdict.object, found.verdict.confidence


def test_a_fabric_as_configured_has_no_cause_and_everything_is_ruled_out() -> None:
    found = diagnosed(traffic=(TrafficSeen(OF_PROBES, {"rtsw1:eth1": {3: Tally(100)}}),))
    assert found.verdict is None
    assert found.to_json()["is_anomaly"] is False
    assert found.to_json()["root_causes"] == []
    assert {"link-down", "bgp-session-down", "misrouting", "wrong-seed", "link-lossy"} <= set(found.ruled_out)
    assert {*found.ruled_out, *found.not_checked} == set(CAUSES)
    assert diagnosis_text(found).startswith("No cause is established: no fault was found.\n")


def fact(kind: str, where: str, why: str = "is wrong") -> Fact:
    return Fact(kind, Problem(where, "the thing", why))


def test_a_link_without_a_carrier_is_named_with_both_ends() -> None:
    found = diagnosed(
        switch("rtsw1", down={"eth1": True}), switch("ctsw1", down={"eth1": False}), facts=(fact("link", "rtsw1:eth1"),)
    )
    assert named(found) == ("link-down", "rtsw1:eth1", "established")
    assert [each.cause for each in found.findings] == ["link-down"]
    (cause,) = found.to_json()["root_causes"]
    assert cause == {"resource": {"kind": "link", "name": "ctsw1:eth1--rtsw1:eth1"}, "fault_type": "link_down"}


def test_a_switch_without_any_carrier_is_down_and_its_links_are_not_listed() -> None:
    ports = {port.name: True for port in FABRIC.by_name["ctsw2"].ports}
    peers = [switch(port.peer_node, down={port.peer_port: False}) for port in FABRIC.by_name["ctsw2"].ports]
    of_links = [fact("link", port.ref) for port in FABRIC.by_name["ctsw2"].ports]
    facts = (fact("daemons", "ctsw2"), *of_links)
    found = diagnosed(switch("ctsw2", down=ports, silent=("zebra", "bgpd"), sessions=None), *peers, facts=facts)
    assert named(found) == ("node-down", "ctsw2", "established")
    assert len(found.findings) == 1


def test_a_node_that_does_not_run_is_down() -> None:
    assert named(diagnosed(stopped=("host4",))) == ("node-down", "host4", "established")


@pytest.mark.parametrize("kind", FACTS)
def test_a_fact_that_no_function_reports_is_a_finding(kind: str) -> None:
    """Also of a run that is over: its record has what it read before and after."""
    found = diagnosed(facts=(fact(kind, "rtsw2:eth1"),))
    assert named(found) == (FACTS[kind].causes[0], "rtsw2:eth1", "established")
    assert found.fault and found.case.facts
    assert FACTS[kind].causes[0] not in found.ruled_out


def test_of_two_facts_the_one_that_explains_the_other_is_the_verdict() -> None:
    kinds = [*FACTS]
    for first, second in itertools.pairwise(kinds):
        found = diagnosed(facts=(fact(second, "rtsw1"), fact(first, "rtsw1:eth1")))
        assert named(found)[:2] == (FACTS[first].causes[0], "rtsw1:eth1"), (first, second)
        assert {each.fact for each in found.findings} == {first, second}


def test_a_new_fact_needs_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"mtu": FACTS["mtu"], "gate": replace(FACTS["mtu"], causes=("wrong-gate",)), "mac": FACTS["mac"]}
    monkeypatch.setattr(diagnosis, "FACTS", more)
    causes = dict(diagnosis._ordered())
    assert [name for name in causes if name.startswith("wrong-")][:3] == ["wrong-mtu", "wrong-gate", "wrong-neighbour"]
    assert (causes["wrong-gate"].words, causes["wrong-gate"].judge) == ("wrong gate", None)
    assert causes.keys() - {"wrong-gate"} <= CAUSES.keys()


def with_facts(place: Path, *before: Fact) -> StoredRun:
    """A run that has read these facts before its first packet, and none after it."""
    record = samples.record()
    state = FabricState(FabricReading(facts=before), FabricReading())
    return keep(place, record=replace(record, fabric_state=state))


def test_what_was_repaired_since_the_run_comes_after_what_is_wrong_now_and_says_so(tmp_path: Path) -> None:
    session, mtu = fact("session", "rtsw1:eth1", "is not established"), fact("mtu", "rtsw1:eth1")
    old = with_facts(tmp_path, session, fact("neighbour", "rtsw1:eth2"))
    found = diagnosed(run=old, facts=(fact("neighbour", "rtsw1:eth2", "is wrong otherwise"), mtu))
    assert [(each.cause, each.over) for each in found.findings][:3] == [
        ("wrong-mtu", False), ("wrong-neighbour", False), ("bgp-session-down", True),
    ]  # fmt: skip
    assert found.findings[2].what == "rtsw1:eth1 the thing is not established (state before the run), and is not so now"
    assert [line.source for line in found.findings[1].evidence] == ["state now", "state before the run"]
    assert named(judged(Case(FABRIC, old, None, None, ())))[0] == "wrong-neighbour"


def test_what_a_check_fails_on_is_named_also_beside_an_established_fault() -> None:
    lost = "host1:eth1 to host2:eth1: no 4200-byte packet arrives; and 5 more"
    found = diagnosed(facts=(fact("mtu", "ctsw2:eth2"),), failing={"reachability": lost, "mtu": "ctsw2:eth2 the MTU"})
    assert [(each.cause, each.object) for each in found.findings] == [
        ("wrong-mtu", "ctsw2:eth2"), ("failed-check", "host1:eth1"),
    ]  # fmt: skip
    text = diagnosis_text(found)
    said = "the check reachability fails: host1:eth1 to host2:eth1: no 4200-byte packet arrives (likely)"
    assert f"also       : {said}" in text
    assert [each["fault_type"] for each in found.to_json()["root_causes"]] == ["link_mtu_mismatch"]
    alone = diagnosed(failing={"reachability": lost})
    assert named(alone) == ("failed-check", "host1:eth1", "likely")
    assert [each["fault_type"] for each in alone.to_json()["root_causes"]] == ["failed_check"]
    for name in CHECKS:
        assert f"the check {name} fails" in diagnosis_text(diagnosed(failing={name: "why"})), name


@pytest.mark.parametrize("kind", FACTS)
def test_a_cause_is_ruled_out_by_what_its_check_has_read_and_only_if_it_passes(kind: str) -> None:
    cause, check = FACTS[kind].causes[0], FACTS[kind].check
    if CAUSES[cause].judge is None:
        assert f"9 {check} read" in diagnosed().ruled_out[cause]
        assert diagnosed(failing={check: "why"}).not_checked[cause] == f"the check {check} fails"
        assert diagnosed(skipped=(check,)).not_checked[cause] == f"9 {check} read"


def test_a_link_without_a_carrier_or_port_is_not_among_those_that_have_one() -> None:
    assert diagnosed().ruled_out["link-down"] == f"{len(FABRIC.links)} links have a carrier"
    down = switch("rtsw1", down={"eth1": True})
    removed = switch("rtsw1", carrier_changes={"eth2": 0, "eth3": 0, "eth4": 0})
    for node in (down, removed):  # an imported topology does not say that it should be up, so no fact does
        found = diagnosed(node)
        assert "link-down" not in found.ruled_out
        assert found.not_checked["link-down"] == "ctsw1:eth1 had no carrier at one reading"


def test_a_fact_at_the_other_end_of_a_slow_link_is_a_finding_of_its_own() -> None:
    def shaped(*refs: str) -> list[NodeSnapshot]:
        rows: dict[str, dict[str, PortQueue]] = {}
        for node, _, port in (ref.partition(":") for ref in refs):
            rows.setdefault(node, {})[port] = PortQueue(port, 2_500_000, 2_500_000, 0, {})
        return [switch(name, shapers=ports) for name, ports in rows.items()]

    facts = (
        fact("port", "ctsw1:eth1", "is not Heddle's, but pfifo"),
        fact("port", "rtsw1:eth1", "is shaped to 20mbit"),
    )
    found = diagnosed(*shaped("rtsw1:eth1"), facts=facts)
    assert {(each.cause, each.object) for each in found.findings} == {
        ("slow-link", "rtsw1:eth1"), ("wrong-queues", "ctsw1:eth1"),
    }  # fmt: skip
    both = diagnosed(*shaped("rtsw1:eth1", "ctsw1:eth1"), facts=facts)
    (only,) = both.findings
    assert only.cause == "slow-link"
    assert {each.text for each in only.evidence} > {each.text.replace("  ", " ") for each in facts}


def test_the_first_of_each_kind_is_shown_before_more_of_one() -> None:
    learned = [fact("path-mtu", f"host{at}") for at in range(1, 5)]
    others = [
        fact("neighbour", "rtsw1:eth3"),
        fact("port", "rtsw2:eth1"),
        fact("sysctl", "ctsw1"),
        fact("mtu", "rtsw1:eth1"),
    ]
    more = [fact("hashing", "ctsw1"), fact("drained", "ctsw2")]
    text = diagnosis_text(diagnosed(facts=(*learned, *others, *more)))
    for each in (*others, *more, learned[0]):
        assert f"{each.problem.where} the thing is wrong (established)" in text
    assert "and 3 more, in --format json" in text


def seeded(seeds: Literal["per-tier", "shared"], **wrong: int) -> Diagnosis:
    """A fabric of three levels whose fabric file has these seeds; switches with wrong ones, and the facts of these."""
    fabric = build(
        ClosSpec(name="dc", zones=2, racks=4, hosts_per_rack=4, ctsw=4, atsw=4, routing=RoutingPolicy(seed=seeds))
    )
    nodes = {node.name: switch(node.name, fabric) for node in fabric.switches}
    for name, seed in wrong.items():
        hashing = nodes[name].hashing
        assert hashing is not None
        nodes[name] = replace(nodes[name], hashing=replace(hashing, seed=seed))
    facts = [fact("hashing", name) for name in wrong]
    facts += [Fact("sysctl", Problem(name, HASH_SEED, "is another")) for name in wrong]
    live = LiveState(Snapshot("dc", ALL, nodes, 0), (), {}, tuple(facts))
    return judged(Case(fabric, None, None, live, ()))


def test_one_seed_of_most_switches_is_polarisation_and_one_of_few_is_a_wrong_seed() -> None:
    right = seeded("per-tier")
    assert right.verdict is None
    fabric = right.case.fabric
    every = [node.name for node in fabric.switches]
    found = seeded("per-tier", **dict.fromkeys(every, 7))
    assert found.verdict is not None and found.verdict.cause == "polarisation"
    assert {*found.verdict.also} == {name for name in every if not name.startswith("rtsw")}
    assert {each.text.partition(" ")[0] for each in found.verdict.evidence if each.source == "state now"} == {*every}
    assert {each.cause for each in found.findings} == {"polarisation"}
    # One with the seed of those before it: the seed is the cause, and polarisation its effect.
    edge = fabric.by_name["rtsw1"].hash_seed
    assert edge is not None
    found = seeded("per-tier", ctsw2=edge)
    assert named(found) == ("wrong-seed", "ctsw2", "established")
    said = "ctsw2 has the seed of rtsw1, rtsw2, rtsw3, rtsw4 and 4 more, and ctsw2 is polarised by it (established)."
    assert said in diagnosis_text(found)
    assert found.verdict is not None and "ctsw2 uses 1 of its 4 next hops" in found.verdict.evidence[-1].text
    found = seeded("per-tier", ctsw2=9)
    assert named(found) == ("wrong-seed", "ctsw2", "established") and "polarised" not in diagnosis_text(found)
    # The fabric file has one seed for all: that another switch has a wrong one is true, too.
    found = seeded("shared", ctsw2=9)
    assert [each.cause for each in found.findings] == ["wrong-seed", "wrong-sysctl", "polarisation"]
    assert "polarised" not in found.findings[0].what


def test_a_missing_next_hop_leaves_misrouting_open() -> None:
    facts = (fact(NEXT_HOPS, "rtsw1", "has no next hop eth2"),)
    found = diagnosed(facts=facts, failing={FACTS[NEXT_HOPS].check: facts[0].text})
    assert named(found) == ("missing-next-hop", "rtsw1", "established")
    assert found.not_checked["misrouting"] == "the check routes fails"


def test_facts_of_one_place_and_cause_are_lines_of_one_finding() -> None:
    found = diagnosed(facts=tuple(fact("daemons", "rtsw1", why) for why in ("a", "b")))
    (only,) = found.findings
    assert [each.text for each in only.evidence] == ["rtsw1 the thing a", "rtsw1 the thing b"]


def test_a_link_that_came_back_was_down_once_and_flaps_when_it_was_lost_twice() -> None:
    def seen(changes: int) -> Diagnosis:
        nodes = {node.name: switch(node.name) for node in FABRIC.switches}
        after = {**nodes, "rtsw1": switch("rtsw1", carrier_changes={"eth1": changes})}
        then = {**nodes, "rtsw1": switch("rtsw1", carrier_changes={"eth1": 0})}
        evidence = Evidence(Snapshot("tiny", ALL, then, 0), Snapshot("tiny", ALL, after, 0), (), ())
        return judged(Case(FABRIC, None, evidence, None, (), watched=False))

    assert named(seen(2)) == ("link-down", "rtsw1:eth1", "established")
    assert named(seen(3)) == ("link-flap", "rtsw1:eth1", "established")


def test_a_fault_in_a_network_that_the_run_did_not_use_names_that_network() -> None:
    fabric = load_fabric("frontend").fabric
    (flow, *_) = build_plan(fabric, run_options(qps=1, placement="host1,host3")).flows()
    none = Snapshot("frontend", ALL, {}, 0)
    case = Case(fabric, None, Evidence(none, none, (Sent(flow, 1, 1),), ()), None, (), watched=False)
    for place, more in {"rsw1:eth1": True, "fsw2": True, "storage1": True, "rtsw1:eth1": False, "host1": False}.items():
        what = _placed(case, Finding("link-down", place, "down", "established", ())).what
        assert what == "down" + "; it is in frontend, where the run sent nothing" * more


def test_full_packets_that_a_link_loses_alone_are_a_wrong_mtu() -> None:
    ways = [("rtsw1:eth1", "ctsw1:eth2"), ("rtsw1:eth2", "ctsw2:eth2")]
    flows = [
        FlowSeen(
            f"{at}",
            (f"host{at}:eth1", *ways[at % 2], "rtsw2:eth3"),
            64,
            0,
            4 * (at % 2 == 0),
            None,
            4,
            4 * (at % 2 == 0),
        )
        for at in range(4)
    ]
    flows.append(FlowSeen("x", ("host3:eth1", "rtsw2:eth1", "ctsw1:eth1", "rtsw1:eth3"), 64, 0, 0, None, 4, 0))
    found = diagnosed(traffic=(TrafficSeen(OF_PROBES, {}, tuple(flows)),))
    assert found.verdict is not None
    assert (found.verdict.cause, {found.verdict.object, *found.verdict.also}) == ("wrong-mtu", {*ways[0]})
    small = [replace(each, lost=each.lost + (each.full_lost > 0)) for each in flows]
    assert diagnosed(traffic=(TrafficSeen(OF_PROBES, {}, tuple(small)),)).verdict is None


def test_a_port_whose_packets_do_not_arrive_loses_them_and_thresholds_come_after_it() -> None:
    traffic = TrafficSeen(OF_PROBES, {"rtsw1:eth1": {3: Tally(offered=400, lost=5)}, "rtsw1:eth2": {3: Tally(400)}})
    found = diagnosed(traffic=(traffic,), settings={"ctsw1": {"ecn.kmin": 9}})
    assert named(found) == ("link-lossy", "rtsw1:eth1", "established")
    assert [each.cause for each in found.findings] == ["link-lossy", "wrong-threshold"]
    text = diagnosis_text(found)
    assert text.startswith("rtsw1:eth1 loses packets on its link (established).\n")
    assert "5 of 400 packets that rtsw1:eth1 sent did not reach ctsw1:eth1 (1.25%) (probes)" in text


def test_probes_of_dead_paths_count_as_lost_and_name_the_node_that_all_of_them_have() -> None:
    ways = [("rtsw1:eth1", "ctsw1:eth2"), ("rtsw1:eth2", "ctsw2:eth2")]
    flows = [
        FlowSeen(host, (f"{host}:eth1", *way, "rtsw2:eth3"), 256 - lost, 0, lost, None if lost else 1e-3)
        for host in ("host1", "host2")
        for way, lost in zip(ways, (0, 256), strict=True)
    ]
    beside = FlowSeen("beside", ("host2:eth1", "rtsw1:eth3"), 256, 0, 0, 1e-3)
    found = diagnosed(traffic=(TrafficSeen(OF_PROBES, {}, (*flows, beside)),))
    assert named(found) == ("black-hole", "ctsw2", "established")
    assert "512 of 1,280 lost over 5 paths, all of them over 2 paths (host1:eth1 to rtsw2:eth3" in diagnosis_text(found)
    lossy = TrafficSeen(OF_PROBES, {"rtsw1:eth2": {3: Tally(offered=512, lost=512)}}, (*flows, beside))
    assert {each.cause for each in diagnosed(traffic=(lossy,)).findings} == {"link-lossy"}
    some = tuple(replace(each, packets=250, lost=6) for each in flows)
    text = diagnosis_text(diagnosed(traffic=(TrafficSeen(OF_PROBES, {}, some),)))
    assert text.startswith("No cause is established: no fault was found, and 24 probes were lost.\n")


def test_paths_of_a_run_that_are_not_proven_are_a_fault_of_the_switch_that_did_not_forward(tmp_path: Path) -> None:
    def of_counts(*counts: int, lost: int = 0) -> Diagnosis:
        run = keep(tmp_path / f"{counts}{lost}")
        proof = made.judge(made.SENT, made.evidence(made.SENT, counts))
        run.__dict__["proof"] = Stored(proof)
        traffic = TrafficSeen(OF_RUN, {"host1:eth1": {3: Tally(offered=10, lost=lost)}})
        return judged(Case(FABRIC, run, None, None, (traffic,)))

    found = of_counts(8, 8, 8)
    assert named(found) == ("unproven-paths", "rtsw1", "established")
    assert found.fault and "rtsw1 did not forward 2 packets that it received" in diagnosis_text(found)
    assert "10 packets were sent, the first hop counted 8 (proof of the run)" in diagnosis_text(found)
    assert "did not forward" not in diagnosis_text(of_counts(8, 8, 8, lost=2))
    assert named(of_counts(10, 10, 8))[:2] == ("unproven-paths", FABRIC.name)
    # Lost or damaged packets explain it: also a likely cause of them is the verdict.
    damaged = FlowSeen("QP 0", ("host1:eth1", "rtsw1:eth1"), 100, 3)
    both = judged(replace(found.case, traffic=(TrafficSeen(OF_RUN, {}, (damaged,)),)))
    assert [(each.cause, each.confidence) for each in both.findings] == [
        ("bit-errors", "likely"),
        ("unproven-paths", "established"),
    ]
    assert [each["fault_type"] for each in both.to_json()["root_causes"]] == ["link_packet_corruption"]
    assert of_counts(10, 10, 10).ruled_out["unproven-paths"] == "prediction, kernel lookup and counters agree on 1 QPs"


def test_packets_that_this_machine_dropped_are_no_loss_of_a_link() -> None:
    tallies = {"rtsw1:eth1": {3: Tally(offered=400, lost=5)}}
    machine = diagnosed(traffic=(TrafficSeen(OF_PROBES, tallies, (), 5),))
    assert machine.verdict is None
    assert "backlog" in machine.not_checked["link-lossy"]
    assert named(diagnosed(traffic=(TrafficSeen(OF_PROBES, tallies, (), 2),))) == ("link-lossy", "rtsw1:eth1", "likely")


def test_the_link_that_damages_packets_follows_from_the_paths() -> None:
    ways = [("rtsw1:eth1", "ctsw1:eth2"), ("rtsw1:eth2", "ctsw2:eth2")]
    flows = [
        FlowSeen(f"{host} {turn}", (f"{host}:eth1", *way, "rtsw2:eth3"), 400, 6 if way == ways[1] else 0)
        for turn, way in enumerate(ways)
        for host in ("host1", "host2")
    ]
    other = FlowSeen("host3", ("host3:eth1", "rtsw2:eth2", "ctsw2:eth1", "rtsw1:eth3"), 400, 0)
    (place,) = damaged_at([*flows, other])
    assert (place.port, place.damaged, place.packets) == ("rtsw1:eth2", 12, 800)
    assert place.ties == ("ctsw2:eth2",), "the same packets passed both"
    more = FlowSeen("host4", ("host4:eth1", "rtsw2:eth2", "ctsw2:eth2", "rtsw2:eth3"), 400, 0)
    (place,) = damaged_at([*flows, other, more])
    assert place.port == "rtsw1:eth2"
    assert place.ties == ()
    found = diagnosed(traffic=(TrafficSeen(OF_PROBES, {}, (*flows, other, more)),))
    assert named(found) == ("bit-errors", "rtsw1:eth2", "established")


WAIT = PortWait("rtsw1:eth3", 0.004, 90_000, 0.0, 3)
QP = SlowQp(2, "host3:eth1", 0, "host1:eth1", (17,), 0.8)


def of_run(place: Path, slowest: Slowest, *flows: FlowSeen, counted: Evidence | None = None) -> Diagnosis:
    """A stored run with a slow QP or rank, without its lab."""
    record = samples.record()
    run = keep(place, record=samples.having(record, slowest=slowest))
    return judged(Case(FABRIC, run, counted, None, (TrafficSeen(OF_RUN, {}, flows),)))


def test_several_senders_at_the_port_of_a_receiver_are_an_incast_and_no_fault(tmp_path: Path) -> None:
    flows = [FlowSeen(host, (f"{host}:eth1", "rtsw1:eth3"), 50, 0) for host in ("host2", "host3", "host4")]
    slowest = Slowest((), (QP,), 1, 3, False, 0.2, (WAIT,), limited=False)
    found = of_run(tmp_path, slowest, *flows)
    assert named(found) == ("incast", "rtsw1:eth3", "established")
    assert (found.fault, found.to_json()["root_causes"]) == (False, [])
    doubtful = of_run(tmp_path / "2", replace(slowest, limited=True), *flows)
    assert named(doubtful) == ("incast", "rtsw1:eth3", "likely")
    assert of_run(tmp_path / "3", slowest, *flows[:2]).verdict is None


def test_the_port_that_trimmed_most_packets_had_too_small_a_buffer() -> None:
    def rows(heads: int) -> dict[int, Tally]:
        return {0: Tally(offered=400, trimmed=heads), 5: Tally(offered=7)}

    found = diagnosed(traffic=(TrafficSeen(OF_PROBES, {"rtsw1:eth1": rows(5), "rtsw2:eth3": rows(100)}),))
    assert named(found) == ("trimmed", "rtsw2:eth3", "established") and not found.fault
    assert found.verdict is not None and "rtsw2:eth3 trimmed 25% of the packets" in found.verdict.what
    assert diagnosed(traffic=(TrafficSeen(OF_PROBES, {"rtsw1:eth1": rows(0)}),)).ruled_out["trimmed"]


def test_flows_that_share_an_uplink_while_another_is_idle_collide(tmp_path: Path) -> None:
    sent = [samples.sent(qpn) for qpn in (17, 18)]
    rows = tuple(FlowCount("eth1", *each.flow.key, 400, 400_000) for each in sent)
    nothing = {node.name: switch(node.name, counters=SwitchCounters(node.name, (), (), 0)) for node in FABRIC.switches}
    after = {**nothing, "rtsw1": switch("rtsw1", counters=SwitchCounters("rtsw1", rows, (), 0))}
    then, now = (Snapshot("tiny", ALL, nodes, 0) for nodes in (nothing, after))
    evidence = Evidence(then, now, tuple(sent), ((), ()), seconds=1.0)
    slowest = Slowest((), (QP,), 1, 3, False, 0.2, (replace(WAIT, port="rtsw1:eth1"),), limited=False)
    case = of_run(tmp_path, slowest, counted=evidence).case
    object.__setattr__(case, "crossing", {"rtsw1:eth1": 2})  # the stored run has no paths
    assert named(judged(case)) == ("hash-collision", "rtsw1:eth1", "established")


def test_one_rank_that_uses_messages_late_is_a_slow_host_and_many_are_the_machine(tmp_path: Path) -> None:
    late = SlowRank(0, "host1:eth1", 0.7)
    slowest = Slowest((late,), (QP,), 1, 3, False, 0.2, (), limited=False)
    assert named(of_run(tmp_path, slowest)) == ("slow-host", "host1", "established")
    many = replace(slowest, ranks=(late, replace(late, rank=1, nic="host2:eth1")))
    assert of_run(tmp_path / "2", many).verdict is None
    assert of_run(tmp_path / "3", replace(slowest, ranks=(replace(late, share=0.2),))).verdict is None


def test_a_host_that_pauses_its_switch_is_named_with_its_victims(tmp_path: Path) -> None:
    found = series()
    found.columns["pfc_received"][0], found.columns["paused_ns"][0] = 4, 2_000_000
    run = keep(tmp_path, queues=found)
    assert named(judged(Case(FABRIC, run, None, None, ()))) == ("pfc-storm", "host1:eth1", "established")


def test_two_links_with_bit_errors_are_both_found() -> None:
    flows = [FlowSeen(port, (f"{port}:a", f"{port}:b"), 500, 9) for port in ("x", "y")]
    flows += [FlowSeen(f"{port}2", (f"{port}:a",), 500, 0) for port in ("x", "y")]
    assert {place.port for place in damaged_at(flows)} == {"x:b", "y:b"}


def queued(depth: int = 20_000, **rates: list[float]) -> Recorded:
    """Ports with a queue at both ends of each bucket: their rates by bucket of 10 ms, Mbit/s. depth: of it, bytes.

    A class for ACKs has a queue, too.
    """
    names, buckets = [*rates], len(next(iter(rates.values())))
    labels = tuple(
        RowLabel(f"rtsw1:{name}", number, kind, 10**8)
        for name in names
        for number, kind in ((3, "lossless"), (6, "control"))
    )
    columns = {name: np.zeros((len(labels), buckets), np.int64) for name in COLUMNS}
    columns["depth"][:] = depth // 2
    columns["out_bytes"][::2] = np.array([rates[name] for name in names]) * 1250
    columns["out_bytes"][1::2] = 100
    ends = np.arange(1, buckets + 1) / 100
    return Recorded(
        "tiny", "", 4000, labels, Series(ends, np.arange(len(labels), dtype=np.int32), columns, 0.01, 9, 0.0)
    )


def test_the_rate_of_a_port_is_that_of_all_its_classes_in_its_slowest_part() -> None:
    found = queued(eth1=[90.0] * 30 + [9.0] * 10, eth2=[90.0] * 40)
    rates = {label.port: rate for label, rate in drain_rates(found.labels, found.series, always=False)}
    assert rates == pytest.approx({"rtsw1:eth1": 9.08e6, "rtsw1:eth2": 90.08e6}, rel=0.02)
    sure = {label.port: rate for label, rate in drain_rates(found.labels, found.series, always=True)}
    assert sure == pytest.approx({"rtsw1:eth1": 9.08e6}, rel=0.001)


def slow_links(directory: Path, found: Recorded) -> list[tuple[str, str]]:
    run = keep(directory, queues=found.series, labels=found.labels)
    return [(each.object, each.confidence) for each in judged(Case(FABRIC, run, None, None, ())).findings]


def test_a_link_that_was_slow_for_a_part_of_a_run_is_found_after_it(tmp_path: Path) -> None:
    found = queued(eth1=[90.0] * 30 + [9.0] * 10, eth2=[90.0] * 40, eth3=[85.0] * 40)
    run = keep(tmp_path, queues=found.series, labels=found.labels)
    assert named(judged(Case(FABRIC, run, None, None, ()))) == ("slow-link", "rtsw1:eth1", "likely")


def test_a_port_whose_queue_can_have_been_empty_within_buckets_is_not_slow(tmp_path: Path) -> None:
    """At half of its rate: it was idle between, or the link is slow; a queue of more than it sent decides."""
    rates = {"eth1": [50.0] * 40, "eth2": [95.0] * 40, "eth3": [90.0] * 40}
    assert slow_links(tmp_path / "1", queued(60_000, **rates)) == []  # 62.6 KB left in each bucket
    assert slow_links(tmp_path / "2", queued(70_000, **rates)) == [("rtsw1:eth1", "likely")]
    # Single buckets in which little left: the machine was late.
    rates["eth1"] = [95.0, 95.0, 20.0, 20.0] * 10
    assert slow_links(tmp_path / "3", queued(70_000, **rates)) == []
