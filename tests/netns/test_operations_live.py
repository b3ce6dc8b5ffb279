"""SEND, READ and WRITE of queue pairs over a live fabric that loses packets, with a receiver that posts memory late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair, announce
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.nicloop import open_sockets
from heddle.endpoints.transports.rcops import Arrival, Operation, OpKind
from heddle.endpoints.transports.rcqp import RcQp
from heddle.endpoints.transports.rcstate import RcParams
from heddle.kernel.namespace import inside
from heddle.lab import impairments
from heddle.lab.lab import Lab
from heddle.spec.impairments import LinkFault
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import Plan, build_plan
from heddle.wire.layout import TOS_ANSWER, TOS_DATA
from tests.unit.test_rc import RKEY, Memory

pytestmark = pytest.mark.root

SIZE = 100_000
TIMEOUT_S = 0.2


class Host:
    """A NIC in a host's namespace with one queue pair."""

    def __init__(self, plan: Plan, here: Endpoint, there: Endpoint, numbers: tuple[int, int], netns: Path) -> None:
        with inside(netns):
            announce(here.port, here.mac, here.ip, here.gateway_ip)
        self.nic = Nic(*open_sockets(plan, here, netns), plan.ib_mtu)
        self.memory = Memory(bytearray(2 * SIZE))

        def header(tos: int) -> FlowHeader:
            return FlowHeader(
                src_mac=here.mac, dst_mac=here.gateway_mac, src_ip=here.ip, dst_ip=there.ip, sport=50000,
                dqpn=numbers[1], tos=tos,
            )  # fmt: skip

        qp = QpInfo(numbers[0], header(TOS_DATA), 0xFFFFF0)
        self.end = RcQp(RcParams(plan.ib_mtu, 32, 8, TIMEOUT_S, 50), qp, header(TOS_ANSWER), self.memory)
        self.qp = QueuePair(self.nic, qp, self.end)
        self.nic.add(self.qp)

    def work(self) -> None:
        now = time.monotonic()
        self.nic.receive(now)
        self.nic.expire(now)
        self.nic.blocked, self.nic.eager = False, True
        self.nic.transmit(now)


@pytest.fixture
def hosts(tiny: Lab) -> Iterator[tuple[Host, Host]]:
    plan = build_plan(tiny.fabric, RunOptions(ranks=2, placement="host1,host3"))
    handles, ends = tiny.handles(), plan.endpoints
    made = [Host(plan, ends[i], ends[1 - i], (0x1000 + i, 0x1001 - i), handles[ends[i].host].netns) for i in (0, 1)]
    try:
        yield made[0], made[1]
    finally:
        impairments.clear_faults(tiny)
        for host in made:
            host.nic.close()


def work_until(hosts: tuple[Host, Host], done: Callable[[], bool], at_most_s: float = 60.0) -> None:
    end = time.monotonic() + at_most_s
    while not done():
        assert time.monotonic() < end
        for host in hosts:
            host.work()
            assert host.end.error == ""
        time.sleep(0.0005)


def test_operations_of_all_kinds_both_ways_are_done_once_and_in_order(tiny: Lab, hosts: tuple[Host, Host]) -> None:
    impairments.set_fault(tiny, ["rtsw2:eth3", "rtsw1:eth3"], LinkFault(loss=1 / 10))
    dice = random.Random(5)
    kinds: tuple[OpKind, ...] = ("write", "send", "read", "send", "write", "read", "write")
    silent = 6  # a WRITE without immediate data, which nothing announces
    wanted = []
    for host, other in (hosts, hosts[::-1]):
        for number, kind in enumerate(kinds):
            data, at = dice.randbytes(SIZE // len(kinds)), number * (SIZE // len(kinds))
            payload = bytearray(data)
            if kind == "read":
                other.memory.data[SIZE + at : SIZE + at + len(data)] = data
                payload = bytearray(len(data))
            va = at + (SIZE if kind == "read" else 0)
            announced = kind != "read" and number != silent
            host.qp.post(Operation(memoryview(payload), va, RKEY, number, kind, announced=announced))
            wanted.append((other, kind, at, data, payload))
    inbox = {id(host): [bytearray(SIZE) for _ in range(2)] for host in hosts}
    for host in hosts:
        for room in inbox[id(host)]:
            host.end.responder.post_receive(memoryview(room))
    work_until(hosts, lambda: all(host.nic.idle for host in hosts))
    for other, kind, at, data, payload in wanted:
        if kind == "write":
            assert other.memory.data[at : at + len(data)] == data
        elif kind == "read":
            assert payload == data
    for host in hosts:
        sent = [data for other, kind, _, data, _ in wanted if other is host and kind == "send"]
        assert host.end.responder.arrivals == [Arrival(len(sent[0]), 1), Arrival(len(sent[1]), 3)]
        assert [bytes(room[: len(sent[0])]) for room in inbox[id(host)]] == sent
        assert host.memory.arrivals == [0, 4]
    assert sum(host.end.counters()["retransmitted"] for host in hosts) > 0


def test_a_send_waits_for_a_receiver_that_posts_memory_late(hosts: tuple[Host, Host]) -> None:
    here, there = hosts
    data = random.Random(6).randbytes(SIZE)
    here.qp.post(Operation(memoryview(bytearray(data)), 0, 0, 9, "send", announced=True))
    work_until(hosts, lambda: here.end.requester.not_ready >= 20)
    assert not there.end.responder.arrivals and not here.end.idle
    assert here.end.counters()["timeouts"] == 0
    inbox = bytearray(SIZE)
    there.end.responder.post_receive(memoryview(inbox))
    work_until(hosts, lambda: here.nic.idle and there.nic.idle)
    assert there.end.responder.arrivals == [Arrival(SIZE, 9)]
    assert inbox == data
