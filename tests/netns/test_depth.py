"""The depth of a queue is exact: it lies between two readings of the kernel's own, and ends at 0 whatever happens."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from heddle.base.process import run
from heddle.lab.snapshot import LabPart
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LINK_DOWN
from heddle.switch.queues.portids import row
from tests.netns.queue_bench import LOSSLESS
from tests.netns.queue_traffic import SIZE, rack, send_from

pytestmark = pytest.mark.root

ON_ITS_WAY = (
    64 * SIZE
)  # out of the qdisc and not yet at the peer, on a machine that is busy; of more than 1,000 packets
SLOW = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"host3:eth1": "8mbit"}}


def test_depth_is_between_two_readings_of_tc_and_returns_to_0() -> None:
    with rack(link=SLOW, queues={"buffer": {"rtsw": "8MB"}}) as made:
        thread = threading.Thread(target=send_from, args=(made, (0, 1), 600))
        thread.start()
        made.reaches(True, lambda: made.backlog() > 50 * SIZE)
        readings = []
        while (after := made.backlog()) > 0:
            before, depth, after = after, int(made.cell()["depth"]), made.backlog()
            readings.append((before, depth, after))
        thread.join()
        off = [max(0, min(before, after) - depth, depth - max(before, after)) for before, depth, after in readings]
        deep = [each for each, (_, depth, _) in zip(off, readings, strict=True) if depth > 100 * SIZE]
        assert len(deep) >= 8 and max(off) <= ON_ITS_WAY, readings
        assert sorted(deep)[len(deep) // 2] <= 2 * SIZE, readings  # what is on its way is a packet or two
        made.at_rest()
        cell = made.cell()
        assert cell["in_packets"] == cell["out_packets"] == 1200 and cell["in_bytes"] == 1200 * SIZE
        assert max(depth for _, depth, _ in readings) <= cell["high_water"] <= 1200 * SIZE


@pytest.mark.deep
def test_depth_without_traffic_equals_that_of_tc_to_the_byte() -> None:
    """A gate is closed, and all that is on its way has come."""
    with rack(link={"host": "40mbit", "fabric": "40mbit"}, queues={"buffer": {"rtsw": "8MB"}}) as made:
        gates = Gates(made.lab.handle(made.egress.node).netns)
        gates.close(made.egress.name, LOSSLESS)
        send_from(made, (0, 1), 200)
        made.reaches(400)
        time.sleep(0.1)
        assert made.cell()["depth"] == made.backlog() == made.backlog_by_tc() >= 395 * SIZE
        gates.open(made.egress.name, LOSSLESS)
        made.at_rest()
        gates.close_sockets()


def test_a_link_that_takes_packets_with_it_is_settled_to_the_last_byte() -> None:
    with rack(link={"host": "20mbit", "exceptions": {"host3:eth1": "1mbit"}}) as made:
        q, port = made.queues, made.queues.ids[made.egress.node, made.egress.name]
        made.burst(100)
        send_from(made, (0,), 30)
        made.reaches(130)
        assert made.cell()["depth"] > 50 * SIZE
        made.lab.ip(made.target.node, "link", "set", made.target.name, "down")
        q.links["flags"][port] |= np.uint32(LINK_DOWN)
        made.reaches(0, made.backlog)
        time.sleep(0.05)
        q.reset_port(port)
        made.at_rest()
        lost = int(made.cell()["drops"][4])
        assert lost > 50 and made.cell()["in_packets"] == made.cell()["out_packets"] == 130


@pytest.mark.deep
def test_packets_lost_with_their_qdisc_are_noticed_and_removed_from_the_counters() -> None:
    with rack(link={"host": "20mbit", "exceptions": {"host3:eth1": "1mbit"}}) as made:
        send_from(made, (0,), 60)
        made.reaches(60)
        run(["tc", "-n", made.lab.handle(made.egress.node).netns.name, "qdisc", "del", "dev", made.egress.name, "root"])
        time.sleep(0.05)
        waits = int(made.cell()["depth"])
        assert waits > 30 * SIZE
        assert made.queues.reconcile(lambda port_id, number: False) == []
        arrived = int(made.cell()["out_packets"])
        (lost,) = made.queues.reconcile(lambda port_id, number: False)
        port = made.queues.ids[made.egress.node, made.egress.name]
        assert lost == (port, LOSSLESS, waits)
        made.at_rest()
        assert int(made.queues.gates["lost"][row(port, LOSSLESS)]) == 60 - arrived == waits // SIZE
        assert int(made.cell()["drop_bytes"]) == waits
        assert made.lab.snapshot(LabPart.DROPS).drops[made.egress.ref] == 60 - arrived
