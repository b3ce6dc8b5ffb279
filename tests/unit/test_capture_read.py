"""Capture files from elsewhere: every format is read alike, and what is said of their queue pairs is true."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl, MACControlPause
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.l2 import ARP, Dot1Q, Ether

from heddle.base.process import run
from heddle.cli.program import main
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.capturefile import CapturedPacket, CaptureFile, open_capture
from heddle.wire.conversations import CaptureTotals, PsnOrder
from heddle.wire.dissect import ROCE_V1, dissect
from heddle.wire.icrc import verdict
from tests.unit.roce_samples import DQPN, SAMPLES, SAMPLES6, SRC_IP, Sample

FRAMES = [sample.frame() for sample in (*SAMPLES, *SAMPLES6)]
START_NS = 1_700_000_000_123_456_000
TIMES = [START_NS + 1000 * number for number in range(len(FRAMES))]
MAGICS = {"us": 0xA1B2C3D4, "ns": 0xA1B23C4D}
ETHERNET = 1


def pcap(frames: Sequence[bytes], order: str = "<", unit: str = "us", link: int = ETHERNET, snap: int = 65535) -> bytes:
    """A pcap as another machine's tcpdump writes it."""
    parts = [struct.pack(f"{order}IHHiIII", MAGICS[unit], 2, 4, 0, 0, snap, link)]
    for frame, time_ns in zip(frames, TIMES * (len(frames) // len(TIMES) + 1), strict=False):
        fraction = time_ns % 10**9 // (1000 if unit == "us" else 1)
        kept = frame[:snap]
        parts += [struct.pack(f"{order}IIII", time_ns // 10**9, fraction, len(kept), len(frame)), kept]
    return b"".join(parts)


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = len(body) + 12
    return struct.pack(f"{order}II", kind, size) + body + struct.pack(f"{order}I", size)


def pcapng(frames: Sequence[bytes], order: str = "<", resolution: int | None = None, name: bytes = b"eth7") -> bytes:
    """A pcapng with one interface. resolution: the value of if_tsresol; None: microseconds, by default."""
    options = struct.pack(f"{order}HH", 2, len(name)) + name + bytes(-len(name) % 4)
    ticks = 10**6
    if resolution is not None:
        options += struct.pack(f"{order}HHBxxx", 9, 1, resolution)
        ticks = 2 ** (resolution & 0x7F) if resolution & 0x80 else 10**resolution
    parts = [
        block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(order, 1, struct.pack(f"{order}HHI", ETHERNET, 0, 0) + options + bytes(4)),
        block(order, 0xBAD, b"what no one knows is passed over"),
    ]
    for frame, time_ns in zip(frames, TIMES, strict=False):
        at = time_ns * ticks // 10**9
        head = struct.pack(f"{order}IIIII", 0, at >> 32, at & 0xFFFFFFFF, len(frame), len(frame))
        flags = struct.pack(f"{order}HHI", 2, 4, 2) + bytes(4)  # epb_flags: outbound
        parts.append(block(order, 6, head + frame + bytes(-len(frame) % 4) + flags))
    return b"".join(parts)


FORMATS = {
    **{f"pcap {order} {unit}": pcap(FRAMES, order, unit) for order in "<>" for unit in MAGICS},
    **{f"pcapng {order} {res}": pcapng(FRAMES, order, res) for order in "<>" for res in (None, 9, 6, 0x80 | 30)},
}


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], CaptureFile]:
    def put(data: bytes) -> CaptureFile:
        path = tmp_path / "some file"
        path.write_bytes(data)
        return open_capture(path, path.name)

    return put


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_every_format_gives_the_same_packets(name: str, packed: bool, opened: Callable[[bytes], CaptureFile]) -> None:
    data = FORMATS[name]
    file = opened(gzip.compress(data) if packed else data)
    packets = list(file.packets())
    assert (file.damage, file.compressed) == ("", packed)
    assert [packet.data for packet in packets] == FRAMES
    assert [packet.number for packet in packets] == list(range(1, len(FRAMES) + 1))
    assert [packet.wire_bytes for packet in packets] == [len(frame) for frame in FRAMES]
    # 2^-30 s is the coarsest of these clocks that is not a whole number of nanoseconds.
    assert all(0 <= true - packet.time_ns <= 1 for true, packet in zip(TIMES, packets, strict=True))
    said = {(packet.port, packet.outgoing) for packet in packets}
    assert said == ({("eth7", True)} if "pcapng" in name else {("", None)})


def test_files_that_were_joined_keep_their_interfaces_apart(opened: Callable[[bytes], CaptureFile]) -> None:
    joined = pcapng(FRAMES[:2], ">", 9, b"leaf") + pcapng(FRAMES[2:5], "<", None, b"spine")
    packets = list(opened(joined).packets())
    assert [packet.port for packet in packets] == ["leaf"] * 2 + ["spine"] * 3
    assert [packet.data for packet in packets] == FRAMES[:5]
    assert [packet.time_ns for packet in packets] == [*TIMES[:2], *TIMES[:3]]


def test_simple_and_obsolete_packet_blocks_are_read(opened: Callable[[bytes], CaptureFile]) -> None:
    frame = FRAMES[0]
    old = struct.pack("<HHIIII", 0, 0, 0, 7, len(frame), len(frame)) + frame
    data = pcapng([]) + block("<", 3, struct.pack("<I", len(frame)) + frame) + block("<", 2, old)
    first, second = opened(data).packets()
    assert first.data == second.data == frame
    assert (first.time_ns, second.time_ns) == (0, 7000)


@pytest.mark.parametrize(
    ("link", "head"),
    [(101, b""), (12, b""), (228, b""), (113, bytes(14) + b"\x08\x00"), (276, b"\x08\x00" + bytes(18))],
)
def test_packets_without_an_ethernet_header_are_dissected_too(
    link: int, head: bytes, opened: Callable[[bytes], CaptureFile]
) -> None:
    (packet,) = opened(pcap([head + FRAMES[0][14:]], link=link)).packets()
    assert packet.data is not None
    what = dissect(packet.data)
    assert (what.kind, what.src) == ("RoCE data", SRC_IP)
    assert verdict(packet.data, what.ip_at) == "right"


def test_a_link_type_that_nobody_here_reads_is_counted(opened: Callable[[bytes], CaptureFile]) -> None:
    (packet,) = opened(pcap([b"802.11 or so"], link=127)).packets()
    assert packet.data is None


@pytest.mark.parametrize("cut", range(1, 60, 7))
@pytest.mark.parametrize("name", ["pcap < us", "pcapng < 9"])
def test_a_file_that_ends_too_early_gives_what_is_before(
    name: str, cut: int, opened: Callable[[bytes], CaptureFile]
) -> None:
    file = opened(FORMATS[name][:-cut])
    packets = list(file.packets())
    assert [packet.data for packet in packets] == FRAMES[:-1]
    assert file.damage.startswith("the file ends within ")


def test_a_damaged_length_is_damage_and_takes_no_memory(opened: Callable[[bytes], CaptureFile]) -> None:
    good = pcap(FRAMES[:1])
    file = opened(good + struct.pack("<IIII", 1, 1, 0xFFFFFFF0, 60))
    assert len(list(file.packets())) == 1
    assert file.damage == "packet 2 has the length 4294967280, so it is damaged"
    for body in (struct.pack("<II", 6, 7), struct.pack("<II", 6, 13), struct.pack("<II", 6, 1 << 30)):
        file = opened(pcapng(FRAMES[:1]) + body)
        assert len(list(file.packets())) == 1
        assert "has the length" in file.damage
    file = opened(pcapng([]) + block("<", 6, struct.pack("<IIIII", 3, 0, 0, 0, 0)))
    assert list(file.packets()) == [] and "interface 3, which the file does not describe" in file.damage


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with path.open("wb") as out:
        out.write(pcap([]))
        record = pcap(FRAMES)[24:]
        for _ in range(30_000_000 // len(record)):
            out.write(record)
    tracemalloc.start()
    try:
        totals = CaptureTotals()
        for packet in open_capture(path, "long").packets():
            assert packet.data is not None
            totals.add(packet, dissect(packet.data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert totals.wire_bytes > 25_000_000
    assert peak < 1_000_000


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


def taken(frames: Sequence[bytes], port: str = "") -> CaptureTotals:
    totals = CaptureTotals()
    for number, frame in enumerate(frames, 1):
        totals.add(CapturedPacket(number, port, START_NS + number, None, len(frame), frame), dissect(frame))
    return totals


def packet(opcode: int, psn: int, **more: Any) -> bytes:
    """A RoCEv2 frame with a right ICRC. more: tos, qpn, and extended headers as scapy's layers."""
    ip = IP(src="10.0.0.1", dst="10.0.1.1", tos=more.get("tos", 2))
    behind = more.get("behind", b"12345678")
    return bytes(Ether() / ip / UDP(sport=50000) / roce.BTH(opcode=opcode, dqpn=more.get("qpn", 7), psn=psn) / behind)


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


def v1_frame() -> bytes:
    grh = struct.pack(">IHBB16s16s", 6 << 28, 20, 0x1B, 64, bytes(10) + b"\xff\xff\x0a\0\0\1", bytes(15) + b"\2")
    bth = struct.pack(">BBHII", wire.SEND_ONLY, 0, 0xFFFF, 9, 77)
    return bytes(6) + b"\2\0\0\0\0\1" + b"\x89\x15" + grh + bth + bytes(8)


def test_roce_v1_is_named_and_no_conversation_of_ours() -> None:
    what = dissect(v1_frame())
    assert (what.kind, what.src, what.dst) == (ROCE_V1, "10.0.0.1", "::2")
    assert dict(what.fields) == {"opcode": "RC_SEND_ONLY", "qpn": 9, "psn": 77}
    totals = taken([v1_frame(), v1_frame()[:50]])
    assert totals.kinds == Counter({ROCE_V1: 1, "other": 1}) and not totals.qps and not totals.icrc


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


# tshark


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("order", ["<", ">"])
def test_tshark_counts_the_same(order: str, tmp_path: Path) -> None:
    frames = [*FRAMES, *[packet(wire.SEND_MIDDLE, psn, tos=3 if psn % 3 else 2) for psn in (1, 2, 2, 9, 3)]]
    frames += [
        v1_frame(),
        bytes(Ether() / ARP()),
        bytes(Ether() / Dot1Q(vlan=9) / IP() / ICMP()),
        bytes(Ether() / IP() / TCP()),
    ]
    path = tmp_path / "mixed.pcap"
    path.write_bytes(pcap(frames, order))
    names = ("infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "ip.dsfield.ecn",
             "ipv6.tclass.ecn", "infiniband.invariant.crc", "udp.dstport")  # fmt: skip
    wanted = [word for name in names for word in ("-e", name)]
    done = run(["tshark", "-n", "-r", str(path), "--disable-heuristic", "rpcrdma_infiniband", "-T", "fields", "-E",
                "separator=|", *wanted])  # fmt: skip
    rows = [line.split("|") for line in done.out.splitlines()]
    theirs = [row for row in rows if row[6] == "4791"]
    totals = CaptureTotals()
    psns, crcs = [], []
    for each in open_capture(path, "mixed").packets():
        assert each.data is not None
        what = dissect(each.data)
        totals.add(each, what)
        if what.ip_at:
            psns.append((what.fields["qpn"], what.fields["psn"]))
            crcs.append(int.from_bytes(each.data[-4:], "big"))
    assert totals.opcodes == Counter(wire.OPCODE_NAMES[int(row[0])] for row in theirs)
    assert psns == [(int(row[1], 0), int(row[2])) for row in theirs]
    assert totals.ecn["ce"] == sum("3" in (row[3], row[4]) for row in theirs) == 3
    assert totals.icrc == Counter(right=len(theirs))
    # tshark shows the ICRC of packets with payload, and checks none.
    shown = [(crc, int(row[5], 0)) for crc, row in zip(crcs, theirs, strict=True) if row[5]]
    assert len(shown) > 10 and all(ours == its for ours, its in shown)
    assert totals.packets == len(rows)


# The verb


def verb(*words: str) -> int:
    import tasks

    return main(vars(tasks), ["./inv", "capture", *words])


def test_the_text_and_the_document_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    broken = bytearray(packet(wire.SEND_ONLY, 6))
    broken[-6] ^= 1
    pfc = Ether(src="02:00:00:00:00:09", dst="01:80:c2:00:00:01", type=0x8808)
    frames = [
        *[packet(wire.SEND_MIDDLE, psn, tos=3 if psn == 2 else 2) for psn in (1, 2, 2, 9, 3)],
        bytes(broken), packet(wire.ACK, 3, behind=roce.aeth(wire.NAK_SEQUENCE, 1), qpn=0x11),
        packet(wire.SEND_ONLY, 10)[:-4] + bytes(4), v1_frame(), bytes(Ether() / IP() / ICMP()),
        bytes(pfc / MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=500)),
        *FRAMES[:2],
    ]  # fmt: skip
    Path("some.pcapng").write_bytes(pcapng(frames, resolution=9))
    assert verb("--read", "some.pcapng", "--count", "3") == 0
    golden("capture/read.log", capsys.readouterr().out)
    assert verb("--read", "some.pcapng", "--format", "json", "--count", "1") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["packets"] == len(frames) and len(document["frames"]) == 1
    assert document["icrc"] == {"right": 8, "wrong": 1, "zero": 1, "cut": 0, "unchecked": 0, "wrong_packets": [6]}
    assert document["not_rocev2"] == {ROCE_V1: 1, "ICMP": 1, "PFC": 1}
    first = document["qps"][0]
    assert (first["qpn"], first["psn"]["missing"], first["psn"]["late"], first["psn"]["repeated"]) == (7, 5, 1, 1)
    assert any(row["qpn"] == DQPN for row in document["qps"])


BAD = {
    "not a capture": ("notes.txt", b"Dear all,\n"),
    "empty": ("empty.pcap", b""),
    "header only in part": ("short.pcap", pcap([])[:11]),
    "cut off": ("cut.pcapng", pcapng(FRAMES[:2])[:-30]),
    "broken gzip": ("broken.pcap.gz", gzip.compress(pcap(FRAMES))[:200]),
    "no gzip after all": ("no.gz", b"\x1f\x8b\x00rest"),
    "old snoop": ("snoop.cap", b"snoop\0\0\0\0\0\0\2\0\0\0\4"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_explained(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    name, data = BAD[case]
    Path(name).write_bytes(data)
    code = verb("--read", name)
    golden(f"capture/{case.replace(' ', '-')}.log", f"exit code {code}\n{capsys.readouterr().err}")


def test_bad_words_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    golden: Callable[[str, str], None],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("a directory").mkdir()
    Path("a directory/run1.pcapng").touch()
    Path("run.pcap").write_bytes(pcap(FRAMES))
    lines = []
    for words in (
        ["--read", "a directory"], ["--read", "rum.pcap"], ["--read", "nowhere/run.pcap"], [],
        ["--read", "run.pcap", "--count", "0"], ["rtsw1:eth1", "--read", "run.pcap", "--filter", "roce"],
    ):  # fmt: skip
        lines.append(f"$ ./inv capture {' '.join(words)}")
        code = verb(*words)
        lines.append(f"{capsys.readouterr().err}exit code {code}\n")
    golden("capture/words.log", "\n".join(lines))


def test_a_gzip_that_is_damaged_inside_gives_what_is_before(opened: Callable[[bytes], CaptureFile]) -> None:
    packed = bytearray(gzip.compress(pcap(FRAMES * 50), compresslevel=0))
    packed[len(packed) // 2] ^= 0xFF
    file = opened(bytes(packed))
    packets = list(file.packets())
    assert packets and file.damage
