"""Repair of a running lab: daemons, queues, links, the PFC agent; and what a measurement must not start with.

In:  a Lab whose lock is held. Out: one line for each repair, and what was left on purpose; a second call finds nothing
to repair. The facts that are repaired are those of facts.py.
Missing nodes and ports cannot be repaired: MachineError names them before anything is changed. Working parts are not
changed. Addresses and routes of hosts are applied again from the topology. Routes of switches return by themselves; the
caller waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.base.tables import some_of
from heddle.fabric.wiring import Port
from heddle.kernel.fib import LINK_LOCAL
from heddle.lab import agents, facts
from heddle.lab.control import OF_ZEBRA, control_of, gateway_of
from heddle.lab.convergence import restore_routes
from heddle.lab.cutlinks import PROCESS, keep_carriers, kernel_ids, lost_carriers, restore_shards, wait_for_carriers
from heddle.lab.fact import Fact
from heddle.lab.faults import orders, record
from heddle.lab.faults.bgpdown import BgpDown
from heddle.lab.faults.packets import reinstall_faults
from heddle.lab.faults.record import changing
from heddle.lab.faults.slowlink import SlowLink, shares_of
from heddle.lab.frr import entered, home_of, reload_rendered, restart_daemons, switches_of
from heddle.lab.lab import Lab
from heddle.lab.linkstate import SECONDS, configure_bgp
from heddle.lab.ports import down_of, in_network, set_links
from heddle.lab.rehash import reapply_hashing, restore_hashing
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, nothing, spread
from heddle.lab.thresholds import end_run_ecn, own_queues, reapply_queues, restore_queues
from heddle.runtimes.vrf import in_vrf
from heddle.spec.queuepolicy import QueuePolicy
from heddle.switch import install

_DRAINED: Final = "bgp graceful-shutdown"
_FORGET: Final = ("route", "flush", "cache")


def faults(lab: Lab) -> list[Problem]:
    """What is wrong with a lab, except routes and sessions, which may still be on their way.

    Routes alone do not show these faults: they stay in the kernel after zebra has ended.
    """
    if lost := lab.missing_nodes():
        return lost  # other faults would follow from these
    found = facts.known_facts(lab, lab.snapshot(facts.parts(lab), keep_errors=True))
    return [each.problem for each in found if each.kind not in (facts.NEXT_HOPS, facts.ROUTE, facts.SESSION)]


def settled(lab: Lab, seconds: float) -> tuple[Snapshot, tuple[Fact, ...]]:
    """The facts of now, after up to `seconds` for those that end by themselves."""
    end = time.monotonic() + seconds
    while True:
        now = lab.snapshot(facts.parts(lab), keep_errors=True)
        if not (found := facts.known_facts(lab, now)) or time.monotonic() > end:
            return now, found
        time.sleep(_PAUSE_S)


def check_ports(lab: Lab) -> None:
    """MachineError for nodes that do not run, CheckError for foreign queues: a measurement would be wrong."""
    if lost := lab.missing_nodes():
        raise MachineError(*lost)
    if roots := lab.snapshot(LabPart.PORTS).foreign_roots:
        found = facts.facts(lab, lab.snapshot(LabPart.PORTS), ["port"])
        raise CheckError(*(each.problem for each in found if each.problem.where in roots))


STEP: Final = "repair"
_PAUSE_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was repaired, and what was left down or drained on purpose; a line each."""

    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def repair(lab: Lab, observer: Observer) -> Repaired:
    """Repair what can be repaired. MachineError when a node, a port or the lab's BPF programs are missing."""
    shards = restore_shards(lab, observer)
    _check_repairable(lab)
    observer.begin(STEP)
    carried = [f"{each.where}: {each.what} started again" for each in lost_carriers(lab) if each.what == PROCESS]
    if carried:
        keep_carriers(lab)
        wait_for_carriers(lab)
    # Before the links: a port that is set up gets its route from the kernel, up to a second later.
    # A port without IPv6 gets it with its sysctl.
    lost = facts.facts(lab, lab.snapshot(LabPart.UNROUTED), ("link-route",)) if lab.blueprint.rendered else ()
    restored = {*(restore_all_routes(lab) if lost else ())} & {each.problem.where for each in lost}
    done = [*shards, *carried, *(f"{ref}: route {LINK_LOCAL} added" for ref in sorted(restored))]
    done += [*_links(lab), *_settings(lab), *_ports(lab)]
    if agents.restart(lab):
        done.append("the PFC agent and its keeper: started again")
    with owners.lock(lab.name, owners.CHANGES):
        done += [f"{name}: hashing set again, as recorded" for name in reapply_hashing(lab)]
        done += ["thresholds of queues set again, as recorded"] * reapply_queues(lab)
        done += [f"{each.where}: {each.what} set again" for each in facts.wrong_sysctls(lab, repair=True).problems]
    done += _addresses(lab)  # a port without IPv6 has none
    with changing(lab):
        over = orders.finish(lab, runs=True)
    done += [f"{each.where}: {orders.text_of(lab, each)} was not finished, undone" for each in over if not each.run]
    done += [f"{each.where}: fault of a run that was killed, undone" for each in over if each.run]
    done += [f"{name}: ECN thresholds of a run that was killed, restored" for name in end_run_ecn(lab)]
    again = reinstall_faults(lab).items()
    done += [f"{ref}: link fault {'set again' if fault else 'removed'}" for ref, fault in again]
    done += [*_daemons(lab), *_configurations(lab)]
    done += [f"{each.where}: {orders.text_of(lab, each)} set again" for each in orders.reapply(lab)]
    done += [f"{name}: routes installed again" for name in control_of(lab.fabric).follow(lab)]
    observer.end(STEP, f"{len(done)} repair{'' if len(done) == 1 else 's'}" if done else "nothing to repair")
    return Repaired(tuple(done), _left(lab))


@spread(concat)
def _lost_pins(lab: Lab) -> list[Path]:
    """Pins of the programs of these nodes that are missing."""
    return [path for path in install.pins_of(lab.fabric, lab.own_nodes) if not path.exists()]


@spread(nothing, nodes=lambda broken, _: broken)
def _reinstall(lab: Lab, broken: Mapping[str, Sequence[Port]], own: Mapping[str, QueuePolicy]) -> None:
    handles = lab.handles()
    here = {node: ports for node, ports in broken.items() if node in handles}
    install.reinstall(lab.fabric, handles, here, own)


@spread(concat)
def restore_all_routes(lab: Lab) -> list[str]:
    """Add the link-local routes that ports do not have; returns these ports."""
    return restore_routes(lab.fabric, lab.handles())


def _check_repairable(lab: Lab) -> None:
    """MachineError for faults that only `down` and `up` can fix."""
    recreate = f"./inv down {lab.name}, then up again: this cannot be repaired"
    lost = lab.missing_nodes()
    found = [Problem(each.where, each.what, each.why, recreate) for each in lost]
    if not found:
        roots = lab.snapshot(LabPart.PORTS).foreign_roots
        found = [
            Problem(ref, "the port", "is missing: it was removed", recreate) for ref, kind in roots.items() if not kind
        ]
        pins = _lost_pins(lab)
        found += [Problem("bpf", str(path), "is missing: it was removed", recreate) for path in pins[:1]]
    if found:
        raise MachineError(*found)


def _links(lab: Lab) -> list[str]:
    """Set up ports that are down at their own end, except those that Heddle took down on purpose."""
    if not lab.blueprint.rendered:
        return []  # an imported topology does not say which links should be up
    kept, repaired = orders.places_of(lab, "link"), list[str]()
    down = down_of(lab, [node.name for node in lab.fabric.nodes])
    for node in lab.fabric.nodes:
        repaired += [port.ref for port in node.ports if down[node.name].get(port.name) and port.ref not in kept]
    set_links(lab, repaired, "up")
    return [f"{ref}: link set up" for ref in repaired]


def _addresses(lab: Lab) -> list[str]:
    """Remove addresses, rules and routes that `up` did not set, and add those that are missing."""
    done = list[str]()
    for name, line, lost in facts.differences_of_addresses(lab, lab.snapshot(LabPart.ADDRESSES)):
        flag, (what, *words) = ("-6", line[3:].split()) if line.startswith("-6 ") else ("-4", line.split())
        words = words if lost or what != "rule" else words[:2]  # by its priority
        if not in_network(lab, name, ["ip", flag, what, "add" if lost else "del", *words]).code:
            done.append(f"{name}: {line} {'added' if lost else 'removed'}")
    return done


def _settings(lab: Lab) -> list[str]:
    """Set MTUs, MACs and ARP of ports again; remove wrong neighbour entries and MTUs that were learned from them."""
    fabric, done, static = lab.fabric, list[str](), not lab.fabric.policy.routing.by_bgp
    for each in facts.facts(lab, lab.snapshot(LabPart.PORTS), ("mtu", "mac", "arp")):
        node, _, name = each.problem.where.partition(":")
        port = fabric.by_name[node].port(name)
        words = {"mtu": ["mtu", str(port.mtu)], "mac": ["address", port.mac], "arp": ["arp", "on"]}[each.kind]
        _changed(lab, node, ["ip", "link", "set", "dev", name, *words])
        done.append(f"{port.ref}: {each.problem.what} set to {words[1]} again")
    parts = LabPart.PORTS | LabPart.NEIGHBOURS | LabPart.CARRIER
    for each in facts.facts(lab, lab.snapshot(parts), ("neighbour", "path-mtu")):
        node, _, name = each.problem.where.partition(":")
        address, commands = each.problem.what.rpartition(" ")[2], [["ip", "-4", *_FORGET], ["ip", "-6", *_FORGET]]
        right = list[str]()
        if name:
            port = fabric.by_name[node].port(name)
            peer = fabric.by_name[port.peer_node].port(port.peer_port)
            gateway = port.address is None and address in (OF_ZEBRA, static and gateway_of(fabric, port))
            right = ["lladdr", peer.mac, "nud", "permanent", *["protocol", "zebra"] * (not static)] if gateway else []
            commands = [["ip", "neigh", "replace" if right else "del", address, "dev", name, *right]]
        for words in commands:
            _changed(lab, node, words)
        did = "forgotten" if not name else "set again" if right else "removed"
        done.append(f"{each.problem.where}: {each.problem.what} {did}")
    return done


def _changed(lab: Lab, node: str, argv: Sequence[str]) -> None:
    done = in_network(lab, node, argv)
    if done.code:
        raise MachineError(Problem(node, " ".join(argv), f"failed: {done.err.strip()}"))


def _ports(lab: Lab) -> list[str]:
    """Reinstall queues and programs on ports where they differ from the expected ones."""
    now = lab.snapshot(LabPart.PORTS)
    shares = shares_of(orders.each_of(SlowLink, lab), lab)
    wrong, odd = facts.port_faults(lab.fabric, now, shares, kernel_ids(lab))
    reordering = {each.where for _, each in facts.wrong_delivery(lab, [*now.links])}
    broken: dict[str, list[Port]] = {}
    why: dict[str, list[str]] = {}
    for port in (port for node in lab.fabric.nodes for port in node.ports):
        parts = ["queues"] * (port.ref in wrong or port.ref in now.foreign_roots) + ["programs"] * (port.ref in odd)
        parts += ["packet order"] * (port.ref in reordering)
        if parts:
            broken.setdefault(port.node, []).append(port)
            why.setdefault(" and ".join(parts), []).append(port.ref)
    if broken:
        _reinstall(lab, broken, own_queues(lab))
    return [f"{some_of(refs)}: {parts} installed again" for parts, refs in why.items()]


def _daemons(lab: Lab) -> list[str]:
    """Restart all daemons of a switch when one of them does not answer.

    Restarting only zebra is not enough: it often does not get the routes of a bgpd that was connected to the old zebra.
    """
    silent = lab.snapshot(LabPart.SILENT).silent
    on_purpose = orders.places_of(lab, "daemons")
    dead = {home_of(lab, switch): names for switch, names in silent.items() if names and switch not in on_purpose}
    for home in dead:
        restart_daemons(lab, home)
    return [f"{home}: {' and '.join(names)} did not answer; FRR started again" for home, names in dead.items()]


def _configurations(lab: Lab) -> list[str]:
    """Start FRR again where commands were entered since `up`, except those of drains and recorded faults."""
    if not lab.blueprint.rendered:
        return []
    refs = (each.where.partition(":") for each in record.read(lab.dir) if each.kind == BgpDown.name)
    shut = {(node, f"neighbor {port} shutdown") for node, _, port in refs}
    done = []
    for home, lines in entered(lab).items():
        routers = {_router(lab, name, home): name for name in switches_of(lab, home)}
        rows = [(line, routers.get(line.partition(" / ")[0]), line.rpartition(" / ")[2]) for line in lines]
        drained = [name for _, name, last in rows if name and last == _DRAINED]
        by_hand = [line for line, name, last in rows if last != _DRAINED and (name, last) not in shut]
        if by_hand:
            reload_rendered(lab, home)
            for name in drained:
                configure_bgp(lab, lab.fabric.by_name[name], _DRAINED)
            done.append(f"{home}: its configuration was changed ({some_of(by_hand)}); FRR started again as rendered")
    return done


def _router(lab: Lab, switch: str, home: str) -> str:
    """The block of a switch's BGP in the configuration of its daemons."""
    line = f"router bgp {lab.fabric.by_name[switch].asn}"
    return line if home == switch else in_vrf(line, switch)


def _left(lab: Lab) -> tuple[str, ...]:
    """Links, switches and sessions that are down or drained on purpose, in lines."""
    now, shut = lab.snapshot(facts.parts(lab)), {each.where for kind, each in orders.in_force(lab) if kind.listed}
    found = facts.facts(lab, now, ("link", "drained", facts.SESSION))
    meant = [each for each in found if each.kind != facts.SESSION or each.problem.where in shut]
    lines = (each.problem for each in facts.as_set(lab, now, meant))
    return tuple(f"{each.where}: {each.what} {each.why}" for each in lines)


def restore_configured(lab: Lab, seconds: float = SECONDS) -> None:
    """Make a lab as its fabric file describes it. seconds: for routes to come back. CheckError when they do not."""
    restore_hashing(lab)
    restore_queues(lab)
    orders.end_all(lab, seconds)
