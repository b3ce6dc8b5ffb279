"""Every mode of choosing, with real packets: prediction, kernel lookups and counters agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_network

import pytest

from heddle.base.families import Network
from heddle.fabric import hashmodes
from heddle.fabric.policy import HashOptions, Udf
from heddle.kernel.fib import port_names
from heddle.predict.walk import ports_of
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import PathsResult, prove
from heddle.switch.hashing import hashing
from heddle.switch.hashing.maps import Tables
from heddle.switch.hashing.steering import Steering
from heddle.traffic.flow import Flow, Sent
from heddle.views.pathstext import paths_text
from tests.netns.static_fabric import StaticLab, roce_frame, send, some_flows, static_fabric

pytestmark = pytest.mark.root

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
    exact: Mapping[str, Mapping[tuple[int, Network], str]] | None = None,
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
    """Send packets of each flow, and lay the three sources side by side."""
    before = collect_before(lab)
    send(lab, dict.fromkeys(flows, packets))
    sent = [Sent(flow, packets, packets * len(roce_frame(flow))) for flow in flows]
    return prove(lab.fabric, collect_after(lab, before, sent))


def first_ports(result: PathsResult) -> list[str]:
    return [proof.measured[0] for proof in result.flows]


def upward(flows: Sequence[Flow]) -> list[Flow]:
    """Flows that start at rtsw1: without BGP no other switch learns that its link is down."""
    return [flow for flow in flows if flow.first_hop.startswith("rtsw1:")]


@pytest.mark.parametrize("mode", hashmodes.MODES)
def test_prediction_kernels_and_counters_agree_in_every_mode(lab: StaticLab, mode: str) -> None:
    choose_by(lab, mode)
    result = proven(lab, some_flows(lab.fabric, 48))
    assert result.agree, paths_text(result)
    assert {proof.spread for proof in result.flows if len(proof.expected) > 1} == {mode in hashmodes.SPREADING}


def test_pinned_depends_only_on_the_destination_and_falls_back_when_its_path_fails(lab: StaticLab) -> None:
    choose_by(lab, "pinned")
    flows = some_flows(lab.fabric, 48)
    ours = upward(flows)
    result = proven(lab, flows)
    assert result.agree, paths_text(result)
    order = {host.name: index for index, host in enumerate(lab.fabric.hosts)}
    for proof in result.flows:
        slice_ = order[proof.flow.dst] % 3
        assert proof.measured[0] == f"{proof.flow.first_hop.partition(':')[0]}:eth{1 + slice_}"
    lab.ip("rtsw1", "link", "set", "eth2", "down")
    try:
        result = proven(lab, ours)
        assert result.agree, paths_text(result)
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
    table = {(flow.sport, ip_network(prefix)): f"eth{1 + at % 4}" for at, flow in enumerate(mine)}
    choose_by(lab, "exact-match", exact={"rtsw1": table})
    result = proven(lab, flows)
    assert result.agree, paths_text(result)
    measured = {proof.flow: proof.measured[0] for proof in result.flows}
    assert [measured[flow] for flow in mine] == [f"rtsw1:{table[flow.sport, prefix]}" for flow in mine]
    lab.ip("rtsw1", "link", "set", "eth3", "down")
    try:
        result = proven(lab, upward(flows))
        assert result.agree, paths_text(result)
        assert "rtsw1:eth3" not in first_ports(result)
    finally:
        restore_link(lab, "rtsw1", "eth3")


@pytest.mark.parametrize("choice", ["random", "round-robin"])
def test_sprayed_packets_stay_within_the_next_hops_and_counts_add_up_at_every_step(lab: StaticLab, choice: str) -> None:
    choose_by(lab, "spray", HashOptions(choice=choice))  # type: ignore[arg-type]
    flows = some_flows(lab.fabric, 12)
    result = proven(lab, flows, 64)
    assert result.agree, paths_text(result)
    for proof in result.flows:
        assert proof.spread and proof.expected[0].endswith(":{eth1,eth2,eth3,eth4}")
        assert len(ports_of(proof.measured[0])) == 4
        assert set(proof.counted) == {64}
        row = proof.to_json()
        assert row["spread"] and sum(n for port, n in row["by_port"].items() if port.startswith("rtsw")) == 128
    if choice == "round-robin":
        ours = [link.packets for link in result.links if link.uplink]
        assert max(ours[:4]) - min(ours[:4]) <= 1 and max(ours[4:]) - min(ours[4:]) <= 1


@pytest.mark.parametrize("first", ["hash", "load"])
def test_flowlets_stay_within_the_next_hops(lab: StaticLab, first: str) -> None:
    choose_by(lab, "flowlet", HashOptions(gap_ns=1_000, first=first))  # type: ignore[arg-type]
    result = proven(lab, some_flows(lab.fabric, 24), 32)
    assert result.agree, paths_text(result)
    assert all(proof.spread for proof in result.flows)
    assert any(len(ports_of(proof.measured[0])) > 1 for proof in result.flows)


def test_adaptive_bursts_stay_within_the_next_hops(lab: StaticLab) -> None:
    choose_by(lab, "adaptive", HashOptions(gap_ns=1_000))
    result = proven(lab, some_flows(lab.fabric, 24), 32)
    assert result.agree, paths_text(result)
    assert all(proof.spread for proof in result.flows)
    assert any(len(ports_of(proof.measured[0])) > 1 for proof in result.flows)


@pytest.mark.parametrize(
    ("udf", "spread"),
    [(Udf("bth", 7, 1), False), (Udf("l4", 0, 2), False), (Udf("l3", 12, 4), False), (Udf("bth", 9, 3), True)],
)
def test_user_defined_fields_hash_what_they_name(lab: StaticLab, udf: Udf, spread: bool) -> None:
    choose_by(lab, "e-ecmp", HashOptions(udf=udf))
    result = proven(lab, some_flows(lab.fabric, 40))
    assert result.agree, paths_text(result)
    assert {proof.spread for proof in result.flows} == {spread}


@pytest.mark.parametrize("mode", ["flow", "e-ecmp"])
def test_resilient_hashing_moves_the_lost_share_alone_and_brings_it_back(lab: StaticLab, mode: str) -> None:
    choose_by(lab, mode, HashOptions(resilient=True, buckets=64))
    flows = upward(some_flows(lab.fabric, 200))
    before = proven(lab, flows, 2)
    assert before.agree, paths_text(before)
    lab.ip("rtsw1", "link", "set", "eth1", "down")
    try:
        during = proven(lab, flows, 2)
        assert during.agree, paths_text(during)
        for was, now in zip(first_ports(before), first_ports(during), strict=True):
            assert now == was if was != "rtsw1:eth1" else now.startswith("rtsw1:") and now != was
    finally:
        restore_link(lab, "rtsw1", "eth1")
    after = proven(lab, flows, 2)
    assert after.agree and first_ports(after) == first_ports(before)
