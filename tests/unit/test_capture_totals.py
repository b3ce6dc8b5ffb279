"""What is counted of the packets of a capture: ICRCs, the order of PSNs, queue pairs, pauses, and RoCE v1."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl, MACControlPause
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6ND_RA, IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapNgReader

from heddle.base.problems import InputError
from heddle.cli.capture_live import bounds_of
from heddle.lab.capture import Bounds
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.capturefile import CapturedPacket
from heddle.wire.conversations import CaptureTotals, PsnOrder
from heddle.wire.dissect import dissect
from heddle.wire.icrc import verdict
from heddle.wire.pcapng import Frame, PcapngFile, PcapReader
from tests.unit.capture_frames import packet, taken
from tests.unit.roce_samples import DQPN, DST_IP, DST_IP6, SAMPLES, SAMPLES6, SPORT, SRC_IP, SRC_IP6, Sample

# ICRC


@pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)
def test_an_icrc_is_right_whatever_routers_change_and_wrong_if_any_other_bit_is(sample: Sample) -> None:
    frame = sample.frame()
    ip_at = dissect(frame).ip_at
    assert verdict(frame, ip_at) == "right"
    assert verdict(frame + bytes(6), ip_at) == "right", "padding or FCS behind the packet"
    aged = bytearray(frame)
    for at in (15, 22, 24, 25) if sample.version == 4 else (14, 15, 16, 17, 21):
        aged[at] ^= 0x0F if at == 14 else 3
    assert verdict(bytes(aged), ip_at) == "right"
    for at in (len(frame) - 1, len(frame) - 5, ip_at + (20 if sample.version == 4 else 40)):
        broken = bytearray(frame)
        broken[at] ^= 1
        assert verdict(bytes(broken), ip_at) == "wrong"
    assert verdict(frame[:-4] + bytes(4), ip_at) == "zero"
    assert verdict(frame[:-1], ip_at) == "cut"
    assert verdict(frame[: ip_at + 3], ip_at) == "cut"


def test_tags_move_the_packet_and_fragments_are_not_checked() -> None:
    frame = SAMPLES[0].frame()
    tagged = frame[:12] + b"\x88\xa8\0\1\x81\0\0\2" + frame[12:]
    assert dissect(tagged).ip_at == 22 and verdict(tagged, 22) == "right"
    fragment = frame[:20] + b"\x20" + frame[21:]
    assert verdict(fragment, 14) == "unchecked"


# The order of PSNs


@pytest.mark.parametrize(
    ("psns", "gaps", "missing", "late", "repeated"),
    [
        ([1, 2, 3, 4], 0, 0, 0, 0),
        ([0xFFFFFE, 0xFFFFFF, 0, 1], 0, 0, 0, 0),
        ([1, 2, 5, 6], 1, 2, 0, 0),
        ([1, 2, 5, 3, 4, 6], 1, 0, 2, 0),
        ([1, 2, 3, 2, 3, 4], 0, 0, 0, 2),
        ([1, 2, 4, 5, 3, 4, 5, 6], 1, 0, 1, 2),  # go-back-N after a loss before this port
        ([0xFFFFFF, 2, 0, 1, 1], 1, 0, 2, 1),
        ([1, 9, 5, 5, 20], 2, 16, 1, 1),
    ],
)
def test_psns_tell_losses_and_repetitions(psns: list[int], gaps: int, missing: int, late: int, repeated: int) -> None:
    order = PsnOrder()
    for psn in psns:
        order.add(psn)
    assert (order.gaps, order.missing, order.late, order.repeated) == (gaps, missing, late, repeated)
    assert (order.first, order.restarts) == (psns[0], 0)


def test_another_connection_on_the_same_number_is_no_loss() -> None:
    order = PsnOrder()
    for psn in (10, 11, 5_000_000, 5_000_001, 20, 21):
        order.add(psn)
    assert (order.restarts, order.missing, order.repeated, order.last) == (2, 0, 0, 21)


# Totals


def test_a_queue_pair_has_its_marks_answers_and_losses() -> None:
    frames = [
        packet(wire.SEND_FIRST, 1),
        packet(wire.SEND_MIDDLE, 2, tos=3),
        packet(wire.SEND_LAST, 4),
        packet(wire.SEND_LAST, 4),
        packet(wire.ACK, 3, behind=roce.aeth(0, 1)),
        packet(wire.ACK, 3, behind=roce.aeth(wire.NAK_SEQUENCE, 1)),
        packet(wire.ACK, 3, behind=roce.aeth(wire.RNR_NAK, 1)),
        bytes(Ether() / IP(src="10.0.0.1", dst="10.0.1.1") / UDP(sport=50000) / roce.cnp(7)),
    ]
    broken = bytearray(packet(wire.SEND_ONLY, 5))
    broken[-6] ^= 1
    totals = taken([*frames, bytes(broken)])
    (qp,) = totals.qps.values()
    assert (qp.src, qp.dst, qp.qpn, qp.packets, qp.data) == ("10.0.0.1", "10.0.1.1", 7, 9, 4)
    assert (qp.acks, dict(qp.naks), qp.rnrs, qp.cnps, qp.ce) == (1, {"sequence": 1}, 1, 1, 1)
    assert (qp.order.first, qp.order.last, qp.order.missing, qp.order.repeated) == (1, 4, 1, 1)
    assert (totals.icrc, totals.wrong, qp.icrc_wrong) == (Counter(right=8, wrong=1), [9], 1)
    assert totals.ecn == Counter({"ect0": 7, "ce": 1, "not-ect": 1})


def test_reads_use_numbers_of_the_other_direction() -> None:
    read = roce.RETH(va=1, rkey=2, dmalen=9000)
    frames = [
        packet(wire.READ_REQUEST, 1, behind=read),
        packet(wire.READ_REQUEST, 4, behind=read),
        packet(wire.SEND_ONLY, 7),
        packet(wire.READ_RESPONSE_FIRST, 1, behind=roce.aeth(0, 1)),
        packet(wire.READ_RESPONSE_LAST, 3, behind=roce.aeth(0, 1)),
        packet(wire.READ_RESPONSE_ONLY, 9, behind=roce.aeth(0, 2)),
    ]
    (qp,) = taken(frames).qps.values()
    assert (qp.order.gaps, qp.order.missing) == (0, 0)
    assert (qp.responses, qp.order_of_responses.missing) == (3, 1)


def test_one_packet_at_two_ports_is_no_retransmission() -> None:
    totals = CaptureTotals()
    for number, port in enumerate(["leaf:eth1", "spine:eth1"] * 3):
        frame = packet(wire.SEND_ONLY, number // 2)
        totals.add(CapturedPacket(number + 1, port, number, None, len(frame), frame), dissect(frame))
    assert [(port, qp.order.repeated) for (port, *_), qp in totals.qps.items()] == [("leaf:eth1", 0), ("spine:eth1", 0)]


def test_pauses_are_counted_by_sender_and_class() -> None:
    pfc = Ether(src="02:00:00:00:00:09", dst="01:80:c2:00:00:01", type=0x8808)
    on = MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=500, c4_enabled=1, c4_pause_time=9)
    off = MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=0)
    frames = [bytes(pfc / each) for each in (on, off, on)]
    frames.append(bytes(pfc / MACControlPause(pause_time=33)))
    frames.append(frames[0][:12] + b"\x81\0\0\5" + frames[0][12:])
    rows = [(each.traffic_class, each.pauses, each.resumes, each.longest) for each in taken(frames).pauses.values()]
    assert rows == [("3", 3, 1, 500), ("4", 3, 0, 9), ("all", 1, 0, 33)]
    assert taken([frames[0][:20]]).pauses == {}


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


def test_frames_that_are_marked_or_short_are_named() -> None:
    packet = (
        Ether() / IP(src=SRC_IP, dst=DST_IP, tos=3) / UDP(sport=SPORT) / roce.BTH(opcode=4, dqpn=9, psn=7) / b"abcd"
    )
    assert dissect(bytes(packet)).text == "qp 9        psn 7           4 B  RC_SEND_ONLY  CE"
    tagged = Ether() / Dot1Q(vlan=3) / IPv6(src="fe80::1", dst="fe80::2", tc=3) / packet[UDP]
    assert dissect(bytes(tagged)).fields["ecn"] == "ce"
    # No beginning of a frame is too short to be named.
    frames = [sample.frame() for sample in (*SAMPLES, *SAMPLES6)]
    frames += [bytes(Ether() / ARP()), bytes(Ether() / IPv6() / IPv6ExtHdrHopByHop() / ICMPv6ND_RA())]
    for frame in frames:
        for size in range(min(len(frame), 90)):
            assert dissect(frame[:size]).kind


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
