"""The compiled loop of Heddle's NICs (endpoints/fastpath) against soft-RoCE: one queue pair sends, one receives.

The loop itself runs: it waits for its sockets, and returns when a message is complete. Its sending ends have WRITE with
immediate only, and its receiving ends take WRITEs.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from heddle.endpoints.fastpath import library
from heddle.endpoints.fastpath.fastloop import address, opcodes
from heddle.endpoints.nic.framebuffer import frame_bytes_for
from heddle.endpoints.rdma import verbslib as ib
from heddle.endpoints.rdma.verbsdevice import Completion, Memory, Peer, VerbsQp
from heddle.wire.layout import TOS_ANSWER, TOS_DATA, WRITE_MIDDLE
from tests.netns.rxe_pair import HALF, PSN, RKEY, RxeLink, rxe_link, some_bytes, turned_until

SENDER, RECEIVER = 0, 1  # kinds of ends, and their indexes in the NIC
QPNS = (0x4321, 0x4322)
EPOCH = 3
NS = 1_000_000_000
TURN_NS = 2_000_000
TICK_NS = 20_000_000
WINDOW, ACK_EVERY = 32, 4
SLOTS = 32  # receives that rxe has posted


class CompiledPair:
    """One NIC of the compiled loop, and two queue pairs of a device: the first receives, the second sends."""

    def __init__(self, link: RxeLink, mtu: int, timeout: int) -> None:
        found = library.load()
        assert isinstance(found, library.Library), found
        self.link, self.code = link, found.code
        self.device = link.open()
        self.peers = [VerbsQp(self.device, SLOTS, SLOTS) for _ in QPNS]
        self.theirs = Memory(self.device, some_bytes(6))
        self.mine = some_bytes(5)
        self.sockets = link.sockets(mtu)
        limits = library.RcStruct(4096 << timeout, NS // 500, mtu, 7)
        room = frame_bytes_for(mtu, link.version)
        self.engine = self.code.hd_engine(limits, opcodes(), found.crc, link.version, room, 0)
        data, answers = (each.fileno() for each in self.sockets)
        assert self.code.hd_nic(self.engine, data, answers, RKEY, NS) == 0
        for kind, (qpn, peer, tos) in enumerate(zip(QPNS, self.peers, (TOS_DATA, TOS_ANSWER), strict=True)):
            flow = link.header(qpn, peer.qpn, tos)
            head = flow.template(WRITE_MIDDLE).prefix.ljust(flow.layout.ext_at, b"\0")
            far = flow.dst_ip.ljust(16, b"\0")
            at = self.code.hd_qp(self.engine, 0, kind, qpn, head, far, PSN, WINDOW, ACK_EVERY, 0)
            assert at == kind
            peer.connect(Peer(link.ips[0], qpn, PSN, mtu, TOS_DATA, timeout=timeout))
        self.stop, self._writer = os.pipe()
        self.events = (library.EventStruct * 16)()
        self.sent: list[Completion] = []
        self.received: list[Completion] = []
        self.done: list[int] = []  # messages that are complete, by their place

    def turn(self) -> None:
        """Let the loop run for some milliseconds, or until a message is complete."""
        until = time.monotonic_ns() + TURN_NS
        count = self.code.hd_run(self.engine, until, self.stop, TICK_NS, self.events, len(self.events))
        for event in self.events[:count]:
            assert event.kind == 1, f"event {event.kind}: {event.a:#x}, {event.b:#x}"
            self.done.append(event.b)
        self.sent += self.device.sent()
        self.received += self.device.received()
        assert not [each.error for each in (*self.sent, *self.received) if each.error]

    def work(self, sends: int = 0, receives: int = 0, messages: int = 0) -> None:
        """Until the loop is idle, and this much has arrived."""
        turned_until(
            lambda: bool(self.code.hd_idle(self.engine, 0)) and len(self.sent) >= sends
            and len(self.received) >= receives and len(self.done) >= messages,
            self.turn,
            lambda: f"{len(self.sent)} sends, {len(self.received)} receives, {self.done}, {self.counters()}",
        )  # fmt: skip

    def counters(self) -> dict[str, int]:
        """Of both ends, and what the NIC rejected."""
        found: dict[str, int] = {}
        for kind, names in enumerate((("retransmitted", "naks", "timeouts"), ("out_of_order", "duplicates", "taken"))):
            numbers = (ctypes.c_uint64 * 8)()
            self.code.hd_qp_counters(self.engine, 0, kind, numbers)
            found |= dict(zip(names, numbers[3:6], strict=True))
        rejected = (ctypes.c_uint64 * 4)()
        self.code.hd_nic_counters(self.engine, 0, rejected)
        return found | {"rejected": sum(rejected[:3])}

    def ours_to_rxe(self, sizes: Sequence[int]) -> None:
        """A WRITE with immediate of each size."""
        self.received.clear()
        for number in range(len(sizes)):
            self.peers[0].post_receive(number, self.theirs.address, 0, self.theirs.lkey)  # for the immediate
        end, places = np.array([SENDER], np.uint32), list(_places(sizes))
        for number, (at, size) in enumerate(places):
            data = self.mine[at : at + size]
            where = (self.theirs.address + at, self.theirs.rkey)
            assert self.code.hd_post(self.engine, 0, address(end), address(data), size, size, *where, 70 + number) == 0
        self.work(receives=len(sizes))
        assert [(each.imm, each.length) for each in self.received] == [(70 + n, s) for n, s in enumerate(sizes)]
        for at, size in places:
            np.testing.assert_array_equal(self.theirs.array[at : at + size], self.mine[at : at + size])

    def rxe_to_ours(self, sizes: Sequence[int]) -> None:
        """The same, written by rxe, and announced to the loop before."""
        self.done.clear()
        places = list(_places(sizes))
        columns: list[NDArray[np.generic]] = [
            np.array([(EPOCH << 48) + at for at, _ in places], np.uint64),
            np.array(sizes, np.uint32),
            np.arange(90, 90 + len(sizes), dtype=np.uint32),  # immediates
            np.ones(len(sizes), np.uint32),  # parts
        ]
        assert self.code.hd_expect(self.engine, 0, EPOCH, len(sizes), *map(address, columns)) == 0
        before = len(self.sent)
        for number, (at, size) in enumerate(places):
            local = self.theirs.address + HALF + at
            va, lkey = (EPOCH << 48) + at, self.theirs.lkey
            self.peers[1].post_send(ib.WR_WRITE_IMM, number, local, size, lkey, imm=90 + number, va=va, rkey=RKEY)
        self.work(sends=before + len(sizes), messages=len(sizes))
        assert self.done == list(range(len(sizes)))
        for number, (at, size) in enumerate(places):
            got = ctypes.string_at(self.code.hd_message(self.engine, 0, EPOCH, number), size)
            assert got == self.theirs.array[HALF + at : HALF + at + size].tobytes()
            self.code.hd_used(self.engine, 0, EPOCH, number)

    def close(self) -> None:
        self.code.hd_close(self.engine)
        for each in self.sockets:
            each.close()
        for fd in (self.stop, self._writer):
            os.close(fd)
        for peer in self.peers:
            peer.destroy()
        self.theirs.deregister()
        self.device.close()


def _places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(offset, size) of each message, with 4 bytes between two."""
    at = 0
    for size in sizes:
        yield at, size
        at += size + 4
    assert at < HALF


@contextmanager
def compiled_pair(version: int = 4, timeout: int = 20, mtu: int = 1024) -> Iterator[CompiledPair]:
    """The link, the loop and both queue pairs."""
    with rxe_link(version) as link:
        pair = CompiledPair(link, mtu, timeout)
        try:
            yield pair
        finally:
            pair.close()
