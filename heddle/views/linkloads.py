"""The load of each link in a run, as values for pictures: LinkLoad; and how even each direction was: Spread.

In:  packets and bytes of every sender, the counters of the switches' ports (PathsResult.links), the run's seconds.
Out: LinkLoads in the order of the fabric's links, rows for JSON, lines for a legend.
Traffic of hosts is what their NICs report; all other traffic was counted at the switches' egress ports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from heddle.base.problems import InputError
from heddle.base.tables import many
from heddle.base.units import format_size
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import ports_above
from heddle.proof.linkuse import nics_of

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.linkuse import LinkUse
    from heddle.runs.runrecord import RunRecord
    from heddle.traffic.flow import Sent

Counted = tuple[int, int]  # packets, bytes


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Packets and bytes that a run sent over one link, by sending end.

    a, b: the ports, `a` on the lower level. share: the link's bytes over all bytes between the same levels, 0 to 1.
    rate_bps: of each direction. run_s: seconds of the run; None when not known. ranked: ranks are below the link.
    usable: before the run, the link was up, and no switch at its ends was drained.
    """

    a: str
    b: str
    a_packets: int
    a_bytes: int
    b_packets: int
    b_bytes: int
    share: float
    rate_bps: int
    run_s: float | None = None
    ranked: bool = True
    usable: bool = True

    @property
    def seconds(self) -> tuple[float, float]:
        """The time that the bytes of each end need at the link's rate: of a, of b."""
        return self.a_bytes * 8 / self.rate_bps, self.b_bytes * 8 / self.rate_bps

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """The mean load of each direction over the run, 0 to 1: of a, of b. None when the run's time is not known."""
        a, b = self.seconds
        return (a / self.run_s, b / self.run_s) if self.run_s else (None, None)

    def to_json(self) -> dict[str, Any]:
        """One row of `links`; `packets` and `bytes` are of both directions, `utilisation` is the larger one of both."""
        a, b = (None if share is None else round(share, 6) for share in self.shares)
        return {
            "a": self.a, "b": self.b, "packets": self.a_packets + self.b_packets, "bytes": self.a_bytes + self.b_bytes,
            "share": round(self.share, 6), "a_packets": self.a_packets, "a_bytes": self.a_bytes,
            "b_packets": self.b_packets, "b_bytes": self.b_bytes, "rate_bps": self.rate_bps, "ranked": self.ranked,
            "a_seconds": round(self.seconds[0], 9), "b_seconds": round(self.seconds[1], 9),
            "utilisation": None if a is None or b is None else max(a, b), "a_utilisation": a, "b_utilisation": b,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spread:
    """How even the load of one direction between two levels was, over the ports of links with ranks below.

    most, mean: bytes of the port with most, and over all ports. busiest, used: the port with the highest use, in words.
    left_out: ports of links without ranks; unusable: ports of the others that were down or drained and carried nothing.
    """

    what: str
    ports: int
    idle: int
    most: int
    most_at: str
    mean: float
    busiest: str
    used: str
    left_out: int
    unusable: int = 0

    def text(self) -> str:
        """`RTSW to CTSW: busiest rtsw1:eth1 83 %; max 451 kB (rtsw1:eth1), mean 300 kB, max/mean 1.50, 8 ports`."""
        if not self.most:
            return f"{self.what}: nothing"
        ports = f"{self.ports} port{'' if self.ports == 1 else 's'}"
        idle = f"{self.idle} of {ports} idle" if self.idle else ports
        without = f", {self.left_out} without ranks" if self.left_out else ""
        without += f", {self.unusable} down or drained" if self.unusable else ""
        numbers = f"max {amount(self.most)} ({self.most_at}), mean {amount(self.mean)}"
        busiest = f"busiest {self.busiest} {self.used}"
        return f"{self.what}: {busiest}; {numbers}, max/mean {self.most / self.mean:.2f}, {idle}{without}"


def use_text(seconds: float, run_s: float | None) -> str:
    """The load of a port: `83%` of line rate; or `0.32 s` at line rate, when the run's time is not known."""
    return f"{seconds / run_s:.0%}" if run_s else f"{seconds:.3g} s"


def amount(count: float) -> str:
    """Bytes for a picture: `0`, `451 kB`, `1.2 MB` (powers of ten)."""
    for name, unit in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} B" if count else "0"


def spreads(fabric: Fabric, loads: Sequence[LinkLoad]) -> list[Spread]:
    """Every direction between two levels: first from the hosts up, then down."""
    sent: dict[str, list[tuple[int, float, str, LinkLoad]]] = {}
    for load in loads:
        a, b = (ref.partition(":")[0] for ref in (load.a, load.b))
        sent.setdefault(fabric.direction(a, b), []).append((load.a_bytes, load.seconds[0], load.a, load))
        sent.setdefault(fabric.direction(b, a), []).append((load.b_bytes, load.seconds[1], load.b, load))
    up = list(pairwise(level.title for level in fabric.levels))
    down = [(high, low) for low, high in reversed(up)]
    found = []
    for what in dict.fromkeys((*(f"{one} to {other}" for one, other in (*up, *down)), *sent)):
        every = sent.get(what, [])
        ranked = [each for each in every if each[3].ranked]
        ports = [each for each in ranked if each[3].usable or each[0]]
        if ports:
            most, _, at, _ = max(ports, key=lambda port: port[0])
            _, seconds, busiest, load = max(ports, key=lambda port: port[1])
            idle = sum(1 for count, *_ in ports if not count)
            mean = sum(count for count, *_ in ports) / len(ports)
            used = use_text(seconds, load.run_s)
            out = len(every) - len(ranked), len(ranked) - len(ports)
            found.append(Spread(what, len(ports), idle, most, at, mean, busiest, used, *out))
    return found


@dataclass(frozen=True, slots=True)
class Usage:
    """The loads of one run, its ID, and a line that describes it."""

    run_id: str
    loads: tuple[LinkLoad, ...]
    caption: str


def usage_of(lab: Lab, run: str | None = None) -> Usage | None:
    """The loads of a run. run: the value of --run; None: the last run, and the result is None when it has no paths."""
    from heddle.runs.store import load

    try:
        found = load(lab, run)
    except InputError:
        if run is not None:
            raise
        return None
    links, evidence = found.needed(found.proof).links, found.evidence
    loads = link_loads(lab.fabric, evidence.sent, links, evidence.seconds)
    return Usage(found.id, tuple(loads), describe_run(found.record))


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
    out = {link.port for link in links if link.state}
    totals: dict[int, int] = {}
    for a, b, _ in rows:
        level = _level(fabric, a)
        totals[level] = totals.get(level, 0) + sum(sent.get(ref, (0, 0))[1] for ref in (a, b))
    loads = []
    for a, b, rate in rows:
        up, down = sent.get(a, (0, 0)), sent.get(b, (0, 0))
        whole = totals[_level(fabric, a)]
        share = (up[1] + down[1]) / whole if whole else 0.0
        loads.append(LinkLoad(a, b, *up, *down, share, rate, run_s, not flows or a in above, not {a, b} & out))
    return loads


def _level(fabric: Fabric, ref: str) -> int:
    """The level of a link's lower end: it groups links of hosts, and links between each pair of levels."""
    return fabric.by_name[ref.partition(":")[0]].level


def describe_run(run: RunRecord) -> str:
    """`ring all-reduce of 64 KiB on 4 ranks, 4 QPs per connection, ECMP flow, 5 iterations, 1 warm-up`."""
    options = run.options
    if run.launch:
        ends = "foreign endpoint" if run.recorded else "rank"
        return f"{run.work} on {many(len(run.ranks), ends)}, ECMP {run.ecmp}"
    sizes = [format_size(size) for size in options.sizes]
    size = sizes[0] if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    splits = len(run.communicators)
    parts = f" in {splits} communicators" if splits > 1 else ""
    qps, iters = options.qps, options.iters
    job = f"job {run.job} of {run.workload}: " if run.job else f"{run.title}: " if run.title else ""
    return (
        f"{job}{options.algorithm} {options.collective} of {size} on {len(run.ranks)} ranks{parts}, "
        f"{qps} QP{'' if qps == 1 else 's'} per connection, ECMP {run.ecmp}, "
        f"{iters} iteration{'' if iters == 1 else 's'}, {options.warmup} warm-up"
    )
