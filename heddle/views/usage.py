"""The load of each link in a run, in both directions.

In:  packets and bytes of every sender, the counters of the switches' ports (PathsResult.links), the run's seconds.
Out: LinkLoads, in the order of the fabric's links, for the picture and `./inv graph --format json`.
Traffic of hosts is what their NICs report; all other traffic was counted at the switches' egress ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heddle.fabric.model import Fabric
from heddle.fabric.wiring import ports_above
from heddle.proof.linkuse import nics_of
from heddle.views.linkloads import LinkLoad

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.linkuse import LinkUse
    from heddle.runs.runrecord import RunHeader
    from heddle.traffic.flow import Sent

Counted = tuple[int, int]  # packets, bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """The loads of one run, its ID, and a line that describes it."""

    run_id: str
    loads: tuple[LinkLoad, ...]
    caption: str


def usage_of(lab: Lab, run: str | None = None) -> Usage | None:
    """The loads of a run. run: the value of --run; None: the last run, and the result is None when it has no paths."""
    from heddle.base.problems import InputError
    from heddle.runs.store import load

    try:
        found = load(lab, run)
    except InputError:
        if run is not None:
            raise
        return None
    links, evidence = found.needed(found.proof).links, found.evidence
    loads = link_loads(lab.fabric, evidence.sent, links, evidence.seconds)
    return Usage(found.id, tuple(loads), describe_run(found.record.header))


def link_loads(
    fabric: Fabric, flows: Sequence[Sent], links: Sequence[LinkUse], run_s: float | None = None
) -> list[LinkLoad]:
    """Packets and bytes of the run's data that left each end of each link. run_s: seconds of the run."""
    sent: dict[str, Counted] = {link.port: (link.packets, link.bytes) for link in links}
    for each in flows:
        switch, _, port = each.flow.first_hop.partition(":")
        nic = fabric.by_name[switch].port(port).peer_ref
        packets, size = sent.get(nic, (0, 0))
        sent[nic] = (packets + each.packets, size + each.bytes)
    rows = [(":".join(link.a), ":".join(link.b), link.rate_bps) for link in fabric.links]
    above = ports_above(fabric, nics_of(fabric, [each.flow for each in flows]))
    totals: dict[int, int] = {}
    for a, b, _ in rows:
        level = _level(fabric, a)
        totals[level] = totals.get(level, 0) + sum(sent.get(ref, (0, 0))[1] for ref in (a, b))
    loads = []
    for a, b, rate in rows:
        up, down = sent.get(a, (0, 0)), sent.get(b, (0, 0))
        whole = totals[_level(fabric, a)]
        share = (up[1] + down[1]) / whole if whole else 0.0
        loads.append(LinkLoad(a, b, *up, *down, share, rate, run_s, not flows or a in above))
    return loads


def _level(fabric: Fabric, ref: str) -> int:
    """The level of a link's lower end: it groups links of hosts, and links between each pair of levels."""
    return fabric.by_name[ref.partition(":")[0]].level


def describe_run(run: RunHeader) -> str:
    """`ring all-reduce of 64 KiB on 4 ranks, 4 QPs per connection, ECMP flow, 5 iterations, 1 warm-up`."""
    from heddle.base.units import format_size

    options = run.options
    sizes = [format_size(size) for size in options.sizes]
    size = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    many = len(run.communicators)
    parts = f" in {many} communicators" if many > 1 else ""
    qps, iters = options.qps, options.iters
    return (
        f"{options.algorithm} {options.collective} of {size} on {len(run.ranks)} ranks{parts}, "
        f"{qps} QP{'' if qps == 1 else 's'} per connection, ECMP {run.ecmp}, "
        f"{iters} iteration{'' if iters == 1 else 's'}, {options.warmup} warm-up"
    )
