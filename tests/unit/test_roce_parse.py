"""Reading frames: all that was written comes back, and nothing that may arrive raises or passes for a packet."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.unit.roce_samples import DQPN, MTU, PSN, SAMPLES, SPORT, SRC_IP, TOS, Sample, flow, payload_of
from traffic.nic import wire
from traffic.nic.buffers import FrameBuffer, frame_bytes_for
from traffic.nic.frames import SendBatch, ip_checksum
from traffic.nic.parse import NO_KIND, Parser, Received

SRC = int.from_bytes(bytes(int(part) for part in SRC_IP.split(".")), "big")


def read(*frames: bytes, parser: Parser | None = None, dirt: int = 0) -> Received:
    """Parse frames as if received into a buffer full of `dirt`; what is longer than a row is cut, as recvmmsg does."""
    buffer = FrameBuffer(frame_bytes_for(MTU), slots=max(1, len(frames)))
    buffer.flat[:] = dirt
    for slot, frame in enumerate(frames):
        kept = frame[: buffer.frame_bytes]
        buffer.rows[slot, : len(kept)] = np.frombuffer(kept, np.uint8)
    return (parser or Parser()).parse(buffer, [len(frame) for frame in frames])


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_what_was_written_comes_back(sample: Sample) -> None:
    got = read(sample.frame(), dirt=0xA5)
    kind = got.kinds[0]
    assert (got.sounds, got.oks, got.dqpns, got.psns) == ([True], [True], [DQPN], [sample.psn])
    assert got.ackreqs == [sample.ackreq]
    assert got.becns == [sample.opcode == wire.CNP]
    assert (kind.opcode, kind.src, kind.sport, kind.tos, kind.ce) == (sample.opcode, SRC, SPORT, TOS, False)
    assert kind.solicited == sample.solicited
    assert bytes(got.payload(0)) == payload_of(sample.size)
    for name, value in (("reth", sample.reth), ("imm", sample.imm), ("aeth", sample.aeth)):
        if value is not None:
            assert getattr(got, name)(0) == value
        else:
            with pytest.raises(ValueError, match=name):
                getattr(got, name)(0)


def test_arrays_say_what_the_lists_say() -> None:
    got = read(*(sample.frame() for sample in SAMPLES))
    assert got.sound.all()
    assert got.opcode.tolist() == [sample.opcode for sample in SAMPLES]
    assert got.payload_bytes.tolist() == [sample.size for sample in SAMPLES]
    assert (got.dqpn == DQPN).all()
    assert (got.src == SRC).all()
    assert got.psn.tolist() == got.psns
    assert got.ackreq.tolist() == got.ackreqs


def test_nothing_received_is_nothing() -> None:
    got = read()
    assert (len(got), got.runs(), got.sound.tolist()) == (0, [], [])


def test_a_run_is_one_span_and_one_block() -> None:
    payload = np.frombuffer(payload_of(6 * MTU), np.uint8).reshape(6, MTU)
    batch = SendBatch(MTU)
    batch.put_middles(0, flow(), PSN, payload)
    frames = [bytes(batch.frame(i)) for i in range(6)]
    broken = bytearray(frames[3])
    broken[100] ^= 1
    got = read(*frames)
    assert got.runs() == [(0, 6)]
    assert (got.block(1, 4) == payload[1:4]).all()
    assert read(*frames[:3], bytes(broken), *frames[4:]).runs() == [(0, 3), (4, 6)]
    assert read(*frames[:2], *frames[3:]).runs() == [(0, 2), (2, 5)]
    assert read(bytes(broken)).runs() == []
    assert read(frames[0], SAMPLES[-1].frame(), frames[1]).runs() == [(0, 1), (1, 2), (2, 3)]


def test_marks_and_hops_on_the_way_are_seen_and_do_no_harm() -> None:
    frame = bytearray(SAMPLES[3].frame())
    frame[wire.IP_AT + 8] -= 3
    frame[wire.IP_AT + 1] |= wire.ECN_CE
    frame[wire.BTH_AT + 4] |= 0x40
    frame[24:26] = bytes(2)
    frame[24:26] = ip_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    got = read(bytes(frame))
    assert (got.sounds, got.becns, got.kinds[0].ce) == ([True], [True], True)


def test_a_rewritten_source_port_breaks_the_icrc_only() -> None:
    frame = bytearray(SAMPLES[3].frame())
    frame[wire.UDP_AT + 1] ^= 1
    got = read(bytes(frame))
    assert (got.oks, got.sounds, got.icrc_ok(0)) == ([True], [False], False)


def test_ethernet_padding_is_no_fault_and_other_trailers_are() -> None:
    short = Sample("empty", wire.SEND_ONLY).frame()
    assert len(short) == 58
    assert read(short, short + b"\0\0").sounds == [True, True]
    assert read(short + b"\0", short + bytes(4), SAMPLES[3].frame() + b"\0").oks == [False] * 3


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_every_truncation_is_bad(sample: Sample) -> None:
    frame = sample.frame()
    sizes = range(len(frame)) if len(frame) < 200 else [*range(120), len(frame) - 4, len(frame) - 1]
    # The row still holds the rest of the frame, as after a longer one: only the length tells.
    buffer = FrameBuffer(frame_bytes_for(MTU), slots=1)
    buffer.rows[0, : len(frame)] = np.frombuffer(frame, np.uint8)
    parser = Parser()
    for size in sizes:
        got = parser.parse(buffer, [size])
        assert got.sounds == [False], size
        assert bytes(got.payload(0)) == b""


def test_a_frame_longer_than_the_row_is_bad() -> None:
    big = SendBatch(2 * MTU)
    big.put_data(0, flow(), wire.SEND_ONLY, 1, payload_of(2 * MTU))
    got = read(bytes(big.frame(0)))
    assert (got.oks, got.sounds, bytes(got.payload(0))) == ([False], [False], b"")


# Offset in the frame, what to write there. Checksums are mended, so that only this is wrong.
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


@pytest.mark.parametrize("fault", FAULTS)
def test_headers_that_contradict_each_other_are_bad(fault: str) -> None:
    at, wrong = FAULTS[fault]
    frame = bytearray(Sample("empty", wire.SEND_ONLY).frame())
    frame[at : at + len(wrong)] = wrong
    frame[24:26] = bytes(2)
    frame[24:26] = ip_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    got = read(bytes(frame))
    assert (got.oks, got.kinds) == ([False], [NO_KIND])


def test_a_wrong_ip_checksum_is_bad() -> None:
    frame = bytearray(SAMPLES[0].frame())
    frame[25] ^= 1
    assert read(bytes(frame)).oks == [False]


def test_garbage_never_raises_and_never_passes() -> None:
    rng = random.Random(4791)
    parser = Parser(kinds=64)
    originals = [sample.frame() for sample in SAMPLES]
    for _ in range(300):
        frames = []
        for _ in range(32):
            frame = bytearray(rng.choice(originals))
            match rng.randrange(4):
                case 0:  # a bit, anywhere that the ICRC or a length covers
                    at = rng.choice([i for i in range(12, len(frame)) if i not in (15, 22, 24, 25, 40, 41, 46)])
                    frame[at] ^= 1 << rng.randrange(8)
                case 1:
                    del frame[rng.randrange(len(frame)) :]
                case 2:
                    frame += rng.randbytes(rng.choice([3, 4, 60, 5000]))
                case 3:
                    frame = bytearray(rng.randbytes(rng.choice([0, 1, 14, 57, 58, 60, 62, 100, 4170, 9000])))
            frames.append(bytes(frame))
        got = read(*frames, parser=parser, dirt=rng.randrange(256))
        assert not any(got.sounds)
        assert got.runs() == []
        for i in range(len(got)):
            got.payload(i)
    assert len(parser._kinds) <= 64


def test_what_is_remembered_is_bounded_and_still_right() -> None:
    parser = Parser(kinds=8)
    batch = SendBatch(MTU)
    for sport in range(50):
        batch.put_data(0, flow(sport=1000 + sport), wire.SEND_ONLY, sport, payload_of(64))
        got = read(bytes(batch.frame(0)), parser=parser)
        assert (got.sounds, got.kinds[0].sport) == ([True], 1000 + sport)
    assert len(parser._kinds) <= 8
