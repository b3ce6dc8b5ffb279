"""A queue pair on scapy's layers against the Linux kernel's: every operation in both directions, over faulty links.

rxe checks our ICRC, PSNs and acknowledgements, and we check its: a packet with a wrong one would never be accepted.

Both ends run in this process, which opens the device in its namespace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket

import numpy as np
import pytest
from numpy.typing import NDArray

from heddle.base.process import run
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.rdma import verbsdevice as ib
from heddle.endpoints.rdma.verbsdevice import Completion, Memory, Peer, VerbsDevice, VerbsQp
from heddle.endpoints.transports.scapyparams import ScapyParams
from heddle.endpoints.transports.scapyqp import Operation, OpKind, ScapyQp
from heddle.kernel import rdma
from heddle.kernel.namespace import inside
from heddle.wire.layout import ROCE_PORT, TOS_ANSWER, TOS_DATA
from heddle.wire.sport import sport_for_qps
from tests.machine import patience
from tests.marks import deep
from tests.netns.claimed import claimed, namespace_of
from tests.unit.test_rc import RKEY
from tests.unit.test_rc import Memory as OwnMemory

_WHY = rdma.obstacle()
pytestmark = pytest.mark.skipif(_WHY is not None, reason=f"needs soft-RoCE in namespaces: {_WHY.why if _WHY else ''}")
OWN_QPN = 0x1234
MTU = 1024
BYTES = 1 << 17  # of each memory: the peer writes into the first half and reads the second
HALF = BYTES // 2
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
PSN = 0xFFFFF0  # wraps soon


def some_bytes(seed: int) -> NDArray[np.uint8]:
    """The content of a memory."""
    return np.random.default_rng(seed).integers(0, 256, BYTES, np.uint8)


class RxePair:
    """Both ends of one connection: a queue pair of Heddle's, and one of rxe. timeout: exponent of the ACK timeout.

    Heddle's is in the first of two namespaces with a link, the device in the second; ips: theirs.
    """

    def __init__(self, spaces: Sequence[Path], ips: Sequence[str], device: str, mtu: int, timeout: int) -> None:
        self.spaces, self.ips, version = spaces, ips, 6 if ":" in ips[0] else 4
        with inside(spaces[1]):
            self.device = VerbsDevice(device, ips[1])
        self.peer = VerbsQp(self.device, 64, 64)
        self.memory = OwnMemory(bytearray(some_bytes(5).tobytes()))
        self.own = np.frombuffer(self.memory.data, np.uint8)
        data, answers = (  # one sends data and receives all frames, one sends answers
            PacketSocket(spaces[0], "eth1", mtu, receive_bytes=size, version=version) for size in (1 << 22, 0)
        )
        self.nic = Nic(data, answers, mtu, version)
        params = ScapyParams(mtu=mtu, window=32, ack_every=4, timeout_s=4.096e-6 * 2**timeout, retries=7)
        qp = QpInfo(OWN_QPN, self._header(TOS_DATA), PSN)
        self.end = ScapyQp(params, qp, self.memory, answers=self._header(TOS_ANSWER))
        self.pair = QueuePair(self.nic, qp, self.end)
        self.nic.add(self.pair)
        self.peer.connect(Peer(ips[0], OWN_QPN, PSN, mtu, TOS_DATA, timeout=timeout))
        self.sent: list[Completion] = []
        self.received: list[Completion] = []
        self.theirs = Memory(self.device, some_bytes(6))

    def _header(self, tos: int) -> FlowHeader:
        return FlowHeader(
            src_mac=MACS[0], dst_mac=MACS[1], src_ip=self.ips[0], dst_ip=self.ips[1],
            sport=sport_for_qps(OWN_QPN, self.peer.qpn), dqpn=self.peer.qpn, tos=tos,
        )  # fmt: skip

    def post(self, kind: OpKind, data: memoryview, at: int = 0, imm: int | None = None) -> None:
        """An operation of our end on the peer's memory."""
        va, rkey = self.theirs.address + at, self.theirs.rkey
        self.pair.post(Operation(data, va, rkey, imm or 0, kind, announced=imm is not None))

    def turn(self) -> None:
        """One pass of both ends."""
        now = time.monotonic()
        self.nic.expire(now)
        self.nic.blocked = False
        self.nic.transmit(now)
        self.nic.receive(time.monotonic())
        assert not self.nic.errors()
        self.sent += self.device.sent()
        self.received += self.device.received()
        for each in (*self.sent, *self.received):
            assert not each.error, f"rxe: {each.error}"

    def work(self, sends: int = 0, receives: int = 0, arrivals: int = 0, imms: int = 0) -> None:
        """Until our requests are finished, and rxe has this many completions, and our end this many messages."""
        deadline = time.monotonic() + patience(60)
        while not (
            self.nic.idle
            and len(self.sent) >= sends
            and len(self.received) >= receives
            and len(self.end.responder.arrivals) >= arrivals
            and len(self.memory.arrivals) >= imms
        ):
            self.turn()
            assert time.monotonic() < deadline, f"{len(self.sent)} sends, {dict(self.end.counters())}"
            time.sleep(0.0005)

    def close(self) -> None:
        self.peer.destroy()
        self.theirs.deregister()
        self.device.close()
        self.nic.close()


def impair(spaces: Sequence[Path], words: str) -> None:
    """Replace the queue of both ends of the link by netem with these parameters.

    Without reordering: rxe does not survive an old ACK that arrives within a READ's response (docs/programs.md).
    """
    for space in spaces:
        run(["nsenter", f"--net={space}", *["tc", "qdisc", "replace", "dev", "eth1", "root", "netem"], *words.split()])


@contextmanager
def rxe_pair(version: int = 4, timeout: int = 20, mtu: int = MTU) -> Iterator[RxePair]:
    """Two namespaces, the link, the device and both queue pairs. version: of IP."""
    with claimed() as lab:
        spaces = [namespace_of(lab, name) for name in ("host1", "host2")]
        names = [space.name for space in spaces]
        ips = ("10.9.0.1", "10.9.0.2") if version == 4 else ("fd00:9::1", "fd00:9::2")
        device = rdma.link_name(lab, "host2", "eth1")
        try:
            for name in names:
                run(["ip", "netns", "add", name])
            ends = [f"eth1 netns {name} address {mac}".split() for name, mac in zip(names, MACS, strict=True)]
            run(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]])
            for name, ip in zip(names, ips, strict=True):
                prefix, more = (24, []) if version == 4 else (64, ["nodad"])
                run(["ip", "-n", name, "addr", "add", f"{ip}/{prefix}", "dev", "eth1", *more])
                for port in ("lo", "eth1"):
                    run(["ip", "-n", name, "link", "set", port, "mtu", "4200", "up"])
            rdma.add_links([(spaces[1], device, "eth1")])
            # The kernel gives the first neighbour discovery of `modify_qp` a second, which a slow machine may exceed.
            run(["nsenter", f"--net={spaces[1]}", "ping", "-c", "1", "-W", "10", ips[0]])
            with inside(spaces[0]):
                listener = socket(AF_INET if version == 4 else AF_INET6, SOCK_DGRAM)
            with listener:
                listener.bind(("", ROCE_PORT))  # else this host's own stack answers with ICMP port unreachable
                with closing(RxePair(spaces, ips, device, mtu, timeout)) as pair:
                    yield pair
        finally:
            rdma.remove_links(device, spaces)
            for name in names:
                run(["ip", "netns", "del", name], check=False)


SIZES = (1, 1024, 1025, 20_000)


def ours_to_rxe(pair: RxePair, sizes: Sequence[int] = SIZES) -> None:
    """WRITE, READ and SEND, the first and the last of them also with immediate, of each size."""
    theirs, mine = pair.theirs.array, pair.own
    kept = theirs[HALF:].copy()
    inbox = theirs[HALF // 2 : HALF]  # for SENDs
    room = (pair.theirs.address + HALF // 2, HALF // 2, pair.theirs.lkey)
    at = 0
    for number, size in enumerate(sizes):
        pair.peer.post_receive(number, room[0], 0, pair.theirs.lkey)  # for the immediate
        pair.post("write", mine[:size].data, at)
        pair.post("write", mine[1 : size + 1].data, at + size, imm=number)
        at += 2 * size
    pair.work(receives=len(sizes))
    assert [each.imm for each in pair.received] == list(range(len(sizes)))
    at = 0
    for size in sizes:
        np.testing.assert_array_equal(theirs[at : at + size], mine[:size])
        np.testing.assert_array_equal(theirs[at + size : at + 2 * size], mine[1 : size + 1])
        at += 2 * size
    got = [np.zeros(size, np.uint8) for size in sizes]
    for number, size in enumerate(sizes):
        for step, imm in ((7, None), (9, 50 + number)):
            pair.received.clear()
            pair.peer.post_receive(number, *room)
            if imm is None:
                pair.post("read", got[number].data, HALF)
            pair.post("send", mine[step : size + step].data, imm=imm)
            pair.work(receives=1)
            assert (pair.received[0].imm, pair.received[0].length) == (imm, size)
            np.testing.assert_array_equal(inbox[:size], mine[step : size + step])
        np.testing.assert_array_equal(got[number], kept[:size])


def rxe_to_ours(pair: RxePair, sizes: Sequence[int] = SIZES) -> None:
    """The same, requested by rxe."""
    theirs, mine = pair.theirs, pair.own
    kept, inboxes = mine[HALF:].copy(), (bytearray(HALF), bytearray(HALF))
    imms, base = len(pair.memory.arrivals), theirs.address
    for number, size in enumerate(sizes):
        theirs.array[HALF:] = np.roll(theirs.array[HALF:], 1)
        source = theirs.array[HALF : HALF + size].copy()
        done, arrived = len(pair.sent), len(pair.end.responder.arrivals)
        for inbox in inboxes:
            pair.end.responder.post_receive(memoryview(inbox))
        for opcode, va, local in (
            (ib.WR_WRITE, 0, HALF),
            (ib.WR_WRITE_IMM, size, HALF),
            (ib.WR_SEND, 0, HALF),
            (ib.WR_READ, HALF, 0),
            (ib.WR_SEND_IMM, 0, HALF),
        ):
            pair.peer.post_send(opcode, number, base + local, size, theirs.lkey, imm=number + 9, va=va, rkey=RKEY)
        pair.work(sends=done + 5, arrivals=arrived + 2, imms=imms + number + 1)
        np.testing.assert_array_equal(mine[:size], source)
        np.testing.assert_array_equal(mine[size : 2 * size], source)
        np.testing.assert_array_equal(theirs.array[:size], kept[:size])
        assert [bytes(inbox[:size]) for inbox in inboxes] == [source.tobytes()] * 2
        assert pair.end.responder.arrivals[-2:] == [(size, None), (size, number + 9)]
        assert pair.memory.arrivals[-1] == number + 9


@pytest.mark.parametrize(
    ("version", "mtu", "faults"),
    [(4, MTU, ""), (6, MTU, ""), deep(4, 4096, ""), deep(4, MTU, "limit 1000 loss 2% duplicate 5%")],
)
def test_every_operation_in_both_directions(version: int, mtu: int, faults: str) -> None:
    # Without faults a timeout is long: a slow machine must not look like loss. 16: 0.27 s, 20: 4.3 s.
    with rxe_pair(version, 16 if faults else 20, mtu) as pair:
        if faults:
            impair(pair.spaces, faults)
        for _ in range(3 if faults else 1):
            pair.received.clear()
            ours_to_rxe(pair)
            rxe_to_ours(pair)
        seen, counters = pair.end.counters(), pair.nic.counters
        assert (counters.icrc_errors, counters.malformed, counters.stray) == (0, 0, 0)
        if faults:
            assert seen["retransmitted"] > 0 and seen["duplicates"] + seen["out_of_order"] > 0
        else:
            assert seen["retransmitted"] == seen["naks"] == seen["timeouts"] == seen["duplicates"] == 0


def test_a_send_without_memory_gets_rnr_nak_from_both_and_is_repeated() -> None:
    with rxe_pair() as pair:
        pair.post("send", pair.own[:3000].data, imm=3)
        for _ in range(200):
            pair.turn()
            time.sleep(0.0005)
        assert pair.end.counters()["not_ready"] > 0
        pair.peer.post_receive(0, pair.theirs.address, HALF, pair.theirs.lkey)
        pair.work(receives=1)
        np.testing.assert_array_equal(pair.theirs.array[:3000], pair.own[:3000])
        pair.peer.post_send(ib.WR_SEND_IMM, 0, pair.theirs.address, 3000, pair.theirs.lkey, imm=4)
        for _ in range(200):
            pair.turn()
            time.sleep(0.0005)
        assert pair.end.responder.naks > 0 and not pair.sent
        inbox = bytearray(4000)
        pair.end.responder.post_receive(memoryview(inbox))
        pair.work(sends=1, arrivals=1)
        assert bytes(inbox[:3000]) == pair.own[:3000].tobytes()
