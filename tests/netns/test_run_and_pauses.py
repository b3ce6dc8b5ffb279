"""Ranks over queues that mark and pause: what they count, and what they do while nothing moves."""

from __future__ import annotations

import time

import pytest

from heddle.lab.lab import Lab
from heddle.switch.pfc.frame import build
from heddle.switch.pfc.gates import Gates
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from tests.conftest import Borrow
from tests.machine import links
from tests.netns.collectives import proven, ran, run_and, total
from tests.netns.pfc_lab import LOSSLESS

pytestmark = pytest.mark.root

PAUSED = 0.9  # seconds
MARKS = ("queues.ecn.kmin=0", "queues.ecn.kmax=0", "queues.pfc.watchdog.enabled=false")


@pytest.fixture(scope="module")
def net(borrow: Borrow) -> Lab:
    return borrow("tiny", *MARKS, *links(25_000_000))


def test_every_data_packet_that_arrives_marked_is_counted(net: Lab) -> None:
    result = ran(net, sizes=(64 << 10,), qps=2)
    assert result.icrc_errors == result.stray == 0
    assert total(result, "retransmitted") == 0
    assert all(f.ce == f.sent.packets for f in result.flows) and sum(f.ce for f in result.flows) > 40
    proven(net)


@pytest.mark.deep
def test_ranks_neither_send_again_nor_die_while_their_own_port_is_paused(net: Lab) -> None:
    """The switch pauses a host for three times the time-out that is asked for, 0.27 s."""
    host = net.fabric.hosts[0]
    peer = net.fabric.by_name[host.ports[0].peer_node].port(host.ports[0].peer_port)
    source, gates = bytes.fromhex(peer.mac.replace(":", "")), Gates(net.handle(peer.node).netns)

    def pause() -> None:
        end = time.monotonic() + PAUSED
        while time.monotonic() < end:
            gates.send(peer.name, build(source, {LOSSLESS: 50_000}))  # 1.02 s
            time.sleep(0.2)
        gates.send(peer.name, build(source, {LOSSLESS: 0}))

    with LabQueues.pinned(net.fabric) as queues:
        paused = queues.agent["paused_ns"][queues.ids[host.name, host.ports[0].name] * 8 + LOSSLESS :]
        before = int(paused[0])
        result = run_and(net, RunOptions(sizes=(1 << 19,), iters=2, timeout=16), pause)
        assert (int(paused[0]) - before) * 1e-9 > 0.9 * PAUSED
    gates.close_sockets()
    assert result.wrong == 0
    mine = [flow for flow in result.flows if flow.sent.flow.src == host.name]
    assert [(flow.counters["timeouts"], flow.counters["retransmitted"]) for flow in mine] == [(0, 0)]
    # Its acknowledgements are of another class: its senders have them in time.
    assert [flow.counters["timeouts"] for flow in result.flows if flow.sent.flow.dst == host.name] == [0]
