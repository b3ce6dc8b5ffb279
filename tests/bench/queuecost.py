"""What exact queues cost a fabric: packets a second from host to host, with the programs of the queues and without.

Four queues on the way (a host's NIC, RTSW, CTSW, RTSW), each with the qdiscs, `hash` and `count` that a lab has, on
links too fast to matter; small frames, so that it is packets that cost. `enqueue` and `dequeue` are taken off all
ports and put back, in turns of one run, and the medians of slices are compared.
Without the programs all packets are of HTB's default class, so that one is the class under test: both ways
go through the same queue, gate and all.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from heddle.base.events import Observer
from heddle.base.problems import CheckError, Problem
from heddle.base.process import run
from heddle.kernel.libbpf import ensure_bpffs
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.classes import classid, port_ids
from heddle.switch.queues.portqueues import Setup
from tests.netns.static_fabric import StaticLab, static_fabric

from . import Figure, at_most
from .hashing import flood, small_frames

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

_FAST: Final = {"host": "10gbit", "fabric": "10gbit"}
_ROUNDS: Final = 8  # of both
_SLICES: Final = 30
_CLASSES: Final = {"best effort": (0, 0), "lossless": (3, 26 << 2)}  # number, and type of service
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


def seconds_a_packet_of(observer: Observer) -> dict[str, tuple[float, float]]:
    """Class -> seconds a packet without the programs and with them: medians of slices, in turns."""
    from heddle.switch.queues.cells import LabQueues

    ensure_bpffs()
    found: dict[str, tuple[float, float]] = {}
    with static_fabric("flow", hosts_per_rack=2, link=_FAST) as lab, LabQueues.pinned(lab.fabric) as queues:
        for name, (number, tos) in _CLASSES.items():
            _make_default(lab, number)
            found[name] = _usual_of(lab, queues, small_frames(lab, tos))
            observer.advance("bench queues", len(found))
    return found


def _usual_of(lab: StaticLab, queues: LabQueues, frames: ctypes.Array[Any]) -> tuple[float, float]:
    """The median slice of each, in turns."""
    slices: dict[bool, list[float]] = {False: [], True: []}
    with flood(lab) as sender:
        for _ in range(_ROUNDS):
            for counting in (True, False):
                _attach(lab, counting)
                before = int(queues.cells["in_packets"].sum())
                slices[counting] += [sender.seconds_a_packet(frames) for _ in range(_SLICES)]
                time.sleep(0.01)  # for what is still under way
                if (int(queues.cells["in_packets"].sum()) - before > _SLICES) != counting:
                    raise CheckError(Problem("bench", "the programs of the queues", "do not count as they should here"))
    return median(slices[False]), median(slices[True])


def _make_default(lab: StaticLab, number: int) -> None:
    """Recreate the queues of all ports, with this class as HTB's default for unclassified packets."""
    setup = Setup.of(lab.fabric)
    plan = replace(setup.queues, best_effort=number)
    for node in lab.fabric.nodes:
        lines: list[str] = []
        for port in node.ports:
            lines += [f"qdisc del dev {port.name} root", *setup.discipline.lines(port, plan)]
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
                lines.append(f"filter replace {where} {what}" if on else f"filter del {where}")
        run(["nsenter", f"--net={lab.handle(node.name).netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n")
