"""What is wrong with a running lab, as one list that all readers share.

In:  a Lab and a snapshot of it with `parts(lab)`.
Out: Facts, what explains others first. `status`, the warnings of `run`, the checks of `validate` and the causes of
`diagnose` read this list and no other, so none of them knows less than another one.
A new fact is one function, which returns Problems, and its line in FACTS. Facts are read from kernels, maps and
daemons, never from the record of faults that were set on purpose; `as_set` adds what the record says.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from ipaddress import ip_interface
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heddle.base.plugins import Registry
from heddle.base.problems import HeddleError, Problem
from heddle.base.sysctls import read_sysctl, sysctl_number, sysctl_path
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import BACKEND, Node, Port
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.fib import LINK_LOCAL
from heddle.kernel.ipsettings import OF_PORTS, commanded, port_sysctls
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import RouteSocket, interfaces
from heddle.lab import agents, rehash
from heddle.lab.control import gateway_of
from heddle.lab.convergence import foreign_routes
from heddle.lab.cutlinks import kernel_ids, lost_carriers, memory_problems
from heddle.lab.daemons import GRACEFUL_SHUTDOWN, MissingSession, SessionCauses, explained
from heddle.lab.fact import Fact
from heddle.lab.faults import orders
from heddle.lab.faults.packets import fault_differences, wanted_faults
from heddle.lab.faults.slowlink import SlowLink, shares_of
from heddle.lab.linkstate import State, repair_hint
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, in_copies, in_processes, processes_for, spread
from heddle.lab.thresholds import wrong_thresholds
from heddle.runtimes.netns_topology import read_topology
from heddle.switch.queues.classes import PortRef
from heddle.switch.queues.portqueues import Setup, expected

if TYPE_CHECKING:
    from heddle.lab.lab import Lab

NEXT_HOPS: Final = "next-hops"
SESSION: Final = "session"
ROUTE: Final = "route"
_EXTRA: Final = "extra next hop"
_AGAIN: Final = "installs the routes again"
_BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
_ONLINE: Final = Path("/sys/devices/system/cpu/online")
_MADE: Final = ("daemons", "link", "drained", SESSION, "link-route", ROUTE, NEXT_HOPS)  # by faults of lab/faults/


@dataclass(frozen=True)
class LabLook:
    """What facts are found in. stopped: nodes that do not run; then only sessions are read."""

    lab: Lab
    now: Snapshot
    stopped: Sequence[str] = ()

    @cached_property
    def missing(self) -> tuple[MissingSession, ...]:
        """BGP sessions that are not established, with their causes. Parts: SESSIONS, CARRIER, SILENT."""
        found = self.lab.blueprint.missing_sessions(self.now)
        seen = SessionCauses(self.stopped, self.now.down, self.now.silent)
        return explained(found, seen, self.lab.daemons.peers) if found else ()

    @cached_property
    def thresholds(self) -> Sequence[Problem]:
        """Thresholds, classes and curves that differ from what was set last."""
        hint = self.repairs("sets them again")
        return [replace(each, hint=hint) for each in wrong_thresholds(self.lab)]

    @cached_property
    def ports(self) -> PortFaults:
        """Ports whose shapers, queues or programs differ."""
        return port_faults(self.lab.fabric, self.now, ids=kernel_ids(self.lab))

    @cached_property
    def delivery(self) -> Sequence[tuple[str, Problem]]:
        """Ports that have offloads on or may reorder packets. Part: PORTS."""
        return wrong_delivery(self.lab, [*self.now.links])

    @cached_property
    def gaps(self) -> Sequence[Problem]:
        """Prefixes with other next hops than links, drains and sessions give."""
        return self.lab.blueprint.gaps(self.now)

    def repairs(self, what: str) -> str:
        """The hint for what `up --repair` repairs: `sets it again`."""
        return repair_hint(self.lab.name, what)


def _daemons(look: LabLook) -> Iterable[Problem]:
    """Daemons that do not answer, after shards whose memory was too small for them."""
    hint = look.repairs("starts FRR of that switch again")
    silent = [Problem(node, each, "does not answer", hint) for node, names in look.now.silent.items() for each in names]
    return [*(memory_problems(look.lab) if silent or look.lab.missing_nodes() else ()), *silent]


def _agent(look: LabLook) -> Iterable[Problem]:
    """The PFC agent or its keeper does not work: no pause is sent or obeyed, or gates stay closed."""
    state = agents.alive(look.lab)
    effects = {"agent": "pauses are neither sent nor obeyed", "keeper": "gates stay closed without it"}
    if not Setup.of(look.lab.fabric).gated:
        effects = {"agent": "queues of links that go down stay full", "keeper": "nothing replaces the agent"}
    for name, effect in effects.items():
        if why := state.fault(name):
            yield Problem("", f"the PFC {name}", f"{why}, so {effect}", look.repairs("starts it again"))


def _ports(look: LabLook) -> Iterable[Problem]:
    """Ports without Heddle's root qdisc, and shapers and queues that differ from the fabric file."""
    installs, recreate = look.repairs("installs it again"), f"./inv down {look.lab.name}, then up again"
    for ref, kind in look.now.foreign_roots.items():
        other = "is missing" if kind == "nothing" else f"is not Heddle's, but {kind}"
        lost = Problem(ref, "the port", "is missing: it was removed", recreate)
        yield Problem(ref, "the root qdisc", other, installs) if kind else lost
    for ref, why in look.ports.queues.items():
        yield Problem(ref, "the port", why, installs)


def _programs(look: LabLook) -> Iterable[Problem]:
    hint = look.repairs("installs them again")
    return [Problem(ref, "the port", why, hint) for ref, why in look.ports.programs.items()]


class PortFaults(NamedTuple):
    """Ports with Heddle's root qdisc that differ otherwise: `rtsw1:eth1` -> `is shaped to 1mbit, not 25mbit`."""

    queues: Mapping[str, str]
    programs: Mapping[str, str]


def port_faults(
    fabric: Fabric,
    now: Snapshot,
    shares: Mapping[str, float] | None = None,
    ids: Mapping[PortRef, int] | None = None,
) -> PortFaults:
    """Differences of shapers and queues, and of programs; also of the programs below a foreign root. Part: PORTS.

    shares: port -> the share of its rate it has on purpose. ids: of ports in their kernels; by default in this one.
    """
    setup, foreign, shares = Setup.of(fabric), now.foreign_roots, shares or {}
    ids = ids or setup.ids
    wrong: dict[str, str] = {}
    odd: dict[str, str] = {}
    right: dict[tuple[int, int], tuple[Any, ...]] = {}  # rate and MTU -> what was read at a port without a difference
    for node in fabric.nodes_here:
        for port in node.ports:
            ref, rate = port.ref, round(port.rate_bps * shares.get(port.ref, 1))
            has, wanted = now.programs[ref], expected(node, ids[port.node, port.name])
            queue = now.shapers.get(ref)
            read = () if queue is None else (queue.rate_bps, queue.ceil_bps, queue.burst, queue.leaves)
            if ref not in foreign and (not read or right.get((rate, port.mtu)) != read):
                if lines := setup.faults(replace(port, rate_bps=rate), queue):
                    wrong[ref] = "; ".join(lines)
                else:
                    right[rate, port.mtu] = read
            if has != wanted and foreign.get(ref) != "":
                current, should = (", ".join(each.text() for each in some) for some in (has, wanted))
                odd[ref] = f"has {current or 'no program'}, not {should}"
    return PortFaults(wrong, odd)


def _links(look: LabLook) -> Iterable[Problem]:
    if not look.lab.blueprint.rendered:
        return []  # an imported topology does not say which links should be up
    hint = look.repairs("sets it up")
    return [Problem(ref, "the link", "is down", hint) for ref in State.ends(look.lab.fabric, look.now.down)]


def _mtus(look: LabLook) -> Iterable[Problem]:
    """Ports with another MTU than the fabric file; of an imported topology, whose commands may set MTUs, only those
    that are smaller than the other end or than data packets.
    """
    links, rendered, hint = look.now.links, look.lab.blueprint.rendered, look.repairs("sets it again")
    policy = look.lab.fabric.policy
    for port in _every_port(look.lab):
        roce = port.network == BACKEND  # other networks carry TCP, in segments as long as their MTU allows
        needed = policy.ib_mtu + policy.ip.overhead if roce else policy.of(port.network).mtu
        here, there = (links[ref].mtu if ref in links else port.mtu for ref in (port.ref, port.peer_ref))
        if here != port.mtu and (rendered or here < max(there, needed)):
            why = f"is {here}, not {port.mtu}; the other end, {port.peer_ref}, has {there}"
            yield Problem(port.ref, "the MTU", why + f"; data packets need {needed}" * (here < needed), hint)


def _path_mtus(look: LabLook) -> Iterable[Problem]:
    """MTUs of paths to hosts that nodes have learned while a link had a smaller one: they last ten minutes."""
    if any(_mtus(look)):
        return  # what nodes have learned follows from them
    hosts = {str(port.address.ip) for port in look.lab.fabric.host_ports if port.address is not None}
    for name, learned in look.now.path_mtus.items():
        most = max((port.mtu for port in look.lab.fabric.by_name[name].ports), default=0)
        small = {address: mtu for address, mtu in learned.items() if mtu < most and address in hosts}
        if small:
            what = f"the learned MTU of the path to {some_of([*small])}"
            yield Problem(name, what, f"is {min(small.values())}, not {most}", look.repairs("forgets it"))


def _macs(look: LabLook) -> Iterable[Problem]:
    hint = look.repairs("sets it again")
    for port in _every_port(look.lab):
        link = look.now.links.get(port.ref)
        if link is not None and look.lab.blueprint.rendered and link.mac != port.mac:
            yield Problem(port.ref, "the MAC", f"is {link.mac}, not {port.mac}", hint)


def _arp(look: LabLook) -> Iterable[Problem]:
    """Ports that neither ask for MACs nor answer: the kernel sends all packets there to the port's own MAC."""
    hint = look.repairs("turns it on")
    return [Problem(ref, "ARP", "is off", hint) for ref, link in look.now.links.items() if not link.arp]


def _neighbours(look: LabLook) -> Iterable[Problem]:
    """Neighbour entries with a MAC that is not that of the only node at the other end of the link."""
    hint, ports = look.repairs("removes it"), {port.ref: port for port in _every_port(look.lab)}
    for ref, entries in look.now.neighbours.items():
        peer = ports.get(ports[ref].peer_ref) if ref in ports else None
        if peer is None or peer.bridge or ports[ref].bridge:
            continue
        link, own = look.now.links.get(peer.ref), ports[ref].address
        macs = {peer.mac, peer.mac if link is None else link.mac}
        everyone = {"255.255.255.255", "" if own is None else str(own.network.broadcast_address)}
        for each in entries if look.now.links[ref].arp else ():  # without ARP all entries are wrong
            if each.mac not in macs and (each.mac != _BROADCAST or each.address not in everyone):
                why = f"has the MAC {each.mac}, and {peer.ref} has {peer.mac}"
                yield Problem(ref, f"the neighbour entry of {each.address}", why, hint)


def _gateways(look: LabLook) -> Iterable[Problem]:
    """Gateways without an entry: without FRR the kernel forgets it when its port is set down."""
    fabric, hint = look.lab.fabric, look.repairs("adds it")
    for port in () if fabric.policy.routing.by_bgp else (port for node in fabric.switches for port in node.ports):
        gateway, there = gateway_of(fabric, port), look.now.neighbours.get(port.ref, ())
        if port.address is None and port.ref not in look.now.down and all(gateway != each.address for each in there):
            yield Problem(port.ref, f"the neighbour entry of {gateway}", "is missing", hint)


def _addresses(look: LabLook) -> Iterable[Problem]:
    """Addresses, rules and hosts' routes that differ from those that `up` set. A port that is down loses its own."""
    for name, line, lost in differences_of_addresses(look.lab, look.now):
        ports = {port.name: port for port in look.lab.fabric.by_name[name].ports}
        what, *words = line.removeprefix("-6 ").split()
        port = ports.get(words[words.index("dev") + 1]) if "dev" in words else None
        if lost and port is not None and {port.ref, port.peer_ref} & look.now.down.keys():
            continue
        at, text = (port.ref, words[0]) if port is not None and what == "addr" else (name, " ".join(words))
        why, hint = ("is missing", "adds it") if lost else ("was not set by `up`", "removes it")
        yield Problem(at, f"the {what.replace('addr', 'address')} {text}", why, look.repairs(hint))


def differences_of_addresses(lab: Lab, now: Snapshot) -> list[tuple[str, str, bool]]:
    """(node, line of kernel/ipsettings.py, whether it is missing; else it was added), as to be repaired one by one.

    What is outside of the fabric's pools and not at its ports belongs to a management network. Part: ADDRESSES.
    """
    found = list[tuple[str, str, bool]]()
    # Commands of an imported topology, and its user, may set any.
    for name, node in read_topology(lab.topology).nodes.items() if lab.blueprint.rendered else ():
        switch, wanted = lab.fabric.by_name[name].role is Role.SWITCH, commanded(node.exec)
        has, own = now.addresses.get(name, wanted), {"lo", *(port.name for port in lab.fabric.by_name[name].ports)}
        rules = {line.partition("rule ")[0] for line in has if "rule " in line}  # a kernel may have none of IPv6
        kept = (line for line in wanted - has if "rule " not in line or line.partition("rule ")[0] in rules)
        found += [(name, line, True) for line in kept if not (switch and "route " in line)]
        found += [(name, line, False) for line in has - wanted if _concerns(line, own, lab.fabric)]
    return sorted(found, key=lambda row: (row[0], row[2], "route " in row[1], row[1]))


def _concerns(line: str, own: set[str], fabric: Fabric) -> bool:
    words = line.removeprefix("-6 ").split()
    if words[0] == "rule" or "dev" not in words or own & {*words}:
        return True
    first = ip_interface(words[1]).network
    return any(first.version == pool.version and first.network_address in pool for pool in fabric.policy.pools)


def _every_port(lab: Lab) -> Iterable[Port]:
    return (port for node in lab.fabric.nodes for port in node.ports)


def _drained(look: LabLook) -> Iterable[Problem]:
    hint = f"./inv fault undrain {{}} --lab {look.lab.name} ends it"
    by, how = ("BGP", f" ({GRACEFUL_SHUTDOWN})") if look.lab.fabric.policy.routing.by_bgp else ("Heddle", "")
    names = look.now.drained if look.lab.blueprint.rendered else ()
    return [Problem(name, by, f"drains the switch{how}", hint.format(name)) for name in names]


def _sessions(look: LabLook) -> Iterable[Problem]:
    """Missing BGP sessions over links that are up, between daemons that answer."""
    for each in look.missing:
        ends = (each.a, each.b)
        if any(end.node in look.now.silent or end.ref in look.now.down for end in ends):
            continue  # it follows from another fact
        at = next((end for end in ends if f"down at {end.node} " in each.why), each.a)
        other = each.b if at == each.a else each.a
        why = f"with {other.ref} is not established: {each.why or f'{at.state}, the cause is not known'}"
        hint = f"./inv exec --lab {look.lab.name} {at.node} vtysh -c 'show bgp neighbors {at.peer}'"
        yield Problem(at.ref, "the BGP session", why, hint)


def _unrouted(look: LabLook) -> Iterable[Problem]:
    """Ports without the route to their link-local neighbour: no BGP session comes up there."""
    rows = [ref.split(":") for ref in look.now.unrouted] if look.lab.blueprint.rendered else []
    off = {(each.where, each.what) for each in wrong_sysctls(look.lab).problems} if rows else set()
    # A port without IPv6 has no such route.
    refs = [f"{node}:{port}" for node, port in rows if (node, f"net.ipv6.conf.{port}.disable_ipv6") not in off]
    return [Problem(ref, f"the route {LINK_LOCAL}", "is missing", look.repairs("adds it")) for ref in refs]


def _next_hops(look: LabLook) -> Iterable[Problem]:
    """Prefixes without next hops that links, drains and sessions should give."""
    lab = look.lab
    hint = f"./inv exec --lab {lab.name} {{}} vtysh -c 'show bgp {lab.fabric.policy.ip.word} unicast {{}}'"
    hint += f"; {look.repairs('undoes commands that were entered in FRR')}"
    hint = hint if lab.fabric.policy.routing.by_bgp else look.repairs(_AGAIN)
    found = (each for each in look.gaps if _EXTRA not in each.why)
    return [replace(each, hint=hint.format(each.where, each.what) if lab.blueprint.rendered else "") for each in found]


def _routes(look: LabLook) -> Iterable[Problem]:
    """Routes that the fabric does not have, and next hops that are on no shortest path."""
    if not look.lab.blueprint.rendered:
        return []
    word = "ip" if look.lab.fabric.policy.ip_version == 4 else "ip -6"
    show = f"run ./inv exec --lab {look.lab.name} {{}} {word} route show {{}}"
    show += " to see its origin (proto), and remove it there"
    found = [Problem(each.switch, each.what, each.why) for each in foreign_routes(look.lab.fabric, look.now.fibs)]
    extra = [each for each in look.gaps if _EXTRA in each.why]
    shown = [replace(each, hint=show.format(each.where, each.what.partition(" ")[0])) for each in (*found, *extra)]
    if look.lab.fabric.policy.routing.by_bgp:
        return shown
    return [*shown[: len(found)], *(replace(each, hint=look.repairs(_AGAIN)) for each in extra)]


def _hashing(look: LabLook) -> Iterable[Problem]:
    hint = look.repairs("sets it again")
    live = rehash.live_hashing(look.lab)
    faults = rehash.hashing_faults(look.lab, rehash.wanted(look.lab, live), live, look.now.hashing)
    return [Problem(name, "the hashing:", why, hint) for name, why in faults.items()]


@spread(concat)
def wrong_delivery(lab: Lab, there: Collection[str]) -> list[tuple[str, Problem]]:
    """Ports that have offloads on (`offloads`) or may reorder packets (`order`). there: those that exist."""
    wanted, online = delivery.chosen().delivery, inorder.online_cpus(_ONLINE.read_text(encoding="ascii"))
    hint, handles, kept = repair_hint(lab.name, "sets it again"), lab.handles(), {*there}

    def read(nodes: Sequence[Node]) -> list[tuple[str, Problem]]:
        found = []
        for node in nodes:
            rows = inorder.read(handles[node.name].netns, [p.name for p in node.ports if p.ref in kept], wanted)
            alike = {row: inorder.fault(row, wanted, online) for row in set(rows.values())}
            for name, row in rows.items():
                on = f"has {', '.join(row.offloads)} on" if row.offloads else ""
                whys = {"offloads": on, "order": alike[row]}
                found += [(k, Problem(f"{node.name}:{name}", "the port", why, hint)) for k, why in whys.items() if why]
        return found

    return concat(in_processes(read, lab.own_nodes))


def _delivery(check: str, look: LabLook) -> Iterable[Problem]:
    return [problem for kind, problem in look.delivery if kind == check]


def _link_faults(look: LabLook) -> Iterable[Problem]:
    """Links that lose, change or delay packets without a record of it, or not as recorded."""
    hint = look.repairs("makes it as recorded")
    wrong = fault_differences(look.lab, wanted_faults(look.lab))
    return [Problem(ref, "the link", why, hint) for ref, why in wrong.items()]


def _sysctls(look: LabLook) -> Iterable[Problem]:
    hint = look.repairs("sets it again")
    return [replace(each, hint=each.hint or hint) for each in wrong_sysctls(look.lab).problems]


@dataclass(frozen=True, slots=True)
class FactKind:
    """How a fact is found, and who reports it. words: what was read, where there is no such fact.

    check: of `validate`, which fails. causes: of `diagnose`; the first is its own, and findings of the others at the
    same place report it, too.
    """

    find: Callable[[LabLook], Iterable[Problem]]
    check: str
    causes: tuple[str, ...]


# About half of the work in a large lab; no other fact has the same cached part of a LabLook.
_APART: Final = frozenset({"sysctl", "hashing", "thresholds", "classes"})
RECORDED: Final = "link-fault"  # of this kind a fact is told by what the lab has on record
# What explains others comes first.
_OWN: Final[dict[str, FactKind]] = {
    "daemons": FactKind(_daemons, "daemons", ("control-plane-dead", "node-down")),
    "agent": FactKind(_agent, "pauses", ("pause-agent",)),
    "tunnel": FactKind(lambda look: lost_carriers(look.lab), "links", ("link-down",)),
    "link": FactKind(_links, "links", ("link-down", "link-flap", "node-down")),
    "mtu": FactKind(_mtus, "mtu", ("wrong-mtu",)),
    "path-mtu": FactKind(_path_mtus, "mtu", ("wrong-mtu",)),
    "mac": FactKind(_macs, "neighbours", ("wrong-neighbour",)),
    "neighbour": FactKind(lambda look: [*_neighbours(look), *_gateways(look)], "neighbours", ("wrong-neighbour",)),
    "arp": FactKind(_arp, "neighbours", ("wrong-neighbour",)),
    "address": FactKind(_addresses, "addresses", ("wrong-address",)),
    "hashing": FactKind(_hashing, "hashing", ("wrong-seed", "polarisation")),
    "sysctl": FactKind(_sysctls, "sysctls", ("wrong-sysctl", "wrong-seed", "polarisation")),
    "port": FactKind(_ports, "queues", ("wrong-queues", "slow-link", "slow-host")),
    "programs": FactKind(_programs, "programs", ("wrong-queues",)),
    RECORDED: FactKind(_link_faults, "faults", ("link-lossy", "bit-errors", "slow-link")),
    "thresholds": FactKind(lambda look: [p for p in look.thresholds if p.where], "thresholds", ("wrong-threshold",)),
    # DSCPs in another class than in the fabric file: one table for all ports.
    "classes": FactKind(lambda look: [p for p in look.thresholds if not p.where], "thresholds", ("wrong-class",)),
    "drained": FactKind(_drained, "links", ("drained",)),
    SESSION: FactKind(_sessions, "bgp", ("bgp-session-down",)),
    "link-route": FactKind(_unrouted, "routes", ("bgp-session-down",)),
    ROUTE: FactKind(_routes, "routes", ("misrouting",)),
    NEXT_HOPS: FactKind(_next_hops, "routes", ("missing-next-hop",)),
    "offloads": FactKind(partial(_delivery, "offloads"), "offloads", ("failed-check",)),
    "order": FactKind(partial(_delivery, "order"), "order", ("failed-check",)),
}  # fmt: skip
FACTS: Final[Registry[FactKind]] = Registry("fact", _OWN, FactKind)


def parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that facts are found in. An imported topology defines neither drains nor routes."""
    own = LabPart.DRAINED | LabPart.FIBS | LabPart.UNROUTED | LabPart.ADDRESSES
    rendered = own if lab.blueprint.rendered else LabPart(0)
    every = LabPart.SILENT | LabPart.PORTS | LabPart.NEIGHBOURS | LabPart.CARRIER | LabPart.SESSIONS | LabPart.HASHING
    return every | rendered | lab.blueprint.gap_parts


def facts(lab: Lab, now: Snapshot, kinds: Collection[str] = FACTS) -> tuple[Fact, ...]:
    """The facts of a lab whose nodes are all running. now: a snapshot taken just now, by default with `parts(lab)`.

    What cannot be read is a fact of its kind: a node may have ended meanwhile.
    """
    look = LabLook(lab, now)

    def find(some: Collection[str]) -> list[Fact]:
        found = list[Fact]()
        for kind in some:
            try:
                found += [Fact(kind, problem) for problem in FACTS[kind].find(look)]
            except HeddleError as error:
                found += [Fact(kind, problem) for problem in error.problems]
        return found

    rows = [[each for each in FACTS if each in kinds and (each in _APART) == apart] for apart in (False, True)]
    shared = all(rows) and processes_for(lab.fabric.nodes) > 1 and lab.runtime.here
    found = concat(in_copies(find, rows if shared else [[*rows[0], *rows[1]]]))
    order = {kind: number for number, kind in enumerate(FACTS)}
    return tuple(sorted(found, key=lambda each: order[each.kind]))


def as_set(lab: Lab, now: Snapshot, found: Sequence[Fact]) -> tuple[Fact, ...]:
    """The same facts, with what the record says: faults that were set on purpose are named, with what ends them.

    A port that has the rate that was set is no fault.
    """
    shares = shares_of(orders.each_of(SlowLink, lab), lab)
    slowed = {ref for ref in shares if ref not in port_faults(lab.fabric, now, shares).queues} if shares else set()
    kept = [each for each in found if not (each.kind == "port" and each.problem.where in slowed)]
    meant = orders.explained(lab, [each.problem for each in kept])
    rows = zip(kept, meant, strict=True)
    return tuple(Fact(each.kind, line) if each.kind in _MADE else each for each, line in rows)


def known_facts(lab: Lab, now: Snapshot) -> tuple[Fact, ...]:
    """Both: for readers who may know what was set on purpose."""
    return as_set(lab, now, facts(lab, now))


def converged(lab: Lab, now: Snapshot, found: Collection[Fact]) -> bool | None:
    """One verdict for `up` and `status`: False where there are facts, None where no node routes. Part: SESSIONS."""
    if any(each.kind != NEXT_HOPS for each in found):
        return False
    return not found if lab.blueprint.routing(now) else None


@dataclass(frozen=True, slots=True)
class SysctlsRead:
    """count: of values that were compared. notes: values that a topology decides itself, with their nodes."""

    count: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def _joined(found: Sequence[SysctlsRead]) -> SysctlsRead:
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return SysctlsRead(
        sum(each.count for each in found), tuple(p for each in found for p in each.problems), tuple(notes)
    )


@spread(_joined)
def wrong_sysctls(lab: Lab, *, repair: bool = False) -> SysctlsRead:
    """Read all of these nodes. A problem names the node, the key, its value and the expected one.

    repair: write the expected values, except those that a topology sets itself: their problems have a hint.
    """
    given, decided, handles = lab.blueprint.sysctls(lab.topology), lab.blueprint.own_sysctls(), lab.handles()
    live = rehash.live_hashing(lab)
    rules = rehash.hashing_sysctls(lab, live)

    def read(nodes: Sequence[Node]) -> SysctlsRead:
        problems: list[Problem] = []
        count = 0
        own: dict[tuple[str, str], list[str]] = {}  # (sysctl and value, source in the topology) -> nodes
        for node in nodes:
            wanted = dict(given[node.name])
            of_ports = _of_ports(wanted) if lab.blueprint.rendered else {}
            settings = dict(decided.get(node.name, {}))
            if node.role is Role.SWITCH:
                wanted |= rules[node.name]
            if node.name in live:  # the verb `hashing` came later
                settings = {key: rows for key, rows in settings.items() if key not in rules[node.name]}
            count += len(wanted) + len(of_ports) * len(node.ports)
            netns = handles[node.name].netns
            with inside(netns), RouteSocket(netns, here=True) as netlink:
                has = {key: _read(key) for key in wanted}
                every = port_sysctls(interfaces(netlink))
                for port in node.ports:  # one that does not exist is another fact
                    row = every.get(port.name, of_ports)
                    for (first, last), value in of_ports.items():
                        if (now := row.get((first, last), value)) != value:
                            wanted[f"{first}.{port.name}.{last}"], has[f"{first}.{port.name}.{last}"] = value, now
                for key, value in wanted.items():
                    if (now := has[key]) == value and key not in settings:
                        continue
                    sources = [each.source for each in settings.get(key, ()) if _same(now, each.value)]
                    if sources:
                        own.setdefault((f"{key} is {' '.join(now.split())}", sources[-1]), []).append(node.name)
                    elif certain := [each for each in settings.get(key, ()) if each.certain]:
                        set_to = certain[-1].value
                        why = f"is {now}, and the topology sets {set_to} ({certain[-1].source})"
                        hint = f"run ./inv exec --lab {lab.name} {node.name} sysctl -w {key}={shlex.quote(set_to)}"
                        problems += [] if repair else [Problem(node.name, key, why, hint)]
                    elif not _same(now, value):
                        if repair and now != "missing":
                            sysctl_path(key).write_text(value)
                        problems.append(Problem(node.name, key, f"is {now}, not {value}"))
        notes = (
            f"{what} on {some_of(names)}, as the topology sets it ({source})" for (what, source), names in own.items()
        )
        return SysctlsRead(count, tuple(problems), tuple(notes))

    return _joined(in_processes(read, lab.own_nodes))


def _read(key: str) -> str:
    try:
        return read_sysctl(key)
    except FileNotFoundError:
        return "missing"


def _of_ports(given: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The same of each port: a port has own values, which are those of `all` when it is created."""
    rows = ((key.replace("ip_forward", "conf.all.forwarding").split(".all."), value) for key, value in given.items())
    return {(key[0], key[1]): value for key, value in rows if key[-1] in OF_PORTS}


def _same(now: str, wanted: str) -> bool:
    """Whether a sysctl has the value that was written. The kernel reports 0x37 as 55, and separates numbers by tabs."""
    try:
        return [sysctl_number(word) for word in now.split()] == [sysctl_number(word) for word in wanted.split()]
    except ValueError:  # names, as of tcp_congestion_control
        return now.split() == wanted.split()
