"""The loads of a fabric's ports: flows are walked in batches over one or several scenarios, and summed by port.

In:  Fabric and Workload: `traffic_of` makes the Traffic of a job, as columns, for one iteration of its largest size.
     Only options that decide sender, receiver and bytes have an effect. Wires; Scenarios (next hops, hashing rules).
Out: Loads of each: bytes and flows by port; the number of flows without a path; the difference of two scenarios.
Memory is limited to one batch, for any number of flows; time is linear in flows x scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from heddle.base.arrays import F64, I32, I64, U32, Bools
from heddle.base.problems import InputError, Problems
from heddle.endpoints.transports import TRANSPORTS
from heddle.fabric.model import Fabric
from heddle.host.capacity import free_bytes
from heddle.offline import columns
from heddle.offline.columns import flows_of
from heddle.offline.wires import Wires
from heddle.predict.forwarding import Forwarding
from heddle.predict.rules import FabricRules
from heddle.predict.walk import MAX_HOPS, Hops, walk
from heddle.traffic.communicators import describe
from heddle.traffic.flow import Endpoint
from heddle.traffic.plan import grouped, rounded
from heddle.traffic.workload import Job, Workload

_CUT_BY_KERNELS: Final = (
    "kernels cut streams into segments: bytes are those of full ones, without retransmissions and handshakes"
)


@dataclass(frozen=True)
class Traffic:
    """The traffic of a job. address: by rank, as in FlowArrays; volume: by kind of connection and flow.

    split: the communicators in words, if there are several.
    """

    job: Job
    endpoints: Sequence[Endpoint]
    address: U32
    connections: columns.Connections
    volume: columns.Volume
    split: str = ""

    @property
    def bytes(self) -> int:
        """Bytes on the wire that all ranks send."""
        return int(self.volume.wire.sum(axis=1)[self.connections.kind].sum())


def check_memory(job: Job, ranks: int, connections: int, lengths: int = 1) -> None:
    """InputError when the connections do not fit in memory; called before they are made. lengths: different ones."""
    each = job.options.qps * _spread(job)
    need = (
        connections * columns.CONNECTION_BYTES
        + min(connections * each, columns.BATCH) * columns.FLOW_BYTES
        + lengths * each * columns.LENGTH_BYTES
    )
    free = free_bytes()
    if need > free:
        size = f"{need / 1e9:.0f} GB, but {free / 1e9:.1f} GB are free"
        why = f"makes {connections:,} connections of {ranks:,} ranks, which need {size}"
        fit = int((free / columns.CONNECTION_BYTES) ** 0.5 * 0.9)
        key, value = job.runs
        raise InputError(job.problem(key, value, why, f"use fewer ranks, as ranks: {min(fit, ranks - 1)}"))


def traffic_of(fabric: Fabric, workload: Workload) -> tuple[Traffic, ...]:
    """Place the ranks and open the QPs. InputError if the fabric has too few NICs, or the machine too little memory."""
    for job in workload.jobs:
        if not TRANSPORTS[job.options.transport].predicted:
            legal = sorted(name for name, each in TRANSPORTS.items() if each.predicted)
            why = "is not predicted offline, because the kernel builds its packets"
            hint = f"use one of {', '.join(legal)}; sport: rxe predicts its source ports"
            raise InputError(job.problem("transport", job.options.transport, why, hint))
    return tuple(
        traffic_at(fabric, job, ends) for job, ends in zip(workload.jobs, workload.endpoints(fabric), strict=True)
    )


def _spread(job: Job) -> int:
    """The number of source ports of a queue pair."""
    return TRANSPORTS[job.options.transport].spread(job.options)


def traffic_at(fabric: Fabric, job: Job, endpoints: Sequence[Endpoint]) -> Traffic:
    """The traffic of one job with its ranks at these places. InputError for a pattern that they do not allow."""
    with job.keys.named():
        problems = Problems()
        TRANSPORTS[job.options.transport].check(job.options, problems)
        problems.raise_if_any()
        pattern, communicators, options = grouped(fabric, endpoints, job.options)
        groups = np.array(communicators)
        many, size = groups.shape
        check_memory(job, len(endpoints), many * pattern.connections(size))
        options = rounded(pattern, size, options)
    cut = columns.cutting(
        fabric, options.qps, options.qp_mode, options.chunk, options.transport, _spread(job), options.network
    )
    count = max(options.sizes) // pattern.element_bytes
    pairs, kinds, volume = columns.of_pattern(pattern, size, count, cut)
    if cut.lead:
        volume = replace(volume, doubt=_CUT_BY_KERNELS)
    check_memory(job, len(endpoints), many * len(pairs), len(volume.wire))
    src, dst = groups[:, pairs].reshape(-1, 2).T
    kinds = np.tile(kinds, many)
    if options.inside_gbps(pattern):
        hosts = np.unique([end.host for end in endpoints], return_inverse=True)[1]
        out = hosts[src] != hosts[dst]
        src, dst, kinds = src[out], dst[out], kinds[out]
    numbering = TRANSPORTS[options.transport].numbering
    connections = columns.connect(
        endpoints, src, dst, kinds, options.qps, options.source_ports, _spread(job), numbering
    )  # fmt: skip
    job = replace(job, options=options) if options.steps else job
    said = describe(fabric, endpoints, communicators)
    return Traffic(job, endpoints, columns.addresses(endpoints), connections, volume, said)


_NAMED: int = 8  # pairs without a path that are named
_ENTRIES: int = 1 << 19  # (switch, destination) pairs per batch


@dataclass(frozen=True)
class Nics:
    """Ranks as ports. All arrays are by rank: the NIC's port, its switch's port to it, that switch, its slice.

    edge: of that switch, from 0. slice: index among that switch's downlinks. alive: whether its link is.
    """

    up: I32
    down: I32
    switch: I32
    edge: I32
    slice: I32
    alive: Bools


def nics_of(wires: Wires, traffic: Traffic, dead: frozenset[str] = frozenset()) -> Nics:
    """The ports of a plan's ranks. dead: names of ports."""
    id_of = {wires.ports[at]: at for at in np.flatnonzero((wires.owner >= 0) & (wires.peer < 0)).tolist()}  # to hosts
    down = np.array([id_of[e.first_hop] for e in traffic.endpoints], dtype=np.int32)
    downlinks = np.flatnonzero(wires.direction == wires.direction[down[0]])
    first = np.full(len(wires.switches), np.iinfo(np.int32).max, dtype=np.int64)
    np.minimum.at(first, wires.owner[downlinks], downlinks)  # a switch's downlinks are consecutive
    switch = wires.owner[down]
    alive = np.array([e.first_hop not in dead for e in traffic.endpoints], dtype=bool)
    return Nics(wires.other[down], down, switch, wires.edge[switch], (down - first[switch]).astype(np.int32), alive)


@dataclass(frozen=True)
class Scenario:
    """One forwarding of a fabric. key: the key of its results."""

    key: str
    forwarding: Forwarding
    rules: FabricRules


@dataclass
class Loads:
    """By port: bytes on the wire, and flows with bytes. unreachable: flows without a path; named: the NICs of the
    first pairs, as ports.

    moved, lost: compared with the scenario before, flows on another path, and flows whose old path is not usable now.
    hoped: the expected flows if each switch had shared the flows that reached it by weight; 0 if weights are equal.
    """

    bytes: F64
    flows: F64
    hoped: F64
    unreachable: int = 0
    named: list[tuple[int, int]] = field(default_factory=list)
    compared: int = 0
    moved: int = 0
    lost: int = 0

    @classmethod
    def together(cls, jobs: Sequence[Loads]) -> Loads:
        """The sum over jobs."""
        first, *more = jobs
        for each in more:
            first = cls(
                first.bytes + each.bytes, first.flows + each.flows, first.hoped + each.hoped,
                first.unreachable + each.unreachable, [*first.named, *each.named][:_NAMED],
                first.compared + each.compared, first.moved + each.moved, first.lost + each.lost,
            )  # fmt: skip
        return first


@dataclass(frozen=True)
class Demand:
    """(switches, edges): bytes from NICs of a switch to NICs of an edge, of flows with a path."""

    bytes: F64
    direct: F64  # (ports,): on the links of NICs, both directions

    def between(self, wires: Wires) -> F64:
        """(edges, edges): bytes from the NICs of one edge to those of another; none on the diagonal."""
        leaves = np.flatnonzero(wires.edge >= 0)
        found: F64 = self.bytes[leaves[np.argsort(wires.edge[leaves])]]
        np.fill_diagonal(found, 0)
        return found

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.bytes + other.bytes, self.direct + other.direct)


def carry(
    wires: Wires, traffic: Traffic, nics: Nics, scenarios: Sequence[Scenario], befores: Sequence[int | None] = ()
) -> list[Loads]:
    """Walk all flows over every scenario. befores: for each, the earlier one to compare its paths with, or None."""
    count = len(wires.ports)
    every = [Loads(np.zeros(count), np.zeros(count), np.zeros(count)) for _ in scenarios]
    needed = set(befores) - {None}
    for part in traffic.connections.batches():
        batch = FlowBatch(wires, traffic, nics, part)
        kept: dict[int, tuple[Hops, Bools]] = {}
        for index, (scenario, loads) in enumerate(zip(scenarios, every, strict=True)):
            hops, arrived = batch.go(scenario, loads)
            before = befores[index] if befores else None
            if before is not None:
                _compare(scenario, batch, kept[before], (hops, arrived), loads)
            if index in needed:
                kept[index] = hops, arrived
    return every


class FlowBatch:
    """The flows of some connections, and their ends. part: which connections, as a slice or as their rows."""

    def __init__(self, wires: Wires, traffic: Traffic, nics: Nics, part: slice | I64) -> None:
        connections = traffic.connections
        each = connections.each
        self._wires = wires
        self.flows = flows_of(connections, part, traffic.address)
        self.src = np.repeat(connections.src[part], each)
        self.dst = np.repeat(connections.dst[part], each)
        self.amount = traffic.volume.wire[connections.kind[part]].ravel().astype(np.float64)
        self.home = nics.switch[self.dst]
        self.edge = nics.edge[self.dst]
        self.slices = nics.slice[self.dst]
        self.alive = nics.alive[self.src] & nics.alive[self.dst]
        self.first = np.where(self.alive, nics.switch[self.src], -1).astype(np.int32)
        self._nics = nics.up
        self._ends = nics.up[self.src], nics.down[self.dst]

    def go(self, scenario: Scenario, loads: Loads) -> tuple[Hops, Bools]:
        """Walk one scenario and add the loads of its ports; flows that do not arrive carry nothing."""
        hops = walk(scenario.forwarding, scenario.rules, self.flows, self.edge, self.first, slices=self.slices)
        share = np.where(self.first == self.home, 1.0, 0.0)
        for step in hops.steps:
            home = step.peer == (self.home if step.whole else self.home[step.flow])
            np.add.at(share, step.flow[home], step.share[home])
        arrived = self.alive & (share > 1 - 1e-9)
        amount = np.where(arrived, self.amount, 0.0)
        ones = (amount > 0).astype(np.float64)
        ports = len(self._wires.ports)
        loads.bytes += hops.load(amount, ports)
        loads.flows += hops.load(ones, ports)
        loads.hoped += _hoped(self._wires, scenario.forwarding, hops, self.edge, ones)
        for end in self._ends:
            loads.bytes += np.bincount(end, weights=amount, minlength=ports)
            loads.flows += np.bincount(end, weights=ones, minlength=ports)
        without = np.flatnonzero(~arrived & (self.amount > 0))
        loads.unreachable += len(without)
        for row in without[: _NAMED * 128]:
            pair = int(self._nics[self.src[row]]), int(self._nics[self.dst[row]])
            if len(loads.named) < _NAMED and pair not in loads.named:
                loads.named.append(pair)
        return hops, arrived


def _hoped(wires: Wires, forwarding: Forwarding, hops: Hops, edge: I32, amount: F64) -> F64 | float:
    """Flows that reached each group of next hops, divided by weight among its ports: (ports,); 0 for equal weights."""
    if not len(forwarding.weight) or forwarding.weight.min() == forwarding.weight.max():
        return 0.0
    reached = np.zeros(len(forwarding.size))
    for step in hops.steps:
        group = forwarding.group[wires.owner[step.port], edge[step.flow]]
        reached += np.bincount(group, weights=step.part(amount), minlength=len(reached))
    owner = np.repeat(np.arange(len(reached)), forwarding.size)
    total = np.bincount(owner, weights=forwarding.weight, minlength=len(reached))
    part = reached[owner] * forwarding.weight / total[owner]
    found: F64 = np.bincount(forwarding.member, weights=part, minlength=len(wires.ports)).astype(np.float64)
    return found


def _compare(
    scenario: Scenario, batch: FlowBatch, before: tuple[Hops, Bools], after: tuple[Hops, Bools], loads: Loads
) -> None:
    """Count the flows with a new path, and those of them whose old path is not usable."""
    old, new = before[0].ports, after[0].ports
    both = before[1] & after[1] & (batch.amount > 0)
    width = max(old.shape[1], new.shape[1])
    old, new = (np.pad(ports, ((0, 0), (0, width - ports.shape[1])), constant_values=-1) for ports in (old, new))
    here = batch.first
    lost = np.zeros(len(both), dtype=bool)
    for hop in range(width):
        port = old[:, hop]
        on = np.flatnonzero((port >= 0) & (here >= 0))
        group = scenario.forwarding.group[here[on], batch.edge[on]]
        still = (group >= 0) & scenario.forwarding.holds(np.maximum(group, 0).astype(np.int32), port[on])
        lost[on] |= ~still
        here = np.where(port >= 0, batch._wires.peer[port], -1)
    loads.compared += int(both.sum())
    loads.moved += int((both & (old != new).any(axis=1)).sum())
    loads.lost += int((both & lost).sum())


def demand_of(wires: Wires, traffic: Traffic, nics: Nics, forwarding: Forwarding) -> Demand:
    """The bytes of every switch for every edge, without flows that have no path."""
    shape = forwarding.group.shape
    total = np.zeros(shape[0] * shape[1])
    direct = np.zeros(len(wires.ports))
    of_kind = traffic.volume.wire.sum(axis=1).astype(np.float64)
    connections = traffic.connections
    for part in connections.batches():
        src, dst = connections.src[part], connections.dst[part]
        here, edge = nics.switch[src], nics.edge[dst]
        reaches = (here == nics.switch[dst]) | (forwarding.group[here, edge] >= 0)
        amount = np.where(reaches & nics.alive[src] & nics.alive[dst], of_kind[connections.kind[part]], 0.0)
        total += np.bincount(here.astype(np.int64) * shape[1] + edge, weights=amount, minlength=len(total))
        direct += np.bincount(nics.up[src], weights=amount, minlength=len(direct))
        direct += np.bincount(nics.down[dst], weights=amount, minlength=len(direct))
    return Demand(total.reshape(shape), direct)


def spread_evenly(wires: Wires, forwarding: Forwarding, demand: Demand) -> F64:
    """Bytes by port if every switch splits its bytes for an edge over all next hops, by their weights.

    This is the result of packet spraying, and the best case of flowlets. It is computed per switch, without flows.
    """
    loads = demand.direct.copy()
    switches, edges = demand.bytes.shape
    running = np.concatenate([[0], np.cumsum(forwarding.weight, dtype=np.int64)])
    total = running[forwarding.start[1:]] - running[forwarding.start[:-1]]
    state = demand.bytes
    for _ in range(MAX_HOPS):
        here, edge = np.divmod(np.flatnonzero((state > 0) & (forwarding.group >= 0)), edges)
        if not len(here):
            break
        arriving = np.zeros(switches * edges)
        for start in range(0, len(here), _ENTRIES):
            at, to = here[start : start + _ENTRIES], edge[start : start + _ENTRIES]
            group = forwarding.group[at, to]
            size = forwarding.size[group]
            entry = np.repeat(np.arange(len(at)), size)
            member = forwarding.start[group[entry]] + np.arange(len(entry)) - np.repeat(np.cumsum(size) - size, size)
            part = state[at, to][entry] * forwarding.weight[member] / total[group[entry]]
            port = forwarding.member[member]
            loads += np.bincount(port, weights=part, minlength=len(loads))
            cell = wires.peer[port].astype(np.int64) * edges + to[entry]
            more = np.bincount(cell, weights=part, minlength=len(arriving))
            arriving = more if start == 0 else arriving + more
        state = arriving.reshape(switches, edges)
    return loads
