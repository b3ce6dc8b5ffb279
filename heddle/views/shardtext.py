"""The cut of a fabric into shards, and what it costs: as a table, and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from heddle.base.tables import many, some_of, table
from heddle.fabric.cutting import MARGIN
from heddle.views.forecasttext import wrapped

if TYPE_CHECKING:
    from heddle.fabric.cutting import Cut
    from heddle.fabric.model import Fabric
    from heddle.offline.sharding import ShardingForecast

_NODES = 4  # of a shard that are listed


def cut_json(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> dict[str, Any]:
    """`shards`, `cut_links`, `tunnels`, `imbalance`, and `up`: the seconds of its phases."""
    ends = Counter(name for each in found.links for name in each.shards)
    shards = [
        {
            "name": each.name,
            "switches": each.switches,
            "hosts": len(each.nodes) - each.switches,
            "cut_links": ends[each.name],
            "memory_bytes": each.memory_bytes,
            "line_rate_cpus": round(each.cpus, 2),
            "nodes": list(each.nodes),
        }
        for each in found.shards
    ]
    links = [
        {"a": ":".join(each.link.a), "b": ":".join(each.link.b), "shards": list(each.shards)} for each in found.links
    ]
    seconds = {phase: round(value, 1) for phase, value in ahead.seconds.items()}
    return {
        "lab": fabric.name,
        "shards": shards,
        "cut_links": links,
        "tunnels": [{"shards": sorted(pair), "cut_links": count} for pair, count in found.tunnels.items()],
        "imbalance": round(found.imbalance, 3),
        "up": {"cpus": ahead.cpus, "seconds": seconds, "api_calls": ahead.api_calls},
        "limits": list(ahead.limits),
    }


def cut_text(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> str:
    """The same as lines of at most 100 columns, without the list of cut links."""
    return "\n".join(_lines(fabric, found, ahead))


def _lines(fabric: Fabric, found: Cut, ahead: ShardingForecast) -> Iterator[str]:
    between = len(fabric.links) - len(fabric.host_ports)
    shards, tunnels = many(len(found.shards), "shard"), many(len(found.tunnels), "tunnel")
    yield f"{fabric.name} in {shards}: {len(found.links):,} of {between:,} links between switches are cut; {tunnels}"
    ends = Counter(name for each in found.links for name in each.shards)
    rows = [
        [
            each.name,
            f"{each.switches:,}",
            f"{len(each.nodes) - each.switches:,}",
            f"{ends[each.name]:,}",
            f"{each.memory_bytes / (1 << 20):,.0f} MiB",
            f"{each.cpus:.1f}",
            some_of(each.nodes, _NODES),
        ]
        for each in found.shards
    ]
    yield table(["shard", "switches", "hosts", "cut links", "memory", "CPUs", "nodes"], rows)
    memory = sum(each.memory_bytes for each in found.shards)
    yield from wrapped(
        f"memory: {memory / (1 << 20):,.0f} MiB, {MARGIN - 1:.0%} more than measured costs; the largest shard is "
        f"{found.imbalance:.1%} above the mean"
    )
    yield "CPUs: while all NICs send at line rate"
    phases = ", ".join(f"{phase} {value:.1f} s" for phase, value in ahead.seconds.items())
    yield from wrapped(
        f"up: about {ahead.total:.0f} s with {many(ahead.cpus, 'CPU')} a shard ({phases}), and "
        f"{many(ahead.api_calls, 'API call')}"
    )
    for limit in ahead.limits:
        yield from wrapped(f"limit: {limit}")
