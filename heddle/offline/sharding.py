"""What a fabric in shards takes to come up, from measured costs: time, API calls, and the limits that it reaches.

In:  a fabric and its cut. Out: ShardingForecast. ./inv bench kubernetes measures them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.fabric.cutting import NODE_BYTES, START_S, Cut
from heddle.fabric.model import Fabric
from heddle.switch.queues.classes import MOST_PORTS

CPUS: Final = 4  # processors of a machine, unless the caller has another number
_POD_S: Final = 13.0  # from nothing until pods run, with an image of 200 MiB to unpack (Kubernetes 1.34)
# A link of the whole fabric, where `up` runs: rendered, read, sent. 252 x 18: 2.6 s for 4,788.
_FILE_S: Final = 0.00054
_LINK_S: Final = 0.0022  # a link, made with its ends. 128 x 16: 4.8 s for 2,176; 252 x 18: 10.1 s for 4,788
_PORT_S: Final = 0.006  # queues and programs of a port; the kernel's RTNL lock admits one at a time
_SETTLE_S: Final = 3.5  # of the smallest fabric: router advertisements, connections, updates that wait
# Counted in `up` over 2 and 3 shards: rights, the lab's ConfigMap and Service, events, pods; then ConfigMap (twice),
# Service and policy are applied.
_CALLS: Final = 9


@dataclass(frozen=True, slots=True)
class ShardingForecast:
    """One machine with `cpus` processors for each shard. seconds: phase of `up` -> its time in the slowest shard.

    api_calls: of one `up`, beside those that ask whether pods run. limits: what does not fit, one sentence each.
    """

    cpus: int
    seconds: Mapping[str, float]
    api_calls: int
    limits: tuple[str, ...]

    @property
    def total(self) -> float:
        """Seconds of `up`."""
        return sum(self.seconds.values())


def sharding_forecast(fabric: Fabric, found: Cut, cpus: int = CPUS) -> ShardingForecast:
    """The time and the limits of a cut."""
    # An end of a cut link has a second port, its stub.
    ports = Counter(name for each in found.links for name in each.shards)
    ports.update({each.name: sum(len(fabric.by_name[node].ports) for node in each.nodes) for each in found.shards})
    links = Counter(found.home[each.a[0]] for each in fabric.links)  # a cut link has a pair of interfaces at each end
    links.update(found.home[each.link.b[0]] for each in found.links)
    started = {each.name: each.switches * START_S for each in found.shards}
    seconds = {
        "pods": _POD_S,
        "files": len(fabric.links) * _FILE_S,
        "create": max(links.values()) * _LINK_S,
        "ports": max(ports.values()) * _PORT_S,
        "start": max(started.values()) / cpus,
        "routes": _SETTLE_S + max(each.work - started[each.name] for each in found.shards) / cpus,
    }
    calls = _CALLS + 3 * len(found.shards)  # a StatefulSet, the file of a pod that is ready, its agent
    return ShardingForecast(cpus, seconds, calls, tuple(_limits(found, ports)))


def _limits(found: Cut, ports: Mapping[str, int]) -> list[str]:
    limits = []
    if many := [name for name, count in ports.items() if count > MOST_PORTS]:
        limits.append(f"shard {many[0]} has {ports[many[0]]:,} ports, and one can have {MOST_PORTS:,}: `up` refuses it")
    if large := [each.name for each in found.shards if each.memory_bytes > NODE_BYTES]:
        what = f"{len(large)} of {len(found.shards)} shards do" if len(large) > 1 else f"shard {large[0]} does"
        limits.append(f"{what} not fit into a machine of 8 GiB")
    return limits
