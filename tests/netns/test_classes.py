"""Classes of a port: a packet's DSCP chooses one, and they share by their weights what control leaves.

IPv6: tests/netns/test_queue_program.py reads the DSCP of both. Control goes before all others: test_disciplines.py and
test_pfc_gates.py; how much less it waits is a figure of `./inv bench queues`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from heddle.base.process import run
from heddle.fabric.model import Node
from heddle.kernel.namespace import inside
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.portids import row
from heddle.traffic.flow import Flow
from tests.machine import patience
from tests.netns.static_fabric import StaticLab, address, dropping, roce_frame, static_fabric

pytestmark = pytest.mark.root

FAST = {"host": "1gbit", "fabric": "20mbit"}


# Three hosts in each of two racks, and one path between them.
KEYS: dict[str, Any] = {"weights": (1,), "hosts_per_rack": 3, "link": FAST}


def flow_of(lab: StaticLab, source: Node) -> Flow:
    """From a host of the first rack to the last host of the second."""
    there = lab.fabric.hosts[-1]
    ends = (source.name, there.name, address(source), address(there))
    return Flow(*ends, sport=0xC000 + source.index, qpn=source.index, first_hop=source.ports[0].peer_ref)


@contextmanager
def mouth(lab: StaticLab, source: Node, dscp: int, payload: int) -> Iterator[tuple[socket.socket, bytearray]]:
    """A socket that sends what it is given out of a host's port, and a frame of a class to be sent."""
    port = source.ports[0]
    peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    with inside(lab.handle(source.name).netns):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with wire:
        wire.bind((port.name, 0))
        yield wire, bytearray(roce_frame(flow_of(lab, source), payload, port.mac, peer.mac, dscp=dscp))


def leaf_packets(lab: StaticLab, node: str, port: str) -> Mapping[int, int]:
    """Class -> packets that its qdisc has sent, as tc reports."""
    where = ["nsenter", f"--net={lab.handle(node).netns}"]
    lines = run([*where, "tc", "-s", "qdisc", "show", "dev", port]).out.splitlines()
    found = {}
    for head, counts in pairwise(lines):
        words = head.split()
        if words[:1] == ["qdisc"] and words[2] in ("10:", "40:", "70:"):
            found[int(words[2][0]) - 1] = int(counts.split()[3])
    return found


def test_the_dscp_of_a_packet_chooses_its_queue_at_every_hop() -> None:
    with (
        static_fabric("flow", queues={"dscp": {26: 0, 5: 3, 63: 0}}, **KEYS) as lab,
        LabQueues.pinned(lab.fabric) as all_,
    ):
        plan, source = lab.fabric.policy.queues, lab.fabric.hosts[0]
        assert [plan.class_of_dscp[each] for each in (0, 5, 24, 26, 31, 46, 48, 56, 63)] == [0, 3, 3, 0, 3, 0, 6, 6, 0]
        hops = [(source.name, "eth1"), ("rtsw1", "eth1"), ("ctsw1", "eth2"), ("rtsw2", "eth4")]
        before = {hop: leaf_packets(lab, *hop) for hop in hops}
        counted = all_.cells["in_packets"].copy()
        with mouth(lab, source, 0, 64) as (wire, _):
            for dscp in range(64):
                port = source.ports[0]
                peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
                for _ in range(dscp % 3 + 1):
                    wire.send(roce_frame(flow_of(lab, source), 64, port.mac, peer.mac, dscp=dscp))
        wanted = {n: sum(dscp % 3 + 1 for dscp in range(64) if plan.class_of_dscp[dscp] == n) for n in plan.numbers}
        end = time.monotonic() + patience(60)
        while (after := {hop: leaf_packets(lab, *hop) for hop in hops})[hops[-1]][3] - before[hops[-1]][3] < wanted[3]:
            assert time.monotonic() < end, "lossless packets are missing at the last hop"
        for hop in hops:
            first = all_.ids[hop]
            for number, count in wanted.items():
                counted_in = int(all_.cells["in_packets"][row(first, number)] - counted[row(first, number)])
                seen = after[hop][number] - before[hop][number]
                # The kernel's own packets (neighbours, multicast groups) come in between, and are never lossless.
                most = count if number == 3 else count + 8
                assert count <= counted_in <= most, (hop, number)
                assert count <= seen <= most, (hop, number)


@pytest.mark.deep
def test_classes_share_what_control_leaves_by_their_weights() -> None:
    weights, payloads, dscps = {3: 4, 1: 2, 0: 1}, {3: 4000, 1: 1500, 0: 600}, {3: 24, 1: 8, 0: 0}
    roomy = {**dropping("64MB"), "alpha": 8, "weights": weights, "ecn": {"enabled": False}}
    roomy["buffer"] = {"rtsw": "256MB", "host": "16MB"}
    with static_fabric("flow", queues=roomy, **KEYS) as lab, LabQueues.pinned(lab.fabric) as all_:
        first = all_.ids["rtsw1", "eth1"]
        rows = [row(first, number) for number in weights]
        senders = []
        for source, (number, weight) in zip(lab.fabric.hosts, weights.items(), strict=False):
            count = weight * 500_000 // payloads[number]

            def fill(source: Node = source, number: int = number, count: int = count) -> None:
                with mouth(lab, source, dscps[number], payloads[number]) as (wire, frame):
                    for _ in range(count):
                        wire.send(frame)

            senders.append(threading.Thread(target=fill))
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        start = all_.cells["out_bytes"][rows].astype(np.int64)
        last = start
        while (all_.cells["depth"][rows] > 40_000).all():
            last = all_.cells["out_bytes"][rows].astype(np.int64)
            time.sleep(0.005)
        moved = last - start
        assert moved.sum() > 2_000_000, "the queues were not full for long enough to tell"
        shares = dict(zip(weights, moved / moved.sum() * sum(weights.values()), strict=True))
        for number, weight in weights.items():
            assert abs(shares[number] / weight - 1) < 0.1, shares
        assert all_.cells["drops"].sum() == 0
