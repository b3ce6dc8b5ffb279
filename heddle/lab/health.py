"""Faults of a running lab: nodes, daemons, queues, links, the PFC agent, foreign routes. repair.py repairs the others.

In:  a Lab, or a snapshot of it with the parts that `parts` names. Out: Problems.
"""

from __future__ import annotations

from heddle.base.problems import CheckError, MachineError, Problem
from heddle.lab.faults import State, repair_hint
from heddle.lab.foreignroutes import foreign_routes
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot


def parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that `problems` needs. An imported topology defines neither links to be up nor routes."""
    rendered = LabPart.CARRIER | LabPart.DRAINED | LabPart.FIBS if lab.made.rendered else LabPart(0)
    return LabPart.SILENT | LabPart.ROOTS | rendered


def faults(lab: Lab) -> list[Problem]:
    """One Problem for each node that does not run, daemon that does not answer, foreign queue, and link that is down.

    Routes alone do not show these faults: they stay in the kernel after zebra has ended.
    """
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
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
    return State.of(lab.fabric, now).problems(lab) if lab.made.rendered else []


def wrong_routes(lab: Lab, now: Snapshot) -> list[Problem]:
    """Routes that the fabric does not have. Part: FIBS."""
    found = foreign_routes(lab.fabric, now.fibs) if lab.made.rendered else []
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
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        raise MachineError(*lost)
    if foreign := foreign_queues(lab.snapshot(LabPart.ROOTS)):
        raise CheckError(*foreign)
