"""Checks of queues, for `validate`: configuration, byte counters, headroom and pauses.

In:  a running lab and its handles.
Out: what was checked, and one line for each fault. Nothing is changed, and no packet is sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heddle.base.ethernet import CLASSES
from heddle.base.problems import Problem
from heddle.fabric.deadlock import deadlock_warning
from heddle.fabric.model import Role
from heddle.kernel.namespace import NodeHandle
from heddle.lab import agents, facts
from heddle.lab.fact import Fact
from heddle.lab.facts import port_faults
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.thresholds import late_marks, own_settings, wanted_policies
from heddle.switch.queues import portqueues as queues
from heddle.switch.queues.classes import port_ids, row
from heddle.switch.queues.portqueues import read_closed
from heddle.wire.layout import DSCP_DATA

if TYPE_CHECKING:
    from heddle.switch.queues.cells import LabQueues

SHOWN: Final = 4  # faults named in one line
Found = tuple[str, list[str]]  # what was checked, and a line for each fault


class Answer(NamedTuple):
    """The result of a check that has notes; a check without notes returns a plain `Found`."""

    checked: str
    faults: list[str]
    notes: tuple[str, ...] = ()


class NothingError(Exception):
    """The lab has nothing that this check applies to."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A running lab, its handles, and one snapshot of it.

    now: read before the first check. A part that could not be read raises its error in the checks that use it.
    """

    lab: Lab
    handles: Mapping[str, NodeHandle]
    now: Snapshot

    @classmethod
    def of(cls, lab: Lab) -> Subject:
        """Read what several checks use. What only one check needs, that check reads itself."""
        wanted = LabPart.FIBS | LabPart.HASHING | LabPart.SESSIONS | LabPart.QUEUES | facts.parts(lab)
        return cls(lab, lab.handles(), lab.snapshot(wanted, keep_errors=True))

    def facts_of(self, check: str) -> tuple[Fact, ...]:
        """The facts that make a check fail."""
        kinds = [kind for kind, each in facts.FACTS.items() if each.check == check]
        found = facts.facts(self.lab, self.now, kinds) if kinds else ()
        return facts.as_set(self.lab, self.now, found) if found else ()


def first_line(problem: Problem) -> str:
    """A problem without its hint."""
    return str(problem).partition("\n")[0]


def shortened(lines: Sequence[str]) -> str:
    """The first few lines, and how many more there are."""
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more


_REST_S: Final = 1.0  # how long to wait until a queue is seen empty: BGP sends packets from time to time
_POLL_S: Final = 0.01
_CALM: Final = 5  # packets in that time: BGP's own traffic, and fewer than the slowest link carries
_AGAIN_S: Final = 0.15  # wait before the second look: a gate that is about to open is open then


def shapers(subject: Subject) -> Found:
    """Rate, burst, scheduler and queues of every port, in the kernel; with RED its curves."""
    fabric = subject.lab.fabric
    setup = queues.Setup.of(fabric)
    rates = sorted({port.rate_bps for node in fabric.nodes for port in node.ports})
    count = sum(len(node.ports) for node in fabric.nodes)
    classes = ", ".join(f"{n} {setup.queues.kind(n)}" for n in setup.queues.numbers)
    return f"{count} ports at {', '.join(map(queues.rate_text, rates))}, by {setup.discipline.name}: {classes}", []


def programs(subject: Subject) -> Found:
    """BPF programs at each port: which, in which order, and each with the number of its port."""
    return f"attached on {len(port_ids(subject.lab.fabric))} ports, each with its number", []


def thresholds(subject: Subject) -> Answer:
    """Classes by DSCP and thresholds in the BPF maps, as set last. A class that may drop data is named in a note."""
    lab = subject.lab
    changed = sum(bool(values) for values in own_settings(lab).values())
    note = f", with values set at run time on {changed} nodes" if changed else ""
    ports = sum(len(node.ports) for node in lab.fabric.nodes)
    said = f"{ports} ports have {len(lab.fabric.policy.queues.numbers)} classes as configured{note}"
    notes = *lab.fabric.policy.queues.lossy_data(DSCP_DATA), *deadlock_warning(lab.fabric)
    return Answer(said, [], (*late_marks(lab), *notes))


def depths(subject: Subject) -> Found:
    """At rest every queue is empty: all bytes counted in were counted out, by egress port and by ingress port.

    A queue passes once it was seen empty. If it was never empty and almost no packet left it, its bytes are stuck, or
    were counted in and never out. Where packets keep passing, the check cannot decide.
    """
    lab = subject.lab
    with _open(lab) as live:
        rest = _Rest.of(live)
    ids = port_ids(lab.fabric)
    faults: dict[str, list[str]] = {}  # by port, or by switch
    busy = 0
    for node in lab.fabric.nodes_here:
        rows = {(port.ref, n): row(ids[node.name, port.name], n) for port in node.ports for n in range(CLASSES)}
        moved = [sum(int(rest.passed[at]) for (_, m), at in rows.items() if m == n) for n in range(CLASSES)]
        calm = [count <= _CALM * len(node.ports) for count in moved]
        for (ref, number), at in rows.items():
            if said := rest.faults(at, calm[number]):
                faults.setdefault(ref, []).extend(f"{ref}, class {number}: {each}" for each in said)
            busy += rest.is_busy(at, calm[number])
        index = lab.fabric.places[node.name].index
        if all(calm) and node.role is Role.SWITCH and (said := rest.faults_of_switch(index)):
            faults[node.name] = [f"{node.name}: {each}" for each in said]
    blind = _blind(subject) if faults else {}
    lines = [each for where, some in faults.items() if where.partition(":")[0] not in blind for each in some]
    if faults and not lines:
        raise NothingError(
            f"{', '.join(dict.fromkeys(blind.values()))} cannot count: see the checks queues and programs"
        )
    if busy and not lines:
        raise NothingError(f"packets pass through {busy} queues; repeat when the lab carries no traffic")
    count = int((rest.cells["in_packets"] > 0).sum())
    return f"{count} queues had packets and are empty: bytes out equal bytes in", lines


def _blind(subject: Subject) -> dict[str, str]:
    """Node -> a port without Heddle's queues or programs, for both nodes of that port's link.

    Other checks report that port. Packets that it forwards are missing in the counters of the other ports of both
    nodes, so the counters of both cannot be checked.
    """
    odd = {*port_faults(subject.lab.fabric, subject.now).programs, *subject.now.foreign_roots}
    ports = (port for node in subject.lab.fabric.nodes_here for port in node.ports if port.ref in odd)
    return {node: port.ref for port in ports for node in (port.node, port.peer_node)}


@dataclass(frozen=True)
class _Rest:
    """A lab's BPF maps after waiting up to `_REST_S` for empty queues.

    full, held, used: cells, ingress rows and switches that were never empty; passed: packets that left each cell
    meanwhile. uneven: empty cells whose bytes in and out differ.
    """

    cells: Any
    ingress: Any
    switches: Any
    full: Any
    held: Any
    used: Any
    passed: Any
    uneven: Any

    @classmethod
    def of(cls, live: LabQueues) -> _Rest:
        """Read again until all were seen empty, or `_REST_S` has passed."""
        end = time.monotonic() + _REST_S
        watched = [(live.cells, "depth"), (live.ingress, "occupancy"), (live.switches, "used")]
        never = [table[name] != 0 for table, name in watched]
        before = live.cells["out_packets"].copy()
        while any(each.any() for each in never) and time.monotonic() < end:
            time.sleep(_POLL_S)
            never = [each & (table[name] != 0) for each, (table, name) in zip(never, watched, strict=True)]
        copies = live.cells.copy(), live.ingress.copy(), live.switches.copy()
        uneven = copies[0]["in_bytes"] != copies[0]["out_bytes"]
        if uneven.any():  # a packet may have arrived between two reads: a moment later it has left or is in `depth`
            time.sleep(_POLL_S)
            uneven &= (live.cells["in_bytes"] != live.cells["out_bytes"]) & (live.cells["depth"] == 0)
        full, held, used = never
        return cls(*copies, full, held, used, copies[0]["out_packets"] - before, uneven)

    def faults(self, at: int, calm: bool) -> list[str]:
        """Faults of a row. calm: almost no packet of its class left the node."""
        cell, found = self.cells[at], []
        if self.full[at] and self.passed[at] <= _CALM:
            found.append(f"{cell['depth']} bytes wait, and nothing has left for {_REST_S:g} s")
        elif self.uneven[at] and not self.full[at]:
            found.append(f"{cell['in_bytes']} bytes in, {cell['out_bytes']} out, and the queue is empty")
        if cell["strays"]:
            found.append(f"egress count exceeds ingress count by {cell['strays']} packets")
        if self.held[at] and calm:
            found.append(f"{self.ingress[at]['occupancy']} bytes arrived here and have not left the switch")
        return found

    def is_busy(self, at: int, calm: bool) -> bool:
        """True when packets kept passing through a row."""
        return bool((self.full[at] and self.passed[at] > _CALM) or (self.held[at] and not calm))

    def faults_of_switch(self, index: int) -> list[str]:
        """Faults in the buffer totals of a switch without traffic."""
        switch = self.switches[index]
        if self.used[index]:
            return [f"{switch['used']} bytes of its buffer are in use"]
        shared = int(switch["shared_used"]) + int(switch["headroom_used"])
        return [f"{shared} bytes count as shared, and its buffer is empty"] if shared and not switch["used"] else []


def headroom(subject: Subject) -> Found:
    """No lossless class has dropped a packet because headroom was too small."""
    lab, ingress = subject.lab, subject.now.queues.ingress
    ids = port_ids(lab.fabric)
    faults: list[str] = []
    ports = 0
    for (node, name), classes in wanted_policies(lab).items():
        for number, policy in enumerate(classes):
            if policy.pfc and lab.fabric.by_name[node].role is Role.SWITCH:
                ports += 1
                inward = ingress[row(ids[node, name], number)]
                if inward["drops"]:
                    count, short = int(inward["drops"]), int(inward["lost_high"])
                    lost = f"{count} packet{'' if count == 1 else 's'} dropped because headroom was full"
                    faults.append(f"{node}:{name}, class {number}: {lost}, up to {short} bytes short in one pause")
    if not ports:
        raise NothingError("no class is both lossless and paused by PFC")
    return f"sufficient at {ports} ports: no lossless packet was dropped", faults


def pauses(subject: Subject) -> Found:
    """Agent and keeper run, and every closed gate belongs to an active pause."""
    lab = subject.lab
    state, faults = agents.alive(lab), list[str]()
    if not queues.Setup.of(lab.fabric).gated:
        return f"no class can be paused; agent (process {state.agent}) and keeper (process {state.keeper}) run", faults
    closed = _closed(subject)
    if closed:
        time.sleep(_AGAIN_S)
        closed &= _closed(subject)
    with _open(lab) as live:
        for node, port, number in sorted(closed):
            agent = live.agent[row(live.ids[node, port], number)]
            if not agent["closed_since_ns"]:
                faults.append(f"{node}:{port}, class {number}: the gate is closed, but the PFC agent did not close it")
            elif int(agent["until_ns"]) < time.monotonic_ns() - int(_AGAIN_S * 1e9):
                faults.append(f"{node}:{port}, class {number}: the gate is closed, but the pause has ended")
        storms = int((live.agent["watchdog"] != 0).sum())
    now = f"{len(closed)} gates closed" if closed else "all gates open"
    cut = f", {storms} cut off by the watchdog" if storms else ""
    return f"agent (process {state.agent}) and keeper (process {state.keeper}) run; {now}{cut}", faults


def _closed(subject: Subject) -> set[tuple[str, str, int]]:
    return {
        (node.name, port, number)
        for node in subject.lab.own_nodes
        for port, number in read_closed(subject.handles[node.name].netns)
    }


def _open(lab: Lab) -> LabQueues:
    from heddle.switch.queues.cells import LabQueues

    return LabQueues.pinned(lab.fabric)
