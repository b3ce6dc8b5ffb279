"""Which links of a running lab are down and which switches are drained, and the wait for the routes that follow.

The state is always read from the kernels and from BGP, so what was changed by hand counts as well.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heddle.base.problems import CheckError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Node
from heddle.lab import convergence
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.faults import record
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.spec.impairments import DRAIN

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

SECONDS: Final = 60.0  # to wait for routes
_PAUSE_S: Final = 0.1
_LOOKS: Final = 2
_SHOWN: Final = 4  # ports named in a line


def repair_hint(lab: str, what: str) -> str:
    """The command that repairs a lab, followed by its effect (`sets it up`)."""
    return f"./inv up --repair --name {lab} {what}"


@dataclass(frozen=True, slots=True)
class State:
    """Links and switches of a running lab that are down or drained. dead: one port per link, the end taken down.

    shut: ends of links whose BGP session is administratively down there.
    """

    dead: tuple[str, ...]
    drained: tuple[str, ...]
    shut: tuple[str, ...] = ()

    @classmethod
    def of(cls, fabric: Fabric, now: Snapshot) -> State:
        """Which links are down, and which switches are drained. Parts: CARRIER and DRAINED."""
        ports = {port.ref for node in fabric.switches for port in node.ports}
        return cls(cls.ends(fabric, now.down), now.drained, tuple(ref for ref in now.shut if ref in ports))

    @staticmethod
    def ends(fabric: Fabric, without: Mapping[str, bool]) -> tuple[str, ...]:
        """`dead`. without: port without carrier -> whether it was taken down at this end."""
        ports = {port.ref: port for node in fabric.switches for port in node.ports}
        down = {ref: (ports[ref], here) for ref, here in without.items() if ref in ports}
        dead = []
        for ref, (port, here) in down.items():
            # A link is named by the end that was taken down. Hosts are not read: their end follows from the switch's.
            there = port.peer_ref in down and down[port.peer_ref][1]
            if here or not there:
                dead.append(ref if here or fabric.by_name[port.peer_node].role is Role.SWITCH else port.peer_ref)
        return tuple(dead)

    def text(self) -> str:
        """`rtsw1:eth3 is down; ctsw2 is drained`; empty when nothing is."""
        parts = []
        if self.dead:
            parts.append(f"{some_of(self.dead)} {'is' if len(self.dead) == 1 else 'are'} down")
        if self.drained:
            parts.append(f"{', '.join(self.drained)} {'is' if len(self.drained) == 1 else 'are'} drained")
        if self.shut:
            parts.append(f"the BGP session at {some_of(self.shut)} is shut down")
        return "; ".join(parts)


def state_of(lab: Lab) -> State:
    """Links that are down and switches that are drained, read from kernels and BGP now."""
    return State.of(lab.fabric, lab.snapshot(LabPart.CARRIER | LabPart.DRAINED))


def wait(lab: Lab, timeout: float = SECONDS) -> None:
    """Wait until every kernel has the routes of the fabric with its current faults; CheckError after `timeout` seconds.

    Two readings in a row must agree: bgpd processes updates in portions.
    """
    end = time.monotonic() + timeout
    by_bgp, settled = lab.fabric.policy.routing.by_bgp, 0
    looks = _LOOKS if by_bgp else 1
    while settled < looks:
        now = lab.snapshot(LabPart.CARRIER | LabPart.DRAINED | LabPart.FIBS | LabPart.SESSIONS)
        state, known = State.of(lab.fabric, now), record.read(lab.dir)
        # bgpd does not answer there because of a fault on purpose: routes stay as they are. It does while it drains.
        mute = {each.where for each in known if each.kind != DRAIN and now.sessions.get(each.where, {}) is None}
        state = replace(state, shut=(*state.shut, *_left_by_neighbours(lab.fabric, now, mute)))
        wanted = convergence.ExpectedRoutes.of(lab.fabric, state.dead, state.drained, state.shut)
        fibs = {name: fib for name, fib in now.fibs.items() if name not in mute}
        found = convergence.gaps(lab.fabric, fibs, wanted, strict=True)
        late = _unsettled(lab.fabric, now, state, mute) if by_bgp else []
        settled = 0 if found or late else settled + 1
        if time.monotonic() > end and found:
            raise CheckError(*convergence.describe_gaps(lab.fabric, found, lab.daemons.sessions, timeout))
        if time.monotonic() > end and late:
            raise CheckError(
                Problem(lab.name, "BGP", f"has not converged after {timeout:g} s: {', '.join(late[:_SHOWN])}")
            )
        if settled < looks:
            time.sleep(_PAUSE_S)


def _left_by_neighbours(fabric: Fabric, now: Snapshot, mute: Collection[str]) -> list[str]:
    """Ports of mute switches whose neighbour has ended the session."""
    ports = [port for name in mute for port in fabric.by_name[name].ports]
    return [
        port.ref
        for port in ports
        if fabric.by_name[port.peer_node].role is Role.SWITCH
        and (now.sessions.get(port.peer_node) or {}).get(port.peer_port) != ESTABLISHED
    ]


def _unsettled(fabric: Fabric, now: Snapshot, state: State, mute: Collection[str]) -> list[str]:
    """Link ends between switches with outdated BGP state: a session over a dead link, or none over a live one."""
    ends = {port.ref: port for node in fabric.switches for port in node.ports}
    dead = {ref for each in (*state.dead, *state.shut) if each in ends for ref in (each, ends[each].peer_ref)}
    found = []
    for node in (each for each in fabric.switches if each.name not in mute):
        sessions = now.sessions[node.name] or {}
        for port in node.ports:
            if fabric.by_name[port.peer_node].role is Role.SWITCH:
                up = sessions.get(port.name) == ESTABLISHED
                if up == (port.ref in dead):
                    found.append(f"{port.ref}: {'BGP has not noticed' if up else 'no BGP session'}")
    return found


def configure_bgp(lab: Lab, node: Node, line: str) -> None:
    """A line of a switch's `router bgp`, set while it runs. MachineError when bgpd does not take it."""
    commands = ["configure terminal", f"router bgp {node.asn}", line]
    lab.output(node.name, ["vtysh", "-d", "bgpd", *(part for each in commands for part in ("-c", each))])
