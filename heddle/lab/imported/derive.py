"""TopologyDescription -> Fabric: which nodes are switches and leaves, and which ports there are.

In:  a TopologyDescription.
Out: Fabric with a FabricSpec that says what is true of the file: counts, the slowest rates, the smallest MTU.
Addresses are those that the file's commands and frr.conf give; those of the running lab take their place, see live.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric, Link, Node, Port, Tier
from heddle.fabric.seeds import switch_seed
from heddle.lab.imported import frr
from heddle.lab.imported.description import LinkDescription, NodeDescription, TopologyDescription
from heddle.spec.queuespec import LARGEST_PFC_MTU
from heddle.spec.schema import ROCE_OVERHEAD, FabricSpec

DEFAULT_RATE_BPS: Final = 100 * 10**6
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)
_MAC_TIERS: Final = {Tier.RTSW: 0x11, Tier.CTSW: 0x12, Tier.ATSW: 0x13, Tier.HOST: 0x14}  # beside those of the shapes


class ImportedSpec(FabricSpec):
    """What is true of a lab that no fabric file describes. racks: leaves, ctsw: other switches; either may be none."""

    shape: Literal["imported"] = "imported"  # type: ignore[assignment]
    racks: int = Field(ge=0)
    ctsw: int = Field(ge=0)
    hosts_per_rack: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _fits(self) -> ImportedSpec:
        return self  # addresses are the file's, so nothing has to fit into a pool

    @model_validator(mode="after")
    def _queues_fit(self) -> ImportedSpec:
        return self  # ports are the file's, and buffers are made for them


def derive(description: TopologyDescription) -> Fabric:
    """The fabric of a file; InputError when there are more nodes than there are MAC addresses."""
    names = {name: number for number, name in enumerate(description.nodes)}
    if len(names) >= 1 << 16:
        raise InputError(
            Problem("", description.name, f"has {len(names)} nodes, more than MAC addresses can be made for")
        )
    tiers = _tiers(description)
    ports: dict[str, list[Port]] = {name: [] for name in names}
    addresses = {name: _addresses(node) for name, node in description.nodes.items()}
    for link in description.links:
        rate = link.rate_bps or DEFAULT_RATE_BPS
        for mine, other in (link.ends, link.ends[::-1]):
            address = addresses[mine.node].get(mine.interface)
            ports[mine.node].append(
                Port(mine.node, mine.interface, mine.mac, other.node, other.interface, rate, link.mtu, address)
            )
    counts = dict.fromkeys(Tier, 0)
    racks: dict[str, int] = {}
    nodes: list[Node] = []
    # Switches by tier, then hosts: the order of our own fabrics, and of every table.
    for tier in (Tier.RTSW, Tier.CTSW, Tier.ATSW, Tier.HOST):
        for name in (each for each in names if tiers[each] is tier):
            counts[tier] += 1
            if tier is Tier.RTSW:
                racks[name] = counts[tier]
            own = tuple(
                replace(port, mac=port.mac or _mac(tier, names[name], place))
                for place, port in enumerate(sorted(ports[name], key=lambda p: _natural(p.name)), 1)
            )
            rack = racks.get(name) or next((racks[p.peer_node] for p in own if p.peer_node in racks), None)
            seed = None if tier is Tier.HOST else switch_seed(name)
            above = tier in (Tier.CTSW, Tier.ATSW)
            nodes.append(Node(name, tier, counts[tier], own, None if above else rack, hash_seed=seed))
    links = tuple(_link(link, tiers) for link in description.links)
    spec = _spec(description, tiers, links, [each for table in addresses.values() for each in table.values()])
    hosts = sorted((n for n in nodes if n.tier is Tier.HOST), key=lambda n: n.rack or len(nodes))
    return Fabric(description.name, spec, (*(n for n in nodes if n.tier is not Tier.HOST), *hosts), links)


def _tiers(description: TopologyDescription) -> dict[str, Tier]:
    """Nodes with FRR are switches; those that have a host are leaves, those that have no leaf the third tier.

    Where there are no leaves at all, there is no telling, and one tier is as good.
    """
    hosts = {name for name, node in description.nodes.items() if not node.frr}
    leaves = {
        mine.node
        for link in description.links
        for mine, other in (link.ends, link.ends[::-1])
        if mine.node not in hosts and other.node in hosts
    }
    beside = {
        mine.node for link in description.links for mine, other in (link.ends, link.ends[::-1]) if other.node in leaves
    }
    top = Tier.ATSW if leaves else Tier.CTSW
    tiers = {n: Tier.HOST if n in hosts else Tier.CTSW if n in beside else top for n in description.nodes}
    return tiers | dict.fromkeys(leaves, Tier.RTSW)


def _addresses(node: NodeDescription) -> Mapping[str, IPv4Interface]:
    """Interface -> address, as far as files and commands tell."""
    text = node.text("frr.conf") or ""
    return {**frr.configured_addresses(text), **frr.command_addresses(node.exec)}


def _link(link: LinkDescription, tiers: Mapping[str, Tier]) -> Link:
    """`a` is the lower tier."""
    order = (Tier.HOST, Tier.RTSW, Tier.CTSW, Tier.ATSW)
    a, b = sorted(link.ends, key=lambda end: order.index(tiers[end.node]))
    return Link((a.node, a.interface), (b.node, b.interface), link.rate_bps or DEFAULT_RATE_BPS, link.mtu)


def _spec(
    description: TopologyDescription, tiers: Mapping[str, Tier], links: tuple[Link, ...], addresses: list[IPv4Interface]
) -> ImportedSpec:
    at_hosts = [link for link in links if tiers[link.a[0]] is Tier.HOST]
    between = [link for link in links if tiers[link.a[0]] is not Tier.HOST]
    mtu = min((link.mtu for link in links), default=9500)
    rates = {
        "host": min((link.rate_bps for link in at_hosts or links), default=DEFAULT_RATE_BPS),
        "fabric": min((link.rate_bps for link in between or links), default=DEFAULT_RATE_BPS),
    }
    counts = {tier: sum(each is tier for each in tiers.values()) for tier in Tier}
    data: dict[str, Any] = {
        "name": description.name,
        "racks": counts[Tier.RTSW],
        "ctsw": counts[Tier.CTSW] + counts[Tier.ATSW],
        "hosts_per_rack": max(1, -(-counts[Tier.HOST] // max(1, counts[Tier.RTSW]))) if counts[Tier.HOST] else 0,
        "link": {**{key: f"{rate}bit" for key, rate in rates.items()}, "mtu": mtu},
        "roce": {"ib_mtu": next(size for size in _IB_MTUS if size + ROCE_OVERHEAD <= mtu)},
        "addressing": {"pool": str(_pool(addresses)), "rack_prefix": 16},
        # A gate cannot hold larger packets back, so nothing is lossless where there are some.
        "queues": {"lossless": [] if any(link.mtu > LARGEST_PFC_MTU for link in links) else [3]},
    }
    return ImportedSpec.model_validate(data)


def _pool(addresses: list[IPv4Interface]) -> IPv4Network:
    """The private space that the file's addresses are in: the management network keeps clear of it."""
    space = IPv4Network("172.16.0.0/12")
    return space if any(each.ip in space for each in addresses) else IPv4Network("10.0.0.0/8")


def _mac(tier: Tier, node: int, port: int) -> str:
    """Locally administered, unicast: 02, tier, node (16 bits), port (16 bits); brief links name none."""
    octets = (0x02, _MAC_TIERS[tier], node >> 8, node & 0xFF, port >> 8, port & 0xFF)
    return ":".join(f"{octet:02x}" for octet in octets)


def _natural(name: str) -> list[tuple[int, str]]:
    """eth2 before eth10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
