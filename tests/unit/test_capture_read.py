"""Capture files from elsewhere: every format is read alike, and what is said of their queue pairs is true."""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.inet import ICMP, IP
from scapy.layers.l2 import Ether

from heddle.cli.program import main
from heddle.wire import layout as wire
from heddle.wire import roce
from heddle.wire.capturefile import CaptureFile, open_capture
from heddle.wire.conversations import CaptureTotals
from heddle.wire.dissect import ROCE_V1, dissect
from heddle.wire.icrc import verdict
from tests.unit.capture_frames import START_NS, packet, v1_frame
from tests.unit.roce_samples import DQPN, SAMPLES, SAMPLES6, SRC_IP

FRAMES = [sample.frame() for sample in (*SAMPLES, *SAMPLES6)]
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


def test_damage_in_a_file_takes_no_memory_and_leaves_what_is_before(opened: Callable[[bytes], CaptureFile]) -> None:
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
    # A gzip that is damaged inside gives what is before.
    packed = bytearray(gzip.compress(pcap(FRAMES * 50), compresslevel=0))
    packed[len(packed) // 2] ^= 0xFF
    file = opened(bytes(packed))
    packets = list(file.packets())
    assert packets and file.damage


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


# tshark


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
