"""Read a running lab once: the kernels of its nodes, its maps, and the answers of its daemons.

In:  a fabric, the handles of its nodes, the parts that the caller needs. Out: Snapshot.
Each node's namespace is entered once, with one netlink socket for all requests. Nodes are read one after another:
Python itself uses the time, so threads would not help. Threads ask the daemons, since that time is spent waiting. All
parts are read within milliseconds, but not at one instant: packets pass meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from heddle.base.problems import HeddleError
from heddle.fabric.model import Fabric, Node, Role
from heddle.host.capacity import backlog_drops
from heddle.kernel.fib import fib_of
from heddle.kernel.handle import NodeHandle
from heddle.kernel.namespace import inside
from heddle.kernel.netlink import Neighbour, NetInterface, RouteSocket, carriers, interfaces, neighbours, path_mtus
from heddle.kernel.uapi import IFLA_ADDRESS, IFLA_MTU
from heddle.lab.convergence import without_route
from heddle.lab.daemons import ADMIN_DOWN, Daemons, pending
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.switch.counters import read_counters
from heddle.switch.hashing.hashing import hashing_in, pin_dir
from heddle.switch.hashing.maps import Tables
from heddle.switch.queues.attached import read_attached
from heddle.switch.queues.portqueues import foreign_roots, read_shapers, refused_by_qdiscs

if TYPE_CHECKING:
    from heddle.switch.queues.queuestate import Tallies

_ASKED_AT_ONCE: Final = 8  # daemons; each answers in about a millisecond
_OF_EVERY_NODE: Final = LabPart.PORTS | LabPart.NEIGHBOURS
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
    reading = _Reading(fabric, handles, parts, keep_errors=keep_errors)
    chosen = [node for node in fabric.nodes if nodes is None or node.name in nodes]
    found = {node.name: reading.kernel(node) for node in chosen if node.role is Role.SWITCH or parts & _OF_EVERY_NODE}
    switches = [node for node in chosen if node.role is Role.SWITCH]
    if parts & _OF_DAEMONS:
        if daemons is None:
            raise ValueError("this lab has no daemons to ask")
        found |= _asked([found[node.name] for node in switches], parts, daemons)
    return reading.finished(found, switches)


class _Reading:
    """A snapshot while it is being read. A part that failed on one node is not read on the others."""

    def __init__(self, fabric: Fabric, handles: Mapping[str, NodeHandle], parts: LabPart, *, keep_errors: bool) -> None:
        self._fabric, self._handles, self._parts = fabric, handles, parts
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

    def kernel(self, node: Node) -> NodeSnapshot:
        """Read a node's kernel and maps; for hosts only what concerns their ports."""
        found = NodeSnapshot(node.name, node.role)
        if not self._parts & _IN_KERNELS:
            return found
        netns = self._handles[node.name].netns
        of_node = _IN_KERNELS if node.role is Role.SWITCH else _OF_EVERY_NODE
        with self._guarded(of_node), inside(netns), RouteSocket(netns, here=True) as netlink:
            every = [*interfaces(netlink)]
            names, ports = {each.ifindex: each.name for each in every}, [port.name for port in node.ports]
            if self._wants(LabPart.PORTS):
                with self._guarded(LabPart.PORTS):
                    foreign, shapers = foreign_roots(netlink, names, ports), read_shapers(netlink, names, ports)
                    programs, links = read_attached(netlink, names, ports), _links(every, ports)
                    found = replace(found, foreign=foreign, shapers=shapers, programs=programs, links=links)
            if self._wants(LabPart.NEIGHBOURS):
                with self._guarded(LabPart.NEIGHBOURS):
                    rows = dict[str, tuple[Neighbour, ...]]()
                    for each in neighbours(netlink):
                        if (port := names.get(each.ifindex)) in ports:
                            rows[port] = (*rows.get(port, ()), each)
                    found = replace(found, neighbours=rows, path_mtus=path_mtus(netlink))
            if node.role is Role.SWITCH:
                found = self._switch(found, netlink, names)
        return found

    def _switch(self, found: NodeSnapshot, netlink: RouteSocket, names: Mapping[int, str]) -> NodeSnapshot:
        lab, name = self._fabric.name, found.node
        if self._wants(LabPart.CARRIER):
            with self._guarded(LabPart.CARRIER):
                (down, changes), ports = carriers(netlink), self._fabric.by_name[name].ports
                found = replace(
                    found,
                    down={port.name: down[port.name] for port in ports if port.name in down},
                    carrier_changes={port.name: changes[port.name] for port in ports if port.name in changes},
                )
        if self._wants(LabPart.UNROUTED):
            with self._guarded(LabPart.UNROUTED):
                found = replace(found, unrouted=tuple(without_route(netlink, self._fabric.by_name[name])))
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
            from heddle.switch.queues.cells import LabQueues
            from heddle.switch.queues.queuestate import QueueState, missed, tallies

            with self._guarded(LabPart.QUEUES | LabPart.DROPS), LabQueues.pinned(self._fabric) as live:
                if LabPart.QUEUES in self._parts:
                    cells = QueueState.of(live)
                if self._wants(LabPart.DROPS):
                    every = tallies(live)
                    for node in switches:
                        own, counts = nodes[node.name].class_drops or {}, missed(live, node.ports)
                        each = {port.name: _added(counts[port.ref], own.get(port.name, {})) for port in node.ports}
                        drops = {port: sum(classes.values()) for port, classes in each.items()}
                        nodes[node.name] = replace(nodes[node.name], drops=drops, class_drops=each)
        machine = backlog_drops() if LabPart.DROPS in self._parts else None
        return Snapshot(self._fabric.name, self._parts, nodes, machine, cells, every, self._failed)


def _links(every: Sequence[NetInterface], ports: Collection[str]) -> dict[str, tuple[int, str]]:
    """Port -> its MTU and MAC."""
    return {
        each.name: (int.from_bytes(each.attrs[IFLA_MTU], sys.byteorder), each.attrs.get(IFLA_ADDRESS, b"").hex(":"))
        for each in every
        if each.name in ports
    }


def _added(one: Mapping[int, int], other: Mapping[int, int]) -> dict[int, int]:
    """The sum of two counters of drops by class; classes without drops are omitted."""
    sums = {number: one.get(number, 0) + other.get(number, 0) for number in sorted({*one, *other})}
    return {number: count for number, count in sums.items() if count}


def _asked(found: Collection[NodeSnapshot], parts: LabPart, daemons: Daemons) -> dict[str, NodeSnapshot]:
    """Ask the daemons of all switches."""

    def ask(node: NodeSnapshot) -> NodeSnapshot:
        sessions = daemons.sessions(node.node) if parts & (LabPart.SESSIONS | LabPart.DRAINED) else None
        return replace(
            node,
            sessions=sessions if LabPart.SESSIONS in parts else None,
            shut=tuple(peer for peer, state in (sessions or {}).items() if state == ADMIN_DOWN),
            drained=daemons.drained(node.node) if LabPart.DRAINED in parts else None,
            silent=daemons.silent(node.node) if LabPart.SILENT in parts else None,
            adjacencies=tuple(pending(daemons, daemons.fabric.by_name[node.node]))
            if LabPart.ADJACENCIES in parts
            else None,
        )

    from concurrent.futures import ThreadPoolExecutor  # it imports `logging`, and few verbs ask daemons

    with ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="ask-daemons") as pool:
        return {node.node: node for node in pool.map(ask, found)}
