"""Pause frames: ours against what scapy builds and what tshark reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scapy.contrib.mac_control import MACControlClassBasedFlowControl
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from heddle.base.ethernet import MAX_QUANTA
from heddle.switch.pfc.frame import FRAME_BYTES, PfcFrame, build, parse, quanta_ns

MAC = bytes.fromhex("02a1b2c3d4e5")
CASES: tuple[dict[int, int], ...] = (
    {3: 0xFFFF},
    {3: 0},
    {0: 1, 7: 2},
    {number: 1000 + number for number in range(8)},
    {},
)
FIELDS = ("eth.dst", "eth.src", "eth.type", "macc.opcode", "macc.cbfc.enbv", "_ws.malformed", "_ws.expert.message")
TIMES = tuple(f"macc.cbfc.pause_time.c{number}" for number in range(8))


@pytest.mark.parametrize("quanta", CASES)
def test_a_parsed_frame_has_the_fields_it_was_built_from(quanta: dict[int, int]) -> None:
    frame = build(MAC, quanta)
    assert len(frame) == FRAME_BYTES
    assert parse(frame) == PfcFrame(MAC, quanta)


@pytest.mark.parametrize("quanta", CASES)
def test_scapy_builds_the_same_bytes(quanta: dict[int, int]) -> None:
    words = {f"c{number}_enabled": int(number in quanta) for number in range(8)}
    words |= {f"c{number}_pause_time": quanta.get(number, 0) for number in range(8)}
    theirs = Ether(dst="01:80:c2:00:00:01", src="02:a1:b2:c3:d4:e5", type=0x8808)
    theirs /= MACControlClassBasedFlowControl(**words)
    assert build(MAC, quanta)[: len(bytes(theirs))] == bytes(theirs)[:FRAME_BYTES]


@pytest.mark.needs("tshark")
def test_tshark_reads_address_opcode_vector_and_times(tmp_path: Path) -> None:
    pcap = tmp_path / "pfc.pcap"
    wrpcap(str(pcap), [build(MAC, quanta) for quanta in CASES], linktype=1)
    wanted = [word for field in (*FIELDS, *TIMES) for word in ("-e", field)]
    argv = ["tshark", "-n", "-r", str(pcap), "-T", "fields", "-E", "separator=|", *wanted]
    lines = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()
    for line, quanta in zip(lines, CASES, strict=True):
        target, source, kind, opcode, vector, malformed, expert, *times = line.split("|")
        assert (target, source) == ("01:80:c2:00:00:01", "02:a1:b2:c3:d4:e5")
        assert (int(kind, 0), int(opcode, 0)) == (0x8808, 0x0101)
        assert int(vector, 0) == sum(1 << number for number in quanta)
        assert [int(each, 0) for each in times] == [quanta.get(number, 0) for number in range(8)]
        assert malformed == expert == ""


@pytest.mark.parametrize("quanta", [{8: 1}, {-1: 1}, {0: MAX_QUANTA + 1}, {0: -1}])
def test_values_outside_a_frames_fields_are_refused(quanta: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="class"):
        build(MAC, quanta)
    with pytest.raises(ValueError, match="MAC of 5 bytes"):
        build(MAC[:5], {})


def test_other_frames_are_none_of_ours() -> None:
    frame = build(MAC, {3: 5})
    pause = bytearray(frame)
    pause[14:16] = b"\0\1"  # the older PAUSE
    for other in (b"", frame[:33], b"\xff" + frame[1:], bytes(pause), frame[:12] + b"\x08\0" + frame[14:]):
        assert parse(other) is None


def test_a_time_whose_bit_is_clear_is_not_read() -> None:
    frame = bytearray(build(MAC, {3: 5}))
    frame[18:20] = b"\xff\xff"  # of class 0
    assert parse(bytes(frame)) == PfcFrame(MAC, {3: 5})


def test_a_quantum_is_512_bit_times_of_the_link() -> None:
    assert quanta_ns(1, 100_000_000) == 5120
    assert quanta_ns(65535, 100_000_000) == pytest.approx(335_539_200)
    assert quanta_ns(65535, 25_000_000) == 1_342_156_800
