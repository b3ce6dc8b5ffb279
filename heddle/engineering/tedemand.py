"""The demand that a plan of traffic engineering is for: from a stored run, from counters, or from a workload.

In:  a running lab. Out: TeDemand: data flows between NICs with their bytes on the wire.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from heddle.base.problems import InputError, Problem
from heddle.engineering.te import TeDemand
from heddle.lab.snapshot import LabPart
from heddle.offline.columns import flows_of
from heddle.offline.demand import Traffic, traffic_of
from heddle.proof.collect import counted_flows
from heddle.runs.store import load
from heddle.traffic.flow import Flow, FlowKey
from heddle.traffic.workload import Workload
from heddle.wire.layout import ROCE_PORT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab
    from heddle.switch.counters import SwitchCounters


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
        raise InputError(Problem("", f"demand: {demand.source}", "no RoCEv2 flow carries bytes", hint))
    return demand
