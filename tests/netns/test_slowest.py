"""What held a run back, on a live fabric: a slow host, and the last port of an incast."""

from __future__ import annotations

import pytest

from heddle.lab.lab import Lab
from heddle.runs.parts.slowest import Slowest
from heddle.runs.store import History
from tests.netns.collectives import ran

pytestmark = pytest.mark.root


def test_a_slow_host_is_named_with_a_qp_that_ends_there(tiny: Lab) -> None:
    result = ran(tiny, sizes=(1 << 16,), slow=(("host3", 0.1),))
    found = result[Slowest]
    assert [(each.rank, each.nic) for each in found.ranks] == [(2, "host3:eth1")]
    (qp,) = found.qps
    assert qp.to_nic == "host3:eth1"
    assert qp.qpns == tuple(row.sent.flow.qpn for row in result.flows if row.sent.flow.dst == "host3")
    stored = History.of(tiny).open(result.id)
    timeline = stored.needed(stored.timeline)
    assert len(timeline.iterations.rank) == 4 * result.options.iters
    assert len(timeline.messages.src) == 4 * 6 * result.options.iters, "six messages of each rank of the ring"


def test_the_packets_of_an_incast_wait_at_the_port_of_its_receiver(tiny: Lab) -> None:
    found = ran(tiny, collective="incast")[Slowest]
    assert {qp.to_nic for qp in found.qps} == {"host1:eth1"}
    assert tiny.fabric.by_name["host1"].ports[0].peer_ref in {wait.port for wait in found.waits}
