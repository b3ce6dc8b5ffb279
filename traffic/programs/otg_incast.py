"""Three hosts send to the fourth: RoCEv2 by snappi, over the traffic generator of a lab (docs/otg.md).

./inv up tiny
./inv otg serve                    prints the location
python traffic/programs/otg_incast.py http://heddle:TOKEN@127.0.0.1:PORT
"""

import sys
import time

import snappi

HOSTS = {  # host of the lab: its address and gateway, as ./inv inspect HOST shows them
    "host1": ("10.0.0.1", "10.0.0.0"),
    "host2": ("10.0.0.3", "10.0.0.2"),
    "host3": ("10.0.1.1", "10.0.1.0"),
    "host4": ("10.0.1.3", "10.0.1.2"),
}
SECONDS = 3


def configuration(api, receiver="host4"):
    """Ports and devices of all hosts, and a queue pair of each sender."""
    config = api.config()
    for number, (host, (address, gateway)) in enumerate(HOSTS.items(), 1):
        config.ports.add(name=host, location=host)
        device = config.devices.add(name=f"device {host}")
        ethernet = device.ethernets.add(name=f"ethernet {host}", mac=f"02:00:00:00:00:0{number}")
        ethernet.connection.port_name = host
        ethernet.ipv4_addresses.add(name=f"ip {host}", address=address, gateway=gateway)
        if host == receiver:
            continue
        interface = device.rocev2.ipv4_interfaces.add(ipv4_name=f"ip {host}", ib_mtu=4096)
        peer = interface.peers.add(name=f"peer {host}", destination_ip_address=HOSTS[receiver][0])
        pair = peer.qps.add(qp_name=f"qp {host}")
        pair.connection_type.choice = "reliable_connection"
        settings = pair.connection_type.reliable_connection
        settings.source_qp_number, settings.dscp, settings.ecn = 100 + number, 26, "ect_0"
        sending = config.stateful_flows.rocev2.add().tx_ports.add(port_name=host)
        sending.transmit_type.target_line_rate.value = 100
        flow = sending.transmit_type.target_line_rate.flows.add(name=f"{host} to {receiver}", tx_endpoint=f"qp {host}")
        flow.message_size, flow.message_size_unit = 128, "kb"
        flow.rocev2_verb.choice = "write_with_immediate"
    return config


def transmit(api, state):
    """Start or stop all flows."""
    asked = api.control_state()
    asked.traffic.flow_transmit.state = state
    api.set_control_state(asked)


def main(location):
    """Send for some seconds, and print what arrived."""
    api = snappi.api(location=location)
    for warning in api.set_config(configuration(api)).warnings:
        print("warning:", warning)
    transmit(api, "start")
    time.sleep(SECONDS)
    transmit(api, "stop")
    asked = api.metrics_request()
    asked.rocev2_flow.per_qp.column_names = []
    for row in api.get_metrics(asked).rocev2_flow_per_qp_metrics:
        print(
            f"{row.flow_name}: {row.message_complete_rx} messages, {row.data_frames_rx} of {row.data_frames_tx} frames,"
            f" {row.ecn_ce_rx} marked, {row.cnp_rx} CNPs, {row.data_frames_retransmitted} retransmitted"
        )


if __name__ == "__main__":
    main(sys.argv[1])
