"""A host's NIC: packet sockets send and receive RoCEv2, and its program hides that from the host's IP stack."""

from __future__ import annotations

import select
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EAGAIN, ENETDOWN, ENOBUFS
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.base.process import run
from heddle.endpoints.nic.frames import FlowHeader, Parser, Received, SendBatch
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.kernel.libbpf import Map
from heddle.kernel.namespace import NETNS_DIR, inside
from heddle.switch.hashing.hashing import pin_dir
from heddle.traffic.flow import Flow
from heddle.wire import layout as wire
from heddle_plugins.testing import pool as claims
from tests.machine import patience, until
from tests.netns.claimed import claimed, namespace_of
from tests.netns.sockets import packet_socket
from tests.netns.static_fabric import StaticLab, some_flows, static_fabric

MTU, COUNT = 1024, 40
OTHER_HOST = 3  # linux/if_packet.h


Ends = tuple[StaticLab, Flow, PacketSocket, PacketSocket]


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    """A lab, a flow between its racks, and a NIC's socket at either end of it."""
    with static_fabric("flow", (1,)) as lab:
        flow = some_flows(lab.fabric, 1)[0]
        here, there = (lab.fabric.by_name[name] for name in (flow.src, flow.dst))
        with (
            PacketSocket(lab.handle(here.name).netns, "eth1", MTU) as near,
            PacketSocket(lab.handle(there.name).netns, "eth1", MTU) as far,
        ):
            yield lab, flow, near, far


def batch_of(lab: StaticLab, flow: Flow, tos: int = wire.TOS_DATA) -> SendBatch:
    port = lab.fabric.by_name[flow.src].ports[0]
    gateway = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    header = FlowHeader(
        src_mac=port.mac, dst_mac=gateway.mac, src_ip=flow.src_ip, dst_ip=flow.dst_ip,
        sport=flow.sport, dqpn=flow.qpn, tos=tos,
    )  # fmt: skip
    batch = SendBatch(MTU)
    for slot in range(COUNT):
        batch.put_data(slot, header, wire.SEND_ONLY, slot, bytes([slot]) * MTU)
    return batch


def received(far: PacketSocket) -> list[Received]:
    """What comes, until COUNT frames have, or a minute has passed."""
    parser, seen, got, end = Parser(), 0, [], time.monotonic() + patience(60)
    while seen < COUNT and time.monotonic() < end:
        select.select([far], [], [], 0.1)
        buffer, lengths = far.recv()
        got += [parser.parse(buffer, lengths)] if lengths else []
        seen += len(lengths)
    return got


def notices(lab: StaticLab, host: str) -> int:
    """How often a host's IP stack has taken notice: ICMP messages that it sent."""
    lines = run(["nsenter", f"--net={lab.handle(host).netns}", "cat", "/proc/net/snmp"]).out.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Icmp:"))
    return int(dict(zip(names, values, strict=True))["OutMsgs"])


def test_a_packet_socket_gets_every_packet_and_the_host_takes_no_notice(ends: Ends) -> None:
    lab, flow, near, far = ends
    with Map.pinned(pin_dir(lab.name, "_hosts") / "taken", 4, 16) as taken:
        noticed, counted = notices(lab, flow.dst), struct.unpack("=2Q", taken.lookup(bytes(4)) or b"")[0]
        assert near.send(batch_of(lab, flow), COUNT) == COUNT
        got = received(far)
        assert sum(len(part) for part in got) == COUNT and all(all(part.sounds) for part in got)
        assert {kind.tos for part in got for kind in part.kinds} == {wire.TOS_DATA}
        assert struct.unpack("=2Q", taken.lookup(bytes(4)) or b"")[0] == counted + COUNT
    time.sleep(0.1)
    assert notices(lab, flow.dst) == noticed
    assert near.recv()[1] == [], "a NIC does not receive its own frames"


def test_the_host_ignores_roce_packets_of_its_nic_and_receives_all_others(ends: Ends) -> None:
    lab, flow, near, far = ends
    with inside(lab.handle(flow.dst).netns):
        plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside(lab.handle(flow.src).netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear = packet_socket(lab.handle(flow.dst).netns, "eth1", wire.ETHERTYPE_IPV4, seconds=2)
    with ear, plain, sender:
        plain.bind((flow.dst_ip, 4792))
        plain.settimeout(2)
        assert near.send(batch_of(lab, flow), 1) == 1
        assert ear.recvfrom(2048)[1][2] == OTHER_HOST
        sender.sendto(b"hello", (flow.dst_ip, 4792))
        assert plain.recv(100) == b"hello"
        assert ear.recvfrom(2048)[1][2] == socket.PACKET_HOST
    far.recv()


def test_without_the_program_the_host_would_take_notice(ends: Ends) -> None:
    """The control of the first test: only the program keeps the host silent. Its removal makes this the last test."""
    lab, flow, near, far = ends
    run(["tc", "-n", lab.handle(flow.dst).netns.name, "qdisc", "del", "dev", "eth1", "clsact"])
    before = notices(lab, flow.dst)
    assert near.send(batch_of(lab, flow), COUNT) == COUNT
    assert sum(len(part) for part in received(far)) == COUNT
    until(lambda: notices(lab, flow.dst) != before)
    assert notices(lab, flow.dst) > before


IB_MTU = 4096
LAB = claims.new_name()
NEAR, FAR = namespace_of(LAB, "a").name, namespace_of(LAB, "b").name
MAC = {NEAR: "02:00:00:00:00:01", FAR: "02:00:00:00:00:02"}
IP = {NEAR: "10.9.0.1", FAR: "10.9.0.2"}
FLOW = FlowHeader(src_mac=MAC[NEAR], dst_mac=MAC[FAR], src_ip=IP[NEAR], dst_ip=IP[FAR], sport=50000, dqpn=7)
PAYLOAD = [bytes((slot + i) & 0xFF for i in range(IB_MTU)) for slot in range(64)]


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def tc(*words: str) -> None:
    subprocess.run(["tc", "-n", NEAR, *words], check=True, capture_output=True)


@dataclass
class Wire:
    """A cable between two namespaces with a socket at each end."""

    near: PacketSocket
    far: PacketSocket
    parser: Parser

    def arrived(self, count: int, within_s: float = 60.0) -> list[Received]:
        """Batches, copied apart by parsing, until `count` frames came or time is out."""
        batches, seen, end = [], 0, time.monotonic() + within_s
        while seen < count and time.monotonic() < end:
            select.select([self.far], [], [], 0.1)
            buffer, lengths = self.far.recv()
            if lengths:
                batches.append(self.parser.parse(buffer, lengths))
                seen += len(lengths)
        return batches


@pytest.fixture
def cable() -> Iterator[Wire]:
    with claimed(LAB):
        try:
            for name in (NEAR, FAR):
                ip("netns", "add", name)
            ip("link", "add", "eth1", "netns", NEAR, "type", "veth", "peer", "name", "eth1", "netns", FAR)
            for name in (NEAR, FAR):
                ip("-n", name, "link", "set", "eth1", "mtu", "4200", "address", MAC[name], "up")
                ip("-n", name, "addr", "add", f"{IP[name]}/24", "dev", "eth1")
            with (
                PacketSocket(NETNS_DIR / NEAR, "eth1", IB_MTU) as near,
                PacketSocket(NETNS_DIR / FAR, "eth1", IB_MTU) as far,
            ):
                yield Wire(near, far, Parser())
        finally:
            for name in (NEAR, FAR):
                ip("netns", "del", name)


def a_batch(psn: int = 0) -> SendBatch:
    return filled(SendBatch(IB_MTU), FLOW, psn)


def filled(batch: SendBatch, flow: FlowHeader, psn: int) -> SendBatch:
    for slot, part in enumerate(PAYLOAD):
        batch.put_data(slot, flow, wire.WRITE_MIDDLE, psn + slot, part)
    return batch


def payloads(got: Received) -> list[bytes]:
    return [bytes(got.payload(i)) for i in range(len(got))]


def test_a_batch_arrives_whole_and_in_order(cable: Wire) -> None:
    assert (cable.near.send(a_batch(5), 64), cable.near.errno) == (64, 0)
    (got,) = cable.arrived(64)
    assert (all(got.sounds), got.psns, got.dqpns) == (True, list(range(5, 69)), [7] * 64)
    assert payloads(got) == PAYLOAD
    assert cable.far.recv()[1] == []
    assert cable.far.drops() == 0


def test_part_of_a_batch_is_sent_when_part_is_asked_for(cable: Wire) -> None:
    assert cable.near.send(a_batch(0), 3, first=10) == 3
    (got,) = cable.arrived(3)
    assert got.psns == [10, 11, 12]


def test_only_roce_gets_in_and_not_what_goes_out(cable: Wire) -> None:
    with inside(NETNS_DIR / NEAR), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(b"x" * 100, (IP[FAR], 4792))
        other.sendto(b"y" * 100, (IP[FAR], 4791))
    cable.near.send(a_batch(), 1)
    time.sleep(0.2)
    buffer, lengths = cable.far.recv()
    got = cable.parser.parse(buffer, lengths)
    assert got.sounds == [False, True]  # the text to 4791 is no packet, but it is RoCE's port
    assert cable.near.recv()[1] == []


def test_frames_for_another_mac_are_counted_even_if_nothing_reads_them(cable: Wire) -> None:
    other = FlowHeader(
        src_mac=MAC[NEAR], dst_mac="02:00:00:00:00:99", src_ip=IP[NEAR], dst_ip=IP[FAR], sport=50000, dqpn=7
    )
    with PacketSocket(NETNS_DIR / FAR, "eth1", IB_MTU, foreign=True) as counter:
        for turn in range(8):  # more than its buffer has room for
            assert cable.near.send(filled(SendBatch(IB_MTU), other, 64 * turn), 64) == 64
        assert cable.near.send(a_batch(5), 64) == 64
        (got,) = cable.arrived(64)
        assert got.psns == list(range(5, 69)), "only those for its own MAC"
        assert counter.passed() == counter.passed() == 8 * 64


def test_a_socket_takes_roce_of_its_own_ip_only(cable: Wire) -> None:
    flow = FlowHeader(src_mac=MAC[NEAR], dst_mac=MAC[FAR], src_ip="fd09::1", dst_ip="fd09::2", sport=50000, dqpn=8)
    batch = filled(SendBatch(IB_MTU, version=6), flow, 5)
    with PacketSocket(NETNS_DIR / FAR, "eth1", IB_MTU, version=6) as six:
        assert cable.near.send(batch, 64) == 64
        assert cable.near.send(a_batch(), 64) == 64
        (four,) = cable.arrived(64)
        (got,) = Wire(cable.near, six, Parser(version=6)).arrived(64)
        assert (all(got.sounds), got.dqpns, payloads(got)) == (True, [8] * 64, PAYLOAD)
        assert (all(four.sounds), four.dqpns) == (True, [7] * 64)
        assert (six.recv()[1], cable.far.recv()[1]) == ([], [])


def test_a_frame_that_is_too_long_is_received_as_bad(cable: Wire) -> None:
    for name in (NEAR, FAR):
        ip("-n", name, "link", "set", "eth1", "mtu", "9000")
    big = SendBatch(8192)
    big.put_data(0, FLOW, wire.SEND_ONLY, 1, bytes(8192))
    assert cable.near.send(big, 1) == 1
    (got,) = cable.arrived(1)
    assert (got.oks, got.sounds) == ([False], [False])


def test_a_full_socket_waits_and_a_full_queue_drops(cable: Wire) -> None:
    shaper = ("dev", "eth1", "root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "5000", "limit")  # 34 ms a frame
    tc("qdisc", "add", *shaper, "10mb")
    with PacketSocket(NETNS_DIR / NEAR, "eth1", IB_MTU, send_frames=8) as small:
        took = small.send(a_batch(), 64)
        assert 8 <= took <= 10  # eight wait; one or two went through on the bucket's burst
        assert small.errno == EAGAIN
        assert select.select([], [small], [], 60.0)[1] == [small]
        assert small.send(a_batch(took), 1) == 1
    # What waits in the queue is still sent when its socket is closed.
    assert sum(len(batch) for batch in cable.arrived(took + 1)) == took + 1
    tc("qdisc", "replace", *shaper, "20000")
    assert cable.near.send(a_batch(), 64) < 10
    assert (cable.near.errno, cable.near.queue_drops) == (ENOBUFS, 1)


def test_unread_frames_are_counted_as_drops(cable: Wire) -> None:
    with PacketSocket(NETNS_DIR / FAR, "eth1", IB_MTU, receive_bytes=100_000) as tight:
        for _ in range(4):
            assert cable.near.send(a_batch(), 64) == 64
        arrived = 0
        while arrived < 256:
            if not select.select([cable.far], [], [], 5.0)[0]:  # the backlog of a busy machine dropped some
                cable.near.send(a_batch(), 64)
            arrived += len(cable.far.recv()[1])
        kept = 0
        while lengths := tight.recv()[1]:
            kept += len(lengths)
        assert 0 < kept < 100
        until(lambda: tight.drops() == arrived - kept)
        assert tight.drops() == arrived - kept


def test_a_link_that_goes_down_is_no_error_and_one_that_goes_away_is(cable: Wire) -> None:
    ip("-n", NEAR, "link", "set", "eth1", "down")
    assert (cable.near.send(a_batch(), 64), cable.near.errno) == (0, ENETDOWN)
    ip("-n", NEAR, "link", "set", "eth1", "up")
    until(lambda: cable.near.send(a_batch(), 1) == 1)
    ip("-n", NEAR, "link", "del", "eth1")
    with pytest.raises(OSError, match="eth1"):
        until(lambda: cable.near.send(a_batch(), 1) == 1)
    assert cable.near.recv()[1] == []


def test_opening_says_what_is_missing(cable: Wire) -> None:
    with pytest.raises(OSError, match="device"):
        PacketSocket(NETNS_DIR / NEAR, "eth9")
    with pytest.raises(MachineError, match="heddlewire-none"):
        PacketSocket(Path("/run/netns/heddlewire-none"), "eth1")
    with PacketSocket(NETNS_DIR / NEAR, "eth1") as socket_again:
        pass
    socket_again.close()
