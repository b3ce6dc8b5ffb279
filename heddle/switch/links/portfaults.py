"""Set, read and clear the faults of a lab's links.

In:  a fabric, the handles of its nodes, and a LinkFault for each port whose outgoing packets it concerns.
Out: rows of the map `faults`, which `dequeue` reads; delay lines where packets must wait; counters.
Kinds by the program need no kernel feature beyond BPF; the others need netem (spec/impairments.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from heddle.fabric.model import Fabric, Port
from heddle.kernel.grace import grace
from heddle.kernel.handle import NodeHandle
from heddle.spec.impairments import COUNTED, NETEM_KINDS, PROGRAM_KINDS, LinkFault
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.links import delaylines
from heddle.switch.links.cuts import stub_name
from heddle.switch.links.delaylines import DelayLine
from heddle.switch.queues.portids import OWNER

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

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
        for port in node.ports:
            fault = fabric.policy.link_fault(min(node.level, fabric.by_name[port.peer_node].level))
            if fault:
                found[port.ref] = fault
    return found


def require_netem(faults: Iterable[LinkFault], what: str = "a delay on a link") -> None:
    """MachineError when one of these needs netem and this kernel has none. what: the setting that needs it."""
    if any(fault.needs_netem for fault in faults):
        delaylines.require(what)


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
        inlets |= delaylines.put(netns, some, pin_dir(fabric.name, OWNER) / "back")
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
        delaylines.remove(netns, senders)


def line_of(port: Port, number: int, fault: LinkFault, k: int) -> DelayLine:
    """The delay line behind a port. number: the port's id; k: of the fabric, by which times are multiplied."""
    values = {kind.key: getattr(fault, kind.field) * (k if kind.unit == "time" else 1) for kind in NETEM_KINDS}
    return DelayLine(port.peer_port, number, values)


def read_counts(fabric: Fabric, spaces: LineSpaces, live: LabQueues) -> dict[str, FaultCounts]:
    """Port -> the counters of its fault, for ports that have one."""
    found: dict[str, FaultCounts] = {}
    lines: dict[Path, dict[int, delaylines.LineState]] = {}
    for ref, (port, number) in _faulty(fabric, live).items():
        row, waiting = live.faults[number], 0
        if row["line"]:
            netns, _ = spaces.of(port, number)
            if netns not in lines:
                lines[netns] = delaylines.read(netns)
            waiting = lines[netns][number].waiting if number in lines[netns] else 0
        found[ref] = {**{name: int(row[name]) for name in COUNTED}, "waiting": waiting}
    return found


def differences(fabric: Fabric, spaces: LineSpaces, live: LabQueues, wanted: Mapping[str, LinkFault]) -> dict[str, str]:
    """Port -> how its fault, as read from program and kernel, differs from the wanted one; empty when none does."""
    now = _faulty(fabric, live)
    wrong = {ref: "has a fault that was not set with ./inv fault" for ref in now if not wanted.get(ref)}
    ports = {port.ref: port for node in fabric.nodes for port in node.ports}
    lines: dict[Path, dict[int, delaylines.LineState]] = {}
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
                lines[netns] = delaylines.read(netns)
            line = line_of(port, number, fault, fabric.policy.k)
            if why := _line_fault(lines[netns].get(number), line, int(row["line"])):
                wrong[ref] = why
    return wrong


def _line_fault(found: delaylines.LineState | None, wanted: DelayLine, ifindex: int) -> str:
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
    for node in fabric.nodes:
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
