"""A soft-RoCE queue pair in one namespace and one of Heddle's own in another, with a link between them.

Both ends run in this process: RDMA devices are visible in all namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import IPPROTO_UDP

import numpy as np

from heddle.base.process import run
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.transports.rcops import Operation, OpKind
from heddle.endpoints.transports.rcqp import RcQp
from heddle.endpoints.transports.rcstate import RcParams
from heddle.endpoints.verbs.verbsdevice import Completion, Memory, Peer, VerbsDevice, VerbsQp
from heddle.kernel import rdma
from heddle.wire.layout import ACK, ECN_CE, TOS_ANSWER, TOS_DATA
from heddle.wire.sport import sport_for_qps
from tests.netns.claimed import claimed, namespace_of

OWN_QPN = 0x1234
RKEY = 0xABCD
MTU = 1024
BYTES = 1 << 17  # of each memory: the peer writes into the first half and reads the second
HALF = BYTES // 2
MACS = ("02:00:00:00:00:01", "02:00:00:00:00:02")
PSN = 0xFFFFF0  # wraps soon


class OwnMemory:
    """What our end lets its peer write and read."""

    def __init__(self, data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        self.data = data
        self.imms: list[int] = []

    def resolve(self, va: int, rkey: int, length: int) -> memoryview | None:
        return self.data[va : va + length].data if rkey == RKEY and va + length <= BYTES else None

    def arrived(self, imm: int) -> None:
        self.imms.append(imm)


class RxePair:
    """Both ends of one connection. version: of IP. timeout: exponent of the ACK timeout of both ends."""

    def __init__(self, lab: str, version: int, timeout: int) -> None:
        self.spaces = [namespace_of(lab, name) for name in ("host1", "host2")]
        self.ips = ("10.9.0.1", "10.9.0.2") if version == 4 else ("fd00:9::1", "fd00:9::2")
        self.link = rdma.link_name(lab, "host2", "eth1")
        dice = np.random.default_rng(5)
        self.memory = OwnMemory(dice.integers(0, 256, BYTES, np.uint8))
        self._connect(version, timeout)
        self.theirs = Memory(self.device, dice.integers(0, 256, BYTES, np.uint8))

    def _connect(self, version: int, timeout: int) -> None:
        self.device = VerbsDevice(self.link, self.ips[1])
        self.peer = VerbsQp(self.device, 64, 64)
        sockets = [
            PacketSocket(self.spaces[0], "eth1", MTU, receive_bytes=size, version=version) for size in (1 << 22, 0)
        ]
        self.nic = Nic(sockets[0], sockets[1], MTU, version)
        params = RcParams(
            mtu=MTU, window=32, ack_every=4, timeout_s=4.096e-6 * 2**timeout, retries=7, ack_delay_s=0.002
        )
        self.end = RcQp(params, QpInfo(OWN_QPN, self.header(TOS_DATA), PSN), self.header(TOS_ANSWER), self.memory)
        self.pair = QueuePair(self.nic, QpInfo(OWN_QPN, self.header(TOS_DATA), PSN), self.end)
        self.nic.add(self.pair)
        self.peer.connect(Peer(self.ips[0], OWN_QPN, PSN, MTU, TOS_DATA, timeout=timeout))
        self.sent: list[Completion] = []
        self.received: list[Completion] = []

    def header(self, tos: int) -> FlowHeader:
        """The headers of packets from our end."""
        return FlowHeader(
            src_mac=MACS[0], dst_mac=MACS[1], src_ip=self.ips[0], dst_ip=self.ips[1],
            sport=sport_for_qps(OWN_QPN, self.peer.qpn), dqpn=self.peer.qpn, tos=tos,
        )  # fmt: skip

    def mark(self) -> None:
        """Send everything from now on as if a switch had marked it."""
        self.end._flow = self.header(TOS_DATA | ECN_CE)

    def post(self, kind: OpKind, data: memoryview, at: int = 0, imm: int | None = None) -> None:
        """An operation of our end on the peer's memory."""
        va = self.theirs.address + at
        self.pair.post(Operation(data, va, self.theirs.rkey, imm or 0, kind, announced=imm is not None))

    def turn(self) -> None:
        """One pass of both ends."""
        now = time.monotonic()
        self.nic.expire(now)
        self.nic.blocked = False
        self.nic.transmit(now)
        self.nic.receive(time.monotonic())
        self.sent += self.device.sent()
        self.received += self.device.received()
        for each in (*self.sent, *self.received):
            assert not each.error, f"rxe: {each.error}"
        assert not self.nic.errors()

    def work(self, sends: int = 0, receives: int = 0, arrivals: int = 0, imms: int = 0, seconds: float = 60) -> None:
        """Until our requests are finished, and rxe has this many completions, and our end this many messages."""
        deadline = time.monotonic() + seconds
        while not (
            self.nic.idle and len(self.sent) >= sends and len(self.received) >= receives
            and len(self.end.responder.arrivals) >= arrivals and len(self.memory.imms) >= imms
        ):  # fmt: skip
            self.turn()
            state = f"{len(self.sent)} sends, {len(self.received)} receives, {dict(self.end.counters())}"
            assert time.monotonic() < deadline, f"did not end: {state}, {self.nic.counters}"
            time.sleep(0.0005)

    def close(self) -> None:
        self.peer.destroy()
        self.theirs.deregister()
        self.device.close()
        self.nic.close()


def impair(spaces: list[Path], words: str, spare_acks: bool = False) -> None:
    """Replace the queue of both ends of the link by netem with these parameters.

    spare_acks: ACKs and NAKs of our end pass it, and arrive at once (IPv4 only). An ACK that is late arrives between
    the packets of a later READ's response, which rxe does not survive (docs/soft-roce.md).
    """
    for number, space in enumerate(spaces):
        tc = ["nsenter", f"--net={space}", "tc"]
        place = ["root"]
        if spare_acks and number == 0:
            place = ["parent", "1:2", "handle", "2:"]
            band = " 1" * 16
            run([*tc, *f"qdisc replace dev eth1 root handle 1: prio bands 2 priomap{band}".split()])
            match = f"match u8 {IPPROTO_UDP} 0xff at 9 match u8 {ACK} 0xff at 28"  # the opcode is the first byte of BTH
            run([*tc, *f"filter add dev eth1 parent 1: protocol ip prio 1 u32 {match} flowid 1:1".split()])
        run([*tc, "qdisc", "replace", "dev", "eth1", *place, "netem", *words.split()])


@contextmanager
def rxe_pair(version: int = 4, timeout: int = 20) -> Iterator[RxePair]:
    """Two namespaces, the link, the device, both queue pairs."""
    with claimed() as lab:
        spaces = [namespace_of(lab, name) for name in ("host1", "host2")]
        names = [space.name for space in spaces]
        try:
            for name in names:
                run(["ip", "netns", "add", name])
            ends = [f"eth1 netns {name} address {mac}".split() for name, mac in zip(names, MACS, strict=True)]
            run(["ip", "link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1]])
            for name, number in zip(names, (1, 2), strict=True):
                address = f"10.9.0.{number}/24" if version == 4 else f"fd00:9::{number}/64"
                more = ["nodad"] if version == 6 else []
                run(["ip", "-n", name, "addr", "add", address, "dev", "eth1", *more])
                for port in ("lo", "eth1"):
                    run(["ip", "-n", name, "link", "set", port, "mtu", "4200", "up"])
            rdma.add_link(spaces[1], rdma.link_name(lab, "host2", "eth1"), "eth1")
            # The kernel gives the first neighbour discovery of `modify_qp` a second, which a slow machine may exceed.
            other = "10.9.0.1" if version == 4 else "fd00:9::1"
            run(["nsenter", f"--net={spaces[1]}", "ping", "-c", "1", "-W", "10", other])
            pair = RxePair(lab, version, timeout)
            try:
                yield pair
            finally:
                pair.close()
        finally:
            rdma.remove_links_of(lab)
            for name in names:
                run(["ip", "netns", "del", name], check=False)
