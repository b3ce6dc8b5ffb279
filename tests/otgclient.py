"""snappi's own client, unmodified, and a traffic generator that it configures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import snappi

from heddle.host.webserver import LOOPBACK, listen
from heddle.lab.lab import Lab
from heddle_plugins.otg.serving import OtgServer
from tests.webclient import TOKEN, running


@contextmanager
def served(lab: Lab, idle_s: float = 60.0) -> Iterator[str]:
    """A server for the lab; its location."""
    with running(OtgServer(listen(LOOPBACK, 0, TOKEN), lab.name, idle_s)) as port:
        yield f"http://heddle:{TOKEN}@{LOOPBACK}:{port}"


@contextmanager
def generator(lab: Lab, idle_s: float = 60.0) -> Iterator[Any]:
    """A client of a server for the lab."""
    with served(lab, idle_s) as location:
        yield client(location)


def client(location: str) -> Any:
    """snappi's client over HTTP."""
    return snappi.api(location=location, version_check=True, verify=False)


def with_ports(api: Any, lab: Lab, hosts: Sequence[str]) -> Any:
    """A configuration with a port `pN` and a device for each host, with the addresses of the lab."""
    config = api.config()
    for number, host in enumerate(hosts, 1):
        port = next(each for each in lab.fabric.nics if each.node == host)
        assert port.address is not None
        config.ports.add(name=f"p{number}", location=host)
        device = config.devices.add(name=f"device {number}")
        ethernet = device.ethernets.add(name=f"eth {number}", mac=port.mac)
        ethernet.connection.port_name = f"p{number}"
        gateway = lab.fabric.gateways[port.node, port.name].address
        assert gateway is not None
        ethernet.ipv4_addresses.add(name=f"ip {number}", address=str(port.address.ip), gateway=str(gateway.ip))
    return config


def udp_flow(config: Any, name: str, tx: int = 1, rx: int = 2, **fields: Any) -> Any:
    """A flow of UDP packets from one port to another, with metrics. fields: of the UDP header, single values."""
    flow = config.flows.add(name=name)
    flow.tx_rx.device.tx_names, flow.tx_rx.device.rx_names = [f"ip {tx}"], [f"ip {rx}"]
    _, _, udp = flow.packet.ethernet().ipv4().udp()
    for field, value in fields.items():
        getattr(udp, field).value = value
    flow.metrics.enable = flow.metrics.loss = True
    return flow


def roce_flow(config: Any, number: int, to: str, suffix: str = "", **qp: Any) -> Any:
    """A queue pair of device `number` that sends messages to an address; the flow, named `qp N` and the suffix."""
    name = f"qp {number}{suffix}"
    device = config.devices[number - 1]
    interface = device.rocev2.ipv4_interfaces.add(ipv4_name=f"ip {number}", ib_mtu=4096)
    peer = interface.peers.add(name=f"peer {number}{suffix}", destination_ip_address=to)
    pair = peer.qps.add(qp_name=name)
    pair.connection_type.choice = "reliable_connection"
    for field, value in qp.items():
        setattr(pair.connection_type.reliable_connection, field, value)
    sending = config.stateful_flows.rocev2.add().tx_ports.add(port_name=f"p{number}")
    sending.transmit_type.target_line_rate.value = 100
    return sending.transmit_type.target_line_rate.flows.add(
        tx_endpoint=name, name=name, message_size=64, message_size_unit="kb"
    )


def transmit(api: Any, state: str, *names: str) -> list[str]:
    """Start, stop, pause or resume flows; the warnings."""
    asked = api.control_state()
    asked.traffic.flow_transmit.state = state
    if names:
        asked.traffic.flow_transmit.flow_names = [*names]
    return list(api.set_control_state(asked).warnings)


def capture(api: Any, state: str) -> None:
    """Start or stop all captures."""
    asked = api.control_state()
    asked.port.capture.state = state
    api.set_control_state(asked)


def flow_rows(api: Any) -> dict[str, Any]:
    """Raw flows by name."""
    asked = api.metrics_request()
    asked.flow.flow_names = []
    return {row.name: row for row in api.get_metrics(asked).flow_metrics}


def port_rows(api: Any) -> dict[str, Any]:
    """Ports by name."""
    asked = api.metrics_request()
    asked.port.port_names = []
    return {row.name: row for row in api.get_metrics(asked).port_metrics}


def qp_rows(api: Any) -> dict[str, Any]:
    """Flows of RoCEv2 by name."""
    asked = api.metrics_request()
    asked.rocev2_flow.per_qp.column_names = []
    return {row.flow_name: row for row in api.get_metrics(asked).rocev2_flow_per_qp_metrics}


def until(ready: Callable[[], bool], seconds: float = 120.0) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def settled(api: Any) -> dict[str, Any]:
    """Raw flows when all are stopped."""
    until(lambda: all(row.transmit == "stopped" for row in flow_rows(api).values()))
    return flow_rows(api)
