"""Faults by hand at a chosen place of a running lab, for benches and tests of the diagnosis: what broke, and where.

In:  a lab and a random generator. Out: Incident: the cause and the objects that a diagnosis should name, and a with
block in which the fault is in force. Most are made by ip, tc, vtysh and signals, as an operator's mistake would be.
"""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from os import kill
from typing import Any, Final

from heddle.base.ethernet import pfc_frame
from heddle.base.events import Silent
from heddle.base.process import run
from heddle.base.sysctls import HASH_SEED, sysctl_path
from heddle.fabric.wiring import Port
from heddle.kernel.namespace import inside
from heddle.kernel.uapi import SOL_PACKET
from heddle.lab import linkstate, outages, thresholds
from heddle.lab.daemons import DAEMONS, ESTABLISHED
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.spec.impairments import LinkFault
from heddle.switch.queues.cells import LabQueues
from heddle.wire.layout import DSCP_DATA
from tests.machine import meanwhile, until

_DATA: Final = 3  # the class of data packets
_QUANTA: Final = 2000  # 20 ms at 50 Mbit/s
_PAUSE_EVERY_S: Final = 0.03
_QDISC_BYPASS: Final = 20  # linux/if_packet.h: PACKET_QDISC_BYPASS
_SHARED_SEED: Final = 7
_OTHER_MAC: Final = "02:00:00:00:00:99"


@dataclass(frozen=True)
class Incident:
    """One fault. objects: any of them is right. options: of the run. around: has the fault in force.

    cause: empty for a healthy fabric.
    """

    cause: str
    objects: frozenset[str]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    options: Mapping[str, Any] = field(default_factory=dict)


def healthy(lab: Lab, rng: random.Random) -> Incident:
    """Nothing is broken."""
    return Incident("", frozenset())


def link_down(lab: Lab, rng: random.Random) -> Incident:
    """Any link. That of a host ends the run."""
    port = _any_port(lab, rng)
    return Incident("link-down", _ends(port), lambda: outages.link_down(lab, port.ref))


def link_flap(lab: Lab, rng: random.Random) -> Incident:
    """A link goes down in the run and comes back, again and again: for the second time before 0.3 s, as a link that
    was lost once was down for a part of the run.
    """
    port = _fabric_port(lab, rng)
    fault = f"{port.ref},down,from=0.05s,to=0.1s,every=0.15s"
    return Incident("link-flap", _ends(port), options={"faults": (fault,)})


def link_outage(lab: Lab, rng: random.Random) -> Incident:
    """A link goes down in the run, and comes back."""
    port = _fabric_port(lab, rng)
    return Incident("link-down", _ends(port), options={"faults": (f"{port.ref},down,from=0.1s,to=0.3s",)})


def small_mtu(lab: Lab, rng: random.Random) -> Incident:
    """One end of any link has a small MTU, as `ip link set mtu 1500` leaves it."""
    port = _any_port(lab, rng)
    return Incident("wrong-mtu", _ends(port), lambda: _with_mtu(lab, port.ref))


def small_mtus(lab: Lab, rng: random.Random) -> Incident:
    """Both ends have it."""
    port = _any_port(lab, rng)
    return Incident("wrong-mtu", _ends(port), lambda: _with_mtu(lab, port.ref, port.peer_ref))


def few_paths(lab: Lab, rng: random.Random) -> Incident:
    """`maximum-paths 1`: a switch with several next hops uses one of them."""
    hops = lab.fabric.expected_next_hops
    node = rng.choice([each for each in lab.fabric.switches if any(len(p) > 1 for p in hops[each.name].values())])
    return Incident("missing-next-hop", frozenset({node.name}), lambda: few_paths_at(lab, node.name))


def wrong_neighbour(lab: Lab, rng: random.Random) -> Incident:
    """A permanent neighbour entry of a switch for a host, with another MAC."""
    nic = rng.choice([port for port in lab.fabric.nics if port.address is not None])
    ends = frozenset({nic.peer_ref, nic.peer_node})
    return Incident("wrong-neighbour", ends, lambda: _neighbour(lab, nic))


def wrong_class(lab: Lab, rng: random.Random) -> Incident:
    """The DSCP of data maps to another class in every port's program."""
    return Incident("wrong-class", frozenset({lab.fabric.name}), lambda: _classes(lab))


def lossy(lab: Lab, rng: random.Random) -> Incident:
    """A port of any node loses packets."""
    port = _any_port(lab, rng)
    return Incident("link-lossy", frozenset({port.ref}), lambda: _impaired(lab, port, LinkFault(loss=1 / 64)))


def corrupting(lab: Lab, rng: random.Random) -> Incident:
    """A port of any node inverts bits."""
    port = _any_port(lab, rng)
    return Incident("bit-errors", frozenset({port.ref}), lambda: _impaired(lab, port, LinkFault(corrupt=1 / 64)))


def slow_link(lab: Lab, rng: random.Random) -> Incident:
    """A port between switches has a fifth of its rate."""
    port = _fabric_port(lab, rng)
    return Incident("slow-link", _ends(port), lambda: _shaped(lab, port.rate_bps // 5, port))


def slow_host(lab: Lab, rng: random.Random) -> Incident:
    """The ranks of a host process data at a tenth of their NIC's rate."""
    host = rng.choice(lab.fabric.hosts)
    return Incident("slow-host", frozenset({host.name, host.ports[0].ref}), options={"slow": ((host.name, 0.1),)})


def slow_nic(lab: Lab, rng: random.Random) -> Incident:
    """A host's link has a fifth of its rate, in both directions."""
    nic = rng.choice(lab.fabric.nics)
    switch = lab.fabric.by_name[nic.peer_node].port(nic.peer_port)
    return Incident("slow-host", frozenset({nic.node, nic.ref}), lambda: _shaped(lab, nic.rate_bps // 5, nic, switch))


def storm(lab: Lab, rng: random.Random) -> Incident:
    """A host pauses the port of its switch most of the time."""
    port = rng.choice(lab.fabric.nics)
    return Incident("pfc-storm", frozenset({port.ref, port.node}), lambda: _pausing(lab, port))


def node_down(lab: Lab, rng: random.Random) -> Incident:
    """A switch that hosts do not hang on: its links and daemons."""
    node = rng.choice([each for each in lab.fabric.switches if not lab.fabric.level_of(each).is_edge])
    return Incident("node-down", frozenset({node.name}), lambda: _dead(lab, node.name))


def frozen(lab: Lab, rng: random.Random) -> Incident:
    """The daemons of a switch are stopped, and it forwards."""
    node = rng.choice(lab.fabric.switches)
    return Incident("control-plane-dead", frozenset({node.name}), lambda: _stopped(lab, node.name))


def session_down(lab: Lab, rng: random.Random) -> Incident:
    """`neighbor PORT shutdown` at one end."""
    port = _fabric_port(lab, rng)
    return Incident("bgp-session-down", _ends(port), lambda: _shut(lab, port))


def drained(lab: Lab, rng: random.Random) -> Incident:
    """A switch that hosts do not hang on."""
    node = rng.choice([each for each in lab.fabric.switches if not lab.fabric.level_of(each).is_edge])
    return Incident("drained", frozenset({node.name}), lambda: outages.drain(lab, node.name))


def misrouted(lab: Lab, rng: random.Random) -> Incident:
    """A static route takes all packets to a host over one port, which may be on no shortest path."""
    fabric = lab.fabric
    node = rng.choice(fabric.switches)
    target = rng.choice([port for port in fabric.nics if port.peer_node != node.name])
    port = rng.choice([port for port in node.ports if not fabric.leads_to_host(port)])
    assert target.address is not None
    route = [f"{target.address.ip}/32", "via", "169.254.0.1", "dev", port.name, "onlink"]
    return Incident("misrouting", frozenset({node.name}), lambda: _routed(lab, node.name, route))


def lost_route(lab: Lab, rng: random.Random) -> Incident:
    """A switch of hosts has no routes to those of other switches for a moment; to be set within a run."""
    fabric = lab.fabric
    node = rng.choice([each.name for each in fabric.switches if fabric.level_of(each).is_edge])
    far = [nic.address.ip for nic in fabric.nics if nic.address is not None and nic.peer_node != node]

    @contextmanager
    def around() -> Iterator[None]:
        with ExitStack() as stack:
            for address in far:
                stack.enter_context(_routed(lab, node, ["unreachable", f"{address}/32"]))
            yield

    return Incident("unproven-paths", frozenset({node}), around)


def without_address(lab: Lab, rng: random.Random) -> Incident:
    """A host without the address of its NIC."""
    nic = rng.choice([port for port in lab.fabric.nics if port.address is not None])

    @contextmanager
    def around() -> Iterator[None]:
        rows = lab.output(nic.node, ["ip", "route", "show", "dev", nic.name]).splitlines()
        _ip(lab, nic.node, "ip", "addr", "del", str(nic.address), "dev", nic.name)
        try:
            yield
        finally:
            _ip(lab, nic.node, "ip", "addr", "replace", str(nic.address), "dev", nic.name)
            for row in (each for each in rows if "proto kernel" not in each):  # which went with the address
                _ip(lab, nic.node, "ip", "route", "replace", *row.split(), "dev", nic.name)

    return Incident("failed-check", frozenset({nic.ref}), around)


def wrong_threshold(lab: Lab, rng: random.Random) -> Incident:
    """ECN marks from the first packet on, at one switch."""
    node = rng.choice(lab.fabric.switches)
    return Incident("wrong-threshold", frozenset({node.name}), lambda: _threshold(lab, node.name))


def wrong_seed(lab: Lab, rng: random.Random) -> Incident:
    """One switch hashes with another seed."""
    node = rng.choice(lab.fabric.switches)
    return Incident("wrong-seed", frozenset({node.name}), lambda: _seeded(lab, [node.name], rng.randrange(1, 1 << 32)))


def polarised(lab: Lab, rng: random.Random) -> Incident:
    """All switches hash with the same seed."""
    names = [node.name for node in lab.fabric.switches]
    middle = frozenset(node.name for node in lab.fabric.switches if not lab.fabric.level_of(node).is_edge)
    return Incident("polarisation", middle, lambda: _seeded(lab, names, _SHARED_SEED))


SHALLOW: Final = ("queues.lossless=[]", "queues.ecn.enabled=false", "queues.buffer=200KB", "queues.trimming.queue=5")


def shallow(lab: Lab, rng: random.Random) -> Incident:
    """An incast that the buffers of a fabric with the keys of SHALLOW cannot hold."""
    ports = frozenset(port.peer_ref for port in lab.fabric.nics)
    return Incident("trimmed", ports, options={"collective": "incast", "sizes": (1 << 19,)})


KINDS: Final[Sequence[Callable[[Lab, random.Random], Incident]]] = (
    link_down, lossy, corrupting, slow_link, slow_nic, slow_host, storm, node_down, frozen, session_down, drained,
    misrouted, wrong_threshold, wrong_seed, link_flap, link_outage, small_mtu, small_mtus, few_paths, wrong_neighbour,
    wrong_class,
)  # fmt: skip


# Those that neither change routes nor wait for them: each can come on top of another one.
BESIDE: Final[Sequence[Callable[[Lab, random.Random], Incident]]] = (
    lossy, corrupting, slow_host, wrong_threshold, wrong_seed, small_mtu, small_mtus, wrong_neighbour, wrong_class,
)  # fmt: skip


def _fabric_port(lab: Lab, rng: random.Random) -> Port:
    between = [port for node in lab.fabric.switches for port in node.ports if not lab.fabric.leads_to_host(port)]
    return rng.choice(between)


def _any_port(lab: Lab, rng: random.Random) -> Port:
    return rng.choice([port for node in lab.fabric.nodes for port in node.ports])


def _ends(port: Port) -> frozenset[str]:
    return frozenset({port.ref, port.peer_ref})


@contextmanager
def _impaired(lab: Lab, port: Port, fault: LinkFault) -> Iterator[None]:
    outages.set_fault(lab, [port.ref], fault)
    try:
        yield
    finally:
        outages.clear_faults(lab)


def _ip(lab: Lab, node: str, *words: str) -> None:
    run(["nsenter", f"--net={lab.handle(node).netns}", *words])


@contextmanager
def _shaped(lab: Lab, rate_bps: int, *ports: Port) -> Iterator[None]:
    rate = f"{rate_bps}bit"
    for port in ports:
        change = ["tc", "class", "change", "dev", port.name, "parent", "1:", "classid", "1:1", "htb", "rate", rate]
        _ip(lab, port.node, *change, "ceil", rate, "burst", "8400b", "cburst", "8400b", "quantum", "4214")
    try:
        yield
    finally:
        repair(lab, Silent())


@contextmanager
def _pausing(lab: Lab, port: Port) -> Iterator[None]:
    frame = pfc_frame(bytes.fromhex(port.mac.replace(":", "")), {_DATA: _QUANTA})
    with inside(lab.handle(port.node).netns):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.setsockopt(SOL_PACKET, _QDISC_BYPASS, 1)  # a NIC's pauses do not pass its queues
        raw.bind((port.name, 0))
    with raw, meanwhile(lambda: raw.send(frame), _PAUSE_EVERY_S):
        yield


@contextmanager
def _with_mtu(lab: Lab, *refs: str) -> Iterator[None]:
    for ref in refs:
        node, _, name = ref.partition(":")
        _ip(lab, node, "ip", "link", "set", name, "mtu", "1500")
    try:
        yield
    finally:
        for ref in refs:
            node, _, name = ref.partition(":")
            _ip(lab, node, "ip", "link", "set", name, "mtu", str(lab.fabric.by_name[node].port(name).mtu))
        for node in (each.name for each in lab.fabric.nodes):  # what was learned meanwhile lasts ten minutes
            _ip(lab, node, "ip", "route", "flush", "cache")


@contextmanager
def few_paths_at(lab: Lab, node: str) -> Iterator[None]:
    """A switch whose BGP uses one path of several."""
    asn, family = lab.fabric.by_name[node].asn, lab.fabric.policy.ip.word

    def configure(word: str) -> None:
        lines = ("configure terminal", f"router bgp {asn}", f"address-family {family} unicast", word)
        lab.output(node, ["vtysh", *(part for line in lines for part in ("-c", line))])

    configure("maximum-paths 1")
    until(lambda: lab.blueprint.gaps(lab.snapshot(lab.blueprint.gap_parts)))
    try:
        yield
    finally:
        configure("no maximum-paths 1")
        linkstate.wait(lab)


@contextmanager
def _neighbour(lab: Lab, nic: Port) -> Iterator[None]:
    assert nic.address is not None
    entry = [str(nic.address.ip), "lladdr", _OTHER_MAC, "dev", nic.peer_port, "nud", "permanent"]
    _ip(lab, nic.peer_node, "ip", "neigh", "replace", *entry)
    try:
        yield
    finally:
        _ip(lab, nic.peer_node, "ip", "neigh", "del", *entry[:1], *entry[3:5])


@contextmanager
def _classes(lab: Lab) -> Iterator[None]:
    queues = lab.fabric.policy.queues
    with LabQueues.pinned(lab.fabric) as live:
        live.set_classes(replace(queues, dscp={DSCP_DATA: queues.best_effort}))
        try:
            yield
        finally:
            live.set_classes(queues)


def _pids(lab: Lab, node: str) -> list[int]:
    return [int(lab.output(node, ["cat", f"/run/frr/{daemon}.pid"])) for daemon in DAEMONS]


@contextmanager
def _stopped(lab: Lab, node: str) -> Iterator[None]:
    try:
        with _daemons_stopped(lab, node):
            yield
    finally:
        linkstate.wait(lab)


@contextmanager
def _dead(lab: Lab, node: str) -> Iterator[None]:
    with outages.link_down(lab, node), _daemons_stopped(lab, node):  # which waits for routes, after the links are up
        yield


@contextmanager
def _daemons_stopped(lab: Lab, node: str) -> Iterator[None]:
    pids = _pids(lab, node)
    for pid in pids:
        kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)


@contextmanager
def _shut(lab: Lab, port: Port) -> Iterator[None]:
    asn = lab.fabric.by_name[port.node].asn

    def configure(word: str) -> None:
        lines = ("configure terminal", f"router bgp {asn}", f"{word}neighbor {port.name} shutdown")
        lab.output(port.node, ["vtysh", *(part for line in lines for part in ("-c", line))])

    configure("")
    try:
        until(lambda: (lab.daemons.sessions(port.peer_node) or {}).get(port.peer_port) != ESTABLISHED)
        time.sleep(1.0)  # the routes follow
        yield
    finally:
        configure("no ")
        linkstate.wait(lab)


@contextmanager
def _routed(lab: Lab, node: str, route: Sequence[str]) -> Iterator[None]:
    _ip(lab, node, "ip", "route", "add", *route)
    try:
        yield
    finally:
        _ip(lab, node, "ip", "route", "del", *route)


@contextmanager
def _threshold(lab: Lab, node: str) -> Iterator[None]:
    thresholds.set_queues(lab, ["ecn.kmin=1KB", "ecn.kmax=2KB"], [node])
    try:
        yield
    finally:
        thresholds.restore_queues(lab)


@contextmanager
def _seeded(lab: Lab, nodes: Sequence[str], seed: int) -> Iterator[None]:
    path = sysctl_path(HASH_SEED)
    before = {}
    for node in nodes:
        with inside(lab.handle(node).netns):
            before[node] = path.read_text()
            path.write_text(str(seed))
    try:
        yield
    finally:
        for node, value in before.items():
            with inside(lab.handle(node).netns):
                path.write_text(value)
