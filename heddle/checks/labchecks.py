"""Checks of the machine, links and their faults, daemons, routes and paths, against the file of the fabric.

What a fact of lab/facts.py shows is added to its check by validate.py; then the check says only what was read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from heddle.base.problems import CheckError, InputError
from heddle.checks.probe import probe
from heddle.checks.subject import Answer, Found, NothingError, Subject, first_line
from heddle.fabric import hashmodes
from heddle.fabric.model import Node
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel import offloads as port_offloads
from heddle.lab import rehash
from heddle.lab.convergence import overriding_routes
from heddle.lab.faults.orders import fault_lines, lost_faults
from heddle.lab.impairments import fault_differences, wanted_faults
from heddle.lab.lab import Lab
from heddle.lab.outages import State
from heddle.lab.sysctls import wrong_sysctls
from heddle.runs.store import has_run, paths_of

_ONLINE: Final = Path("/sys/devices/system/cpu/online")


def sysctls(subject: Subject) -> Answer:
    """Each sysctl has the value that the topology sets; where it sets none, the value that Heddle needs."""
    found = wrong_sysctls(subject.lab)
    by = "as rendered" if subject.lab.blueprint.rendered else "as set by the topology or by Heddle"
    return Answer(f"{found.count} {by}", [], found.notes)


def hashing(subject: Subject) -> Found:
    """Compare modes, seeds, options and tables in the BPF maps and in the kernel with what was set last."""
    wanted = rehash.wanted(subject.lab)
    return f"{rehash.label_of(wanted.values())} on {len(wanted)} switches, each with its seed", []


def offloads(subject: Subject) -> Found:
    """No port has an offload on, so packets have the sizes they would have on a wire. `order` checks GRO."""
    faults = [
        f"{node.name}:{port} has {', '.join(on)} on"
        for node in subject.lab.own_nodes
        for port, on in port_offloads.read(subject.handles[node.name].netns, _names(node)).items()
        if on
    ]
    return f"{', '.join(port_offloads.FEATURES)} off on {_ports(subject.lab)} ports", faults


def order(subject: Subject) -> Found:
    """Every port receives through one queue, with the settings that this kernel supports."""
    wanted = delivery.chosen()
    online = inorder.online_cpus(_ONLINE.read_text(encoding="ascii"))
    faults: list[str] = []
    count = 0
    for node in subject.lab.own_nodes:
        found = inorder.read(subject.handles[node.name].netns, _names(node), wanted.delivery)
        count += len(found)
        faults += [
            f"{node.name}:{port} {why}"
            for port, row in found.items()
            if (why := inorder.fault(row, wanted.delivery, online))
        ]
    return f"{count} ports keep packet order, by {wanted.delivery.settings} ({wanted.reason})", faults


def faults(subject: Subject) -> Answer:
    """Compare the programs' faults and the delay lines with what was set. A fault that was set is named in a note."""
    lab = subject.lab
    wanted = wanted_faults(lab)
    wrong = fault_differences(lab, wanted)
    count = _ports(lab)
    notes = tuple(f"a fault is set on {line}" for line in fault_lines(lab))
    kept = f"{len(wanted)} of {count} ports have a fault, as it was set"
    checked = kept if wanted else f"no fault of packets is set on {count} ports"
    wrong |= {each.where: f"has lost its fault {each.kind}" for each in lost_faults(lab)}
    return Answer(checked, [f"{ref} {why}: ./inv up --repair sets it again" for ref, why in wrong.items()], notes)


def links(subject: Subject) -> Found:
    """All links are up, and no switch is drained."""
    if not subject.lab.blueprint.rendered:
        raise NothingError("an imported topology does not say which links should be up")
    return f"{len(subject.lab.fabric.links)} links are up, and no switch is drained", []


def mtu(subject: Subject) -> Found:
    """Both ends of each link have its MTU, and no node has learned a smaller one for a path."""
    sizes = sorted({port.mtu for node in subject.lab.fabric.nodes for port in node.ports})
    return f"{_ports(subject.lab)} ports have {' or '.join(map(str, sizes))} bytes", []


def neighbours(subject: Subject) -> Found:
    """Ports have their MACs, and every neighbour entry has that of the other end."""
    count = sum(map(len, subject.now.neighbours.values()))
    return f"{_ports(subject.lab)} ports have their MACs, and {count} neighbour entries that of the other end", []


def daemons(subject: Subject) -> Found:
    """Every daemon answers."""
    lab = subject.lab
    names = dict.fromkeys(daemon for node in lab.fabric.switches for daemon in lab.blueprint.daemons(node.name))
    if not names:
        raise NothingError("no file says which daemons should run")
    return f"{' and '.join(names)} answer on {len(lab.fabric.switches)} switches", []


def bgp(subject: Subject) -> Found:
    """Every BGP session is established, as bgpd reports at both ends."""
    lost, expected = subject.lab.blueprint.missing_sessions(subject.now), subject.lab.blueprint.sessions(subject.now)[1]
    if not expected:
        raise NothingError("no BGP session is configured between switches of the lab")
    return f"{expected} sessions established", [f"{each.a.text()} - {each.b.text()}" for each in lost]


def routes(subject: Subject) -> Answer:
    """Every kernel has every route with all of its next hops, those to neighbours, and no other route."""
    lab, made = subject.lab, subject.lab.blueprint
    if not (checked := made.routes_checked()):
        raise NothingError("no host has an address, so no route is expected")
    inside = [] if made.rendered else overriding_routes(lab.fabric, subject.now.fibs)
    notes = (f"{each.switch}: {each.what} overrides {each.overrides}, the network of a host" for each in inside)
    # Routes avoid what is down or drained: the cause once, and not every prefix that follows from it.
    cause = State.of(lab.fabric, subject.now).text() if made.rendered else ""
    return Answer(checked, [cause] if cause else [], tuple(notes))


def reachability(subject: Subject) -> Found:
    """Every host reaches every other host with packets of MTU size and DF set."""
    lab = subject.lab
    if sum(port.address is not None for port in lab.fabric.host_ports) < 2:
        raise NothingError("fewer than two ports of hosts have an address")
    result = probe(lab)
    sizes = sorted({port.mtu for port in lab.fabric.host_ports})
    size = "- and ".join(str(each) for each in sizes)
    return f"{result.tried} pairs of hosts, {size}-byte packets that must not be fragmented", list(result.faults)


def paths(subject: Subject) -> Found:
    """The paths of the last run: prediction, kernel and measurement agree."""
    if not has_run(subject.lab):
        return "no run yet", []
    try:
        result = paths_of(subject.lab)
    except InputError as error:  # a run that failed or cannot be read is no evidence about the lab
        raise NothingError(first_line(error.problems[0])) from None
    wrong = [f"{p.flow.src} to {p.flow.dst}, QP {p.flow.label}: {p.why}" for p in result.flows if p.why]
    if not result.agree and not wrong:
        wrong = list(result.notes)
    return f"{result.source_names} agree on {len(result.flows)} {result.units} of the last run", wrong


def polarisation(subject: Subject) -> Found:
    """The choice at one level does not decide the choice at the next."""
    from heddle.predict.polarisation import flows_needed, polarisation

    fabric, rules = subject.lab.fabric, subject.now.hashing
    try:
        found = polarisation(fabric, subject.now.fibs, rules)
    except CheckError as error:
        raise NothingError("; ".join(map(first_line, error.problems))) from None
    if not found.pairs:
        raise NothingError(found.reason)
    polarised = [pair for pair in found.pairs if pair.polarised]
    if not polarised and (few := [pair for pair in found.pairs if pair.too_few]):
        seen = f"{few[0].dependence.flows} distinct hash inputs for the equal-cost paths of {few[0].switch}"
        raise NothingError(f"too few to judge: {seen}")
    bits = max(pair.dependence.bits for pair in found.pairs)
    wrong = [pair.text() for pair in polarised]
    seeded = hashmodes.MODES.keys() - hashmodes.TABLED - hashmodes.SPREADING  # other modes do not use the seed
    modes = [mode for pair in polarised if (mode := rules[pair.switch].mode) in seeded]
    if modes:
        wrong[0] += f"; try routing.seed: per-switch, or ./inv hashing {modes[0]} --set seed=per-switch"
    checked = f"{len(found.pairs)} pairs of switches share at most {bits:.4f} bits of their choices"
    return f"{checked} over {flows_needed(fabric)} flows", wrong


def _names(node: Node) -> Iterable[str]:
    return [port.name for port in node.ports]


def _ports(lab: Lab) -> int:
    return sum(len(node.ports) for node in lab.own_nodes)
