"""A traffic generator over a live fabric, configured by snappi: its metrics are those of the switches and of queues."""

from __future__ import annotations

import struct

from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.lab.snapshot import LabPart
from heddle.switch.counters import SwitchCounters
from tests.otgclient import (
    capture,
    generator,
    port_rows,
    qp_rows,
    roce_flow,
    settled,
    transmit,
    udp_flow,
    with_ports,
)


def counted(lab: Lab) -> dict[str, SwitchCounters]:
    return dict(lab.snapshot(LabPart.COUNTERS).counters)


def at_port(lab: Lab, before: dict[str, SwitchCounters], port: str, qpn: int) -> tuple[int, int]:
    """Packets and bytes of a QP, or of a destination port, that left by a switch port since then."""
    switch, _, name = port.partition(":")
    rows = [row for row in counted(lab)[switch].since(before[switch]).flows if (row.port, row.qpn) == (name, qpn)]
    return sum(row.packets for row in rows), sum(row.bytes for row in rows)


def leaf_port(lab: Lab, host: str) -> str:
    return next(each.peer_ref for each in lab.fabric.nics if each.node == host)


def address_of(lab: Lab, host: str) -> str:
    port = next(each for each in lab.fabric.nics if each.node == host)
    assert port.address is not None
    return str(port.address.ip)


def test_a_client_gets_the_counters_of_switches_and_queues_for_raw_and_rocev2_flows(tiny: Lab) -> None:
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host3"])
        raw = udp_flow(config, "raw", src_port=5000, dst_port=6000)
        raw.size.fixed, raw.rate.percentage, raw.duration.fixed_packets.packets = 500, 20, 300
        flow = roce_flow(config, 1, address_of(tiny, "host3"), source_qp_number=77, dscp=26)
        flow.rocev2_verb.choice = "send_with_immediate"
        config.captures.add(name="seen", port_names=["p2"])
        api.set_config(config)
        assert api.get_config().serialize() == config.serialize()
        capture(api, "start")
        before = counted(tiny)
        queues = {row.port: row for row in read_queues(tiny).rows}
        transmit(api, "start", "raw")
        done = settled(api)["raw"]
        assert (done.frames_tx, done.frames_rx, done.bytes_tx, done.bytes_rx, done.loss) == (
            300,
            300,
            150_000,
            150_000,
            0,
        )
        assert at_port(tiny, before, leaf_port(tiny, "host3"), 17 << 24 | 6000) == (300, 150_000)

        transmit(api, "start", "qp 1")
        transmit(api, "stop")
        done = qp_rows(api)["qp 1"]
        assert done.message_tx == done.message_complete_rx > 0 and done.message_fail == done.frame_delta == 0
        assert done.data_frames_tx == done.data_frames_rx and done.ack_tx == done.ack_rx > 0
        sent = at_port(tiny, before, leaf_port(tiny, "host3"), done.dest_qp)
        assert sent == (done.data_frames_rx, done.rx_bytes) == (done.data_frames_tx, done.tx_bytes)
        assert at_port(tiny, before, leaf_port(tiny, "host1"), 77)[0] == done.ack_tx + done.cnp_tx
        ports = port_rows(api)
        assert (ports["p1"].link, ports["p1"].transmit) == ("up", "stopped")

        asked = api.capture_request()
        asked.port_name = "p2"
        frames = records(api.get_capture(asked).read())
        of_raw = [frame for frame in frames if frame[23] == 17 and frame[34:38] == struct.pack(">HH", 5000, 6000)]
        assert len(of_raw) == 300 and {len(frame) for frame in of_raw} == {500}
        assert queues


def records(pcap: bytes) -> list[bytes]:
    """The frames of a pcap file."""
    assert struct.unpack_from("<I", pcap)[0] == 0xA1B2C3D4
    found, at = [], 24
    while at < len(pcap):
        size = struct.unpack_from("<4I", pcap, at)[2]
        found.append(pcap[at + 16 : at + 16 + size])
        at += 16 + size
    return found
