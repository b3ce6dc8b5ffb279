"""A user-supplied containerlab file as plain values: every node with all inherited values, every link; and its Fabric.

The reader (reader.py) creates them. They do not depend on YAML, nor on this machine, except for paths.
`derive` makes the Fabric: switches, leaves, hosts and ports. Its Policy has values derived from the file (scale,
smallest MTU) and the default queues. Addresses come from the file's commands and frr.conf; those of the running lab
replace them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Final

from heddle.base.ethernet import LARGEST_PFC_MTU
from heddle.base.families import IPV4
from heddle.base.files import read_regular
from heddle.base.problems import InputError, Problem
from heddle.base.units import scale_of
from heddle.fabric.hashmodes import switch_seed
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policy import Policy
from heddle.fabric.wiring import Level, Link, Node, Port
from heddle.lab.imported import frr
from heddle.lab.imported.grammar import MOST_BYTES, command_lines
from heddle.runtimes.netns_topology import DEFAULT_MTU
from heddle.spec.queuepolicy import QueuePolicy


@dataclass(frozen=True, slots=True)
class BindDescription:
    """A file or directory for a node. source: absolute, or relative to a directory that containerlab creates."""

    source: Path
    target: str
    mode: str = ""

    @property
    def text(self) -> str:
        """The bind in containerlab's notation."""
        return ":".join(word for word in (str(self.source), self.target, self.mode) if word)


@dataclass(frozen=True)
class NodeDescription:
    """A node of kind linux. command: of the container, by entrypoint and cmd; main: what of it a namespace runs.

    passed: keys that only a container engine uses, unchanged from the file. reach: what of the node reaches this
    machine (innamespace.py).
    """

    name: str
    where: str  # lab.clab.yml:12
    binds: tuple[BindDescription, ...] = ()
    exec: tuple[str, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    group: str = ""
    image: str = ""
    command: str = ""
    main: str = ""
    isolated: bool = False  # network-mode: none
    passed: Mapping[str, Any] = field(default_factory=dict)
    reach: tuple[tuple[str, str], ...] = ()

    @cached_property
    def sources(self) -> Mapping[str, Path]:
        """Target of each bind -> its source."""
        return {bind.target: bind.source for bind in self.binds}

    @property
    def commands(self) -> tuple[str, ...]:
        """All commands, in the order in which they start."""
        return (*([self.command] if self.command else []), *self.exec)

    @cached_property
    def frr(self) -> bool:
        """True when FRR runs in the node, which makes it a switch."""
        below = any(t == frr.FRR_DIR or t.startswith(f"{frr.FRR_DIR}/") for t in self.sources)
        # An image of FRR starts it; in namespaces it is needed where commands configure it.
        typed = frr.routes(self.image) and any("vtysh" in line for line in self.exec)
        service = any(frr.is_service(line) for line in self.commands)
        main = (" ".join(words) for words in command_lines(self.command, self.sources))
        return below or typed or service or any(map(frr.starts_frr, main))

    @cached_property
    def starts_itself(self) -> bool:
        """True when a command of the file starts the daemons."""
        return any(frr.starts_itself(line, self.sources) for line in self.exec)

    def text(self, name: str) -> str | None:
        """The text of a file below /etc/frr, or None when the topology binds none. InputError if it cannot be read."""
        path = frr.bound_file(self.sources, name)
        try:
            return None if path is None else read_regular(path, MOST_BYTES).decode(errors="replace")
        except OSError as error:
            what, why = f"binds: {path} for {frr.FRR_DIR}/{name}", f"cannot be read: {error.strerror}"
            raise InputError(Problem(self.where, what, why, "bind a text file")) from None


@dataclass(frozen=True, slots=True)
class EndDescription:
    """One end of a link. mac: empty if Heddle chooses it."""

    node: str
    interface: str
    mac: str = ""


@dataclass(frozen=True, slots=True)
class LinkDescription:
    """A link between two nodes. mtu in bytes; rate_bps None where the file names no rate."""

    ends: tuple[EndDescription, EndDescription]
    mtu: int
    rate_bps: int | None = None


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """A whole file. notes: what Heddle changes or leaves out, a sentence each.

    read_only: why nodes in namespaces cannot write to this machine's files in their own view; empty when they can.
    """

    name: str
    path: Path
    nodes: Mapping[str, NodeDescription]
    links: tuple[LinkDescription, ...]
    notes: tuple[str, ...] = ()
    read_only: str = ""


DEFAULT_RATE_BPS: Final = 100 * 10**6
_IB_MTUS: Final = (4096, 2048, 1024, 512, 256)
_MAC_LEVELS: Final = (0x14, 0x11, 0x12, 0x13)  # by level; different from those of the shapes
_HOST, _LEAF, _SPINE, _TOP = range(4)  # indexes of _ROWS
_ROWS: Final = (
    Level("host", "hosts", "server"),
    Level("leaf", "leaf", "leaf", is_edge=True, counts_uplinks=True, boxed=True),
    Level("spine", "spine", "spine", above_edge=True),
    Level("superspine", "superspine", "superspine"),
)
BOX: Final = "rack"  # a leaf and its hosts


def derive(description: TopologyDescription) -> Fabric:
    """The fabric of a file; InputError when there are more nodes than there are MAC addresses."""
    names = {name: number for number, name in enumerate(description.nodes)}
    if len(names) >= 1 << 16:
        raise InputError(
            Problem("", description.name, f"has {len(names)} nodes: MAC addresses exist for 65535 at most")
        )
    hosts = {name for name, node in description.nodes.items() if not node.frr}
    levels = _levels(description, hosts)
    ports: dict[str, list[Port]] = {name: [] for name in names}
    addresses = {name: _addresses(node) for name, node in description.nodes.items()}
    for link in description.links:
        rate = link.rate_bps or DEFAULT_RATE_BPS
        for end, far in (link.ends, link.ends[::-1]):
            address = addresses[end.node].get(end.interface)
            ports[end.node].append(
                Port(end.node, end.interface, end.mac, far.node, far.interface, rate, link.mtu, address)
            )
    counts = [0] * len(_ROWS)
    racks: dict[str, int] = {}
    nodes: list[Node] = []
    # Switches by level, then hosts: the order of all fabrics and tables.
    for level in (_LEAF, _SPINE, _TOP, _HOST):
        for name in (each for each in names if levels[each] == level):
            counts[level] += 1
            row, host = _ROWS[level], name in hosts
            if row.is_edge:
                racks[name] = counts[level]
            own = tuple(
                replace(port, mac=port.mac or _mac(level, names[name], place))
                for place, port in enumerate(sorted(ports[name], key=lambda p: _natural(p.name)), 1)
            )
            rack = racks.get(name) or next((racks[p.peer_node] for p in own if p.peer_node in racks), None)
            seed = None if host else switch_seed(name)
            groups = ((BOX, rack),) if rack is not None and (host or row.boxed) else ()
            nodes.append(
                Node(name, Role.HOST if host else Role.SWITCH, level, counts[level], own, groups, hash_seed=seed)
            )
    links = tuple(_link(link, levels) for link in description.links)
    policy = _policy(description, links, [each for table in addresses.values() for each in table.values()])
    # Switches stay first; hosts by their racks, those without one last.
    nodes.sort(key=lambda n: (n.group(BOX) or len(nodes)) if n.name in hosts else 0)
    return Fabric(description.name, policy, tuple(nodes), links, _ROWS, box=BOX)


def _levels(description: TopologyDescription, hosts: Collection[str]) -> dict[str, int]:
    """Nodes with FRR are switches: leaves if linked to a host, spines if linked to a leaf, else on the third level.

    Without any leaf, the level is unknown: all switches are placed on the second level.
    """
    leaves = {
        end.node
        for link in description.links
        for end, far in (link.ends, link.ends[::-1])
        if end.node not in hosts and far.node in hosts
    }
    beside = {end.node for link in description.links for end, far in (link.ends, link.ends[::-1]) if far.node in leaves}
    top = _TOP if leaves else _SPINE
    levels = {n: _HOST if n in hosts else _SPINE if n in beside else top for n in description.nodes}
    return levels | dict.fromkeys(leaves, _LEAF)


def _addresses(node: NodeDescription) -> Mapping[str, IPv4Interface]:
    """Interface -> address, for addresses in files and commands."""
    text = node.text("frr.conf") or ""
    return {**frr.configured_addresses(text), **frr.command_addresses(node.commands)}


def addresses_of(node: NodeDescription) -> list[IPv4Interface]:
    """All addresses of any interface, in files and commands."""
    return [*frr.all_addresses(node.text("frr.conf") or ""), *frr.command_addresses(node.commands).values()]


def _link(link: LinkDescription, levels: Mapping[str, int]) -> Link:
    """`a` is on the lower level."""
    a, b = sorted(link.ends, key=lambda end: levels[end.node])
    return Link((a.node, a.interface), (b.node, b.interface), link.rate_bps or DEFAULT_RATE_BPS, link.mtu)


def _policy(description: TopologyDescription, links: tuple[Link, ...], addresses: list[IPv4Interface]) -> Policy:
    """The policy: the file's smallest MTU, and a scale by the slowest link of a host."""
    hosts = {name for name, node in description.nodes.items() if not node.frr}
    at_hosts = [link for link in links if link.a[0] in hosts]
    slowest = min((link.rate_bps for link in at_hosts or links), default=DEFAULT_RATE_BPS)
    mtu = min((link.mtu for link in links), default=DEFAULT_MTU)
    # A gate cannot hold back larger packets, so no class is lossless if any link allows them.
    large = any(link.mtu > LARGEST_PFC_MTU for link in links)
    return Policy(
        ip=IPV4,
        pool=_pool(addresses),
        k=scale_of(slowest),
        mtu=mtu,
        ib_mtu=next(size for size in _IB_MTUS if size + IPV4.overhead <= mtu),
        queues=QueuePolicy(lossless=() if large else (3,)),
    )


def _pool(addresses: list[IPv4Interface]) -> IPv4Network:
    """The private address space that the file uses; the management network must not overlap it."""
    space = IPv4Network("172.16.0.0/12")
    return space if any(each.ip in space for each in addresses) else IPv4Network("10.0.0.0/8")


def _mac(level: int, node: int, port: int) -> str:
    """Locally administered, unicast: 02, level, node (16 bits), port (16 bits). For links without MACs in the file."""
    octets = (0x02, _MAC_LEVELS[level], node >> 8, node & 0xFF, port >> 8, port & 0xFF)
    return ":".join(f"{octet:02x}" for octet in octets)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key: eth2 before eth10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
