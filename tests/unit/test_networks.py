"""A host with a second port on a network of its own, `frontend`: ranks and all that is proven leave it alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.base.families import Network
from heddle.base.problems import InputError
from heddle.endpoints.rdma.launching import _nic
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric, NicNames
from heddle.fabric.pathdelay import PathDelays
from heddle.fabric.policy import NetworkPolicy
from heddle.fabric.policydata import fabric_from_json, fabric_to_json
from heddle.fabric.wiring import BACKEND, FRONTEND, Level, ports_above
from heddle.lab.thresholds import changed
from heddle.offline.forecast import Ask, forecast
from heddle.offline.wires import cuts_of, wires_of
from heddle.predict.polarisation import synthetic_flows
from heddle.predict.predict import predict
from heddle.proof.evidence import Evidence
from heddle.proof.separation import separation
from heddle.proof.verdict import prove
from heddle.render.render import host_commands, rendered, switch_commands
from heddle.runs.explain import made_up
from heddle.runs.run import plan_run
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.queuepolicy import QueuePolicy
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import FlowCount, SwitchCounters, rows_for
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.queues import red
from heddle.switch.queues.classes import policies_of
from heddle.switch.queues.portqueues import Setup
from heddle.traffic.flow import Sent
from heddle.traffic.plan import build_plan
from heddle_plugins.frontend.separation import _routes
from heddle_plugins.time.forecast import time_forecast
from tests.unit.test_paths_report import fibs, snapshot

POOL: Network = ip_network("192.168.0.0/16")
FRONT: Network = ip_network("192.168.1.0/24")
SPEC = ClosSpec(name="two", racks=1, ctsw=1)  # what is not of the shape


def made(*, front: bool, peers: bool = False) -> Fabric:
    """Two leaves, two spines, two hosts a leaf. front: each host is at a switch of another network, too.

    peers: a link between the two leaves.
    """
    levels = (
        Level("host", "hosts", "server", SPEC.link.host),
        Level("leaf", "leaf", "leaf", SPEC.link.fabric, is_edge=True, counts_uplinks=True, boxed=True),
        Level("spine", "spine", "spine", above_edge=True),
        Level("front", "front", "front", is_edge=True),
    )
    drawing = FabricBuilder(SPEC, levels)
    drawing.network(FRONTEND, NetworkPolicy(POOL, 1500, QueuePolicy(lossless=())))
    subnets: Iterator[Network] = SPEC.addressing.network.subnets(new_prefix=24)
    prefixes = list(islice(subnets, 2))
    for n in (1, 2):
        drawing.switch(1, n, 4_200_001_000 + n, (("rack", n),), prefixes[n - 1])
    for n in (1, 2):
        drawing.switch(2, n, 4_200_000_000, ())
    if front:
        drawing.switch(3, 1, 4_200_002_000, (), FRONT)
    for n in range(1, 5):
        drawing.host(n, (("rack", (n + 1) // 2),))
    for leaf in (1, 2):
        for spine in (1, 2):
            drawing.join(f"leaf{leaf}", f"spine{spine}")
    if peers:
        drawing.join("leaf1", "leaf2")
    for n in range(1, 5):
        leaf = (n + 1) // 2
        base = int(prefixes[leaf - 1].network_address) + 2 * n
        drawing.join(f"host{n}", f"leaf{leaf}", (SPEC.ip.end(base + 1), SPEC.ip.end(base)))
        if front:
            base = int(FRONT.network_address) + 2 * n
            drawing.join(f"host{n}", "front1", (SPEC.ip.end(base + 1), SPEC.ip.end(base)), FRONTEND)
    return drawing.fabric(box="rack", area="", sizes=("racks",))


ONE, TWO = made(front=False), made(front=True)


def test_nics_are_the_ports_of_the_network_that_carries_ranks() -> None:
    assert [port.ref for port in TWO.nics] == [f"host{n}:eth1" for n in range(1, 5)] == [p.ref for p in ONE.nics]
    assert [port.ref for port in TWO.host_ports if port.network == FRONTEND] == [f"host{n}:eth2" for n in range(1, 5)]
    assert {port.network for switch in TWO.switches for port in switch.ports} == {BACKEND, FRONTEND}
    assert [port.mtu for port in TWO.by_name["host1"].ports] == [SPEC.link.mtu, 1500]
    assert TWO.slowest_bps == ONE.slowest_bps
    assert NicNames.of(TWO).single == NicNames.of(ONE).single == {"host1", "host2", "host3", "host4"}
    assert NicNames.of(TWO).ports.items() > NicNames.of(ONE).ports.items()
    again = fabric_from_json(json.loads(json.dumps(fabric_to_json(TWO))))
    assert again == TWO and again.policy.of(FRONTEND).pool == POOL and again.policy.of(BACKEND).mtu == SPEC.link.mtu


@pytest.mark.parametrize("placement", ["block", "cyclic", "host4,host1"])
def test_a_plan_and_the_room_of_its_counters_are_those_without_the_other_network(placement: str) -> None:
    options = run_options(placement=placement, qps=4)
    one, two = (build_plan(fabric, options) for fabric in (ONE, TWO))
    assert two.endpoints == one.endpoints and {each.port for each in two.endpoints} == {"eth1"}
    assert two.flows() == one.flows() and two.timeout_s == one.timeout_s
    assert rows_for(TWO) == rows_for(ONE)
    assert synthetic_flows(TWO, 64) == synthetic_flows(ONE, 64)
    with pytest.raises(InputError, match="names host1:eth2, which is not a port with an address"):
        made_up(TWO, "host1:eth2,host3")


def test_routes_of_a_network_lead_to_its_own_pool() -> None:
    only, both = host_commands(ONE, ONE.by_name["host1"]), host_commands(TWO, TWO.by_name["host1"])
    assert both[: len(only)] == only
    assert both[len(only) :] == [
        "ip addr add 192.168.1.3/31 dev eth2", "ip route add 192.168.0.0/16 via 192.168.1.2 dev eth2",
    ]  # fmt: skip
    hops = TWO.expected_next_hops
    assert all(hops[name] == ONE.expected_next_hops[name] for name in ONE.expected_next_hops)
    assert len(hops["front1"]) == 4 and all(prefix.subnet_of(POOL) for prefix in hops["front1"])  # type: ignore[arg-type]
    assert switch_commands(TWO.by_name["leaf1"]) == switch_commands(ONE.by_name["leaf1"])
    one, two = (rendered(fabric) for fabric in (ONE, TWO))
    assert all(two[name] == text for name, text in one.items() if not name.endswith(".clab.yml"))
    policies = policies_of(TWO)
    assert all(policies[key] == policy for key, policy in policies_of(ONE).items())
    for ref in (("host1", "eth2"), ("front1", "eth1")):
        assert not any(each.pfc for each in policies[ref]) and any(each.pfc for each in policies["host1", "eth1"])


def test_a_prediction_is_that_without_the_other_network() -> None:
    one, two = (forecast(fabric, load_workload("ring,qps=4").workload, Ask(), Silent()) for fabric in (ONE, TWO))
    assert two.roofline == one.roofline
    for mine, other in zip(one.modes, two.modes, strict=True):
        rows = [two.wires.id_of[port] for port in one.wires.ports]
        assert np.array_equal(mine.bytes, other.bytes[rows]) and other.bytes.sum() == mine.bytes.sum()
        assert {two.wires.direction_name(d): value for d, value in other.mmr.items() if value is not None} == {
            one.wires.direction_name(d): value for d, value in mine.mmr.items()
        }


def test_a_proof_expects_no_packet_of_ranks_in_the_other_network() -> None:
    hashing = {node.name: SwitchHashing(node.name, "flow", node.hash_seed or 1, 3, 0x37) for node in TWO.switches}
    flow = build_plan(TWO, run_options(qps=1, placement="host1,host3")).flows()[0]
    (path,) = predict(TWO, fibs(TWO), hashing, [flow])
    counters = {node.name: SwitchCounters(node.name, (), (), 0) for node in TWO.switches}
    for ref in path:
        switch, _, port = str(ref).partition(":")
        counters[switch] = SwitchCounters(switch, (FlowCount(port, *flow.key, 10, 1000),), (), 0)
    states = snapshot(fibs(TWO), hashing), snapshot(fibs(TWO), hashing, counters)
    result = prove(TWO, Evidence(*states, (Sent(flow, 10, 1000),), (path,)))
    assert result.agree and not [note for note in result.notes if "front" in note]
    front = [link for link in result.links if link.port.startswith("front")]
    assert len(front) == 4 and not any(link.ranked or link.packets or link.uplink for link in front)
    assert [*result.per_leaf] == ["leaf1", "leaf2"]
    assert result.uplinks.switches == ("leaf1", "leaf2")


def test_a_front_end_of_a_file_leaves_the_back_end_as_it_is() -> None:
    both, alone = load_fabric("frontend").fabric, load_fabric("frontend", overrides=["frontend=null"]).fabric
    assert both.nics == alone.nics and both.nics_of.items() >= alone.nics_of.items()
    assert both.ports_of(BACKEND) == alone.ports_of(BACKEND)  # with their MACs and addresses
    assert [both.by_name[node.name].hash_seed for node in alone.switches] == [n.hash_seed for n in alone.switches]
    assert all(both.expected_next_hops[node.name] == hops for node, hops in zip(
        alone.switches, alone.expected_next_hops.values(), strict=True))  # fmt: skip
    assert len({port.mac for node in both.nodes for port in node.ports}) == 2 * len(both.links)
    ends = both.ends(FRONTEND)
    assert [*ends] == [f"host{n}" for n in range(1, 9)] + ["storage1", "storage2", "preprocess1", "preprocess2"]
    assert {port.network for ports in ends.values() for port in ports} == {FRONTEND} and not alone.ends(FRONTEND)
    assert [*both.ends(BACKEND)] == [f"host{n}" for n in range(1, 9)] == [*alone.ends(BACKEND)]
    assert [node.name for node in both.servers("preprocess")] == ["preprocess1", "preprocess2"]
    assert not any(policy.pfc for ref in both.ports_of(FRONTEND) for policy in policies_of(both)[ref.node, ref.name])
    assert all(hop in ("eth1", "eth2") for name in ("rsw1", "rsw6") for hops in both.expected_next_hops[name].values()
               for hop in hops if len(hops) == 2)  # fmt: skip
    assert fabric_from_json(json.loads(json.dumps(fabric_to_json(both)))) == both


@pytest.mark.parametrize("shape", ["zone", "rail", "dc"])
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_every_shape_has_a_front_end_with_racks_of_its_own_or_shared(shape: str, family: str) -> None:
    for racks, storage in (("shared", 3), (3, 1)):
        sets = [f"family={family}", f"frontend={{racks: {racks}, oversubscription: 2, storage: {storage}}}"]
        loaded = load_fabric(shape, overrides=sets)
        fabric = loaded.fabric
        assert load_spec(dump_spec(loaded.spec)) == loaded.spec
        trainers = [host for host in fabric.hosts if not host.serves]
        rsws = [node for node in fabric.switches if fabric.level_of(node).network == FRONTEND and node.prefix]
        hops = [fabric.expected_next_hops[rsw.name] for rsw in rsws]
        assert {len(each) for rsw, each in zip(rsws, hops, strict=True)} >= {len(rsws) - 1 + len(rsws[0].ports) - 2}
        most = max(len(rsw.ports) for rsw in rsws) - 2
        assert rsws[0].ports[0].rate_bps == round(most * 10**8 / (2 * 2))
        assert len(fabric.ends(FRONTEND)) == len(trainers) + storage


def test_a_flow_at_a_port_of_another_network_than_one_of_its_ends_is_a_crossing() -> None:
    fabric = load_fabric("frontend").fabric
    flows = [
        FlowCount("eth5", "10.0.1.1", "10.0.0.1", 1, 2, 3, 300),
        FlowCount("eth5", "10.0.1.1", "172.16.0.1", 1, 2, 4, 400),
        FlowCount("eth6", "192.0.2.1", "10.0.0.3", 1, 2, 5, 500),
    ]
    counters = {"rtsw1": SwitchCounters("rtsw1", tuple(flows), (), 0)}
    found = separation(fabric, counters)
    assert found.ports == {BACKEND: 40, FRONTEND: 36}
    assert found.text() == (
        "400 bytes of other networks at 40 ports of backend and 36 ports of frontend:"
        " rtsw1:eth5 (backend) sent 4 packets, 400 bytes, from 10.0.1.1 to 172.16.0.1"
    )
    apart = replace(counters["rtsw1"], flows=tuple(flows[::2]))
    assert not separation(fabric, {"rtsw1": apart}).wrong
    missed = separation(fabric, {"rtsw1": replace(apart, misses=3)})
    assert missed.wrong == ["3 packets were not counted, so their networks are not known"]


def test_one_name_in_both_networks_is_refused() -> None:
    spec = load_fabric("frontend").spec
    builder = FabricBuilder(spec, (Level("host", "hosts", "server"), Level("rsw", "RSW", "leaf", is_edge=True)))
    builder.switch(1, 1, 4_200_001_001, (), FRONT)
    builder.host(1, ())
    with pytest.raises(InputError, match="the name rsw1 is that of two nodes"):
        builder.fabric(box="rack", area="", sizes=())


def test_what_is_set_live_changes_no_port_of_the_front_end() -> None:
    fabric = load_fabric("frontend").fabric
    queues = changed(fabric, fabric.policy.queues, ["ecn.kmax=800KB", "buffer=9MB"])
    before, after = policies_of(fabric), policies_of(fabric, own={node.name: queues for node in fabric.nodes})
    backend = {(port.node, port.name) for port in fabric.ports_of(BACKEND) if port.node not in fabric.nics_of}
    assert {ref for ref in before if before[ref] != after[ref]} == backend
    assert all(before[port.node, port.name][3].kind == "lossy" for port in fabric.ports_of(FRONTEND))


def test_shared_nics_are_one_network_whose_ranks_are_those_of_trainers() -> None:
    shared = load_fabric("frontend", overrides=["frontend.share_nics=true"]).fabric
    alone = load_fabric("frontend", overrides=["frontend=null"]).fabric
    assert shared.networks == (BACKEND,) and shared.nics == alone.nics and not shared.nics_of["storage1"]
    assert {port.ref for ports in shared.ends(FRONTEND).values() for port in ports} == {
        *(port.ref for port in alone.nics), "storage1:eth1", "storage2:eth1", "preprocess1:eth1", "preprocess2:eth1",
    }  # fmt: skip
    assert [port.peer_node for port in shared.host_ports][-4:] == ["rtsw1", "rtsw2", "rtsw3", "rtsw4"]
    assert build_plan(shared, run_options(qps=4)).flows() == build_plan(alone, run_options(qps=4)).flows()


def test_a_link_within_a_level_is_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        made(front=False, peers=True)
    (problem,) = caught.value.problems
    assert str(problem).splitlines() == [
        "two  the link leaf1:eth3 - leaf2:eth3 is within level leaf: no route climbs or descends by it",
        "     hint: join nodes of two levels",
    ]


def test_explain_takes_the_ports_of_every_network_and_launch_hosts_with_a_nic() -> None:
    fabric = load_fabric("frontend").fabric
    front = made_up(fabric, "host1:eth2,storage1,tcp=10001")
    assert (front.src, front.dst, front.src_ip[:4]) == ("host1", "storage1", "172.")
    with pytest.raises(InputError, match="launch storage1 has no NIC in the network of the ranks"):
        _nic(fabric, "storage1")


@pytest.mark.parametrize("order", ["abc", "acb"])
def test_two_jobs_of_the_back_end_share_no_nic_whatever_is_between_them(order: str, tmp_path: Path) -> None:
    jobs = {
        "a": "{collective: all-reduce, ranks: 0:4}", "c": "{collective: all-reduce, ranks: 0:4}",
        "b": "{collective: all-reduce, ranks: 0:4, network: frontend, transport: tcp}",
    }  # fmt: skip
    (path := tmp_path / "jobs.yml").write_text("jobs:\n" + "".join(f"  {name}: {jobs[name]}\n" for name in order))
    fabric = load_fabric("frontend", overrides=["frontend.share_nics=true"]).fabric
    with pytest.raises(InputError, match="host1:eth1 is a NIC of job a, too"):
        load_workload(str(path)).workload.endpoints(fabric)


@pytest.mark.parametrize(
    ("preset", "sets"),
    [
        ("dc", ["oversubscription=8"]),
        ("dragonfly", ["groups=3", "global_links=1", "hosts_per_switch=3"]),
    ],
)
def test_links_of_the_front_end_do_not_widen_a_cut_of_the_back_end(preset: str, sets: list[str]) -> None:
    front = ["frontend.storage=2", "frontend.link.fabric=1gbit"]
    one, two = (
        forecast(load_fabric(preset, overrides=[*sets, *more]).fabric, load_workload("all-to-all,size=1M").workload,
                 Ask(), Silent())
        for more in ([], front)
    )  # fmt: skip
    assert one.roofline.what.startswith("all links from") and two.roofline == one.roofline
    wires = two.wires
    cuts = cuts_of(wires, np.ones(len(wires.ports), dtype=bool))
    rsws = [wires.edge[at] for at, name in enumerate(wires.switches) if name.startswith("rsw")]
    assert len(rsws) > 2 and (cuts.area_of[rsws] == -1).all() and (np.delete(cuts.area_of, rsws) >= 0).all()
    assert len(cuts.area_bps) == len({host.group(wires.fabric.area) for host in wires.fabric.hosts if not host.serves})
    between = np.zeros((len(cuts.edge_bps),) * 2)
    between[rsws[0], rsws[-1]] = between[rsws[0], rsws[1]] = 1.0
    assert not cuts.joined(between).any()


def test_a_job_on_the_front_end_has_no_rank_at_global_links_beside_it() -> None:
    fabric = load_fabric("dragonfly", overrides=["groups=3", "frontend.storage=2"]).fabric
    ends = [ports[0] for ports in fabric.ends(FRONTEND).values()]
    above, wires = ports_above(fabric, {port.ref for port in ends}), wires_of(fabric)
    assert above == {port.ref for port in fabric.ports_of(FRONTEND)}
    for nics in (ends, [*ends, fabric.nics[0]]):
        ids = np.array([wires.id_of[port.ref] for port in nics], dtype=np.int32)
        rows = {wires.ports[at] for at in np.flatnonzero(wires.above(ids))}
        assert rows == ports_above(fabric, {port.ref for port in nics})
    assert any(fabric.is_sideways(port) and port.ref in rows for node in fabric.switches for port in node.ports)


@pytest.mark.parametrize("at", ["host", "link"])
def test_links_of_the_front_end_have_no_delay(at: str) -> None:
    sets = ["racks=6", f"link.delay_at={at}", "link.delay={host: 40us, fabric: 10us}"]
    slow = load_fabric("frontend", overrides=sets).fabric
    levels = [level.network for level in slow.levels[: len(slow.policy.delays)]]
    assert all(slow.policy.delays[:2]) and FRONTEND in levels
    assert not any(ns for ns, network in zip(slow.policy.delays, levels, strict=True) if network == FRONTEND)
    assert PathDelays(slow).between("rsw1", "rsw2") == 0 < PathDelays(slow).between("rtsw1", "rtsw2")
    quick = load_fabric("frontend", overrides=["racks=6"]).fabric
    for job, alike in (
        ("all-to-all,transport=tcp,network=frontend", True),
        ("all-to-all,transport=tcp", at == "host"),  # the kernel's NICs add no delay
        ("all-to-all", False),
    ):
        work = load_workload(f"{job},size=4K,iters=1,warmup=0,qps=1").workload
        found = [time_forecast(each, work, Ask(), Silent()).jobs[0].sizes[0].seconds for each in (slow, quick)]
        assert (found[0] == found[1]) is alike, job
    for network, words in ((FRONTEND, "not modelled on links of the network frontend"), (BACKEND, "100 us one way")):
        plan, _ = plan_run(slow, run_options(transport="tcp", network=network))
        assert words in plan.propagation.text(network=network)


HOST_ROUTES = ("route 10.0.0.0/8 via 10.0.0.0 dev eth1", "route 172.16.0.0/12 via 172.16.0.0 dev eth2")


@pytest.mark.parametrize(
    ("routes", "wrong"),
    [
        (HOST_ROUTES, ""),
        ((*HOST_ROUTES, "route 0.0.0.0/0 via 10.0.0.0 dev eth1"), ""),  # no packet of a pool takes it
        ((HOST_ROUTES[0], "route 0.0.0.0/0 via 10.0.0.0 dev eth1"), "0.0.0.0/0"),
        ((HOST_ROUTES[0], "route 128.0.0.0/1 via 10.0.0.0 dev eth1"), "128.0.0.0/1"),
        ((*HOST_ROUTES, "route 172.20.0.0/16 via 10.0.0.0 dev eth1"), "172.20.0.0/16"),
        ((HOST_ROUTES[0], "route 0.0.0.0/0 via 192.0.2.1 dev eth0"), ""),  # a port of no network
        ((*HOST_ROUTES, "route 0.0.0.0/0 via 10.0.0.0 dev eth1 table 9"), "0.0.0.0/0"),
    ],
)
def test_a_route_counts_where_packets_of_another_network_take_it(routes: tuple[str, ...], wrong: str) -> None:
    found = [*_routes(load_fabric("frontend").fabric, "host1", frozenset(routes))]
    assert found == ([f"host1 sends to {wrong} (frontend) by eth1, a port of backend"] if wrong else [])


def test_each_network_has_its_curves_of_red_and_announces_no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(red, "require", lambda: None)
    words = ("queues.ecn.marker=red", "frontend.queues.ecn.kmin=10KB", "frontend.queues.ecn.kmax=20KB")
    fabric = load_fabric("frontend", overrides=words).fabric
    curves = Setup.of(fabric).curves
    assert curves == {name: red.curves_of(fabric.policy.of(name).queues) for name in (BACKEND, FRONTEND)}
    assert curves[BACKEND] != curves[FRONTEND]
    files = rendered(fabric)
    for node in fabric.switches:
        denied = fabric.policy.ip.loopbacks(fabric.policy.of(fabric.level_of(node).network).pool)
        lists = [each for each in files[f"{node.name}/frr.conf"].splitlines() if "prefix-list" in each]
        assert node.loopback in denied
        if node.prefix is None:  # an edge announces its own prefix only
            assert f"ip prefix-list NO-LOOPBACKS deny {denied} le 32" in lists
        assert not any(f"permit {node.loopback}" in line for line in lists)
