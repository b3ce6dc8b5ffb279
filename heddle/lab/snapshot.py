"""One reading of a running lab: the state of its kernels, programs, queues and daemons as one frozen value.

In:  a running lab, of which each node is read once. Out: Snapshot.
A part that was not read raises NotReadError when it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Flag, auto
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from heddle.base.problems import HeddleError
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import Node
from heddle.host.capacity import backlog_drops
from heddle.kernel.fib import Fib, fib_of
from heddle.kernel.ipsettings import LOCAL_TABLE, ip_settings
from heddle.kernel.namespace import NodeHandle, inside
from heddle.kernel.netlink import (
    Neighbour,
    NetInterface,
    RouteSocket,
    carriers,
    interfaces,
    neighbours,
    path_mtus,
    qdiscs,
)
from heddle.kernel.uapi import IFF_NOARP, IFLA_ADDRESS, IFLA_MTU
from heddle.lab.convergence import without_route
from heddle.lab.daemons import ADMIN_DOWN, Adjacency, Daemons, pending
from heddle.lab.spread import in_processes
from heddle.switch.counters import SwitchCounters, read_counters
from heddle.switch.hashing.hashing import SwitchHashing, hashing_in, pin_dir
from heddle.switch.hashing.maps import Tables
from heddle.switch.queues.portqueues import (
    Attached,
    PortQueue,
    foreign_roots,
    read_attached,
    read_shapers,
    refused_by_qdiscs,
)

if TYPE_CHECKING:
    from heddle.switch.queues.cells import QueueState, Tallies


class LabPart(Flag):
    """The parts of a snapshot. Hosts are read for PORTS, NEIGHBOURS and ADDRESSES only; the others are of switches."""

    FIBS = auto()  # main routing tables
    HASHING = auto()  # modes, seeds, options and tables; epochs and statistics of the program
    COUNTERS = auto()  # packets and bytes by flow and by port
    DROPS = auto()  # packets dropped, by port, and by this machine's receive backlog
    QUEUES = auto()  # the maps of all queues
    CARRIER = auto()  # ports without carrier; how often each port's carrier changed
    PORTS = auto()  # queues, shapers and programs of ports, their MTUs and MACs, and whether they use ARP
    NEIGHBOURS = auto()  # MACs of neighbours at ports, and MTUs that were learned for paths
    UNROUTED = auto()  # unnumbered ports that cannot reach their neighbour
    SESSIONS = auto()  # states of BGP sessions
    DRAINED = auto()  # whether BGP drains the switch, and its sessions that are administratively down
    SILENT = auto()  # daemons that do not answer
    ADJACENCIES = auto()  # neighbours of OSPF and IS-IS that are not up
    ADDRESSES = auto()  # addresses and rules of all nodes, and routes of hosts


class PortLink(NamedTuple):
    """mtu: in bytes. arp: whether the port asks for the MACs of neighbours, and answers."""

    mtu: int
    mac: str
    arp: bool


class NotReadError(RuntimeError):
    """A part of a snapshot is used that was not requested: a defect of Heddle, not a user's error."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node. A field is None where its part was not read. drops to programs: keys are the node's port names.

    class_drops: the same drops by port and class; classes without drops are omitted.
    sessions: also None where bgpd does not answer; hosts are not asked. carrier_changes: of the node's ports, since the
    lab came up. neighbours: entries at ports, by port name. path_mtus: address -> MTU that was learned. addresses:
    lines of `kernel/ipsettings.py`.
    """

    node: str
    role: Role = Role.SWITCH
    fib: Fib | None = None
    hashing: SwitchHashing | None = None
    epoch: int | None = None
    statistics: Mapping[str, int] | None = None
    counters: SwitchCounters | None = None
    drops: Mapping[str, int] | None = None
    class_drops: Mapping[str, Mapping[int, int]] | None = None
    down: Mapping[str, bool] | None = None
    foreign: Mapping[str, str] | None = None
    shapers: Mapping[str, PortQueue] | None = None
    programs: Mapping[str, tuple[Attached, ...]] | None = None
    unrouted: tuple[str, ...] | None = None
    sessions: Mapping[str, str] | None = None
    drained: bool | None = None
    shut: tuple[str, ...] | None = None
    silent: tuple[str, ...] | None = None
    adjacencies: tuple[Adjacency, ...] | None = None
    carrier_changes: Mapping[str, int] | None = None
    links: Mapping[str, PortLink] | None = None
    neighbours: Mapping[str, tuple[Neighbour, ...]] | None = None
    path_mtus: Mapping[str, int] | None = None
    addresses: frozenset[str] | None = None


@dataclass(frozen=True)
class Snapshot:
    """A lab at one moment. failed: part -> why it could not be read; using such a part raises that error.

    tallies: of all ports, also of hosts; part of DROPS.
    """

    lab: str
    parts: LabPart
    nodes: Mapping[str, NodeSnapshot]
    machine_drops: int | None = None
    cells: QueueState | None = None
    tallies: Tallies = field(default_factory=dict)
    failed: Mapping[LabPart, HeddleError] = field(default_factory=dict, compare=False)

    @cached_property
    def fibs(self) -> Mapping[str, Fib]:
        """Switch -> its main routing table."""
        self._check(LabPart.FIBS)
        return {name: each.fib for name, each in self.nodes.items() if each.fib is not None}

    @cached_property
    def hashing(self) -> Mapping[str, SwitchHashing]:
        """Switch -> mode, seed, options and installed tables."""
        self._check(LabPart.HASHING)
        return {name: each.hashing for name, each in self.nodes.items() if each.hashing is not None}

    @cached_property
    def epochs(self) -> Mapping[str, int]:
        """Switch -> a number that changes with each switch of its hashing, also with one that restores the old mode."""
        self._check(LabPart.HASHING)
        return {name: each.epoch for name, each in self.nodes.items() if each.epoch is not None}

    @cached_property
    def statistics(self) -> Mapping[str, Mapping[str, int]]:
        """Switch -> counters of its hash program, such as steered packets (Tables.statistics)."""
        self._check(LabPart.HASHING)
        return {name: each.statistics for name, each in self.nodes.items() if each.statistics is not None}

    @cached_property
    def counters(self) -> Mapping[str, SwitchCounters]:
        """Switch -> packets and bytes by flow and by port, since the lab came up."""
        self._check(LabPart.COUNTERS)
        return {name: each.counters for name, each in self.nodes.items() if each.counters is not None}

    @cached_property
    def drops(self) -> Mapping[str, int]:
        """`rtsw1:eth2` -> packets that its queues dropped for any cause since the lab came up."""
        self._check(LabPart.DROPS)
        return {f"{name}:{port}": n for name, each in self.nodes.items() for port, n in (each.drops or {}).items()}

    @cached_property
    def class_drops(self) -> Mapping[str, Mapping[int, int]]:
        """`rtsw1:eth2` -> class -> packets of `drops`; ports of a switch are absent where only their sum is known."""
        self._check(LabPart.DROPS)
        known = {name: each.class_drops for name, each in self.nodes.items() if each.class_drops is not None}
        return {f"{name}:{port}": classes for name, ports in known.items() for port, classes in ports.items()}

    @property
    def backlog_drops(self) -> int:
        """Packets that this machine's receive backlog dropped since boot, in all namespaces."""
        self._check(LabPart.DROPS)
        return self.machine_drops or 0

    @property
    def queues(self) -> QueueState:
        """The maps of all queues."""
        self._check(LabPart.QUEUES)
        if self.cells is None:
            raise ValueError("a snapshot with the part QUEUES has cells")
        return self.cells

    @cached_property
    def down(self) -> Mapping[str, bool]:
        """`rtsw1:eth2`, for each port without carrier -> True if it was taken down at this end."""
        self._check(LabPart.CARRIER)
        return {f"{name}:{port}": here for name, each in self.nodes.items() for port, here in (each.down or {}).items()}

    @cached_property
    def foreign_roots(self) -> Mapping[str, str]:
        """`rtsw1:eth2`, for each port without Heddle's queues -> its root qdisc; '' where the port is missing."""
        self._check(LabPart.PORTS)
        return {f"{name}:{port}": k for name, each in self.nodes.items() for port, k in (each.foreign or {}).items()}

    @cached_property
    def shapers(self) -> Mapping[str, PortQueue]:
        """`rtsw1:eth2`, for each port with Heddle's queues -> its shaper and queues."""
        self._check(LabPart.PORTS)
        return {f"{name}:{port}": q for name, each in self.nodes.items() for port, q in (each.shapers or {}).items()}

    @cached_property
    def programs(self) -> Mapping[str, tuple[Attached, ...]]:
        """`rtsw1:eth2` -> the programs of each port, in the order in which they run."""
        self._check(LabPart.PORTS)
        return {f"{name}:{port}": p for name, each in self.nodes.items() for port, p in (each.programs or {}).items()}

    @cached_property
    def links(self) -> Mapping[str, PortLink]:
        """`rtsw1:eth2` -> MTU, MAC and use of ARP of each port; absent where the port is missing."""
        self._check(LabPart.PORTS)
        return {f"{name}:{port}": row for name, each in self.nodes.items() for port, row in (each.links or {}).items()}

    @cached_property
    def neighbours(self) -> Mapping[str, tuple[Neighbour, ...]]:
        """`rtsw1:eth2` -> the neighbour entries of each port."""
        self._check(LabPart.NEIGHBOURS)
        nodes = self.nodes.items()
        return {f"{name}:{port}": rows for name, each in nodes for port, rows in (each.neighbours or {}).items()}

    @cached_property
    def path_mtus(self) -> Mapping[str, Mapping[str, int]]:
        """Node -> address -> the MTU that the node has learned for the path there, in bytes."""
        self._check(LabPart.NEIGHBOURS)
        return {name: each.path_mtus for name, each in self.nodes.items() if each.path_mtus}

    @cached_property
    def addresses(self) -> Mapping[str, frozenset[str]]:
        """Node -> its addresses and rules, and the routes of a host: lines of `kernel/ipsettings.py`."""
        self._check(LabPart.ADDRESSES)
        return {name: each.addresses for name, each in self.nodes.items() if each.addresses is not None}

    @cached_property
    def unrouted(self) -> tuple[str, ...]:
        """Ports (`rtsw1:eth2`) with a carrier that have no route to their link-local neighbour."""
        self._check(LabPart.UNROUTED)
        return tuple(f"{name}:{port}" for name, each in self.nodes.items() for port in each.unrouted or ())

    @cached_property
    def sessions(self) -> Mapping[str, Mapping[str, str] | None]:
        """Switch -> port or peer -> state of the BGP session; None where bgpd does not answer."""
        self._check(LabPart.SESSIONS)
        return {name: each.sessions for name, each in self.nodes.items() if each.role is Role.SWITCH}

    @cached_property
    def drained(self) -> tuple[str, ...]:
        """The switches that BGP drains."""
        self._check(LabPart.DRAINED)
        return tuple(name for name, each in self.nodes.items() if each.drained)

    @cached_property
    def shut(self) -> tuple[str, ...]:
        """Ports (`rtsw1:eth2`) whose BGP session is administratively down at this end. Part: DRAINED."""
        self._check(LabPart.DRAINED)
        return tuple(f"{name}:{port}" for name, each in self.nodes.items() for port in each.shut or ())

    @cached_property
    def silent(self) -> Mapping[str, tuple[str, ...]]:
        """Switch -> its daemons that do not answer; only switches that have such daemons."""
        self._check(LabPart.SILENT)
        return {name: each.silent for name, each in self.nodes.items() if each.silent}

    @cached_property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """Neighbours of OSPF and IS-IS that are not up, and ports that have none yet."""
        self._check(LabPart.ADJACENCIES)
        return tuple(row for each in self.nodes.values() for row in each.adjacencies or ())

    def with_counters(self, counters: Mapping[str, SwitchCounters]) -> Snapshot:
        """A copy with other counters, by switch."""
        nodes = {name: replace(each, counters=counters.get(name)) for name, each in self.nodes.items()}
        return replace(self, nodes=nodes)

    def _check(self, part: LabPart) -> None:
        if part not in self.parts:
            raise NotReadError(f"this snapshot of lab {self.lab} has no {part.name}: pass LabPart.{part.name}")
        if part in self.failed:
            raise self.failed[part]


def merged(readings: Sequence[Snapshot]) -> Snapshot:
    """One snapshot of those of all shards: each has its own nodes, and the rows of their ports in the maps."""
    if not readings:  # no node can be read: all shards are lost
        return Snapshot("", ~LabPart(0), {})
    first = readings[0]
    drops = [each.machine_drops for each in readings if each.machine_drops is not None]
    cells = [each.cells for each in readings if each.cells is not None]
    return replace(
        first,
        nodes={name: node for each in readings for name, node in each.nodes.items()},
        machine_drops=sum(drops) if drops else None,
        cells=cells[0].joined(cells[1:]) if cells else None,
        # A port has packets in its own shard alone.
        tallies={port: classes for each in readings for port, classes in each.tallies.items()},
        failed={part: error for each in readings for part, error in each.failed.items()},
    )


_ASKED_AT_ONCE: Final = 8  # daemons; each answers in about a millisecond
_OF_EVERY_NODE: Final = LabPart.PORTS | LabPart.NEIGHBOURS | LabPart.ADDRESSES
_OF_SWITCHES: Final = LabPart.FIBS | LabPart.HASHING | LabPart.DROPS | LabPart.CARRIER | LabPart.UNROUTED
_IN_KERNELS: Final = _OF_EVERY_NODE | _OF_SWITCHES
_OF_DAEMONS: Final = LabPart.SESSIONS | LabPart.DRAINED | LabPart.SILENT | LabPart.ADJACENCIES


def take(
    fabric: Fabric,
    handles: Mapping[str, NodeHandle],
    parts: LabPart,
    daemons: Daemons | None = None,
    *,
    nodes: Collection[str] | None = None,
    keep_errors: bool = False,
) -> Snapshot:
    """Read a lab once. nodes: all by default. daemons: needed for the parts that they report.

    HeddleError when a part cannot be read. keep_errors: raise it when the part is used, not now.
    """
    if parts & _OF_DAEMONS and daemons is None:
        raise ValueError("this lab has no daemons to ask")
    reading = _Reading(fabric, handles, parts, daemons, keep_errors=keep_errors)
    chosen = [node for node in fabric.nodes if nodes is None or node.name in nodes]
    found = reading.nodes([node for node in chosen if node.role is Role.SWITCH or parts & _OF_EVERY_NODE])
    return reading.finished(found, [node for node in chosen if node.role is Role.SWITCH])


class _Reading:
    """A snapshot while it is being read. A part that failed on one node is not read on the others."""

    def __init__(
        self,
        fabric: Fabric,
        handles: Mapping[str, NodeHandle],
        parts: LabPart,
        daemons: Daemons | None,
        *,
        keep_errors: bool,
    ) -> None:
        self._fabric, self._handles, self._parts, self._daemons = fabric, handles, parts, daemons
        self._keep_errors = keep_errors
        self._failed: dict[LabPart, HeddleError] = {}

    @contextmanager
    def _guarded(self, parts: LabPart) -> Iterator[None]:
        """Record an error for these parts, if errors are kept; else raise it."""
        try:
            yield
        except HeddleError as error:
            if not self._keep_errors:
                raise
            self._failed |= dict.fromkeys(parts & self._parts, error)

    def _wants(self, part: LabPart) -> bool:
        return part in self._parts and part not in self._failed

    def nodes(self, nodes: Sequence[Node]) -> dict[str, NodeSnapshot]:
        """Read the kernels of these nodes, and their maps, and ask the daemons of those that are switches."""

        def read(part: Sequence[Node]) -> tuple[dict[str, NodeSnapshot], dict[LabPart, HeddleError]]:
            with _asking(part, self._parts, self._daemons) as answers:
                rows = {node.name: self.kernel(node) for node in part}
                rows |= {name: replace(rows[name], **fields) for name, fields in answers()}
            return rows, self._failed

        found = dict[str, NodeSnapshot]()
        for rows, failed in in_processes(read, nodes) if self._parts & (_IN_KERNELS | _OF_DAEMONS) else [read(nodes)]:
            found |= rows
            self._failed |= failed
        return {node.name: found[node.name] for node in nodes}

    def kernel(self, node: Node) -> NodeSnapshot:
        """Read a node's kernel and maps; for hosts only what concerns their ports."""
        found = NodeSnapshot(node.name, node.role)
        if not self._parts & _IN_KERNELS:
            return found
        netns = self._handles[node.name].netns
        of_node = _IN_KERNELS if node.role is Role.SWITCH else _OF_EVERY_NODE
        with self._guarded(of_node), inside(netns), RouteSocket(netns, here=True) as netlink:
            every = [*interfaces(netlink)]
            names, ports = {each.ifindex: each.name for each in every}, {port.name: port for port in node.ports}
            if self._wants(LabPart.PORTS):
                with self._guarded(LabPart.PORTS):
                    rows = [*qdiscs(netlink)]
                    foreign, shapers = foreign_roots(rows, names, ports), read_shapers(netlink, rows, names, ports)
                    programs, links = read_attached(netlink, rows, names, ports), _links(every, ports)
                    found = replace(found, foreign=foreign, shapers=shapers, programs=programs, links=links)
            if self._wants(LabPart.NEIGHBOURS):
                with self._guarded(LabPart.NEIGHBOURS):
                    near = dict[str, tuple[Neighbour, ...]]()
                    for each in neighbours(netlink):
                        if (port := names.get(each.ifindex)) in ports:
                            near[port] = (*near.get(port, ()), each)
                    found = replace(found, neighbours=near, path_mtus=path_mtus(netlink))
            if self._wants(LabPart.ADDRESSES):
                with self._guarded(LabPart.ADDRESSES):
                    table = LOCAL_TABLE if node.role is Role.SWITCH else 0  # other tables of switches: FIBS
                    found = replace(found, addresses=ip_settings(netlink, names, table))
            if node.role is Role.SWITCH:
                found = self._switch(found, netlink, names, every)
        return found

    def _switch(
        self, found: NodeSnapshot, netlink: RouteSocket, names: Mapping[int, str], every: Sequence[NetInterface]
    ) -> NodeSnapshot:
        lab, name = self._fabric.name, found.node
        if self._wants(LabPart.CARRIER):
            with self._guarded(LabPart.CARRIER):
                (down, changes), ports = carriers(every), self._fabric.by_name[name].ports
                found = replace(
                    found,
                    down={port.name: down[port.name] for port in ports if port.name in down},
                    carrier_changes={port.name: changes[port.name] for port in ports if port.name in changes},
                )
        if self._wants(LabPart.UNROUTED):
            with self._guarded(LabPart.UNROUTED):
                found = replace(found, unrouted=tuple(without_route(netlink, self._fabric.by_name[name], every)))
        if self._wants(LabPart.FIBS):
            with self._guarded(LabPart.FIBS):
                found = replace(found, fib=fib_of(netlink, name, names, self._fabric.policy.ip_version))
        if self._wants(LabPart.HASHING):
            with self._guarded(LabPart.HASHING), Tables.pinned(pin_dir(lab, name)) as tables:
                rule = hashing_in(tables, name, names)
                found = replace(found, hashing=rule, epoch=tables.epoch, statistics=tables.statistics())
        if self._wants(LabPart.DROPS):
            with self._guarded(LabPart.DROPS):
                found = replace(found, class_drops=refused_by_qdiscs(netlink, names))
        return found

    def finished(self, found: Mapping[str, NodeSnapshot], switches: Collection[Node]) -> Snapshot:
        """Add the parts that are in maps of the whole lab."""
        nodes, cells = dict(found), None
        every: Tallies = {}
        if self._wants(LabPart.COUNTERS):
            with self._guarded(LabPart.COUNTERS):
                for name, table in read_counters(self._fabric, {node.name for node in switches}).items():
                    nodes[name] = replace(nodes[name], counters=table)
        if self._parts & (LabPart.QUEUES | LabPart.DROPS):
            from heddle.switch.queues.cells import LabQueues, QueueState, missed, tallies

            with self._guarded(LabPart.QUEUES | LabPart.DROPS), LabQueues.pinned(self._fabric) as live:
                if LabPart.QUEUES in self._parts:
                    cells = QueueState.of(live)
                if self._wants(LabPart.DROPS):
                    every = tallies(live)
                    for node in switches:
                        own, counts = nodes[node.name].class_drops or {}, missed(live, node.ports)
                        each = dict[str, Mapping[int, int]]()
                        for port in node.ports:
                            one, other = counts[port.ref], own.get(port.name, {})
                            sums = ((number, one.get(number, 0) + other.get(number, 0)) for number in {*one, *other})
                            each[port.name] = {number: count for number, count in sorted(sums) if count}
                        drops = {port: sum(classes.values()) for port, classes in each.items()}
                        nodes[node.name] = replace(nodes[node.name], drops=drops, class_drops=each)
        machine = backlog_drops() if LabPart.DROPS in self._parts else None
        return Snapshot(self._fabric.name, self._parts, nodes, machine, cells, every, self._failed)


def _links(every: Sequence[NetInterface], ports: Collection[str]) -> dict[str, PortLink]:
    found = dict[str, PortLink]()
    for each in every:
        if each.name in ports:
            mtu, mac = int.from_bytes(each.attrs[IFLA_MTU], sys.byteorder), each.attrs.get(IFLA_ADDRESS, b"").hex(":")
            found[each.name] = PortLink(mtu, mac, not each.flags & IFF_NOARP)
    return found


@contextmanager
def _asking(
    nodes: Iterable[Node], parts: LabPart, daemons: Daemons | None
) -> Iterator[Callable[[], Iterator[tuple[str, dict[str, Any]]]]]:
    """Ask the daemons of those nodes that are switches, in a with block that can do something else meanwhile.

    Gives a function that waits for the answers: a switch, and its fields of NodeSnapshot. A daemon of several switches
    is asked for one after the other, as it answers one at a time; if it answers for one of them, it does answer.
    """
    groups = dict[object, list[Node]]()
    for node in nodes if daemons is not None and parts & _OF_DAEMONS else ():
        if daemons is not None and node.role is Role.SWITCH:
            shared = daemons.fabric.policy.routing.daemons == "shared"
            groups.setdefault(daemons.vty(node.name, "bgpd") if shared else node.name, []).append(node)
    if daemons is None or not groups:
        yield lambda: iter(())
        return
    known = set[Path]()

    def ask(node: Node) -> tuple[str, dict[str, Any]]:
        fields, name = dict[str, Any](), node.name
        if parts & (LabPart.SESSIONS | LabPart.DRAINED):
            sessions = daemons.sessions(name)
            if sessions is not None and (vty := daemons.vty(name, "bgpd")) is not None:
                known.add(vty)
            fields["sessions"] = sessions if LabPart.SESSIONS in parts else None
            fields["shut"] = tuple(peer for peer, state in (sessions or {}).items() if state == ADMIN_DOWN)
        if LabPart.DRAINED in parts:
            fields["drained"] = daemons.drained(name)
        if LabPart.SILENT in parts:
            fields["silent"] = daemons.silent(name, known)
        if LabPart.ADJACENCIES in parts:
            fields["adjacencies"] = tuple(pending(daemons, node))
        return name, fields

    from concurrent.futures import ThreadPoolExecutor  # it imports `logging`, and few verbs ask daemons

    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="ask-daemons") as pool:
        rows = pool.map(lambda group: [*map(ask, group)], groups.values())
        yield lambda: chain.from_iterable(rows)
