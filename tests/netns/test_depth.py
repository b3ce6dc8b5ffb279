"""The depth of a queue is exact: it lies between two readings of the kernel's own, and ends at 0 whatever happens."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle.base.process import run
from heddle.kernel.namespace import inside
from heddle.lab.snapshot import LabPart
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import CAUSES, LINK_DOWN
from heddle.switch.queues.classes import policies_of
from heddle.switch.queues.portids import row
from tests.netns.queue_bench import LOSSLESS
from tests.netns.queue_traffic import SIZE, Rack, rack, send_from
from tests.netns.static_fabric import address

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


LINK = {"host": "100mbit", "fabric": "100mbit"}
_UDP_SEGMENT = 103
_IP_MTU_DISCOVER, _IP_PMTUDISC_DONT = 10, 0


def sockets(made: Rack, kind: socket.SocketKind) -> tuple[socket.socket, socket.socket]:
    """A socket on the first host, and one on the last that is bound to a port of its."""
    first, last = made.lab.fabric.hosts[0], made.lab.fabric.hosts[-1]
    with inside(made.lab.handle(first.name).netns):
        source = socket.socket(socket.AF_INET, kind)
    with inside(made.lab.handle(last.name).netns):
        sink = socket.socket(socket.AF_INET, kind)
    sink.bind((address(last), 0))
    source.settimeout(10)
    sink.settimeout(10)
    return source, sink


@pytest.mark.deep
def test_segmented_and_fragmented_udp_is_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        source, sink = sockets(made, socket.SOCK_DGRAM)
        with source, sink:
            source.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DONT)
            for size in (0, 1000):
                before = int(made.cell(0)["in_packets"])
                source.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, size)
                with contextlib.suppress(OSError):  # EIO: this kernel cuts none for a port without checksums
                    for _ in range(10):
                        source.sendto(bytes(30_000), sink.getsockname())
                    time.sleep(0.05)
                    assert made.cell(0)["in_packets"] >= before + 10 * (30 if size else 7)
                made.at_rest()


@pytest.mark.deep
def test_tagged_frames_are_counted_to_the_byte() -> None:
    with rack(link=LINK) as made:
        before = int(made.queues.cells["in_packets"].sum())
        with made.wire() as wire:
            for number in range(50):
                tags = ((0x8100,), (0x88A8, 0x8100))[number % 2]
                tagged = b"".join(struct.pack("!HH", tag, 5) for tag in tags)
                wire.send(b"\xff" * 6 + b"\2" * 6 + tagged + b"\x08\x00" + bytes(100))
        made.at_rest()
        assert made.queues.cells["in_packets"].sum() >= before + 50


LINKS = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"host3:eth1": "8mbit"}}


def drops(cell: Any) -> dict[str, int]:
    return {cause: int(n) for cause, n in zip(CAUSES, cell["drops"], strict=True) if n}


def change(made: Rack, **words: Any) -> None:
    """Give every class of every switch port other numbers."""
    rules = policies_of(made.lab.fabric)
    switches = {node.name for node in made.lab.fabric.switches}
    made.queues.set_policies(
        {ref: tuple(replace(each, **words) for each in rows) for ref, rows in rules.items() if ref[0] in switches}
    )


def test_two_senders_into_one_port_lose_what_the_buffer_refuses_and_every_loss_is_counted() -> None:
    with rack(link=LINKS) as made:
        change(made, alpha=0.5, shared=60_000, reserve=10_000)
        with made.listening() as found:
            send_from(made, (0, 1), 500)
            made.at_rest()
            lost = drops(made.cell())
            assert set(lost) == {"threshold"} and lost["threshold"] > 50
            found.wait(1000 - lost["threshold"])
        assert len(found.frames) == 1000 - lost["threshold"]
        assert made.cell()["drop_bytes"] == lost["threshold"] * SIZE
        # alpha 1/2 of 60,000 beyond a reserve of 10,000: depth = 0.5 (60,000 - (depth - 10,000)).
        most = 70_000 / 3
        assert most - 2 * SIZE <= made.cell()["high_water"] <= most + 2 * SIZE
