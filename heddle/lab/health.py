"""What is wrong with a running lab: nodes, daemons, queues, links, the PFC agent. repair.py repairs it.

In:  a Lab, or a snapshot of it with the parts that `parts` names. Out: Problems.
"""

from __future__ import annotations

from heddle.base.problems import CheckError, MachineError, Problem
from heddle.lab.faults import State, repair_hint
from heddle.lab.lab import Lab
from heddle.lab.snapshot import LabPart, Snapshot


def parts(lab: Lab) -> LabPart:
    """The parts of a snapshot that `problems` needs. Which links of an imported topology should be up is not known."""
    return LabPart.SILENT | LabPart.ROOTS | (LabPart.CARRIER | LabPart.DRAINED if lab.made.rendered else LabPart(0))


def faults(lab: Lab) -> list[Problem]:
    """What somebody or something has done to the lab: nodes that do not run, daemons that do not answer, queues
    that are not Heddle's, links that are down. A problem each; routes alone do not tell, since they outlive zebra.
    """
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        return lost  # what else is wrong follows from that
    return problems(lab, lab.snapshot(parts(lab)))


def problems(lab: Lab, now: Snapshot) -> list[Problem]:
    """The same for a lab whose nodes all run."""
    return [*silent_daemons(now), *foreign_queues(now), *lost_agent(lab), *down_or_drained(lab, now)]


def silent_daemons(now: Snapshot) -> list[Problem]:
    """Daemons that do not answer. Part: SILENT."""
    hint = repair_hint(now.lab, "starts FRR of that switch again")
    return [
        Problem(switch, daemon, "does not answer", hint) for switch, names in now.silent.items() for daemon in names
    ]


def down_or_drained(lab: Lab, now: Snapshot) -> list[Problem]:
    """Links that are down and switches that BGP drains, by a fault on purpose or by hand. Parts: CARRIER, DRAINED."""
    return State.of(lab.fabric, now).problems(lab) if lab.made.rendered else []


def foreign_queues(now: Snapshot) -> list[Problem]:
    """Ports whose root qdisc is not Heddle's: `tc`, or `containerlab tools netem`, replaced it. Part: ROOTS."""
    installs = repair_hint(now.lab, "installs it again")
    anew = f"./inv down {now.lab}, then up again"
    return [Problem(ref, *_root(kind), installs if kind else anew) for ref, kind in now.foreign_roots.items()]


def foreign_root(ref: str, kind: str) -> str:
    """The same as one line. kind: as `Snapshot.foreign_roots` has it."""
    return f"{ref}: {' '.join(_root(kind))}"


def _root(kind: str) -> tuple[str, str]:
    """What is wrong with a port, and why."""
    if not kind:
        return "the port", "is gone: somebody removed it"
    return "the queue", f"is not Heddle's: {kind} stands at its root"


def lost_agent(lab: Lab) -> list[Problem]:
    """Of a lab that can pause: its agent does not run, so no pause is sent or obeyed."""
    from heddle.switch.pfc import control as pfc
    from heddle.switch.queues import portqueues as queues

    if not queues.Setup.of(lab.fabric).gated or pfc.alive(lab.name).agent is not None:
        return []
    why = "does not run, so pauses are neither sent nor obeyed"
    return [Problem("", "the agent of PFC", why, repair_hint(lab.name, "starts it again"))]


def check_ports(lab: Lab) -> None:
    """MachineError for nodes that do not run, CheckError for foreign queues: nothing is measured over those."""
    if lost := lab.runtime.missing_nodes(lab.name, lab.topology):
        raise MachineError(*lost)
    if foreign := foreign_queues(lab.snapshot(LabPart.ROOTS)):
        raise CheckError(*foreign)
