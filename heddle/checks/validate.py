"""Run every check that applies to a running lab: ports and kernels as configured, and hosts that reach each other.

In:  a running Lab.
Out: a CheckResult for each check, in the order of their dependencies. Nothing in the lab is changed; the
only packets sent are UDP probes from host to host.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from heddle.base import plugins
from heddle.base.plugins import Registry, having
from heddle.base.problems import CheckError, HeddleError, InputError, Problem
from heddle.checks import queuechecks
from heddle.checks.queuechecks import SHOWN, Answer, Found, NothingError, Subject, first_line, shortened
from heddle.fabric import hashmodes
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.host import delivery
from heddle.kernel import inorder
from heddle.kernel.namespace import NodeHandle, inside
from heddle.lab import attached, rehash
from heddle.lab.convergence import overriding_routes
from heddle.lab.fact import Fact
from heddle.lab.facts import wrong_sysctls
from heddle.lab.faults.orders import fault_lines, lost_faults, text_of
from heddle.lab.faults.packets import wanted_faults
from heddle.lab.lab import Lab
from heddle.lab.linkstate import State, repair_hint
from heddle.lab.spread import spread
from heddle.runs.store import has_run, paths_of

_NO_FRR: Final = "no switch runs FRR: routing.control is static"


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
    return f"{', '.join(inorder.FEATURES)} off on {_ports(subject.lab)} ports", []


def order(subject: Subject) -> Found:
    """Every port receives through one queue, with the settings that this kernel supports."""
    wanted = delivery.chosen()
    return f"{_ports(subject.lab)} ports keep packet order, by {wanted.delivery.settings} ({wanted.reason})", []


def faults(subject: Subject) -> Answer:
    """Programs and delay lines have the faults that were set; each is named in a note."""
    lab = subject.lab
    wanted, count = wanted_faults(lab), _ports(lab)
    notes = tuple(f"a fault is set on {line}" for line in fault_lines(lab))
    kept = f"{len(wanted)} of {count} ports have a fault, as it was set"
    checked = kept if wanted else f"no fault of packets is set on {count} ports"
    hint = repair_hint(lab.name, "sets it again")
    lost = [f"{each.where}: no effect of the fault {text_of(lab, each)} is seen; {hint}" for each in lost_faults(lab)]
    return Answer(checked, lost, notes)


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
    """Ports have their MACs and use ARP, and every neighbour entry has the MAC of the other end."""
    count = sum(map(len, subject.now.neighbours.values()))
    return f"{_ports(subject.lab)} ports have their MACs, and {count} neighbour entries that of the other end", []


def addresses(subject: Subject) -> Found:
    """Addresses, rules and the routes of hosts are those that `up` set."""
    if not subject.lab.blueprint.rendered:
        raise NothingError("the commands of an imported topology may set any")
    return f"{len(subject.lab.fabric.nodes)} nodes have the addresses, rules and host routes that `up` set", []


def daemons(subject: Subject) -> Found:
    """Every daemon answers."""
    lab = subject.lab
    names = dict.fromkeys(daemon for node in lab.fabric.switches for daemon in lab.blueprint.daemons(node.name))
    if not lab.fabric.policy.routing.by_bgp:
        raise NothingError(_NO_FRR)
    if not names:
        raise NothingError("no file says which daemons should run")
    return f"{' and '.join(names)} answer on {len(lab.fabric.switches)} switches", []


def bgp(subject: Subject) -> Found:
    """Every BGP session is established, as bgpd reports at both ends."""
    if not subject.lab.fabric.policy.routing.by_bgp:
        raise NothingError(_NO_FRR)
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
    if len(own_nics(lab)) < 2:
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
    return f"{result.source_names} agree on {len(result.flows)} {result.units} of the last run", result.unproven


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


def _ports(lab: Lab) -> int:
    return sum(len(node.ports) for node in lab.own_nodes)


_PORT: Final = 4790  # next to RoCEv2's 4791, which NICs keep for themselves
# Level, option and value that forbid fragments (linux/in.h, in6.h: PMTUDISC_DO); then bytes of UDP and IP header.
_DO_NOT_FRAGMENT: Final[Mapping[int, tuple[int, int, int]]] = {
    4: (socket.IPPROTO_IP, 10, 2),
    6: (socket.IPPROTO_IPV6, 23, 2),
}
_HEADERS: Final[Mapping[int, int]] = {4: 8 + 20, 6: 8 + 40}
_MARK: Final = struct.Struct("!4sII")  # random identifier of this probe, sender, receiver
_MAX_PEERS: Final = 31  # NICs that one NIC probes at most; a larger fabric is sampled by a pattern of distances
_TRIES: Final = 3
_OPEN_S: Final = 0.1  # until the sockets of other shards are open, too


@dataclass(frozen=True, slots=True)
class Reach:
    """Ordered pairs of NICs that were tried, and a sentence for each that failed."""

    tried: int
    faults: tuple[str, ...]


def probe(lab: Lab) -> Reach:
    """Send a datagram of its MTU from each host port to all others of its network (at most 31). Lost ones: again."""
    fabric = lab.fabric
    nics = own_nics(lab)
    pairs = _pairs(fabric, nics)
    seen = ProbesSeen()
    nonce = os.urandom(4)
    for _ in range(_TRIES):
        left = [pair for pair in pairs if pair not in seen.arrived and pair not in seen.refused]
        if not left:
            break
        seen = both([seen, one_round(lab, nonce, left)])
    faults = []
    for source, target in pairs:
        if (source, target) not in seen.arrived:
            why = seen.refused.get((source, target), f"no {nics[source].mtu}-byte packet arrives")
            faults.append(f"{nics[source].ref} to {nics[target].ref}: {why}")
    return Reach(len(pairs), tuple(faults))


@dataclass(frozen=True, slots=True)
class ProbesSeen:
    """Pairs of NICs, by number: whose datagram arrived, and whose kernel refused it, with its error."""

    arrived: frozenset[tuple[int, int]] = frozenset()
    refused: Mapping[tuple[int, int], str] = field(default_factory=dict)


def both(seen: Sequence[ProbesSeen]) -> ProbesSeen:
    """All of several."""
    arrived = frozenset(pair for each in seen for pair in each.arrived)
    return ProbesSeen(arrived, {pair: why for each in seen for pair, why in each.refused.items()})


@spread(both)
def one_round(lab: Lab, nonce: bytes, pairs: Sequence[tuple[int, int]]) -> ProbesSeen:
    """Send from the NICs that are here, and receive with them. pairs: numbers of NICs in the whole fabric."""
    nics, handles = own_nics(lab), lab.handles()
    own = {number for number, nic in enumerate(nics) if nic.node in handles}
    with ExitStack() as stack:
        sockets = {number: stack.enter_context(_open(handles[nics[number].node], nics[number])) for number in own}
        if len(own) < len(nics):
            time.sleep(_OPEN_S)
        arrived: set[tuple[int, int]] = set()
        refused = _send(sockets, nics, [pair for pair in pairs if pair[0] in own], nonce, arrived)
        # Those of other shards may arrive until the end, so only on one machine is the number known.
        wanted = len(pairs) - len(refused) if len(own) == len(nics) else len(pairs) + 1
        # Twice what the slowest port needs for its share, plus a margin for scheduling.
        rate = min(port.rate_bps for port in lab.fabric.host_ports)
        patience_s = 0.5 + 2 * 8 * lab.fabric.policy.mtu * (len(pairs) / len(nics)) / rate
        _drain(sockets, nonce, arrived, wanted, patience_s)
    return ProbesSeen(frozenset(arrived), refused)


def own_nics(lab: Lab) -> list[Port]:
    """The NICs that the hosts of the lab have for themselves: not those that are attached to devices of users."""
    taken = {each.ref for each in attached.read(lab.dir)}
    return [port for port in lab.fabric.host_ports if port.address is not None and port.ref not in taken]


def _pairs(fabric: Fabric, nics: Sequence[Port]) -> list[tuple[int, int]]:
    """Pairs (sender, receiver) of one network in one connected part of the fabric: between planes there is no path."""
    parts: dict[tuple[str, int | None], list[int]] = {}
    for number, nic in enumerate(nics):
        parts.setdefault((nic.network, fabric.part_of.get(nic.peer_node)), []).append(number)
    return [
        (members[place], members[(place + step) % len(members)])
        for members in parts.values()
        for step in _steps(len(members))
        for place in range(len(members))
    ]


def _steps(count: int) -> Sequence[int]:
    """Distances on the ring of NICs at which each NIC probes: all, or powers of two and the nearest."""
    if count - 1 <= _MAX_PEERS:
        return range(1, count)
    doubling = [1 << i for i in range(count.bit_length()) if 1 << i < count]
    return sorted({*doubling, *range(1, _MAX_PEERS - len(doubling))})


@contextlib.contextmanager
def _open(handle: NodeHandle, nic: Port) -> Iterator[socket.socket]:
    version = 4 if nic.address is None else nic.address.version
    with inside(handle.netns):
        udp = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
    with udp:
        udp.setblocking(False)
        udp.setsockopt(*_DO_NOT_FRAGMENT[version])
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with contextlib.suppress(OSError):  # another validate has the port: nothing arrives here, and is reported
            udp.bind(("" if nic.address is None else str(nic.address.ip), _PORT))
        yield udp


def _send(
    sockets: Mapping[int, socket.socket],
    nics: Sequence[Port],
    pairs: Sequence[tuple[int, int]],
    nonce: bytes,
    arrived: set[tuple[int, int]],
) -> dict[tuple[int, int], str]:
    """Send to every pair, and receive what arrives meanwhile. Returns pair -> the kernel's error."""
    refused: dict[tuple[int, int], str] = {}
    for sent, (source, target) in enumerate(pairs):
        address = nics[target].address
        size = nics[source].mtu - _HEADERS[4 if address is None else address.version]
        body = _MARK.pack(nonce, source, target).ljust(size, b"\0")
        try:
            sockets[source].sendto(body, (str(address.ip) if address else "", _PORT))
        except BlockingIOError:
            pass  # the socket's queue is full: the next round sends it
        except OSError as error:
            refused[source, target] = os.strerror(error.errno or 0)
        if sent % len(nics) == len(nics) - 1:
            _drain(sockets, nonce, arrived, len(pairs), 0.0)
    return refused


def _drain(
    sockets: Mapping[int, socket.socket], nonce: bytes, arrived: set[tuple[int, int]], wanted: int, seconds: float
) -> None:
    """Receive until `wanted` pairs have arrived or `seconds` have passed; 0 s: only what has already arrived."""
    poll = select.poll()
    by_fd = {each.fileno(): number for number, each in sockets.items()}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    deadline = time.monotonic() + seconds
    while len(arrived) < wanted:
        ready = poll.poll(max(0, (deadline - time.monotonic()) * 1000))
        if not ready:
            return
        for fd, _ in ready:
            _receive(sockets[by_fd[fd]], by_fd[fd], nonce, arrived)
        if seconds and time.monotonic() > deadline:
            return


def _receive(udp: socket.socket, here: int, nonce: bytes, arrived: set[tuple[int, int]]) -> None:
    while True:
        try:
            data = udp.recv(1 << 16)
        except OSError:
            return  # nothing more; or an ICMP error: then the pair is missing in `arrived`
        if len(data) >= _MARK.size:
            found, source, target = _MARK.unpack_from(data)
            if found == nonce and target == here:
                arrived.add((source, target))


Check = Callable[[Subject], Found | Answer]


# Name -> check, in the order of their dependencies. A new check is a function in its own file, and one line here.
def guarded(check: Check) -> Check:
    """A check of a plugin: whatever it raises is that this check cannot be made."""

    def made(subject: Subject) -> Found | Answer:
        try:
            return check(subject)
        except (HeddleError, NothingError):
            raise
        except Exception as error:
            name = f"{check.__module__}:{getattr(check, '__name__', '')}"
            raise CheckError(
                Problem("", name, f"raised {type(error).__name__}: {plugins.first_line(error)}")
            ) from error

    return made


CHECKS: Final[Registry[Check]] = Registry(
    "check",
    {
        "sysctls": sysctls,
        "hashing": hashing,
        "queues": queuechecks.shapers,
        "offloads": offloads,
        "order": order,
        "programs": queuechecks.programs,
        "thresholds": queuechecks.thresholds,
        "faults": faults,
        "links": links,
        "mtu": mtu,
        "neighbours": neighbours,
        "addresses": addresses,
        "daemons": daemons,
        "bgp": bgp,
        "routes": routes,
        "reachability": reachability,
        "depths": queuechecks.depths,
        "headroom": queuechecks.headroom,
        "pauses": queuechecks.pauses,
        "paths": paths,
        "polarisation": polarisation,
    },
    having("__call__"),
    made=guarded,
)


# Those that read kernels and maps themselves. For a lab in shards they run in each.
BESIDE_NODES: Final = frozenset({"depths", "pauses"})
_COUNT: Final = re.compile(r"^\d+")


def joined(answers: Sequence[Answer | None]) -> Answer | None:
    """One answer of those of all shards: leading counts of equal texts are added. None: nothing to check."""
    found = [each for each in answers if each is not None]
    if not found:
        return None
    texts: dict[str, int] = {}
    for each in found:
        count = _COUNT.match(each.checked)
        texts[_COUNT.sub("", each.checked)] = texts.get(_COUNT.sub("", each.checked), 0) + int(count[0] if count else 0)
    checked = "; ".join(f"{count or ''}{text}" for text, count in texts.items())
    faults = [line for each in found for line in each.faults]
    return Answer(checked, faults, tuple(dict.fromkeys(note for each in found for note in each.notes)))


@spread(joined)
def check_beside(lab: Lab, name: str) -> Answer | None:
    """A check of BESIDE_NODES, for the nodes of one shard."""
    try:
        return Answer(*CHECKS[name](Subject.of(lab)))
    except NothingError:
        return None


def _in_shards(lab: Lab, name: str) -> Answer:
    found = check_beside(lab, name)
    if found is None:
        raise NothingError("no shard has anything that this check applies to")
    return found


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; detail: what was checked, or what is wrong and where.

    skipped: the check does not apply to this lab; detail: why. notes: information that is not a fault.
    """

    name: str
    ok: bool
    detail: str
    skipped: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """One row of `checks`; `skipped` and `notes` only where there are any."""
        optional = {"skipped": self.skipped, "notes": list(self.notes)}
        data = {"name": self.name, "ok": self.ok, "detail": self.detail}
        return data | {key: value for key, value in optional.items() if value}


def validate(
    lab: Lab, only: Collection[str] | None = None, facts_of: Callable[[str], tuple[Fact, ...]] | None = None
) -> tuple[CheckResult, ...]:
    """Run all checks. A check that cannot be made has failed, with the reason. If nodes are not running, skip the rest.

    only: names of the checks to run, and `nodes`; all when None. facts_of: the facts of a check, if they were read.
    """
    lost = lab.runtime.missing_nodes(lab.name, lab.topology)
    nodes = CheckResult("nodes", not lost, "; ".join(map(first_line, lost[:SHOWN])) or f"{len(lab.handles())} running")
    if lost:
        skipped = "not checked: nodes are not running"
        return (nodes, *(CheckResult(name, True, skipped, skipped=True) for name in CHECKS))
    subject = Subject.of(lab)
    chosen = {name: check for name, check in CHECKS.items() if only is None or name in only}
    beside = frozenset() if lab.runtime.here else BESIDE_NODES
    asks = {
        name: partial(_in_shards, lab, name) if name in beside else partial(check, subject)
        for name, check in chosen.items()
    }
    return (nodes, *(result_of(name, ask, facts_of or subject.facts_of) for name, ask in asks.items()))


def result_of(name: str, ask: Callable[[], Found | Answer], facts_of: Callable[[str], tuple[Fact, ...]]) -> CheckResult:
    """The facts that belong to a check, with a hint for each command that they need; without any, what it found."""
    found: tuple[Fact, ...] = ()
    try:
        found = facts_of(name)
        checked, own, notes = Answer(*ask())
    except NothingError as reason:
        if not found:
            return CheckResult(name, True, str(reason), skipped=True)
        checked, own, notes = Answer("", [])
    except HeddleError as error:
        return CheckResult(name, False, "; ".join(map(first_line, error.problems)))
    faults = [each.text for each in found] or own  # what the check has found follows from the facts
    detail = shortened(faults) if faults else "; ".join([checked, *([shortened(notes)] if notes else [])])
    hints: dict[str, str] = {}  # the first one with each command
    for hint in (each.problem.hint for each in found if each.problem.hint):
        hints.setdefault(" ".join(hint.split()[:3]), hint)
    return CheckResult(name, not faults, "; ".join([detail, *hints.values()]), notes=notes)
