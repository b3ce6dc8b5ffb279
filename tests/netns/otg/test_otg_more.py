"""More of the traffic generator on a live fabric: ports, losses, schedules, states, clients that go, congestion."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.base import owners
from heddle.base.problems import InputError
from heddle.base.resources import HERE
from heddle.lab.faults import record
from heddle.lab.faults.packets import write_faults
from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.spec.impairments import NO_FAULT, LinkFault
from tests.netns.otg.test_otg_live import address_of, at_port, counted, leaf_port
from tests.otgclient import (
    client,
    flow_rows,
    generator,
    port_rows,
    qp_rows,
    roce_flow,
    served,
    settled,
    transmit,
    udp_flow,
    until,
    with_ports,
)

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.deep


@contextmanager
def losing(lab: Lab, port: str, loss: float) -> Iterator[None]:
    with record.changing(lab):
        write_faults(lab, {port: LinkFault(loss=loss)})
    try:
        yield
    finally:
        with record.changing(lab):
            write_faults(lab, {port: NO_FAULT})


def left_by(lab: Lab, port: str, dscp: int | None = None) -> tuple[int, int, int]:
    """Packets and bytes that left a port by its queues, and packets that its link lost.

    dscp: only those of its class: the kernel's own packets, as of ARP, are of another one.
    """
    only = None if dscp is None else lab.fabric.policy.queues.class_of_dscp[dscp]
    rows = [row for row in read_queues(lab).rows if row.port == port and only in (None, row.traffic_class)]
    return sum(r.packets for r in rows), sum(r.bytes for r in rows), sum(r.drops.get("fault", 0) for r in rows)


def changed(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(now - then for now, then in zip(after, before, strict=True))


def test_what_a_link_loses_is_the_difference_of_the_metrics(tiny: Lab) -> None:
    last, first = leaf_port(tiny, "host3"), "host1:eth1"
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host3"])
        raw = udp_flow(config, "raw", dst_port=6000)
        raw.size.fixed, raw.rate.percentage, raw.duration.fixed_packets.packets = 400, 20, 400
        api.set_config(config)
        ports, sent, arrived = port_rows(api), left_by(tiny, first), left_by(tiny, last)
        with losing(tiny, last, 0.25):
            transmit(api, "start", "raw")
            done = settled(api)["raw"]
        lost = changed(arrived, left_by(tiny, last))[2]
        assert (done.frames_tx, done.frames_rx) == (400, 400 - lost) and 0 < lost < 400
        assert done.loss == pytest.approx(lost / 4) and done.bytes_rx == 400 * done.frames_rx
        after = port_rows(api)
        frames = after["p1"].frames_tx - ports["p1"].frames_tx, after["p1"].bytes_tx - ports["p1"].bytes_tx
        assert frames == changed(sent, left_by(tiny, first))[:2] and frames[0] >= 400
        assert after["p2"].frames_rx - ports["p2"].frames_rx == changed(arrived, left_by(tiny, last))[0] - lost


def test_queue_pairs_retransmit_what_is_lost(tiny: Lab) -> None:
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host3"])
        roce_flow(config, 1, address_of(tiny, "host3"), source_qp_number=300, dscp=26)
        api.set_config(config)
        before, lost = counted(tiny), left_by(tiny, leaf_port(tiny, "host3"), dscp=26)[2]
        with losing(tiny, leaf_port(tiny, "host3"), 0.05):
            transmit(api, "start")
            until(lambda: qp_rows(api)["qp 1"].data_frames_retransmitted > 3)
            transmit(api, "stop")
        done = qp_rows(api)["qp 1"]
        lost = left_by(tiny, leaf_port(tiny, "host3"), dscp=26)[2] - lost
        assert done.message_fail == 0 and done.nak_tx > 0 and done.frame_sequence_error > 0
        assert done.frame_delta == lost == done.data_frames_tx - done.data_frames_rx
        assert at_port(tiny, before, leaf_port(tiny, "host3"), done.dest_qp) == (done.data_frames_tx, done.tx_bytes)


def test_bursts_seconds_pause_and_resume(tiny: Lab) -> None:
    k = tiny.fabric.policy.k
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host3"])
        burst = udp_flow(config, "burst", dst_port=1)
        burst.duration.burst.bursts, burst.duration.burst.packets = 5, 8
        burst.duration.burst.inter_burst_gap.microseconds = 1e5 / k
        burst.rate.percentage = 10
        some = udp_flow(config, "some", dst_port=2)
        some.duration.fixed_seconds.seconds, some.rate.pps = 1, 200 * k
        without_end = udp_flow(config, "endless", dst_port=3)
        without_end.rate.pps = 500 * k
        api.set_config(config)
        transmit(api, "start", "burst", "some")
        assert not api_free(tiny)
        done = settled(api)
        assert (done["burst"].frames_tx, done["burst"].frames_rx) == (40, 40)
        assert done["some"].frames_rx == done["some"].frames_tx and 100 <= done["some"].frames_tx <= 200
        until(lambda: api_free(tiny))
        transmit(api, "start", "endless")
        until(lambda: flow_rows(api)["endless"].frames_tx > 20)
        transmit(api, "pause", "endless")
        row = flow_rows(api)["endless"]
        assert row.transmit == "paused"
        time.sleep(0.2)
        assert flow_rows(api)["endless"].frames_tx == row.frames_tx
        transmit(api, "resume", "endless")
        until(lambda: flow_rows(api)["endless"].frames_tx > row.frames_tx)
        transmit(api, "stop", "endless")
        assert api_free(tiny)
        done = flow_rows(api)
        assert done["endless"].frames_tx == done["endless"].frames_rx and done["burst"].frames_tx == 40


def api_free(lab: Lab) -> bool:
    """Whether no flow has the lab's lock."""
    try:
        with owners.lock(lab.name):
            return True
    except InputError:
        return False


def test_flows_of_a_client_that_goes_end_by_themselves(tiny: Lab) -> None:
    with generator(tiny, idle_s=2.0) as api:
        config = with_ports(api, tiny, ["host1", "host2"])
        udp_flow(config, "endless", dst_port=3).rate.percentage = 1
        roce_flow(config, 1, address_of(tiny, "host2"), source_qp_number=300)
        api.set_config(config)
        transmit(api, "start")
        assert not api_free(tiny)
        until(lambda: api_free(tiny))  # asks nothing of the server
        rows = flow_rows(api)
        assert rows["endless"].transmit == "stopped" and rows["endless"].frames_tx == rows["endless"].frames_rx > 0
        assert "no request for 2 s" in "".join(transmit(api, "stop"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_server_ends_its_flows(tiny: Lab, how: signal.Signals) -> None:
    argv = [*HERE.command(), "otg", "serve", tiny.name, "--format=json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as proc:
        try:
            assert proc.stdout is not None
            text = ""
            while not text.endswith("}\n"):
                line = proc.stdout.readline()
                assert line
                text += line
            api = client(json.loads(text)["location"])
            config = with_ports(api, tiny, ["host1", "host2"])
            udp_flow(config, "endless", dst_port=3).rate.percentage = 1
            api.set_config(config)
            transmit(api, "start")
            until(lambda: flow_rows(api)["endless"].frames_rx > 0)
            assert not api_free(tiny)
        finally:
            proc.send_signal(how)
    until(lambda: api_free(tiny))
    assert proc.returncode == (0 if how == signal.SIGTERM else -how)
    with generator(tiny) as api:  # nothing is left that a new server would meet
        api.set_config(config)
        assert flow_rows(api)["endless"].frames_tx == 0


def test_congestion_is_marked_and_notified(tiny: Lab) -> None:
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host2", "host3"])
        for number in (1, 2):
            roce_flow(config, number, address_of(tiny, "host3"), source_qp_number=300 + number, dscp=26, ecn="ect_0")
        for name in ("p1", "p2", "p3"):
            protocols = config.options.per_port_options.add(port_name=name).protocols
            protocol = protocols.add()
            protocol.choice = "rocev2"
            protocol.rocev2.dcqcn_settings.enable_dcqcn = True
            protocol.rocev2.dcqcn_settings.initial_rate_after_first_cnp = 30
        api.set_config(config)
        before = counted(tiny)
        transmit(api, "start")
        until(lambda: all(row.cnp_rx > 0 for row in qp_rows(api).values()))
        transmit(api, "stop")
        for name, row in qp_rows(api).items():
            assert row.ecn_ce_rx >= row.cnp_tx == row.cnp_rx > 0 and row.frame_delta == 0 == row.message_fail, name
            assert at_port(tiny, before, leaf_port(tiny, "host3"), row.dest_qp) == (row.data_frames_rx, row.rx_bytes)
            assert (
                at_port(tiny, before, leaf_port(tiny, row.port_tx.replace("p", "host")), row.src_qp)[0]
                == row.ack_tx + row.cnp_tx
            )


def test_what_a_lossy_class_drops_is_the_difference_and_a_lossless_class_drops_nothing(tiny: Lab) -> None:
    """Pairs in both directions, as data-plane tests of switches have them: one lossless, one lossy with two classes."""
    hosts = ["host1", "host2", "host3", "host4"]
    with generator(tiny) as api:
        config = with_ports(api, tiny, hosts)
        for number, peer in ((1, "host3"), (3, "host1"), (2, "host4"), (4, "host2")):
            dscps = [26] if number % 2 else [0, 8]
            for index, dscp in enumerate(dscps):
                flow = roce_flow(
                    config, number, address_of(tiny, peer), f" {dscp}", source_qp_number=33 + index, dscp=dscp,
                    ecn="non_ect",
                )  # fmt: skip
                flow.rocev2_verb.choice = "send_with_immediate"
                flow.rocev2_verb.send_with_immediate.immediate_data = "aa"
            protocol = config.options.per_port_options.add(port_name=f"p{number}").protocols.add()
            protocol.choice = "rocev2"
            protocol.rocev2.dcqcn_settings.enable_dcqcn = False
            answers = protocol.rocev2.connection_type.reliable_connection
            answers.ack.ip_dscp.value = answers.nak.ip_dscp.value = 48
            answers.retransmission_timeout_value, answers.retransmission_retry_count = 5000, 254
        api.set_config(config)
        drops = {(row.port, row.traffic_class): row.dropped for row in read_queues(tiny).rows}
        transmit(api, "start")
        until(lambda: all(row.message_complete_rx > 0 for row in qp_rows(api).values()))
        transmit(api, "stop")
        rows = qp_rows(api)
        now = {(row.port, row.traffic_class): row.dropped for row in read_queues(tiny).rows}
        lost = {key: now[key] - before for key, before in drops.items()}
        assert sum(row.frame_delta for row in rows.values()) == sum(lost.values())
        assert all(row.message_fail == 0 and row.ecn_ce_rx == row.cnp_tx == 0 for row in rows.values())
        assert all(rows[name].frame_delta == 0 for name in ("qp 1 26", "qp 3 26"))


def test_the_example_prints_what_arrived(tiny: Lab) -> None:
    with served(tiny) as location:
        argv = [sys.executable, str(ROOT / "traffic/programs/otg_incast.py"), location]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(host\d) to host4: (\d+) messages, (\d+) of (\d+) frames", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["host1", "host2", "host3"] and all(int(row[1]) > 0 for row in rows)


def test_pause_frames_of_a_port_pause_the_switch(tiny: Lab) -> None:
    leaf, lossless = leaf_port(tiny, "host3"), tiny.fabric.policy.queues.lossless[0]

    def pauses() -> int:
        rows = [row for row in read_queues(tiny).rows if (row.port, row.traffic_class) == (leaf, lossless)]
        return rows[0].pfc_received

    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host3"])
        flow = config.flows.add(name="pause")
        flow.tx_rx.port.tx_name = "p2"
        (header,) = flow.packet.pfcpause()
        header.class_enable_vector.value = 1 << lossless
        getattr(header, f"pause_class_{lossless}").value = 10
        flow.rate.pps, flow.duration.fixed_packets.packets = 200 * tiny.fabric.policy.k, 50
        api.set_config(config)
        before = pauses()
        transmit(api, "start")
        assert settled(api)["pause"].frames_tx == 50
        until(lambda: pauses() - before == 50)


@pytest.mark.parametrize("controlled", [False, True])
def test_queue_pairs_share_the_rate_of_their_port(tiny: Lab, controlled: bool) -> None:
    share = 10
    line = next(each.rate_bps for each in tiny.fabric.nics if each.node == "host1")
    with generator(tiny) as api:
        config = with_ports(api, tiny, ["host1", "host2"])
        for number in (1, 2):
            roce_flow(config, 1, address_of(tiny, "host2"), f" {number}", source_qp_number=number + 5, dscp=26)
        for sending in config.stateful_flows.rocev2:
            sending.tx_ports[0].transmit_type.target_line_rate.value = share
        for name in ("p1", "p2"):
            protocol = config.options.per_port_options.add(port_name=name).protocols.add()
            protocol.choice = "rocev2"
            protocol.rocev2.dcqcn_settings.enable_dcqcn = controlled
        api.set_config(config)
        began = time.monotonic()
        transmit(api, "start")
        until(lambda: all(row.message_complete_rx > 0 for row in qp_rows(api).values()))
        transmit(api, "stop")
        sent = sum(row.tx_bytes for row in qp_rows(api).values())
        # Its first packets leave together (ratecontrol.CATCH_UP_NS), and the last ones at the end of `stop`.
        assert 8 * sent <= 1.1 * line * share / 100 * (time.monotonic() - began) + 8 * 16 * 4200
        assert {row.message_fail for row in qp_rows(api).values()} == {0}
