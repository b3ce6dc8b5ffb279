"""A data centre of 2,178 switches over several machines, from measured costs; and `zone` over pods, measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from heddle.base.events import Observer
from heddle.fabric.cutting import cut
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.sharding import CPUS, sharding_forecast

from . import Figure, at_most, kubelive

_KEYS: Final = ("zones=8", "racks=252", "ctsw=18", "atsw=18", "hosts_per_rack=1")
_COUNTS: Final = (8, 12, 16)
_CUT_S: Final = 10.0


def figures(observer: Observer) -> Iterator[Figure]:
    """For each number of machines, with a shard each: nothing runs but the cut itself. Then those of kubelive.py."""
    fabric = load_fabric("dc", overrides=_KEYS).fabric
    observer.say(f"{len(fabric.switches):,} switches, machines of {CPUS} processors")
    for count in _COUNTS:
        start = time.perf_counter()
        found = cut(fabric, count)
        took = time.perf_counter() - start
        ahead = sharding_forecast(fabric, found)
        size = f"{count} machines"
        yield at_most(f"{size}: the cut", took, "s", _CUT_S)
        yield at_most(f"{size}: largest shard above the mean", 100 * found.imbalance, "%", 10)
        yield Figure(f"{size}: up, predicted", ahead.total, "s")
        yield from (Figure(f"{size}: {phase}", seconds, "s") for phase, seconds in ahead.seconds.items())
        largest = max(shard.memory_bytes for shard in found.shards)
        yield Figure(f"{size}: memory of the largest shard", largest / (1 << 30), "GiB")
        yield Figure(f"{size}: cut links", len(found.links), "")
        yield Figure(f"{size}: tunnels", len(found.tunnels), "")
        yield Figure(f"{size}: API calls", ahead.api_calls, "")
        for limit in ahead.limits:
            observer.warn(f"{size}: {limit}")
    yield from kubelive.figures(observer)
