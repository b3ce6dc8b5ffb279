"""Add the front-end of a fabric file to a fabric of any shape: RSWs in the racks, FSWs above them, hosts that serve.

In:  the builder with the nodes and links of the shape, and `frontend` of the file.
Out: rsw1.., fsw1.., storage1.., preprocess1.., on two levels above the shape's. Hosts take the next port number.
Ports: an RSW's eth1..ethS lead to the FSWs, the next ones to its hosts; an FSW's ethN leads to rswN.
RSWs of trainers come first, then those of storage, then those of preprocessing, each with as many hosts as the largest
rack of trainers. AS numbers (RFC 7938, section 5.2; RFC 6996): one for all FSWs, one for each RSW.
With `share_nics`, storage and preprocess hosts are at the edge switches in turn, and nothing else is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from heddle.base.units import format_rate
from heddle.fabric.checks import unknown_words
from heddle.fabric.policy import NetworkPolicy
from heddle.fabric.policydata import queue_policy
from heddle.fabric.wiring import BACKEND, FRONTEND, Level, Node, Role
from heddle.spec.key import Complaint
from heddle.spec.linkspec import FASTEST_BPS, SLOWEST_BPS
from heddle.spec.queuepolicy import EcnPolicy
from heddle.spec.schema import MOST_HOSTS, MOST_SWITCHES

if TYPE_CHECKING:
    from heddle.base.families import Network
    from heddle.fabric.builder import FabricBuilder, Groups
    from heddle.fabric.model import Fabric
    from heddle.spec.frontend import FrontendSpec
    from heddle.spec.schema import FabricSpec

RSW: Final = "rsw"
FSW: Final = "fsw"
_FABRIC_BPS: Final = 10**8
_ASN_FSW: Final = 4_200_100_000
_ASN_RSW: Final = 4_200_101_000  # + number


@dataclass(frozen=True, slots=True)
class _Rack:
    """An RSW with its hosts. serves: these do not exist yet."""

    hosts: Sequence[str]
    groups: Groups
    serves: str = ""


def build(builder: FabricBuilder, front: FrontendSpec, box: str) -> None:
    """Add nodes and links. box: the word of the groups of hosts that share an RSW."""
    spec, nodes = builder.spec, builder.nodes
    index = max((node.index for node in nodes if node.role is Role.HOST), default=0)
    if front.share_nics:
        _share(builder, front, index)
        return
    racks = [*_of_trainers(nodes, front, box)]
    most = max(len(rack.hosts) for rack in racks)
    racks += _of_servers(front, most, box, max((node.group(box) or 0 for node in nodes), default=0))
    rate = front.link.fabric or _FABRIC_BPS
    if front.oversubscription is not None:
        rate = max(1, round(most * front.link.host / (front.spines * front.oversubscription)))
    first = builder.above(
        Level(RSW, "RSW", "leaf", rate, is_edge=True, counts_uplinks=True, boxed=True, network=FRONTEND),
        Level(FSW, "FSW", "spine", network=FRONTEND),
    )
    _, *switches = builder.levels
    queues = queue_policy(front.queues.beside(spec.queues), [level.word for level in switches])
    builder.network(FRONTEND, NetworkPolicy(front.network, front.mtu, queues))

    length = spec.addressing.rack_prefix
    prefixes: list[Network] = []
    for number, rack in enumerate(racks, 1):
        base = int(front.network.network_address) + ((number - 1) << spec.ip.bits - length)
        prefixes.append(spec.ip.network(base, length))
        builder.switch(first, number, _ASN_RSW + number, rack.groups, prefixes[-1])
    for spine in range(1, front.spines + 1):
        builder.switch(first + 1, spine, _ASN_FSW, ())
    for rack in (rack for rack in racks if rack.serves):
        for name in rack.hosts:
            index += 1
            builder.host(index, rack.groups, name, rack.serves)
    for number in range(1, len(racks) + 1):
        for spine in range(1, front.spines + 1):
            builder.join(f"{RSW}{number}", f"{FSW}{spine}", network=FRONTEND)
    for number, (rack, prefix) in enumerate(zip(racks, prefixes, strict=True), 1):
        for place, name in enumerate(rack.hosts):
            ends = spec.ip.ends(int(prefix.network_address) + 2 * place)
            builder.join(name, f"{RSW}{number}", ends, FRONTEND, front.host_bps(rack.serves))


def _share(builder: FabricBuilder, front: FrontendSpec, index: int) -> None:
    """Hosts that serve, at the edge switches in turn: each takes the next addresses of the switch's prefix."""
    edges = [(node, node.prefix) for node in builder.nodes if node.prefix is not None]
    used = [sum(port.address is not None for port in edge.ports) for edge, _ in edges]
    names = [(word, n) for word, count in front.servers.items() for n in range(1, count + 1)]
    for turn, (word, n) in enumerate(names):
        place = turn % len(edges)
        edge, prefix = edges[place]
        ends = builder.spec.ip.ends(int(prefix.network_address) + 2 * used[place])
        used[place] += 1
        name = builder.host(index + turn + 1, edge.groups, f"{word}{n}", word)
        rate = front.link.storage if word == "storage" else None
        builder.join(name, edge.name, ends, rate_bps=rate or 0)


def _of_trainers(nodes: Sequence[Node], front: FrontendSpec, box: str) -> Iterator[_Rack]:
    """Hosts by their box, or in order, as equal as possible."""
    hosts = [node for node in nodes if node.role is Role.HOST]
    if front.racks == "shared":
        for number in dict.fromkeys(host.group(box) for host in hosts):
            inside = [host for host in hosts if host.group(box) == number]
            yield _Rack([host.name for host in inside], inside[0].groups)
        return
    racks = min(front.racks, len(hosts))
    for number in range(racks):
        inside = hosts[number * len(hosts) // racks : (number + 1) * len(hosts) // racks]
        yield _Rack([host.name for host in inside], inside[0].groups)


def _of_servers(front: FrontendSpec, most: int, box: str, used: int) -> Iterator[_Rack]:
    """Racks of at most so many hosts. used: the last number of a box."""
    for word, count in front.servers.items():
        for start in range(1, count + 1, most):
            used += 1
            names = [f"{word}{n}" for n in range(start, min(start + most, count + 1))]
            yield _Rack(names, ((box, used),), word)


def complaints(spec: FabricSpec, front: FrontendSpec, fabric: Fabric) -> Iterator[Complaint]:
    """Numbers of hosts, racks and planes that the fabric has no room for, and rates that cannot be emulated."""
    larger = f"frontend.{max(front.servers, key=lambda word: front.servers[word])}"
    if len(fabric.hosts) > MOST_HOSTS:
        why = f"makes {len(fabric.hosts)} hosts with the trainers, but there are MAC addresses for {MOST_HOSTS} only"
        yield Complaint(larger, why, "use fewer hosts", counts=True)
    length = spec.addressing.rack_prefix
    room = 2 ** (spec.ip.bits - length) // 2
    network = BACKEND if front.share_nics else FRONTEND
    full = {edge: sum(port.address is not None for port in edge.ports) for edge in _edges(fabric, network)}
    for edge, count in full.items():
        if count > room:
            fit = spec.ip.bits - (2 * count - 1).bit_length()
            why = f"puts {count} host links on {edge.name}, but a /{length} has room for {room}"
            hint = f"try addressing.rack_prefix: {fit}" if fit >= spec.ip.racks[0] else "use fewer hosts, or more racks"
            path = larger if front.share_nics else "frontend.racks"
            yield Complaint(path, why, hint, ("addressing.rack_prefix",), counts=True)
            break
    if front.share_nics:
        planes = len({fabric.part_of[edge.name] for edge in full})
        if planes > 1:
            why = f"reaches the NICs of one of {planes} planes only: no link joins them"
            yield Complaint("frontend.share_nics", why, "remove it, or use one plane", counts=True)
        return
    yield from unknown_words(front.queues.buffer.words, fabric, network=FRONTEND)
    for each in front.queues.beside(spec.queues).rules():
        yield replace(each, path=f"frontend.{each.path}")
    if front.queues.ecn.marker not in (EcnPolicy().marker, spec.queues.ecn.marker):
        hint = "remove it, or set queues.ecn.marker"
        yield Complaint("frontend.queues.ecn.marker", "is not that of queues.ecn.marker, as it must be", hint)
    trainers = sum(not host.serves for host in fabric.hosts)
    if front.racks != "shared" and front.racks > trainers:
        yield Complaint(
            "frontend.racks", f"is more than the {trainers} hosts", f"try {trainers}, or shared", counts=True
        )
    pool = front.network
    prefixes = 2 ** (length - pool.prefixlen) - 2 ** max(0, length - spec.ip.last)
    for most, what in ((MOST_SWITCHES, "there are loopback addresses for"), (prefixes, f"{pool} has prefixes for")):
        if len(full) > most:
            why = f"makes {len(full)} RSWs in all, but {what} {most} only"
            path = larger if max(front.servers.values()) > trainers else "frontend.racks"
            yield Complaint(path, why, "use fewer racks, or a longer addressing.rack_prefix", counts=True)
            break
    rate = fabric.level_of(next(iter(full))).uplink_bps
    if not SLOWEST_BPS <= rate <= FASTEST_BPS:
        why = f"sets links to FSWs to {format_rate(rate)}; 1 to 10,000 Mbit/s can be emulated"
        ratio = (front.oversubscription or 1.0) * rate / min(max(rate, SLOWEST_BPS), FASTEST_BPS)
        given = ("frontend.link.host", "frontend.spines")
        yield Complaint("frontend.oversubscription", why, f"try {ratio:g}", given, counts=True)


def _edges(fabric: Fabric, network: str) -> Iterator[Node]:
    return (node for node in fabric.edges if fabric.level_of(node).network == network)
