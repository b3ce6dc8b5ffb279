"""What `up` of a fabric takes, from measured costs: time of each step, API calls, and the limits that it reaches.

In:  a fabric and its cut. Out: ShardingForecast. ./inv bench scale and ./inv bench kubernetes measure the same.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from heddle.fabric.cutting import NODE_BYTES, Cut, paths_of, start_s
from heddle.fabric.model import Fabric
from heddle.switch.queues.classes import MOST_PORTS

CPUS: Final = 4  # processors of a machine, unless the caller has another number
_SPREAD: Final = 0.3  # of measurements around the forecast
# Seconds of a processor that computes a CRC over 4 KB in _CRC_S, from labs of 28 to 522 nodes in one to three shards.
_CRC_S: Final = 1.11e-6
_PODS_S: Final = 3.0  # until pods run on nodes that have the image; an image of 200 MiB is unpacked in 10 s more
_RENDER_S, _FILE_S = 0.07, 0.00002  # and for each link
_AGENT_S: Final = 0.7  # the agent of a shard starts
_PART_S: Final = 0.0002  # a link, cut and sent to its shard
_LINK_S: Final = 0.0011  # a link, made with its ends
_PORT_S: Final = 0.0013  # queues and programs of a port; the kernel's RTNL lock admits one at a time
_MANY: Final = 8000  # ports of a kernel with which one costs twice that: it grows with their cube
_PFC_S: Final = 0.3  # the PFC agent starts
_TUNNEL_S, _CUT_S = 0.5, 0.0002  # the process of carriers, until shards hear each other; and for each end of a cut link
_SETTLE_S: Final = (0.3, 1.0)  # router advertisements, on one machine and over cut links
_ROUTE_S: Final = 8.5e-6  # a next hop that is written by netlink, and looked at
_CHECK_PORT_S, _CHECK_SWITCH_S, _CHECK_PATH_S = 0.0008, 0.012, 5e-6  # read; of a switch with daemons; of a next hop
# Counted in `up` over 2 and 3 shards: rights, the lab's ConfigMap and Service, events, pods; then ConfigMap (twice),
# Service and policy are applied.
_CALLS: Final = 9
_PROBE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class ProcessorPace:
    """How much longer than the constants' a processor of this machine takes: idle, and beside what runs now."""

    idle: float = 1.0
    now: float = 1.0

    @classmethod
    def measured(cls) -> ProcessorPace:
        """From CRCs during _PROBE_S seconds: the fastest of them, and their mean."""
        block, rounds, best = bytes(4096), 0, float("inf")
        start = last = time.perf_counter()
        while last - start < _PROBE_S:
            for _ in range(100):
                zlib.crc32(block)
            now = time.perf_counter()
            best, rounds, last = min(best, now - last), rounds + 1, now
        return cls(best / 100 / _CRC_S, (last - start) / rounds / 100 / _CRC_S)


@dataclass(frozen=True, slots=True)
class ShardingForecast:
    """One machine with `cpus` processors for each shard. seconds: step of `up` -> its time in the slowest shard.

    api_calls: of one `up`, beside those that ask whether pods run. limits: what does not fit, one sentence each.
    pace: of the processors; seconds are those of idle ones. local: on this machine, without shards.
    """

    cpus: float
    seconds: Mapping[str, float]
    api_calls: int
    limits: tuple[str, ...]
    pace: ProcessorPace = ProcessorPace()
    local: bool = False

    @property
    def total(self) -> float:
        """Seconds of `up`."""
        return sum(self.seconds.values())

    @property
    def bounds(self) -> tuple[float, float]:
        """The shortest and the longest time, on idle processors."""
        return self.total * (1 - _SPREAD), self.total * (1 + _SPREAD)

    @property
    def busy(self) -> float:
        """The same beside what runs on this machine now."""
        return self.total * self.pace.now / self.pace.idle


def local_forecast(fabric: Fabric, found: Cut) -> ShardingForecast:
    """`up` in one kernel of this machine. found: a cut with one shard."""
    return sharding_forecast(fabric, found, len(os.sched_getaffinity(0)), ProcessorPace.measured(), local=True)


def sharding_forecast(
    fabric: Fabric, found: Cut, cpus: float = CPUS, pace: ProcessorPace = ProcessorPace(), *, local: bool = False
) -> ShardingForecast:
    """The time and the limits of a cut. cpus: for each shard; a part of one where shards share a machine."""
    # An end of a cut link has a second port, its stub.
    ends = Counter(name for each in found.links for name in each.shards)
    ports = ends + Counter({s.name: sum(len(fabric.by_name[node].ports) for node in s.nodes) for s in found.shards})
    links = Counter(found.home[each.a[0]] for each in fabric.links)  # a cut link has a pair of interfaces at each end
    links.update(found.home[each.link.b[0]] for each in found.links)
    paths = max(sum(paths_of(fabric, node) for node in each.nodes) for each in found.shards)
    started = {each.name: each.switches * start_s(fabric) for each in found.shards}
    learned = max(each.work - started[each.name] for each in found.shards)
    most, by_bgp = max(ports.values()), fabric.policy.routing.by_bgp
    asked = by_bgp * _CHECK_SWITCH_S * max(each.switches for each in found.shards)
    # One at a time: the coordinator, and what needs RTNL. Daemons use all processors.
    serial = {
        "render": _RENDER_S + len(fabric.links) * _FILE_S,
        "agents": 0 if local else _AGENT_S,
        "parts": 0 if local else len(fabric.links) * _PART_S,
        "create": max(links.values()) * _LINK_S,
        "ports": _PFC_S + most * _PORT_S * (1 + (most / _MANY) ** 3),
        "tunnels": _TUNNEL_S + max(ends.values()) * _CUT_S if ends else 0,
        "routes": 0 if by_bgp else paths * _ROUTE_S,
        "check": most * _CHECK_PORT_S + asked + paths * _CHECK_PATH_S,
    }
    parallel = {"start": max(started.values()), "routes": learned * by_bgp}
    waits = {"pods": 0 if local else _PODS_S, "routes": by_bgp * _SETTLE_S[bool(ends)]}
    seconds = {
        step: waits.get(step, 0) + pace.idle * (serial.get(step, 0) / min(1, cpus) + parallel.get(step, 0) / cpus)
        for step in ("pods", "render", "agents", "parts", "create", "ports", "tunnels", "start", "routes", "check")
    }
    calls = 0 if local else _CALLS + 3 * len(found.shards)  # a StatefulSet, the file of a pod that is ready, its agent
    limits = tuple(_limits(found, ports, local=local))
    return ShardingForecast(cpus, {step: each for step, each in seconds.items() if each}, calls, limits, pace, local)


def _limits(found: Cut, ports: Mapping[str, int], *, local: bool) -> list[str]:
    limits = []
    if many := [name for name, count in ports.items() if count > MOST_PORTS]:
        limits.append(f"shard {many[0]} has {ports[many[0]]:,} ports, and one can have {MOST_PORTS:,}: `up` refuses it")
    if not local and (large := [each.name for each in found.shards if each.memory_bytes > NODE_BYTES]):
        what = f"{len(large)} of {len(found.shards)} shards do" if len(large) > 1 else f"shard {large[0]} does"
        limits.append(f"{what} not fit into a machine of 8 GiB")
    return limits
