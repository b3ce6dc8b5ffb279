"""How a port serves its classes: the tc lines of each scheduler, one entry of DISCIPLINES each.

In:  a port and the ClassPlan of its lab.
Out: lines for `tc -batch`, and the skb->priority by which the program `enqueue` names each class's queue.
All have these in common: HTB 1: with class 1:1 at the port's rate stands at the root; the leaf of class n is a qdisc
with handle (n+1)0: and a limit beyond any buffer, since it is `enqueue` that drops. A gate has a FIFO of
that limit in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.problems import MachineError, Problem
from heddle.fabric.model import Port
from heddle.fabric.policy import QueuePolicy
from heddle.switch.queues import ets
from heddle.switch.queues.classes import BURST_PACKETS, ClassPlan, held_bps

ROOT: Final = "1:"
RATE_CLASS: Final = "1:1"
KICK: Final = "ff0"  # class and queue that refuse every packet: what is sent there makes the port look at its queues
LEAF_LIMIT: Final = 1 << 30  # bytes; no buffer is as large (queuespec.py)
# An open gate: four times the rate of the fastest link, and room for the largest packet.
_OPEN: Final = "rate 40gbit burst 100000b"
_HTB_MAJOR: Final = 0x10000


@dataclass(frozen=True, slots=True)
class Discipline:
    """A scheduler.

    gated: lossless classes have a gate (TBF) that PFC can close. lines: all of a port's qdiscs and classes.
    priorities: of each of the eight classes, 0 for one that is not in use. turn: what a class of a port is given:
    quantum (bytes) and prio; 0 and 0 where its leaves are none of HTB's.
    """

    name: str
    gated: bool
    lines: Callable[[Port, ClassPlan], list[str]]
    priorities: Callable[[ClassPlan], tuple[int, ...]]
    turn: Callable[[Port, ClassPlan, int], tuple[int, int]]


def leaf(number: int) -> str:
    """The minor number of a class's leaf, and the major one of its queue: `10` for class 0, `80` for class 7."""
    return f"{leaf_id(number):x}"


def leaf_id(number: int) -> int:
    """The same as a number."""
    return (number + 1) << 4


def number_of(leaf_number: int) -> int | None:
    """The class that a leaf's number stands for; None when it is none's."""
    number, rest = divmod(leaf_number, 16)
    return number - 1 if rest == 0 and 1 <= number <= CLASSES else None


def shaper_lines(port: Port) -> list[str]:
    """HTB at the root, and the class that everything must share: the port's rate.

    burst: two packets, so that a port idle for long does not send a train above its rate.
    """
    shape = f"{_rates(port)} quantum {port.mtu + HEADER}"
    rate = f"rate {held_bps(port.rate_bps)}bit"
    return [f"class add dev {port.name} parent {ROOT} classid {RATE_CLASS} htb {rate} {shape}"]


def _rates(port: Port) -> str:
    burst = BURST_PACKETS * port.mtu
    return f"ceil {held_bps(port.rate_bps)}bit burst {burst}b cburst {burst}b"


def _htb_lines(port: Port, plan: ClassPlan) -> list[str]:
    """Strict priority for control, then deficit round robin, by HTB itself.

    A leaf has next to no rate of its own (8 bit/s, the least there is) and borrows all it sends from 1:1. Among
    borrowers HTB serves the lowest prio first, and those of equal prio in turns of `quantum` bytes. Turns are of whole
    packets, since a class whose turn is shorter than its packet sends one all the same.
    """
    frame, name, own = port.mtu + HEADER, port.name, f"htb rate 8bit {_rates(port)}"
    lines = [f"qdisc add dev {name} root handle {ROOT} htb default {leaf(plan.best_effort)}", *shaper_lines(port)]
    for number, kind in zip(plan.numbers, plan.kinds, strict=True):
        turn = "quantum {} prio {}".format(*_htb_turn(port, plan, number))
        queue = f"tbf {_OPEN}" if kind == "lossless" else "bfifo"
        lines += [
            f"class add dev {name} parent {RATE_CLASS} classid {ROOT}{leaf(number)} {own} {turn}",
            f"qdisc add dev {name} parent {ROOT}{leaf(number)} handle {leaf(number)}: {queue} limit {LEAF_LIMIT}b",
        ]
    if plan.lossless:  # the only ones that can be left waiting
        lines += [
            f"class add dev {name} parent {RATE_CLASS} classid {ROOT}{KICK} {own} quantum {frame} prio 7",
            f"qdisc add dev {name} parent {ROOT}{KICK} handle {KICK}: bfifo limit 1b",
        ]
    return lines


def _htb_turn(port: Port, plan: ClassPlan, number: int) -> tuple[int, int]:
    frame = port.mtu + HEADER
    return (frame, 0) if number == plan.control else (plan.weight(number) * frame, 1)


def _htb_priorities(plan: ClassPlan) -> tuple[int, ...]:
    """HTB takes a priority that names one of its leaves as the packet's class (htb_classify), and asks no filter."""
    return tuple(_HTB_MAJOR | leaf_id(number) if number in plan.numbers else 0 for number in range(CLASSES))


def _ets_lines(port: Port, plan: ClassPlan) -> list[str]:
    return ets.lines(port, plan, LEAF_LIMIT)


def _ets_priorities(plan: ClassPlan) -> tuple[int, ...]:
    return tuple(ets.priority(plan, number) if number in plan.numbers else 0 for number in range(CLASSES))


DISCIPLINES: Final[Mapping[str, Discipline]] = {
    "htb": Discipline("htb", True, _htb_lines, _htb_priorities, _htb_turn),
    "ets": Discipline("ets", False, _ets_lines, _ets_priorities, ets.turn),
}


def chosen(queues: QueuePolicy) -> Discipline:
    """The scheduler that a file asks for; `auto` takes ETS where no class can be paused and this kernel has it.

    By name, ETS may have lossless classes with PFC off: they have no gates, and PFC cannot be switched on later.
    MachineError when it is asked for by name and this kernel lacks it.
    """
    if queues.scheduler == "htb" or (queues.scheduler == "auto" and not ets.may_hold(queues)):
        return DISCIPLINES["htb"]
    if not (why := ets.missing()):
        return DISCIPLINES["ets"]
    if queues.scheduler == "ets":
        hint = "take scheduler: htb, which serves the same classes by the same weights"
        raise MachineError(Problem("kernel", "queues.scheduler: ets", f"is not possible: {why}", hint))
    return DISCIPLINES["htb"]
