"""Classes of a port: a packet's DSCP chooses one.

IPv6: tests/netns/test_queue_program.py reads the DSCP of both. Weights, and control before all others:
test_disciplines.py and test_pfc_agent.py; how much less it waits is a figure of `./inv bench queues`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from heddle.base.process import run
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import class_plan
from heddle.switch.queues.portids import row
from tests.machine import until
from tests.netns.static_fabric import StaticLab, send, some_flows, static_fabric

pytestmark = pytest.mark.root


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
        plan, flow = class_plan(lab.fabric.policy.queues), some_flows(lab.fabric, 1)[0]
        assert [plan.dscp[each] for each in (0, 5, 24, 26, 31, 46, 48, 56, 63)] == [0, 3, 3, 0, 3, 0, 6, 6, 0]
        last = lab.fabric.by_name[flow.dst].ports[0]
        hops = [(flow.src, "eth1"), ("rtsw1", "eth1"), ("ctsw1", "eth2"), (last.peer_node, last.peer_port)]
        before = {hop: leaf_packets(lab, *hop) for hop in hops}
        counted = all_.cells["in_packets"].copy()
        for dscp in range(64):
            send(lab, {flow: dscp % 3 + 1}, dscp=dscp)
        wanted = {n: sum(dscp % 3 + 1 for dscp in range(64) if plan.dscp[dscp] == n) for n in plan.numbers}
        until(lambda: leaf_packets(lab, *hops[-1])[3] - before[hops[-1]][3] >= wanted[3])
        for hop in hops:
            for number, count in wanted.items():
                at = row(all_.ids[hop], number)
                # The kernel's own packets (neighbours, multicast groups) come in between, and are never lossless.
                most = count if number == 3 else count + 8
                assert count <= int(all_.cells["in_packets"][at] - counted[at]) <= most, (hop, number)
                assert count <= leaf_packets(lab, *hop)[number] - before[hop][number] <= most, (hop, number)
