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
from heddle.fabric.model import Fabric, Link, Node, Port, Role
from heddle.fabric.seeds import switch_seed
from heddle.fabric.shapes.clos import LEVELS
from heddle.lab.imported import frr
from heddle.lab.imported.description import LinkDescription, NodeDescription, TopologyDescription
from heddle.spec.queuespec import LARGEST_PFC_MTU
from heddle.spec.schema import ROCE_OVERHEAD, FabricSpec

DEFAULT_RATE_BPS: Final = 100 * 10**6
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)
_MAC_LEVELS: Final = (0x14, 0x11, 0x12, 0x13)  # by level; beside those of the shapes
_HOST, _LEAF, _SPINE, _TOP = range(4)  # levels
BOX: Final = "rack"  # a leaf and its hosts


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
    levels = _levels(description)
    ports: dict[str, list[Port]] = {name: [] for name in names}
    addresses = {name: _addresses(node) for name, node in description.nodes.items()}
    for link in description.links:
        rate = link.rate_bps or DEFAULT_RATE_BPS
        for mine, other in (link.ends, link.ends[::-1]):
            address = addresses[mine.node].get(mine.interface)
            ports[mine.node].append(
                Port(mine.node, mine.interface, mine.mac, other.node, other.interface, rate, link.mtu, address)
            )
    counts = [0] * len(LEVELS)
    racks: dict[str, int] = {}
    nodes: list[Node] = []
    # Switches by level, then hosts: the order of our own fabrics, and of every table.
    for level in (_LEAF, _SPINE, _TOP, _HOST):
        for name in (each for each in names if levels[each] == level):
            counts[level] += 1
            if level == _LEAF:
                racks[name] = counts[level]
            own = tuple(
                replace(port, mac=port.mac or _mac(level, names[name], place))
                for place, port in enumerate(sorted(ports[name], key=lambda p: _natural(p.name)), 1)
            )
            rack = racks.get(name) or next((racks[p.peer_node] for p in own if p.peer_node in racks), None)
            role = Role.HOST if level == _HOST else Role.SWITCH
            seed = None if role is Role.HOST else switch_seed(name)
            groups = ((BOX, rack),) if rack is not None and level in (_HOST, _LEAF) else ()
            nodes.append(Node(name, role, level, counts[level], own, groups, hash_seed=seed))
    links = tuple(_link(link, levels) for link in description.links)
    spec = _spec(description, levels, links, [each for table in addresses.values() for each in table.values()])
    hosts = sorted((n for n in nodes if n.role is Role.HOST), key=lambda n: n.group(BOX) or len(nodes))
    switches = [n for n in nodes if n.role is Role.SWITCH]
    return Fabric(description.name, spec, (*switches, *hosts), links, LEVELS, box=BOX)


def _levels(description: TopologyDescription) -> dict[str, int]:
    """Nodes with FRR are switches; those that have a host are leaves, those that have no leaf are on the third level.

    Where there are no leaves at all, there is no telling, and the second level is as good.
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
    top = _TOP if leaves else _SPINE
    levels = {n: _HOST if n in hosts else _SPINE if n in beside else top for n in description.nodes}
    return levels | dict.fromkeys(leaves, _LEAF)


def _addresses(node: NodeDescription) -> Mapping[str, IPv4Interface]:
    """Interface -> address, as far as files and commands tell."""
    text = node.text("frr.conf") or ""
    return {**frr.configured_addresses(text), **frr.command_addresses(node.exec)}


def _link(link: LinkDescription, levels: Mapping[str, int]) -> Link:
    """`a` is on the lower level."""
    a, b = sorted(link.ends, key=lambda end: levels[end.node])
    return Link((a.node, a.interface), (b.node, b.interface), link.rate_bps or DEFAULT_RATE_BPS, link.mtu)


def _spec(
    description: TopologyDescription, levels: Mapping[str, int], links: tuple[Link, ...], addresses: list[IPv4Interface]
) -> ImportedSpec:
    at_hosts = [link for link in links if levels[link.a[0]] == _HOST]
    between = [link for link in links if levels[link.a[0]] != _HOST]
    mtu = min((link.mtu for link in links), default=9500)
    rates = {
        "host": min((link.rate_bps for link in at_hosts or links), default=DEFAULT_RATE_BPS),
        "fabric": min((link.rate_bps for link in between or links), default=DEFAULT_RATE_BPS),
    }
    counts = [sum(each == level for each in levels.values()) for level in range(len(LEVELS))]
    data: dict[str, Any] = {
        "name": description.name,
        "racks": counts[_LEAF],
        "ctsw": counts[_SPINE] + counts[_TOP],
        "hosts_per_rack": max(1, -(-counts[_HOST] // max(1, counts[_LEAF]))) if counts[_HOST] else 0,
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


def _mac(level: int, node: int, port: int) -> str:
    """Locally administered, unicast: 02, level, node (16 bits), port (16 bits); brief links name none."""
    octets = (0x02, _MAC_LEVELS[level], node >> 8, node & 0xFF, port >> 8, port & 0xFF)
    return ":".join(f"{octet:02x}" for octet in octets)


def _natural(name: str) -> list[tuple[int, str]]:
    """eth2 before eth10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
