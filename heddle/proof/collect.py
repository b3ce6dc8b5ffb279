"""Collect evidence: one snapshot before a run, and one after it when its last packet is counted.

In:  a running lab; the plan; the flows with the counts of their senders.
Out: InputError before the first packet where the switches' counters have no room for all flows of the plan (a packet
without a row proves no path); the snapshot before; Evidence.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from heddle.base.ethernet import HEADER
from heddle.base.problems import InputError, Problem
from heddle.fabric.model import Fabric
from heddle.lab.rehash import changes_of_run, forget_changes
from heddle.lab.snapshot import LabPart, Snapshot
from heddle.lab.spread import nothing, spread
from heddle.predict.forwarding import FlowArrays
from heddle.predict.predict import rule_of
from heddle.proof import oracle
from heddle.proof.evidence import PARTS, Evidence
from heddle.switch.counters import FlowCount, SwitchCounters, clear, room
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.queues.classes import deepest_queue
from heddle.traffic.flow import Flow, FlowKey, Sent
from heddle.traffic.plan import Plan

NO_PART: Final = LabPart(0)
SETTLE_S: Final = 1.0  # time for counters to stop after a run, in addition to the draining of ports
_POLL_S: Final = 0.02
_STILL_POLLS: Final = 6  # at least; and as many as the slowest port needs to release packets three times
_EMPTY_S: Final = 0.002
_EMPTY_POLLS: Final = 3
_QUIET_POLLS: Final = 3  # at least; and as many as the slowest port needs to release packets once


class RunningLab(oracle.OracleLab, Protocol):
    """The part of a lab that this module needs."""

    def snapshot(self, parts: LabPart, nodes: Collection[str] | None = None, *, keep_errors: bool = False) -> Snapshot:
        """Read these parts of the lab once."""


def collect_before(lab: RunningLab, more: LabPart = NO_PART) -> Snapshot:
    """Clear the counters of flows and read all switches, once no packets of an earlier run are in flight.

    The rows of earlier runs are stored in their evidence; in the map they would use up its space. The caller holds the
    lock of runs. more: parts that the caller needs in addition, so that the lab is read once. MachineError when no lab
    is running.
    """
    _wait_until_quiet(lab)
    _clear(lab)
    forget_changes(lab.fabric.name)
    return lab.snapshot(PARTS | more)


@spread(nothing)
def _clear(lab: RunningLab) -> None:
    clear(lab.fabric)


def _least(rooms: Sequence[int]) -> int:
    return min(rooms)


@spread(_least)
def _room(lab: RunningLab) -> int:
    return room(lab.fabric)


def wait_until_delivered(lab: RunningLab) -> None:
    """Wait until the queues of the lab are empty, or for a limited time: every packet reached a NIC, or is lost.

    For microseconds, a packet between two queues is in neither of them. So several readings must find them empty.
    """
    deadline = time.monotonic() + _patience(lab.fabric)
    empty = 0
    while empty < _EMPTY_POLLS and time.monotonic() < deadline:
        waits = bool(lab.snapshot(LabPart.QUEUES).queues.cells["depth"].any())
        empty = 0 if waits else empty + 1
        time.sleep(_EMPTY_S)


def collect_after(
    lab: RunningLab,
    before: Snapshot,
    sent: Sequence[Sent],
    received: Sequence[int] = (),
    seconds: float | None = None,
    more: LabPart = NO_PART,
) -> Evidence:
    """Read the lab again when all packets have arrived, or counters have stopped, or time is up. more: as above.

    received: packets of each flow that the receiving NIC took. seconds: duration of the run. Both if known.
    """
    _wait_until_counted(lab, before, sent)
    asked = oracle.ask(lab, _hashing(lab, before), [each.flow for each in sent])
    # After the oracle, so that changes during its lookups are seen.
    now = lab.snapshot(PARTS | more, keep_errors=True)
    found = Evidence.of(before, now, sent, asked.paths, received, seconds, asked.choices)
    return _with_rules(lab, found)


def collect_program(lab: RunningLab, before: Snapshot, seconds: float, more: LabPart = NO_PART) -> Evidence:
    """The same after a program: its flows are those that the switches counted since `before`, when no more move.

    Its hosts do not report what they sent: that is what the first switch counted.
    """
    _wait_until_quiet(lab)
    flows = counted_flows(lab.fabric, lab.snapshot(LabPart.COUNTERS).counters, before.counters)
    asked = oracle.ask(lab, _hashing(lab, before), flows)
    now = lab.snapshot(PARTS | more, keep_errors=True)
    counts: Counter[tuple[FlowKey, str]] = Counter()
    sizes: Counter[tuple[FlowKey, str]] = Counter()
    for name, table in now.counters.items():
        for row in table.since(before.counters[name]).flows:
            counts[row.key, name] += row.packets
            sizes[row.key, name] += row.bytes
    at = [(flow.key, flow.first_hop.partition(":")[0]) for flow in flows]
    sent = [Sent(flow, counts[where], sizes[where]) for flow, where in zip(flows, at, strict=True)]
    return _with_rules(lab, Evidence.of(before, now, sent, asked.paths, (), seconds, asked.choices))


def _hashing(lab: RunningLab, before: Snapshot) -> Mapping[str, SwitchHashing]:
    """The hashing that kernels are asked about: the present one, where traffic engineering has changed it."""
    return lab.snapshot(LabPart.HASHING).hashing if changes_of_run(lab.fabric.name) else before.hashing


def _with_rules(lab: RunningLab, found: Evidence) -> Evidence:
    """Add the changes of rules, if the run had some."""
    if LabPart.HASHING in found.after.failed or not found.switched:
        return found
    then = found.before.epochs
    of_run = (each for each in changes_of_run(lab.fabric.name) if any(e > then[n] for n, (e, _) in each.rules.items()))
    return replace(found, rules=tuple(of_run))


def counted_flows(
    fabric: Fabric, counters: Mapping[str, SwitchCounters], before: Mapping[str, SwitchCounters]
) -> list[Flow]:
    """The flows between NICs that switches counted since `before`, RoCEv2 or not, in the order of their ends."""
    keys = {row.key for name, table in counters.items() for row in table.since(before[name]).flows}
    places = {address: at for at, address in enumerate(fabric.nic_at)}
    known = sorted(
        (key for key in keys if key[0] in places and key[1] in places),
        key=lambda key: (places[key[0]], places[key[1]], key[2], key[3]),
    )
    ends = ((key, fabric.nic_at[key[0]], fabric.nic_at[key[1]]) for key in known)
    return [Flow.counted(key, src.node, dst.node, src.peer_ref) for key, src, dst in ends]


def _wait_until_quiet(lab: RunningLab) -> None:
    """Wait until counters stop: a killed run leaves packets in slow ports, which must not count for the next run."""
    deadline = time.monotonic() + _patience(lab.fabric)
    last = _flows(lab.snapshot(LabPart.COUNTERS).counters)
    still, enough = 0, max(_QUIET_POLLS, _polls(lab.fabric))
    while still < enough and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = _flows(lab.snapshot(LabPart.COUNTERS).counters)
        still = still + 1 if now == last else 0
        last = now


def _flows(counters: Mapping[str, SwitchCounters]) -> dict[str, tuple[FlowCount, ...]]:
    return {name: table.flows for name, table in counters.items()}


def _patience(fabric: Fabric) -> float:
    """Seconds until all packets in flight have passed: they may fill the queues of a slow port."""
    deepest = max(deepest_queue(fabric, number) for number in fabric.policy.queues.numbers)
    return SETTLE_S + 8 * deepest / fabric.slowest_bps


def _polls(fabric: Fabric) -> int:
    """Polls that outlast the gap between two bursts of the slowest port: `queues.burst` full frames come together."""
    policy = fabric.policy
    gap_s = 8 * policy.queues.burst * (policy.mtu + HEADER) / fabric.slowest_bps
    return math.ceil(gap_s / _POLL_S) + 1


def _wait_until_counted(lab: RunningLab, before: Snapshot, sent: Sequence[Sent]) -> None:
    deadline = time.monotonic() + _patience(lab.fabric)
    last: dict[str, tuple[FlowCount, ...]] = {}
    still, enough = 0, max(_STILL_POLLS, 3 * _polls(lab.fabric))
    while True:
        counters = lab.snapshot(LabPart.COUNTERS).counters
        now = _flows({name: table.since(before.counters[name]) for name, table in counters.items()})
        still = still + 1 if now == last else 0
        if _arrived(lab.fabric, now, sent) or still >= enough or time.monotonic() > deadline:
            return
        last = now
        time.sleep(_POLL_S)


def _arrived(fabric: Fabric, counted: Mapping[str, Sequence[FlowCount]], sent: Sequence[Sent]) -> bool:
    """True when the ports to NICs have counted every packet that was sent."""
    to_nics = {port.peer_ref for port in fabric.host_ports}
    found: dict[FlowKey, int] = {}
    for switch, rows in counted.items():
        for row in rows:
            if f"{switch}:{row.port}" in to_nics:
                found[row.key] = row.packets
    return all(found.get(each.flow.key, 0) == each.packets for each in sent)


def check_room(lab: RunningLab, *plans: Plan) -> None:
    """InputError when the plans need more rows than the lab's map has; MachineError when the lab is not set up.

    plans: of all jobs of a run.
    """
    holds = _room(lab)
    if refusal(lab.fabric, *plans, holds=holds, spread=True) is None:
        return  # enough for any hashing: no need to read that of the switches
    flow = FlowArrays.of(plans[0].flows()[:1])
    spread = any(rule_of(row).spreads(flow) for row in lab.snapshot(LabPart.HASHING).hashing.values())
    if problem := refusal(lab.fabric, *plans, holds=holds, spread=spread):
        raise InputError(problem)


def refusal(fabric: Fabric, *plans: Plan, holds: int, spread: bool) -> Problem | None:
    """The reason that a map with `holds` rows is too small for plans; None if it is not. spread: see rows_of."""
    rows = rows_of(fabric, [flow for plan in plans for flow in plan.flows()], spread=spread)
    if rows <= holds:
        return None
    plan = max(plans, key=lambda each: len(each.qps))
    entropy = f" --entropy {len(plan.qps[0].sports)}" if len(plan.qps[0].sports) > 1 else ""
    less = ", fewer --entropy," if entropy else ""
    what = f"--qps {plan.options.qps}{entropy} on {len(plan.endpoints)} ranks"
    why = f"needs {rows:,} rows of the switches' counters, but {fabric.name} has {holds:,}"
    return Problem("", what, f"{why}: the paths could not be proven", f"use fewer --qps{less} or --ranks")


def rows_of(fabric: Fabric, flows: Sequence[Flow], *, spread: bool) -> int:
    """Rows of these flows and of their answers, which pass the same number of ports in the other direction.

    spread: packets of one flow take every next hop. For flows with one path the number is exact, as long as routes are
    as in the fabric file.
    """
    edges = {address: port.peer_node for address, port in fabric.nic_at.items()}
    pairs = Counter((flow.first_hop.partition(":")[0], edges.get(flow.dst_ip, "")) for flow in flows)
    return 2 * sum(count * _ports(fabric, *pair, spread=spread) for pair, count in pairs.items())


def _ports(fabric: Fabric, start: str, end: str, *, spread: bool) -> int:
    """The number of egress ports that a flow may use, from its first switch to the switch of its destination."""
    hops, prefix = fabric.expected_next_hops, fabric.by_name[end].prefix if end in fabric.by_name else None
    found, here = 1, {start} - {end}
    while prefix is not None and here:
        refs = [(name, port) for name in sorted(here) for port in sorted(hops[name].get(prefix, ()))]
        taken = refs if spread else refs[:1]
        found += len(taken)
        here = {fabric.by_name[name].port(port).peer_node for name, port in taken} - {end}
    return found
