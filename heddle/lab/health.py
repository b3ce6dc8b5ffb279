"""What is wrong with a running lab: nodes, daemons, queues, links, the PFC agent. Nothing is repaired here."""

from __future__ import annotations

from heddle.base.problems import CheckError, MachineError, Problem
from heddle.lab import daemons as bgp
from heddle.lab.faults import state_of
from heddle.lab.lab import Lab


def faults(lab: Lab) -> list[Problem]:
    """What somebody or something has done to the lab: nodes that do not run, daemons that do not answer, queues
    that are not Heddle's, links that are down. A problem each; routes alone do not tell, since they outlive zebra.
    """
    if lost := lab.runtime.lacking(lab.name, lab.topology):
        return lost  # what else is wrong follows from that
    return [*silent_daemons(lab), *foreign_queues(lab), *lost_agent(lab), *down_or_drained(lab)]


def silent_daemons(lab: Lab) -> list[Problem]:
    """Daemons that do not answer."""
    # Started again alone, zebra often stays without the routes of a bgpd that knew the old one.
    hint = f"./inv down {lab.name}, then up again, makes it anew"
    return [
        Problem(node.name, daemon, "does not answer", hint)
        for node in lab.fabric.switches
        for daemon in bgp.silent(lab.runtime, lab.name, lab.topology, node.name, lab.made.daemons(node.name))
    ]


def down_or_drained(lab: Lab) -> list[Problem]:
    """Links that are down and switches that BGP drains, by a fault on purpose or by hand."""
    return state_of(lab).problems() if lab.made.rendered else []


def foreign_queues(lab: Lab) -> list[Problem]:
    """Ports whose root qdisc is not Heddle's: somebody's `tc`, or `containerlab tools netem`, took its place."""
    from heddle.switch.queues import portqueues as queues

    hint = f"./inv down {lab.name}, then up again, puts it back"
    return [
        Problem(f"{node.name}:{port}", "the queue", f"is not Heddle's: {kind} stands at its root", hint)
        if kind
        else Problem(f"{node.name}:{port}", "the port", "is gone: somebody removed it", hint)
        for node in lab.fabric.nodes
        for port, kind in queues.foreign(lab.handle(node.name).netns, [p.name for p in node.ports]).items()
    ]


def lost_agent(lab: Lab) -> list[Problem]:
    """Of a lab that can pause: that nobody runs who carries pauses out."""
    from heddle.switch.pfc import control as pfc
    from heddle.switch.queues import portqueues as queues

    if not queues.Setup.of(lab.fabric).gated or pfc.alive(lab.name).agent is not None:
        return []
    why = "does not run, so pauses are neither sent nor obeyed"
    return [Problem("", "the agent of PFC", why, f"./inv run --lab {lab.name} starts it again")]


def check_ports(lab: Lab) -> None:
    """MachineError for nodes that do not run, CheckError for foreign queues: nothing is measured over those."""
    if lost := lab.runtime.lacking(lab.name, lab.topology):
        raise MachineError(*lost)
    if foreign := foreign_queues(lab):
        raise CheckError(*foreign)
