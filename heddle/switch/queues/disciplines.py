"""Schedulers: how a port serves its classes. Each entry of DISCIPLINES has the tc lines of one scheduler.

In:  a port and the queues of its lab.
Out: lines for `tc -batch`, and the skb->priority by which the program `enqueue` selects each class's queue.
Common to all: the root is HTB 1: with class 1:1 at the port's rate. The leaf of class n is a qdisc with handle (n+1)0:
and a limit larger than any buffer, since `enqueue` does the dropping. A gate contains a FIFO of that limit.

`ets` is the kernel's own 802.1Qaz scheduler: control strict, the others by weight. HTB stays above it, only as the
shaper. No gate can be below it: if the band whose turn it is returns no packet, sch_ets returns none at all
(ets_qdisc_dequeue), so one paused class would stop all weighted classes. HTB goes on to the next class. So labs with
lossless classes use HTB.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.problems import MachineError, Problem
from heddle.fabric.policy import QueuePolicy
from heddle.fabric.wiring import Port
from heddle.kernel.netlink import attribute, attributes, refusal
from heddle.switch.queues.classes import burst_bytes, held_bps

ROOT: Final = "1:"
RATE_CLASS: Final = "1:1"
KICK: Final = "ff0"  # class and queue that refuse every packet: a frame sent there makes the port serve its queues
LEAF_LIMIT: Final = 1 << 30  # bytes; larger than any buffer (queuespec.py)
# An open gate: four times the rate of the fastest link, and room for the largest packet.
_OPEN: Final = "rate 40gbit burst 100000b"
_HTB_MAJOR: Final = 0x10000
_TCA_HTB_INIT: Final = 2
_ETS_MAJOR: Final = 2
_PRIORITIES: Final = 16  # TC_PRIO_MAX + 1
_TCA_ETS_NBANDS, _TCA_ETS_NSTRICT, _TCA_ETS_QUANTA_BAND = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Discipline:
    """A scheduler.

    gated: lossless classes have a gate (TBF) that PFC can close. lines: all of a port's qdiscs and classes.
    priorities: skb->priority of each of the eight classes; 0 for a class that is not in use. turn: quantum (bytes) and
    prio of a class of a port; 0 and 0 if its leaf is not an HTB class.
    """

    name: str
    gated: bool
    lines: Callable[[Port, QueuePolicy], list[str]]
    priorities: Callable[[QueuePolicy], tuple[int, ...]]
    turn: Callable[[Port, QueuePolicy, int], tuple[int, int]]


@cache
def ets_missing() -> str:
    """Empty when this kernel has sch_ets, else the reason."""
    return refusal("ets", attribute(_TCA_ETS_NBANDS, b"\2") + attribute(_TCA_ETS_NSTRICT, struct.pack("=B", 1)))


def load() -> None:
    """Have the kernel load HTB where that is a module: its parameters exist only afterwards (host/limits.py)."""
    refusal("htb", attribute(_TCA_HTB_INIT, struct.pack("=5I", 3, 10, 0, 0, 0)))  # struct tc_htb_glob, version 3


def leaf(number: int) -> str:
    """The minor number of a class's leaf, and the major number of its queue: `10` for class 0, `80` for class 7."""
    return f"{leaf_id(number):x}"


def leaf_id(number: int) -> int:
    """The same as `leaf`, as an integer."""
    return (number + 1) << 4


def number_of(leaf_number: int) -> int | None:
    """The class of a leaf number; None when no class has that leaf."""
    number, rest = divmod(leaf_number, 16)
    return number - 1 if rest == 0 and 1 <= number <= CLASSES else None


def _shaper_lines(port: Port, queues: QueuePolicy, default: str) -> list[str]:
    """The lines of HTB and of the class below it, at the port's rate, which all traffic shares. default: a leaf.

    Its burst is small, so that a port that was idle does not send for long above its rate.
    """
    qdisc = f"qdisc add dev {port.name} root handle {ROOT} htb default {default}"
    return [qdisc, rate_line(port, queues, port.rate_bps, "add")]


def rate_line(port: Port, queues: QueuePolicy, rate_bps: int, word: str = "change") -> str:
    """The line that sets the rate of a port. word: `add` for a port that has none."""
    rate, burst = held_bps(rate_bps), burst_bytes(port.mtu, queues.burst, rate_bps)
    shape = f"rate {rate}bit ceil {rate}bit burst {burst}b cburst {burst}b quantum {port.mtu + HEADER}"
    return f"class {word} dev {port.name} parent {ROOT} classid {RATE_CLASS} htb {shape}"


def _htb_lines(port: Port, queues: QueuePolicy) -> list[str]:
    """Strict priority for control, then deficit round robin, by HTB itself.

    A leaf has almost no rate of its own (8 bit/s, the minimum) and borrows all its bandwidth from 1:1. Among borrowers
    HTB serves the lowest prio first, and those of equal prio in turns of `quantum` bytes. A quantum is a multiple of
    the frame size, since a class with a smaller quantum sends a whole packet anyway.
    Its burst is what it sends at its own rate: a second, since tc 7.3 refuses what takes longer than 32 bits of psched
    ticks can say (274 s), and older ones cut such a number off. (HTB forgets a debt of more than 60 s.)
    """
    frame, name = port.mtu + HEADER, port.name
    burst = burst_bytes(port.mtu, queues.burst, port.rate_bps)
    own = f"htb rate 8bit burst 1b ceil {held_bps(port.rate_bps)}bit cburst {burst}b"
    lines = _shaper_lines(port, queues, leaf(queues.best_effort))
    for number in queues.numbers:
        turn = "quantum {} prio {}".format(*_htb_turn(port, queues, number))
        queue = f"tbf {_OPEN}" if number in queues.lossless else "bfifo"
        lines += [
            f"class add dev {name} parent {RATE_CLASS} classid {ROOT}{leaf(number)} {own} {turn}",
            f"qdisc add dev {name} parent {ROOT}{leaf(number)} handle {leaf(number)}: {queue} limit {LEAF_LIMIT}b",
        ]
    if queues.lossless:  # only these classes have gates, which need a kick after they open
        lines += [
            f"class add dev {name} parent {RATE_CLASS} classid {ROOT}{KICK} {own} quantum {frame} prio 7",
            f"qdisc add dev {name} parent {ROOT}{KICK} handle {KICK}: bfifo limit 1b",
        ]
    return lines


def _htb_turn(port: Port, queues: QueuePolicy, number: int) -> tuple[int, int]:
    frame = port.mtu + HEADER
    return (frame, 0) if number == queues.control else (queues.weight(number) * frame, 1)


def _htb_priorities(queues: QueuePolicy) -> tuple[int, ...]:
    """Leaf ids as priorities: HTB takes such a priority as the packet's class (htb_classify), without any filter."""
    used = queues.numbers
    return tuple(_HTB_MAJOR | leaf_id(number) if number in used else 0 for number in range(CLASSES))


def bands(queues: QueuePolicy) -> tuple[int, ...]:
    """Classes in the order of their bands of ETS: control, which is strict, then the others, which share the rest."""
    return (queues.control, *(number for number in queues.numbers if number != queues.control))


def is_ets_band(class_id: int) -> bool:
    """Whether a class id is a band of ETS."""
    return class_id >> 16 == _ETS_MAJOR


def read_ets_turn(options: bytes) -> tuple[int, int]:
    """Bytes per turn and rank of a band, from the options of a class that the kernel returned."""
    quantum = attributes(options, 0).get(_TCA_ETS_QUANTA_BAND)
    return (struct.unpack("=I", quantum)[0], 1) if quantum is not None else (0, 0)


def _ets_turn(port: Port, queues: QueuePolicy, number: int) -> tuple[int, int]:
    """Rank 0 for the strict band, which has no turns, and 1 for the others."""
    return (0, 0) if number == queues.control else (queues.weight(number) * (port.mtu + HEADER), 1)


def _ets_lines(port: Port, queues: QueuePolicy) -> list[str]:
    """HTB as the shaper, ETS below it, and a FIFO per band, with the same handles as below HTB.

    Packets that no program has classified are best effort.
    """
    order, name = bands(queues), port.name
    quanta = " ".join(str(_ets_turn(port, queues, number)[0]) for number in order[1:])
    others = " ".join([str(order.index(queues.best_effort))] * _PRIORITIES)
    ets = f"ets bands {len(order)} strict 1 quanta {quanta} priomap {others}"
    return [
        *_shaper_lines(port, queues, default="1"),
        f"qdisc add dev {name} parent {RATE_CLASS} handle {_ETS_MAJOR}: {ets}",
        *(f"qdisc add dev {name} parent {_ETS_MAJOR}:{band:x} handle {leaf(number)}: bfifo limit {LEAF_LIMIT}b"
          for band, number in enumerate(order, 1)),
    ]  # fmt: skip


def _ets_priorities(queues: QueuePolicy) -> tuple[int, ...]:
    """The ids of the bands' classes: 2:1 for the first."""
    order = bands(queues)
    return tuple(_ETS_MAJOR << 16 | order.index(each) + 1 if each in order else 0 for each in range(CLASSES))


DISCIPLINES: Final[Mapping[str, Discipline]] = {
    "htb": Discipline("htb", True, _htb_lines, _htb_priorities, _htb_turn),
    "ets": Discipline("ets", False, _ets_lines, _ets_priorities, _ets_turn),
}


def chosen(queues: QueuePolicy) -> Discipline:
    """The scheduler that a file selects; `auto` selects ETS if no class can be paused and this kernel has it.

    If selected by name, ETS may have lossless classes with PFC off: they have no gates, and PFC cannot be enabled
    later. MachineError when it is selected by name and this kernel does not have it.
    """
    if queues.scheduler == "htb" or (queues.scheduler == "auto" and queues.lossless):
        return DISCIPLINES["htb"]
    if not (why := ets_missing()):
        return DISCIPLINES["ets"]
    if queues.scheduler == "ets":
        hint = "use scheduler: htb, which serves the same classes by the same weights"
        raise MachineError(Problem("kernel", "queues.scheduler: ets", f"is not possible: {why}", hint))
    return DISCIPLINES["htb"]
