"""Packets of a backlog leave in groups of `queues.burst`, one timer interrupt each, at the port's rate."""

from __future__ import annotations

import socket
import struct
from itertools import pairwise

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.host.limits import HERE, HYSTERESIS
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from tests.marks import deep
from tests.netns.static_fabric import roce_frame, some_flows

pytestmark = pytest.mark.root

SO_RCVBUFFORCE, SO_TIMESTAMPNS, ETH_P_ALL = 33, 35, 3
RATE, COUNT = 10_000_000, 120  # a packet of 4 KB takes 3.3 ms, much longer than a timer is late


def arrivals(lab: Lab) -> list[float]:
    """When the kernel of the receiving host had each packet, which waited in the port to it. Seconds."""
    flow = some_flows(lab.fabric, 1)[0]
    port = lab.fabric.by_name[flow.src].ports[0]
    frame = roce_frame(flow, 4096, port.mac, lab.fabric.by_name[port.peer_node].port(port.peer_port).mac)
    with inside(lab.handle(flow.dst).netns):
        ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with inside(lab.handle(flow.src).netns):
        mouth = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with ear, mouth:
        ear.bind((lab.fabric.by_name[flow.dst].ports[0].name, ETH_P_ALL))
        ear.settimeout(5.0)
        ear.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        ear.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        mouth.bind((port.name, 0))
        for _ in range(COUNT):
            mouth.send(frame)
        found: list[float] = []
        while len(found) < COUNT:
            data, ancillary, _, _ = ear.recvmsg(1 << 16, 64)
            if len(data) == len(frame):
                seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2])
                found.append(seconds + nanoseconds * 1e-9)
    return found


@pytest.mark.parametrize("burst", [1, 2, deep(4)])
def test_a_backlog_leaves_in_groups_of_the_size_of_a_burst(burst: int, name: str) -> None:
    # Only links between switches are slow, all alike: the first of them forms the groups.
    overrides = [f"queues.burst={burst}", "link.host=1gbit", f"link.fabric={RATE}bit", "queues.pfc.enabled=false"]
    overrides += ["queues.buffer=4MB", "queues.alpha=16"]
    try:
        lab = life.up(load_fabric("tiny", name=name, overrides=overrides)).lab
        assert HERE.value(HYSTERESIS) == 1 or burst == 1, "up has set it"
        found = arrivals(lab)
    finally:
        life.down(name)
    frame_s = 8 * 4170 / RATE
    later = found[8:]  # an idle port sends more at once
    gaps = [after - before for before, after in pairwise(later)]
    groups = 1 + sum(gap > 0.5 * frame_s for gap in gaps)
    # A late interrupt makes a group larger by as much as was missed, so a busy machine has fewer groups, never more.
    if burst == 1:
        assert groups > 0.6 * len(later), f"{groups} groups of {len(later)} packets"
    else:
        assert groups <= len(later) / burst + 2, f"{groups} groups of {len(later)} packets"
