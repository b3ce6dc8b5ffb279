"""What is counted of the packets of a capture: ICRCs, the order of PSNs, queue pairs, pauses, and RoCE v1."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl, MACControlPause
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6ND_RA, IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.utils import PcapNgReader, wrpcap

from heddle.base.problems import InputError
from heddle.cli.capture_live import bounds_of
from heddle.lab.capture import Bounds
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.dissect import dissect
from heddle.wire.layout import verdict
from heddle.wire.pcapng import Frame, PcapngFile, PcapReader
from heddle_plugins.packets.capturefile import CapturedPacket
from heddle_plugins.packets.conversations import CaptureTotals, PsnOrder, QpConversation
from tests.answers import Answers
from tests.unit.packets.capture_frames import CARRIED, SEALED, packet, taken, tshark
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


def test_a_fragment_is_not_checked() -> None:
    frame = SAMPLES[0].frame()
    assert verdict(frame[:20] + b"\x20" + frame[21:], 14) == "unchecked"


# Tunnels


@pytest.mark.parametrize(("tunnel", "frame"), [*CARRIED, *(("", frame) for _, frame in SEALED)])
def test_a_packet_in_a_tunnel_is_read_and_one_that_is_encrypted_is_named(tunnel: str, frame: bytes) -> None:
    what = dissect(frame)
    sealed = {frame: kind for kind, frame in SEALED}.get(frame)
    assert what.kind == (sealed or "RoCE data")
    assert what.tunnel == tunnel
    if sealed is None:
        assert verdict(frame, what.ip_at) in ("right", "unchecked")
        assert what.fields["qpn"] == DQPN and what.src in (SRC_IP, SRC_IP6, "1.1.1.1", "fd00::1")
    for size in range(len(frame)):
        assert dissect(frame[:size]).kind


@pytest.mark.needs("tshark")
def test_tshark_reads_the_same_in_tunnels(tmp_path: Path) -> None:
    frames = [frame for _, frame in CARRIED]
    wrpcap(str(tmp_path / "all.pcap"), frames, linktype=1)
    fields = ("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "vlan.priority",
              "ieee8021ad.priority", "ip.src", "ipv6.src", "ip.dsfield.dscp", "ipv6.tclass.dscp")  # fmt: skip
    for frame, said in zip(frames, tshark(tmp_path / "all.pcap", *fields), strict=True):
        what = dissect(frame)
        last = [values.split(",")[-1] for values in said]
        assert (int(last[0]), int(last[1], 16), int(last[2])) == (what.opcode, what.fields["qpn"], what.fields["psn"])
        assert what.src in last[5:7] and str(what.fields["dscp"]) in last[7:9]
        assert sorted(f"{said[3]},{said[4]}".replace(",", "")) == sorted(
            str(what.fields.get("pcp", "")).replace("/", "")
        )


def test_headers_without_end_are_malformed() -> None:
    for head, again in ((b"\x81\0\0\1", 10**4), (b"\x88\x47" + b"\0\1\0\x40" * 10**5, 1)):
        assert dissect(bytes(12) + head * again).kind == "other"
    nested = bytes(Ether() / IP(proto=4) / IP(proto=4)) + bytes(IP(proto=4)) * 3000
    assert dissect(nested).text == "malformed headers"


# The order of PSNs


def test_psns_tell_losses_and_repetitions(answers: Answers) -> None:
    def counted(*psns: int) -> str:
        order = PsnOrder()
        for psn in psns:
            order.add(psn)
        assert (order.first, order.restarts) == (psns[0], 0)
        return f"{order.gaps} gaps, {order.missing} missing, {order.late} late, {order.repeated} repeated"

    answers(lambda psns: counted(*map(int, psns.split())))


def test_another_connection_on_the_same_number_is_no_loss() -> None:
    order = PsnOrder()
    for psn in (10, 11, 5_000_000, 5_000_001, 20, 21, 28_000, 27_999, 10_000, 10_001):
        order.add(psn)
    assert (order.restarts, order.missing, order.repeated, order.last) == (4, 0, 1, 10_001)
    order.add(20_000, starts=False)  # in the middle of a message: a loss, or a capture with gaps
    assert (order.restarts, order.missing) == (4, 9_998)


def test_many_numbers_that_are_late_take_no_time_and_little_memory() -> None:
    order = PsnOrder()
    began = time.process_time()
    for psn in (*range(0, 64_000, 2), *range(1, 64_000, 2)):
        order.add(psn)
    assert time.process_time() - began < 30
    assert (order.late, order.missing, order.gaps, order.repeated) == (31_999, 0, 31_999, 0)


# Totals


def test_a_queue_pair_has_its_marks_answers_and_losses() -> None:
    frames = [
        packet(wire.SEND_FIRST, 1),
        packet(wire.SEND_MIDDLE, 2, tos=3),
        packet(wire.SEND_LAST, 4, id=2),
        packet(wire.SEND_LAST, 4, id=3),
        *(
            packet(wire.ACK, 3, behind=roce.aeth(syndrome, 1))
            for syndrome in (0x1F, 0x2C, *range(0x60, 0x66), 0x40, 0x9F)
        ),
        packet(wire.ACK, 3, behind=roce.aeth(0x60, 1))[:56],
        bytes(Ether() / IP(src="10.0.0.1", dst="10.0.1.1", tos=0xC0) / UDP(sport=50000) / roce.cnp(7)),
    ]
    broken = bytearray(packet(wire.SEND_ONLY, 5))
    broken[-6] ^= 1
    frames[0] = frames[0][:12] + b"\x81\0\xa0\5" + frames[0][12:]
    totals = taken([*frames, bytes(broken)])
    (qp,) = totals.qps.values()
    assert (qp.src, qp.dst, qp.qpn, qp.packets, qp.data) == ("10.0.0.1", "10.0.1.1", 7, 17, 4)
    assert (qp.acks, qp.rnrs, qp.cnps, qp.ce, qp.reserved) == (1, 1, 1, 1, Counter({"0x40": 1, "0x9f": 1}))
    reasons = ("sequence", "invalid request", "access", "operation", "invalid RD request", "reserved 0x65")
    assert dict(qp.naks) == dict.fromkeys(reasons, 1)
    assert (qp.order.first, qp.order.last, qp.order.missing, qp.order.repeated, qp.copies) == (1, 4, 1, 1, 0)
    assert (totals.icrc, totals.wrong, qp.icrc_wrong) == (Counter(right=15, cut=1, wrong=1), [17], 1)
    assert totals.ecn == Counter({"ect0": 15, "ce": 1, "not-ect": 1})
    assert totals.dscps == qp.dscps == Counter({"0": 16, "48": 1})
    assert totals.pcps == qp.pcps == Counter({"untagged": 16, "5": 1})


def test_packets_that_are_cut_before_their_bth_are_of_port_4791() -> None:
    frames = [SAMPLES6[5].frame()[:64], SAMPLES[5].frame()[:53], SAMPLES[5].frame()[:41]]
    totals = taken(frames)
    assert (totals.kinds, totals.cut) == (Counter({"RoCE cut": 2, "other": 1}), 2)
    short = Ether() / IP(src=SRC_IP, dst=DST_IP) / UDP(sport=SPORT, dport=4791) / b"short"
    assert dissect(bytes(short) + bytes(20)).kind == "UDP", "the padding of a frame is no BTH"


READ = 4096  # bytes: four responses with an MTU of 1024


def asks(psn: int, size: int = READ) -> bytes:
    return packet(wire.READ_REQUEST, psn, behind=roce.RETH(va=1, rkey=2, dmalen=size))


def answers(first: int, count: int = 4, lost: Container[int] = ()) -> list[bytes]:
    """The responses to a READ, from PSN `first` on, but the lost ones."""
    codes = [wire.READ_RESPONSE_FIRST, *[wire.READ_RESPONSE_MIDDLE] * (count - 2), wire.READ_RESPONSE_LAST]
    codes = [wire.READ_RESPONSE_ONLY] if count == 1 else codes
    return [
        packet(code, psn, behind=_head(code) + b"x" * 1024, qpn=33, back=True)
        for psn, code in enumerate(codes, first) if psn not in lost
    ]  # fmt: skip


def _head(code: int) -> bytes:
    return b"" if code == wire.READ_RESPONSE_MIDDLE else bytes(roce.aeth(31, 1))


def write(psn: int) -> bytes:
    return packet(wire.SEND_ONLY, psn)


@pytest.mark.parametrize(
    ("frames", "missing", "missing_responses"),
    [
        ([asks(100), *answers(100), write(104)], 0, 0),
        ([asks(100), *answers(100), write(105)], 1, 0),
        ([asks(100), write(105)], 1, 0),  # no MTU gives five responses
        ([asks(100), write(108)], 0, 0),  # it may be 512
        ([asks(100), *answers(100), write(108)], 4, 0),
        ([asks(100), asks(104), *answers(100), *answers(104), write(110)], 2, 0),
        ([asks(100), write(104), write(106)], 1, 0),
        ([asks(100), asks(100), *answers(100), write(104), write(106)], 1, 0),
        ([asks(100)[:58], write(150)], 0, 0),  # its length was cut off
        ([write(99), *answers(200), write(104), asks(100)], 0, 0),  # the request was late
        ([asks(100), asks(104), *answers(100, lost={103}), *answers(104)], 0, 1),
        ([asks(100), asks(104), *answers(100), *answers(104, lost={104, 105})], 0, 2),
        ([asks(100), asks(104), asks(108), *answers(100), *answers(108)], 0, 4),
        ([asks(1, 9), asks(2, 9), asks(3, 9), *answers(1, 1), *answers(3, 1)], 0, 1),
        ([*answers(100, lost={103}), *answers(110)], 0, 1),  # requests are not in the capture
        ([*answers(100), *answers(110, lost={110})], 0, 1),
        ([*answers(100), *answers(110)], 0, 0),
    ],
)
def test_losses_around_reads_are_seen(frames: list[bytes], missing: int, missing_responses: int) -> None:
    qps = {qp.qpn: qp for qp in taken(frames).qps.values()}
    orders = [getattr(qps.get(qpn), name, PsnOrder()) for qpn, name in ((7, "order"), (33, "order_of_responses"))]
    assert [order.missing for order in orders] == [missing, missing_responses]
    assert [order.restarts for order in orders] == [0, 0]


def seen(*packets: tuple[int, int, int], step_ns: int = 10_000, ce: Container[int] = ()) -> QpConversation:
    """The totals of packets with these PSNs, IP IDs and TTLs."""
    totals = CaptureTotals()
    for number, (psn, ident, ttl) in enumerate(packets, 1):
        frame = packet(wire.SEND_ONLY, psn, id=ident, ttl=ttl, tos=3 if number in ce else 2)
        totals.add(CapturedPacket(number, "", number * step_ns, None, len(frame), frame), dissect(frame))
    (qp,) = totals.qps.values()
    return qp


@pytest.mark.parametrize(
    ("packets", "copies", "repeated"),
    [
        ([(psn, 0, 64) for psn in (1, 1, 2, 2, 3, 3)], 3, 0),  # a bond and its member; the NIC sends one ID
        ([(psn, 7 + psn, 64) for psn in (1, 2, 3, 1, 2, 3)], 3, 0),
        ([(psn, 0, ttl) for psn in (1, 2, 3) for ttl in (64, 63)], 3, 0),  # a mirror of both directions
        ([(psn, 0, ttl) for ttl in (64, 63, 62) for psn in (1, 2, 3)], 6, 0),
        ([(psn, 0, 64) for psn in (1, 2, 3, 2, 3, 4)], 0, 2),
        ([(psn, ident, 64) for psn, ident in ((1, 1), (2, 2), (2, 3), (3, 4), (2, 5))], 0, 2),
        ([(1, 1, 64), (1, 1, 63), (2, 2, 64), (2, 2, 63), (1, 3, 64), (1, 3, 63)], 3, 1),  # of a retransmission, too
    ],
)
def test_copies_are_no_retransmissions(packets: list[tuple[int, int, int]], copies: int, repeated: int) -> None:
    qp = seen(*packets)
    assert (qp.copies, qp.order.repeated, qp.packets) == (copies, repeated, len(packets))


def test_copies_have_the_mark_of_their_switch_and_take_less_time_than_a_timer() -> None:
    qp = seen((1, 0, 64), (1, 0, 63), (2, 0, 64), (2, 0, 63), (3, 0, 64), (3, 0, 63), ce=(2, 5, 6))
    assert (qp.copies, qp.ce) == (3, 2)
    assert seen((1, 0, 64), (1, 0, 64), step_ns=10**6).order.repeated == 1
    frames = [packet(wire.ACK, 3, behind=roce.aeth(31, 1))] * 2
    assert [qp.acks for qp in taken(frames).qps.values()] == [2], "to two retransmissions"
    assert [qp.acks for qp in taken([write(2), write(2), *frames]).qps.values()] == [1], "at a port with copies"
    six = [SAMPLES6[8].frame()] * 2
    assert [qp.copies for qp in taken([*six, six[0][:21] + b"\x3f" + six[0][22:]]).qps.values()] == [2]
    assert [qp.copies for qp in taken([frame[:80] for frame in six]).qps.values()] == [1], "without an ICRC"


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
    endless, reader = pcap([])[:24] + struct.pack("<IIII", 1, 0, 0xFFFFFFFF, 60), PcapReader()
    with pytest.raises(ValueError, match="longer than any frame"):  # it would be kept until it is whole
        list(reader.feed(endless))


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


def test_a_place_that_cannot_be_written_is_reported_at_once(tmp_path: Path, answers: Answers) -> None:
    answers(lambda place: PcapngFile(tmp_path / place, ["a:eth1"]))
    with pytest.raises(InputError, match=r"cannot be a file: .*embedded null"):  # Python 3.13 says it in other words
        PcapngFile(tmp_path / "a\0b", ["a:eth1"])
    assert list(tmp_path.iterdir()) == []
