"""Capture files from elsewhere: every format is read alike, and what is said of their queue pairs is true."""

from __future__ import annotations

import gzip
import json
import shlex
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from heddle.cli.program import main
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.dissect import ROCE_V1, dissect
from heddle.wire.layout import verdict
from heddle_plugins.packets.capturefile import CaptureFile, open_capture
from heddle_plugins.packets.conversations import CaptureTotals
from tests.answers import Answers
from tests.marks import deep
from tests.unit.packets.capture_frames import (
    CARRIED,
    FORMATS,
    FRAMES,
    TIMES,
    block,
    packet,
    pcap,
    pcapng,
    tshark,
    v1_frame,
)
from tests.unit.roce_samples import DQPN, SRC_IP


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


def test_joined_files_and_other_blocks_are_read(opened: Callable[[bytes], CaptureFile]) -> None:
    joined = pcapng(FRAMES[:2], ">", 9, b"leaf") + pcapng(FRAMES[2:5], "<", None, b"spine")
    packets = list(opened(joined).packets())
    assert [packet.port for packet in packets] == ["leaf"] * 2 + ["spine"] * 3
    assert [packet.data for packet in packets] == FRAMES[:5]
    assert [packet.time_ns for packet in packets] == [*TIMES[:2], *TIMES[:3]]
    # Simple and obsolete packet blocks are read.
    frame = FRAMES[0]
    old = struct.pack("<HHIIII", 0, 0, 0, 7, len(frame), len(frame)) + frame
    data = pcapng([]) + block("<", 3, struct.pack("<I", len(frame)) + frame) + block("<", 2, old)
    first, second = opened(data).packets()
    assert first.data == second.data == frame
    assert (first.time_ns, second.time_ns) == (0, 7000)
    # An unknown link type is counted.
    (packet,) = opened(pcap([b"802.11 or so"], link=127)).packets()
    assert packet.data is None


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


@pytest.mark.parametrize("cut", range(1, 60, 7))
@pytest.mark.parametrize("name", ["pcap < us", "pcapng < 9"])
def test_a_file_that_ends_too_early_gives_what_is_before(
    name: str, cut: int, opened: Callable[[bytes], CaptureFile]
) -> None:
    file = opened(FORMATS[name][:-cut])
    packets = list(file.packets())
    assert [packet.data for packet in packets] == FRAMES[:-1]
    assert file.damage.startswith("the file ends within ")


SECTION = pcapng([])[:28]
DAMAGED = {
    **{f"packet 2 has the length {size}, so it is damaged": pcap(FRAMES[:1]) + struct.pack("<IIII", 1, 1, size, 60)
       for size in (0xFFFFFFF0, 262145)},
    "block 5 (enhanced packet), after packet 1 has the length 7": pcapng(FRAMES[:1]) + struct.pack("<II", 6, 7),
    "block 5 (enhanced packet), after packet 1 has the length 13": pcapng(FRAMES[:1]) + struct.pack("<II", 6, 13),
    "block 5 (enhanced packet), after packet 1 has the length 1073741824, so it is damaged":
        pcapng(FRAMES[:1]) + struct.pack("<II", 6, 1 << 30),
    "block 4 (enhanced packet) is of interface 3, which the file does not describe":
        pcapng([]) + block("<", 6, struct.pack("<IIIII", 3, 0, 0, 0, 0)),
    "block 2 (simple packet) is of interface 0, which the file does not describe":
        SECTION + block("<", 3, struct.pack("<II", 4, 4)),
    "block 4 (enhanced packet) is too short: 16 bytes": pcapng([]) + block("<", 6, bytes(16)),
    "block 4 (enhanced packet) is of 20 bytes and has a packet of 60":
        pcapng([]) + block("<", 6, struct.pack("<IIIII", 0, 0, 0, 60, 60)),
    "block 2 (interface description) is too short: 0 bytes": SECTION + block("<", 1, b""),
    "block 2 (interface description) is too short: 4 bytes": SECTION + block("<", 1, bytes(4)),
    "block 2 (interface description) has the length 20 at its start and 24 at its end":
        SECTION + block("<", 1, bytes(8))[:-4] + struct.pack("<I", 24),
    "block 1 (section header) has the version 7.0, which is not known": SECTION[:12] + b"\7" + SECTION[13:],
    "block 1 (section header) is too short: 8 bytes": block("<", 0x0A0D0D0A, struct.pack("<IHH", 0x1A2B3C4D, 1, 0)),
    "block 4 (section header) begins with 00000000, which is no byte order": pcapng([]) + SECTION[:8] + bytes(20),
    "block 4098 (interface description) describes interface 4097: more than are read":
        gzip.compress(SECTION + block("<", 1, struct.pack("<HHI", 1, 0, 0)) * 5000),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_named_and_what_is_before_is_read(damage: str, opened: Callable[[bytes], CaptureFile]) -> None:
    file = opened(DAMAGED[damage])
    assert [packet.data for packet in file.packets()] == FRAMES[: "after" in damage or damage.startswith("packet 2")]
    assert file.damage.startswith(damage)


@pytest.mark.parametrize("body", [bytes(1 << 22), block("<", 0x7777, bytes(1 << 20)) * 99], ids=["packets", "blocks"])
def test_a_small_file_does_not_expand_without_end(body: bytes, opened: Callable[[bytes], CaptureFile]) -> None:
    file = opened(gzip.compress((pcapng([]) if body[0] else pcap([])) + body))
    assert sum(1 for _ in file.packets()) < 110_000
    assert "decompress it first" in file.damage


def test_a_gzip_that_is_damaged_inside_gives_what_is_before(opened: Callable[[bytes], CaptureFile]) -> None:
    packed = bytearray(gzip.compress(pcap(FRAMES * 50), compresslevel=0))
    packed[len(packed) // 2] ^= 0xFF
    file = opened(bytes(packed))
    packets = list(file.packets())
    assert packets and file.damage


def test_names_are_short_and_clocks_may_be_odd(opened: Callable[[bytes], CaptureFile]) -> None:
    escapes = b"\x1b]0;owned\x07\x1b[31mX"
    for name, said in (
        (escapes, "?]0;owned??[31mX"),
        (b"e" * 65000, "e" * 256),
        (b"\xff\0", "\ufffd"),
        (b"", "interface 0"),
    ):
        file = opened(pcapng(FRAMES[:1], name=name))
        assert [packet.port for packet in file.packets()] == [said]
    for clock in (struct.pack("<HH", 9, 0), struct.pack("<HHBxxx", 9, 1, 127), struct.pack("<HHq", 14, 8, 2**63 - 1)):
        file = opened(SECTION + block("<", 1, struct.pack("<HHI", 1, 0, 0) + clock) + block("<", 6, bytes(20)))
        assert len(list(file.packets())) == 1 and not file.damage


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("name", ["pcap > us", "pcapng < 158", *(deep(name) for name in FORMATS)])
def test_tshark_reads_the_same_packets(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(FORMATS[name])
    found = list(open_capture(tmp_path / "file", "").packets())
    fields = ("frame.len", "frame.time_epoch", "infiniband.bth.psn")
    for each, (size, time, psn) in zip(found, tshark(tmp_path / "file", *fields), strict=True):
        seconds, _, fraction = time.partition(".")
        assert (int(size), int(psn)) == (each.wire_bytes, dissect(each.data or b"").fields["psn"])
        assert abs(int(seconds) * 10**9 + int(fraction.ljust(9, "0")) - each.time_ns) <= 1


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "long.pcap"
    with path.open("wb") as out:
        out.write(pcap([]))
        record = pcap(FRAMES)[24:]
        for _ in range(3_000_000 // len(record)):
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
    assert totals.wire_bytes > 2_000_000
    assert peak < 1_000_000


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
        *[packet(wire.SEND_MIDDLE, psn, tos=3 if psn == 2 else 0x6A, id=number)
          for number, psn in ((1, 1), (2, 2), (3, 2), (4, 9), (4, 9), (5, 3))],
        bytes(broken), packet(wire.ACK, 3, behind=roce.aeth(wire.NAK_SEQUENCE, 1), qpn=0x11),
        packet(wire.SEND_ONLY, 10)[:-4] + bytes(4), v1_frame(), bytes(Ether() / IP() / ICMP()),
        bytes(pfc / MACControlClassBasedFlowControl(c3_enabled=1, c3_pause_time=500)),
        FRAMES[0], CARRIED[0][1], FRAMES[-1][:64],
    ]  # fmt: skip
    Path("some.pcapng").write_bytes(pcapng(frames, resolution=9))
    assert verb("--read", "some.pcapng", "--count", "3") == 0
    golden("capture/read.log", capsys.readouterr().out)
    assert verb("--read", "some.pcapng", "--format", "json", "--count", "1") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["packets"] == len(frames) and len(document["frames"]) == 1
    assert document["icrc"] == {"right": 9, "wrong": 1, "zero": 1, "cut": 0, "unchecked": 0, "wrong_packets": [7]}
    assert document["not_rocev2"] == {ROCE_V1: 1, "ICMP": 1, "PFC": 1}
    first = document["qps"][0]
    assert (first["qpn"], first["psn"]["missing"], first["psn"]["late"], first["psn"]["repeated"]) == (7, 5, 1, 1)
    assert (first["dscp"], first["pcp"], first["copies"]) == ({"26": 4, "0": 4}, {"untagged": 8}, 1)
    assert (document["copies"], document["tunnels"], document["cut_before_bth"]) == (1, {"VXLAN": 1}, 1)
    assert document["dscp"] == {"26": 4, "0": 5, "24": 2} and document["pcp"] == {"untagged": 11}
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answers: Answers
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a directory").mkdir()
    Path("a directory/run1.pcapng").touch()
    Path("run.pcap").write_bytes(pcap(FRAMES))
    answers(lambda line: f"exit code {verb(*shlex.split(line))}\n{capsys.readouterr().err}")
