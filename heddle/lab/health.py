"""Faults of a running lab: nodes, daemons, queues, links, the PFC agent, foreign routes. repair.py repairs the others.

In:  a Lab, or a snapshot of it with the parts that `parts` names. Out: Problems.
Foreign routes are routes of switches that are not part of the fabric: static routes, announcements by hand, a wrong
prefix length. Prediction, kernel and packets follow them alike, so only a comparison with the fabric finds one that
exists during a whole run. Next hops of the fabric's own prefixes are compared in convergence.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network

from heddle.base.families import Network
from heddle.base.problems import CheckError, MachineError, Problem
from heddle.fabric.model import Fabric, Node, Role
from heddle.kernel.fib import Fib
from heddle.lab.lab import Lab
from heddle.lab.outages import State, repair_hint
from heddle.lab.snapshot import LabPart, Snapshot


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
    rendered = LabPart.CARRIER | LabPart.DRAINED | LabPart.FIBS if lab.blueprint.rendered else LabPart(0)
    return LabPart.SILENT | LabPart.ROOTS | rendered


def faults(lab: Lab) -> list[Problem]:
    """One Problem for each node that does not run, daemon that does not answer, foreign queue, and link that is down.

    Routes alone do not show these faults: they stay in the kernel after zebra has ended.
    """
    if lost := lab.missing_nodes():
        return lost  # other faults would follow from these
    return problems(lab, lab.snapshot(parts(lab)))


def problems(lab: Lab, now: Snapshot) -> list[Problem]:
    """The same for a lab whose nodes are all running."""
    return [
        *silent_daemons(now), *foreign_queues(now), *lost_agent(lab), *down_or_drained(lab, now),
        *wrong_routes(lab, now),
    ]  # fmt: skip


def silent_daemons(now: Snapshot) -> list[Problem]:
    """Daemons that do not answer. Part: SILENT."""
    hint = repair_hint(now.lab, "starts FRR of that switch again")
    return [
        Problem(switch, daemon, "does not answer", hint) for switch, names in now.silent.items() for daemon in names
    ]


def down_or_drained(lab: Lab, now: Snapshot) -> list[Problem]:
    """Links that are down and switches that BGP drains, by Heddle or by hand. Parts: CARRIER, DRAINED."""
    return State.of(lab.fabric, now).problems(lab) if lab.blueprint.rendered else []


def wrong_routes(lab: Lab, now: Snapshot) -> list[Problem]:
    """Routes that the fabric does not have. Part: FIBS."""
    found = foreign_routes(lab.fabric, now.fibs) if lab.blueprint.rendered else []
    word = "ip" if lab.fabric.policy.ip_version == 4 else "ip -6"
    show = f"run ./inv exec --lab {lab.name} {{}} {word} route show {{}} to see its origin (proto), and remove it there"
    return [Problem(route.switch, route.what, route.why, show.format(route.switch, route.prefix)) for route in found]


def foreign_queues(now: Snapshot) -> list[Problem]:
    """Ports whose root qdisc is not Heddle's: `tc`, or `containerlab tools netem`, replaced it. Part: ROOTS."""
    installs = repair_hint(now.lab, "installs it again")
    recreate = f"./inv down {now.lab}, then up again"
    return [Problem(ref, *_root(kind), installs if kind else recreate) for ref, kind in now.foreign_roots.items()]


def foreign_root(ref: str, kind: str) -> str:
    """One entry of `foreign_queues` as a line. kind: a value of `Snapshot.foreign_roots`."""
    return f"{ref}: {' '.join(_root(kind))}"


def _root(kind: str) -> tuple[str, str]:
    """(what, why) of a Problem for a port without Heddle's root qdisc."""
    if not kind:
        return "the port", "is missing: it was removed"
    return "the root qdisc", "is missing" if kind == "nothing" else f"is not Heddle's, but {kind}"


def lost_agent(lab: Lab) -> list[Problem]:
    """A Problem when the lab uses PFC and its agent does not run: no pause is sent or obeyed."""
    from heddle.switch.pfc import control as pfc
    from heddle.switch.queues import portqueues as queues

    if not queues.Setup.of(lab.fabric).gated or pfc.alive(lab.name).agent is not None:
        return []
    why = "is not running, so pauses are neither sent nor obeyed"
    return [Problem("", "the PFC agent", why, repair_hint(lab.name, "starts it again"))]


def check_ports(lab: Lab) -> None:
    """MachineError for nodes that do not run, CheckError for foreign queues: a measurement would be wrong."""
    if lost := lab.missing_nodes():
        raise MachineError(*lost)
    if foreign := foreign_queues(lab.snapshot(LabPart.ROOTS)):
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
        for node in fabric.hosts
        for port in node.ports
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
