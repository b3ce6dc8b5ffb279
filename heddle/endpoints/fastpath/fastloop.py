"""Drive a worker's NICs by the compiled loop: the same frames as with the Python loop, for transports that allow it.

In:  endpoints, queue pairs, the messages that ranks expect. Out: complete messages for ranks, reports.
The compiled object is fastpath-MACHINE.so in this directory (tests/objects/shared.py builds it), with a CRC-32 of
libdeflate or zlib. Without it the Python loop does the same work, with more CPU time.
Python runs once per message, not per packet: the loop returns when a message of a rank is complete.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_char_p, c_double, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from heddle.base import resources
from heddle.base.problems import MachineError, Problem
from heddle.endpoints.congestion.controlled import Controlled
from heddle.endpoints.congestion.dcqcn import Dcqcn
from heddle.endpoints.congestion.ratecontrol import RateSteps
from heddle.endpoints.connections import Connection, Destinations, address_of, announced_by, part_bytes
from heddle.endpoints.loops import NicError, NicLoop
from heddle.endpoints.nic.frames import frame_bytes_for
from heddle.endpoints.nic.nic import NicCounters
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import PathUse, QpInfo
from heddle.endpoints.nicloop import REST_S, REST_TURNS, TICK_S, open_sockets
from heddle.endpoints.ranks import Rank
from heddle.endpoints.reports import NicReport, QpReport
from heddle.endpoints.transports.protocol import FastConnection
from heddle.endpoints.transports.rcstate import last_good
from heddle.kernel.native import native
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import QpMode
from heddle.traffic.plan import Plan
from heddle.traffic.schedule import Key, Schedule
from heddle.wire.layout import EXTRA_BYTES, HEADERS_ONLY, WRITE_MIDDLE

VERSION: Final = 6
# libdeflate is several times faster than zlib if the CPU has carry-less multiplication.
_CRCS: Final = (("libdeflate.so.0", "libdeflate_crc32"), ("libz.so.1", "crc32"))


class RcStruct(ctypes.Structure):
    """struct rc: parameters of a reliable connection."""

    _fields_ = (("timeout_ns", c_int64), ("ack_delay_ns", c_int64), ("mtu", c_uint32), ("retries", c_uint32))


class DcqcnStruct(ctypes.Structure):
    """struct dcqcn_rule: congestion control of all queue pairs."""

    _fields_ = (
        *((name, c_double) for name in (
            "keep", "first_alpha", "first_bps", "least_factor", "min_bps", "cut_divisor", "ai_bps", "hai_bps",
            "start_bps", "growth",
        )),
        *((name, c_int64) for name in ("alpha_ns", "cut_ns", "time_ns", "gap_ns", "frame_bits")),
        ("byte_reset", c_uint64),
        *((name, c_uint32) for name in ("threshold", "steps")),
        *((name, c_uint8) for name in ("on", "clamp", "clamp_after_time", "cnp_tos", "coalesce")),
    )  # fmt: skip


class OpcodesStruct(ctypes.Structure):
    """struct opcodes: the properties of each opcode."""

    _fields_ = (("extra", c_uint8 * 256), ("headers_only", c_uint8 * 256))


class EventStruct(ctypes.Structure):
    """struct event: the reason why hd_run returned."""

    _fields_ = (("kind", c_uint32), ("nic", c_uint32), ("a", c_uint32), ("b", c_uint32))


_ENGINE = c_void_p
_EVENT_ARRAY = ctypes.POINTER(EventStruct)
_COUNT_ARRAY = ctypes.POINTER(c_uint64)
_SIGNATURES: Final[native.Signatures] = {
    "hd_version": (c_uint32, ()),
    "hd_engine": (_ENGINE, (
        ctypes.POINTER(RcStruct), ctypes.POINTER(OpcodesStruct), c_void_p, c_int, c_uint32, c_int64,
    )),
    "hd_congestion": (None, (_ENGINE, ctypes.POINTER(DcqcnStruct))),
    "hd_nic": (c_int, (_ENGINE, c_int, c_int, c_uint32, c_uint64)),
    "hd_qp": (c_int, (
        _ENGINE, c_uint32, c_int, c_uint32, c_char_p, c_char_p, c_uint32, c_uint32, c_uint32, c_int64,
    )),
    "hd_expect": (c_int, (_ENGINE, c_uint32, c_uint32, c_uint32, c_void_p, c_void_p, c_void_p, c_void_p)),
    "hd_message": (c_void_p, (_ENGINE, c_uint32, c_uint32, c_uint32)),
    "hd_used": (None, (_ENGINE, c_uint32, c_uint32, c_uint32)),
    "hd_post": (c_int, (
        _ENGINE, c_uint32, c_void_p, c_void_p, c_uint32, c_uint32, c_uint64, c_uint32, c_uint32,
    )),
    "hd_take": (None, (_ENGINE, c_int64)),
    "hd_pass": (None, (_ENGINE, c_int64, c_int)),
    "hd_run": (c_int, (_ENGINE, c_int64, c_int, c_int64, _EVENT_ARRAY, c_int)),
    "hd_drain": (c_int, (_ENGINE, _EVENT_ARRAY, c_int)),
    "hd_idle": (c_int, (_ENGINE, c_uint32)),
    "hd_qp_counters": (None, (_ENGINE, c_uint32, c_uint32, _COUNT_ARRAY)),
    "hd_rates": (c_uint32, (
        _ENGINE, c_uint32, c_uint32, ctypes.POINTER(c_int64), ctypes.POINTER(c_double), c_uint32,
    )),
    "hd_nic_counters": (None, (_ENGINE, c_uint32, _COUNT_ARRAY)),
    "hd_close": (None, (_ENGINE,)),
}  # fmt: skip


@dataclass(frozen=True)
class Library:
    """The functions of fastpath.c. code: the loaded object. crc: the address of a CRC-32."""

    code: ctypes.CDLL
    crc: int


@cache
def load() -> Library | str:
    """The library, or the reason why it cannot be used here."""
    code = native.load_committed(resources.HERE.fastpath, _SIGNATURES, lambda code: bool(code.hd_version() == VERSION))
    if isinstance(code, str):
        return code
    crc = _crc()
    return Library(code, crc) if crc else f"none of {', '.join(name for name, _ in _CRCS)} can be loaded"


def _crc() -> int | None:
    for name, symbol in _CRCS:
        try:
            function = getattr(ctypes.CDLL(name), symbol)
        except (OSError, AttributeError):
            continue
        address = ctypes.cast(function, c_void_p).value
        if address is not None:
            return address
    return None


SENDER: Final = 0
RECEIVER: Final = 1
MESSAGE: Final = 1
QP_FAILED: Final = 2
PORT_FAILED: Final = 3
UNKNOWN: Final = 0xFF
_EVENTS: Final = 64
_ADDRESS_BYTES: Final = 16
_NS: Final = 1_000_000_000
_VIEWS: Final = 1024
_FAR_S: Final = 4e9  # later than any CLOCK_MONOTONIC, but without overflow in nanoseconds


def opcodes() -> OpcodesStruct:
    """The table of opcodes for the compiled code."""
    table = OpcodesStruct()
    for opcode in range(256):
        table.extra[opcode] = EXTRA_BYTES.get(opcode, UNKNOWN)
        table.headers_only[opcode] = opcode in HEADERS_ONLY
    return table


def dcqcn_struct(congestion: Controlled) -> DcqcnStruct:
    """Congestion control for the compiled code; TypeError if it is not DCQCN."""
    found = congestion.congestion
    if not isinstance(found, Dcqcn):
        raise TypeError(f"{congestion.name} is not compiled")
    cnp = found.cnp
    return DcqcnStruct(
        **asdict(found.rule), gap_ns=cnp.gap_ns, cnp_tos=cnp.dscp << 2, steps=congestion.steps,
        frame_bits=congestion.frame_bits, on=1,
    )  # fmt: skip


def address(array: NDArray[np.generic]) -> int:
    """The memory address of an array's data."""
    buffer: Any = array
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))  # a quarter of the time of the other way
    except (TypeError, ValueError):  # it is read-only, or empty
        return int(array.__array_interface__["data"][0])


@dataclass(frozen=True, slots=True)
class _Expected:
    """The messages of one schedule in epoch 0, by ascending address. keys: the rank's keys of the messages."""

    schedule: Schedule
    va: NDArray[np.uint64]
    size: NDArray[np.uint32]
    sizes: tuple[int, ...]  # the same
    imm: NDArray[np.uint32]
    parts: NDArray[np.uint32]
    keys: tuple[Key, ...]


class FastNic:
    """One rank's NIC. It is the rank's `Destinations`."""

    def __init__(
        self, loop: FastLoop, endpoint: Endpoint, index: int, data: PacketSocket, answers: PacketSocket
    ) -> None:
        self._loop, self._index = loop, index
        self.rank = endpoint.rank
        self.data, self.answers = data, answers
        self.memory: Rank | None = None
        self.ends: list[tuple[int, QpInfo]] = []  # with its kind
        self._known: dict[int, _Expected] = {}  # by the identity of the schedule, which it keeps alive
        self._expected: dict[int, _Expected] = {}  # by the lowest bit of the epoch
        self._kept: list[Sequence[NDArray[np.uint8]]] = []
        self._views: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def add(self, kind: int, qp: QpInfo) -> int:
        """Open one end of a queue pair; return its index."""
        head = qp.flow.template(WRITE_MIDDLE).prefix.ljust(qp.flow.layout.ext_at, b"\0")
        peer = qp.flow.dst_ip.ljust(_ADDRESS_BYTES, b"\0")
        self.ends.append((kind, qp))
        window, ack_every = self._loop.connection.pace(qp)
        delay = round(qp.delay_s * _NS)
        return self._loop.call("hd_qp", self._index, kind, qp.qpn, head, peer, qp.psn, window, ack_every, delay)

    def expect(self, epoch: int, schedule: Schedule) -> None:
        """Pass the destinations of an epoch's messages to the compiled code."""
        made = self._known.get(id(schedule))
        if made is None:
            made = self._known[id(schedule)] = _expected(schedule, self._loop.parts_of)
        va = made.va + np.uint64(address_of(epoch, 0, 0))
        imm = made.imm + np.uint32(announced_by(epoch, (0, 0)))
        self._expected[epoch & 1] = made
        arrays = (address(va), address(made.size), address(imm), address(made.parts))
        self._loop.call("hd_expect", self._index, epoch & 0xFFFF, len(made.keys), *arrays)

    def keep(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """Keep the arrays from which the compiled code sends until no packet can need retransmission."""
        if self._loop.call("hd_idle", self._index):
            self._kept.clear()
        self._kept.append(arrays)

    def deliver(self, epoch: int, place: int) -> None:
        """Pass a complete message to the rank. epoch: its lower 16 bits."""
        made = self._expected[epoch & 1]
        at = self._loop.code.hd_message(self._loop.engine, self._index, epoch, place)
        if at is None or self.memory is None:
            raise ValueError(f"message {place} of epoch {epoch:#x} is not complete")
        data = self._view(at, made.sizes[place])
        used = partial(self._loop.code.hd_used, self._loop.engine, self._index, epoch, place)
        self.memory.delivered(epoch, made.keys[place], data, used)

    def _view(self, at: int, size: int) -> NDArray[np.uint8]:
        """The bytes of a message in the memory of the compiled code, which uses the same few addresses again."""
        view = self._views.get((at, size))
        if view is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            view = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(at)), np.uint8)
            self._views[at, size] = view
        return view

    def counters(self, name: str, count: int, *where: int) -> list[int]:
        """Counters of the NIC, or of one of its queue pairs."""
        numbers = (ctypes.c_uint64 * count)()
        getattr(self._loop.code, name)(self._loop.engine, self._index, *where, numbers)
        return list(numbers)

    def rates(self, index: int, most: int) -> RateSteps:
        """The rate of a sending queue pair over time; empty for a receiving one."""
        times, rates = (ctypes.c_int64 * most)(), (ctypes.c_double * most)()
        count = self._loop.code.hd_rates(self._loop.engine, self._index, index, times, rates, most)
        return tuple(zip(times[:count], rates[:count], strict=True))


class FastQps:
    """The queue pairs to one peer."""

    def __init__(self, loop: FastLoop, nic: int, ends: Sequence[int], mode: QpMode) -> None:
        self._loop, self._nic = loop, nic
        self._ends = np.array(ends, np.uint32)
        self._ends_at = address(self._ends)
        self._split = mode == "split"

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Pass a message to the compiled code: in parts to all queue pairs, or whole to the one whose turn it is."""
        size = len(data)
        part, first = (part_bytes(size, len(self._ends)), 0) if self._split else (size, turn % len(self._ends))
        ends = self._ends_at + first * self._ends.itemsize
        self._loop.call("hd_post", self._nic, ends, address(data), size, part, va, rkey, imm)


class FastLoop(NicLoop):
    """The NICs of one worker."""

    name: ClassVar[str] = "compiled"

    def __init__(
        self, library: Library, plan: Plan, connection: FastConnection, moderation: float, congestion: Controlled | None
    ) -> None:
        self.code, self._plan, self.connection, self._congestion = library.code, plan, connection, congestion
        options = plan.options
        self.parts_of: Callable[[int], int] = (
            (lambda size: -(-size // part_bytes(size, options.qps))) if options.qp_mode == "split" else (lambda size: 1)
        )
        c = connection
        rc = RcStruct(round(c.timeout_s * _NS), round(c.ack_delay_s * _NS), plan.ib_mtu, c.retries)
        room = frame_bytes_for(plan.ib_mtu, plan.ip_version)
        self.engine = self.code.hd_engine(rc, opcodes(), library.crc, plan.ip_version, room, round(moderation * _NS))
        if not self.engine:
            raise MachineError(Problem("", "the fast path", "is out of memory", "use --fastpath off, or fewer ranks"))
        if congestion is not None:
            self.code.hd_congestion(self.engine, dcqcn_struct(congestion))
        self.nics: list[FastNic] = []
        self._by_rank: dict[int, int] = {}
        self._events = (EventStruct * _EVENTS)()

    def call(self, name: str, *arguments: object) -> int:
        """Call a function that returns -1 when it is out of memory; MachineError then."""
        result: int = getattr(self.code, name)(self.engine, *arguments)
        if result < 0:
            raise MachineError(Problem("", "the fast path", "is out of memory", "use --fastpath off, or fewer ranks"))
        return result

    def open(self, endpoint: Endpoint, netns: Path, rkey: int) -> None:
        data, answers = open_sockets(self._plan, endpoint, netns)
        index = self.call("hd_nic", data.fileno(), answers.fileno(), rkey, endpoint.rate_bps)
        self._by_rank[endpoint.rank] = index
        self.nics.append(FastNic(self, endpoint, index, data, answers))

    def sender(self, rank: int, qp: QpInfo) -> int:
        return self.nics[self._by_rank[rank]].add(SENDER, qp)

    def link(self, rank: int, ends: Sequence[int], mode: QpMode) -> Connection:
        return FastQps(self, self._by_rank[rank], ends, mode)

    def destinations(self, rank: int) -> Destinations | None:
        """The NIC: it writes messages without asking the rank."""
        return self.nics[self._by_rank[rank]]

    def receiver(self, rank: int, qp: QpInfo, memory: Rank) -> None:
        nic = self.nics[self._by_rank[rank]]
        nic.memory = memory
        nic.add(RECEIVER, qp)

    def turn(self, until: float, stop_fd: int) -> bool:
        until_ns = round(min(until, _FAR_S) * _NS)
        count = self.code.hd_run(self.engine, until_ns, stop_fd, round(TICK_S * _NS), self._events, _EVENTS)
        if count < 0:
            return True
        for event in self._events[:count]:
            nic = self.nics[event.nic]
            if event.kind == MESSAGE:
                nic.deliver(event.a, event.b)
            elif event.kind == QP_FAILED:
                why = self.connection.why(event.b & 0xFF, event.b >> 8)
                raise NicError(nic.rank, why, event.a)
            else:
                small = event.a == errno.EMSGSIZE
                why = "has a smaller MTU than its packets" if small else f"is gone: {os.strerror(event.a)}"
                raise NicError(nic.rank, f"its port {why}")
        return False

    def take_rest(self) -> None:
        for _ in range(REST_TURNS):
            self.code.hd_take(self.engine, time.monotonic_ns())
        self.code.hd_take(self.engine, time.monotonic_ns() + round(REST_S * _NS))

    def idle(self) -> bool:
        return all(self.call("hd_idle", index) for index in range(len(self.nics)))

    def qp_reports(self) -> Iterable[QpReport]:
        for nic in self.nics:
            for index, (kind, qp) in enumerate(nic.ends):
                packets, size, ce, *rest, cnps, psn, bad = nic.counters("hd_qp_counters", 9, index)
                names = self.connection.sender_counters if kind == SENDER else self.connection.receiver_counters
                # All frames of such a QP have one source port: that of the header which its sender copies.
                sent = (PathUse(qp.flow.sport, packets, size),) if kind == SENDER else ()
                # Out of order, duplicate, accepted.
                received = (PathUse(qp.peer_sport, sum(rest)),) if kind == RECEIVER else ()
                counters = dict(zip(names, rest, strict=False))
                rates: RateSteps = ()
                if self._congestion is not None:
                    counters["cnps_received" if kind == SENDER else "cnps_sent"] = cnps
                    rates = nic.rates(index, self._congestion.steps)
                standing = last_good(psn) if kind == RECEIVER else ""
                damaged = {qp.peer_sport: bad} if bad else {}
                yield QpReport(nic.rank, qp.qpn, sent, received, ce, counters, rates, standing, damaged=damaged)

    def nic_reports(self) -> Iterable[NicReport]:
        for nic in self.nics:
            malformed, icrc_errors, stray, _ = nic.counters("hd_nic_counters", 4)
            yield NicReport(NicCounters(malformed, icrc_errors, stray, nic.answers.passed()), nic.data.drops())

    def foreign(self, rank: int) -> int:
        """Those that the second socket has counted."""
        return self.nics[self._by_rank[rank]].answers.passed()

    def close(self) -> None:
        """Free memory and close sockets. No method may be called afterwards."""
        self.code.hd_close(self.engine)
        for nic in self.nics:
            nic.data.close()
            nic.answers.close()


def _expected(schedule: Schedule, parts_of: Callable[[int], int]) -> _Expected:
    keys = sorted(schedule.receives, key=lambda key: (key[0], schedule.receives[key].lo))
    receives = [schedule.receives[key] for key in keys]
    sizes = [each.hi - each.lo for each in receives]
    return _Expected(
        schedule,
        np.array([address_of(0, key[0], each.lo) for key, each in zip(keys, receives, strict=True)], np.uint64),
        np.array(sizes, np.uint32),
        tuple(sizes),
        np.array([announced_by(0, key) for key in keys], np.uint32),
        np.array([parts_of(size) for size in sizes], np.uint32),
        tuple(keys),
    )
