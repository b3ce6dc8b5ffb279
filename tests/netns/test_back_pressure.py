"""A host is held back by its own port alone, in every hashing mode: steered packets are not charged to its socket."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from heddle.fabric.policy import HashOptions
from heddle.kernel.namespace import inside
from heddle.lab import rehash
from heddle.lab.snapshot import LabPart
from heddle.switch.hashing.hashing import hashing_of
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of
from heddle.switch.queues.portids import row
from heddle.traffic.flow import Flow
from heddle.wire import layout as wire
from tests.machine import until
from tests.marks import deep
from tests.netns.blaster import Blast, blast
from tests.netns.static_fabric import StaticLab, roce_frame, some_flows, static_fabric

pytestmark = pytest.mark.root

FRAMES: Final = 60
UPLINKS: Final = ("eth1", "eth2")
MODES: Final[dict[str, dict[str, Any]]] = {
    "flow": {}, "e-ecmp resilient": {"resilient": True}, "pinned": {}, "exact-match": {}, "adaptive": {},
    "flowlet by load": {"first": "load"}, "spray in turn": {"choice": "round-robin"},
}  # fmt: skip
STEERED: Final = {name for name in MODES if name != "flow"}
_ETH_P_ALL: Final = 3
_SO_SNDBUFFORCE: Final = 32


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
        table = {(flow.sport, prefix): UPLINKS[i % 2] for i, flow in enumerate(flows_of(lab))}
        found = replace(found, steering=replace(found.steering, exact=table))
    rehash.change(lab.name, [(lab.handle("rtsw1"), found)], lab.fabric.policy.ip_version)


def uplinks(queues: LabQueues, what: str) -> int:
    """A sum over the classes of rtsw1's uplinks."""
    rows = [row(queues.ids["rtsw1", port], 0) for port in UPLINKS]
    return sum(int(queues.cells[what][at : at + 8].sum()) for at in rows)


def steered(lab: StaticLab) -> int:
    return lab.snapshot(LabPart.HASHING, ["rtsw1"]).statistics["rtsw1"]["steered"]


@contextmanager
def packet_socket(lab: StaticLab, node: str, port: str, protocol: int = 0) -> Iterator[socket.socket]:
    with inside(lab.handle(node).netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as made:
        made.bind((port, protocol))
        yield made


def unsent(wire: socket.socket) -> int:
    """Bytes of kernel memory that are charged to a socket, since packets of it are somewhere under way."""
    return int(struct.unpack("=i", fcntl.ioctl(wire, termios.TIOCOUTQ, bytes(4)))[0])


@pytest.mark.parametrize("mode", [mode if mode == "pinned" else deep(mode) for mode in MODES])
def test_packets_waiting_in_a_switch_are_not_charged_to_the_hosts_socket(lab: StaticLab, mode: str) -> None:
    set_mode(lab, mode)
    host = lab.fabric.by_name["host1"].ports[0]
    gateway = lab.fabric.by_name["rtsw1"].port(host.peer_port)
    with LabQueues.pinned(lab.fabric) as queues, packet_socket(lab, "host1", host.name) as wire:
        wire.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 << 20)  # all of it at once, wherever it waits
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
        with packet_socket(lab, "rtsw1", gateway.name, _ETH_P_ALL) as tap:
            tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            heard, plain = blast(
                lab,
                [
                    Blast("host1", "host3", count, payload=4096),
                    Blast("host1", "host4", count, payload=1, tos=wire.DSCP_DATA << 2, sport=49153),
                ],
            )
            seen = []
            tap.setblocking(False)
            while True:
                try:
                    frame, origin = tap.recvfrom(65536)
                except BlockingIOError:
                    break
                if origin[2] == socket.PACKET_HOST and len(frame) > 4000:
                    seen.append(frame)
        assert (heard.packets, heard.bad, heard.marked) == (count, 0, count)
        assert (plain.packets, plain.bad, plain.marked) == (count, 0, 0)
        assert mode == "spray" or (heard.early, plain.early) == (0, 0)
        assert steered(lab) == 2 * count
        assert len(seen) == count
        macs = bytes.fromhex((gateway.mac + host.mac).replace(":", ""))
        for frame in seen:
            assert (frame[:12], frame[15], frame[22]) == (macs, wire.TOS_DATA, 64)
