"""The queues of every port: a shaper at its rate, a queue for each class, and the programs around them.

In:  ports with their rates (bit/s of frame bytes, from Ethernet header to ICRC), the classes and a discipline.
Out: tc batch lines, a few batches per node; rates, queues and drops, read back from the kernel and the programs.
Switches and hosts are alike: both ends of a link are shaped, so neither can send faster than the link rate.

DISCIPLINES are the schedulers, by which a port serves its classes. Each has its tc lines, and the skb->priority by
which the program `enqueue` selects each class's queue. Common to all: the root is HTB 1: with class 1:1 at the port's
rate. The leaf of class n is a qdisc with handle (n+1)0: and a limit larger than any buffer, since `enqueue` does the
dropping. A gate contains a FIFO of that limit.

`ets` is the kernel's own 802.1Qaz scheduler: control strict, the others by weight. HTB stays above it, only as the
shaper. No gate can be below it: if the band whose turn it is returns no packet, sch_ets returns none at all
(ets_qdisc_dequeue), so one paused class would stop all weighted classes. HTB goes on to the next class. So labs with
lossless classes use HTB.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

from heddle.base.ethernet import CLASSES, HEADER
from heddle.base.problems import MachineError, Problem
from heddle.base.process import Journal, run
from heddle.base.units import format_rate
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Node, Port
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.fib import read_names
from heddle.kernel.libbpf import Program
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues import red
from heddle.switch.queues.classes import (
    OWNER,
    PortRef,
    base_of,
    burst_bytes,
    classid,
    held_bps,
    port_at,
    port_ids,
)
from heddle.switch.queues.tcmessages import (
    BLOCKMSG,
    SHARED_BLOCK,
    TCA_BPF_CLASSID,
    TCA_BPF_NAME,
    TCA_EGRESS_BLOCK,
    TCA_INGRESS_BLOCK,
    message,
)

ROOT: Final = "1:"
RATE_CLASS: Final = "1:1"
LEAF_LIMIT: Final = 1 << 30  # bytes; larger than any buffer (queuepolicy.py)
# An open gate: four times the rate of the fastest link, and room for the largest packet.
_OPEN: Final = "rate 40gbit burst 100000b"
_ROOT_ID: Final = 0x0001_0000  # 1:0
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
    return nl.refusal(
        "ets", nl.attribute(_TCA_ETS_NBANDS, b"\2") + nl.attribute(_TCA_ETS_NSTRICT, struct.pack("=B", 1))
    )


def load_htb() -> None:
    """Have the kernel load HTB where that is a module: its parameters exist only afterwards (host/limits.py)."""
    nl.refusal("htb", nl.attribute(_TCA_HTB_INIT, struct.pack("=5I", 3, 10, 0, 0, 0)))  # struct tc_htb_glob, version 3


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
    """Strict priority for control, then for trimmed packets, then deficit round robin, by HTB itself.

    A leaf has almost no rate of its own (8 bit/s, the minimum) and borrows all its bandwidth from 1:1. Among borrowers
    HTB serves the lowest prio first, and those of equal prio in turns of `quantum` bytes. A quantum is a multiple of
    the frame size, since a class with a smaller quantum sends a whole packet anyway.
    Its burst is what it sends at its own rate: a second, since tc 7.3 refuses what takes longer than 32 bits of psched
    ticks can say (274 s), and older ones cut such a number off. (HTB forgets a debt of more than 60 s.)
    """
    name = port.name
    burst = burst_bytes(port.mtu, queues.burst, port.rate_bps)
    own = f"htb rate 8bit burst 1b ceil {held_bps(port.rate_bps)}bit cburst {burst}b"
    # A gate that opens does not wake its port: a kick does, a frame to 1:0, whose queue takes none (gates.py).
    kicks = " direct_qlen 0" if queues.lossless else ""
    lines = _shaper_lines(port, queues, f"{leaf(queues.best_effort)}{kicks}")
    for number in queues.numbers:
        turn = "quantum {} prio {}".format(*_htb_turn(port, queues, number))
        queue = f"tbf {_OPEN}" if number in queues.lossless else "bfifo"
        lines += [
            f"class add dev {name} parent {RATE_CLASS} classid {ROOT}{leaf(number)} {own} {turn}",
            f"qdisc add dev {name} parent {ROOT}{leaf(number)} handle {leaf(number)}: {queue} limit {LEAF_LIMIT}b",
        ]
    return lines


def _htb_turn(port: Port, queues: QueuePolicy, number: int) -> tuple[int, int]:
    frame = port.mtu + HEADER
    if number in (queues.control, *queues.trim_queue):
        return frame, int(number != queues.control)
    return queues.weight(number) * frame, 1 + len(queues.trim_queue)


def _htb_priorities(queues: QueuePolicy) -> tuple[int, ...]:
    """Leaf ids as priorities: HTB takes such a priority as the packet's class (htb_classify), without any filter."""
    used = queues.numbers
    return tuple(_ROOT_ID | leaf_id(number) if number in used else 0 for number in range(CLASSES))


def bands(queues: QueuePolicy) -> tuple[int, ...]:
    """Classes in the order of their bands of ETS: the strict ones, then the others, which share the rest."""
    strict = (queues.control, *queues.trim_queue)
    return (*strict, *(number for number in queues.numbers if number not in strict))


def is_ets_band(class_id: int) -> bool:
    """Whether a class id is a band of ETS."""
    return class_id >> 16 == _ETS_MAJOR


@cache
def read_ets_turn(options: bytes) -> tuple[int, int]:
    """Bytes per turn and rank of a band, from the options of a class that the kernel returned."""
    quantum = nl.attributes(options, 0).get(_TCA_ETS_QUANTA_BAND)
    return (struct.unpack("=I", quantum)[0], 1) if quantum is not None else (0, 0)


def _ets_turn(port: Port, queues: QueuePolicy, number: int) -> tuple[int, int]:
    """Rank 0 for strict bands, which have no turns, and 1 for the others."""
    strict = number in (queues.control, *queues.trim_queue)
    return (0, 0) if strict else (queues.weight(number) * (port.mtu + HEADER), 1)


def _ets_lines(port: Port, queues: QueuePolicy) -> list[str]:
    """HTB as the shaper, ETS below it, and a FIFO per band, with the same handles as below HTB.

    Packets that no program has classified are best effort.
    """
    order, name, strict = bands(queues), port.name, 1 + len(queues.trim_queue)
    quanta = " ".join(str(_ets_turn(port, queues, number)[0]) for number in order[strict:])
    others = " ".join([str(order.index(queues.best_effort))] * _PRIORITIES)
    ets = f"ets bands {len(order)} strict {strict} quanta {quanta} priomap {others}"
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


_RATE_CLASS_ID: Final = 0x00010001
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
_ALIKE: Final = 1024  # options of qdiscs that are kept as read: those of most ports are the same bytes
_TICK_S: Final = 64e-9  # PSCHED_TICKS2NS: a shift of 6


@dataclass(frozen=True, slots=True)
class Leaf:
    """A class's queue, as read from the kernel: its qdisc, and its quantum (bytes) and rank (0: first) in HTB."""

    qdisc: str
    limit_bytes: int
    quantum: int = 0
    prio: int = 0

    def text(self) -> str:
        """The queue in tc's words."""
        return f"{self.qdisc} limit {self.limit_bytes}b, quantum {self.quantum} prio {self.prio}"


@dataclass(frozen=True, slots=True)
class PortQueue:
    """A port's shaper and its queues, by class, as read from the kernel. burst in bytes."""

    port: str
    rate_bps: int
    ceil_bps: int
    burst: int
    leaves: Mapping[int, Leaf]


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings that all ports of a lab share, and the id of each port. lab: its name.

    curves: network -> class -> its curve, of networks whose packets the kernel's RED marks; empty if the program marks.
    """

    lab: str
    queues: QueuePolicy
    discipline: Discipline
    ids: Mapping[PortRef, int]
    curves: Mapping[str, Mapping[int, red.Curve]]

    @property
    def gated(self) -> bool:
        """Whether there are gates, which the PFC agent closes and opens."""
        return self.discipline.gated and bool(self.queues.lossless)

    @classmethod
    def of(cls, fabric: Fabric) -> Setup:
        """The setup that the fabric file defines. MachineError when this kernel does not support a selected option."""
        every = {network: fabric.policy.of(network).queues for network in fabric.networks}
        curves = {network: red.curves_of(each) for network, each in every.items() if each.ecn.marker == "red"}
        if curves:
            red.require()
        queues = fabric.policy.queues
        return cls(fabric.name, queues, chosen(queues), port_ids(fabric), curves)

    def faults(self, port: Port, found: PortQueue | None) -> list[str]:
        """Differences between a port's shaper and queues, as read, and the configured ones; the end of a sentence each.

        found: None where the port has no shaper.
        """
        if found is None:
            return ["has no shaper"]
        held = held_bps(port.rate_bps)
        off = next((rate for rate in (found.rate_bps, found.ceil_bps) if rate != held), None)
        if off is not None:
            return [f"is shaped to {format_rate(off)}, not {rate_text(port.rate_bps)}"]
        if found.burst > (wanted_burst := burst_bytes(port.mtu, self.queues.burst, port.rate_bps)) + 1:
            return [f"may burst {found.burst} bytes, not {wanted_burst}"]
        differences: list[str] = []
        for number in self.queues.numbers:
            gate = self.discipline.gated and number in self.queues.lossless
            wanted = Leaf("tbf" if gate else "bfifo", LEAF_LIMIT, *self.discipline.turn(port, self.queues, number))
            leaf = found.leaves.get(number)
            if leaf is None:
                differences.append(f"has no queue for class {number}")
            elif leaf != wanted:
                differences.append(f"has {leaf.text()} for class {number}, not {wanted.text()}")
        return differences


def rate_text(rate_bps: int) -> str:
    """A link's rate, and in brackets what its shaper can hold of it, where that differs."""
    held = held_bps(rate_bps)
    if held == rate_bps:
        return format_rate(rate_bps)
    return f"{format_rate(rate_bps)} (the shaper holds {format_rate(held)}: whole bytes a second)"


def clear(netns: Path, ports: Iterable[Port]) -> None:
    """Remove the queues and programs of ports, whichever are there; what waits in them is lost."""
    lines = [f"qdisc del dev {port.name} {word}" for port in ports for word in ("root", "clsact")]
    run(["nsenter", f"--net={netns}", "tc", "-force", "-batch", "-"], stdin="\n".join(lines) + "\n", check=False)


def apply(
    netns: Path,
    node: Node,
    setup: Setup,
    journal: Journal,
    ports: Sequence[Port] | None = None,
) -> None:
    """Create the queues and attach the programs of ports of a node, all when None.

    Every HTB class and every clsact adds blocks of filters to one list of the kernel, which each new block searches
    (indir_dev_add in net/core/flow_offload.c): they are what a port costs more in a large lab. So ports share blocks.
    MachineError with the line that the kernel refuses, and its reason.
    """
    some = node.ports if ports is None else ports
    with nl.RouteSocket(netns) as netlink, ExitStack() as stack:
        indexes = {name: index for index, name in read_names(netlink).items()}
        if lost := [port.name for port in some if port.name not in indexes]:
            raise MachineError(
                Problem(netns.name, lost[0], "is missing: it was removed", "run ./inv down, then up again")
            )
        lines = [line for port in some for line in setup.discipline.lines(port, setup.queues)]
        lines += _program_lines(node, setup, some, indexes)
        journal.note(["nsenter", f"--net={netns}", "tc", "-batch", "-"], "\n".join(lines) + "\n")

        def refused(number: int, error: nl.NetlinkError) -> None:
            raise MachineError(Problem(netns.name, f"tc {lines[number]}", f"was refused: {error.strerror}"))

        @cache
        def opened(pin: Path) -> int:
            return stack.enter_context(Program.pinned(pin)).fd

        netlink.change_all([message(line, indexes, opened) for line in lines], refused)
    if setup.curves and node.role is Role.SWITCH:
        red.install(netns, {(port.name, n): c for port in some for n, c in setup.curves.get(port.network, {}).items()})


def _program_lines(node: Node, setup: Setup, ports: Sequence[Port], indexes: Mapping[str, int]) -> list[str]:
    """Ports whose ids and interface indexes differ by the same share their filters: mostly all ports of a node."""
    bases = {port.name: base_of(setup.ids[port.node, port.name], indexes[port.name]) for port in ports}
    lines = [
        f"qdisc add dev {name} ingress_block {_block('ingress', base)} egress_block {_block('egress', base)} clsact"
        for name, base in bases.items()
    ]
    for base in dict.fromkeys(bases.values()):
        for each in programs_of(node):
            own = f" classid {classid(base)}" if each.numbered else ""
            start = f"filter replace block {_block(each.hook, base)} pref {each.pref} handle 1 bpf direct-action"
            lines.append(f"{start} object-pinned {each.pin(setup.lab)}{own}")
    return lines


def _block(hook: str, base: int) -> int:
    """The number of a block, in its namespace."""
    return base << 1 | (hook == "egress")


def read_shapers(
    netlink: nl.RouteSocket, rows: Iterable[nl.Qdisc], names: Mapping[int, str], ports: Iterable[str]
) -> dict[str, PortQueue]:
    """Port -> its shaper and queues, for ports that have a shaper; by netlink, since tc has no JSON for classes.

    rows: all qdiscs of the namespace. names: ifindex -> interface name.
    """
    found: dict[str, PortQueue] = {}
    indexes = {name: index for index, name in names.items()}
    queues: dict[int, dict[int, Leaf]] = {}
    for each in rows:
        number = number_of(each.handle >> 16)
        if number is not None:
            queues.setdefault(each.ifindex, {})[number] = _leaf(each.kind, each.attrs.get(uapi.TCA_OPTIONS, b""))
    for port in ports:
        ifindex = indexes.get(port, 0)
        own = queues.get(ifindex, {})
        shaper, leaves = None, list[tuple[int, Leaf]]()
        for body in netlink.dump(nl.RTM_GETTCLASS, uapi.TCMSG.pack(0, ifindex, 0, 0, 0)) if own else ():
            _, _, handle, _, queue = uapi.TCMSG.unpack_from(body)
            options = nl.attributes(body, uapi.TCMSG.size).get(uapi.TCA_OPTIONS, b"")
            # A band of ETS is identified by its queue, or by the RED over that queue.
            number = number_of(queue >> 16 & ~red.BESIDE if is_ets_band(handle) else handle & 0xFFFF)
            if handle == _RATE_CLASS_ID:
                shaper = options
            elif number in own and (handle & 0xFFFF0000 == _ROOT_ID or is_ets_band(handle)):
                turn = read_ets_turn(options) if is_ets_band(handle) else _read_htb_turn(options)
                leaves.append((number, _turned(own[number].qdisc, own[number].limit_bytes, *turn)))
        if shaper is not None:
            found[port] = PortQueue(port, *_shaper(shaper), _leaves((*own.items(), *leaves)))
    return found


# One object for all ports that are alike: they are compared, and passed on between processes.
_turned = lru_cache(_ALIKE)(Leaf)
_leaves = lru_cache(_ALIKE)(dict[int, Leaf])


def foreign_roots(rows: Iterable[nl.Qdisc], names: Mapping[int, str], ports: Iterable[str]) -> dict[str, str]:
    """Port -> the root qdisc that replaces our shaper: `netem`, or `nothing`; empty if the port is gone.

    rows, names: as for read_shapers.
    """
    roots: dict[str, str] = {}
    for each in rows:
        if each.parent == uapi.TC_H_ROOT:
            found = "ours" if (each.kind, each.handle) == ("htb", _ROOT_ID) else each.kind
            roots[names.get(each.ifindex, "")] = "nothing" if found == "noqueue" else found
    return {port: roots.get(port, "") for port in ports if roots.get(port) != "ours"}


def refused_by_qdiscs(netlink: nl.RouteSocket, names: Mapping[int, str]) -> dict[str, dict[int, int]]:
    """Port -> class -> packets that its qdiscs dropped. The drops of the programs are in the cells."""
    found: dict[str, dict[int, int]] = {}
    for each in nl.qdiscs(netlink):
        number = number_of(each.handle >> 16)
        statistics = nl.attributes(each.attrs.get(uapi.TCA_STATS2, b""), 0)
        if number is not None and uapi.TCA_STATS_QUEUE in statistics:
            # struct gnet_stats_queue: qlen, backlog, drops, ...
            (drops,) = struct.unpack_from("=8xI", statistics[uapi.TCA_STATS_QUEUE])
            classes = found.setdefault(names.get(each.ifindex, f"if{each.ifindex}"), {})
            classes[number] = classes.get(number, 0) + drops
    return found


@lru_cache(_ALIKE)
def _leaf(kind: str, options: bytes) -> Leaf:
    if kind == "bfifo":
        return Leaf(kind, struct.unpack_from("=I", options)[0])
    if kind == "tbf":  # struct tc_tbf_qopt: two struct tc_ratespec, limit, ...
        return Leaf(kind, struct.unpack_from("=24xI", nl.attributes(options, 0)[uapi.TCA_TBF_PARMS])[0])
    return Leaf(kind, 0)


@lru_cache(_ALIKE)
def _read_htb_turn(options: bytes) -> tuple[int, int]:
    """Quantum and prio of struct tc_htb_opt: two struct tc_ratespec, buffer, cbuffer, quantum, level, prio."""
    quantum, _, prio = struct.unpack_from("=32xIII", nl.attributes(options, 0)[_TCA_HTB_PARMS])
    return quantum, prio


@lru_cache(_ALIKE)
def _shaper(options: bytes) -> tuple[int, int, int]:
    """Rate, ceil and burst of struct tc_htb_opt: two struct tc_ratespec, then the burst as its time at the rate."""
    attrs = nl.attributes(options, 0)
    rate, ceil, burst_ticks = struct.unpack_from("=8xI8xII", attrs[_TCA_HTB_PARMS])
    # A rate of 2^32 bytes/s or more is in a separate attribute.
    rate = struct.unpack("=Q", attrs[_TCA_HTB_RATE64])[0] if _TCA_HTB_RATE64 in attrs else rate
    ceil = struct.unpack("=Q", attrs[_TCA_HTB_CEIL64])[0] if _TCA_HTB_CEIL64 in attrs else ceil
    return rate * 8, ceil * 8, round(burst_ticks * _TICK_S * rate)


HOSTS: Final = "_hosts"  # the owner of what all hosts share; not a valid node name
_HOOKS: Final = {"ingress": TCA_INGRESS_BLOCK, "egress": TCA_EGRESS_BLOCK}
_SLOW: Final = 10**6  # bytes/s: the rate of an open gate is far above this, that of a closed one far below (gates.py)


@dataclass(frozen=True, slots=True)
class PortProgram:
    """A BPF program for a clsact hook (`ingress`, `egress`); lower prefs run first. owner: of its pin.

    numbered: the program finds its port's id by the filter's classid.
    """

    hook: str
    pref: int
    owner: str
    name: str
    numbered: bool = False

    def pin(self, lab: str) -> Path:
        """Where it is pinned."""
        return pin_dir(lab, self.owner) / self.name


def programs_of(node: Node) -> tuple[PortProgram, ...]:
    """The programs of a node's ports, in the order in which they run, ingress first.

    `count` runs before `enqueue`, to count all packets that are sent, dropped or not.
    """
    return _programs("" if node.role is Role.HOST else node.name)


@cache
def _programs(switch: str) -> tuple[PortProgram, ...]:
    """switch: its name; empty for a host."""
    own = [PortProgram("ingress", 10, HOSTS, "nic", numbered=True)]
    if switch:
        own = [PortProgram("ingress", 10, switch, "hash"), PortProgram("egress", 10, OWNER, "count", numbered=True)]
    dequeue = PortProgram("ingress", 5, OWNER, "dequeue", numbered=True)
    return (dequeue, *own, PortProgram("egress", 20, OWNER, "enqueue", numbered=True))


@dataclass(frozen=True, slots=True)
class Attached:
    """A BPF program at a clsact hook. number: the port id configured for it; 0: none."""

    hook: str
    program: str
    number: int

    def text(self) -> str:
        """`ingress:dequeue as port 7`."""
        return f"{self.hook}:{self.program}" + (f" as port {self.number}" if self.number else "")


_attached = lru_cache(_ALIKE)(Attached)


def expected(node: Node, number: int) -> tuple[Attached, ...]:
    """The programs that a port of a node has, in their order. number: the port's."""
    return tuple(Attached(each.hook, each.name, number if each.numbered else 0) for each in programs_of(node))


def read_attached(
    netlink: nl.RouteSocket, rows: Iterable[nl.Qdisc], names: Mapping[int, str], ports: Iterable[str]
) -> dict[str, tuple[Attached, ...]]:
    """Port -> its programs in the order in which they run, ingress first; an empty tuple if it has no programs.

    rows, names: as for read_shapers.
    """
    wanted, blocks = set(ports), dict[int, list[tuple[int, str, bytes | None]]]()
    found: dict[str, tuple[Attached, ...]] = dict.fromkeys(wanted, ())
    for each in rows:
        if each.kind != "clsact" or (port := names.get(each.ifindex, "")) not in wanted:
            continue
        for hook, key in _HOOKS.items():
            number = int.from_bytes(each.attrs.get(key, b""), sys.byteorder)
            if number and number not in blocks:
                blocks[number] = _filters(netlink, number)
            for _, name, base in blocks.get(number, ()):
                port_id = port_at(int.from_bytes(base, sys.byteorder), each.ifindex) if base else 0
                found[port] = (*found[port], _attached(hook, name, port_id))
    return found


def _filters(netlink: nl.RouteSocket, block: int) -> list[tuple[int, str, bytes | None]]:
    """Priority, program and classid of each BPF filter of a shared block, in the order in which they run."""
    rows = []
    for body in netlink.dump(nl.RTM_GETTFILTER, BLOCKMSG.pack(0, SHARED_BLOCK, 0, block, 0)):
        priority = uapi.TCMSG.unpack_from(body)[4] >> 16  # tcm_info: preference and protocol
        attrs = nl.attributes(body, uapi.TCMSG.size)
        if attrs.get(uapi.TCA_KIND) == b"bpf\0" and uapi.TCA_OPTIONS in attrs:
            options = nl.attributes(attrs[uapi.TCA_OPTIONS], 0)
            name = options.get(TCA_BPF_NAME, b"").rstrip(bytes(1)).decode().split(":")[0]
            if name:
                rows.append((priority, name, options.get(TCA_BPF_CLASSID)))
    return sorted(rows, key=lambda row: row[0])


def read_closed(netns: Path) -> set[tuple[str, int]]:
    """(port, class) of every gate that is closed now."""
    found: set[tuple[str, int]] = set()
    with nl.RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for each in nl.qdiscs(netlink):
            number = number_of(each.handle >> 16)
            if number is None or each.kind != "tbf":
                continue
            options = nl.attributes(each.attrs[uapi.TCA_OPTIONS], 0)
            (rate,) = struct.unpack_from("=8xI", options[uapi.TCA_TBF_PARMS])  # of struct tc_ratespec
            if uapi.TCA_TBF_RATE64 not in options and rate < _SLOW:
                found.add((names.get(each.ifindex, ""), number))
    return found
