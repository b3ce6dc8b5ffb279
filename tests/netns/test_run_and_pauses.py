"""Ranks over queues that mark and pause: what they count, and what they do while nothing moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.switch.pfc.frame import build
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests.machine import links
from tests.netns.pfc_lab import LOSSLESS

pytestmark = pytest.mark.root

PAUSED = 0.9  # seconds
MARKS = ("queues.ecn.kmin=0", "queues.ecn.kmax=0", "queues.pfc.watchdog.enabled=false")


@pytest.fixture(scope="module")
def net(lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    try:
        yield life.up(load_fabric("tiny", name=name, overrides=[*MARKS, *links(25_000_000)])).lab
    finally:
        life.down(name)


def test_every_data_packet_that_arrives_marked_is_counted(net: Lab) -> None:
    result = run(net, RunOptions(sizes=(64 << 10,), iters=2, qps=2), Silent())
    assert result.wrong == result.icrc_errors == result.stray == 0
    assert sum(f.counters["retransmitted"] for f in result.flows) == 0
    assert all(f.ce == f.sent.packets for f in result.flows) and sum(f.ce for f in result.flows) > 40
    paths = paths_of(net)
    assert paths.agree, paths_text(paths)


@pytest.mark.deep
def test_ranks_neither_send_again_nor_die_while_their_own_port_is_paused(net: Lab) -> None:
    """The switch pauses a host for three times the time-out that is asked for, 0.27 s."""
    host = net.fabric.hosts[0]
    quanta = 50_000  # 1.02 s
    peer = net.fabric.by_name[host.ports[0].peer_node].port(host.ports[0].peer_port)
    frame = build(bytes.fromhex(peer.mac.replace(":", "")), {LOSSLESS: quanta})
    gates = Gates(net.handle(peer.node).netns)
    stop = threading.Event()

    def pause() -> None:
        sent = queues.cells["out_packets"][row]
        while queues.cells["out_packets"][row] < sent + 50 and not stop.wait(0.02):
            pass  # until ranks are at work
        end = time.monotonic() + PAUSED
        while time.monotonic() < end:
            gates.send(peer.name, frame)
            stop.wait(0.2)
        gates.send(peer.name, build(bytes.fromhex(peer.mac.replace(":", "")), {LOSSLESS: 0}))

    with LabQueues.pinned(net.fabric) as queues:
        row = queues.ids[host.name, host.ports[0].name] * 8 + LOSSLESS
        before = int(queues.agent["paused_ns"][row])
        thread = threading.Thread(target=pause)
        thread.start()
        try:
            result = run(net, RunOptions(sizes=(1 << 19,), iters=2, timeout=16), Silent())
        finally:
            stop.set()
            thread.join()
            gates.close_sockets()
        paused = (int(queues.agent["paused_ns"][row]) - before) * 1e-9
    assert paused > 0.9 * PAUSED
    assert result.wrong == 0
    assert [
        (f.counters["timeouts"], f.counters["retransmitted"]) for f in result.flows if f.sent.flow.src == host.name
    ] == [(0, 0)]
    # Its acknowledgements are of another class: its senders have them in time.
    assert [f.counters["timeouts"] for f in result.flows if f.sent.flow.dst == host.name] == [0]
