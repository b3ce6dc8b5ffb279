"""Classes and schedulers: DSCP chooses the queue, and disciplines of the kernel do as HTB and the programs do."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest

from heddle.base.problems import MachineError
from heddle.base.process import run
from heddle.base.units import parse_rate
from heddle.fabric.wiring import Port
from heddle.lab import facts
from heddle.lab.snapshot import LabPart
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues import red
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import row
from heddle.switch.queues.portqueues import DISCIPLINES, chosen, ets_missing
from tests.machine import until
from tests.netns.port_pair import MTU, PortPair, frame_of, port_pair, realtime
from tests.netns.queue_bench import CE
from tests.netns.queue_traffic import SIZE, rack
from tests.netns.sockets import packet_socket
from tests.netns.static_fabric import StaticLab, send, some_flows, static_fabric
from tests.readings import read_marks

NO_ETS: Final = ets_missing()
NO_RED: Final = red.missing()
needs_ets = pytest.mark.skipif(bool(NO_ETS), reason=NO_ETS)
needs_red = pytest.mark.skipif(bool(NO_RED), reason=NO_RED)

LOSSY: Final = QueuePolicy(lossless=(), weights={1: 3})  # classes 0 and 1 share as 1 to 3 what control, 6, leaves


def pair_with(name: str) -> AbstractContextManager[PortPair]:
    """Two ports with the queues of a discipline."""
    plan = LOSSY
    priorities = DISCIPLINES[name].priorities(plan)

    def lines(dev: str, rate: str) -> list[str]:
        return DISCIPLINES[name].lines(Port("a", dev, "", "b", dev, parse_rate(rate), MTU), plan)

    return port_pair("10mbit", lines, priorities.__getitem__)


def served(pair: PortPair, waiting: Mapping[int, int]) -> list[int]:
    """The classes of frames in the order in which the port served them, from when all of them were in its queues.

    waiting: class -> frames to put in, in this order. Order does not depend on the speed of the machine.
    """
    with pair.listening() as arrivals:
        for number, count in waiting.items():
            with pair.sender(number, send=1 << 28) as mouth:
                for _ in range(count):
                    mouth.send(frame_of(number))
        filled = realtime()
        until(lambda: len(arrivals.rows) >= sum(waiting.values()))
    return [number for when, number in arrivals.rows if when > filled]


def while_all_wait(order: list[int]) -> list[int]:
    """The part of it in which every class still had frames."""
    last = {number: len(order) - 1 - order[::-1].index(number) for number in set(order)}
    return order[: min(last.values()) + 1]


@pytest.mark.parametrize("name", ["htb", pytest.param("ets", marks=needs_ets)])
def test_classes_share_by_weight_and_control_goes_before_them(name: str) -> None:
    with pair_with(name) as pair:
        order = while_all_wait(served(pair, {0: 250, 1: 600}))
        assert len(order) > 200
        assert order.count(1) / len(order) == pytest.approx(0.75, abs=0.02)
        order = served(pair, {0: 100, 1: 100, 6: 100})
        last = len(order) - order[::-1].index(6)
        assert order.count(6) > 50
        assert last - order.count(6) <= 3, "frames that were on their way already"


@needs_ets
def test_ets_is_taken_where_no_class_can_be_paused() -> None:
    assert chosen(LOSSY).name == "ets"
    assert chosen(replace(LOSSY, scheduler="htb")).name == "htb"
    assert chosen(QueuePolicy()).name == "htb"


@pytest.mark.skipif(not NO_ETS, reason="this kernel has sch_ets")
def test_without_sch_ets_auto_is_htb_and_ets_is_refused() -> None:
    assert chosen(LOSSY).name == "htb"
    with pytest.raises(
        MachineError, match=r"scheduler: ets is not possible: this kernel has no sch_ets\n.*scheduler: htb"
    ):
        chosen(replace(LOSSY, scheduler="ets"))


def datagram(size: int, tos: int) -> bytes:
    """An IPv4 packet of protocol 253 (experiments), its header without a checksum: nothing routes it."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, tos, size - 14, 0, 0, 64, 253, 0, bytes(4), bytes(4))
    return b"\2" * 12 + b"\x08\x00" + head + bytes(size - 34)


@needs_red
def test_red_leaves_packets_alone_that_are_not_ecn_capable_and_keeps_all_when_its_curve_changes() -> None:
    with port_pair("20mbit") as pair:
        red.install(pair.a, {("pa", 3): red.NEVER})
        gates = Gates(pair.a)
        gates.close("pa", 3)
        ear = packet_socket(pair.b, "pb", 0x0800, seconds=1.0, receive=1 << 28)
        with pair.sender(3, send=1 << 28) as mouth, ear:
            for tos in (0x00, 0x02):
                mouth.send(datagram(500, tos))
            red.change(pair.a, {("pa", 3): red.Curve(1, 1, 1.0)})
            assert red.read_curves(pair.a) == {("pa", 3): red.Curve(1, 1, 0.0)}
            for tos in (0x00, 0x01, 0x02, 0x03) * 50:
                mouth.send(datagram(500, tos))
            gates.open("pa", 3)
            came = [ear.recv(64)[15] for _ in range(202)]
        gates.close_sockets()
        assert came == [0x00, 0x02] + [0x00, 0x03, 0x03, 0x03] * 50
        assert read_marks(pair.a) == {("pa", 3): 150}  # those that came marked, too


@needs_red
def test_marks_of_red_are_counted_at_their_port_and_the_counters_balance() -> None:
    step = {"kmin": 20 * SIZE, "kmax": 20 * SIZE, "pmax": 1.0, "marker": "red"}
    with rack(link={"host": "2mbit", "fabric": "2mbit"}, queues={"ecn": step}) as made:
        ecn = made.ecn_of_burst(100)
        assert CE not in ecn[:20] and ecn[-1] == CE
        netns = made.lab.handle(made.egress.node).netns
        seen = read_marks(netns)
        curves = red.curves_of(made.lab.fabric.policy.queues)
        assert red.differences(netns, {(made.egress.name, number): curve for number, curve in curves.items()}) == []
        assert made.cell()["marks"] == ecn.count(CE) == seen[made.egress.name, 3]
        made.at_rest()


@needs_ets
def test_a_switch_with_ets_has_all_counters_and_they_balance() -> None:
    with rack(link={"host": "10mbit", "fabric": "10mbit"}, queues={"scheduler": "ets"}) as made:
        before = int(made.cell()["out_bytes"])
        made.ecn_of_burst(100)
        assert made.cell()["out_bytes"] - before == 100 * SIZE
        made.at_rest()
        assert facts.port_faults(made.lab.fabric, now := made.lab.snapshot(LabPart.PORTS)) == ({}, {})
        assert now.foreign_roots == {}


@pytest.mark.skipif(not NO_RED, reason="this kernel has sch_red")
def test_without_sch_red_the_marker_is_refused() -> None:
    with pytest.raises(MachineError, match=r"marker: red is not possible: this kernel has no sch_red\n.*marker: bpf"):
        red.require()


def leaf_packets(lab: StaticLab, node: str, port: str) -> Mapping[int, int]:
    """Class -> packets that its qdisc has sent, as tc reports."""
    where = ["nsenter", f"--net={lab.handle(node).netns}"]
    lines = run([*where, "tc", "-s", "qdisc", "show", "dev", port]).out.splitlines()
    found = {}
    for head, counts in pairwise(lines):
        words = head.split()
        if words[:1] == ["qdisc"] and words[2] in ("10:", "40:", "70:"):
            found[int(words[2][0]) - 1] = int(counts.split()[3])
    return found


def test_the_dscp_of_a_packet_chooses_its_queue_at_every_hop() -> None:
    queues, link = {"dscp": {26: 0, 5: 3, 63: 0}}, {"host": "1gbit", "fabric": "20mbit"}
    with static_fabric("flow", (1,), queues=queues, link=link) as lab, LabQueues.pinned(lab.fabric) as all_:
        plan, flow = lab.fabric.policy.queues, some_flows(lab.fabric, 1)[0]
        assert [plan.class_of_dscp[each] for each in (0, 5, 24, 26, 31, 46, 48, 56, 63)] == [0, 3, 3, 0, 3, 0, 6, 6, 0]
        last = lab.fabric.by_name[flow.dst].ports[0]
        hops = [(flow.src, "eth1"), ("rtsw1", "eth1"), ("ctsw1", "eth2"), (last.peer_node, last.peer_port)]
        before = {hop: leaf_packets(lab, *hop) for hop in hops}
        counted = all_.cells["in_packets"].copy()
        for dscp in range(64):
            send(lab, {flow: dscp % 3 + 1}, dscp=dscp)
        wanted = {n: sum(dscp % 3 + 1 for dscp in range(64) if plan.class_of_dscp[dscp] == n) for n in plan.numbers}
        until(lambda: leaf_packets(lab, *hops[-1])[3] - before[hops[-1]][3] >= wanted[3])
        for hop in hops:
            for number, count in wanted.items():
                at = row(all_.ids[hop], number)
                # The kernel's own packets (neighbours, multicast groups) come in between, and are never lossless.
                most = count if number == 3 else count + 8
                assert count <= int(all_.cells["in_packets"][at] - counted[at]) <= most, (hop, number)
                assert count <= leaf_packets(lab, *hop)[number] - before[hop][number] <= most, (hop, number)
