"""Frames of raw flows, as scapy reads them; and what tells them at the receiver, as the kernel's filter sees it."""

from __future__ import annotations

import itertools
import socket
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from heddle.base.ethernet import pfc_frame, read_pfc_frame
from heddle.endpoints.nic.packetsocket import attach_filter
from heddle.traffic.flow import Endpoint
from heddle_plugins.otg.frames import RawFrames, Signature, order_problem
from heddle_plugins.otg.patterns import HEADERS
from heddle_plugins.otg.rules import At, Remarks

HERE = Endpoint(
    0, "host1", "eth1", "10.0.0.1", "02:00:00:00:00:01", "10.0.0.0", "02:00:00:00:00:fe", "r:e", 10**9, 4200
)
THERE = Endpoint(
    1, "host2", "eth1", "10.0.0.3", "02:00:00:00:00:02", "10.0.0.2", "02:00:00:00:00:fe", "r:f", 10**9, 4200
)


def header(name: str, **given: Any) -> tuple[str, Any]:
    notes = Remarks()
    found = HEADERS[name].read(given, At("", notes))
    assert not notes.problems
    return name, found


def made(*headers: tuple[str, Any], size: int = 100, payload: Any = None) -> RawFrames:
    return RawFrames(headers, size, payload, HERE, THERE)


def rebuilt(frame: bytes, *layers: Any) -> bytes:
    """The frame with lengths and checksums of scapy."""
    packet = Ether(frame)
    for layer in layers:
        for name in ("chksum", "len", "plen"):
            if name in packet[layer].fields:
                delattr(packet[layer], name)
    return bytes(packet)


def test_fields_that_are_left_out_are_computed_and_right() -> None:
    frame = made(header("ethernet"), header("ipv4"), header("udp", dst_port={"value": 7}), size=101).frame(0)
    packet = Ether(frame)
    assert (packet.src, packet.dst, packet.type) == (HERE.mac, HERE.gateway_mac, 0x800)
    assert (packet[IP].src, packet[IP].dst, packet[IP].ttl, packet[UDP].dport) == (HERE.ip, THERE.ip, 64, 7)
    assert len(frame) == 101 and rebuilt(frame, IP, UDP) == frame


def test_vlan_tcp_and_ipv6_are_as_scapy_builds_them() -> None:
    tagged = made(header("ethernet"), header("vlan", id={"value": 9}, priority={"value": 3}), header("ipv4"),
                  header("tcp", ctl_syn={"value": 1}, ecn_ns={"value": 1}, seq_num={"value": 5}))  # fmt: skip
    packet = Ether(tagged.frame(0))
    assert (packet[Dot1Q].vlan, packet[Dot1Q].prio, packet[Dot1Q].type) == (9, 3, 0x800)
    assert (str(packet[TCP].flags), packet[TCP].seq) == ("SN", 5)
    assert rebuilt(tagged.frame(0), IP, TCP) == tagged.frame(0)
    sixth = made(header("ethernet"), header("ipv6", src={"value": "fd00::1"}, dst={"value": "fd00::2"}), header("udp"))
    packet = Ether(sixth.frame(0))
    assert (packet[IPv6].src, packet[IPv6].dst, packet.type) == ("fd00::1", "fd00::2", 0x86DD)
    assert rebuilt(sixth.frame(0), IPv6, UDP) == sixth.frame(0)


def test_a_pause_frame_is_one_that_a_switch_reads() -> None:
    quanta = {"class_enable_vector": {"value": 0b1001}, "pause_class_3": {"value": 77}, "pause_class_5": {"value": 1}}
    frame = made(header("pfcpause", **quanta), size=60).frame(0)
    assert frame == pfc_frame(frame[6:12], {0: 0, 3: 77})[:24] + frame[24:] and frame[6:12].hex(":") == HERE.mac
    read = read_pfc_frame(frame)
    assert read is not None and read.quanta == {0: 0, 3: 77}


def test_a_wrong_checksum_is_wrong_and_a_custom_one_is_as_written() -> None:
    bad = made(header("ethernet"), header("ipv4", header_checksum={"generated": "bad"}),
               header("udp", checksum={"custom": 0})).frame(0)  # fmt: skip
    assert rebuilt(bad, IP) != bad and Ether(bad)[UDP].chksum == 0


def test_values_come_in_turn_and_payloads_repeat() -> None:
    flow = made(header("ethernet"), header("ipv4", src={"values": ["10.0.0.1", "10.0.0.9"]}),
                header("udp", src_port={"increment": {"start": 1, "step": 1, "count": 3}}),
                payload=("fixed", {"pattern": b"ab", "repeat": True}))  # fmt: skip
    assert flow.variants == 6
    seen = [(Ether(flow.frame(i))[IP].src, Ether(flow.frame(i))[UDP].sport) for i in range(7)]
    assert seen[:3] == [("10.0.0.1", 1), ("10.0.0.9", 2), ("10.0.0.1", 3)] and seen[6] == seen[0]
    assert bytes(Ether(flow.frame(0))[UDP].payload) == b"ab" * 29
    words = made(header("ethernet"), size=20, payload=("decrement_word", None)).frame(0)
    assert words[14:] == b"\xff\xff\xff\xfe\xff\xfd"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "must begin with ethernet, or be pfcpause"),
        (("ipv4",), "must begin with ethernet, or be pfcpause"),
        (("pfcpause", "ipv4"), "has ipv4 after pfcpause"),
        (("pfcpause",), ""),
        (("ethernet", "udp"), "has udp without ipv4 or ipv6"),
        (("ethernet", "ipv4", "ipv6"), "has ipv6 after ipv4"),
        (("ethernet", "ipv4", "vlan"), "has vlan after ipv4"),
        (("ethernet", "vlan", "vlan", "vlan"), "has vlan after vlan"),
        (("ethernet", "vlan", "ipv6", "tcp", "custom", "custom"), ""),
    ],
)
def test_headers_have_an_order(names: tuple[str, ...], said: str) -> None:
    assert order_problem(names) == said


def test_signatures_tell_flows_apart_by_constant_fields_alone() -> None:
    def of(**udp: Any) -> Signature:
        found = made(header("ethernet"), header("ipv4"), header("udp", **udp)).signature()
        assert found is not None
        return found

    one, two = of(dst_port={"value": 1}), of(dst_port={"value": 2})
    assert one.distinct(two) and not one.distinct(of(dst_port={"values": [1, 2]})) and not one.distinct(one)
    assert made(header("ethernet")).signature() is None


@pytest.mark.parametrize("version", [4, 6])
def test_the_filter_accepts_its_own_frames_and_no_others(version: int) -> None:
    ip = "ipv4" if version == 4 else "ipv6"
    ends = [
        {"src": {"value": f"{net}1"}, "dst": {"value": f"{net}2"}}
        for net in (("10.0.0.", "10.1.0.") if version == 4 else ("fd00::", "fd01::"))
    ]
    tos = (
        {"priority": {"dscp": {"phb": {"value": 26}, "ecn": {"value": 3}}}}
        if version == 4
        else {"traffic_class": {"value": 107}}
    )
    flows = {
        (net, proto, sport, marked): made(
            header("ethernet"), header(ip, **ends[net], **(tos if marked else {})),
            header(proto, src_port={"value": sport}, dst_port={"value": 9}),
        )
        for net, proto, sport, marked in itertools.product((0, 1), ("udp", "tcp"), (1, 2), (False, True))
    }  # fmt: skip
    mine = flows[0, "udp", 1, True]
    signature = mine.signature()
    assert signature is not None
    out, into = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with out, into:
        attach_filter(into, signature.program())
        into.setblocking(False)
        for frame in flows.values():
            out.send(frame.frame(0))
        # A switch may mark a packet: that is no other flow.
        assert into.recv(1 << 16) == mine.frame(0)
        with pytest.raises(BlockingIOError):
            into.recv(1 << 16)
