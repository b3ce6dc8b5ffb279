"""Pauses hold back whom they should, from the sink to the senders; a host is held back by its own port alone."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.fabric.model import Role
from heddle.lab.snapshot import LabPart
from heddle.spec.routingpolicy import HashOptions
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import hashing_of
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of, row
from heddle.traffic.flow import Flow
from heddle.wire import layout as wire
from tests.machine import until
from tests.marks import deep
from tests.netns.blaster import Blast, Heard, blast
from tests.netns.pfc_lab import LOSSLESS, PfcLab, pfc_lab
from tests.netns.sockets import ETH_P_ALL, packet_socket, waiting
from tests.netns.static_fabric import StaticLab, roce_frame, some_flows, static_fabric

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


FRAMES: Final = 60
UPLINKS: Final = ("eth1", "eth2")
MODES: Final[dict[str, dict[str, Any]]] = {
    "flow": {}, "e-ecmp resilient": {"resilient": True}, "pinned": {}, "exact-match": {}, "adaptive": {},
    "flowlet by load": {"first": "load"}, "spray in turn": {"choice": "round-robin"},
}  # fmt: skip
STEERED: Final = {name for name in MODES if name != "flow"}


@pytest.fixture(scope="module")
def lab() -> Iterator[StaticLab]:
    """Uplinks that take seconds for what hosts send at once; no queue drops it, and no port is paused."""
    queues = {"buffer": {"rtsw": "4MB"}, "pfc": {"enabled": False}}
    link = {"host": "1gbit", "fabric": "1mbit"}
    with static_fabric("flow", (1, 1), link=link, queues=queues) as made:
        yield made


def flows_of(lab: StaticLab) -> list[Flow]:
    """Of host1, to the other rack."""
    return [flow for flow in some_flows(lab.fabric, 8 * FRAMES) if flow.src == "host1"][:FRAMES]


def set_mode(lab: StaticLab, name: str) -> None:
    """Switch rtsw1 to one of MODES."""
    mode, options = name.partition(" ")[0], HashOptions(**MODES[name])
    found = hashing_of(lab.fabric, lab.fabric.by_name["rtsw1"], mode, options)
    if mode == "exact-match":
        (prefix,) = found.steering.prefixes
        table = {(flow.sport, prefix): (UPLINKS[i % 2],) for i, flow in enumerate(flows_of(lab))}
        found = replace(found, steering=replace(found.steering, exact=table))
    hashing.change(lab.name, [(lab.handle("rtsw1"), found)], lab.fabric.policy.ip_version)


def uplinks(queues: LabQueues, what: str) -> int:
    """A sum over the classes of rtsw1's uplinks."""
    rows = [row(queues.ids["rtsw1", port], 0) for port in UPLINKS]
    return sum(int(queues.cells[what][at : at + 8].sum()) for at in rows)


def steered(lab: StaticLab) -> int:
    return lab.snapshot(LabPart.HASHING, ["rtsw1"]).statistics["rtsw1"]["steered"]


def unsent(wire: socket.socket) -> int:
    """Bytes of kernel memory that are charged to a socket, since packets of it are somewhere under way."""
    return int(struct.unpack("=i", fcntl.ioctl(wire, termios.TIOCOUTQ, bytes(4)))[0])


@pytest.mark.parametrize("mode", [mode if mode == "pinned" else deep(mode) for mode in MODES])
def test_packets_waiting_in_a_switch_are_not_charged_to_the_hosts_socket(lab: StaticLab, mode: str) -> None:
    set_mode(lab, mode)
    host = lab.fabric.by_name["host1"].ports[0]
    gateway = lab.fabric.by_name["rtsw1"].port(host.peer_port)
    wire = packet_socket(lab.handle("host1").netns, host.name, send=4 << 20)  # all of it at once, wherever it waits
    with LabQueues.pinned(lab.fabric) as queues, wire:
        entered, by_program = uplinks(queues, "in_packets"), steered(lab)
        for flow in flows_of(lab):
            wire.send(roce_frame(flow, 4000, host.mac, gateway.mac))
        until(lambda: uplinks(queues, "in_packets") - entered >= FRAMES)
        most = FRAMES // 2 * 4000  # far more waits when all has just come
        while unsent(wire) and uplinks(queues, "depth") > most:
            time.sleep(0.001)  # the last one is in the queue a moment before its original is freed
        assert (unsent(wire), uplinks(queues, "depth") > most) == (0, True)
        assert (steered(lab) - by_program) == (FRAMES if mode in STEERED else 0)
        until(lambda: not queues.cells["depth"].any())
        assert not queues.cells["drops"].any() and not queues.cells["strays"].any()


@pytest.mark.parametrize("mode", ["pinned", deep("spray")])
def test_a_steered_packet_is_whole_and_what_a_capture_saw_before_stays_as_it_was(mode: str) -> None:
    """The copy that goes on shares its bytes with the original, until each is written to: TTL, MAC addresses, CE."""
    count = 200
    keys: dict[str, Any] = {"routing": {"ecmp": mode, "hash": {"choice": "round-robin"}}} if mode == "spray" else {}
    queues = {"ecn": {"kmin": 0, "kmax": 0, "pmax": 1.0}, "weights": {"0": 1}}
    with static_fabric(mode, (1, 1), queues=queues, **keys) as lab:
        host = lab.fabric.by_name["host1"].ports[0]
        gateway = lab.fabric.by_name["rtsw1"].port(host.peer_port)
        with LabQueues.pinned(lab.fabric) as live:  # hosts do not mark, so that the capture sees ECT
            spec = lab.fabric.policy.queues
            unmarked = replace(spec, ecn=replace(spec.ecn, enabled=False))
            live.set_policies(policies_of(lab.fabric, own={host.name: unmarked for host in lab.fabric.hosts}))
        netns = lab.handle("rtsw1").netns
        with packet_socket(netns, gateway.name, ETH_P_ALL, seconds=0, receive=1 << 22) as tap:
            blasts = [
                Blast("host1", "host3", count, payload=4096),
                Blast("host1", "host4", count, payload=1, tos=wire.DSCP_DATA << 2, sport=49153),
            ]
            heard, plain = blast(lab, blasts)
            seen = [frame for frame, origin in waiting(tap) if origin[2] == socket.PACKET_HOST and len(frame) > 4000]
        assert (heard.packets, heard.bad, heard.marked) == (count, 0, count)
        assert (plain.packets, plain.bad, plain.marked) == (count, 0, 0)
        assert mode == "spray" or (heard.early, plain.early) == (0, 0)
        assert steered(lab) == 2 * count
        assert len(seen) == count
        macs = bytes.fromhex((gateway.mac + host.mac).replace(":", ""))
        for frame in seen:
            assert (frame[:12], frame[15], frame[22]) == (macs, wire.TOS_DATA, 64)
