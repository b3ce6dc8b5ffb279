"""A Clos of two tiers, or of three: zones of RTSWs and CTSWs, joined by ATSWs. Hosts hang on RTSWs by routed links.

Names: rtsw1.., ctsw1.., atsw1.., host1.., each counted through all zones and racks.
Ports: an RTSW's eth1..ethC are its uplinks to its zone's CTSWs, the next ones its downlinks, host by host and NIC by
NIC; a CTSW's eth1..ethR lead to its zone's RTSWs, the next ones to atsw1, atsw2, ...; an ATSW's ethN leads to ctswN.
AS numbers follow RFC 7938, section 5.2, in the four-octet private range (RFC 6996): one for all ATSWs, one for each
zone's CTSWs, one for each RTSW, so a route never climbs twice.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

from heddle.base.families import Interface, Network
from heddle.fabric.linkrates import rate_of
from heddle.fabric.model import Fabric, Link, Node, Port, Tier
from heddle.fabric.seeds import seed_for
from heddle.spec.schema import FabricSpec

_ASN_CTSW = 4_200_000_000  # + zone
_ASN_ATSW = 4_200_000_900
_ASN_RTSW = 4_200_001_000  # + rack
_TIER_CODE = {Tier.RTSW: 1, Tier.CTSW: 2, Tier.ATSW: 3, Tier.HOST: 4}


def build(spec: FabricSpec) -> Fabric:
    """Draw the nodes, then the links in a fixed order; ports are numbered as links reach them."""
    prefixes = _rack_prefixes(spec)
    nodes: dict[str, Node] = {}
    for r in range(1, spec.all_racks + 1):
        zone = (r - 1) // spec.racks + 1
        nodes[f"rtsw{r}"] = _switch(spec, Tier.RTSW, r, _ASN_RTSW + r, zone, rack=r, prefix=prefixes[r - 1])
    for c in range(1, spec.zones * spec.ctsw + 1):
        zone = (c - 1) // spec.ctsw + 1
        nodes[f"ctsw{c}"] = _switch(spec, Tier.CTSW, c, _ASN_CTSW + zone, zone)
    for a in range(1, (spec.atsw or 0) + 1):
        nodes[f"atsw{a}"] = _switch(spec, Tier.ATSW, a, _ASN_ATSW, None)
    for h in range(1, spec.all_racks * spec.hosts_per_rack + 1):
        rack = (h - 1) // spec.hosts_per_rack + 1
        nodes[f"host{h}"] = Node(f"host{h}", Tier.HOST, h, (), rack=rack, zone=(rack - 1) // spec.racks + 1)

    ports: dict[str, list[Port]] = {name: [] for name in nodes}
    links: list[Link] = []

    def join(low: Node, high: Node, usual: int, ends: tuple[Interface, Interface] | None = None) -> None:
        here, there = ports[low.name], ports[high.name]
        a, b = (low.name, f"eth{len(here) + 1}"), (high.name, f"eth{len(there) + 1}")
        rate = rate_of(spec.link.exceptions, a, b, usual)
        one, other = ends or (None, None)
        here.append(Port(*a, _mac(low, len(here) + 1), *b, rate, spec.link.mtu, one))
        there.append(Port(*b, _mac(high, len(there) + 1), *a, rate, spec.link.mtu, other))
        links.append(Link(a, b, rate, spec.link.mtu))

    for r in range(1, spec.all_racks + 1):
        first = (r - 1) // spec.racks * spec.ctsw
        for c in range(first + 1, first + spec.ctsw + 1):
            join(nodes[f"rtsw{r}"], nodes[f"ctsw{c}"], spec.link.fabric)
    for c in range(1, spec.zones * spec.ctsw + 1):
        for a in range(1, (spec.atsw or 0) + 1):
            join(nodes[f"ctsw{c}"], nodes[f"atsw{a}"], spec.top_rate)
    for r in range(1, spec.all_racks + 1):
        base = int(prefixes[r - 1].network_address)
        for h in range((r - 1) * spec.hosts_per_rack + 1, r * spec.hosts_per_rack + 1):
            for _ in range(spec.nics_per_host):
                ends = (spec.ip.end(base + 1), spec.ip.end(base))
                join(nodes[f"host{h}"], nodes[f"rtsw{r}"], spec.link.host, ends)
                base += 2

    built = tuple(replace(node, ports=tuple(ports[name])) for name, node in nodes.items())
    return Fabric(spec.name, spec, built, tuple(links))


def _rack_prefixes(spec: FabricSpec) -> list[Network]:
    subnets = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    return list(islice(subnets, spec.all_racks))


def _switch(
    spec: FabricSpec,
    tier: Tier,
    index: int,
    asn: int,
    zone: int | None,
    *,
    rack: int | None = None,
    prefix: Network | None = None,
) -> Node:
    loopback = spec.ip.loopback(spec.addressing.network, _TIER_CODE[tier], index)
    router_id = spec.ip.router_id(loopback, _TIER_CODE[tier], index)
    name = f"{tier}{index}"
    seed = seed_for(spec.routing.seed, tier.value, name)
    return Node(name, tier, index, (), rack, asn, loopback, prefix, seed, zone, router_id)


def _mac(node: Node, port: int) -> str:
    """Locally administered, unicast: 02, tier, node index (16 bits), port (16 bits)."""
    tier, index = _TIER_CODE[node.tier], node.index
    return f"02:{tier:02x}:{index >> 8:02x}:{index & 0xFF:02x}:{port >> 8:02x}:{port & 0xFF:02x}"
