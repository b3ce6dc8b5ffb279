"""Wrong on purpose: routes changed behind Heddle's back, losses behind a counter, drops of other traffic."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart
from heddle.proof import oracle
from heddle.proof.collect import collect_after, collect_before
from heddle.proof.verdict import prove
from heddle.traffic.flow import Flow
from heddle.views.pathstext import paths_text
from heddle.wire.layout import DSCP_DATA, ROCE_PORT
from tests.netns.sockets import ETH_P_ALL, packet_socket, waiting
from tests.netns.static_fabric import GATEWAY, StaticLab, dropping, send, sent_flow, some_flows, static_fabric


def other_uplink(port: str) -> str:
    """Another uplink of the same switch, `eth1` or `eth2`."""
    return "eth1" if port.endswith(":eth2") else "eth2"


def to_host(lab: StaticLab, switch: str, flow: Flow, port: str) -> None:
    """A static route to one host, which no routing daemon installed."""
    lab.ip(switch, "route", "replace", f"{flow.dst_ip}/32", "via", GATEWAY, "dev", port, "onlink")


def back(lab: StaticLab, switch: str, flow: Flow) -> None:
    lab.ip(switch, "route", "del", f"{flow.dst_ip}/32")


def expected_path(lab: StaticLab, flow: Flow) -> tuple[str, ...]:
    now = lab.snapshot(LabPart.FIBS | LabPart.HASHING)
    return oracle.ask(lab, now.hashing, [flow]).paths[0]


@pytest.fixture(scope="module")
def pair() -> Iterator[StaticLab]:
    """Two uplinks for each rack. Each test removes the routes that it added."""
    with static_fabric("e-ecmp", (1, 1)) as lab:
        yield lab


@pytest.fixture(scope="module")
def slow() -> Iterator[StaticLab]:
    """The same with links of 1 Mbit/s whose queues drop what exceeds 20 kB."""
    link = {"host": "1gbit", "fabric": "1mbit"}
    with static_fabric("flow", (1, 1), link=link, queues=dropping("20KB")) as lab:
        yield lab


@pytest.mark.parametrize("when", ["before the packets", "after the packets", "for the packets alone"])
def test_a_route_that_was_replaced_is_named_with_what_each_source_saw(pair: StaticLab, when: str) -> None:
    """Prediction: the FIBs before. Oracle: the kernels after. Counters: the packets between."""
    lab, flow = pair, some_flows(pair.fabric, 1)[0]
    try:
        right = expected_path(lab, flow)[0]
        wrong = f"rtsw1:{other_uplink(right)}"
        before = collect_before(lab)
        if when != "after the packets":
            to_host(lab, "rtsw1", flow, other_uplink(right))
        send(lab, {flow: 5}, dscp=DSCP_DATA)
        evidence = collect_after(lab, before, [sent_flow(flow, 5)])
        if when == "after the packets":
            to_host(lab, "rtsw1", flow, other_uplink(right))
            evidence = collect_after(lab, before, [sent_flow(flow, 5)])
        if when == "for the packets alone":
            back(lab, "rtsw1", flow)
            evidence = collect_after(lab, before, [sent_flow(flow, 5)])
        result = prove(lab.fabric, evidence)
        text = paths_text(result)
        assert not result.agree, text
        proof = result.flows[0]
        assert proof.predicted is not None
        firsts = tuple(path[0] for path in (proof.predicted, proof.oracle, proof.measured))
        why = {
            "before the packets": (
                (right, wrong, wrong),
                f"the prediction differs from the kernels: predicted {right}, kernel {wrong}, counted {wrong}",
            ),
            "after the packets": (
                (right, wrong, right),
                f"the prediction differs from the kernels: predicted {right}, kernel {wrong}, counted {right}",
            ),
            "for the packets alone": (
                (right, right, wrong),
                f"the counters saw another path: expected {right}, counted {wrong}",
            ),
        }[when]
        assert (firsts, proof.why) == why
        assert proof.why in " ".join(text.split())
        if when != "for the packets alone":
            assert "routes or hashing changed during the run: rtsw1" in result.notes
            other = f"rtsw1 routes {flow.dst_ip} with prefix {flow.dst_ip}/32; the fabric has 10.0.1.0/24"
            assert other in result.notes
        if when == "before the packets":  # a route that is there all the time is proven, and named
            before = collect_before(lab)
            send(lab, {flow: 5}, dscp=DSCP_DATA)
            result = prove(lab.fabric, collect_after(lab, before, [sent_flow(flow, 5)]))
            assert result.agree, paths_text(result)
            assert other in " ".join(paths_text(result).split())
    finally:
        if when != "for the packets alone":
            back(lab, "rtsw1", flow)


@pytest.mark.deep
def test_a_route_into_nothing_ends_the_path_there(pair: StaticLab) -> None:
    flow = some_flows(pair.fabric, 1)[0]
    ctsw = expected_path(pair, flow)[1].partition(":")[0]
    before = collect_before(pair)
    pair.ip(ctsw, "route", "add", "blackhole", f"{flow.dst_ip}/32")
    try:
        send(pair, {flow: 5}, dscp=DSCP_DATA)
        result = prove(pair.fabric, collect_after(pair, before, [sent_flow(flow, 5)]))
    finally:
        back(pair, ctsw, flow)
    proof = result.flows[0]
    assert not result.agree and len(proof.oracle) == len(proof.measured) == 1
    assert "kernel nothing, counted nothing" in proof.why and f"predicted {ctsw}:" in proof.why


@pytest.mark.deep
def test_the_oracle_follows_a_kernel_that_leaves_out_a_next_hop() -> None:
    """A failed neighbour, with fib_multipath_use_neigh: no table of next hops says so, the kernel does."""
    with static_fabric("e-ecmp") as lab:
        with inside(lab.handle("rtsw1").netns):
            Path("/proc/sys/net/ipv4/fib_multipath_use_neigh").write_text("1")
        # extern_learn: neigh_periodic_work() removes other failed entries, and no entry counts as a good one.
        lab.ip("rtsw1", "neigh", "replace", GATEWAY, "dev", "eth2", "nud", "failed", "extern_learn")
        flows = [flow for flow in some_flows(lab.fabric, 200) if flow.first_hop.startswith("rtsw1:")]
        before = collect_before(lab)
        send(lab, dict.fromkeys(flows, 1), dscp=DSCP_DATA)
        result = prove(lab.fabric, collect_after(lab, before, [sent_flow(flow, 1) for flow in flows]))
        predicted = [proof for proof in result.flows if proof.predicted and proof.predicted[0] == "rtsw1:eth2"]
        assert predicted and not result.agree
        for proof in result.flows:
            assert proof.oracle == proof.measured and proof.oracle[0] != "rtsw1:eth2"
        for proof in predicted:
            assert proof.why.startswith("the prediction differs from the kernels: predicted rtsw1:eth2, kernel ")


@pytest.mark.deep
def test_without_the_seed_of_the_kernel_the_choice_is_arithmetic_and_says_so() -> None:
    with static_fabric("e-ecmp") as lab:
        for node in lab.fabric.switches:
            with inside(lab.handle(node.name).netns):
                Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").write_text("0")
        flows = some_flows(lab.fabric, 50)
        before = collect_before(lab)
        send(lab, dict.fromkeys(flows, 1), dscp=DSCP_DATA)
        evidence = collect_after(lab, before, [sent_flow(flow, 1) for flow in flows])
        result = prove(lab.fabric, evidence)
        assert result.agree, paths_text(result)
        assert evidence.choices == {"arithmetic": 150}
        assert "choices of the kernel lookup: 150 by the same arithmetic as the prediction" in paths_text(result)


def test_drops_of_best_effort_do_not_excuse_a_loss_of_data(slow: StaticLab) -> None:
    """Five packets of a flow arrive and five vanish at its CTSW; meanwhile best effort overfills the port before it."""
    flow = some_flows(slow.fabric, 1)[0]
    ctsw = expected_path(slow, flow)[1].partition(":")[0]
    before = collect_before(slow)
    send(slow, {flow: 5}, dscp=DSCP_DATA)
    collect_after(slow, before, [sent_flow(flow, 5)])
    slow.ip(ctsw, "route", "add", "blackhole", f"{flow.dst_ip}/32")
    send(slow, {flow: 5}, dscp=DSCP_DATA)
    send(slow, {replace(flow, qpn=flow.qpn + 1): 100}, payload=1000)
    collect_after(slow, before, [sent_flow(flow, 10)])
    back(slow, ctsw, flow)
    result = prove(slow.fabric, collect_after(slow, before, [sent_flow(flow, 10)]))
    port = result.flows[0].measured[0]
    assert result.lost == {port: 5}
    assert not result.agree
    assert result.flows[0].why == f"5 packets vanished after {port}, whose queue dropped 0 of class 3"


@pytest.mark.deep
@pytest.mark.parametrize("other", ["another QP", "UDP"])
def test_drops_of_other_data_of_the_same_class_are_distinguished_by_their_losses(slow: StaticLab, other: str) -> None:
    """Two flows lose packets in one queue: all losses together are all drops, so those of the first are among them."""
    flow = some_flows(slow.fabric, 1)[0]
    path = expected_path(slow, flow)
    plain = (replace(flow, dport=port, qpn=17 << 24 | port) for port in range(9, 99))
    others = [replace(flow, qpn=flow.qpn + 1)] if other == "another QP" else plain
    beside = next(each for each in others if expected_path(slow, each) == path)
    before = collect_before(slow)
    send(slow, {flow: 50}, payload=1000, dscp=DSCP_DATA)
    send(slow, {beside: 50}, payload=1000, dscp=DSCP_DATA)
    evidence = collect_after(slow, before, [sent_flow(flow, 50, payload=1000)])
    result = prove(slow.fabric, evidence)
    port = result.flows[0].measured[0]
    drops = evidence.class_drops(port, 3)
    assert drops is not None and drops > result.lost[port] > 0
    assert result.agree, paths_text(result)


def test_losses_after_the_last_counter_are_seen(pair: StaticLab) -> None:
    """A NIC with another MAC address takes nothing, and no switch counts behind its last port."""
    flow = some_flows(pair.fabric, 1)[0]
    last = expected_path(pair, flow)[-1]
    port = pair.fabric.by_name[flow.dst].ports[0]
    with packet_socket(pair.handle(flow.dst).netns, port.name, ETH_P_ALL, seconds=0) as nic:
        before = collect_before(pair)
        send(pair, {flow: 5}, dscp=DSCP_DATA)
        collect_after(pair, before, [sent_flow(flow, 5)])
        pair.ip(flow.dst, "link", "set", port.name, "address", "02:00:00:00:ee:ee")
        send(pair, {flow: 3}, dscp=DSCP_DATA)
        evidence = collect_after(pair, before, [sent_flow(flow, 8)])
        own = [frame for frame, origin in waiting(nic) if origin[2] == socket.PACKET_HOST]
    taken = sum(frame[36:38] == ROCE_PORT.to_bytes(2, "big") for frame in own)
    result = prove(pair.fabric, replace(evidence, received=(taken,)))
    assert result.flows[0].counted == (8, 8, 8)
    assert not result.agree
    assert result.flows[0].why == f"3 packets vanished after {last}, whose queue dropped 0 of class 3"
    assert "the receiving NICs got 5 of the 8 packets that the last ports counted" in paths_text(result)
