"""Faults of a running lab: nodes, daemons, queues, links, the PFC agent, foreign routes; and their repair.

In:  a Lab, or a snapshot of it with the parts that `parts` names; to repair, a Lab whose lock is held.
Out: Problems. Repaired: one line for each repair, and what was left on purpose; a second call finds nothing to repair.
Missing nodes and ports cannot be repaired: MachineError names them before anything is changed. Working parts are not
changed. Addresses and routes of hosts are applied again from the topology. Routes of switches return by themselves; the
caller waits for them.
Foreign routes are routes of switches that are not part of the fabric: static routes, announcements by hand, a wrong
prefix length. Prediction, kernel and packets follow them alike, so only a comparison with the fabric finds one that
exists during a whole run. Next hops of the fabric's own prefixes are compared in convergence.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple

from heddle.base import owners
from heddle.base.events import Observer
from heddle.base.families import Network
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.base.tables import some_of
from heddle.fabric.model import Fabric, Node, Port, Role
from heddle.fabric.policy import QueuePolicy
from heddle.kernel.fib import LINK_LOCAL, Fib
from heddle.lab import agents
from heddle.lab.convergence import restore_routes
from heddle.lab.cutlinks import PROCESS, keep_carriers, lost_carriers, wait_for_carriers
from heddle.lab.faults import orders
from heddle.lab.faults.slowlink import SlowLink, shares_of
from heddle.lab.frr import end_daemons, start_daemons
from heddle.lab.impairments import Requested, changing, reinstall_faults
from heddle.lab.lab import Lab
from heddle.lab.nearnodes import down_of, in_network
from heddle.lab.outages import State, repair_hint
from heddle.lab.rehash import reapply_hashing
from heddle.lab.runfaults import end_run_faults
from heddle.lab.shardmemory import memory_problems
from heddle.lab.shardswitch import restore_shards
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import concat, nothing, spread
from heddle.lab.thresholds import end_run_ecn, own_queues, reapply_queues
from heddle.runtimes.netns_topology import read_topology
from heddle.switch import install
from heddle.switch.queues import portqueues as queues
from heddle.switch.queues.attached import expected


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


def parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that `problems` needs. An imported topology defines neither links to be up nor routes."""
    rendered = LabPart.CARRIER | LabPart.DRAINED | LabPart.FIBS | LabPart.UNROUTED
    return LabPart.SILENT | LabPart.PORTS | (rendered if lab.blueprint.rendered else LabPart(0))


def faults(lab: Lab) -> list[Problem]:
    """One Problem for each node that does not run, daemon that does not answer, foreign queue, and link that is down.

    Routes alone do not show these faults: they stay in the kernel after zebra has ended.
    """
    if lost := lab.missing_nodes():
        return lost  # other faults would follow from these
    return problems(lab, lab.snapshot(parts(lab)))


def problems(lab: Lab, now: Snapshot) -> list[Problem]:
    """The same for a lab whose nodes are all running."""
    dead = [*silent_daemons(now), *lost_agent(lab), *lost_carriers(lab)]
    found = [
        *(memory_problems(lab) if dead else ()), *dead, *wrong_ports(lab, now), *down_or_drained(lab, now),
        *unrouted(lab, now), *wrong_routes(lab, now),
    ]  # fmt: skip
    return orders.explained(lab, found)


def silent_daemons(now: Snapshot) -> list[Problem]:
    """Daemons that do not answer. Part: SILENT."""
    hint = repair_hint(now.lab, "starts FRR of that switch again")
    return [
        Problem(switch, daemon, "does not answer", hint) for switch, names in now.silent.items() for daemon in names
    ]


def down_or_drained(lab: Lab, now: Snapshot) -> list[Problem]:
    """Links that are down and switches that BGP drains, by Heddle or by hand. Parts: CARRIER, DRAINED."""
    return State.of(lab.fabric, now).problems(lab) if lab.blueprint.rendered else []


def unrouted(lab: Lab, now: Snapshot) -> list[Problem]:
    """Ports without the route to their link-local neighbour: no BGP session comes up there. Part: UNROUTED."""
    hint = repair_hint(lab.name, "adds it")
    refs = now.unrouted if lab.blueprint.rendered else ()
    return [Problem(ref, f"the route {LINK_LOCAL}", "is missing", hint) for ref in refs]


def wrong_routes(lab: Lab, now: Snapshot) -> list[Problem]:
    """Routes that the fabric does not have. Part: FIBS."""
    found = foreign_routes(lab.fabric, now.fibs) if lab.blueprint.rendered else []
    word = "ip" if lab.fabric.policy.ip_version == 4 else "ip -6"
    show = f"run ./inv exec --lab {lab.name} {{}} {word} route show {{}} to see its origin (proto), and remove it there"
    return [Problem(route.switch, route.what, route.why, show.format(route.switch, route.prefix)) for route in found]


def foreign_queues(now: Snapshot) -> list[Problem]:
    """Ports whose root qdisc is not Heddle's: `tc`, or `containerlab tools netem`, replaced it. Part: PORTS."""
    installs = repair_hint(now.lab, "installs it again")
    recreate = f"./inv down {now.lab}, then up again"
    return [Problem(ref, *_root(kind), installs if kind else recreate) for ref, kind in now.foreign_roots.items()]


def wrong_ports(lab: Lab, now: Snapshot) -> list[Problem]:
    """Ports whose queues, shaper or programs differ from those of the fabric file. Part: PORTS."""
    installs = repair_hint(lab.name, "installs it again")
    changed = [
        Problem(ref, "the port", why, installs)
        for part in port_faults(lab.fabric, now, slowed_ports(lab))
        for ref, why in part.items()
    ]
    return [*foreign_queues(now), *changed]


def slowed_ports(lab: Lab) -> dict[str, float]:
    """Port -> the share of its rate that it has on purpose."""
    return shares_of(orders.each_of(SlowLink, lab), lab)


class PortFaults(NamedTuple):
    """Ports with Heddle's root qdisc that differ otherwise: `rtsw1:eth1` -> `is shaped to 1mbit, not 25mbit`."""

    queues: Mapping[str, str]
    programs: Mapping[str, str]


def port_faults(fabric: Fabric, now: Snapshot, shares: Mapping[str, float] | None = None) -> PortFaults:
    """Differences of shapers and queues, and of programs; also of the programs below a foreign root. Part: PORTS.

    shares: port -> the share of its rate that it has on purpose.
    """
    setup, foreign, shares = queues.Setup.of(fabric), now.foreign_roots, shares or {}
    wrong: dict[str, str] = {}
    odd: dict[str, str] = {}
    for node in fabric.nodes:
        for port in node.ports:
            slowed = replace(port, rate_bps=round(port.rate_bps * shares.get(port.ref, 1)))
            has, wanted = now.programs[port.ref], expected(node, setup.ids[port.node, port.name])
            if port.ref not in foreign and (lines := setup.faults(slowed, now.shapers.get(port.ref))):
                wrong[port.ref] = "; ".join(lines)
            if has != wanted and foreign.get(port.ref) != "":
                current, should = (", ".join(each.text() for each in some) for some in (has, wanted))
                odd[port.ref] = f"has {current or 'no program'}, not {should}"
    return PortFaults(wrong, odd)


def _root(kind: str) -> tuple[str, str]:
    """(what, why) of a Problem for a port without Heddle's root qdisc."""
    if not kind:
        return "the port", "is missing: it was removed"
    return "the root qdisc", "is missing" if kind == "nothing" else f"is not Heddle's, but {kind}"


def lost_agent(lab: Lab) -> list[Problem]:
    """A Problem when the lab uses PFC and its agent does not run: no pause is sent or obeyed."""
    if not queues.Setup.of(lab.fabric).gated or not (why := agents.alive(lab).fault("agent")):
        return []
    why += ", so pauses are neither sent nor obeyed"
    return [Problem("", "the PFC agent", why, repair_hint(lab.name, "starts it again"))]


def check_ports(lab: Lab) -> None:
    """MachineError for nodes that do not run, CheckError for foreign queues: a measurement would be wrong."""
    if lost := lab.missing_nodes():
        raise MachineError(*lost)
    if foreign := foreign_queues(lab.snapshot(LabPart.PORTS)):
        raise CheckError(*foreign)


def foreign_routes(fabric: Fabric, fibs: Mapping[str, Fib]) -> list[ForeignRoute]:
    """Routes over the fabric's ports, and routes inside its prefixes, that a fabric of a fabric file does not have.

    A route over another interface, such as that of a management network, counts only inside a prefix of the fabric.
    So does a route that discards packets.
    """
    edges = set(fabric.prefixes.values())
    loopbacks = {ip_network(node.loopback) for node in fabric.switches if node.loopback is not None}
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


STEP: Final = "repair"


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
    restored = restore_all_routes(lab) if lab.blueprint.rendered else ()
    done = [*shards, *carried, *(f"{ref}: route {LINK_LOCAL} added" for ref in restored)]
    done += [*_links(lab), *_ports(lab)]
    if agents.restart(lab):
        done.append("the PFC agent and its keeper: started again")
    with owners.lock(lab.name, owners.CHANGES):
        done += [f"{name}: hashing set again, as recorded" for name in reapply_hashing(lab)]
        done += ["thresholds of queues set again, as recorded"] * reapply_queues(lab)
    with changing(lab):
        over = orders.finish(lab)
    done += [f"{each.where}: {orders.text_of(each)} was not finished, undone" for each in over]
    done += [f"{ref}: fault of a run that was killed, undone" for ref in end_run_faults(lab)]
    done += [f"{name}: ECN thresholds of a run that was killed, restored" for name in end_run_ecn(lab)]
    done += [f"{ref}: link fault set again" for ref in reinstall_faults(lab)]
    done += _daemons(lab)
    done += [f"{each.where}: {orders.text_of(each)} set again" for each in orders.reapply(lab)]
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
    kept, repaired = Requested.read(lab.dir).down | orders.places_of(lab, "link"), []
    down = down_of(lab, [node.name for node in lab.fabric.nodes])
    for node in lab.fabric.nodes:
        ports = [port for port in node.ports if down[node.name].get(port.name) and port.ref not in kept]
        if ports:
            _set_up(lab, node, ports)
            repaired += [f"{port.ref}: link set up" for port in ports]
    return repaired


def _set_up(lab: Lab, node: Node, ports: Sequence[Port]) -> None:
    """Set ports up, then restore the addresses and routes that the node lost with them, from its topology."""
    lines = "".join(f"link set dev {port.name} up\n" for port in ports)
    done = in_network(lab, node.name, ["ip", "-batch", "-"], lines)
    if done.code:
        raise MachineError(Problem(node.name, "ports up", f"failed: {done.err.strip()}"))
    commands = [line.removeprefix("ip ") for line in read_topology(lab.topology).nodes[node.name].exec]
    for word in ("addr", "route"):
        again = [line.replace(f"{word} add ", f"{word} replace ", 1) for line in commands if f"{word} add " in line]
        for family in (" ", "-6 "):
            own = [line.removeprefix("-6 ") for line in again if line.startswith("-6 ") == (family == "-6 ")]
            if own:  # -force: an address or route that exists already must not stop the rest
                flags = ["-6"] if family == "-6 " else []
                in_network(lab, node.name, ["ip", *flags, "-force", "-batch", "-"], "\n".join(own) + "\n")


def _ports(lab: Lab) -> list[str]:
    """Reinstall queues and programs on ports where they differ from the expected ones."""
    now = lab.snapshot(LabPart.PORTS)
    wrong, odd = port_faults(lab.fabric, now, slowed_ports(lab))
    broken: dict[str, list[Port]] = {}
    why: dict[str, list[str]] = {}
    for port in (port for node in lab.fabric.nodes for port in node.ports):
        parts = ["queues"] * (port.ref in wrong or port.ref in now.foreign_roots) + ["programs"] * (port.ref in odd)
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
    repaired = []
    on_purpose = orders.places_of(lab, "daemons")
    for switch, names in silent.items():
        if not names or switch in on_purpose:
            continue
        end_daemons(lab, switch)
        start_daemons(lab, switch)
        repaired.append(f"{switch}: {' and '.join(names)} did not answer; FRR started again")
    return repaired


def _left(lab: Lab) -> tuple[str, ...]:
    """Links and switches that are down or drained on purpose, in lines."""
    now = lab.snapshot(parts(lab))
    return tuple(f"{each.where}: {each.what} {each.why}" for each in orders.explained(lab, down_or_drained(lab, now)))
