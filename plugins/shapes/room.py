"""Whether the addresses of a fabric suffice: one prefix for each edge switch, one /31 or /127 for each NIC."""

from __future__ import annotations

from typing import NamedTuple

from heddle.spec.keys import at
from heddle.spec.schema import MOST_HOSTS, MOST_SWITCHES, FabricSpec


class NodeCount(NamedTuple):
    """How many nodes a key makes."""

    key: str
    nodes: int


def refuse_too_many(spec: FabricSpec, edges: NodeCount, hosts: NodeCount, nics_per_host: int, given: list[str]) -> None:
    """Raise `at(...)` for a key whose nodes have no address. hosts: at an edge switch. given: keys that count nodes."""
    family, length, pool = spec.ip, spec.addressing.rack_prefix, spec.addressing.network
    nics, room = hosts.nodes * nics_per_host, 2 ** (family.bits - length) // 2
    if nics > room:
        fit = family.bits - (2 * nics - 1).bit_length()
        why = f"puts {nics} NICs on an edge switch, but a /{length} has room for {room}"
        hint = f"try addressing.rack_prefix: {fit}" if fit >= family.racks[0] else "use fewer NICs"
        raise at(hosts.key, why, hint, given=[*given, "nics_per_host", "addressing.rack_prefix"])
    if edges.nodes > MOST_SWITCHES:
        why = f"makes {edges.nodes} edge switches, but there are loopback addresses for {MOST_SWITCHES} only"
        raise at(edges.key, why, "use a smaller one", given=given)
    if (total := edges.nodes * hosts.nodes) > MOST_HOSTS:
        why = f"makes {total} hosts, but there are MAC addresses for {MOST_HOSTS} only"
        fit = MOST_HOSTS // edges.nodes
        raise at(
            hosts.key, why, "use a smaller one" if hosts.key == edges.key else f"try {hosts.key}: {fit}", given=given
        )
    prefixes = 2 ** (length - pool.prefixlen) - 2 ** max(0, length - family.last)
    if edges.nodes > prefixes:
        why = f"makes {edges.nodes} edge switches, more than the {prefixes} prefixes that {pool} holds"
        hint, keys = "try a longer addressing.rack_prefix", ["addressing.rack_prefix", "addressing.pool"]
        raise at(edges.key, why, hint, given=[*given, *keys])
