"""Traffic engineering of a running lab: from what its switches know now and a traffic matrix to exact-match entries.

In:  a snapshot (routes, hashing, carrier: the topology is what BGP and the links say, not what the fabric file says);
     a traffic matrix: flows and their bytes (of_run, of_workload, of_interval).
Out: TePlan: the tables of all switches, how they differ from those installed, the bytes of each link before and after.
The plan has no state: the same snapshot and matrix give the same plan. The algorithm is predict/cspf.py.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from socket import socket
from typing import Any, Final

import numpy as np

from heddle.base import owners, state
from heddle.base.arrays import F64
from heddle.base.families import Network
from heddle.base.problems import CheckError, HeddleError, InputError, Problem
from heddle.fabric.hashmodes import EXACT_MATCH, POLICY_L4
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import BACKEND, ports_above
from heddle.kernel.netlink import changes_of_links_and_routes
from heddle.lab.lab import Lab
from heddle.lab.rehash import put_in_force
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import nothing, spread
from heddle.offline.columns import flows_of
from heddle.offline.loads import Traffic, traffic_of
from heddle.offline.wires import Wires, wires_of
from heddle.predict.cspf import Demands, Routes, cspf
from heddle.predict.forwarding import NOWHERE, Forwarding
from heddle.predict.predict import forwarding_for, walk_of
from heddle.predict.statistics import max_over_mean
from heddle.proof.collect import counted_flows
from heddle.runs.store import load
from heddle.switch.counters import SwitchCounters
from heddle.switch.hashing.maps import Exact
from heddle.traffic.flow import Flow, FlowKey
from heddle.traffic.workload import Workload
from heddle.wire.layout import ROCE_PORT


def of_run(lab: Lab, run: str | None = None) -> TeDemand:
    """What the senders of a stored run put on the wire. run: as typed after --run; None is the last one."""
    stored = load(lab, run)
    sent = [each for each in stored.evidence.sent if each.flow.has_qp and each.bytes and each.planned]
    source = f"run {stored.id}"
    return _checked(TeDemand(source, tuple(each.flow for each in sent), tuple(float(each.bytes) for each in sent)))


def of_interval(lab: Lab, seconds: float) -> TeDemand:
    """What switches count from now on for so many seconds, at the first switch of each flow."""
    before, began = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic()
    time.sleep(seconds)
    after, passed = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic() - began
    return counted(lab.fabric, before, after, passed) or _checked(TeDemand(f"counters of {passed:.1f} s", (), ()))


def counted(
    fabric: Fabric, before: Mapping[str, SwitchCounters], after: Mapping[str, SwitchCounters], seconds: float
) -> TeDemand | None:
    """What switches counted between two readings that are so many seconds apart; None if that is nothing."""
    flows = [flow for flow in counted_flows(fabric, after, before) if flow.has_qp]
    sizes: Counter[tuple[FlowKey, str]] = Counter()
    for name, table in after.items():
        for row in table.since(before[name]).flows:
            sizes[row.key, name] += row.bytes
    found = [float(sizes[flow.key, flow.first_hop.partition(":")[0]]) for flow in flows]
    return TeDemand(f"counters of {seconds:.1f} s", tuple(flows), tuple(found), seconds) if flows else None


def of_workload(lab: Lab, workload: Workload) -> TeDemand:
    """One iteration of each job of a workload. InputError for ranks that the lab does not have."""
    flows: list[Flow] = []
    sizes: list[float] = []
    for traffic in traffic_of(lab.fabric, workload):
        _add(traffic, flows, sizes)
    return _checked(TeDemand(f"workload {workload.name}", tuple(flows), tuple(sizes)))


def _add(traffic: Traffic, flows: list[Flow], sizes: list[float]) -> None:
    connections, ends = traffic.connections, traffic.endpoints
    for part in connections.batches():
        columns = flows_of(connections, part, traffic.address)
        src, dst = (np.repeat(column[part], connections.each).tolist() for column in (connections.src, connections.dst))
        amount = traffic.volume.wire[connections.kind[part]].ravel().tolist()
        rows = zip(src, dst, columns.sport.tolist(), columns.qpn.tolist(), amount, strict=True)
        for a, b, sport, qpn, size in rows:
            if size:
                one, other = ends[a], ends[b]
                ips, hop = (one.ip, other.ip), one.first_hop
                flows.append(Flow(one.host, other.host, *ips, sport, qpn, hop, ROCE_PORT, a, b, traffic.job.name))
                sizes.append(float(size))


def _checked(demand: TeDemand) -> TeDemand:
    if not demand.flows:
        hint = "start ./inv run in another terminal, or use --run or --workload"
        raise InputError(Problem("", f"traffic matrix: {demand.source}", "no RoCEv2 flow carries bytes", hint))
    return demand


PARTS = LabPart.FIBS | LabPart.HASHING | LabPart.CARRIER


@dataclass(frozen=True)
class TeDemand:
    """What hosts send: RoCEv2 flows and the bytes of each on the wire. source: where the figures are from, in words.

    seconds: of the interval in which the bytes were counted; None where they are those of a workload.
    """

    source: str
    flows: tuple[Flow, ...]
    bytes: tuple[float, ...]
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TeLink:
    """A live link between switches, in one direction. before, after: bytes; before: None if it cannot be predicted."""

    port: str
    to: str
    direction: str
    rate_bps: int
    before: float | None
    after: float

    def use(self, seconds: float) -> tuple[float | None, float]:
        """Before and after: the share of `seconds` that the link needs for its bytes."""
        full = self.rate_bps * seconds / 8 or 1.0
        return None if self.before is None else self.before / full, self.after / full


@dataclass(frozen=True, slots=True)
class TeSpread:
    """The use of all links of one direction, as shares. mmr: use of the busiest link / mean; None without traffic."""

    least: float
    mean: float
    most: float
    mmr: float | None

    @classmethod
    def of(cls, uses: Sequence[float]) -> TeSpread:
        """Of at least one link."""
        return cls(min(uses), sum(uses) / len(uses), max(uses), max_over_mean(uses))

    @property
    def points(self) -> float:
        """Difference of the busiest and the least used link, in percentage points."""
        return 100 * (self.most - self.least)

    def to_json(self) -> dict[str, Any]:
        return {
            "least": self.least, "mean": self.mean, "most": self.most, "spread_points": self.points, "mmr": self.mmr,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class TeChange:
    """An entry that differs from what is installed. before, after: port and backup; empty: no entry."""

    switch: str
    sport: int
    prefix: Network
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def what(self) -> str:
        """`added`, `changed` or `removed`."""
        return "removed" if not self.after else "changed" if self.before else "added"

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {"change": self.what, "switch": self.switch, "sport": self.sport}
        return {**row, "prefix": str(self.prefix), "before": list(self.before), "after": list(self.after)}


@dataclass(frozen=True)
class TePlan:
    """The entries of all switches, and their effect.

    seconds: the time that a use of 100 % stands for: the interval of the counters; else the time that the busiest NIC
    needs for its bytes. tables: switch -> its table; switches without a choice have none. in_force: the present ones.
    links: those with ranks below them. shared: flows that share an entry of their first switch with another flow.
    moved: placements that were changed to relieve busier links. without: flows without a path. note: why there are no
    figures of before.
    """

    lab: str
    demand: TeDemand
    seconds: float
    tables: Mapping[str, Exact]
    in_force: Mapping[str, Exact]
    links: tuple[TeLink, ...]
    keys: int
    shared: int
    moved: int
    without: tuple[Flow, ...] = ()
    note: str = field(default="", compare=False)

    @property
    def entries(self) -> int:
        """The number of entries of all switches."""
        return sum(map(len, self.tables.values()))

    @cached_property
    def changes(self) -> tuple[TeChange, ...]:
        """How the installed entries change, in the order of switches, prefixes and source ports."""
        found = []
        for switch in dict.fromkeys([*self.tables, *self.in_force]):
            old, new = self.in_force.get(switch, {}), self.tables.get(switch, {})
            for sport, prefix in sorted({*old, *new}, key=lambda key: (int(key[1].network_address), key[0])):
                before, after = old.get((sport, prefix), ()), new.get((sport, prefix), ())
                if before != after:
                    found.append(TeChange(switch, sport, prefix, before, after))
        return tuple(found)

    def counts(self) -> dict[str, int]:
        """The number of added, changed, removed and unchanged entries."""
        words = [each.what for each in self.changes]
        found = {what: words.count(what) for what in ("added", "changed", "removed")}
        return {**found, "unchanged": self.entries - found["added"] - found["changed"]}

    def spreads(self) -> dict[str, tuple[TeSpread | None, TeSpread]]:
        """Direction -> the use of its links before and after."""
        found: dict[str, tuple[TeSpread | None, TeSpread]] = {}
        for direction in dict.fromkeys(link.direction for link in self.links):
            uses = [link.use(self.seconds) for link in self.links if link.direction == direction]
            old = [before for before, _ in uses if before is not None]
            found[direction] = TeSpread.of(old) if old else None, TeSpread.of([after for _, after in uses])
        return found

    def csv(self) -> str:
        """The table that `./inv hashing exact-match --table` reads."""
        lines = ["switch,sport,prefix,port,backup"]
        for switch, table in self.tables.items():
            for (sport, prefix), ports in table.items():
                lines.append(",".join([switch, str(sport), str(prefix), *ports, *[""] * (2 - len(ports))]))
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab,
            "demand": {
                "source": self.demand.source, "flows": len(self.demand.flows), "bytes": round(sum(self.demand.bytes)),
                "seconds": self.demand.seconds,
            },
            "keys": self.keys,
            "shared": self.shared,
            "moved": self.moved,
            "without_path": [flow.to_json() for flow in self.without],
            "use_seconds": self.seconds,
            "entries": [
                {"switch": switch, "sport": sport, "prefix": str(prefix), "port": ports[0], "backup": [*ports, None][1]}
                for switch, table in self.tables.items()
                for (sport, prefix), ports in table.items()
            ],
            "counts": self.counts(),
            "changes": [each.to_json() for each in self.changes],
            "directions": [
                {"direction": name, "before": old.to_json() if old else None, "after": new.to_json()}
                for name, (old, new) in self.spreads().items()
            ],
            "links": [
                {
                    "port": link.port, "to": link.to, "direction": link.direction, "rate_bps": link.rate_bps,
                    "before": {"bytes": link.before, "use": link.use(self.seconds)[0]},
                    "after": {"bytes": link.after, "use": link.use(self.seconds)[1]},
                }
                for link in self.links
            ],
            "note": self.note,
        }  # fmt: skip


def plan_for(lab: Lab, demand: TeDemand, now: Snapshot | None = None) -> TePlan:
    """The plan for a lab. now: a snapshot with PARTS; None: read it.

    InputError for an imported lab, and for flows of NICs that the lab does not have. CheckError when a flow would not
    arrive by its entries, as in a loop.
    """
    check_rendered(lab)
    return plan(lab.fabric, lab.snapshot(PARTS) if now is None else now, demand)


def check_rendered(lab: Lab) -> None:
    """InputError for an imported lab."""
    if not lab.blueprint.rendered:
        why = "was imported, and exact-match tables need the expected routes of a fabric file"
        raise InputError(Problem("", f"lab {lab.name}", why, "use a lab of a fabric file for traffic engineering"))


def plan(fabric: Fabric, now: Snapshot, demand: TeDemand) -> TePlan:
    """The plan for a fabric in the state of a snapshot. Raises as plan_for does."""
    own = {ip: port for ip, port in fabric.nic_at.items() if port.network == BACKEND}
    missing = sorted({ip for flow in demand.flows for ip in (flow.src_ip, flow.dst_ip)} - {*own})
    if missing:
        hint = "use a run of this lab, or a workload, on the network of the ranks"
        raise InputError(*(Problem("", ip, f"is not the address of a NIC of {fabric.name}", hint) for ip in missing))
    sizes = np.array(demand.bytes, dtype=np.float64)
    wires = wires_of(fabric)
    hosts = {port.peer_node: address for address, port in reversed([*own.items()])}
    edges = [node.name for node in fabric.edges if node.name in hosts]
    forwarding = forwarding_for(fabric, now.fibs, [hosts[edge] for edge in edges])
    rates = dict(zip(wires.ports, wires.rate.tolist(), strict=True))
    rate = np.array([rates.get(ref, 1.0) for ref in forwarding.ports])  # a port of no link leads nowhere
    demands = _demands(fabric, forwarding, edges, demand.flows, sizes)
    routes = cspf(forwarding, rate, demands)
    before, note = _before(fabric, now, demand.flows, sizes)
    lost = np.flatnonzero((demands.first != demands.home) & (routes.path[:, :1] < 0).all(axis=1)).tolist()
    tables = _tables(fabric, forwarding, edges, routes)
    after = _after(fabric, now, demand.flows, sizes, tables, {*lost})
    nics = {ip: rates[port.ref] for ip, port in own.items()}
    return TePlan(
        fabric.name,
        demand,
        demand.seconds or _busiest(demand, nics),
        tables,
        {name: row.steering.exact for name, row in now.hashing.items() if row.mode == EXACT_MATCH},
        tuple(_links(wires, now, demand.flows, before, after)),
        routes.keys,
        routes.shared,
        routes.moved,
        tuple(demand.flows[row] for row in lost),
        note,
    )


def _demands(
    fabric: Fabric, forwarding: Forwarding, edges: Sequence[str], flows: Sequence[Flow], sizes: F64
) -> Demands:
    ids = {name: number for number, name in enumerate(forwarding.switches)}
    number = {name: at for at, name in enumerate(edges)}
    homes = [fabric.nic_at[flow.dst_ip].peer_node for flow in flows]
    return Demands(
        np.array([ids[flow.first_hop.partition(":")[0]] for flow in flows], dtype=np.int32),
        np.array([ids[home] for home in homes], dtype=np.int32),
        np.array([number[home] for home in homes], dtype=np.int32),
        np.array([flow.sport for flow in flows], dtype=np.uint32),
        sizes,
    )


def _before(fabric: Fabric, now: Snapshot, flows: Sequence[Flow], sizes: F64) -> tuple[dict[str, float], str]:
    """Port -> bytes with the present hashing; and why this is not known, if it is not."""
    try:
        forwarding, hops = walk_of(fabric, now.fibs, now.hashing, flows)
    except CheckError as error:
        return {}, f"no figures of before: {error.problems[0].what} {error.problems[0].why}"
    return dict(zip(forwarding.ports, hops.load(sizes, len(forwarding.ports)).tolist(), strict=True)), ""


def _after(
    fabric: Fabric, now: Snapshot, flows: Sequence[Flow], sizes: F64, tables: Mapping[str, Exact], lost: Collection[int]
) -> dict[str, float]:
    """Port -> bytes with the tables, from a walk that knows nothing of the placement. CheckError where it ends early.

    lost: rows of flows without a path.
    """
    rows = {
        name: replace(
            row, mode=EXACT_MATCH, policy=POLICY_L4, steering=replace(row.steering, exact=tables.get(name, {}))
        )
        for name, row in now.hashing.items()
    }
    forwarding, hops = walk_of(fabric, now.fibs, rows, flows)
    number = {ref: at for at, ref in enumerate(forwarding.ports)}
    ends = np.array([number[fabric.nic_at[flow.dst_ip].peer_ref] for flow in flows], dtype=np.int32)
    arrives = (hops.ports == ends[:, None]).any(axis=1).tolist()
    problems = [
        Problem(flow.first_hop, f"{flow.src} to {flow.dst}, source port {flow.sport}", "does not arrive by its entries")
        for row, flow in enumerate(flows)
        if not arrives[row] and row not in lost
    ]
    if problems:
        raise CheckError(*problems)
    return dict(zip(forwarding.ports, hops.load(sizes, len(forwarding.ports)).tolist(), strict=True))


def _busiest(demand: TeDemand, rates: Mapping[str, float]) -> float:
    """Seconds that the busiest NIC needs for its bytes, sending or receiving."""
    needs: dict[tuple[str, str], float] = {}
    for flow, size in zip(demand.flows, demand.bytes, strict=True):
        for way, ip in (("out", flow.src_ip), ("in", flow.dst_ip)):
            needs[way, ip] = needs.get((way, ip), 0.0) + 8 * size / rates[ip]
    return max(needs.values(), default=0.0)


def _tables(fabric: Fabric, forwarding: Forwarding, edges: Sequence[str], routes: Routes) -> dict[str, Exact]:
    names = [ref.partition(":")[2] for ref in forwarding.ports]
    prefixes = {owner: prefix for prefix, owner in fabric.edge_prefixes.items()}
    found: dict[str, dict[tuple[int, Network], tuple[str, ...]]] = {}
    rows = routes.entries
    for switch, to, sport, port, backup in zip(
        *(column.tolist() for column in (rows.switch, rows.destination, rows.sport, rows.port, rows.backup)),
        strict=True,
    ):
        ports = (names[port],) if backup == NOWHERE else (names[port], names[backup])
        found.setdefault(forwarding.switches[switch], {})[sport, prefixes[edges[to]]] = ports
    return dict(found)


def _links(
    wires: Wires, now: Snapshot, flows: Sequence[Flow], before: Mapping[str, float], after: Mapping[str, float]
) -> Iterator[TeLink]:
    """Live links between switches with NICs of the traffic matrix below them."""
    fabric = wires.fabric
    nics = {fabric.nic_at[ip].ref for flow in flows for ip in (flow.src_ip, flow.dst_ip)}
    above, dead = ports_above(fabric, nics), now.down
    for node in fabric.switches:
        for port in node.ports:
            at, to = wires.id_of[port.ref], port.peer_ref
            if (
                port.ref in above
                and fabric.by_name[port.peer_node].role is Role.SWITCH
                and not {port.ref, to} & {*dead}
            ):
                name = wires.direction_name(int(wires.direction[at]))
                old = before.get(port.ref, 0.0) if before or not flows else None
                yield TeLink(port.ref, to, name, int(wires.rate[at]), old, after.get(port.ref, 0.0))


LEAST_GAIN: Final = 0.05  # a smaller one is not worth a change of paths
_SHARD_SLICE_S: Final = 0.05  # all shards are waited for, also when one has a change
_SETTLE_S: Final = 0.05  # routes of several switches change together
_SLICE_S: Final = 0.5  # after so long at the latest, a lab that is gone is noticed
_MESSAGES: Final = 65536  # bytes of messages that are read at once


@dataclass(frozen=True, slots=True)
class TeRound:
    """One computation. reason: `interval`, or what changed. at: seconds since the epoch.

    plan: None without traffic, or where an error prevented it. changed: switches with changed entries. seconds: from
    the decision, when the plan was made, until the last switch had its entries; 0 if none changed.
    """

    at: float
    reason: str
    plan: TePlan | None = None
    changed: tuple[str, ...] = ()
    seconds: float = 0.0
    error: HeddleError | None = None

    @property
    def spread(self) -> tuple[TeSpread | None, TeSpread] | None:
        """Utilization of the links of the direction with the busiest link, before and after."""
        found = self.plan.spreads().values() if self.plan is not None else ()
        return max(found, key=lambda each: (each[0] or each[1]).most, default=None)

    def to_json(self) -> dict[str, Any]:
        before, after = self.spread or (None, None)
        return {
            "at": self.at, "reason": self.reason, "entries": self.plan.entries if self.plan else None,
            "switches_changed": list(self.changed), "seconds": self.seconds,
            "before": before.to_json() if before else None, "after": after.to_json() if after else None,
            "error": str(self.error) if self.error else None,
        }  # fmt: skip


def worth(plan: TePlan) -> bool:
    """Whether a plan relieves the busiest link by more than LEAST_GAIN, or evens out the use of all links by as much.

    The second is the sum of the squares of their uses: a link that no plan can relieve must not hide all others. True
    if the present use is not known.
    """
    uses = [link.use(plan.seconds) for link in plan.links]
    before, after = [old for old, _ in uses if old is not None], [new for _, new in uses]
    if len(before) < len(after) or not after:
        return bool(after)
    gains = (max(after), max(before)), (sum(use**2 for use in after), sum(use**2 for use in before))
    return any(new < old * (1 - LEAST_GAIN) for new, old in gains)


def rounds(lab: Lab, interval_s: float, by: str) -> Iterator[TeRound]:
    """Recompute until the lab is gone. by: the command, for the record.

    The traffic matrix is what the switches counted in the last interval. After a change of a link or a route it is the
    same again, or what was counted so far. A plan for a new interval is installed if it is worth it.
    """
    owner = owners.owner_of(lab.name)

    def here() -> bool:
        """Whether it is the same lab, and `down` has not begun."""
        record = state.read_record(lab.name)
        return owners.owner_of(lab.name) == owner and record is not None and record.phase == "running"

    with ExitStack() as stack:
        _listen(lab)
        stack.callback(_close_here, lab.name)
        before, began = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic()
        demand: TeDemand | None = None
        while True:
            event = _wait(lab, began + interval_s, here)
            if event is None:
                return
            reason = "a link or a route changed" if event else "interval"
            try:
                found = demand
                if not event or demand is None:
                    after, now = lab.snapshot(LabPart.COUNTERS).counters, time.monotonic()
                    found = counted(lab.fabric, before, after, now - began)
                if not event:
                    before, began, demand = after, now, found or demand
                yield _round(lab, reason, found, by, always=event)
            except HeddleError as error:
                if not here():
                    return
                yield TeRound(time.time(), reason, error=error)
                if not event:
                    began = time.monotonic()


def _round(lab: Lab, reason: str, demand: TeDemand | None, by: str, *, always: bool) -> TeRound:
    if demand is None:
        return TeRound(time.time(), reason)
    now = lab.snapshot(PARTS)
    plan = plan_for(lab, demand, now)
    decided, at = time.monotonic(), time.time()
    changed = put_in_force(lab, plan.tables, by, now.hashing) if always or worth(plan) else ()
    return TeRound(at, reason, plan, changed, time.monotonic() - decided if changed else 0.0)


def _wait(lab: Lab, until: float, here: Callable[[], bool]) -> bool | None:
    """True when a link or a route changed, False when the time is over, None when the lab is gone."""
    slice_s = _SLICE_S if lab.runtime.here else _SHARD_SLICE_S
    while here():
        if (left := until - time.monotonic()) <= 0:
            return False
        try:
            if _changed(lab, min(slice_s, left)):
                return True
        except HeddleError:
            if here():
                raise
    return None


_SOCKETS: Final[dict[str, list[socket]]] = {}  # by lab: messages of its switches


@spread(nothing)
def _listen(lab: Lab) -> None:
    """Begin to receive the changes of links and routes in the kernels of switches."""
    _close_here(lab.name)
    handles, found = lab.handles(), _SOCKETS.setdefault(lab.name, [])
    for node in lab.fabric.switches:
        if node.name in handles:
            found.append(changes_of_links_and_routes(handles[node.name].netns))


@spread(any)
def _changed(lab: Lab, seconds: float) -> bool:
    """Wait so long for a change of a link or a route; whether there was one."""
    sockets = _SOCKETS.get(lab.name, [])
    if not select.select(sockets, [], [], seconds)[0]:
        return False
    time.sleep(_SETTLE_S)
    for each in sockets:
        _drain(each)
    return True


def _close_here(lab: str) -> None:
    for each in _SOCKETS.pop(lab, []):
        each.close()


def _drain(each: socket) -> None:
    while True:
        try:
            each.recv(_MESSAGES)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: messages were lost, and more may wait
            continue
