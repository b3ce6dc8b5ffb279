"""Wait for convergence. It is checked where packets are forwarded: in every switch's kernel.

In:  the fabric, and a handle per switch.
Out: nothing once every switch has every edge prefix over exactly the ports on its shortest paths. Otherwise: what is
missing, where, and the BGP state of the ports concerned. ForeignRoutes: static routes, announcements by hand, a wrong
prefix length. Prediction, kernel and packets follow them alike, so only this comparison finds them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import groupby
from typing import Final

from heddle.base.events import Observer
from heddle.base.families import Network
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.base.process import run
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.fabric.nexthops import edges_of
from heddle.fabric.ucmp import RELEASES, weights_of
from heddle.fabric.wiring import Node, Port
from heddle.kernel.fib import LINK_LOCAL, Fib, NextHop, local_routes, read_fib
from heddle.kernel.namespace import NodeHandle, inside
from heddle.kernel.netlink import NetInterface, RouteSocket, carries_traffic, interfaces
from heddle.lab.daemons import ESTABLISHED, Daemons

STEP: Final = "converge"
_PAUSE_S: Final = 0.05
_SHARE: Final = 4  # pause this many times as long as a check took, to leave the CPUs to FRR
_REASON_S: Final = 1.0  # between two reported reasons while waiting for routes
_REASONS: Final = 2  # in one line
_AT_ONCE: Final = 2  # switches
_SHOWN: Final = 12  # problems
_SOLICITATION: Final = bytes([133, *[0] * 7])  # RFC 4861, 4.1; the kernel sets the checksum
_SOLICIT_S: Final = (0.0, 0.1, 0.3)  # since the wait began: daemons may still read their files
_SOLICITED: Final = 2048  # ports, at most
_STUCK_S: Final = 15.0  # without any change: what is missing does not come by itself

# Switch -> port -> BGP state; None when the switch's bgpd does not answer.
Neighbours = Callable[[str], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class Gap:
    """One prefix that one switch forwards wrongly: next-hop ports that are missing, and ports that are extra.

    skewed: the kernel's weights, where they do not match the bandwidths behind the next hops; else empty.
    """

    switch: str
    prefix: Network
    missing: frozenset[str]
    extra: frozenset[str]
    skewed: str = ""

    @property
    def problem(self) -> Problem:
        """`rtsw1  10.0.1.0/24 has no next hop eth2`."""
        wrong = [f"has no next hop {port}" for port in sorted(self.missing)]
        wrong += [f"has the extra next hop {port}" for port in sorted(self.extra)]
        return Problem(self.switch, str(self.prefix), ", ".join([*wrong, *([self.skewed] if self.skewed else [])]))


@dataclass(frozen=True, slots=True)
class ForeignRoute:
    """A route that the fabric does not have. ports: none where it discards packets.

    overrides: the longest prefix of the fabric that contains it, which it takes packets from; None if there is none.
    """

    switch: str
    prefix: Network
    ports: tuple[str, ...]
    overrides: Network | None

    @property
    def what(self) -> str:
        """`10.0.1.1/32 over eth2`."""
        return f"{self.prefix} " + (f"over {', '.join(self.ports)}" if self.ports else "to nowhere")

    @property
    def why(self) -> str:
        """`is not a route of the fabric and overrides 10.0.1.0/24`."""
        return "is not a route of the fabric" + (f" and overrides {self.overrides}" if self.overrides else "")


def foreign_routes(fabric: Fabric, fibs: Mapping[str, Fib]) -> list[ForeignRoute]:
    """Routes over the fabric's ports, and routes inside its prefixes, that a fabric of a fabric file does not have.

    A route over another interface, such as that of a management network, counts only inside a prefix of the fabric.
    So does a route that discards packets.
    """
    edges = set(fabric.prefixes.values())
    announced = fabric.switches if fabric.policy.routing.loopbacks else ()
    loopbacks = {ip_network(node.loopback) for node in announced if node.loopback is not None}
    return [
        route
        for name, fib in fibs.items()
        for node in [fabric.by_name[name]]
        for route in _unknown(node, fib, {*fabric.expected_next_hops[name], *loopbacks, *(edges - {node.prefix})})
    ]


def overriding_routes(fabric: Fabric, fibs: Mapping[str, Fib]) -> list[ForeignRoute]:
    """Routes inside the networks of host ports. An imported topology defines no routes, so they may be intended."""
    networks = {
        port.address.network
        for port in fabric.host_ports
        if port.address is not None and fabric.by_name[port.peer_node].role is Role.SWITCH
    }
    found = (route for name, fib in fibs.items() for route in _unknown(fabric.by_name[name], fib, networks))
    return [route for route in found if route.overrides is not None]


def _unknown(node: Node, fib: Fib, known: Collection[Network]) -> Iterator[ForeignRoute]:
    names = {port.name for port in node.ports}
    for prefix, hops in fib.routes.items():
        if prefix in known:
            continue
        wider = (prefix.supernet(new_prefix=length) for length in reversed(range(prefix.prefixlen)))
        overrides = next((each for each in wider if each in known), None)
        if overrides is not None or names & {hop.port for hop in hops}:
            yield ForeignRoute(node.name, prefix, tuple(dict.fromkeys(hop.port for hop in hops)), overrides)


@dataclass(frozen=True)
class ExpectedRoutes:
    """Expected routes: switch -> prefix -> ports; with `routing.ucmp` also switch -> prefix -> port -> bandwidth."""

    ports: Mapping[str, Mapping[Network, frozenset[str]]]
    bandwidths: Mapping[str, Mapping[Network, Mapping[str, int]]]

    @classmethod
    def of(
        cls, fabric: Fabric, dead: Collection[str] = (), drained: Collection[str] = (), shut: Collection[str] = ()
    ) -> ExpectedRoutes:
        """Routes of a fabric with these dead links, drained switches and links without a session; see nexthops.py."""
        lost = {*dead, *shut}
        groups = fabric.groups_without(lost, drained) if lost or drained else fabric.next_hop_groups
        bandwidths = {
            switch: {
                fabric.prefixes[edge]: dict(zip(group.ports, group.bandwidths, strict=True))
                for group in parts
                if group.bandwidths
                for edge in edges_of(group.edges)
            }
            for switch, parts in groups.items()
        }
        if not lost and not drained:
            return cls(fabric.expected_next_hops, bandwidths)
        ports = fabric.next_hops(groups)
        for node in fabric.switches:
            for port in node.ports:
                if port.address is not None and (port.ref in dead or port.peer_ref in dead):
                    del ports[node.name][port.address.network]
        return cls(ports, bandwidths)


def gaps(fabric: Fabric, fibs: Mapping[str, Fib], wanted: ExpectedRoutes, *, strict: bool = False) -> list[Gap]:
    """Compare FIBs with the expected routes; fibs may hold some switches or all.

    strict: routes must not contain dead next hops either.
    """
    prefixes = set(fabric.prefixes.values())
    found = []
    for switch, fib in fibs.items():
        routes = fib.routes
        usable: dict[int, tuple[list[NextHop], frozenset[str], str]] = {}  # by identity: most routes share next hops
        right = set[tuple[int, int]]()  # by identity: next hops, and the wanted ports that they are
        bandwidths = wanted.bandwidths[switch]
        for prefix, ports in wanted.ports[switch].items():
            all_hops = routes.get(prefix, ())
            pair = id(all_hops), id(ports)
            if pair in right and not bandwidths:
                continue
            if id(all_hops) not in usable:
                kept = [hop for hop in all_hops if strict or not hop.dead]
                usable[id(all_hops)] = kept, frozenset(hop.port for hop in kept), _skewed(kept, {})
            hops, have, skewed = usable[id(all_hops)]
            if have != ports:
                found.append(Gap(switch, prefix, ports - have, have - ports))
            elif skewed := _skewed(hops, bandwidths[prefix]) if prefix in bandwidths else skewed:
                found.append(Gap(switch, prefix, frozenset(), frozenset(), skewed))
            else:
                right.add(pair)
        # Prefixes that dead links make unreachable: they must have no next hop.
        own = fabric.by_name[switch].prefix
        for prefix in prefixes - wanted.ports[switch].keys() - {own}:
            have = frozenset(hop.port for hop in routes.get(prefix, ()) if not hop.dead)
            if have:
                found.append(Gap(switch, prefix, frozenset(), have))
    return found


def _skewed(hops: Sequence[NextHop], bandwidths: Mapping[str, int]) -> str:
    """Describe wrong next-hop weights; empty if they match the weights that any known FRR release derives."""
    if len(hops) < 2:
        return ""
    now = tuple(hop.weight for hop in hops)
    wanted = [bandwidths.get(hop.port, 1) for hop in hops]
    rights = [weights_of(wanted, release) for release in RELEASES] if bandwidths else [(1,) * len(hops)]
    if now in rights:
        return ""
    text = f"has weights {', '.join(f'{hop.port} {hop.weight}' for hop in hops)}"
    return f"{text}, and bandwidths are {', '.join(map(str, wanted))}" if bandwidths else text


def wait(
    fabric: Fabric,
    handles: Mapping[str, NodeHandle],
    neighbours: Neighbours,
    observer: Observer,
    timeout: float,
    revive: Callable[[Iterable[str]], Iterable[str]] = lambda _: (),
) -> None:
    """Return when the fabric has converged; CheckError with what is missing after `timeout` seconds.

    revive: called with ports (`rtsw1:eth1`) that are missing as next hops, when no route has changed for a while;
    returns what it did, in lines.

    Switches are looked at two by two, until these have their routes: to read all of a large lab again and again would
    take the CPUs from FRR. Then all are read once more.
    """
    names, wanted = [switch.name for switch in fabric.switches if switch.name in handles], ExpectedRoutes.of(fabric)
    total = len(names)
    observer.begin(STEP, total)
    asked = moved = began = time.monotonic()
    end = asked + timeout

    def look(switches: Iterable[str]) -> list[Gap]:
        fibs = {switch: read_fib(handles[switch], fabric.policy.ip_version) for switch in switches}
        return gaps(fabric, fibs, wanted)

    pending, before, solicited = names, -1, 0
    while pending:
        start = time.monotonic()
        if solicited < len(_SOLICIT_S) and start - began >= _SOLICIT_S[solicited]:
            solicit(fabric, handles)
            solicited += 1
        found = look(pending[:_AT_ONCE])
        now = time.monotonic()
        pending = [*dict.fromkeys(gap.switch for gap in found), *pending[_AT_ONCE:]]
        if not found:
            pending = pending or list(dict.fromkeys(gap.switch for gap in look(names)))
            observer.advance(STEP, total - len(pending))
            moved = now
            continue
        if now > end:
            raise CheckError(*describe_gaps(fabric, look(names), neighbours, timeout))
        if len(found) != before:
            moved, before = now, len(found)
        elif now - moved > _STUCK_S:
            for line in revive(f"{gap.switch}:{port}" for gap in look(pending) for port in sorted(gap.missing)):
                observer.warn(line)
            moved = time.monotonic()
        if now - asked >= _REASON_S:
            asked = now
            observer.waiting(STEP, _reason(fabric, found, neighbours))
        time.sleep(max(_PAUSE_S, _SHARE * (now - start)))
    observer.end(STEP, f"{total} switches have all next hops")


@dataclass(frozen=True, slots=True)
class _Group:
    """Prefixes that a switch forwards wrongly in the same way; see Gap."""

    switch: str
    missing: frozenset[str]
    extra: frozenset[str]
    skewed: str
    prefixes: list[Network]

    def problem(self, fabric: Fabric, states: Mapping[str, str] | None) -> Problem:
        """`10.0.1.0/24 and 6 more have no next hop over eth1 to ctsw1 (BGP: Active)`. states: None: no answer."""
        some = str(self.prefixes[0]) + (f" and {len(self.prefixes) - 1} more" if len(self.prefixes) > 1 else "")
        if states is None:
            log = f"./inv exec --lab {fabric.name} {self.switch} cat /var/log/frr/bgpd.log"
            return Problem(self.switch, "bgpd", "does not answer", log)
        if self.skewed:
            return Problem(self.switch, some, self.skewed)

        def named(port: Port) -> str:
            state = states.get(port.name, "no neighbour")
            note = "" if state == ESTABLISHED or not fabric.policy.routing.by_bgp else f" (BGP: {state})"
            return f"{port.name} to {port.peer_node}{note}"

        verb = "has" if len(self.prefixes) == 1 else "have"
        parts = []
        for words, ports in (("no next hop over", self.missing), ("an extra next hop over", self.extra)):
            if ports:
                names = [named(port) for port in fabric.by_name[self.switch].ports if port.name in ports]
                parts.append(f"{verb} {words} {some_of(names)}")
        return Problem(self.switch, some, "; ".join(parts))


def _grouped(found: Iterable[Gap]) -> list[_Group]:
    groups: dict[tuple[object, ...], _Group] = {}
    for gap in found:
        group = _Group(gap.switch, gap.missing, gap.extra, gap.skewed, [])
        groups.setdefault((gap.switch, gap.missing, gap.extra, gap.skewed), group).prefixes.append(gap.prefix)
    return list(groups.values())


def _reason(fabric: Fabric, found: Sequence[Gap], neighbours: Neighbours) -> str:
    """The first gaps in one line. Only their switches are asked for BGP states: asking all would slow BGP down."""
    groups = _grouped(found)
    problems = [group.problem(fabric, {} if group.skewed else neighbours(group.switch)) for group in groups[:_REASONS]]
    more = f"; and {len(groups) - _REASONS} more" if len(groups) > _REASONS else ""
    return "; ".join(f"{each.where}: {each.what} {each.why}" for each in problems) + more


def describe_gaps(fabric: Fabric, found: list[Gap], neighbours: Neighbours, timeout: float) -> list[Problem]:
    """Gaps as problems: one for each switch and set of ports, switches without a working bgpd first."""
    groups = _grouped(found)
    states = {switch: neighbours(switch) for switch in dict.fromkeys(group.switch for group in groups)}
    groups.sort(key=lambda group: states[group.switch] is not None)
    problems = list(dict.fromkeys(group.problem(fabric, states[group.switch]) for group in groups))
    shown = problems[:_SHOWN]
    if len(problems) > _SHOWN:
        shown.append(Problem("", f"and {len(problems) - _SHOWN} more", "like these"))
    what = "routes are missing" if any(gap.missing for gap in found) else "routes have other next hops or weights"
    head = f"{what} on {len(states)} of {len(fabric.switches)} switches after {timeout:g} s"
    look = f"./inv exec --lab {fabric.name} {found[0].switch} vtysh -c 'show bgp summary'"
    if not fabric.policy.routing.by_bgp:
        look = f"./inv up --repair --name {fabric.name} installs them again"
    return [Problem(fabric.name, "convergence", f"failed: {head}", look), *shown]


def solicit(fabric: Fabric, handles: Mapping[str, NodeHandle]) -> None:
    """Ask all neighbours of unnumbered ports for router advertisements, which zebra sends at once (RFC 4861, 6.2.6).

    BGP learns its peers from them. Those of a zebra that started before its neighbour's are lost, and the next ones
    come up to a second later. In a large fabric the start itself takes longer than that.
    """
    ports = [port for node in fabric.switches for port in node.ports if port.address is None]
    for name, some in groupby(ports if len(ports) <= _SOLICITED else (), lambda port: port.node):
        if name in handles:
            with (
                inside(handles[name].netns),
                socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sender,
            ):
                sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
                for port in some:
                    with suppress(OSError):  # a port that is down
                        sender.sendto(_SOLICITATION, ("ff02::2", 0, 0, socket.if_nametoindex(port.name)))


_RESTARTED: Final = 32  # sessions in one round


def restore_routes(
    fabric: Fabric, handles: Mapping[str, NodeHandle], switches: Collection[str] | None = None
) -> list[str]:
    """Add the link-local routes that ports with a carrier do not have; returns these ports. switches: all by default.

    An unnumbered port reaches its neighbour by the route fe80::/64 over it. The kernel adds it with the link-local
    address, but from memory that it must get without sleeping (addrconf_add_linklocal: GFP_ATOMIC, also for the per-CPU
    part in fib6_nh_init). When thousands of ports come up at once, such requests fail ("percpu: allocation failed,
    size=8 align=8 atomic=1" in the kernel's log): the port has its address and no route, and nothing repeats it.
    The kernel itself adds them up to a second after a link came up (linkwatch). Either of the two additions is enough.
    """
    found = []
    for node in fabric.switches:
        if node.name not in handles or (switches is not None and node.name not in switches):
            continue
        netns = handles[node.name].netns
        with inside(netns), RouteSocket(netns, here=True) as netlink:
            ports = without_route(netlink, node, [*interfaces(netlink)])
        if ports:
            lines = "".join(f"route append {LINK_LOCAL} dev {port} proto kernel metric 256\n" for port in ports)
            run(["nsenter", f"--net={netns}", "ip", "-6", "-force", "-batch", "-"], stdin=lines, check=False)
            found += [f"{node.name}:{port}" for port in ports]
    return found


def without_route(netlink: RouteSocket, node: Node, every: Collection[NetInterface]) -> list[str]:
    """The unnumbered ports of a switch that have a carrier and no link-local route, read by an open socket.

    every: all its interfaces.
    """
    up = {each.name: each.ifindex for each in every if carries_traffic(each.flags)}
    routed = local_routes(netlink)
    return [
        port.name for port in node.ports if port.address is None and port.name in up and up[port.name] not in routed
    ]


def revive(daemons: Daemons, handles: Mapping[str, NodeHandle], ends: Iterable[str]) -> list[str]:
    """Restore or restart the sessions of these ports (`rtsw1:eth1`) that are not established. A line for each."""
    fabric = daemons.fabric
    refs: dict[str, list[str]] = {}
    for ref in dict.fromkeys(ends):
        node, _, port = ref.partition(":")
        refs.setdefault(node, []).append(port)
    late: list[tuple[str, str, str]] = []
    for node, ports in refs.items():
        states = daemons.sessions(node)
        if states is not None:
            rows = [(node, port, states.get(port, "")) for port in ports]
            late += [row for row in rows if row[2] not in ("", ESTABLISHED)]
    ends_of = {node for node, port, _ in late} | {fabric.by_name[node].port(port).peer_node for node, port, _ in late}
    if restored := restore_routes(fabric, handles, ends_of):
        return [f"{ref}: its route {LINK_LOCAL} was missing; added" for ref in restored]
    lines = []
    for node, port, state in late[:_RESTARTED]:
        command = ["vtysh", "-d", "bgpd", "-c", f"clear bgp {port}"]
        with suppress(MachineError):  # the daemon ended meanwhile: the wait reports that
            daemons.runtime.output(daemons.fabric.name, daemons.topology, node, command)
            lines.append(f"{node}:{port}: its BGP session stayed in {state}; restarted")
    return lines
