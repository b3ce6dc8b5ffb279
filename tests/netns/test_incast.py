"""15 hosts send to one at line rate: with pauses nothing is lost, and they travel from the sink to the senders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.fabric.model import Role
from tests.machine import until
from tests.netns.blaster import Blast, Heard, blast
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab

pytestmark = pytest.mark.root

SINK = "host16"
PACKETS, PAYLOAD = 292, 1024  # 320 KB a sender: more than an ingress port's Xoff and headroom
# What a busy machine may need from a pause frame to a closed gate: the agent needs a processor, and the kernel's lock
# for network configuration, which other labs may hold. Low rates make that little headroom in bytes.
REACTION_MS = 150
# A pause may last as long as the sink needs, so no watchdog ends it: see test_pfc_trouble.py.
PFC: dict[str, Any] = {"xoff": "20KB", "xon": "12KB", "reaction": f"{REACTION_MS}ms", "watchdog": {"enabled": False}}


@contextmanager
def two_tiers(place: Path, **more: Any) -> Iterator[PfcLab]:
    """4 RTSW x 4 CTSW, 16 hosts. Links between switches are fast enough: only the way to the sink is too narrow."""
    link = {"host": "10mbit", "fabric": "40mbit"}
    with pfc_lab(place, ecmp="spray", racks=4, hosts_per_rack=4, link=link, queues={"pfc": PFC | more}) as net:
        yield net


def incast(net: PfcLab) -> list[Blast]:
    senders = [host.name for host in net.lab.fabric.hosts if host.name != SINK]
    assert len(senders) == 15
    return [Blast(name, SINK, PACKETS, PAYLOAD) for name in senders]


class FirstPauses:
    """When each kind of node was first paused by the next one towards the sink; rows are those of the maps."""

    def __init__(self, net: PfcLab) -> None:
        fabric = net.lab.fabric
        near = fabric.by_name[SINK].ports[0].peer_node
        self._received = net.queues.gates["pfc_received"]
        self.rows: dict[str, list[int]] = {"ctsw": [], "rtsw": [], "hosts": []}
        for node in fabric.nodes:
            for port in node.ports:
                row = net.row(f"{node.name}:{port.name}")
                if node.level == 2 and port.peer_node == near:
                    self.rows["ctsw"].append(row)
                elif node.level == 1 and fabric.by_name[port.peer_node].level == 2 and node.name != near:
                    self.rows["rtsw"].append(row)
                elif node.role is Role.HOST and port.peer_node != near:
                    self.rows["hosts"].append(row)
        self._since, self._last = net.queues.gates["since_ns"], net.queues.gates["last_ns"]
        self._before = {kind: self._count(kind) for kind in self.rows}
        self.at: dict[str, int] = {}

    def _count(self, kind: str) -> int:
        return int(self._received[self.rows[kind]].sum())

    def look(self) -> None:
        """The program that took the frame wrote down when; if its pause is over already, when the last one came."""
        for kind, rows in self.rows.items():
            if kind not in self.at and self._count(kind) > self._before[kind]:
                since, last = self._since[rows], self._last[rows]
                self.at[kind] = int(np.where(since > 0, since, last)[last > 0].min())

    def order(self) -> list[str]:
        """Kinds of nodes, those that were paused first first."""
        return sorted(self.at, key=self.at.__getitem__)


def check_lossless(net: PfcLab, heard: Sequence[Heard]) -> None:
    """Nothing was lost, unless gates were closed later than the headroom is for: then what is missing was counted."""
    lost = sum(PACKETS - each.packets for each in heard)
    assert lost == net.drops(), "every packet arrives or is counted as dropped"
    slowest_ms = int(net.queues.agent["reaction_max_ns"].max()) / 1e6
    assert lost == 0 or slowest_ms > REACTION_MS, f"{lost} lost, though gates closed within {slowest_ms:.0f} ms"


def test_nothing_is_lost_and_pauses_go_from_the_sink_to_the_senders(tmp_path: Path) -> None:
    with two_tiers(tmp_path) as net:
        pauses = FirstPauses(net)
        held = net.queues.ingress["headroom_high"]
        heard = blast(net.lab, incast(net), watch=pauses.look)
        check_lossless(net, heard)
        assert sum(h.bad for h in heard) == 0
        # The sink's RTSW pauses the CTSWs, those the other RTSWs, and these their hosts.
        assert pauses.order() == ["ctsw", "rtsw", "hosts"]
        closed = net.queues.agent["paused_ns"][pauses.rows["hosts"]]
        assert np.count_nonzero(closed) == 12, "every sender of another rack has been held back"
        assert int(held.max()) > 0, "what was under way when a pause was asked for went into the headroom"
        until(net.at_rest)
        others = [row for row in range(len(net.queues.cells)) if row % 8 != LOSSLESS]
        assert int(net.queues.gates["pfc_received"][others].sum()) == 0, "no other class was paused"


# host1 to 4 are behind rtsw1, host5 to 8 behind rtsw2. host8 is idle but for the victim's packets.
CROWD = [("host2", "host5"), ("host3", "host5"), ("host6", "host5"), ("host7", "host5")]
VICTIM = ("host1", "host8")


def paused_ns(net: PfcLab, host: str) -> int:
    """How long a host's NIC has held the lossless class back, as its switch had asked."""
    return int(net.queues.agent["paused_ns"][net.row(f"{host}:eth1")])


def test_a_flow_to_an_idle_port_is_held_back_by_pauses_that_are_meant_for_others(tmp_path: Path) -> None:
    """Head-of-line blocking. What is left of the flow's rate is a figure of `./inv bench queues`."""
    link, queues = {"host": "25mbit", "fabric": "100mbit"}, {"pfc": {"reaction": "60ms"}}
    with pfc_lab(tmp_path, weights=(1,), hosts_per_rack=4, link=link, queues=queues) as net:
        port, crowded = net.down_port(VICTIM[1]), net.down_port(CROWD[0][1])
        with net.loading([(*VICTIM, LOSSLESS)]):
            until(lambda: net.out(port) > 100)
            assert paused_ns(net, VICTIM[0]) == 0, "without the others nothing holds it back"
        with net.loading([(*flow, LOSSLESS) for flow in (VICTIM, *CROWD)]):
            until(lambda: paused_ns(net, VICTIM[0]) > 0)
            done, others = net.out(port), net.out(crowded)
            until(lambda: net.out(port) > done + 50 and net.out(crowded) > others + 400)
        assert paused_ns(net, CROWD[0][0]) > 0, "those that crowd the port are paused"
        until(net.at_rest)
