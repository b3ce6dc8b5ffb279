"""A built fabric as plain data and back: what is kept beside a run can be drawn and proven without its lab.

In:  Fabric, or what `fabric_to_json` wrote. Out: the other one, equal to the first.
Reading raises ValueError, LookupError, TypeError or AttributeError for damaged data, and for that of another version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from heddle.base.ethernet import CLASSES
from heddle.base.families import Interface, Network
from heddle.fabric.model import BACKEND, Fabric, Level, Link, Node, Port, Role
from heddle.fabric.policydata import dump_policy, load_policy

_NODES: Final = TypeAdapter(tuple[Node, ...])
_LINKS: Final = TypeAdapter(tuple[Link, ...])
_LEVELS: Final = TypeAdapter(tuple[Level, ...])


def fabric_to_json(fabric: Fabric) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "name": fabric.name,
        "policy": dump_policy(fabric.policy),
        "levels": _LEVELS.dump_python(fabric.levels, mode="json"),
        "box": fabric.box,
        "area": fabric.area,
        "sizes": list(fabric.sizes),
        "nodes": _NODES.dump_python(fabric.nodes, mode="json"),
        "links": _LINKS.dump_python(fabric.links, mode="json"),
    }


def fabric_from_json(data: Mapping[str, Any]) -> Fabric:
    """What `fabric_to_json` wrote."""
    found = Fabric(
        str(data["name"]),
        load_policy(data["policy"]),
        _NODES.validate_python(data["nodes"]),
        _LINKS.validate_python(data["links"]),
        _LEVELS.validate_python(data["levels"]),
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
