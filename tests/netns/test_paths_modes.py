"""Every mode of hashing with real packets: prediction, kernel and counters agree; `adaptive` goes by depth."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Literal

import pytest

from heddle.fabric import hashmodes
from heddle.kernel.fib import port_names
from heddle.kernel.libbpf import Program, run_on
from heddle.kernel.namespace import inside
from heddle.predict.walk import ports_of
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import PathsResult, prove
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.hashing.maps import Exact, Steering, Tables
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import row
from heddle.traffic.flow import Flow
from heddle.views.pathstext import paths_text
from tests.marks import deep
from tests.netns.static_fabric import StaticLab, noticing_fabric, roce_frame, send, sent_flow, some_flows, static_fabric
from tests.netns.test_bpf_modes import UPLINKS, flows_of, link, ports, set_mode, statistics

PACKETS = 12


@pytest.fixture(scope="module")
def lab() -> Iterator[StaticLab]:
    """Two racks of three hosts, four CTSWs."""
    with static_fabric(hosts_per_rack=3) as made:
        yield made


def choose_by(
    lab: StaticLab,
    mode: str,
    options: HashOptions | None = None,
    exact: Mapping[str, Exact] | None = None,
) -> None:
    """Give all switches a mode, and some of them exact entries."""
    for node in lab.fabric.switches:
        handle = lab.handle(node.name)
        wanted = hashing.hashing_of(lab.fabric, node, mode, options or HashOptions(), node.hash_seed or 1)
        entries = (exact or {}).get(node.name, {})
        s = wanted.steering
        steering = Steering(s.groups, s.slots, s.prefixes, entries)
        rule = hashing.rule_of(wanted, 4)
        rule = type(rule)(rule.mode, rule.seed, rule.options, steering, rule.version, rule.clears)
        with Tables.pinned(hashing.pin_dir(lab.name, node.name)) as tables:
            tables.fill(rule, {name: index for index, name in port_names(handle).items()})
            tables.flip()
        hashing.write_sysctls(handle.netns, hashmodes.sysctls(mode, wanted.seed, wanted.options, 4))


def proven(lab: StaticLab, flows: Sequence[Flow], packets: int = PACKETS) -> PathsResult:
    """Send packets of each flow, and lay the three sources, which must agree, side by side."""
    before = collect_before(lab)
    send(lab, dict.fromkeys(flows, packets))
    sent = [sent_flow(flow, packets) for flow in flows]
    result = prove(lab.fabric, collect_after(lab, before, sent))
    assert result.agree, paths_text(result)
    return result


def first_ports(result: PathsResult) -> list[str]:
    return [proof.measured[0] for proof in result.flows]


def upward(flows: Sequence[Flow]) -> list[Flow]:
    """Flows that start at rtsw1: without BGP no other switch learns that its link is down."""
    return [flow for flow in flows if flow.first_hop.startswith("rtsw1:")]


@pytest.mark.parametrize("mode", hashmodes.MODES)
def test_prediction_kernels_and_counters_agree_in_every_mode(lab: StaticLab, mode: str) -> None:
    choose_by(lab, mode)
    result = proven(lab, some_flows(lab.fabric, 48))
    assert {proof.spread for proof in result.flows if len(proof.expected) > 1} == {mode in hashmodes.SPREADING}


def test_pinned_depends_only_on_the_destination_and_falls_back_when_its_path_fails(lab: StaticLab) -> None:
    choose_by(lab, "pinned")
    flows = some_flows(lab.fabric, 48)
    ours = upward(flows)
    result = proven(lab, flows)
    order = {host.name: index for index, host in enumerate(lab.fabric.hosts)}
    for proof in result.flows:
        slice_ = order[proof.flow.dst] % 3
        assert proof.measured[0] == f"{proof.flow.first_hop.partition(':')[0]}:eth{1 + slice_}"
    lab.ip("rtsw1", "link", "set", "eth2", "down")
    try:
        result = proven(lab, ours)
        moved = [proof for proof in result.flows if order[proof.flow.dst] % 3 == 1]
        assert moved and all(p.measured[0] != "rtsw1:eth2" for p in moved)
    finally:
        restore_link(lab, "rtsw1", "eth2")


def restore_link(lab: StaticLab, switch: str, port: str) -> None:
    """A link up again, with the neighbour that went with it."""
    lab.ip(switch, "link", "set", port, "up")
    peer = lab.fabric.by_name[switch].port(port)
    mac = lab.fabric.by_name[peer.peer_node].port(peer.peer_port).mac
    lab.ip(switch, "neigh", "replace", "169.254.0.1", "lladdr", mac, "dev", port, "nud", "permanent")


def test_exact_entries_go_before_the_hash_and_a_dead_one_is_not_followed(lab: StaticLab) -> None:
    flows = some_flows(lab.fabric, 60)
    prefix = next(p for p, owner in lab.fabric.edge_prefixes.items() if owner == "rtsw2")
    mine = upward(flows)[:20]
    backups = ["eth1", "eth4", "eth2", "eth3"]
    table = {(f.sport, ip_network(prefix)): (f"eth{1 + at % 4}", backups[at // 4 % 4]) for at, f in enumerate(mine)}
    choose_by(lab, "exact-match", exact={"rtsw1": table})
    result = proven(lab, flows)
    measured = {proof.flow: proof.measured[0] for proof in result.flows}
    assert [measured[flow] for flow in mine] == [f"rtsw1:{table[flow.sport, prefix][0]}" for flow in mine]
    lab.ip("rtsw1", "link", "set", "eth3", "down")
    try:
        result = proven(lab, upward(flows))
        assert "rtsw1:eth3" not in first_ports(result)
        measured = {proof.flow: proof.measured[0] for proof in result.flows}
        for flow in mine:
            port, backup = table[flow.sport, prefix]
            if "eth3" not in (port, backup) or port != "eth3":
                assert measured[flow] == f"rtsw1:{port}"
            elif backup != "eth3":
                assert measured[flow] == f"rtsw1:{backup}"
    finally:
        restore_link(lab, "rtsw1", "eth3")


@pytest.mark.parametrize("choice", ["random", "round-robin"])
def test_sprayed_packets_stay_within_the_next_hops_and_counts_add_up_at_every_step(lab: StaticLab, choice: str) -> None:
    choose_by(lab, "spray", HashOptions(choice=choice))  # type: ignore[arg-type]
    flows = some_flows(lab.fabric, 12)
    result = proven(lab, flows, 64)
    for proof in result.flows:
        assert proof.spread and proof.expected[0].endswith(":{eth1,eth2,eth3,eth4}")
        assert len(ports_of(proof.measured[0])) == 4
        assert set(proof.counted) == {64}
        row = proof.to_json()
        assert row["spread"] and sum(n for port, n in row["by_port"].items() if port.startswith("rtsw")) == 128
    if choice == "round-robin":
        ours = [link.packets for link in result.links if link.uplink]
        assert max(ours[:4]) - min(ours[:4]) <= 1 and max(ours[4:]) - min(ours[4:]) <= 1


@pytest.mark.parametrize(("mode", "first"), [("flowlet", "hash"), ("flowlet", "load"), ("adaptive", "hash")])
def test_bursts_stay_within_the_next_hops(lab: StaticLab, mode: str, first: Literal["hash", "load"]) -> None:
    choose_by(lab, mode, HashOptions(gap_ns=1_000, first=first))
    result = proven(lab, some_flows(lab.fabric, 24), 32)
    assert all(proof.spread for proof in result.flows)
    assert any(len(ports_of(proof.measured[0])) > 1 for proof in result.flows)


@pytest.mark.parametrize(
    ("udf", "spread"),
    [(Udf("bth", 7, 1), False), (Udf("l4", 0, 2), False), (Udf("l3", 12, 4), False), (Udf("bth", 9, 3), True)],
)
def test_user_defined_fields_hash_what_they_name(lab: StaticLab, udf: Udf, spread: bool) -> None:
    choose_by(lab, "e-ecmp", HashOptions(udf=udf))
    result = proven(lab, some_flows(lab.fabric, 40))
    assert {proof.spread for proof in result.flows} == {spread}


@pytest.mark.parametrize("mode", ["flow", "e-ecmp"])
def test_resilient_hashing_moves_the_lost_share_alone_and_brings_it_back(lab: StaticLab, mode: str) -> None:
    choose_by(lab, mode, HashOptions(resilient=True, buckets=64))
    flows = upward(some_flows(lab.fabric, 200))
    before = proven(lab, flows, 2)
    lab.ip("rtsw1", "link", "set", "eth1", "down")
    try:
        during = proven(lab, flows, 2)
        for was, now in zip(first_ports(before), first_ports(during), strict=True):
            assert now == was if was != "rtsw1:eth1" else now.startswith("rtsw1:") and now != was
    finally:
        restore_link(lab, "rtsw1", "eth1")
    after = proven(lab, flows, 2)
    assert first_ports(after) == first_ports(before)


LONG_NS = 5_000_000_000  # no flow is silent for so long here
DATA = 26 << 2  # class 3
PLAIN = 0  # class 0


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def noticing(request: pytest.FixtureRequest) -> Iterator[StaticLab]:
    with noticing_fabric(request.param) as made:
        yield made


@pytest.fixture
def queues(noticing: StaticLab) -> Iterator[LabQueues]:
    with LabQueues.pinned(noticing.fabric) as mapped:
        yield mapped
        depths(noticing, mapped, {})


def depths(noticing: StaticLab, queues: LabQueues, by_class: Mapping[int, Sequence[int]]) -> None:
    """Let so many bytes of each class seem to wait at the four uplinks of rtsw1."""
    for number in range(8):
        for port, depth in zip(UPLINKS, by_class.get(number, (0, 0, 0, 0)), strict=True):
            queues.cells["depth"][row(queues.ids["rtsw1", port], number)] = depth


def frames_of(noticing: StaticLab, qpns: Sequence[int], tos: int = DATA, flow: Flow | None = None) -> list[bytes]:
    mac = noticing.fabric.by_name["rtsw1"].port("eth5").mac
    made = []
    for qpn in qpns:
        frame = roce_frame(replace(flow or flows_of(noticing, 1)[0], qpn=qpn), 200, "02:00:00:00:00:09", mac)
        if noticing.fabric.policy.ip_version == 6:
            made.append(frame[:14] + bytes((0x60 | tos >> 4, tos << 4 & 0xF0)) + frame[16:])
        else:
            made.append(frame[:15] + bytes((tos,)) + frame[16:])
    return made


def test_new_bursts_take_the_path_with_the_shortest_queue_of_their_class(
    noticing: StaticLab, queues: LabQueues
) -> None:
    set_mode(noticing, "adaptive", gap_ns=LONG_NS)
    for turn, best in enumerate(UPLINKS):
        other = UPLINKS[(turn + 1) % 4]
        depths(
            noticing, queues,
            {3: [1000 if port == best else 1001 + 500 * n for n, port in enumerate(UPLINKS)],
             0: [0 if port == other else 90_000 for port in UPLINKS]},
        )  # fmt: skip
        qpns = range(1000 * turn, 1000 * turn + 20)
        assert set(ports(noticing, frames_of(noticing, qpns))) == {best}
        assert set(ports(noticing, frames_of(noticing, [qpn + 500 for qpn in qpns], PLAIN))) == {other}


def test_paths_of_equal_depth_share_new_bursts(noticing: StaticLab, queues: LabQueues) -> None:
    set_mode(noticing, "adaptive", gap_ns=LONG_NS)
    depths(noticing, queues, {3: (4000, 4000, 9000, 4000)})
    found = Counter(ports(noticing, frames_of(noticing, range(300))))
    assert set(found) == {"eth1", "eth2", "eth4"} and min(found.values()) > 60  # 100 each on average


def test_a_burst_keeps_its_path_and_the_next_one_compares_queues_again(noticing: StaticLab, queues: LabQueues) -> None:
    set_mode(noticing, "adaptive", gap_ns=300_000_000)
    (frame,) = frames_of(noticing, [7])
    before = statistics(noticing)
    depths(noticing, queues, {3: (0, 5000, 5000, 5000)})
    assert set(ports(noticing, [frame] * 20)) == {"eth1"}
    depths(noticing, queues, {3: (5000, 5000, 5000, 0)})
    assert set(ports(noticing, [frame] * 20)) == {"eth1"}
    time.sleep(0.35)
    assert set(ports(noticing, [frame] * 20)) == {"eth4"}
    assert statistics(noticing) - before == {"steered": 60, "repicks": 1}


def test_a_dead_next_hop_is_not_chosen_even_with_an_empty_queue(noticing: StaticLab, queues: LabQueues) -> None:
    set_mode(noticing, "adaptive", gap_ns=LONG_NS)
    depths(noticing, queues, {3: (6000, 0, 6000, 5000)})
    (frame,) = frames_of(noticing, [1])
    assert ports(noticing, [frame]) == ["eth2"]
    try:
        link(noticing, "down")
        assert ports(noticing, [frame]) == [None]  # this one goes by hash
        assert set(ports(noticing, [frame] * 5)) == {"eth4"}
        assert set(ports(noticing, frames_of(noticing, range(10, 30)))) == {"eth4"}
    finally:
        link(noticing, "up")


def test_every_port_of_every_switch_is_read_under_its_own_number() -> None:
    """rtsw2's ports are not rtsw1's, though their interfaces may have the same indexes."""
    with (
        static_fabric("adaptive", weights=(1, 1), racks=2, hosts_per_rack=1) as made,
        LabQueues.pinned(made.fabric) as mapped,
    ):
        for port, depth in (("eth1", 9000), ("eth2", 0)):
            mapped.cells["depth"][row(mapped.ids["rtsw1", port], 0)] = depth
            mapped.cells["depth"][row(mapped.ids["rtsw2", port], 0)] = 9000 - depth
        for switch, best in (("rtsw1", "eth2"), ("rtsw2", "eth1")):
            flow = next(flow for flow in some_flows(made.fabric, 40) if flow.first_hop == f"{switch}:eth3")
            frame = roce_frame(flow, 64, "02:00:00:00:00:09", made.fabric.by_name[switch].port("eth3").mac)
            names = port_names(made.handle(switch))
            (index,) = (number for number, name in names.items() if name == "eth3")
            with inside(made.handle(switch).netns), Program.pinned(pin_dir(made.name, switch) / "hash") as program:
                assert names[run_on(program, frame, ifindex=index).cb[1]] == best


@pytest.mark.parametrize("mode", ["adaptive", deep("flowlet")])
def test_bursts_avoid_a_slow_path_by_depth_but_not_by_hash(mode: str) -> None:
    """One of two uplinks has a tenth of the rate. What is steered is charged to where it came in, as what is routed."""
    link_rates = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"rtsw1:eth1": "4mbit"}}
    routing = {"ecmp": mode, "hash": {"gap": "5s"}}
    with (
        static_fabric(mode, weights=(1, 1), racks=2, hosts_per_rack=1, link=link_rates, routing=routing) as made,
        LabQueues.pinned(made.fabric) as mapped,
    ):
        flow = next(flow for flow in some_flows(made.fabric, 40) if flow.src == "host1")
        send(made, {replace(flow, qpn=qpn): 8 for qpn in range(80)}, payload=1000)
        slow, fast = (mapped.cells[row(mapped.ids["rtsw1", port], 0)] for port in ("eth1", "eth2"))
        share = int(slow["in_packets"]) / (int(slow["in_packets"]) + int(fast["in_packets"]))
        came_in = mapped.ingress["high_water"][row(mapped.ids["rtsw1", "eth3"], 0)]
        assert (share < 0.3) if mode == "adaptive" else (share > 0.3), share
        assert came_in >= slow["high_water"] * 0.8 > 0
