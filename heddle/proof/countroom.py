"""Whether the switches' counters have room for all flows of a plan: without a row, a packet proves no path.

In:  a running lab and a plan.
Out: InputError before the first packet, with the number of rows that are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from heddle.base.problems import InputError, Problem
from heddle.fabric.hashmodes import SPREADING
from heddle.fabric.model import Fabric
from heddle.lab.snapshot import LabPart
from heddle.proof.collect import RunningLab
from heddle.switch.counters import room
from heddle.traffic.flow import Flow
from heddle.traffic.plan import Plan


def check_room(lab: RunningLab, plan: Plan) -> None:
    """InputError when the plan needs more rows than the lab's map has; MachineError when the lab is not set up."""
    holds = room(lab.fabric)
    if refusal(lab.fabric, plan, SPREADING, holds) is None:
        return  # in any mode: the switches need not be asked for theirs
    modes = {row.mode for row in lab.snapshot(LabPart.HASHING).hashing.values()}
    if problem := refusal(lab.fabric, plan, modes, holds):
        raise InputError(problem)


def refusal(fabric: Fabric, plan: Plan, modes: Collection[str], holds: int) -> Problem | None:
    """Why a map with so many rows is too small for a plan; None when it is not. modes: of hashing, of all switches."""
    rows = rows_of(fabric, [qp.flow for qp in plan.qps], spread=not SPREADING.isdisjoint(modes))
    if rows <= holds:
        return None
    what = f"--qps {plan.options.qps} on {len(plan.endpoints)} ranks"
    why = f"needs {rows:,} rows of the switches' counters, and {fabric.name} has {holds:,}"
    return Problem("", what, f"{why}: its paths could not be proven", "use fewer --qps or --ranks")


def rows_of(fabric: Fabric, flows: Sequence[Flow], *, spread: bool) -> int:
    """Rows of these flows and of their answers, which pass as many ports the other way.

    spread: packets of one flow take every next hop. Of a flow that keeps to one path this is exact while routes are as
    the fabric file has them.
    """
    edges = {str(port.address.ip): port.peer_node for host in fabric.hosts for port in host.ports if port.address}
    pairs = Counter((flow.first_hop.partition(":")[0], edges.get(flow.dst_ip, "")) for flow in flows)
    return 2 * sum(count * _ports(fabric, *pair, spread=spread) for pair, count in pairs.items())


def _ports(fabric: Fabric, start: str, end: str, *, spread: bool) -> int:
    """Ports that a flow may leave switches by, from its first switch to the one that its destination is at."""
    hops, prefix = fabric.expected_next_hops, fabric.by_name[end].prefix if end in fabric.by_name else None
    found, here = 1, {start} - {end}
    while prefix is not None and here:
        refs = [(name, port) for name in sorted(here) for port in sorted(hops[name].get(prefix, ()))]
        taken = refs if spread else refs[:1]
        found += len(taken)
        here = {fabric.by_name[name].port(port).peer_node for name, port in taken} - {end}
    return found
