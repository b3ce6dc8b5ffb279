"""What exact queues cost a fabric: packets a second from host to host, with the programs of the queues and without.

Four queues on the way (a host's NIC, RTSW, CTSW, RTSW), each with the qdiscs, `hash` and `count` that a lab has, on
links too fast to matter; small frames, so that it is packets that cost. `enqueue` and `dequeue` are taken off all
ports and put back, in turns of one run, and the best slices of both are compared: what else this machine does falls on
others. Gates are taken out: without the programs all packets are of the default class, which has none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.netns.static_fabric import StaticLab, static_fabric
from topologies.events import Observer
from topologies.namespace import inside
from topologies.problems import CheckError, Problem
from topologies.process import run
from topologies.switch.hashing import pin_dir
from topologies.switch.libbpf import ensure_bpffs
from topologies.switch.portids import classid, port_ids

from . import Figure, at_most
from .hashing import seconds_a_packet, small_frames

_FAST: Final = {"host": "10gbit", "fabric": "10gbit"}
_ROUNDS: Final = 8  # of both
_SLICES: Final = 30
_CLASSES: Final = {"best effort": 0, "lossless": 26 << 2}  # and their type of service
_QUEUES: Final = 4  # on the way
LIMIT: Final = 0.15  # of the rate


def figures(observer: Observer) -> Iterator[Figure]:
    """The share of the rate that is lost, and what one queue costs a packet."""
    for name, (without, counted) in seconds_a_packet_of(observer).items():
        yield Figure(f"host to host, {name}: a packet", without * 1e9, "ns")
        yield Figure("exact queues: a packet and queue", (counted - without) / _QUEUES * 1e9, "ns")
        yield at_most("exact queues: forwarding rate lost", lost(without, counted), "share", LIMIT, "no programs")


def lost(without: float, counted: float) -> float:
    """The share of the rate that the programs take, of the seconds a packet without them and with them."""
    return 1 - without / counted


def seconds_a_packet_of(
    observer: Observer, rounds: int = _ROUNDS, enough: Callable[[Mapping[str, tuple[float, float]]], bool] | None = None
) -> dict[str, tuple[float, float]]:
    """Class -> the best seconds a packet without the programs and with them, of so many rounds of both.

    enough: says after each round whether that will do; more rounds make what else the machine does matter less.
    """
    from topologies.switch.cells import LabQueues

    ensure_bpffs()
    best = {(name, on): float("inf") for name in _CLASSES for on in (True, False)}
    with static_fabric("flow", hosts_per_rack=2, link=_FAST) as lab, LabQueues.pinned(lab.fabric) as queues:
        _open_for_good(lab)
        frames = {name: small_frames(lab, tos) for name, tos in _CLASSES.items()}
        with inside(lab.handle("host1").netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
            wire.bind(("eth1", 0))
            for turn in range(2 * rounds):
                observer.advance("bench queues", turn + 1)
                counting = turn % 2 == 0
                if turn:
                    _attach(lab, counting)
                before = int(queues.cells["in_packets"].sum())
                for name, some in frames.items():
                    found = (seconds_a_packet(wire, some) for _ in range(_SLICES))
                    best[name, counting] = min(best[name, counting], *found)
                time.sleep(0.01)  # for what is still under way
                if (int(queues.cells["in_packets"].sum()) - before > _SLICES) != counting:
                    raise CheckError(Problem("bench", "the programs of the queues", "do not count as they should here"))
                result = {name: (best[name, False], best[name, True]) for name in _CLASSES}
                if enough is not None and not counting and enough(result):
                    break
    return result


def _open_for_good(lab: StaticLab) -> None:
    """Plain queues in place of the gates."""
    for node in lab.fabric.nodes:
        lines = [f"qdisc replace dev {port.name} parent 1:40 handle 41: bfifo limit 4000000b" for port in node.ports]
        run(["nsenter", f"--net={lab.handle(node.name).netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")


def _attach(lab: StaticLab, on: bool) -> None:
    """Put the programs on all ports of the lab, or take them off."""
    ids, pins = port_ids(lab.fabric), pin_dir(lab.name, "_queues")
    for node in lab.fabric.nodes:
        lines = []
        for port in node.ports:
            for hook, pref, program in (("egress", 20, "enqueue"), ("ingress", 5, "dequeue")):
                where = f"dev {port.name} {hook} pref {pref}"
                number = classid(ids[node.name, port.name])
                what = f"handle 1 bpf direct-action object-pinned {pins / program} classid {number}"
                lines.append(f"filter add {where} {what}" if on else f"filter del {where}")
        run(["nsenter", f"--net={lab.handle(node.name).netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")
