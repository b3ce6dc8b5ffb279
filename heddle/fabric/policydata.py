"""A policy from the keys of a fabric file, back to these keys for live changes; policies and fabrics as plain data.

In:  a FabricSpec and the shape's levels; or Policy, QueuePolicy, RoutingPolicy, Fabric; or their plain data.
Out: the policy; or data that JSON can hold, with sizes in bytes and durations in nanoseconds; or, `queues_as_file`,
keys as a file has them. Reading raises ValueError, KeyError or TypeError for data of another version of Heddle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from heddle.base.ethernet import CLASSES
from heddle.base.families import FAMILIES, Interface, Network
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policy import NetworkPolicy, Policy
from heddle.fabric.wiring import BACKEND, Level, Link, Node, Port
from heddle.spec.groups import as_file
from heddle.spec.impairments import KINDS, LinkFault
from heddle.spec.linkspec import delay_of_length
from heddle.spec.queuepolicy import QueuePolicy
from heddle.spec.routingpolicy import RoutingPolicy

if TYPE_CHECKING:
    from heddle.fabric.wiring import Level
    from heddle.spec.linkspec import LinkSpec
    from heddle.spec.schema import FabricSpec


_adapter: Final = cache(TypeAdapter[Any])  # made when they are used: each takes milliseconds


def _plain(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(value, mode="json")


def _read(kind: Any, data: Any) -> Any:
    return _adapter(kind).validate_python(data)


def policy_of(spec: FabricSpec, levels: Sequence[Level]) -> Policy:
    """The policy of a spec. levels: of the shape, hosts first."""
    _, *switches = levels
    return Policy(
        ip=spec.ip,
        pool=spec.addressing.network,
        k=spec.k,
        mtu=spec.link.mtu,
        ib_mtu=spec.roce.ib_mtu,
        routing=spec.routing,
        queues=queue_policy(spec.queues, [level.word for level in switches]),
        delays=_link_delays(spec.link, levels),
        link_faults=_link_faults(spec.link, levels),
    )


def _link_delays(link: LinkSpec, levels: Sequence[Level]) -> tuple[int, ...]:
    """`link.delay` or `link.length` of a fabric file, by level; empty if no link has a delay."""
    delay, cable = link.delay, link.length
    host, fabric = delay_of_length(cable.host) or delay.host, delay_of_length(cable.fabric) or delay.fabric
    given = (host, *[fabric] * _links_of_switches(levels))
    found = tuple(
        0 if level.network != BACKEND else level.uplink_ns if ns == "shape" else ns
        for level, ns in zip(levels, given, strict=False)
    )
    return found if any(found) else ()


def _links_of_switches(levels: Sequence[Level]) -> int:
    """How many levels of switches have links upwards or sideways."""
    return len(levels) - 2 + (levels[-1].prepends > 0)


def _link_faults(link: LinkSpec, levels: Sequence[Level]) -> tuple[LinkFault, ...]:
    """What links do to packets, by level; empty if they do nothing. With `delay_at: link` this includes the delay."""
    delays = _link_delays(link, levels) if link.delay_at == "link" else ()
    found = []
    words = ("host", *["fabric"] * _links_of_switches(levels))
    for level, word in enumerate(words):
        values = {kind.field: getattr(getattr(link, key), word) for key, kind in KINDS.items()}
        found.append(LinkFault(**{**values, "delay_ns": delays[level] if delays else 0}))
    return tuple(found) if any(found) else ()


def queue_policy(queues: QueuePolicy, words: Sequence[str]) -> QueuePolicy:
    """`queues` of a fabric file, with a buffer for each level. words: of the levels of switches, from the leaves up."""
    return replace(queues, buffer=queues.buffer.of_levels(words))


def queues_as_file(queues: QueuePolicy, words: Sequence[str]) -> dict[str, Any]:
    """`queues` of a fabric file. words: of the levels of switches, from the leaves up."""
    sizes = {word: queues.buffer.at_level(level) for level, word in enumerate(words, 1)}
    return {**as_file(queues), "buffer": {**sizes, "host": queues.buffer.host}}


def dump_queues(queues: QueuePolicy) -> dict[str, Any]:
    """Plain data."""
    data: dict[str, Any] = _plain(QueuePolicy, queues)
    return data


def load_queues(data: Mapping[str, Any]) -> QueuePolicy:
    """What `dump_queues` wrote."""
    found: QueuePolicy = _read(QueuePolicy, data)
    return found


def dump_policy(policy: Policy) -> dict[str, Any]:
    """Plain data."""
    numbers = {"k": policy.k, "mtu": policy.mtu, "ib_mtu": policy.ib_mtu, "delays": list(policy.delays)}
    routing, queues = _plain(RoutingPolicy, policy.routing), dump_queues(policy.queues)
    data = {"ip": policy.ip.word, "pool": str(policy.pool), **numbers, "routing": routing, "queues": queues}
    faults = [fault.to_json() for fault in policy.link_faults]
    data |= {"link_faults": faults} if any(faults) else {}
    return data | ({"others": _plain(dict[str, NetworkPolicy], dict(policy.others))} if policy.others else {})


def load_policy(data: Mapping[str, Any]) -> Policy:
    """What `dump_policy` wrote."""
    return Policy(
        k=int(data["k"]),
        mtu=int(data["mtu"]),
        ib_mtu=int(data["ib_mtu"]),
        ip=FAMILIES[data["ip"]],
        pool=ip_network(data["pool"]),
        routing=_read(RoutingPolicy, data["routing"]),
        queues=load_queues(data["queues"]),
        delays=tuple(data.get("delays", ())),
        link_faults=tuple(LinkFault.from_json(each) for each in data.get("link_faults", ())),
        others=_read(dict[str, NetworkPolicy], data.get("others", {})),
    )


def fabric_to_json(fabric: Fabric) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "name": fabric.name,
        "policy": dump_policy(fabric.policy),
        "levels": _plain(tuple[Level, ...], fabric.levels),
        "box": fabric.box,
        "area": fabric.area,
        "sizes": list(fabric.sizes),
        "nodes": _plain(tuple[Node, ...], fabric.nodes),
        "links": _plain(tuple[Link, ...], fabric.links),
    }


def fabric_from_json(data: Mapping[str, Any]) -> Fabric:
    """What `fabric_to_json` wrote."""
    found = Fabric(
        str(data["name"]),
        load_policy(data["policy"]),
        _read(tuple[Node, ...], data["nodes"]),
        _read(tuple[Link, ...], data["links"]),
        _read(tuple[Level, ...], data["levels"]),
        box=str(data["box"]),
        area=str(data["area"]),
        sizes=tuple(str(each) for each in data["sizes"]),
    )
    if why := next(_contradictions(found), ""):
        raise ValueError(why)
    return found


def _contradictions(fabric: Fabric) -> Iterator[str]:
    """What no builder makes: names that are twice or nowhere, links without both ends, levels that are not there."""
    if len(fabric.by_name) != len(fabric.nodes):
        yield "two nodes have one name"
    ports: dict[tuple[str, str], Port] = {}
    for node in fabric.nodes:
        if not 0 <= node.level < len(fabric.levels) or (node.level == 0) != (node.role is Role.HOST):
            yield f"{node.name} is on level {node.level}"
        if node.hash_seed is not None and not 0 < node.hash_seed < 1 << 32:
            yield f"{node.name} has the hash seed {node.hash_seed}"
        for port in node.ports:
            if port.node != node.name or (node.name, port.name) in ports:
                yield f"{node.name} has a wrong port {port.ref}"
            if port.network != BACKEND and port.network not in fabric.policy.others:
                yield f"{port.ref} is in the network {port.network}, which has no policy"
            if port.rate_bps < 1 or port.mtu < 1:
                yield f"{port.ref} has a rate or an MTU below 1"
            ports[node.name, port.name] = port
    ends = [end for link in fabric.links for end in (link.a, link.b)]
    if sorted(ends) != sorted(ports):
        yield "ports and links differ"
    for link in fabric.links:
        for end, peer in ((link.a, link.b), (link.b, link.a)):
            if end not in ports or (ports[end].peer_node, ports[end].peer_port) != peer or link.rate_bps < 1:
                yield f"the link at {':'.join(end)} has not both ends"
    yield from _of_policy(fabric)


def _of_policy(fabric: Fabric) -> Iterator[str]:
    policy, queues = fabric.policy, fabric.policy.queues
    if not any(level.is_edge for level in fabric.switch_levels):
        yield "no level is one of edge switches"
    if len(fabric.levels) < 2 or min(policy.k, policy.mtu, policy.ib_mtu) < 1:
        yield "it has too few levels, or k or an MTU is below 1"
    if not all(0 <= number < CLASSES for number in (*queues.numbers, *queues.dscp.values())):
        yield "it has a traffic class that is none"
    if any(each.version != policy.ip.version for each in _networks(fabric)):
        yield "it has addresses of two versions of IP"


def _networks(fabric: Fabric) -> Iterator[Interface | Network]:
    yield from fabric.policy.pools
    for node in fabric.nodes:
        yield from (each for each in (node.prefix, *(port.address for port in node.ports)) if each is not None)
