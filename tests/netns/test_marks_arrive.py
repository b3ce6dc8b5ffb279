"""A mark that a switch sets reaches the receiver's counters, and the packet stays whole: three hops, or the last."""

from __future__ import annotations

from typing import Any

import pytest

from heddle.wire import layout as wire
from tests.netns.blaster import Blast, blast
from tests.netns.static_fabric import static_fabric

pytestmark = pytest.mark.root

COUNT = 200
ALWAYS: dict[str, Any] = {"kmin": 0, "kmax": 0, "pmax": 1.0}


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize("at", ["enqueue", "dequeue"])
def test_the_icrc_stays_right_when_switches_mark_over_three_hops(family: str, at: str) -> None:
    queues = {"ecn": ALWAYS | {"at": at}, "weights": {"0": 1}}
    with static_fabric("flow", (1, 1), family=family, queues=queues) as lab:
        there, near, back = "host3", "host2", "host1"
        blasts = [
            Blast("host1", there, COUNT),
            Blast("host1", there, COUNT, tos=wire.DSCP_DATA << 2, sport=49153),  # not ECT: nobody marks it
            Blast("host4", there, COUNT, sport=49154),  # one switch: what marks at dequeue writes at the host itself
            Blast(near, back, COUNT, payload=1),  # padded payload
        ]
        through, plain, beside, small = blast(lab, blasts)
        for heard in (through, plain, beside, small):
            assert (heard.packets, heard.bad) == (COUNT, 0)
        assert (through.marked, plain.marked) == (COUNT, 0)
        assert (beside.marked, small.marked) == (COUNT, COUNT)
