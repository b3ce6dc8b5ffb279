"""Set, read and clear the faults of a lab's links.

In:  a fabric, the handles of its nodes, and a LinkFault for each port whose outgoing packets it concerns.
Out: rows of the map `faults`, which `dequeue` reads; delay lines where packets must wait; counters.
Kinds by the program need no kernel feature beyond BPF; the others need netem (spec/impairments.py).
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import MachineError, Problem
from heddle.base.process import run
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import BACKEND, Port
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.grace import grace
from heddle.kernel.namespace import NodeHandle
from heddle.kernel.netlink import refusal
from heddle.spec.impairments import COUNTED, NETEM_KINDS, PROGRAM_KINDS, FaultKind, LinkFault
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.links.cuts import stub_name
from heddle.switch.queues.classes import OWNER, classid

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

_LIMIT: Final = 1_000_000  # packets; more than any link of a lab has in flight
_RATE: Final = "rate 100gbit"  # keeps the order; a packet of 4 KB takes 0.3 us
_QOPT: Final = struct.Struct("=6I")  # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter
_POLL_S: Final = 0.02
_LONGEST_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DelayLine:
    """Where packets of one direction of a link with a delay wait, after they have left their queue.

    A pair of veths in the namespace of the receiving node. Netem is the root of `lineN`; the program `back` at `backN`
    returns every packet to the ingress of its port, where one CPU takes all packets, so that they keep their order.
    `dequeue` sends packets into the line, after it has subtracted them from their queue (bpf/fault.h). So netem is
    behind the shaper, the marks and the counters, and not at the root of any port. Netem with jitter alone reorders
    packets. With a rate it does not start a packet before the one in front of it (netem_enqueue), so a very high rate
    keeps the order. Packets that `reorder` selects skip the delay.

    port: where the packets arrive. sender: id of the port that they leave by. values: key of each kind of fault by
    netem -> emulated nanoseconds, or a share from 0 to 1.
    """

    port: str
    sender: int
    values: Mapping[str, float]

    @property
    def inlet(self) -> str:
        """The interface that packets are sent to."""
        return f"line{self.sender}"

    @property
    def outlet(self) -> str:
        """The interface where they arrive, and return to the port."""
        return f"back{self.sender}"

    def netem(self) -> str:
        """The options of netem."""
        words = [
            kind.netem.format(f"{value}ns" if kind.unit == "time" else f"{100 * value:.7f}%")
            for kind in NETEM_KINDS
            if (value := self.values.get(kind.key, 0))
        ]
        return " ".join([f"netem limit {_LIMIT}", *words, _RATE])


@dataclass(frozen=True, slots=True)
class LineState:
    """A delay line as read from the kernel. values: as of DelayLine. waiting: packets. dropped: by netem itself, which
    should not happen.
    """

    ifindex: int
    values: Mapping[str, float]
    waiting: int
    dropped: int


@cache
def missing() -> str:
    """Empty when this kernel has netem, else the reason."""
    return refusal("netem", _QOPT.pack(0, _LIMIT, 0, 0, 0, 0))


def require(what: str) -> None:
    """MachineError when this kernel has no netem. what: the setting that needs it."""
    if why := missing():
        others = ", ".join(kind.key for kind in PROGRAM_KINDS)
        hint = f"use a kernel with netem, as that of --on vm; on any kernel: {others}"
        raise MachineError(Problem("kernel", what, f"is not possible: {why}", hint))


def put(netns: Path, lines: Sequence[DelayLine], back: Path) -> Mapping[int, tuple[int, int]]:
    """Create delay lines, or change those that are there, without packet loss.

    back: the pin of the program. Returns sender -> ifindex of the line's inlet, and of the port behind it.
    MachineError with the message of ip or tc.
    """
    found = read(netns)
    ports = _links(netns)
    fresh = [line for line in lines if line.sender not in found]
    partial = [name for line in fresh for name in (line.inlet,) if name in ports]
    _batch(netns, "ip", [f"link del dev {name}" for name in partial])
    steps, rules = [], []
    for line in fresh:
        mac, mtu = ports[line.port]["address"], ports[line.port]["mtu"]
        # The outlet has the port's MAC: else eth_type_trans would take its packets for those of another host.
        steps.append(f"link add {line.inlet} mtu {mtu} type veth peer name {line.outlet} mtu {mtu} address {mac}")
        for name in (line.inlet, line.outlet):  # no addresses: only packets of the link are in the line
            steps += [f"link set dev {name} addrgenmode none", f"link set dev {name} arp off multicast off up"]
        program = f"bpf direct-action object-pinned {back} classid {classid(line.sender)}"
        rules += [
            f"qdisc add dev {line.outlet} clsact",
            f"filter add dev {line.outlet} ingress pref 1 handle 1 {program}",
        ]
    rules += [f"qdisc replace dev {line.inlet} root handle 1: {line.netem()}" for line in lines]
    _batch(netns, "ip", steps)
    ends = {name: line.sender for line in fresh for name in (line.inlet, line.outlet)}
    inorder.apply(netns, ends, delivery.chosen().delivery, inorder.cpus_here())
    _batch(netns, "tc", rules)
    inorder.pin_receive(netns, {line.port: line.sender for line in fresh}, inorder.cpus_here())
    now = read(netns)
    return {line.sender: (now[line.sender].ifindex, ports[line.port]["ifindex"]) for line in lines}


def remove(netns: Path, senders: Mapping[int, str]) -> None:
    """Remove delay lines, after the packets in them have arrived. Nothing may be sent into them any more.

    senders: id of the sending port -> the port that its packets return to.
    """
    wanted = set(senders)
    end = time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < end and any(row.waiting for key, row in read(netns).items() if key in wanted):
        time.sleep(_POLL_S)
    there = _links(netns)
    _batch(netns, "ip", [f"link del dev line{sender}" for sender in sorted(wanted) if f"line{sender}" in there])
    if delivery.chosen().delivery is delivery.Delivery.NAPI:  # else ports keep the CPU that they always have
        inorder.pin_receive(netns, {port: sender for sender, port in senders.items()}, ())


def read(netns: Path) -> dict[int, LineState]:
    """Sender -> its delay line in this namespace, of those that are complete."""
    links = _links(netns)
    inlets = {name: int(name[4:]) for name in links if name.startswith("line") and name[4:].isdigit()}
    if not inlets:
        return {}
    rows = json.loads(run(["nsenter", f"--net={netns}", "tc", "-s", "-j", "qdisc", "show"]).out or "[]")
    found: dict[int, LineState] = {}
    for row in rows:
        name = row.get("dev", "")
        if name not in inlets or row.get("kind") != "netem" or f"back{inlets[name]}" not in links:
            continue
        options = row.get("options", {})
        values = {kind.key: _value(kind, options) for kind in NETEM_KINDS}
        waiting, dropped = int(row.get("qlen", 0)), int(row.get("drops", 0))
        found[inlets[name]] = LineState(links[name]["ifindex"], values, waiting, dropped)
    return found


def _value(kind: FaultKind, options: Mapping[str, Any]) -> float:
    """A value in `tc -j`, which has times in seconds."""
    part: Any = options
    for word in kind.reads.split("."):
        part = part.get(word, {})
    number = float(part or 0)
    return round(1e9 * number) if kind.unit == "time" else number


def _links(netns: Path) -> dict[str, Any]:
    """Interface name -> what `ip -j link` reports of it."""
    done = run(["nsenter", f"--net={netns}", "ip", "-j", "link", "show"])
    return {row["ifname"]: row for row in json.loads(done.out or "[]")}


def _batch(netns: Path, tool: str, lines: Sequence[str]) -> None:
    if lines:
        run(["nsenter", f"--net={netns}", tool, "-batch", "-"], stdin="\n".join(lines) + "\n")


_CHANCES: Final = tuple(kind.key for kind in PROGRAM_KINDS)
_ONE: Final = 1 << 32
_NEAR: Final = 1e-6  # tc prints shares with this precision
FaultCounts = Mapping[str, int]  # by the words of COUNTS: packets of a port since its fault was set


def file_faults(fabric: Fabric) -> dict[str, LinkFault]:
    """Port -> the fault that the fabric file gives to its link."""
    if not any(fabric.policy.link_faults):
        return {}
    found = {}
    for node in fabric.nodes:
        for port in (port for port in node.ports if port.network == BACKEND):  # `link` of the file is its key
            fault = fabric.policy.link_fault(min(node.level, fabric.by_name[port.peer_node].level))
            if fault:
                found[port.ref] = fault
    return found


def require_netem(faults: Iterable[LinkFault], what: str = "a delay on a link") -> None:
    """MachineError when one of these needs netem and this kernel has none. what: the setting that needs it."""
    if any(fault.needs_netem for fault in faults):
        require(what)


@dataclass(frozen=True, slots=True)
class LineSpaces:
    """The namespaces of delay lines. handles: of nodes. cables: of the stubs of a shard's cut links.

    The line of a link is at the receiving node. That of a cut link is behind the stub, before the tunnel.
    """

    handles: Mapping[str, NodeHandle]
    cables: Path | None = None

    def of(self, port: Port, number: int) -> tuple[Path, str]:
        """The namespace of a port's line, and the interface to whose ingress it returns packets. number: port id."""
        if port.peer_node in self.handles or self.cables is None:
            return self.handles[port.peer_node].netns, port.peer_port
        return self.cables, stub_name(number)


def set_faults(fabric: Fabric, spaces: LineSpaces, live: LabQueues, wanted: Mapping[str, LinkFault]) -> None:
    """Give ports their faults, and start their counters again. wanted: port (`rtsw1:eth3`) -> fault; none: clear it.

    MachineError when a fault needs netem and this kernel has none: then nothing is changed.
    """
    require_netem(wanted.values())
    ports = {port.ref: port for node in fabric.nodes for port in node.ports if port.ref in wanted}
    lines: dict[Path, list[DelayLine]] = {}
    for ref, fault in wanted.items():
        if fault.needs_netem:
            number = live.ids[ports[ref].node, ports[ref].name]
            netns, name = spaces.of(ports[ref], number)
            line = replace(line_of(ports[ref], number, fault, fabric.policy.k), port=name)
            lines.setdefault(netns, []).append(line)
    inlets: dict[int, tuple[int, int]] = {}
    for netns, some in lines.items():
        inlets |= put(netns, some, pin_dir(fabric.name, OWNER) / "back")
    old: dict[Path, dict[int, str]] = {}
    for ref, fault in wanted.items():
        number = live.ids[ports[ref].node, ports[ref].name]
        if live.faults["line"][number] and number not in inlets:
            netns, name = spaces.of(ports[ref], number)
            old.setdefault(netns, {})[number] = name
        _write(live, number, fault, *inlets.get(number, (0, int(live.faults["port"][number]))))
    if old:
        grace()  # after this, no program sends into the old lines
    for netns, senders in old.items():
        remove(netns, senders)


def line_of(port: Port, number: int, fault: LinkFault, k: int) -> DelayLine:
    """The delay line behind a port. number: the port's id; k: of the fabric, by which times are multiplied."""
    values = {kind.key: getattr(fault, kind.field) * (k if kind.unit == "time" else 1) for kind in NETEM_KINDS}
    return DelayLine(port.peer_port, number, values)


def read_counts(fabric: Fabric, spaces: LineSpaces, live: LabQueues) -> dict[str, FaultCounts]:
    """Port -> the counters of its fault, for ports that have one."""
    found: dict[str, FaultCounts] = {}
    lines: dict[Path, dict[int, LineState]] = {}
    for ref, (port, number) in _faulty(fabric, live).items():
        row, waiting = live.faults[number], 0
        if row["line"]:
            netns, _ = spaces.of(port, number)
            if netns not in lines:
                lines[netns] = read(netns)
            waiting = lines[netns][number].waiting if number in lines[netns] else 0
        found[ref] = {**{name: int(row[name]) for name in COUNTED}, "waiting": waiting}
    return found


def differences(fabric: Fabric, spaces: LineSpaces, live: LabQueues, wanted: Mapping[str, LinkFault]) -> dict[str, str]:
    """Port -> how its fault, as read from program and kernel, differs from the wanted one; empty when none does."""
    now = _faulty(fabric, live)
    wrong = {ref: "has a fault that was not set with ./inv fault" for ref in now if not wanted.get(ref)}
    ports = {port.ref: port for node in fabric.nodes for port in node.ports}
    lines: dict[Path, dict[int, LineState]] = {}
    for ref, fault in wanted.items():
        if not fault or ref not in ports:
            continue
        if ref not in now:
            wrong[ref] = "has lost the fault that was set on it"
            continue
        port, number = now[ref]
        row = live.faults[number]
        if any(int(row[name]) != _chance(getattr(fault, name)) for name in _CHANCES):
            wrong[ref] = f"has other shares of {', '.join(_CHANCES)} than were set"
        elif fault.needs_netem:
            netns, _ = spaces.of(port, number)
            if netns not in lines:
                lines[netns] = read(netns)
            line = line_of(port, number, fault, fabric.policy.k)
            if why := _line_fault(lines[netns].get(number), line, int(row["line"])):
                wrong[ref] = why
    return wrong


def _line_fault(found: LineState | None, wanted: DelayLine, ifindex: int) -> str:
    if found is None or found.ifindex != ifindex:
        return f"has lost its delay line, {wanted.inlet} behind its link"
    for kind in NETEM_KINDS:
        here = found.values[kind.key]
        if abs(here - wanted.values[kind.key]) > (_NEAR if kind.unit == "share" else 0):
            return f"has a {kind.key} of {here:.6f}" if kind.unit == "share" else f"has a {kind.key} of {here:g} ns"
    return f"lost {found.dropped} packets in {wanted.inlet}, whose netem was full" if found.dropped else ""


def _faulty(fabric: Fabric, live: LabQueues) -> dict[str, tuple[Port, int]]:
    """Port -> itself and its id, for ports that have a fault."""
    from heddle.switch.queues.cells import LINK_FAULT

    found = {}
    for node in fabric.nodes_here:
        for port in node.ports:
            number = live.ids[port.node, port.name]
            if live.links["flags"][number] & LINK_FAULT:
                found[port.ref] = port, number
    return found


def _write(live: LabQueues, number: int, fault: LinkFault, inlet: int, port: int) -> None:
    """Fill a row, and then let the program read it; or stop that first.

    inlet, port: ifindex of the delay line, 0 for none, and of the port that its packets return to.
    """
    import numpy as np

    from heddle.switch.queues.cells import LINK_FAULT

    flags, row = live.links["flags"], live.faults
    if not fault:
        flags[number] &= ~np.uint32(LINK_FAULT)
    for name in _CHANCES:
        row[name][number] = _chance(getattr(fault, name))
    row["port"][number] = port  # it stays after a fault: packets may still be in the line
    row["line"][number] = inlet
    for name in COUNTED:
        row[name][number] = 0
    if fault:
        flags[number] |= np.uint32(LINK_FAULT)


def _chance(share: float) -> int:
    """A share as the program compares it: it draws from 0 to 2^32 - 1, and 0 means never."""
    return max(1, round(share * _ONE) - 1) if share else 0
