"""The queues of every port: a shaper at its rate, a queue for each class, and the programs around them.

In:  ports with their rates (bit/s of frame bytes, from Ethernet header to ICRC), the classes and a discipline.
Out: tc batch lines, a few batches per node; rates, queues and drops, read back from the kernel and the programs.
Switches and hosts are alike: both ends of a link are shaped, so neither can send faster than the link rate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from heddle.base.process import Journal, run
from heddle.base.units import format_rate
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policy import QueuePolicy
from heddle.fabric.wiring import Node, Port
from heddle.kernel.fib import read_names
from heddle.kernel.netlink import RTM_GETTCLASS, RTM_GETTFILTER, Qdisc, RouteSocket, attributes, qdiscs
from heddle.kernel.uapi import (
    TC_H_ROOT,
    TCA_KIND,
    TCA_OPTIONS,
    TCA_STATS2,
    TCA_STATS_QUEUE,
    TCA_TBF_PARMS,
    TCA_TBF_RATE64,
    TCMSG,
)
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues import red
from heddle.switch.queues.classes import burst_bytes, held_bps
from heddle.switch.queues.disciplines import LEAF_LIMIT, Discipline, chosen, is_ets_band, number_of, read_ets_turn
from heddle.switch.queues.portids import OWNER, PortRef, classid, port_ids

_PROGRAMS_A_BATCH: Final = 200  # tc keeps each program of a batch open until its end, and may open at least 256 files

_ROOT_ID: Final = 0x00010000
_RATE_CLASS_ID: Final = 0x00010001
_TCA_HTB_PARMS, _TCA_HTB_RATE64, _TCA_HTB_CEIL64 = 1, 6, 7
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

    curves: of the classes that the kernel's RED marks; empty if the program marks.
    """

    lab: str
    queues: QueuePolicy
    discipline: Discipline
    ids: Mapping[PortRef, int]
    curves: Mapping[int, red.Curve]

    @property
    def gated(self) -> bool:
        """Whether there are gates, so that the lab needs a PFC agent."""
        return self.discipline.gated and bool(self.queues.lossless)

    @classmethod
    def of(cls, fabric: Fabric) -> Setup:
        """The setup that the fabric file defines. MachineError when this kernel does not support a selected option."""
        queues = fabric.policy.queues
        curves: Mapping[int, red.Curve] = {}
        if queues.ecn.marker == "red":
            red.require()
            curves = red.curves_of(queues)
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


def program_lines(port: Port, programs: Iterable[PortProgram], lab: str, number: int) -> list[str]:
    """The tc lines of clsact and the programs of a port. number: the port's id."""
    lines = [f"qdisc add dev {port.name} clsact"]
    for each in programs:
        line = f"filter add dev {port.name} {each.hook} pref {each.pref} handle 1 bpf direct-action"
        own = f" classid {classid(number)}" if each.numbered else ""
        lines.append(f"{line} object-pinned {each.pin(lab)}{own}")
    return lines


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
    """Create the queues and attach the programs of ports of a node, with one tc process per fifty ports.

    ports: all when None.

    MachineError with tc's message, which names the line. `tc -n` would mount a new /sys and so hide the pins;
    nsenter changes only the network namespace.
    """
    programs = programs_of(node)
    some = node.ports if ports is None else ports
    ports_a_batch = _PROGRAMS_A_BATCH // len(programs)
    for start in range(0, len(some), ports_a_batch):
        lines: list[str] = []
        for port in some[start : start + ports_a_batch]:
            lines += setup.discipline.lines(port, setup.queues)
            lines += program_lines(port, programs, setup.lab, setup.ids[port.node, port.name])
        run(["nsenter", f"--net={netns}", "tc", "-batch", "-"], stdin="\n".join(lines) + "\n", journal=journal)
    if setup.curves and node.role is Role.SWITCH:
        red.install(netns, {(port.name, number): c for port in some for number, c in setup.curves.items()})


def read_shapers(netlink: RouteSocket, names: Mapping[int, str], ports: Iterable[str]) -> dict[str, PortQueue]:
    """Port -> its shaper and queues, for ports that have a shaper; by netlink, since tc has no JSON for classes.

    names: ifindex -> interface name.
    """
    found: dict[str, PortQueue] = {}
    indexes = {name: index for index, name in names.items()}
    queues: dict[int, dict[int, Leaf]] = {}
    for each in qdiscs(netlink):
        number = number_of(each.handle >> 16)
        if number is not None:
            queues.setdefault(each.ifindex, {})[number] = _leaf(each)
    for port in ports:
        ifindex = indexes.get(port, 0)
        own = queues.get(ifindex, {})
        for body in netlink.dump(RTM_GETTCLASS, TCMSG.pack(0, ifindex, 0, 0, 0)) if own else ():
            _, _, handle, _, queue = TCMSG.unpack_from(body)
            attrs = attributes(body, TCMSG.size)
            # A band of ETS is identified by its queue, or by the RED over that queue.
            number = number_of(queue >> 16 & ~red.BESIDE if is_ets_band(handle) else handle & 0xFFFF)
            if handle == _RATE_CLASS_ID:
                found[port] = _shaper(port, attrs[TCA_OPTIONS], own)
            elif handle & 0xFFFF0000 == _ROOT_ID and number in own:
                own[number] = _with_turn(own[number], attrs[TCA_OPTIONS])
            elif is_ets_band(handle) and number in own:
                quantum, prio = read_ets_turn(attrs[TCA_OPTIONS])
                own[number] = replace(own[number], quantum=quantum, prio=prio)
    return found


def foreign_roots(netlink: RouteSocket, names: Mapping[int, str], ports: Iterable[str]) -> dict[str, str]:
    """Port -> the root qdisc that replaces our shaper: `netem`, or `nothing`; empty if the port is gone.

    names: ifindex -> interface name.
    """
    roots: dict[str, str] = {}
    for each in qdiscs(netlink):
        if each.parent == TC_H_ROOT:
            found = "ours" if (each.kind, each.handle) == ("htb", _ROOT_ID) else each.kind
            roots[names.get(each.ifindex, "")] = "nothing" if found == "noqueue" else found
    return {port: roots.get(port, "") for port in ports if roots.get(port) != "ours"}


def refused_by_qdiscs(netlink: RouteSocket, names: Mapping[int, str]) -> dict[str, dict[int, int]]:
    """Port -> class -> packets that its qdiscs dropped. The drops of the programs are in the cells."""
    found: dict[str, dict[int, int]] = {}
    for each in qdiscs(netlink):
        number = number_of(each.handle >> 16)
        statistics = attributes(each.attrs.get(TCA_STATS2, b""), 0)
        if number is not None and TCA_STATS_QUEUE in statistics:  # struct gnet_stats_queue: qlen, backlog, drops, ...
            (drops,) = struct.unpack_from("=8xI", statistics[TCA_STATS_QUEUE])
            classes = found.setdefault(names.get(each.ifindex, f"if{each.ifindex}"), {})
            classes[number] = classes.get(number, 0) + drops
    return found


def _leaf(qdisc: Qdisc) -> Leaf:
    options = qdisc.attrs.get(TCA_OPTIONS, b"")
    if qdisc.kind == "bfifo":
        return Leaf(qdisc.kind, struct.unpack_from("=I", options)[0])
    if qdisc.kind == "tbf":  # struct tc_tbf_qopt: two struct tc_ratespec, limit, ...
        return Leaf(qdisc.kind, struct.unpack_from("=24xI", attributes(options, 0)[TCA_TBF_PARMS])[0])
    return Leaf(qdisc.kind, 0)


def _with_turn(leaf: Leaf, options: bytes) -> Leaf:
    """struct tc_htb_opt: two struct tc_ratespec, buffer, cbuffer, quantum, level, prio."""
    quantum, _, prio = struct.unpack_from("=32xIII", attributes(options, 0)[_TCA_HTB_PARMS])
    return Leaf(leaf.qdisc, leaf.limit_bytes, quantum, prio)


def _shaper(port: str, options: bytes, leaves: Mapping[int, Leaf]) -> PortQueue:
    """struct tc_htb_opt: two struct tc_ratespec, then the burst as the time it takes at the rate."""
    attrs = attributes(options, 0)
    parameters = attrs[_TCA_HTB_PARMS]
    rate, ceil = struct.unpack_from("=8xI8xI", parameters)
    burst_ticks = struct.unpack_from("=24xI", parameters)[0]
    # A rate of 2^32 bytes/s or more is in a separate attribute.
    rate = struct.unpack("=Q", attrs[_TCA_HTB_RATE64])[0] if _TCA_HTB_RATE64 in attrs else rate
    ceil = struct.unpack("=Q", attrs[_TCA_HTB_CEIL64])[0] if _TCA_HTB_CEIL64 in attrs else ceil
    return PortQueue(port, rate * 8, ceil * 8, round(burst_ticks * _TICK_S * rate), leaves)


HOSTS: Final = "_hosts"  # the owner of what all hosts share; not a valid node name
_HOOKS: Final = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}  # TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), ..._EGRESS
_TCA_BPF_CLASSID, _TCA_BPF_NAME = 3, 7
_SLOW: Final = 10**6  # bytes/s: the rate of an open gate is far above this, that of a closed one far below (gates.py)


@dataclass(frozen=True, slots=True)
class PortProgram:
    """A BPF program for a clsact hook (`ingress`, `egress`); lower prefs run first. owner: of its pin.

    numbered: the program reads its port's id from the filter's classid.
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
    own = [PortProgram("ingress", 10, HOSTS, "nic")]
    if node.role is Role.SWITCH:
        own = [PortProgram("ingress", 10, node.name, "hash"), PortProgram("egress", 10, OWNER, "count", numbered=True)]
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


def expected(node: Node, number: int) -> tuple[Attached, ...]:
    """The programs that a port of a node has, in their order. number: the port's."""
    return tuple(Attached(each.hook, each.name, number if each.numbered else 0) for each in programs_of(node))


def read_attached(
    netlink: RouteSocket, names: Mapping[int, str], ports: Iterable[str]
) -> dict[str, tuple[Attached, ...]]:
    """Port -> its programs in the order in which they run, ingress first; an empty tuple if it has no programs.

    names: ifindex -> interface name.
    """
    indexes = {name: index for index, name in names.items()}
    found: dict[str, tuple[Attached, ...]] = {}
    for port in ports:
        rows: list[tuple[int, int, Attached]] = []
        for place, (hook, parent) in enumerate(_HOOKS.items()):
            request = TCMSG.pack(0, indexes.get(port, 0), 0, parent, 0)
            for body in netlink.dump(RTM_GETTFILTER, request):
                priority = TCMSG.unpack_from(body)[4] >> 16  # tcm_info: preference and protocol
                attrs = attributes(body, TCMSG.size)
                if attrs.get(TCA_KIND) == b"bpf\0" and TCA_OPTIONS in attrs:
                    options = attributes(attrs[TCA_OPTIONS], 0)
                    name = options.get(_TCA_BPF_NAME, b"").rstrip(bytes(1)).decode().split(":")[0]
                    number = struct.unpack("=I", options.get(_TCA_BPF_CLASSID, bytes(4)))[0]
                    if name:
                        rows.append((place, priority, Attached(hook, name, number)))
        found[port] = tuple(each for _, _, each in sorted(rows, key=lambda row: row[:2]))
    return found


def read_closed(netns: Path) -> set[tuple[str, int]]:
    """(port, class) of every gate that is closed now."""
    found: set[tuple[str, int]] = set()
    with RouteSocket(netns) as netlink:
        names = read_names(netlink)
        for each in qdiscs(netlink):
            number = number_of(each.handle >> 16)
            if number is None or each.kind != "tbf":
                continue
            options = attributes(each.attrs[TCA_OPTIONS], 0)
            (rate,) = struct.unpack_from("=8xI", options[TCA_TBF_PARMS])  # of struct tc_ratespec
            if TCA_TBF_RATE64 not in options and rate < _SLOW:
                found.add((names.get(each.ifindex, ""), number))
    return found
