"""Captures without a lab: a frame in a line, bounds, and the files."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6ND_RA, IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapNgReader

from heddle.base.problems import InputError
from heddle.cli.capture_live import bounds_of
from heddle.lab.capture import Bounds
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.dissect import dissect
from heddle.wire.pcapng import Frame, PcapngFile, PcapReader
from tests.unit.roce_samples import DQPN, DST_IP, DST_IP6, SAMPLES, SAMPLES6, SPORT, SRC_IP, SRC_IP6, Sample


@pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)
def test_a_line_for_a_roce_packet_agrees_with_scapy(sample: Sample) -> None:
    frame = sample.frame()
    what, bth = dissect(frame), Ether(frame)[roce.BTH]
    assert (what.src, what.dst) == ((SRC_IP, DST_IP) if sample.version == 4 else (SRC_IP6, DST_IP6))
    assert what.fields["opcode"] == roce.OPCODES[bth.opcode]
    said = tuple(what.fields[name] for name in ("qpn", "psn", "ack_request", "payload_bytes", "sport", "ecn", "becn"))
    assert said == (DQPN, bth.psn, bool(bth.ackreq), sample.size, SPORT, "ect0", sample.opcode == wire.CNP)
    if sample.aeth is not None:
        assert (what.fields["syndrome"], what.fields["msn"]) == sample.aeth
    kinds = {"ack": "RoCE ACK", "nak": "RoCE NAK", "rnr_nak": "RoCE RNR", "cnp": "RoCE CNP"}
    assert what.kind == kinds.get(sample.name.removesuffix("_ipv6"), "RoCE data")
    # A capture for lines keeps no more than this.
    assert dissect(frame[:192]) == what


def test_congestion_experienced_is_in_the_line() -> None:
    packet = (
        Ether() / IP(src=SRC_IP, dst=DST_IP, tos=3) / UDP(sport=SPORT) / roce.BTH(opcode=4, dqpn=9, psn=7) / b"abcd"
    )
    assert dissect(bytes(packet)).text == "qp 9        psn 7           4 B  RC_SEND_ONLY  CE"
    tagged = Ether() / Dot1Q(vlan=3) / IPv6(src="fe80::1", dst="fe80::2", tc=3) / packet[UDP]
    assert dissect(bytes(tagged)).fields["ecn"] == "ce"


def keepalives(count: int) -> bytes:
    return (b"\xff" * 16 + struct.pack(">HB", 19, 4)) * count


@pytest.mark.parametrize(
    ("packet", "kind", "text"),
    [
        (IPv6() / TCP(dport=179, flags="PA") / keepalives(2), "BGP", "KEEPALIVE, KEEPALIVE"),
        (IPv6() / TCP(sport=179, flags="SA"), "BGP", "TCP SYN+ACK"),
        (IP() / TCP(sport=5, dport=6, flags="R"), "TCP", "ports 5 > 6 RST"),
        (IP() / UDP(sport=5, dport=53) / b"abc", "UDP", "ports 5 > 53, 3 B"),
        (IP() / ICMP(), "ICMP", "echo request"),
        (IPv6() / ICMPv6ND_RA(), "ND", "router advertisement"),
        (IPv6() / IPv6ExtHdrHopByHop() / ICMPv6ND_RA(), "ND", "router advertisement"),
        (IP(proto=89), "other", "IP protocol 89"),
        (IP(frag=185) / b"x", "other", "IPv4 fragment at byte 1480"),
        (ARP(op=1, psrc="10.0.0.1", pdst="10.0.0.2"), "ARP", "who has 10.0.0.2? tell 10.0.0.1"),
        (ARP(op=2, psrc="10.0.0.1", hwsrc="02:00:00:00:00:01"), "ARP", "10.0.0.1 is at 02:00:00:00:00:01"),
        (MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=9), "PFC", "class 3: 9 quanta"),
    ],
)
def test_what_else_passes_is_named(packet: Any, kind: str, text: str) -> None:
    what = dissect(bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / packet))
    assert (what.kind, what.text) == (kind, text)


def test_no_beginning_of_a_frame_is_too_short_to_be_named() -> None:
    frames = [sample.frame() for sample in (*SAMPLES, *SAMPLES6)]
    frames += [bytes(Ether() / ARP()), bytes(Ether() / IPv6() / IPv6ExtHdrHopByHop() / ICMPv6ND_RA())]
    for frame in frames:
        for size in range(min(len(frame), 90)):
            assert dissect(frame[:size]).kind


@pytest.mark.parametrize(("packets", "seconds"), [(0, 1.0), (-5, 1.0), (10**8, 1.0), (5, 0.0), (5, -1.0), (5, 1e9)])
def test_a_capture_without_an_end_is_refused(packets: int, seconds: float) -> None:
    with pytest.raises(InputError, match=r"--(count|seconds)"):
        Bounds(packets, seconds)


def test_lines_have_a_default_count_and_a_file_has_none() -> None:
    assert bounds_of(None, 5.0, None) == Bounds(1000, 5.0)
    assert bounds_of(None, 5.0, "some.pcapng") == Bounds(None, 5.0)
    assert bounds_of(20, 5.0, "some.pcapng") == bounds_of(20, 5.0, None) == Bounds(20, 5.0)


def pcap(records: list[tuple[int, bytes]]) -> bytes:
    head = struct.pack("=IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    return head + b"".join(
        struct.pack("=IIII", time_ns // 10**9, time_ns % 10**9, len(data), len(data) + 7) + data
        for time_ns, data in records
    )


@pytest.mark.parametrize("piece", [1, 7, 40, 10**6])
def test_a_stream_is_read_in_pieces_of_any_size(piece: int) -> None:
    records = [(10**18 + 1, b"one"), (10**18 + 2, b""), (10**18 + 10**9, b"three" * 9)]
    stream, reader = pcap(records), PcapReader()
    found = [each for at in range(0, len(stream), piece) for each in reader.feed(stream[at : at + piece])]
    assert found == [(time_ns, len(data) + 7, data) for time_ns, data in records]
    with pytest.raises(ValueError, match="not a capture"):
        list(PcapReader().feed(bytes(24)))


def test_scapy_reads_what_was_written(tmp_path: Path) -> None:
    frames = [
        Frame("rtsw1:eth1", 1_700_000_000_123_456_789, 0.0, True, 64, SAMPLES[0].frame()[:61]),
        Frame("host1:eth1", 1_700_000_000_123_456_999, 0.0, False, 9000, b"x" * 64),
    ]
    path = tmp_path / "two ports.pcap"
    path.write_bytes(b"old")
    with PcapngFile(path, ["host1:eth1", "rtsw1:eth1"], "udp") as file:
        file.write(frames)
        assert path.read_bytes() == b"old"
        file.keep(frames[-1].time_ns, {"host1:eth1": 3})
    with PcapNgReader(str(path)) as reader:
        read = [(bytes(p), p.wirelen, round(p.time * 10**9), p.sniffed_on, p.direction) for p in reader]
    assert read == [(f.data, f.wire_bytes, f.time_ns, f.port, 2 if f.outgoing else 1) for f in frames]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_not_kept_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(b"old")
    with pytest.raises(RuntimeError), PcapngFile(tmp_path / "a.pcap", ["a:eth1"]):
        raise RuntimeError
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.pcap", b"old")]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (".", "is a directory"),
        ("nowhere/a.pcap", "is not a directory"),
        ("/dev/null", "is not a regular file"),
        ("/proc/a.pcap", "cannot be written"),
        ("x" * 300, "cannot be a file"),
        ("a\0b", "cannot be a file"),
    ],
)
def test_a_place_that_cannot_be_written_is_reported_at_once(tmp_path: Path, place: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        PcapngFile(tmp_path / place, ["a:eth1"])
    assert list(tmp_path.iterdir()) == []
