"""Outages on request: take links and switches down, drain switches by BGP, and undo it.

In:  a running Lab of a fabric file, a port (`rtsw1:eth3`) or a switch.
Out: a Fault that can be undone, once every kernel has the routes of the fabric with that fault. CheckError with the
missing routes if that takes too long. If a step fails or is interrupted, its change is undone.

    with link_down(lab, "rtsw1:eth3"):
        ...                          # undone at the end; waits for the routes
    fault = drain(lab, "ctsw2")
    fault.undo()

The current faults are always read from the kernels and from BGP, so faults made by hand count as well. Only links that
were taken down here are recorded, for `up --repair` (impairments.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from heddle.base.owners import lock
from heddle.base.problems import CheckError, InputError, MachineError, Problem, did_you_mean
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Node
from heddle.lab import convergence
from heddle.lab.daemons import ESTABLISHED, GRACEFUL_SHUTDOWN
from heddle.lab.impairments import Requested, down_of, in_network, ports_of
from heddle.lab.snapshot import LabPart, Snapshot

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

SECONDS: Final = 60.0  # to wait for routes
# What `./inv fault` does -> the state of its links or switches then.
ACTIONS: Final[Mapping[str, str]] = {"down": "down", "up": "up", "drain": "drained", "undrain": "in use again"}
DRAINS: Final = ("drain", "undrain")  # those that take switches
_PAUSE_S: Final = 0.1
_LOOKS: Final = 2
_SHOWN: Final = 4  # ports named in a line


def repair_hint(lab: str, what: str) -> str:
    """The command that repairs a lab, followed by its effect (`sets it up`)."""
    return f"./inv up --repair --name {lab} {what}"


@dataclass
class Fault:
    """A link or switch that is down or drained. The end of a `with` block, or `undo`, restores it and its routes."""

    what: str
    _restore: Callable[[], None] = field(repr=False)
    _done: bool = False

    def undo(self) -> None:
        """Undo the fault, once; CheckError when the routes do not return in time."""
        if not self._done:
            self._done = True
            self._restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


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
        """`rtsw1:eth3 is down; ctsw2 is drained (BGP graceful-shutdown)`; empty when nothing is."""
        parts = []
        if self.dead:
            parts.append(f"{some_of(self.dead)} {'is' if len(self.dead) == 1 else 'are'} down")
        if self.drained:
            are = "is" if len(self.drained) == 1 else "are"
            parts.append(f"{', '.join(self.drained)} {are} drained (BGP {GRACEFUL_SHUTDOWN})")
        if self.shut:
            parts.append(f"the BGP session at {some_of(self.shut)} is shut down")
        return "; ".join(parts)


def link_down(lab: Lab, *refs: str, timeout: float = SECONDS) -> Fault:
    """Take links down in one step, and wait until no kernel forwards over them. timeout: seconds.

    refs: ports (`rtsw1:eth3`), nodes (all of their links) or patterns. The named end goes down; a host's link goes down
    at its switch. InputError for a word that matches no port.
    """
    ports = ports_of(lab.fabric, refs)
    ends = [switch_end(lab.fabric, port.ref) for port in ports]
    fault = _taken_down(lab, f"{some_of([port.ref for port in ports])} down", ends, timeout)
    dead = {*state_of(lab).dead}
    _check_effect([port.ref for port in ports if not {port.ref, port.peer_ref} & dead], "is up")
    return fault


def link_up(lab: Lab, *refs: str, timeout: float = SECONDS) -> None:
    """Set links up, at whichever end they were taken down, and wait until they are used again. refs: as link_down.

    CheckError for a link that stays down, because it is down inside its host.
    """
    meant = {ref for port in ports_of(lab.fabric, refs) for ref in (port.ref, port.peer_ref)}
    check_rendered(lab)
    _set_ends(lab, [switch_end(lab.fabric, ref) for ref in state_of(lab).dead if ref in meant], "up")
    wait(lab, timeout)
    _check_effect([ref for ref in state_of(lab).dead if ref in meant], "is still down")


def drain(lab: Lab, *switches: str, timeout: float = SECONDS) -> Fault:
    """Drain switches by BGP (RFC 8326), and wait until no kernel uses them as transit. They still forward packets.

    InputError for a name that is not a switch of the fabric. Hosts stay reachable through their own leaf in any case.
    """
    nodes = [_switch(lab, switch) for switch in switches]
    check_rendered(lab)
    # A switch that was drained before stays drained after `undo`.
    drained = lab.snapshot(LabPart.DRAINED, [*switches]).drained
    fresh = [node for node in nodes if node.name not in drained]
    do, undo = (partial(_graceful_all, lab, fresh, word) for word in ("", "no "))
    return _inject(lab, f"{some_of(switches)} drained", do, undo, timeout)


def undrain(lab: Lab, *switches: str, timeout: float = SECONDS) -> None:
    """End drains, and wait until the switches are used again."""
    _graceful_all(lab, [_switch(lab, switch) for switch in switches], "no ")
    wait(lab, timeout)


def undo_all(lab: Lab, timeout: float) -> State:
    """Set every link up that is down, end every drain, and wait; returns the state before. timeout: seconds.

    A link that was taken down inside a host stays down: `state_of` shows it afterwards.
    """
    state = state_of(lab)
    _set_ends(lab, [switch_end(lab.fabric, ref) for ref in state.dead], "up")
    _graceful_all(lab, [_switch(lab, switch) for switch in state.drained], "no ")
    if state.dead or state.drained:
        wait(lab, timeout)
    return state


def state_of(lab: Lab) -> State:
    """Links that are down and switches that are drained, read from kernels and BGP now."""
    return State.of(lab.fabric, lab.snapshot(LabPart.CARRIER | LabPart.DRAINED))


def wait(lab: Lab, timeout: float = SECONDS) -> None:
    """Wait until every kernel has the routes of the fabric with its current faults; CheckError after `timeout` seconds.

    Two readings in a row must agree: bgpd processes updates in portions.
    """
    end = time.monotonic() + timeout
    settled = 0
    while settled < _LOOKS:
        now = lab.snapshot(LabPart.CARRIER | LabPart.DRAINED | LabPart.FIBS | LabPart.SESSIONS)
        state, more = State.of(lab.fabric, now), Requested.read(lab.dir).more
        # bgpd does not answer there because of a fault on purpose: routes stay as they are.
        mute = {each.where for each in more if now.sessions.get(each.where, {}) is None}
        state = replace(state, shut=(*state.shut, *_left_by_neighbours(lab.fabric, now, mute)))
        wanted = convergence.ExpectedRoutes.of(lab.fabric, state.dead, state.drained, state.shut)
        fibs = {name: fib for name, fib in now.fibs.items() if name not in mute}
        found = convergence.gaps(lab.fabric, fibs, wanted, strict=True)
        late = _unsettled(lab.fabric, now, state, mute)
        settled = 0 if found or late else settled + 1
        if time.monotonic() > end and found:
            raise CheckError(*convergence.describe_gaps(lab.fabric, found, lab.daemons.sessions, timeout))
        if time.monotonic() > end and late:
            raise CheckError(
                Problem(lab.name, "BGP", f"has not converged after {timeout:g} s: {', '.join(late[:_SHOWN])}")
            )
        if settled < _LOOKS:
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


def _taken_down(lab: Lab, what: str, refs: Sequence[str], timeout: float) -> Fault:
    """Take ports of switches down. Ports that were down before stay down after `undo`."""
    check_rendered(lab)
    switches = by_node(refs)
    down = down_of(lab, [*switches])
    fresh = [f"{switch}:{name}" for switch, names in switches.items() for name in names if not down[switch].get(name)]
    do, undo = (partial(_set_ends, lab, fresh, word) for word in ("down", "up"))
    return _inject(lab, what, do, undo, timeout)


def _check_effect(refs: Sequence[str], why: str) -> None:
    """CheckError for the links that do not have the requested state."""
    if refs:
        raise CheckError(*(Problem(ref, "the link", why, "./inv exec NODE ip link shows both ends") for ref in refs))


def _set_ends(lab: Lab, refs: Sequence[str], word: str) -> None:
    """Set ports of switches down or up, a switch at a time, and record it."""
    check_rendered(lab)
    for node, names in by_node(refs).items():
        own = {f"{node}:{name}" for name in names}
        with lock(lab.name):
            set_links(lab, [*own], word)
            requested = Requested.read(lab.dir)
            down = requested.down | own if word == "down" else requested.down - own
            replace(requested, down=down, run_down=requested.run_down - own).write(lab.dir)


def _inject(lab: Lab, what: str, do: Callable[[], None], undo: Callable[[], None], timeout: float) -> Fault:
    """Make the change and wait. If that fails or is interrupted, the caller gets no Fault, so undo it at once."""
    try:
        do()
        wait(lab, timeout)
    except BaseException:  # Ctrl-C above all
        undo()
        raise

    def restore() -> None:
        undo()
        wait(lab, timeout)

    return Fault(what, restore)


def _graceful_all(lab: Lab, nodes: Sequence[Node], word: str) -> None:
    check_rendered(lab)
    for node in nodes:
        configure_bgp(lab, node, f"{word}bgp graceful-shutdown")


def configure_bgp(lab: Lab, node: Node, line: str) -> None:
    """A line of a switch's `router bgp`, set while it runs. MachineError when bgpd does not take it."""
    commands = ["configure terminal", f"router bgp {node.asn}", line]
    lab.output(node.name, ["vtysh", "-d", "bgpd", *(part for each in commands for part in ("-c", each))])


def check_rendered(lab: Lab) -> None:
    """InputError for an imported lab."""
    if not lab.blueprint.rendered:
        why = "was imported, so its routes after a fault cannot be predicted"
        raise InputError(Problem("", f"lab {lab.name}", why, "use a lab of a fabric file for faults"))


def _switch(lab: Lab, name: str) -> Node:
    node = lab.fabric.by_name.get(name)
    if node is None or node.role is Role.HOST:
        names = [each.name for each in lab.fabric.switches]
        raise InputError(Problem("", name, f"is not a switch of {lab.name}", did_you_mean(name, names)))
    return node


def set_links(lab: Lab, refs: Sequence[str], word: str) -> None:
    """Set ports (`rtsw1:eth3`) down or up at their own ends, without a record. MachineError when ip fails."""
    for node, names in by_node(refs).items():
        lines = "".join(f"link set dev {name} {word}\n" for name in names)
        done = in_network(lab, node, ["ip", "-batch", "-"], lines)
        if done.code != 0:
            raise MachineError(Problem(node, f"ports {word}", f"failed: {done.err.strip()}"))


def by_node(refs: Sequence[str]) -> Mapping[str, list[str]]:
    """Node -> the names of its ports."""
    found: dict[str, list[str]] = {}
    for ref in refs:
        node, _, name = ref.partition(":")
        found.setdefault(node, []).append(name)
    return found


def switch_end(fabric: Fabric, ref: str) -> str:
    """The end of a port's link at which it goes down: a switch's, since a host loses its routes with its port."""
    node, _, name = ref.partition(":")
    return fabric.by_name[node].port(name).peer_ref if fabric.by_name[node].role is Role.HOST else ref
