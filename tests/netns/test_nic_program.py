"""A host's NIC: its program lets RoCEv2 through to packet sockets and hides it from the host's own IP stack."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from heddle.base.process import run
from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.parse import Parser, Received
from heddle.kernel.libbpf import Map
from heddle.kernel.namespace import inside
from heddle.switch.hashing.hashing import pin_dir
from heddle.traffic.flow import Flow
from heddle.wire import layout as wire
from tests.machine import patience, until
from tests.netns.static_fabric import StaticLab, some_flows, static_fabric

pytestmark = pytest.mark.root

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
        ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside(lab.handle(flow.src).netns):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with ear, plain, sender:
        ear.bind(("eth1", wire.ETHERTYPE_IPV4))
        ear.settimeout(2)
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
