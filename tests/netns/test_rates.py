"""Ports send at the file's rate, in groups of `queues.burst` packets."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from itertools import pairwise

import pytest

from heddle.checks.validate import validate
from heddle.fabric.fabricfile import load_fabric
from heddle.host.limits import HERE, HYSTERESIS, at_once
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from tests.marks import deep
from tests.netns.live import failed, in_node
from tests.netns.sockets import ETH_P_ALL, packet_socket
from tests.netns.static_fabric import StaticLab, dropping, roce_frame, some_flows, static_fabric

_SO_TIMESTAMPNS = 35


@dataclass(frozen=True, slots=True)
class Flood:
    """size: of one frame, in bytes. began: before the first one was sent. arrivals: seconds, in order, as `began`."""

    size: int
    began: float
    arrivals: tuple[float, ...]


def flood(lab: Lab | StaticLab, count: int) -> Flood:
    """Send `count` RoCE frames of 4 KB at once, from a host to one in another rack."""
    flow = some_flows(lab.fabric, 1)[0]
    port = lab.fabric.by_name[flow.src].ports[0]
    frame = roce_frame(flow, 4096, port.mac, lab.fabric.by_name[port.peer_node].port(port.peer_port).mac)
    nic = lab.fabric.by_name[flow.dst].ports[0]  # ETH_P_ALL has each frame before the NIC's programs
    ear = packet_socket(lab.handle(flow.dst).netns, nic.name, ETH_P_ALL, seconds=5.0, receive=8 << 20)
    with ear, packet_socket(lab.handle(flow.src).netns, port.name) as mouth:
        ear.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        began = time.time()
        for _ in range(count):
            mouth.send(frame)
        arrivals: list[float] = []
        while len(arrivals) < count:
            data, ancillary, _, _ = ear.recvmsg(1 << 16, 64)
            if len(data) == len(frame):
                seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2])
                arrivals.append(seconds + nanoseconds / 1e9)
    return Flood(len(frame), began, tuple(arrivals))


@pytest.mark.parametrize("rate", [20_000_000, deep(100_000_000)])
def test_a_flood_never_leaves_a_port_faster_than_its_rate(rate: int) -> None:
    link = {"host": "1gbit", "fabric": f"{rate}bit"}
    count = rate // 8 // 4166 // 10 + 11  # a tenth of a second of the port
    with static_fabric("flow", (1, 1), link=link, queues=dropping("2MB")) as lab:
        seen = flood(lab, count)
        # An idle port sends some packets at once. A busy machine makes the port slower, never faster: so there is no
        # bound on that side. `validate` reads the rate, and ./inv bench measures it.
        assert 8 * seen.size * (count - at_once()) / (seen.arrivals[-1] - seen.began) < 1.02 * rate


@pytest.mark.deep
def test_a_rate_that_is_not_whole_bytes_a_second_is_no_fault(name: str) -> None:
    rates = ["link.host=9999999bit", "link.fabric=1234567bit"]
    lab = life.up(load_fabric("tiny", name=name, overrides=rates)).lab
    found = {check.name: check for check in validate(lab)}
    assert [check.name for check in found.values() if not check.ok] == []
    assert "1234567bit (the shaper holds 1234560bit" in found["queues"].detail
    rate = lab.fabric.by_name["rtsw1"].port("eth1").rate_bps + 8
    in_node(lab, "rtsw1", f"tc class change dev eth1 parent 1: classid 1:1 htb rate {rate}bit burst 8400b")
    faulty = failed(lab)
    assert set(faulty) == {"queues"} and "rtsw1:eth1  the port is shaped to " in faulty["queues"]


SLOW, COUNT, BURST = 10_000_000, 120, 2  # a packet of 4 KB takes 3.3 ms, much longer than a timer is late


def test_a_backlog_leaves_in_groups_of_the_size_of_a_burst(name: str) -> None:
    # Only links between switches are slow, all alike: the first of them forms the groups.
    overrides = [f"queues.burst={BURST}", "link.host=1gbit", f"link.fabric={SLOW}bit", "queues.pfc.enabled=false"]
    overrides += ["queues.buffer=4MB", "queues.alpha=16"]
    lab = life.up(load_fabric("tiny", name=name, overrides=overrides)).lab
    assert HERE.value(HYSTERESIS) == 1, "up has set it"
    found = flood(lab, COUNT)
    life.down(name)
    frame_s = 8 * found.size / SLOW
    later = found.arrivals[8:]  # an idle port sends more at once
    gaps = [after - before for before, after in pairwise(later)]
    groups = 1 + sum(gap > 0.5 * frame_s for gap in gaps)
    # A late interrupt makes a group larger by as much as was missed, so a busy machine has fewer groups, never more.
    assert groups <= len(later) / BURST + 2, f"{groups} groups of {len(later)} packets"
