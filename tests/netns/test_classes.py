"""Classes of a port: a packet's DSCP chooses one, control goes before all others, and these share by their weights."""

from __future__ import annotations

import socket
import struct
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
from heddle.switch.queues.classes import class_plan
from heddle.switch.queues.portids import row
from heddle.traffic.flow import Flow
from tests.netns.static_fabric import StaticLab, address, dropping, roce_frame, static_fabric

pytestmark = pytest.mark.root

FAST = {"host": "1gbit", "fabric": "20mbit"}
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
ETH_P_ALL = 3
DSCP_OF_LOSSLESS, DSCP_OF_CONTROL = 24, 48
UDP_BTH_RETH = 8 + 12 + 16


@pytest.fixture(params=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ends(family: str) -> tuple[dict[str, Any], int]:
    """Keys of a fabric with three hosts in each of two racks and one way between them; where a payload begins."""
    keys = {"weights": (1,), "hosts_per_rack": 3, "family": family, "link": FAST}
    return keys, 14 + (20 if family == "ipv4" else 40) + UDP_BTH_RETH


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
    """Class -> packets that its qdisc has let go, as tc has it."""
    where = ["nsenter", f"--net={lab.handle(node).netns}"]
    lines = run([*where, "tc", "-s", "qdisc", "show", "dev", port]).out.splitlines()
    found = {}
    for head, counts in pairwise(lines):
        words = head.split()
        if words[:1] == ["qdisc"] and words[2] in ("10:", "40:", "70:"):
            found[int(words[2][0]) - 1] = int(counts.split()[3])
    return found


def test_the_dscp_of_a_packet_chooses_its_queue_at_every_hop(ends: tuple[dict[str, Any], int]) -> None:
    keys, _ = ends
    with (
        static_fabric("flow", queues={"dscp": {26: 0, 5: 3, 63: 0}}, **keys) as lab,
        LabQueues.pinned(lab.fabric) as all_,
    ):
        plan, source = class_plan(lab.fabric.policy.queues), lab.fabric.hosts[0]
        assert [plan.dscp[each] for each in (0, 5, 24, 26, 31, 46, 48, 56, 63)] == [0, 3, 3, 0, 3, 0, 6, 6, 0]
        hops = [(source.name, "eth1"), ("rtsw1", "eth1"), ("ctsw1", "eth2"), ("rtsw2", "eth4")]
        before = {hop: leaf_packets(lab, *hop) for hop in hops}
        counted = all_.cells["in_packets"].copy()
        with mouth(lab, source, 0, 64) as (wire, _):
            for dscp in range(64):
                port = source.ports[0]
                peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
                for _ in range(dscp % 3 + 1):
                    wire.send(roce_frame(flow_of(lab, source), 64, port.mac, peer.mac, dscp=dscp))
        wanted = {n: sum(dscp % 3 + 1 for dscp in range(64) if plan.dscp[dscp] == n) for n in plan.numbers}
        end = time.monotonic() + 3
        while (after := {hop: leaf_packets(lab, *hop) for hop in hops})[hops[-1]][3] - before[hops[-1]][3] < wanted[3]:
            assert time.monotonic() < end, "lossless packets are missing at the last hop"
        for hop in hops:
            first = all_.ids[hop]
            for number, count in wanted.items():
                told = int(all_.cells["in_packets"][row(first, number)] - counted[row(first, number)])
                seen = after[hop][number] - before[hop][number]
                # The kernel's own packets (neighbours, multicast groups) come in between, and are never lossless.
                most = count if number == 3 else count + 8
                assert count <= told <= most, (hop, number)
                assert count <= seen <= most, (hop, number)


def test_classes_share_what_control_leaves_by_their_weights(ends: tuple[dict[str, Any], int]) -> None:
    keys, _ = ends
    weights, payloads, dscps = {3: 4, 1: 2, 0: 1}, {3: 4000, 1: 1500, 0: 600}, {3: 24, 1: 8, 0: 0}
    roomy = {**dropping("64MB"), "alpha": 8, "weights": weights, "ecn": {"enabled": False}}
    roomy["buffer"] = {"rtsw": "256MB", "host": "16MB"}
    with static_fabric("flow", queues=roomy, **keys) as lab, LabQueues.pinned(lab.fabric) as all_:
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


def test_control_waits_a_tenth_of_what_lossless_packets_wait_at_most(ends: tuple[dict[str, Any], int]) -> None:
    keys, payload_at = ends
    with static_fabric("flow", queues=dropping("400KB"), **keys) as lab:
        stop, stamp = threading.Event(), struct.Struct("!q")
        there = lab.fabric.hosts[-1]
        with inside(lab.handle(there.name).netns):
            ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))

        def speak(source: Node, dscp: int, payload: int, pause: float) -> None:
            with mouth(lab, source, dscp, payload) as (wire, frame):
                while not stop.is_set():
                    stamp.pack_into(frame, payload_at, time.clock_gettime_ns(time.CLOCK_REALTIME))
                    wire.send(frame)
                    time.sleep(pause)

        crowd = [
            (lab.fabric.hosts[0], DSCP_OF_LOSSLESS, 4000, 0.001),
            (lab.fabric.hosts[1], DSCP_OF_CONTROL, 64, 0.004),
        ]
        senders = [threading.Thread(target=speak, args=each) for each in crowd]
        waits: dict[int, list[int]] = {DSCP_OF_LOSSLESS: [], DSCP_OF_CONTROL: []}
        with ear:
            ear.bind((there.ports[0].name, ETH_P_ALL))
            ear.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
            ear.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            ear.settimeout(1.0)
            for sender in senders:
                sender.start()
            try:
                began = time.monotonic()
                while len(waits[DSCP_OF_CONTROL]) < 500:
                    data, more, _, _ = ear.recvmsg(256, 64)
                    dscp = (int.from_bytes(data[14:16]) >> 6 if data[12:14] == b"\x86\xdd" else data[15] >> 2) & 63
                    if time.monotonic() - began < 0.5 or dscp not in waits or len(data) < payload_at + 8:
                        continue  # the queue is not full yet; or somebody else's packet
                    seconds, nanoseconds = struct.unpack("=qq", more[0][2])
                    waits[dscp].append(seconds * 10**9 + nanoseconds - stamp.unpack_from(data, payload_at)[0])
            finally:
                stop.set()
                for sender in senders:
                    sender.join()
        assert len(waits[DSCP_OF_LOSSLESS]) > 500
        control, lossless = (np.percentile(waits[d], 99) / 10**6 for d in (DSCP_OF_CONTROL, DSCP_OF_LOSSLESS))
        assert control * 10 <= lossless, f"p99 of control {control:.2f} ms, of lossless {lossless:.2f} ms"
        assert lossless > 100, "the lossless class was not full"
