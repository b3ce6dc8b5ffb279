"""The compiled NIC against the Python one: the same frames for the same events, and nothing believed that is wrong.

Both stand on pairs of UNIX datagram sockets instead of packet sockets, so a test is their network and their clock.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import random
import shutil
import socket
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.endpoints.connections import part_bytes, part_sizes
from heddle.endpoints.fastpath import library, makefast
from heddle.endpoints.fastpath.fastloop import address, opcodes
from heddle.endpoints.nic.framebuffer import FrameBuffer, frame_bytes_for
from heddle.endpoints.nic.frames import FlowHeader, SendBatch, ip_checksum
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.parse import Parser
from heddle.endpoints.nic.qpend import Message, QpInfo
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import RcParams
from heddle.switch.bpf.build import clang_version
from heddle.wire import layout as wire

MTU: Final = 256
RKEY: Final = 77
NS: Final = 1_000_000_000
TICK_S: Final = 2.0**-9  # a whole number of nanoseconds, and exact as a float: both sides see the same times
QPS: Final = 3
EPOCH: Final = 5
NEAR: Final = {4: "10.0.0.1", 6: "fd00::1"}
FAR: Final = {4: "10.0.1.1", 6: "fd00:1::1"}

found = library.load()
needs_object = pytest.mark.skipif(isinstance(found, str), reason=str(found))


def flow(version: int, dqpn: int, *, back: bool = False) -> FlowHeader:
    src, dst = (FAR, NEAR) if back else (NEAR, FAR)
    tos = wire.TOS_ANSWER if back else wire.TOS_DATA
    return FlowHeader(
        src_mac="02:00:00:00:00:01", dst_mac="02:00:00:00:00:02", src_ip=src[version], dst_ip=dst[version],
        sport=50000 + dqpn, dqpn=dqpn, tos=tos,
    )  # fmt: skip


@dataclass
class Memory:
    """One region from `base` on, and what was announced."""

    base: int
    data: bytearray
    arrivals: list[int] = field(default_factory=list)

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        at = va - self.base
        fits = rkey == RKEY and at >= 0 and at + length <= len(self.data)
        return memoryview(self.data)[at : at + length] if fits else None

    def arrived(self, imm: int) -> None:
        self.arrivals.append(imm)


class DatagramSocket:
    """What a Nic needs of a PacketSocket, over a datagram socket."""

    def __init__(self, sock: socket.socket, mtu: int, version: int) -> None:
        self._socket, self.errno = sock, 0
        self._buffer = FrameBuffer(frame_bytes_for(mtu, version), version=version)

    def send(self, batch: FrameBuffer, count: int, first: int = 0) -> int:
        self.errno = 0
        for i in range(first, first + count):
            try:
                self._socket.send(batch.frame(i))
            except BlockingIOError:
                self.errno = errno.EAGAIN
                return i - first
        return count

    def recv(self) -> tuple[FrameBuffer, list[int]]:
        lengths: list[int] = []
        while len(lengths) < self._buffer.slots:
            try:
                frame = self._socket.recv(1 << 16)
            except BlockingIOError:
                break
            start, room = self._buffer.starts[len(lengths)], self._buffer.frame_bytes
            self._buffer.mem[start : start + min(len(frame), room)] = frame[:room]
            lengths.append(len(frame))
        return self._buffer, lengths


class Bench:
    """One NIC with a few queue pairs that send and as many that receive; `frames` is what it has sent."""

    BASE: Final = EPOCH << 48

    def __init__(self, params: RcParams, version: int, psn: int, delays: tuple[float, ...] = (0.0,)) -> None:
        self.params, self.version = params, version
        kinds = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        # Data, answers, and a pair without a writer: a byte there would end hd_run.
        self.pairs = [socket.socketpair(socket.AF_UNIX, kinds) for _ in range(3)]
        for pair in self.pairs:
            for sock in pair:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        held = [delays[i % len(delays)] for i in range(QPS)]
        self.senders = [QpInfo(0x100 + i, flow(version, 0x200 + i), psn, 0, held[i]) for i in range(QPS)]
        self.receivers = [QpInfo(0x300 + i, flow(version, 0x400 + i), psn, 0, held[i]) for i in range(QPS)]

    def sent(self) -> list[bytes]:
        frames = []
        for _, far in self.pairs:
            while True:
                try:
                    frames.append(far.recv(1 << 16))
                except BlockingIOError:
                    break
        return frames

    def give(self, frame: bytes) -> None:
        self.pairs[0][1].send(frame)

    def close(self) -> None:
        for pair in self.pairs:
            for sock in pair:
                sock.close()


class PythonBench(Bench):
    def __init__(self, params: RcParams, version: int, psn: int, size: int, delays: tuple[float, ...] = (0.0,)) -> None:
        super().__init__(params, version, psn, delays)
        sockets = [DatagramSocket(near, params.mtu, version) for near, _ in self.pairs]
        self.nic = Nic(sockets[0], sockets[1], params.mtu, version)  # type: ignore[arg-type]
        self.memory = Memory(self.BASE, bytearray(size))
        self.ends = [QueuePair(self.nic, qp, RcSender(params, qp)) for qp in self.senders]
        for end in self.ends:
            self.nic.add(end)
        for qp in self.receivers:
            self.nic.add(QueuePair(self.nic, qp, RcReceiver(params, qp, self.memory)))

    def post(self, data: np.ndarray, va: int, imm: int) -> None:
        view = data.data
        for end, (offset, size) in zip(self.ends, part_sizes(len(data), QPS), strict=False):
            end.post(Message(view[offset : offset + size], va + offset, RKEY, imm))

    def work(self, now: float, tick: bool = False) -> None:
        self.nic.receive(now)
        self.nic.expire(now)
        if tick:
            self.nic.blocked, self.nic.eager = False, True
        if self.nic.eager:
            self.nic.transmit(now)

    def counters(self) -> list[tuple[int, ...]]:
        return [(q.packets, q.bytes, q.ce, *q.end.counters().values()) for q in self.nic.qps.values()]

    def turned_away(self) -> tuple[int, int, int]:
        seen = self.nic.counters
        return seen.malformed, seen.icrc_errors, seen.stray

    def complete(self) -> list[int]:
        return list(self.memory.arrivals)

    def written(self) -> bytes:
        return bytes(self.memory.data)

    @property
    def idle(self) -> bool:
        return self.nic.idle


class FastBench(Bench):
    def __init__(self, params: RcParams, version: int, psn: int, size: int, delays: tuple[float, ...] = (0.0,)) -> None:
        super().__init__(params, version, psn, delays)
        self.size = size
        self.code, crc = self.loaded()
        rc = library.RcStruct(
            round(params.timeout_s * NS), round(params.ack_delay_s * NS), params.mtu, params.retries
        )  # fmt: skip
        self.engine = self.code.hd_engine(rc, opcodes(), crc, version, frame_bytes_for(params.mtu, version), 0)
        assert self.engine
        near = [pair[0].fileno() for pair in self.pairs]
        assert self.code.hd_nic(self.engine, near[0], near[1], RKEY) == 0
        for kind, ends in enumerate((self.senders, self.receivers)):
            for qp in ends:
                head = qp.flow.template(wire.WRITE_MIDDLE).prefix.ljust(qp.flow.layout.ext_at, b"\0")
                peer, pace = qp.flow.dst_ip.ljust(16, b"\0"), (params.window, params.ack_every)
                delay = round(qp.delay_s * NS)
                assert self.code.hd_qp(self.engine, 0, kind, qp.qpn, head, peer, qp.psn, *pace, delay) >= 0
        self.kept: list[np.ndarray] = []
        self.failed: list[tuple[int, int]] = []
        self.done: list[int] = []

    def loaded(self) -> tuple[Any, int]:
        """The object's functions, and the address of a CRC-32 for them."""
        assert isinstance(found, library.Library)
        return found.code, found.crc

    def at(self, array: np.ndarray) -> Any:
        """An array as an argument of the object's functions."""
        return address(array)

    def string_at(self, where: int, size: int) -> bytes:
        return ctypes.string_at(where, size)

    def expect(self, size: int, imm: int, parts: int) -> None:
        arrays = [np.array([v], t) for v, t in ((self.BASE, "u8"), (size, "u4"), (imm, "u4"), (parts, "u4"))]
        assert self.code.hd_expect(self.engine, 0, EPOCH, 1, *map(self.at, arrays)) == 0

    def post(self, data: np.ndarray, va: int, imm: int) -> None:
        self.kept.append(data)
        ends = np.arange(QPS, dtype=np.uint32)
        part = part_bytes(len(data), QPS)
        assert self.code.hd_post(self.engine, 0, self.at(ends), self.at(data), len(data), part, va, RKEY, imm) == 0

    def work(self, now: float, tick: bool = False) -> None:
        self.code.hd_pass(self.engine, round(now * NS), tick)
        events = (library.EventStruct * 16)()
        for event in events[: self.code.hd_drain(self.engine, events, 16)]:
            if event.kind == 1:
                self.done.append(event.b)
            else:
                self.failed.append((event.kind, event.a))

    def counters(self) -> list[tuple[int, ...]]:
        rows = []
        for index in range(2 * QPS):
            numbers = (ctypes.c_uint64 * 6)()
            self.code.hd_qp_counters(self.engine, 0, index, numbers)
            rows.append(tuple(numbers[: 6 if index < QPS else 5]))
        return rows

    def turned_away(self) -> tuple[int, int, int]:
        numbers = (ctypes.c_uint64 * 4)()
        self.code.hd_nic_counters(self.engine, 0, numbers)
        return numbers[0], numbers[1], numbers[2]

    def written(self) -> bytes:
        at = self.code.hd_message(self.engine, 0, EPOCH, 0)
        return self.string_at(at, self.size) if at else b""

    @property
    def idle(self) -> bool:
        return bool(self.code.hd_idle(self.engine, 0))

    def close(self) -> None:
        self.code.hd_close(self.engine)
        super().close()


def by_queue_pair(frames: list[bytes], version: int) -> dict[int, list[bytes]]:
    """The frames of each destination queue pair, in order: how queue pairs take turns is not part of a trace."""
    at = wire.LAYOUTS[version].dqpn_word_at
    found: dict[int, list[bytes]] = defaultdict(list)
    for frame in frames:
        found[int.from_bytes(frame[at : at + 4], "big") & wire.QPN_MASK].append(frame)
    return found


def answer(version: int, qpn: int, psn: int, syndrome: int) -> bytes:
    batch = SendBatch(0, slots=1, version=version)
    batch.put_ack(0, flow(version, qpn, back=True), psn, syndrome, 0)
    return bytes(batch.frame(0))


def both(
    params: RcParams, version: int, psn: int, size: int = MTU, delays: tuple[float, ...] = (0.0,)
) -> tuple[PythonBench, FastBench]:
    return PythonBench(params, version, psn, size, delays), FastBench(params, version, psn, size, delays)


@needs_object
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(12))
def test_a_sender_makes_the_same_packets_for_the_same_events(version: int, seed: int) -> None:
    """Random messages, ACKs (also of what was never sent), NAKs, time-outs: byte for byte, and in their counters."""
    dice = random.Random(seed)
    params = RcParams(MTU, dice.choice([1, 4, 16]), dice.choice([1, 3, 8]), 1.0, 1000)
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    python, fast = both(params, version, psn)
    now, ahead = 10.0, [psn] * QPS
    try:
        for step in range(300):
            now += dice.choice([0.0, 0.01, 0.3, 1.5])
            act = dice.random()
            if act < 0.25:
                data = np.frombuffer(dice.randbytes(dice.choice([4, 300, 768, 5000])), np.uint8)
                for bench in (python, fast):
                    bench.post(data, step << 20, step)
            elif act < 0.9:
                which = dice.randrange(QPS)
                back = dice.choice([-2, -1, 0, 1, 2, 5, 40])
                syndrome = wire.NAK_SEQUENCE if dice.random() < 0.2 else wire.ACK_NO_LIMIT
                at = (ahead[which] + back) & wire.PSN_MASK
                if back in (0, 1, 2) and syndrome == wire.ACK_NO_LIMIT:
                    ahead[which] = (at + 1) & wire.PSN_MASK
                for bench in (python, fast):
                    bench.give(answer(version, 0x100 + which, at, syndrome))
            for bench in (python, fast):
                bench.work(now, tick=dice.random() < 0 or act > 0.9)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
            assert python.idle == fast.idle
        assert python.counters() == fast.counters()
        assert python.turned_away() == fast.turned_away() == (0, 0, 0)
        assert sum(row[0] for row in fast.counters()) > 50
    finally:
        python.close()
        fast.close()


def data_frames(version: int, psn: int, payload: bytes, imm: int, ack_every: int) -> list[list[bytes]]:
    """Per receiving queue pair, the packets of its part of one message."""
    batch, rows = SendBatch(MTU, version=version), []
    for which, (offset, size) in enumerate(part_sizes(len(payload), QPS)):
        part, count = payload[offset : offset + size], max(1, -(-size // MTU))
        header = flow(version, 0x300 + which, back=True)
        batch.put_write(
            0, header, psn, part, reth=(Bench.BASE + offset, RKEY, size), imm=imm, index=0, count=count,
            ack_every=ack_every,
        )  # fmt: skip
        rows.append([bytes(batch.frame(i)) for i in range(count)])
    return rows


DELAYS: Final = ((0.0,), (128 * TICK_S, 0.0, 256 * TICK_S))


@needs_object
@pytest.mark.parametrize("delays", DELAYS, ids=["at once", "held back"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("seed", range(12))
def test_a_receiver_answers_alike_and_writes_the_same(version: int, seed: int, delays: tuple[float, ...]) -> None:
    """Packets that are lost, doubled, out of order, marked and damaged: the same answers, and whole data in the end."""
    dice = random.Random(100 + seed)
    params = RcParams(MTU, 16, dice.choice([1, 3, 8]), 1.0, 7, ack_delay_s=dice.choice([0.0, 10 * TICK_S]))
    psn = dice.choice([0, wire.PSN_MASK - 3, 1 << 23])
    payload = dice.randbytes(9 * MTU * QPS - 40)
    python, fast = both(params, version, psn, len(payload), delays)
    imm = 0x05001002
    fast.expect(len(payload), imm, QPS)
    queues = data_frames(version, psn, payload, imm, 4)
    due = [0] * QPS
    now = 10.0
    try:
        for step in range(600):
            now += TICK_S * dice.choice([0, 2, 25])
            which = dice.randrange(QPS)
            frames = queues[which]
            for _ in range(dice.randint(1, 4)):
                index = dice.choice(
                    [due[which], due[which], due[which], due[which] + 1, due[which] - 1, due[which] + 3]
                )
                if not 0 <= index < len(frames):
                    continue
                frame = mistreated(dice, frames[index], version)
                intact = frame[wire.UDP_AT :] == frames[index][wire.UDP_AT :]
                for bench in (python, fast):
                    bench.give(frame)
                due[which] += intact and index == due[which]
            for bench in (python, fast):
                bench.work(now)
            sent = [by_queue_pair(bench.sent(), version) for bench in (python, fast)]
            assert sent[0] == sent[1], f"step {step}"
        for which, frames in enumerate(queues):
            for rest in frames[due[which] :]:
                for bench in (python, fast):
                    bench.give(rest)
                    bench.work(now)
        now += 1.0  # longer than any delay
        for bench in (python, fast):
            bench.work(now)
        assert python.written() == fast.written() == payload
        assert python.complete() == [imm] * QPS and fast.done == [0]
        assert [row[2:] for row in python.counters()] == [row[2:] for row in fast.counters()]
        assert python.turned_away() == fast.turned_away()
        assert sum(python.turned_away()) > 0
    finally:
        python.close()
        fast.close()


def mistreated(dice: random.Random, frame: bytes, version: int) -> bytes:
    """Some frames are marked on their way, and of some one bit behind the IP header changes."""
    made, tos_at = bytearray(frame), wire.IP_AT + 1
    if dice.random() < 0.1 and version == 4:
        made[tos_at] |= wire.ECN_CE  # ICRC does not cover it, IPv4's own checksum does
        made[tos_at + 9 : tos_at + 11] = bytes(2)
        made[tos_at + 9 : tos_at + 11] = ip_checksum(bytes(made[wire.IP_AT : wire.UDP_AT])).to_bytes(2, "big")
    if dice.random() < 0.05:
        made[dice.randrange(wire.LAYOUTS[version].udp_at, len(made))] ^= 1 << dice.randrange(8)
    return bytes(made)


@needs_object
@pytest.mark.parametrize("version", [4, 6])
def test_frames_that_are_wrong_are_turned_away_for_the_same_reason(version: int) -> None:
    """Every byte of the headers changed in turn, cut at every length, and random garbage."""
    dice = random.Random(4)
    params = RcParams(MTU, 16, 8, 1.0, 7)
    python, fast = both(params, version, 0, 3 * MTU)
    fast.expect(3 * MTU, 1, QPS)
    good = data_frames(version, 0, bytes(3 * MTU), 1, 4)[0][0]
    wrong = []
    for at in range(wire.LAYOUTS[version].ext_at + 20):
        for bit in (0x01, 0x10, 0x80, 0xFF):
            wrong.append(bytes([*good[:at], good[at] ^ bit, *good[at + 1 :]]))
    wrong += [good[:size] for size in range(len(good))] + [good + b"\0", good + bytes(100), good + bytes(9000)]
    wrong += [dice.randbytes(dice.randint(0, 400)) for _ in range(200)]
    wrong += [good[: wire.IP_AT] + dice.randbytes(len(good) - wire.IP_AT) for _ in range(200)]
    try:
        for frame in wrong:
            if not frame:
                continue
            for bench in (python, fast):
                bench.give(frame)
                bench.work(1.0)
            assert python.turned_away() == fast.turned_away(), frame.hex()
        assert [row[2:] for row in python.counters()] == [row[2:] for row in fast.counters()]
    finally:
        python.close()
        fast.close()


@needs_object
def test_writes_outside_the_region_and_with_a_wrong_key_are_refused() -> None:
    for reth in ((Bench.BASE + 1, RKEY, MTU), (Bench.BASE, RKEY + 1, MTU), (Bench.BASE - 1, RKEY, 4),
                 (Bench.BASE, RKEY, 0xFFFFFFFF), (1 << 63, RKEY, 4), ((EPOCH + 2) << 48, RKEY, 4)):  # fmt: skip
        python, fast = both(RcParams(MTU, 16, 1, 1.0, 7), 4, 0, MTU)
        fast.expect(MTU, 1, 1)
        batch = SendBatch(MTU, slots=1)
        size = min(reth[2], MTU)
        batch.put_data(0, flow(4, 0x300, back=True), wire.WRITE_ONLY_IMM, 0, bytes(size), ackreq=True, reth=reth, imm=1)
        try:
            for bench in (python, fast):
                bench.give(bytes(batch.frame(0)))
                bench.work(1.0)
            answers = [bench.sent() for bench in (python, fast)]
            assert answers[0] == answers[1]
            got = Parser()
            buffer = FrameBuffer(200)
            buffer.mem[buffer.starts[0] : buffer.starts[0] + len(answers[0][0])] = answers[0][0]
            assert got.parse(buffer, [len(answers[0][0])]).aeth(0)[0] == wire.NAK_ACCESS
        finally:
            python.close()
            fast.close()


@needs_object
def test_a_sender_that_gets_no_answer_gives_up() -> None:
    python, fast = both(RcParams(MTU, 16, 1, 1.0, 2), 4, 0)
    data = np.zeros(100, np.uint8)
    try:
        for bench in (python, fast):
            bench.post(data, 0, 0)
            for second in range(8):
                bench.work(10.0 + 1.1 * second, tick=True)
        assert any("no acknowledgement after 2 retries" in error for error in python.nic.errors())
        assert fast.failed and {kind for kind, _ in fast.failed} == {2}
        assert len(python.sent()) == len(fast.sent())
    finally:
        python.close()
        fast.close()


@needs_object
@pytest.mark.parametrize("version", [4, 6])
def test_the_loop_returns_when_a_message_is_complete(version: int) -> None:
    """hd_run: the sockets, the clock and the waiting are the kernel's; the answers are those of the Python NIC."""
    payload = bytes(range(256)) * 12
    python, fast = both(RcParams(MTU, 16, 3, 1.0, 7), version, 0, len(payload))
    try:
        fast.expect(len(payload), 9, QPS)
        for frames in data_frames(version, 0, payload, 9, 4):
            for frame in frames:
                python.give(frame)
                fast.give(frame)
        python.work(1.0)
        events = (library.EventStruct * 16)()
        until = time.monotonic_ns() + 60 * NS
        stop = fast.pairs[2][0].fileno()
        assert fast.code.hd_run(fast.engine, until, stop, NS, events, 16) == 1
        assert (events[0].kind, events[0].nic, events[0].b) == (1, 0, 0)
        assert fast.written() == payload
        fast.code.hd_pass(fast.engine, time.monotonic_ns(), 1)
        assert by_queue_pair(fast.sent(), version) == by_queue_pair(python.sent(), version)
        assert fast.code.hd_run(fast.engine, time.monotonic_ns() + NS // 100, stop, NS, events, 16) == 0
    finally:
        python.close()
        fast.close()


@pytest.mark.parametrize("machine", makefast.MACHINES)
def test_the_committed_object_is_what_its_sources_give(machine: str, tmp_path: Path) -> None:
    """Any clang must compile it; the one that made the committed object gives the same bytes."""
    if shutil.which("clang") is None or shutil.which("ld.lld") is None:
        pytest.skip("no clang or no lld; ./inv test --build installs both")
    built = makefast.build(machine, tmp_path / "built.so")
    if makefast.MADE_BY.read_text() == f"clang {clang_version()}\n":
        assert built == (makefast.SOURCES / f"fastpath-{machine}.so").read_bytes()


@pytest.mark.skipif(platform.machine() not in makefast.MACHINES, reason=f"no object for {platform.machine()}")
def test_the_object_can_be_used_on_this_machine() -> None:
    assert isinstance(found, library.Library), found
