"""Reading frames: all that was written comes back, as tshark reads it, and nothing else passes for a packet."""

from __future__ import annotations

import random
import subprocess
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import numpy as np
import pytest
from scapy.utils import wrpcap

from heddle.endpoints.nic.frames import NO_KIND, FrameBuffer, Parser, Received, SendBatch, frame_bytes_for, ip_checksum
from heddle.wire import layout as wire
from tests.unit.roce_samples import (
    DQPN,
    MTU,
    SAMPLES,
    SAMPLES6,
    SPORT,
    SRC_IP,
    SRC_IP6,
    TOS,
    Sample,
    flow,
    payload_of,
)

SRC = {4: int(IPv4Address(SRC_IP)), 6: int(IPv6Address(SRC_IP6))}


BY_NAME = pytest.mark.parametrize("sample", [*SAMPLES, *SAMPLES6], ids=lambda s: s.name)


def read(*frames: bytes, parser: Parser | None = None, dirt: int = 0, version: int = 4) -> Received:
    """Parse frames as if received into a buffer full of `dirt`; what is longer than a row is cut, as recvmmsg does."""
    buffer = FrameBuffer(frame_bytes_for(MTU, version), max(1, len(frames)), version)
    buffer.flat[:] = dirt
    for slot, frame in enumerate(frames):
        kept = frame[: buffer.frame_bytes]
        buffer.rows[slot, : len(kept)] = np.frombuffer(kept, np.uint8)
    return (parser or Parser(version=version)).parse(buffer, [len(frame) for frame in frames])


@BY_NAME
def test_a_written_record_is_read_back(sample: Sample) -> None:
    got = read(sample.frame(), dirt=0xA5, version=sample.version)
    kind = got.kinds[0]
    assert (got.sounds, got.oks, got.dqpns, got.psns) == ([True], [True], [DQPN], [sample.psn])
    assert got.ackreqs == [sample.ackreq]
    assert (kind.opcode, kind.src, kind.sport, kind.tos, kind.ce) == (
        sample.opcode, SRC[sample.version], SPORT, TOS, False,
    )  # fmt: skip
    assert bytes(got.payload(0)) == payload_of(sample.size)
    for name, value in (("reth", sample.reth), ("imm", sample.imm), ("aeth", sample.aeth)):
        if value is not None:
            assert getattr(got, name)(0) == value
        else:
            with pytest.raises(ValueError, match=name):
                getattr(got, name)(0)


def test_marks_and_hops_do_no_harm_and_a_rewritten_source_port_breaks_the_icrc() -> None:
    frame = bytearray(SAMPLES[3].frame())
    frame[wire.IP_AT + 8] -= 3
    frame[wire.IP_AT + 1] |= wire.ECN_CE
    frame[wire.BTH_AT + 4] |= 0x40
    frame[24:26] = bytes(2)
    frame[24:26] = ip_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    got = read(bytes(frame))
    assert (got.sounds, got.kinds[0].ce) == ([True], True)
    # A rewritten source port breaks the icrc only.
    frame = bytearray(SAMPLES[3].frame())
    frame[wire.UDP_AT + 1] ^= 1
    got = read(bytes(frame))
    assert (got.oks, got.sounds) == ([True], [False])


def test_padding_is_no_fault_and_long_frames_other_trailers_and_checksums_are() -> None:
    short = Sample("empty", wire.SEND_ONLY).frame()
    assert len(short) == 58
    assert read(short, short + b"\0\0").sounds == [True, True]
    assert read(short + b"\0", short + bytes(4), SAMPLES[3].frame() + b"\0").oks == [False] * 3
    # A frame longer than the row is bad.
    big = SendBatch(2 * MTU)
    big.put_data(0, flow(), wire.SEND_ONLY, 1, payload_of(2 * MTU))
    got = read(bytes(big.frame(0)))
    assert (got.oks, got.sounds, bytes(got.payload(0))) == ([False], [False], b"")
    # Packets of the other ip are none.
    for sample, other in zip(SAMPLES, SAMPLES6, strict=True):
        assert read(sample.frame(), version=6).oks == [False]
        assert read(other.frame()).oks == [False]
    # A wrong ip checksum is bad.
    frame = bytearray(SAMPLES[0].frame())
    frame[25] ^= 1
    assert read(bytes(frame)).oks == [False]


@BY_NAME
def test_every_truncation_is_bad(sample: Sample) -> None:
    frame = sample.frame()
    sizes = range(len(frame)) if len(frame) < 200 else [*range(120), len(frame) - 4, len(frame) - 1]
    # The row still holds the rest of the frame, as after a longer one: only the length tells.
    buffer = FrameBuffer(frame_bytes_for(MTU, sample.version), 1, sample.version)
    buffer.rows[0, : len(frame)] = np.frombuffer(frame, np.uint8)
    parser = Parser(version=sample.version)
    for size in sizes:
        got = parser.parse(buffer, [size])
        assert got.sounds == [False], size
        assert bytes(got.payload(0)) == b""


# Offset in the frame, what to write there. Checksums are corrected, so that only this is wrong.
FAULTS = {
    "ethertype": (12, b"\x86\xdd"),
    "ip version": (14, b"\x65"),
    "ip options": (14, b"\x46"),
    "fragment": (20, b"\x20\x00"),
    "fragment offset": (20, b"\x00\x01"),
    "tcp": (23, b"\x06"),
    "port": (36, b"\x12\xb6"),
    "udp length": (38, b"\x00\x20"),
    "ip length": (16, b"\x00\x40"),
    "transport version": (43, b"\x01"),
    "opcode": (42, b"\x1f"),
    "reliable datagram": (42, b"\x4a"),
    "pad without payload": (43, b"\x30"),
}
# The same of IPv6, which has no checksum of its own.
FAULTS6 = {
    "ethertype": (12, b"\x08\x00"),
    "ip version": (14, b"\x40"),
    "fragment header": (20, b"\x2c"),
    "tcp": (20, b"\x06"),
    "payload length": (18, b"\x00\x40"),
    "port": (56, b"\x12\xb6"),
    "udp length": (58, b"\x00\x20"),
    "opcode": (62, b"\x1f"),
    "transport version": (63, b"\x01"),
}


@pytest.mark.parametrize(("version", "fault"), [*((4, fault) for fault in FAULTS), *((6, fault) for fault in FAULTS6)])
def test_headers_that_contradict_each_other_are_bad(version: int, fault: str) -> None:
    at, wrong = (FAULTS6 if version == 6 else FAULTS)[fault]
    frame = bytearray(Sample("empty", wire.SEND_ONLY, version=version).frame())
    assert read(bytes(frame), version=version).sounds == [True]
    frame[at : at + len(wrong)] = wrong
    if version == 4:
        frame[24:26] = bytes(2)
        frame[24:26] = ip_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    got = read(bytes(frame), version=version)
    assert (got.oks, got.kinds) == ([False], [NO_KIND])


def test_routers_may_change_only_class_label_and_hop_limit_of_ipv6() -> None:
    frame = bytearray(SAMPLES6[3].frame())
    frame[14:18] = (6 << 28 | (TOS | wire.ECN_CE) << 20 | 0xABCDE).to_bytes(4, "big")
    frame[21] -= 3
    got = read(bytes(frame), version=6)
    assert (got.sounds, got.kinds[0].ce, got.kinds[0].tos) == ([True], True, TOS | wire.ECN_CE)
    for at in (22, 37, 38, 53, 55, 62 + 5):  # addresses, source port, destination QP
        wrong = bytearray(frame)
        wrong[at] ^= 1
        assert read(bytes(wrong), version=6).sounds == [False], at


# Bytes that switches may change: ToS, TTL and checksum, or class, label and hop limit; UDP checksum; BTH byte 4.
FREE = {4: (15, 22, 24, 25, 40, 41, 46), 6: (14, 15, 16, 17, 21, 60, 61, 66)}


@pytest.mark.parametrize("version", [4, 6])
def test_garbage_never_raises_and_never_passes(version: int) -> None:
    rng = random.Random(4791)
    parser = Parser(kinds=64, version=version)
    originals = [sample.frame() for sample in (SAMPLES6 if version == 6 else SAMPLES)]
    free = FREE[version]
    for _ in range(100):
        frames = []
        for _ in range(32):
            frame = bytearray(rng.choice(originals))
            match rng.randrange(4):
                case 0:  # a bit, anywhere that the ICRC or a length covers
                    at = rng.choice([i for i in range(12, len(frame)) if i not in free])
                    frame[at] ^= 1 << rng.randrange(8)
                case 1:
                    del frame[rng.randrange(len(frame)) :]
                case 2:
                    frame += rng.randbytes(rng.choice([3, 4, 60, 5000]))
                case 3:
                    frame = bytearray(rng.randbytes(rng.choice([0, 1, 14, 57, 58, 60, 62, 100, 4170, 9000])))
            frames.append(bytes(frame))
        got = read(*frames, parser=parser, dirt=rng.randrange(256), version=version)
        assert not any(got.sounds)
        for i in range(len(got)):
            got.payload(i)
    assert len(parser._kinds) <= 64


FIELDS = (
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.bth.psn",
    "infiniband.bth.a",
    "infiniband.bth.padcnt",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.immdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
    "ip.checksum.status",
    "_ws.malformed",
    "_ws.expert.message",
)
CHECKSUM_GOOD = {4: "1", 6: ""}  # IPv6 has none of its own
ALL = [*SAMPLES, *SAMPLES6]
# It takes any short SEND for NFS's RPC over RDMA, and reads beyond its end.
GUESSES_OFF = ("--disable-heuristic", "rpcrdma_infiniband")


def dissect(pcap: Path) -> list[dict[str, str]]:
    """What tshark says of each packet, by field; what it does not say is empty."""
    wanted = [word for field in FIELDS for word in ("-e", field)]
    # UDP checksum 0 in IPv6 is what it complains about by default; RFC 6935 lets tunnels do so, and NICs do.
    wishes = ("-o", "ip.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE", *GUESSES_OFF)
    command = ["tshark", "-n", "-r", str(pcap), *wishes]
    output = ["-T", "fields", "-E", "separator=|", *wanted]
    done = subprocess.run([*command, *output], check=True, capture_output=True, text=True)
    return [dict(zip(FIELDS, line.split("|"), strict=True)) for line in done.stdout.splitlines()]


def number(text: str) -> int | None:
    """tshark's number in decimal or 0x...; None when it printed none."""
    return int(text, 0) if text else None


@pytest.fixture(scope="module")
def dissected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    pcap = tmp_path_factory.mktemp("roce") / "every kind.pcap"
    wrpcap(str(pcap), [sample.frame() for sample in ALL], linktype=1)
    return dict(zip((sample.name for sample in ALL), dissect(pcap), strict=True))


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("sample", ALL, ids=lambda s: s.name)
def test_tshark_reads_the_same(dissected: dict[str, dict[str, str]], sample: Sample) -> None:
    said = dissected[sample.name]
    assert (said["_ws.malformed"], said["_ws.expert.message"]) == ("", "")
    assert said["ip.checksum.status"] == CHECKSUM_GOOD[sample.version]
    values = {name: number(said[f"infiniband.bth.{name}"]) for name in ("opcode", "destqp", "psn", "padcnt")}
    assert values == {"opcode": sample.opcode, "destqp": DQPN, "psn": sample.psn, "padcnt": -sample.size % 4}
    # tshark says 1 and 0 up to 4.0, True and False from 4.2 on.
    assert (said["infiniband.bth.a"] in ("1", "True")) == sample.ackreq
    va, rkey, dmalen = (number(said[f"infiniband.reth.{name}"]) for name in ("va", "r_key", "dmalen"))
    assert ((va, rkey, dmalen) if va is not None else None) == sample.reth
    # Bytes without 0x, and twice: the dissector hands them to two readers.
    assert (int(said["infiniband.immdt"].split(",")[0], 16) if said["infiniband.immdt"] else None) == sample.imm
    syndrome, msn = number(said["infiniband.aeth.syndrome"]), number(said["infiniband.aeth.msn"])
    assert ((syndrome, msn) if msn is not None else None) == sample.aeth
    # tshark shows the ICRC as it lies in the frame, and does not check it. Version 4.0 knows no CNP: only bytes there.
    shown = number(said["infiniband.invariant.crc"])
    assert shown == int.from_bytes(sample.frame()[-4:], "big") or (sample.opcode == wire.CNP and shown is None)
