"""Check that the switches' counters have room for all flows of a plan: a packet without a row proves no path.

In:  a running lab and a plan.
Out: InputError before the first packet, with the numbers of needed and available rows.
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
        return  # enough for any mode: no need to read the modes of the switches
    modes = {row.mode for row in lab.snapshot(LabPart.HASHING).hashing.values()}
    if problem := refusal(lab.fabric, plan, modes, holds):
        raise InputError(problem)


def refusal(fabric: Fabric, plan: Plan, modes: Collection[str], holds: int) -> Problem | None:
    """The reason that a map with `holds` rows is too small for a plan; None if it is not. modes: of all switches."""
    rows = rows_of(fabric, plan.flows(), spread=not SPREADING.isdisjoint(modes))
    if rows <= holds:
        return None
    entropy = f" --entropy {plan.options.entropy}" if plan.options.entropy > 1 else ""
    less = ", fewer --entropy," if entropy else ""
    what = f"--qps {plan.options.qps}{entropy} on {len(plan.endpoints)} ranks"
    why = f"needs {rows:,} rows of the switches' counters, but {fabric.name} has {holds:,}"
    return Problem("", what, f"{why}: the paths could not be proven", f"use fewer --qps{less} or --ranks")


def rows_of(fabric: Fabric, flows: Sequence[Flow], *, spread: bool) -> int:
    """Rows of these flows and of their answers, which pass the same number of ports in the other direction.

    spread: packets of one flow take every next hop. For flows with one path the number is exact, as long as routes are
    as in the fabric file.
    """
    edges = {str(port.address.ip): port.peer_node for host in fabric.hosts for port in host.ports if port.address}
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
