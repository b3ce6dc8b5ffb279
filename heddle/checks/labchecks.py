"""Checks of the machine, links and their faults, daemons, routes and paths, against the file of the fabric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from heddle.base.problems import CheckError, InputError
from heddle.base.sysctls import sysctl_number, sysctl_path
from heddle.checks.probe import probe
from heddle.checks.subject import SHOWN, Answer, Found, NothingError, Subject, first_line
from heddle.fabric import hashmodes
from heddle.fabric.model import Node, Role
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel import offloads as port_offloads
from heddle.kernel.namespace import inside
from heddle.lab import health, rehash
from heddle.lab.faults.orders import fault_lines, lost_faults
from heddle.lab.health import overriding_routes
from heddle.lab.impairments import fault_differences, wanted_faults
from heddle.lab.lab import Lab
from heddle.runs.store import has_run, paths_of

_ONLINE: Final = Path("/sys/devices/system/cpu/online")


def sysctls(subject: Subject) -> Answer:
    """Each sysctl has the value that the topology sets; where it sets none, the value that Heddle needs."""
    lab = subject.lab
    faults: list[str] = []
    count = 0
    own: dict[tuple[str, str], list[str]] = {}  # (sysctl and value, source in the topology) -> nodes
    given, decided = lab.blueprint.sysctls(lab.topology), lab.blueprint.own_sysctls()
    rules, live = rehash.hashing_sysctls(lab), rehash.set_live(lab)
    for node in lab.own_nodes:
        wanted = dict(given[node.name])
        settings = dict(decided.get(node.name, {}))
        if node.role is Role.SWITCH:
            wanted |= rules[node.name]
        if node.name in live:  # the verb `hashing` came later
            settings = {key: rows for key, rows in settings.items() if key not in rules[node.name]}
        count += len(wanted)
        with inside(subject.handles[node.name].netns):
            for key, value in wanted.items():
                path = sysctl_path(key)
                now = path.read_text().strip() if path.exists() else "missing"
                sources = [each.source for each in settings.get(key, ()) if _same(now, each.value)]
                if sources:
                    own.setdefault((f"{key} is {' '.join(now.split())}", sources[-1]), []).append(node.name)
                elif certain := [each for each in settings.get(key, ()) if each.certain]:
                    last = certain[-1]
                    faults.append(f"{node.name}: {key} is {now}, and the topology sets {last.value} ({last.source})")
                elif not _same(now, value):
                    faults.append(f"{node.name}: {key} is {now}, not {value}")
    notes = tuple(
        f"{what} on {_listed(names)}, as the topology sets it ({source})" for (what, source), names in own.items()
    )
    return Answer(
        f"{count} as {'rendered' if lab.blueprint.rendered else 'set by the topology or by Heddle'}", faults, notes
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _same(now: str, wanted: str) -> bool:
    """Whether a sysctl has the value that was written. The kernel reports 0x37 as 55, and separates numbers by tabs."""
    try:
        return [sysctl_number(word) for word in now.split()] == [sysctl_number(word) for word in wanted.split()]
    except ValueError:  # names, as of tcp_congestion_control
        return now.split() == wanted.split()


def hashing(subject: Subject) -> Found:
    """Compare modes, seeds, options and tables in the BPF maps and in the kernel with what was set last."""
    wanted = rehash.wanted(subject.lab)
    faults = [f"{name}: {why}" for name, why in rehash.hashing_faults(subject.lab, subject.now.hashing).items()]
    return f"{rehash.label_of(wanted.values())} on {len(wanted)} switches, each with its seed", faults


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
    lab = subject.lab
    if not lab.blueprint.rendered:
        raise NothingError("an imported topology does not say which links should be up")
    faults = health.down_or_drained(lab, subject.now)
    return f"{len(lab.fabric.links)} links are up, and no switch is drained", list(map(first_line, faults))


def daemons(subject: Subject) -> Found:
    """Every daemon answers."""
    lab, now = subject.lab, subject.now
    silent = [f"{fault.where}: {fault.what} {fault.why}" for fault in health.silent_daemons(now)]
    names = dict.fromkeys(daemon for node in lab.fabric.switches for daemon in lab.blueprint.daemons(node.name))
    if not names and not silent:
        raise NothingError("no file says which daemons should run")
    return f"{' and '.join(names)} answer on {len(lab.fabric.switches)} switches", silent


def bgp(subject: Subject) -> Found:
    """Every BGP session is established, as bgpd reports at both ends."""
    made = subject.lab.blueprint
    faults = made.session_faults(subject.now)
    expected = made.sessions(subject.now)[1]
    if not expected and not faults:
        raise NothingError("no BGP session is configured between switches of the lab")
    return f"{expected} sessions established", faults


def routes(subject: Subject) -> Answer:
    """Every kernel has every route with all of its next hops, those to neighbours, and no other route."""
    lab, made, now = subject.lab, subject.lab.blueprint, subject.now
    checked, gaps = made.routes_checked(), [*made.gaps(now), *map(first_line, health.unrouted(lab, now))]
    if not checked and not gaps:
        raise NothingError("no host has an address, so no route is expected")
    found = health.wrong_routes(lab, now)
    foreign = [f"{each.where}: {each.what} {each.why}" for each in found]
    if found:
        foreign[0] += f"; {found[0].hint}"
    inside = [] if made.rendered else overriding_routes(lab.fabric, now.fibs)
    notes = (f"{each.switch}: {each.what} overrides {each.overrides}, the network of a host" for each in inside)
    return Answer(checked, [*gaps, *foreign], tuple(notes))


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
