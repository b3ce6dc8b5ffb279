"""A soft-RoCE device in one namespace, one of Heddle's ends in another, and a link between them.

Both ends run in this process, which opens the device in its namespace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket

import numpy as np
from numpy.typing import NDArray

from heddle.base.process import run
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.rdma.verbsdevice import Completion, Memory, Peer, VerbsDevice, VerbsQp
from heddle.endpoints.transports.rcops import Operation, OpKind
from heddle.endpoints.transports.rcqp import RcQp
from heddle.endpoints.transports.rcstate import RcParams
from heddle.kernel import rdma
from heddle.kernel.namespace import inside
from heddle.wire.layout import ROCE_PORT, TOS_ANSWER, TOS_DATA
from heddle.wire.sport import sport_for_qps
from tests.machine import patience
from tests.netns.claimed import claimed, namespace_of

OWN_QPN = 0x1234
RKEY = 0xABCD
MTU = 1024
BYTES = 1 << 17  # of each memory: the peer writes into the first half and reads the second
HALF = BYTES // 2
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
PSN = 0xFFFFF0  # wraps soon


def some_bytes(seed: int) -> NDArray[np.uint8]:
    """The content of a memory."""
    return np.random.default_rng(seed).integers(0, 256, BYTES, np.uint8)


@dataclass(frozen=True)
class RxeLink:
    """Two namespaces with a link, and a device at its second end. ips: of both ends."""

    spaces: Sequence[Path]
    ips: tuple[str, str]
    device: str
    version: int

    def header(self, own: int, peer: int, tos: int) -> FlowHeader:
        """The headers of packets from the first end. own, peer: QP numbers."""
        return FlowHeader(
            src_mac=MACS[0], dst_mac=MACS[1], src_ip=self.ips[0], dst_ip=self.ips[1], sport=sport_for_qps(own, peer),
            dqpn=peer, tos=tos,
        )  # fmt: skip

    def sockets(self, mtu: int) -> tuple[PacketSocket, PacketSocket]:
        """Of the first end: one sends data and receives all frames, one sends answers."""
        space, version = self.spaces[0], self.version
        first, second = (PacketSocket(space, "eth1", mtu, receive_bytes=size, version=version) for size in (1 << 22, 0))
        return first, second

    def open(self) -> VerbsDevice:
        """The device."""
        with inside(self.spaces[1]):
            return VerbsDevice(self.device, self.ips[1])


class OwnMemory:
    """What our end lets its peer write and read."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data
        self.imms: list[int] = []

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        return self.data[va : va + length].data if rkey == RKEY and va + length <= BYTES else None

    def arrived(self, imm: int) -> None:
        self.imms.append(imm)


class RxePair:
    """Both ends of one connection: a queue pair of Heddle's, and one of rxe. timeout: exponent of the ACK timeout."""

    def __init__(self, link: RxeLink, mtu: int, timeout: int) -> None:
        self.link, self.device = link, link.open()
        self.peer = VerbsQp(self.device, 64, 64)
        self.memory = OwnMemory(some_bytes(5))
        self.nic = Nic(*link.sockets(mtu), mtu, link.version)
        params = RcParams(
            mtu=mtu, window=32, ack_every=4, timeout_s=4.096e-6 * 2**timeout, retries=7, ack_delay_s=0.002
        )
        data = QpInfo(OWN_QPN, link.header(OWN_QPN, self.peer.qpn, TOS_DATA), PSN)
        self.end = RcQp(params, data, link.header(OWN_QPN, self.peer.qpn, TOS_ANSWER), self.memory)
        self.pair = QueuePair(self.nic, data, self.end)
        self.nic.add(self.pair)
        self.peer.connect(Peer(link.ips[0], OWN_QPN, PSN, mtu, TOS_DATA, timeout=timeout))
        self.sent: list[Completion] = []
        self.received: list[Completion] = []
        self.theirs = Memory(self.device, some_bytes(6))

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
            and len(self.memory.imms) >= imms
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

    Without reordering: rxe does not survive an old ACK that arrives within a READ's response (docs/soft-roce.md).
    """
    for space in spaces:
        run(["nsenter", f"--net={space}", *["tc", "qdisc", "replace", "dev", "eth1", "root", "netem"], *words.split()])


@contextmanager
def rxe_link(version: int = 4) -> Iterator[RxeLink]:
    """Two namespaces, the link and the device. version: of IP."""
    with claimed() as lab:
        spaces = [namespace_of(lab, name) for name in ("host1", "host2")]
        names = [space.name for space in spaces]
        ips = ("10.9.0.1", "10.9.0.2") if version == 4 else ("fd00:9::1", "fd00:9::2")
        link = RxeLink(spaces, ips, rdma.link_name(lab, "host2", "eth1"), version)
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
            rdma.add_links([(spaces[1], link.device, "eth1")])
            # The kernel gives the first neighbour discovery of `modify_qp` a second, which a slow machine may exceed.
            run(["nsenter", f"--net={spaces[1]}", "ping", "-c", "1", "-W", "10", ips[0]])
            with inside(spaces[0]):
                listener = socket(AF_INET if version == 4 else AF_INET6, SOCK_DGRAM)
            with listener:
                listener.bind(("", ROCE_PORT))  # else this host's own stack answers with ICMP port unreachable
                yield link
        finally:
            rdma.remove_links(link.device, spaces)
            for name in names:
                run(["ip", "netns", "del", name], check=False)


@contextmanager
def rxe_pair(version: int = 4, timeout: int = 20, mtu: int = MTU) -> Iterator[RxePair]:
    """The link and both queue pairs."""
    with rxe_link(version) as link:
        pair = RxePair(link, mtu, timeout)
        try:
            yield pair
        finally:
            pair.close()
