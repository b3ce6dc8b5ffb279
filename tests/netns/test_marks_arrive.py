"""A mark that a switch sets reaches the receiver's counters, and the packet stays whole: three hops, or the last."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.portids import row
from heddle.wire import layout as wire
from tests.machine import rates
from tests.netns.blaster import Blast, blast
from tests.netns.static_fabric import static_fabric

pytestmark = pytest.mark.root

COUNT = 200
ALWAYS: dict[str, Any] = {"kmin": 0, "kmax": 0, "pmax": 1.0}


def test_the_icrc_stays_right_when_switches_mark_over_three_hops() -> None:
    """IPv6: test_queue_program.py has its marks, tests/unit/test_roce_wire.py what its ICRC leaves out."""
    queues = {"ecn": ALWAYS | {"at": "dequeue"}, "weights": {"0": 1}}
    with static_fabric("flow", (1, 1), queues=queues) as lab:
        there, near, back = "host3", "host2", "host1"
        blasts = [
            Blast("host1", there, COUNT),
            Blast("host1", there, COUNT, tos=wire.DSCP_DATA << 2, sport=49153),  # not ECT: never marked
            Blast("host4", there, COUNT, sport=49154),  # one switch: what marks at dequeue writes at the host itself
            Blast(near, back, COUNT, payload=1),  # padded payload
        ]
        through, plain, beside, small = blast(lab, blasts)
        for heard in (through, plain, beside, small):
            assert (heard.packets, heard.bad) == (COUNT, 0)
        assert (through.marked, plain.marked) == (COUNT, 0)
        assert (beside.marked, small.marked) == (COUNT, COUNT)


def test_every_mark_is_counted_once_where_it_was_set_and_as_ce_in_at_every_queue_behind() -> None:
    """Two queues on one path that both mark: at the second one new marks alone are fewer than packets with CE."""
    link = rates(20_000_000)
    queues = {"ecn": {"kmin": "5KB", "kmax": "10KB", "pmax": 1.0}, "pfc": {"enabled": False}, "buffer": {"rtsw": "4MB"}}
    with static_fabric("flow", (1,), link=link, queues=queues) as lab, LabQueues.pinned(lab.fabric) as live:
        senders = ("host1", "host2", "host4")
        heard = blast(lab, [Blast(name, "host3", COUNT, sport=49152 + at) for at, name in enumerate(senders)])
        assert [each.packets for each in heard] == 3 * [COUNT]
        last = lab.fabric.by_name["host3"].ports[0]
        ports = ("rtsw1", "eth1"), ("ctsw1", "eth2"), (last.peer_node, last.peer_port)
        first, middle, final = (live.cells[row(live.ids[port], 3)] for port in ports)
        came = first["marks"] + middle["marks"]
        assert came > 0 and final["marks"] > 0
        assert (first["ce_in"], middle["ce_in"], final["ce_in"]) == (0, first["marks"], came)
        assert sum(each.marked for each in heard) == final["marks"] + final["ce_in"] == live.cells["marks"].sum()
