"""What a configuration means in a fabric: NICs, rates of the emulation, numbers of queue pairs; and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle_plugins.otg.documents import CONFIG, MOST_FLOWS, check, read
from heddle_plugins.otg.flows import TrafficPlan
from heddle_plugins.otg.plan import FIRST_RESPONDER, plan_of
from heddle_plugins.otg.rules import Remarks


@pytest.fixture(scope="module")
def tiny() -> Fabric:
    return load_fabric("tiny").fabric


def planned(fabric: Fabric, document: Any) -> tuple[TrafficPlan, list[str]]:
    notes = Remarks()
    plan = plan_of(fabric, read(document, CONFIG, notes), notes)
    check(notes)
    return plan, notes.warnings


def refused(fabric: Fabric, document: Any) -> list[str]:
    with pytest.raises(InputError) as found:
        planned(fabric, document)
    return [str(each).partition("\n")[0] for each in found.value.problems]


def address(fabric: Fabric, host: str) -> str:
    port = next(each for each in fabric.nics if each.node == host)
    assert port.address is not None
    return str(port.address.ip)


def config(fabric: Fabric, **more: Any) -> dict[str, Any]:
    """Ports p1, p2, p3 at the first hosts, a device each, and what a test adds."""
    hosts = ("host1", "host2", "host3")
    devices = [
        {"name": f"d{i}", "ethernets": [{
            "name": f"e{i}", "connection": {"port_name": f"p{i}"},
            "ipv4_addresses": [{"name": f"i{i}", "address": address(fabric, host), "gateway": gateway(fabric, host)}],
        }]}
        for i, host in enumerate(hosts, 1)
    ]  # fmt: skip
    ports = [{"name": f"p{i}", "location": host} for i, host in enumerate(hosts, 1)]
    return {"ports": ports, "devices": devices, **more}


def gateway(fabric: Fabric, host: str) -> str:
    port = next(each for each in fabric.nics if each.node == host)
    found = fabric.gateways[port.node, port.name].address
    assert found is not None
    return str(found.ip)


def flow(name: str = "f", rx: str = "p2", **more: Any) -> dict[str, Any]:
    packet = [{"choice": "ethernet"}, {"choice": "ipv4"}, {"choice": "udp"}]
    return {"name": name, "tx_rx": {"port": {"tx_name": "p1", "rx_names": [rx]}}, "packet": packet, **more}


def roce(to: str, **more: Any) -> dict[str, Any]:
    """Device 1 with a queue pair, and its flow."""
    qp = {"qp_name": "q", "connection_type": {"reliable_connection": {"source_qp_number": 9}}}
    interface = {"ipv4_name": "i1", "ib_mtu": 1024, "peers": [
        {"name": "x", "destination_ip_address": to, "qps": [qp]}]}  # fmt: skip
    sending = {"port_name": "p1", "transmit_type": {"target_line_rate": {
        "value": 50, "flows": [{"name": "m", "tx_endpoint": "q", "message_size_unit": "kb", **more}]}}}  # fmt: skip
    return {"interface": interface, "stateful_flows": {"rocev2": [{"tx_ports": [sending]}]}}


def with_roce(fabric: Fabric, to: str, **more: Any) -> dict[str, Any]:
    parts, found = roce(to, **more), config(fabric)
    found["devices"][0]["rocev2"] = {"ipv4_interfaces": [parts["interface"]]}
    return {**found, "stateful_flows": parts["stateful_flows"]}


def test_rates_are_divided_by_k_gaps_are_multiplied_and_percentages_are_not(tiny: Fabric) -> None:
    k, rate = tiny.policy.k, tiny.nics[0].rate_bps
    flows = [
        flow("pps", rate={"pps": 1000}), flow("bits", rate={"choice": "gbps", "gbps": 1}, size={"fixed": 1000}),
        flow("part", rate={"choice": "percentage", "percentage": 25}, size={"fixed": 1000}),
        flow("burst", duration={"choice": "burst", "burst": {"packets": 4, "bursts": 3, "inter_burst_gap": {
            "choice": "microseconds", "microseconds": 5}}}),
        flow("some", duration={"choice": "fixed_seconds", "fixed_seconds": {"seconds": 2.5}}),
    ]  # fmt: skip
    for number, each in enumerate(flows):
        each["packet"][2]["udp"] = {"dst_port": {"value": number}}
    found = {each.name: each for each in planned(tiny, config(tiny, flows=flows))[0].raw}
    assert found["pps"].pps == 1000 / k and found["bits"].pps == 1e9 / 8000 / k
    assert found["part"].pps == rate / 4 / 8000
    assert (found["burst"].packets, found["burst"].burst) == (12, 4)
    assert found["burst"].gap_s == pytest.approx(5e-6 * k)
    assert (found["some"].packets, found["some"].seconds) == (None, 2.5)


def test_a_queue_pair_gets_a_responder_at_the_nic_that_has_its_address(tiny: Fabric) -> None:
    plan, warnings = planned(tiny, with_roce(tiny, address(tiny, "host3")))
    (found,) = plan.roce
    assert (found.qp.port.name, found.rx.name, found.responder, found.share) == ("p1", "p3", FIRST_RESPONDER, 0.5)
    assert found.message_bytes == 1024 and found.verb == "write" and plan.flow_names == ["m"]
    assert [each.partition(": ")[2].partition(" ms is ")[0] for each in warnings] == ["retransmission_timeout_value 1"]
    plan, warnings = planned(tiny, with_roce(tiny, "0.0.0.0"))
    assert plan.roce == () and "has no destination" in warnings[0]


def test_what_cannot_be_in_this_fabric_is_named(tiny: Fabric) -> None:
    line = tiny.nics[0].rate_bps * tiny.policy.k // 10**9
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ports": [{"name": "p", "location": "hots1"}]}, "ports[0].location is hots1: names hots1, which is not a"),
        ({"ports": [{"name": "p", "location": "rtsw1"}]}, "ports[0].location is rtsw1: names rtsw1"),
        ({"ports": [{"name": "p", "location": "host1"}, {"name": "q", "location": "host1:eth1"}]},
         "ports[1] names host1:eth1, as another port does"),
        (config(tiny, flows=[flow(rx="p9")]), "flows[0].tx_rx.port.rx_names is p9, which is not a port"),
        (config(tiny, flows=[flow(), flow("g")]), "flows has g and f, whose frames port p2 cannot tell apart"),
        (config(tiny, flows=[flow(rate={"choice": "gbps", "gbps": line + 1})]),
         f"flows[0].rate is {line + 1} gbps, above the rate of host1:eth1"),
        (config(tiny, flows=[flow(size={"fixed": 20})]), "flows[0].size is 20 bytes"),
        (config(tiny, flows=[flow(size={"fixed": 9000})]), "flows[0].size is 9000 bytes"),
        (config(tiny, captures=[{"name": "c", "port_names": ["p9"]}]), "captures[0].port_names is p9"),
        (with_roce(tiny, "192.0.2.1"),
         "stateful_flows.rocev2[0].tx_ports[0].transmit_type.target_line_rate.flows[0] sends"),
        (with_roce(tiny, address(tiny, "host3"), message_size=1, message_size_unit="gb"),
         "stateful_flows.rocev2[0].tx_ports[0].transmit_type.target_line_rate.flows[0].message_size is 1073741824"),
        (with_roce(tiny, address(tiny, "host3"), tx_endpoint="p"),
         "stateful_flows.rocev2[0].tx_ports[0].transmit_type.target_line_rate.flows[0].tx_endpoint is p"),
    ]  # fmt: skip
    for document, said in cases:
        found = refused(tiny, document)
        assert len(found) == 1 and found[0].startswith(said), found
    wrong = config(tiny)
    wrong["devices"][0]["ethernets"][0]["ipv4_addresses"][0]["address"] = "192.0.2.9"
    assert refused(tiny, wrong) == [
        f"devices[0].ethernets[0].ipv4_addresses[0].address is 192.0.2.9, and host1:eth1 has {address(tiny, 'host1')}"
    ]


def test_the_largest_configuration_is_read_and_a_larger_one_refused(tiny: Fabric) -> None:
    flows = [flow(f"f{number}") for number in range(MOST_FLOWS + 1)]
    for number, each in enumerate(flows):
        each["packet"][2] = {"choice": "udp", "udp": {"dst_port": {"value": number + 1}}}
    assert len(planned(tiny, config(tiny, flows=flows[:-1]))[0].raw) == MOST_FLOWS
    assert refused(tiny, config(tiny, flows=flows)) == ["flows has 1025 items"]
    both = with_roce(tiny, address(tiny, "host3"))
    assert refused(tiny, {**both, "flows": flows[:-1]}) == ["flows are 1025 with those of RoCEv2"]
