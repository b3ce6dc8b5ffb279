"""The Python NIC on lists of frames, and the compiled one on pairs of UNIX datagram sockets, not on packet sockets.

So a test is their network and their clock: it gives both the same events, and compares what they sent.
"""

from __future__ import annotations

import ctypes
import socket
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import numpy as np
import pytest

from heddle.endpoints.congestion.controlled import Controlled
from heddle.endpoints.congestion.ratecontrol import RateSteps, Shaper
from heddle.endpoints.connections import part_bytes, part_sizes
from heddle.endpoints.fastpath import fastloop
from heddle.endpoints.fastpath.fastloop import address, dcqcn_struct, opcodes
from heddle.endpoints.nic.frames import FlowHeader, FrameBuffer, SendBatch, frame_bytes_for
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.qpend import Message, QpEnd, QpInfo
from heddle.endpoints.transports.rc import RcReceiver, RcSender
from heddle.endpoints.transports.rcstate import RcParams, last_good, why_failed
from heddle.wire import layout as wire
from tests.unit.test_rc import RKEY, Memory

MTU: Final = 256
NS: Final = 1_000_000_000
TICK_S: Final = 2.0**-9  # a whole number of nanoseconds, and exact as a float: both sides see the same times
QPS: Final = 3
LINE_BPS: Final = 1_000_000  # a full frame takes about 2.5 ms
EPOCH: Final = 5
NEAR: Final = {4: "10.0.0.1", 6: "fd00::1"}
FAR: Final = {4: "10.0.1.1", 6: "fd00:1::1"}

found = fastloop.load()
needs_object = pytest.mark.skipif(isinstance(found, str), reason=str(found))


def flow(version: int, dqpn: int, *, back: bool = False) -> FlowHeader:
    src, dst = (FAR, NEAR) if back else (NEAR, FAR)
    tos = wire.TOS_ANSWER if back else wire.TOS_DATA
    return FlowHeader(
        src_mac="02:00:00:00:00:01", dst_mac="02:00:00:00:00:02", src_ip=src[version], dst_ip=dst[version],
        sport=50000 + dqpn, dqpn=dqpn, tos=tos,
    )  # fmt: skip


class FrameLists:
    """What a Nic needs of a PacketSocket: it receives what is put into `arriving`, and `sent` has what it sends."""

    errno = 0

    def __init__(self, mtu: int, version: int) -> None:
        self._buffer = FrameBuffer(frame_bytes_for(mtu, version), version=version)
        self.arriving: list[bytes] = []
        self.sent: list[bytes] = []

    def send(self, batch: FrameBuffer, count: int, first: int = 0) -> int:
        self.sent += [bytes(batch.frame(i)) for i in range(first, first + count)]
        return count

    def recv(self) -> tuple[FrameBuffer, list[int]]:
        taken, self.arriving = self.arriving[: self._buffer.slots], self.arriving[self._buffer.slots :]
        for start, frame in zip(self._buffer.starts, taken, strict=False):
            part = frame[: self._buffer.frame_bytes]
            self._buffer.mem[start : start + len(part)] = part
        return self._buffer, [len(frame) for frame in taken]


class Bench:
    """One NIC with a few queue pairs that send and as many that receive."""

    BASE: Final = EPOCH << 48

    def __init__(self, params: RcParams, version: int, psn: int, delays: tuple[float, ...] = (0.0,)) -> None:
        self.params, self.version = params, version
        held = [delays[i % len(delays)] for i in range(QPS)]
        self.senders = [QpInfo(0x100 + i, flow(version, 0x200 + i), psn, 0, held[i]) for i in range(QPS)]
        self.receivers = [QpInfo(0x300 + i, flow(version, 0x400 + i), psn, 0, held[i]) for i in range(QPS)]


class PythonBench(Bench):
    def __init__(
        self, params: RcParams, version: int, psn: int, size: int, delays: tuple[float, ...] = (0.0,),
        control: Controlled | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, version, psn, delays)
        self.wires = FrameLists(params.mtu, version), FrameLists(params.mtu, version)
        self.nic = Nic(*self.wires, params.mtu, version)  # type: ignore[arg-type]
        self.memory = Memory(bytearray(size), base=self.BASE)
        self.ends: list[QueuePair] = []
        shapers: dict[bytes, Shaper] = {}
        for qp in self.senders:
            end: QpEnd = RcSender(params, qp)
            end = end if control is None else control.sender(end, qp, LINE_BPS, shapers)
            self.ends.append(QueuePair(self.nic, qp, end))
            self.nic.add(self.ends[-1])
        for qp in self.receivers:
            end = RcReceiver(params, qp, self.memory)
            self.nic.add(QueuePair(self.nic, qp, end if control is None else control.receiver(end, qp)))

    def give(self, frame: bytes) -> None:
        self.wires[0].arriving.append(frame)

    def sent(self) -> list[bytes]:
        frames = [frame for each in self.wires for frame in each.sent]
        for each in self.wires:
            each.sent.clear()
        return frames

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
        rows = []
        for q in self.nic.qps.values():
            counted = [value for name, value in q.end.counters().items() if name not in ("nacks", "trimmed")]
            rows.append((q.packets, q.bytes, q.ce, sum(q.damaged.values()), *counted))
        return rows

    def standings(self) -> list[str]:
        return [q.end.standing for q in list(self.nic.qps.values())[QPS:]]

    def rates(self) -> list[RateSteps]:
        return [q.end.rates() for q in self.nic.qps.values()]

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
    def __init__(
        self, params: RcParams, version: int, psn: int, size: int, delays: tuple[float, ...] = (0.0,),
        control: Controlled | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, version, psn, delays)
        self.size, self.control = size, control
        kinds = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        # Data, answers, and a pair without a writer: a byte there would end hd_run.
        self.pairs = [socket.socketpair(socket.AF_UNIX, kinds) for _ in range(3)]
        for sock in (sock for pair in self.pairs for sock in pair):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.code, crc = self.loaded()
        rc = fastloop.RcStruct(
            round(params.timeout_s * NS), round(params.ack_delay_s * NS), params.mtu, params.retries
        )  # fmt: skip
        self.engine = self.code.hd_engine(rc, opcodes(), crc, version, frame_bytes_for(params.mtu, version), 0)
        assert self.engine
        near = [pair[0].fileno() for pair in self.pairs]
        if control is not None:
            self.code.hd_congestion(self.engine, dcqcn_struct(control))
        assert self.code.hd_nic(self.engine, near[0], near[1], RKEY, LINE_BPS) == 0
        for kind, ends in enumerate((self.senders, self.receivers)):
            for qp in ends:
                head = qp.flow.template(wire.WRITE_MIDDLE).prefix.ljust(qp.flow.layout.ext_at, b"\0")
                peer, pace = qp.flow.dst_ip.ljust(16, b"\0"), (params.window, params.ack_every)
                delay = round(qp.delay_s * NS)
                assert self.code.hd_qp(self.engine, 0, kind, qp.qpn, head, peer, qp.psn, *pace, delay) >= 0
        self.kept: list[np.ndarray] = []
        self.failed: list[tuple[int, int, str]] = []
        self.done: list[int] = []

    def loaded(self) -> tuple[Any, int]:
        """The object's functions, and the address of a CRC-32 for them."""
        assert isinstance(found, fastloop.Library)
        return found.code, found.crc

    def at(self, array: np.ndarray) -> Any:
        """An array as an argument of the object's functions."""
        return address(array)

    def string_at(self, where: int, size: int) -> bytes:
        return ctypes.string_at(where, size)

    def sent(self) -> list[bytes]:
        frames = []
        for _, far in self.pairs:
            with suppress(BlockingIOError):
                while True:
                    frames.append(far.recv(1 << 16))
        return frames

    def give(self, frame: bytes) -> None:
        self.pairs[0][1].send(frame)

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
        events = (fastloop.EventStruct * 16)()
        for event in events[: self.code.hd_drain(self.engine, events, 16)]:
            if event.kind == 1:
                self.done.append(event.b)
            else:
                self.failed.append((event.kind, event.a, why_failed(self.params, event.b & 0xFF, event.b >> 8)))

    def counters(self) -> list[tuple[int, ...]]:
        rows = []
        for index in range(2 * QPS):
            numbers = (ctypes.c_uint64 * 9)()
            self.code.hd_qp_counters(self.engine, 0, index, numbers)
            row = (*numbers[:3], numbers[8], *numbers[3 : 6 if index < QPS else 5])
            rows.append(row if self.control is None else (*row, numbers[6]))
        return rows

    def standings(self) -> list[str]:
        numbers, rows = (ctypes.c_uint64 * 9)(), []
        for index in range(QPS, 2 * QPS):
            self.code.hd_qp_counters(self.engine, 0, index, numbers)
            rows.append(last_good(numbers[7]))
        return rows

    def rates(self) -> list[RateSteps]:
        assert self.control is not None
        most, found = self.control.steps, []
        for index in range(2 * QPS):
            times, rates = (ctypes.c_int64 * most)(), (ctypes.c_double * most)()
            count = self.code.hd_rates(self.engine, 0, index, times, rates, most)
            found.append(tuple(zip(times[:count], rates[:count], strict=True)))
        return found

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
        for pair in self.pairs:
            for sock in pair:
                sock.close()


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


@contextmanager
def both(
    params: RcParams, version: int, psn: int, size: int = MTU, delays: tuple[float, ...] = (0.0,),
    control: Controlled | None = None,
) -> Iterator[tuple[PythonBench, FastBench]]:  # fmt: skip
    """Both NICs, until the block ends."""
    arguments = (params, version, psn, size, delays, control)
    with closing(FastBench(*arguments)) as fast:
        yield PythonBench(*arguments), fast
