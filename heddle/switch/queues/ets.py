"""The kernel's own 802.1Qaz scheduler (sch_ets) behind a port: control strict, the others by weight.

In:  a port, the classes of its lab, and the limit of a class's queue (bytes).
Out: tc's lines, and the value of `skb->priority` that selects a class.
HTB stays above it, only as the shaper. No gate can be below it: if the band whose turn it is returns no packet,
sch_ets returns none at all (ets_qdisc_dequeue), so one paused class would stop all weighted classes. HTB goes on to
the next class. So labs with lossless classes use HTB.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

from heddle.base.ethernet import HEADER
from heddle.fabric.model import Port
from heddle.fabric.policy import QueuePolicy
from heddle.kernel.netlink import attribute, attributes
from heddle.kernel.tried import refusal
from heddle.switch.queues.classes import ClassPlan, burst_bytes, held_bps

_HANDLE: Final = 2
_PRIORITIES: Final = 16  # TC_PRIO_MAX + 1
_TCA_ETS_NBANDS, _TCA_ETS_NSTRICT, _TCA_ETS_QUANTA_BAND = 1, 2, 4


@cache
def missing() -> str:
    """Empty when this kernel has sch_ets, else the reason."""
    return refusal("ets", attribute(_TCA_ETS_NBANDS, b"\2") + attribute(_TCA_ETS_NSTRICT, struct.pack("=B", 1)))


def may_hold(queues: QueuePolicy) -> bool:
    """Whether ETS can serve these queues: only if no class can be paused, now or after `queues set`."""
    return not queues.lossless


def bands(plan: ClassPlan) -> tuple[int, ...]:
    """Classes in the order of their bands: control, which is strict, then the others, which share the rest."""
    return (plan.control, *(number for number in plan.numbers if number != plan.control))


def priority(plan: ClassPlan, number: int) -> int:
    """`skb->priority` of a class: the id of its band's class, 2:1 for the first. ValueError when it is not in use."""
    return _HANDLE << 16 | bands(plan).index(number) + 1


def turn(port: Port, plan: ClassPlan, number: int) -> tuple[int, int]:
    """Bytes per turn, and rank: 0 for the strict band, which has no turns, and 1 for the others."""
    return (0, 0) if number == plan.control else (plan.weight(number) * (port.mtu + HEADER), 1)


def is_band(class_id: int) -> bool:
    """Whether a class id is a band of this qdisc."""
    return class_id >> 16 == _HANDLE


def read_turn(options: bytes) -> tuple[int, int]:
    """The same as `turn`, parsed from the options of a class that the kernel returned."""
    quantum = attributes(options, 0).get(_TCA_ETS_QUANTA_BAND)
    return (struct.unpack("=I", quantum)[0], 1) if quantum is not None else (0, 0)


def lines(port: Port, plan: ClassPlan, limit: int) -> list[str]:
    """HTB at the port's rate, ETS below it, and a FIFO of `limit` bytes per band, with the same handles as below HTB.

    Packets that no program has classified are best effort.
    """
    frame, order = port.mtu + HEADER, bands(plan)
    burst = burst_bytes(port.mtu, plan.burst, port.rate_bps)
    held = held_bps(port.rate_bps)
    rate = f"rate {held}bit ceil {held}bit burst {burst}b cburst {burst}b quantum {frame}"
    quanta = " ".join(str(plan.weight(number) * frame) for number in order[1:])
    others = " ".join([str(order.index(plan.best_effort))] * _PRIORITIES)
    made = [
        f"qdisc add dev {port.name} root handle 1: htb default 1",
        f"class add dev {port.name} parent 1: classid 1:1 htb {rate}",
        f"qdisc add dev {port.name} parent 1:1 handle {_HANDLE}: "
        f"ets bands {len(order)} strict 1 quanta {quanta} priomap {others}",
    ]
    for band, number in enumerate(order, 1):
        parent, handle = f"{_HANDLE}:{band:x}", f"{number + 1 << 4:x}:"
        made.append(f"qdisc add dev {port.name} parent {parent} handle {handle} bfifo limit {limit}b")
    return made
