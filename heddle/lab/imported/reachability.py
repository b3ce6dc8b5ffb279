"""Convergence of an imported lab. Its routes cannot be predicted, so BGP sessions and routes to hosts are checked.

In:  a running lab, and which daemons must answer on which switch.
Out: nothing once every BGP session with both ends in the lab is established, every neighbour of OSPF and IS-IS is up,
every switch has a route to every host's address, and no route has changed for a while. Otherwise: what is missing, and
where. While it waits, the observer gets the reason: sessions, neighbours, hosts.
What cannot come is not waited for: anything of a switch without a configuration, and routes to a host in whose subnet
no switch has an address, as behind an overlay that a script sets up.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from heddle.base.events import Observer
from heddle.base.families import Address
from heddle.base.problems import CheckError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.kernel.fib import Fib
from heddle.lab.convergence import STEP
from heddle.lab.daemons import (
    ESTABLISHED,
    IGP_DAEMONS,
    NO_ANSWER,
    NOT_ASKED,
    NOT_CONFIGURED,
    Adjacency,
    SessionEnd,
    awaited,
)
from heddle.lab.snapshot import LabPart, Snapshot

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

_PAUSE_S: Final = 0.3
# bgpd delays its first updates by coalesce-time, 1 s by default: until then a route may miss some of its next hops.
_STILL_S: Final = 1.5
_REASON_S: Final = 1.0  # between two reasons while waiting
_REASONS: Final = 2  # in one line
_SHOWN: Final = 12
_COMMANDS: Final[Mapping[str, str]] = {  # protocol -> command that shows more
    "OSPF": "show ip ospf neighbor", "OSPFv3": "show ipv6 ospf6 neighbor", "IS-IS": "show isis neighbor",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BgpSession:
    """One end of a BGP session: the switch, its peer as configured, the peer's node, and the session's state."""

    switch: str
    peer: str
    node: str
    state: str


@dataclass(frozen=True, slots=True)
class Sessions:
    """The BGP sessions of a lab. silent: switches whose bgpd does not answer. switches: all switches asked."""

    sessions: tuple[BgpSession, ...]
    silent: tuple[str, ...]
    switches: tuple[str, ...]

    @property
    def down(self) -> tuple[BgpSession, ...]:
        """Sessions that are not established."""
        return tuple(each for each in self.sessions if each.state != ESTABLISHED)


@dataclass(frozen=True)
class Look:
    """The lab at one moment: its sessions, hosts that switches have no route to, and all routes.

    igp: neighbours that are not up, and ports without one. awaited: those of them that must come up. idle: switches
    that are not waited for.
    """

    bgp: Sessions
    unreached: tuple[tuple[str, str, str], ...]  # switch, address, host port
    fibs: Mapping[str, Fib]
    igp: tuple[Adjacency, ...] = ()
    awaited: tuple[Adjacency, ...] = ()
    idle: frozenset[str] = frozenset()

    @property
    def complete(self) -> bool:
        """True when nothing is missing."""
        return not (self.bgp.down or self.bgp.silent or self.unreached or self.awaited)

    def lines(self) -> list[tuple[str, str, str]]:
        """What is missing, as (where, what, why)."""
        found = [(switch, "bgpd", "does not answer") for switch in self.bgp.silent]
        found += [(s.switch, f"the BGP session with {s.peer} ({s.node})", f"is {s.state}") for s in self.bgp.down]
        found += [(switch, f"{address} ({port})", "has no route") for switch, address, port in self.unreached]
        return [*((each.port, each.what, each.why) for each in self.awaited), *found]

    def reason(self) -> str:
        """What is missing, in one line: the first of each kind, causes before their effects."""
        hosts: dict[str, list[str]] = {}
        for switch, address, port in self.unreached:
            hosts.setdefault(f"{port} ({address})", []).append(switch)
        kinds = (
            [f"{switch} bgpd does not answer" for switch in self.bgp.silent],
            [each.text() for each in self.igp],
            [f"{each.switch} -> {each.peer} {each.state}" for each in self.bgp.down],
            [f"{switches[0]}{_and_more(switches)} has no route to {host}" for host, switches in hosts.items()],
        )
        shown = [kind[0] for kind in kinds if kind][:_REASONS]
        more = sum(map(len, kinds)) - len(shown)
        return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def _and_more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


@dataclass(frozen=True, slots=True)
class WaitScope:
    """What `up` can wait for. owners: address -> node, for all addresses in the lab.

    bare: switches without a configuration in the file. apart: addresses of hosts in whose subnet no switch has one.
    """

    owners: Mapping[str, str]
    bare: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    def idle(self, now: Snapshot) -> frozenset[str]:
        """Those of `bare` that still have neither an address nor a session."""
        configured = {*self.owners.values(), *(name for name, states in now.sessions.items() if states)}
        return frozenset(self.bare) - configured


def look(lab: Lab, scope: WaitScope) -> Look:
    """Read daemons and kernels now."""
    now, fabric = lab.snapshot(LabPart.FIBS | LabPart.SESSIONS | LabPart.ADJACENCIES), lab.fabric
    idle, asked = scope.idle(now), [s.name for s in fabric.switches if "bgpd" in lab.blueprint.daemons(s.name)]
    found = sessions_of(fabric, asked, scope.owners, now)
    sessions = tuple(each for each in found.sessions if not {each.switch, each.node} & idle)
    routes = tuple(row for row in unreached(fabric, now, scope.apart) if row[0] not in idle)
    beside = {port.ref for s in fabric.switches for port in s.ports if {s.name, port.peer_node} & idle}
    igp = tuple(each for each in now.adjacencies if each.port not in beside)
    return Look(replace(found, sessions=sessions), routes, now.fibs, igp, awaited(fabric, igp), idle)


def sessions_of(fabric: Fabric, speakers: Collection[str], owners: Mapping[str, str], now: Snapshot) -> Sessions:
    """Sessions between nodes of the lab. speakers: switches whose bgpd must answer. Part: SESSIONS."""
    sessions: list[BgpSession] = []
    silent: list[str] = []
    for switch, states in now.sessions.items():
        if states is None and switch in speakers:
            silent.append(switch)
        for peer, state in (states or {}).items():
            if node := _owner(fabric, switch, peer, owners):
                sessions.append(BgpSession(switch, peer, node, state))
    return Sessions(tuple(sessions), tuple(silent), tuple(now.sessions))


def pairs_of(fabric: Fabric, found: Sessions) -> list[tuple[SessionEnd, SessionEnd]]:
    """Each session once, with both ends. One that only one end knows has NOT_CONFIGURED or NOT_ASKED at the other."""
    waiting: dict[tuple[str, str], list[BgpSession]] = {}
    for each in found.sessions:
        waiting.setdefault((each.switch, each.node), []).append(each)
    pairs = []
    for here in found.sessions:
        rest = waiting[here.switch, here.node]
        if here not in rest:
            continue  # paired with its other end
        rest.remove(here)
        end = _end(fabric, here)
        back = waiting.get((here.node, here.switch), [])
        # Of parallel sessions take the one over the same link, if the ports are known.
        same = [each for each in back if _end(fabric, each).ref == _far_end(fabric, end)]
        if other := next(iter(same or back), None):
            back.remove(other)
            far = _end(fabric, other)
        else:
            known = NOT_CONFIGURED if here.node in found.switches else NOT_ASKED
            port = _far_end(fabric, end).partition(":")[2]
            far = SessionEnd(here.node, port, "", NO_ANSWER if here.node in found.silent else known)
        pairs.append((end, far))
    return pairs


def _end(fabric: Fabric, session: BgpSession) -> SessionEnd:
    """The end at the session's switch: over the port with that name, or the port that leads to the peer's address."""
    for port in fabric.by_name[session.switch].ports:
        there = fabric.by_name[port.peer_node].port(port.peer_port).address
        if session.peer == port.name or (there is not None and session.peer == str(there.ip)):
            return SessionEnd(session.switch, port.name, session.peer, session.state)
    return SessionEnd(session.switch, "", session.peer, session.state)


def _far_end(fabric: Fabric, end: SessionEnd) -> str:
    """`ctsw1:eth1`; empty where the session has no port."""
    return fabric.by_name[end.node].port(end.port).peer_ref if end.port else ""


def unreached(fabric: Fabric, now: Snapshot, apart: Collection[str]) -> tuple[tuple[str, str, str], ...]:
    """(switch, address, host port) for each switch without a live route to a host. Part: FIBS.

    apart: addresses that are left out while no switch has a route to them.
    """
    found: list[tuple[str, str, str]] = []
    for address, port in host_addresses(fabric):
        without = [name for name, fib in now.fibs.items() if all(hop.dead for hop in fib.lookup(address))]
        if str(address) not in apart or len(without) < len(now.fibs):
            found += [(name, str(address), port) for name in without]
    return tuple(found)


def host_addresses(fabric: Fabric) -> list[tuple[Address, str]]:
    """Address and port of every host port with an address and a link to a switch."""
    return [
        (port.address.ip, port.ref)
        for port in fabric.host_ports
        if port.address is not None and fabric.by_name[port.peer_node].role is Role.SWITCH
    ]


def _owner(fabric: Fabric, switch: str, peer: str, owners: Mapping[str, str]) -> str:
    """The node of a peer; empty for a peer outside of the lab."""
    try:
        return owners.get(str(ip_address(peer)), "")
    except ValueError:  # an interface: unnumbered
        ports = {port.name: port.peer_node for port in fabric.by_name[switch].ports}
        return ports.get(peer, "")


def wait(lab: Lab, scope: WaitScope, observer: Observer, timeout: float) -> None:
    """Return when nothing is missing and nothing has changed for _STILL_S; CheckError after `timeout` seconds.

    The observer gets the reason while it waits.
    """
    total = len(lab.fabric.switches)
    observer.begin(STEP, total)
    end = time.monotonic() + timeout
    last: Look | None = None
    since = time.monotonic()
    asked = since
    while total:
        now = look(lab, scope)
        moment = time.monotonic()
        if last is None or now.fibs != last.fibs or not now.complete:
            since = moment
        elif moment - since >= _STILL_S:
            break
        last = now
        incomplete = {where.partition(":")[0] for where, _, _ in now.lines()}
        observer.advance(STEP, total - len(incomplete))
        if moment > end:
            raise CheckError(*_explained(lab, now, timeout))
        if moment - asked >= _REASON_S:
            asked = moment
            observer.waiting(STEP, "routes still change" if now.complete else now.reason())
        time.sleep(_PAUSE_S)
    observer.end(STEP, _summary(lab, last, scope))


def _summary(lab: Lab, last: Look | None, scope: WaitScope) -> str:
    """The message at the end: what was waited for, and what not."""
    if last is None:
        return "no routing program runs, so there is nothing to converge"
    hosts = sum(str(address) not in scope.apart for address, _ in host_addresses(lab.fabric))
    sessions = len(pairs_of(lab.fabric, last.bgp))
    parts = [f"{sessions} BGP sessions"] if sessions else []
    if any(daemon in IGP_DAEMONS for switch in lab.fabric.switches for daemon in lab.blueprint.daemons(switch.name)):
        parts.append("neighbours of OSPF and IS-IS")
    if hosts or not parts:
        parts.append(f"routes to {hosts} addresses of hosts in {len(lab.fabric.switches)} switches")
    left = [f"{some_of(sorted(last.idle))} without a configuration"] if last.idle else []
    left += [f"routes to {some_of(scope.apart)}, since no switch has an address there"] if scope.apart else []
    return ", ".join(parts) + (f"; not waited for: {'; '.join(left)}" if left else "")


def _explained(lab: Lab, now: Look, seconds: float) -> list[Problem]:
    lines = [(each.port, each.what, each.why) for each in now.igp] + now.lines()[len(now.awaited) :]
    if now.complete:
        why = f"failed: routes still change after {seconds:g} s"
        hint = f"./inv exec --lab {lab.name} {lab.fabric.switches[0].name} ip monitor route"
        return [Problem(lab.name, "convergence", why, hint)]
    count = len({where.partition(":")[0] for where, _, _ in lines})
    head = f"failed: {count} of {len(lab.fabric.switches)} switches are incomplete after {seconds:g} s"
    commands = [_COMMANDS[each] for each in dict.fromkeys(row.protocol for row in now.igp)]
    commands += ["show bgp summary"] if now.bgp.down or now.bgp.silent else []
    shown = " ".join(f"-c '{each}'" for each in (*commands, "show ip route"))
    hint = f"./inv exec --lab {lab.name} {lines[0][0].partition(':')[0]} vtysh {shown}"
    problems = [Problem(where, what, why) for where, what, why in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        problems.append(Problem("", f"and {len(lines) - _SHOWN} more", "like these"))
    return [Problem(lab.name, "convergence", head, hint), *problems]
