"""Documents of Open Traffic Generator that are wrong: every error is named with its place, and none is ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
import snappi

from heddle.base.problems import InputError
from heddle_plugins.otg.documents import CAPTURE, CONFIG, CONTROL, METRICS, read
from heddle_plugins.otg.rules import MOST_ERRORS, Remarks, Rule

FLOW = {"name": "f", "tx_rx": {"port": {"tx_name": "p1"}}, "packet": [{"choice": "ethernet"}]}


def errors(document: Any, rule: Rule = CONFIG) -> list[str]:
    """The first line of each error of a document; none if it is right."""
    try:
        read(document, rule, Remarks())
    except InputError as error:
        return [str(each).partition("\n")[0] for each in error.problems]
    return []


def flow(**changed: Any) -> dict[str, Any]:
    return {"flows": [{**FLOW, **changed}]}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "the document is [], which is not an object"),
        ({"portz": []}, "portz is not a field that this server supports"),
        ({"ports": {}}, "ports is {}, which is not a list"),
        ({"ports": [{"name": "p"}]}, "ports[0].location is missing"),
        ({"ports": [{"name": 3, "location": "h"}]}, "ports[0].name is 3, which is not a text of 1 to 256 characters"),
        ({"ports": [{"name": "p", "location": "h"}] * 257}, "ports has 257 items"),
        ({"lags": []}, "lags is not a field that this server supports"),
        (flow(rate={"choice": "pps", "pps": 0}), "flows[0].rate.pps is 0"),
        (flow(rate={"choice": "pps", "pps": "1e3"}), "flows[0].rate.pps is 1e3, which is not a whole number"),
        (flow(rate={"choice": "percentage", "percentage": 101}), "flows[0].rate.percentage is 101"),
        (flow(rate={"choice": "warp"}), "flows[0].rate.choice is warp, which is not supported"),
        (flow(rate={"choice": "pps", "gbps": 1}), "flows[0].rate.gbps does not apply: the choice is pps"),
        (flow(rate={"percentage": float("nan")}), "flows[0].rate.percentage is nan, which is not a number"),
        (flow(size={"choice": "random"}), "flows[0].size.choice is random, which is not supported"),
        (flow(metrics={"timestamps": True}), "flows[0].metrics.timestamps is True: arrival times are not kept"),
        (flow(packet=[]), "flows[0].packet has 0 items"),
        (flow(packet=[{"choice": "mpls"}]), "flows[0].packet[0].choice is mpls, which is not supported"),
        (flow(packet=[{"choice": "custom", "custom": {"bytes": "0xzz"}}]),
         "flows[0].packet[0].custom.bytes is 0xzz, which is not bytes in hexadecimal"),
        (flow(packet=[{"ipv4": {"src": {"value": "10.0.0.256"}}}]),
         "flows[0].packet[0].ipv4.src.value is 10.0.0.256, which is not an IPv4 address"),
        (flow(packet=[{"ethernet": {"dst": {"value": "02:00"}}}]),
         "flows[0].packet[0].ethernet.dst.value is 02:00, which is not a MAC address"),
        (flow(packet=[{"udp": {"src_port": {"increment": {"count": 5000}}}}]),
         "flows[0].packet[0].udp.src_port.increment.count is 5000"),
        (flow(packet=[{"udp": {"src_port": {"value": 65536}}}]), "flows[0].packet[0].udp.src_port.value is 65536"),
        (flow(packet=[{"ipv4": {"priority": {"tos": {}}}}]),
         "flows[0].packet[0].ipv4.priority.choice is tos, which is not supported"),
        ({"captures": [{"name": "c", "port_names": ["p"], "format": "pcapng"}]},
         "captures[0].format is pcapng: captures are answered as pcap"),
        ({"options": {"per_port_options": [{"port_name": "p", "protocols": [
            {"rocev2": {"dcqcn_settings": {"alpha_g": "1024"}}}]}]}},
         "options.per_port_options[0].protocols[0].rocev2.dcqcn_settings.alpha_g is 1024"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(document: Any, said: str) -> None:
    assert errors(document) == [said]


def test_all_errors_come_together_and_their_number_is_bounded() -> None:
    found = errors({"flows": [{**FLOW, "rate": {"pps": 0}, "size": {"fixed": 3}, "hurry": 1}], "lags": 1})
    assert sorted(each.partition(" is ")[0] for each in found) == [
        "flows[0].hurry", "flows[0].rate.pps", "flows[0].size.fixed", "lags",
    ]  # fmt: skip
    assert len(errors({f"x{number}": 1 for number in range(10 * MOST_ERRORS)})) == MOST_ERRORS


def test_a_field_without_effect_is_a_warning() -> None:
    notes = Remarks()
    read({"layer1": [{"name": "l", "speed": "speed_400_gbps"}]}, CONFIG, notes)
    assert notes.warnings == ["layer1: has no effect: links have the rates, MTUs and PFC classes of the lab"]


@pytest.mark.parametrize(
    ("document", "rule", "said"),
    [
        ({}, CONTROL, "choice is None, which is not supported"),
        ({"choice": "traffic"}, CONTROL, "traffic is missing"),
        ({"traffic": {"flow_transmit": {}}}, CONTROL, "traffic.flow_transmit.state is missing"),
        ({"traffic": {"flow_transmit": {"state": "go"}}}, CONTROL,
         "traffic.flow_transmit.state is go, which is not supported"),
        ({"port": {"link": {"state": "down"}}}, CONTROL, "port.choice is link, which is not supported"),
        ({"choice": "bgpv4"}, METRICS, "choice is bgpv4, which is not supported"),
        ({"port": {"port_names": [1]}}, METRICS, "port.port_names[0] is 1, which is not a text of 1 to 256 characters"),
        ({}, CAPTURE, "port_name is missing"),
    ],
)  # fmt: skip
def test_wrong_requests(document: Any, rule: Rule, said: str) -> None:
    assert errors(document, rule) == [said]


def test_what_snappi_writes_is_read_with_its_values() -> None:
    config = snappi.api(location="http://127.0.0.1:1").config()
    config.ports.add(name="p1", location="host1")
    made = config.flows.add(name="f")
    made.tx_rx.port.tx_name = "p1"
    ethernet, vlan, ip, tcp = made.packet.ethernet().vlan().ipv4().tcp()
    ethernet.src.value, vlan.id.value = "02:00:00:00:00:0a", 7
    ip.priority.dscp.phb.value, ip.priority.dscp.ecn.value = 26, 2
    ip.src.increment.start, ip.src.increment.step, ip.src.increment.count = "10.0.0.1", "0.0.0.2", 3
    tcp.src_port.values = [5, 9]
    made.rate.gbps, made.duration.burst.packets, made.size.fixed = 3, 4, 128
    found = read(json.loads(config.serialize()), CONFIG, Remarks())["flows"][0]
    headers = dict(found["packet"])
    assert headers["ethernet"]["src"] == (0x02000000000A,) and headers["vlan"]["id"] == (7,)
    assert headers["ipv4"]["priority"] == (26 << 2 | 2,)
    assert headers["ipv4"]["src"] == (0x0A000001, 0x0A000003, 0x0A000005)
    assert headers["tcp"]["src_port"] == (5, 9)
    assert found["rate"] == ("gbps", 3) and found["duration"][1]["packets"] == 4
