"""Prediction, oracle and measurement on real namespaces, with static routes in BGP's place."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.kernel.fib import read_fib
from heddle.kernel.libbpf import Map
from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart
from heddle.predict.predict import predict
from heddle.proof import oracle
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import lookup_paths, prove
from heddle.switch.counters import SwitchCounters, read_counters, rows_for
from heddle.switch.hashing import hashing
from heddle.switch.queues import portqueues as queues
from heddle.switch.queues.portqueues import LEAF_LIMIT
from heddle.traffic.flow import Flow
from heddle.views.pathstext import paths_text
from heddle.wire.layout import DSCP_DATA
from tests.machine import until
from tests.netns.static_fabric import StaticLab, dropping, send, sent_flow, some_flows, static_fabric
from tests.readings import read_hashing


def roce_by_port(counters: Mapping[str, SwitchCounters]) -> dict[str, int]:
    return {f"{name}:{port.port}": port.roce_packets for name, table in counters.items() for port in table.ports}


def both(lab: StaticLab, flows: list[Flow]) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    now = lab.snapshot(LabPart.FIBS | LabPart.HASHING)
    predicted = predict(lab.fabric, now.fibs, now.hashing, flows)
    return predicted, list(oracle.ask(lab, now.hashing, flows).paths)


def await_dead(lab: StaticLab, switch: str, port: str) -> None:
    """Wait until every next hop of `switch` out of `port` is dead.

    A port loses its carrier at once, its routes up to a second later (the kernel's linkwatch tells of lost carriers
    once a second). Until then the kernel forwards to the port, and a prediction by its table does so, too.
    """

    def dead() -> bool:
        (fib,) = lab.snapshot(LabPart.FIBS, [switch]).fibs.values()
        return all(hop.dead for hops in fib.routes.values() for hop in hops if hop.port == port and len(hops) > 1)

    until(dead)


@pytest.fixture(scope="module")
def labs() -> Iterator[dict[str, StaticLab]]:
    """One fabric of four uplinks by hash of the 5-tuple, one by E-ECMP."""
    with static_fabric("flow") as flow, static_fabric("e-ecmp") as e_ecmp:
        yield {"flow": flow, "e-ecmp": e_ecmp}


def test_a_dead_next_hop_and_nexthop_groups_are_predicted_too() -> None:
    with static_fabric("flow") as lab:
        flows = some_flows(lab.fabric, 300)
        peer = lab.fabric.by_name["rtsw1"].ports[1]
        with inside(lab.handle("rtsw1").netns):
            Path("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown").write_text("1")
            Path("/proc/sys/net/ipv4/conf/eth2/ignore_routes_with_linkdown").write_text("1")
        lab.ip(peer.peer_node, "link", "set", peer.peer_port, "down")
        await_dead(lab, "rtsw1", "eth2")
        predicted, asked = both(lab, [f for f in flows if f.first_hop.startswith("rtsw1:")])
        assert predicted == asked
        assert {path[0] for path in asked} == {"rtsw1:eth1", "rtsw1:eth3", "rtsw1:eth4"}
        prefix = str(lab.fabric.by_name["rtsw2"].prefix)
        for number in (1, 3, 4):
            lab.ip("rtsw1", "nexthop", "add", "id", str(number), "via", "169.254.0.1", "dev", f"eth{number}", "onlink")
        lab.ip("rtsw1", "nexthop", "add", "id", "10", "group", "4,5/1,1/3,2")
        lab.ip("rtsw1", "route", "replace", prefix, "nhid", "10")
        hops = read_fib(lab.handle("rtsw1")).lookup(int(lab.fabric.by_name["rtsw2"].prefix.network_address))  # type: ignore[union-attr]
        assert [(hop.port, hop.weight) for hop in hops] == [("eth4", 5), ("eth1", 1), ("eth3", 2)]
        predicted, asked = both(lab, [f for f in flows if f.first_hop.startswith("rtsw1:")])
        assert predicted == asked
        # A dead route hides neither a shorter prefix nor a higher metric; a route that discards does.
        eth2 = ["via", "169.254.0.1", "dev", "eth2", "onlink"]
        longer = str(next(lab.fabric.by_name["rtsw2"].prefix.subnets()))  # type: ignore[union-attr]
        lab.ip("rtsw1", "route", "add", longer, *eth2)
        for more in ((), (prefix, "nhid", "10", "metric", "5"), ("blackhole", longer, "metric", "9")):
            if more:
                lab.ip("rtsw1", "route", "add", *more)
            if "nhid" in more:
                lab.ip("rtsw1", "route", "replace", prefix, *eth2)
            predicted, asked = both(lab, [f for f in flows if f.first_hop.startswith("rtsw1:")])
            assert predicted == asked and any(path[:1] == () for path in asked) == ("blackhole" in more)


@pytest.mark.parametrize("ecmp", ["flow", "e-ecmp"])
def test_real_frames_take_the_paths_that_were_predicted(ecmp: str) -> None:
    with static_fabric(ecmp, (3, 1, 7)) as lab:
        before = collect_before(lab)
        sent = [sent_flow(f, i % 3 + 1) for i, f in enumerate(some_flows(lab.fabric, 400))]
        send(lab, {row.flow: row.packets for row in sent})
        evidence = collect_after(lab, before, sent)
        evidence = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
        result = prove(lab.fabric, evidence)
        assert result.agree, paths_text(result)
        assert all(proof.measured == proof.predicted == proof.oracle for proof in result.flows)
        assert all(proof.counted == (proof.sent.packets,) * 3 for proof in result.flows)
        uplinks = [link for link in result.links if link.uplink]
        assert sum(link.packets for link in uplinks) == sum(row.packets for row in sent)
        assert sum(link.flows for link in uplinks) == len(sent)
        assert result.mmr.flows is not None and result.mmr.flows >= 1
        assert max(len(line) for line in paths_text(result).splitlines()) <= 100
        assert result.to_json()["oracle_choices"] == evidence.choices
        if ecmp == "e-ecmp":  # the program's hash: its choices are the kernel's, and packets go there
            assert sum(evidence.choices.values()) == 3 * len(sent)
            assert evidence.choices.get("arithmetic", 0) <= 2, "values within 2^31 / 65536 of a threshold"
        with Map.pinned(hashing.pin_dir(lab.name, "_hosts") / "taken", 4, 16) as taken:
            (packets,) = struct.unpack("=Q8x", taken.lookup(bytes(4)) or b"")
        assert packets == sum(row.packets for row in sent), "hosts keep RoCEv2 from their kernels"


@pytest.mark.parametrize(("ecmp", "uplinks"), [("flow", 1), ("e-ecmp", 4)])
def test_e_ecmp_spreads_the_qps_of_one_five_tuple_and_flow_does_not(
    labs: dict[str, StaticLab], ecmp: str, uplinks: int
) -> None:
    one = some_flows(labs[ecmp].fabric, 1)[0]
    result = lookup_paths(labs[ecmp], [replace(one, qpn=100 + number) for number in range(64)])
    assert result.agree, paths_text(result)
    assert len({proof.expected[0] for proof in result.flows}) == uplinks


def test_packets_that_a_full_queue_drops_are_named_and_explained() -> None:
    slow = {"host": "1gbit", "fabric": "1mbit"}
    with static_fabric("flow", (1, 1), link=slow, queues=dropping("20KB")) as lab:
        flow = some_flows(lab.fabric, 1)[0]
        before = collect_before(lab)
        send(lab, {flow: 100}, payload=1000, dscp=DSCP_DATA)
        sent = [sent_flow(flow, 100, payload=1000)]
        evidence = collect_after(lab, before, sent)
        result = prove(lab.fabric, evidence)
        port = result.flows[0].measured[0]
        assert result.agree, paths_text(result)
        assert 50 < result.lost[port] == evidence.drops[port]
        assert any(f"were lost after {port}" in note for note in result.notes)


def test_an_unproven_path_has_a_reason(labs: dict[str, StaticLab]) -> None:
    lab = labs["flow"]
    flow = some_flows(lab.fabric, 1)[0]
    before = collect_before(lab)
    send(lab, {flow: 5})
    result = prove(lab.fabric, collect_after(lab, before, [sent_flow(flow, 6)]))
    assert not result.agree
    assert "6 packets were sent, the first hop counted 5" in paths_text(result)


@pytest.mark.deep
def test_queue_pairs_with_one_number_are_distinguished_by_their_source_ports(labs: dict[str, StaticLab]) -> None:
    lab = labs["flow"]
    one = some_flows(lab.fabric, 1)[0]
    before = collect_before(lab)
    sent = [sent_flow(replace(one, sport=50_000 + number), number + 1) for number in range(16)]
    send(lab, {row.flow: row.packets for row in sent})
    result = prove(lab.fabric, collect_after(lab, before, sent))
    assert result.agree, paths_text(result)
    assert [proof.counted for proof in result.flows] == [(number + 1,) * 3 for number in range(16)]
    assert len({proof.measured for proof in result.flows}) > 1


@pytest.mark.deep
def test_counters_that_earlier_runs_have_filled_have_room_for_the_next() -> None:
    with static_fabric("flow") as lab:
        flows = some_flows(lab.fabric, 40)
        send(lab, dict.fromkeys(flows, 1))
        until(lambda: sum(len(table.flows) for table in read_counters(lab.fabric).values()) >= 3 * len(flows))
        with Map.pinned(hashing.pin_dir(lab.name, "_queues") / "flows", 40, 16) as rows:
            assert rows.max_entries() == rows_for(lab.fabric)
            for number in range(rows.max_entries() - 3 * len(flows)):
                rows.update(struct.pack("=2HI16s16s", 1, 1, number, bytes(16), bytes(16)), bytes(16))
            flow = replace(flows[0], qpn=flows[0].qpn ^ 1)
            send(lab, {flow: 5})
            # Packets that have no row are counted as such: five at each hop.
            until(lambda: sum(table.misses for table in read_counters(lab.fabric).values()) >= 15)
        totals = roce_by_port(read_counters(lab.fabric))
        before = collect_before(lab)
        assert not any(table.flows for table in before.counters.values())
        assert roce_by_port(before.counters) == totals and sum(totals.values()) == 3 * (len(flows) + 5)
        sent = [sent_flow(each, 2) for each in (flow, *flows)]
        send(lab, {row.flow: row.packets for row in sent})
        result = prove(lab.fabric, collect_after(lab, before, sent))
        assert result.agree, paths_text(result)


def test_every_port_has_its_rate_its_queue_and_its_programs_and_no_offloads() -> None:
    with static_fabric("e-ecmp", (1, 1), link={"host": "25mbit", "fabric": "10gbit"}) as lab:
        rtsw = lab.fabric.by_name["rtsw1"]
        found = lab.snapshot(LabPart.PORTS)
        for port in rtsw.ports:
            row = found.shapers[port.ref]
            assert (row.rate_bps, row.ceil_bps) == (port.rate_bps, port.rate_bps)
            assert port.mtu <= row.burst <= 2 * port.mtu
            frame = port.mtu + 14
            assert row.leaves == {
                0: queues.Leaf("bfifo", LEAF_LIMIT, frame, 1),
                3: queues.Leaf("tbf", LEAF_LIMIT, 4 * frame, 1),
                6: queues.Leaf("bfifo", LEAF_LIMIT, frame, 0),
            }
        for node, words in (("rtsw1", "dequeue hash count enqueue"), ("host1", "dequeue nic enqueue")):
            assert [each.program for each in found.programs[f"{node}:eth1"]] == words.split()
        now = read_hashing(lab.name, lab.handle("rtsw1"))
        assert (now.mode, now.seed, now.policy, now.fields) == ("e-ecmp", rtsw.hash_seed, 1, 0x37)
        assert read_counters(lab.fabric)["rtsw1"].misses == 0


@pytest.mark.deep
def test_a_switch_that_ignores_its_program_is_predicted_by_its_actual_behaviour() -> None:
    with static_fabric("e-ecmp") as lab:
        for node in lab.fabric.switches:
            with inside(lab.handle(node.name).netns):
                Path("/proc/sys/net/ipv4/fib_multipath_hash_policy").write_text("3")
        before = collect_before(lab)
        sent = [sent_flow(f, 1) for f in some_flows(lab.fabric, 100)]
        send(lab, {row.flow: row.packets for row in sent})
        result = prove(lab.fabric, collect_after(lab, before, sent))
        assert result.agree, paths_text(result)


@pytest.mark.deep
def test_counters_of_a_slow_port_are_waited_for_and_packets_of_an_earlier_run_are_not_counted() -> None:
    slow = {"host": "1gbit", "fabric": "1mbit"}
    with static_fabric("flow", (1,), link=slow, queues=dropping("400KB")) as lab:
        flow = some_flows(lab.fabric, 1)[0]
        send(lab, {flow: 20}, payload=4000)  # most of a second's worth, in flight
        before = collect_before(lab)
        send(lab, {flow: 30}, payload=4000)
        result = prove(lab.fabric, collect_after(lab, before, [sent_flow(flow, 30, payload=4000)]))
        assert result.agree, paths_text(result)
        assert result.flows[0].counted == (30, 30, 30)
