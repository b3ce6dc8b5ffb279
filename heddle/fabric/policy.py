"""The policy of a fabric's switches and hosts, separate from the wiring: frozen values, from a fabric file or topology.

heddle/fabric/policydata.py makes a Policy from a fabric file, heddle/lab/imported/description.py from a topology.
Out: Policy, which `Fabric.policy` carries: addresses, scale, MTUs, routing and queues. Sizes are bytes, durations
nanoseconds. Code that works on the built fabric never reads a fabric file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from heddle.base.ethernet import HEADER
from heddle.base.families import Family, Network, Version
from heddle.base.units import round_up, shown
from heddle.spec.impairments import NO_FAULT, LinkFault
from heddle.spec.queuepolicy import QueuePolicy
from heddle.spec.routingpolicy import RoutingPolicy


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The policy of one network of hosts. pool: of its prefixes; mtu: of IP; queues: with ECN and PFC."""

    pool: Network
    mtu: int
    queues: QueuePolicy


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole policy of a fabric. pool, mtu and queues are those of the network that carries ranks.

    pool: the network of the racks' prefixes and the loopbacks.
    k: rates are divided by it, and every printed bandwidth names it. mtu: of IP, the smallest of all links. ib_mtu:
    payload bytes of a RoCEv2 packet.
    delays: of links on hardware, one way, by the level of their lower end; empty: no delay is modelled.
    link_faults: of links, by the same level; empty: none.
    others: networks without ranks, by their names (`Port.network`).
    """

    ip: Family
    pool: Network
    k: int
    mtu: int
    ib_mtu: int
    routing: RoutingPolicy = field(default_factory=RoutingPolicy)
    queues: QueuePolicy = field(default_factory=QueuePolicy)
    delays: tuple[int, ...] = ()
    link_faults: tuple[LinkFault, ...] = ()
    others: Mapping[str, NetworkPolicy] = field(default_factory=dict)

    @property
    def pools(self) -> tuple[Network, ...]:
        """The address pools of all networks."""
        return (self.pool, *(each.pool for each in self.others.values()))

    def of(self, network: str) -> NetworkPolicy:
        """The policy of the network of a port."""
        return self.others.get(network) or NetworkPolicy(self.pool, self.mtu, self.queues)

    def link_fault(self, level: int) -> LinkFault:
        """The fault of each direction of a link from a node of this level upwards."""
        return self.link_faults[level] if level < len(self.link_faults) else NO_FAULT

    @property
    def delayed_on_links(self) -> bool:
        """Whether packets wait on their links, by netem; else the receiving NIC delays them, if there are delays."""
        return any(fault.delay_ns for fault in self.link_faults)

    def delay_ns(self, level: int) -> int:
        """Nanoseconds on hardware, one way, of a link from a node of this level upwards."""
        return self.delays[level] if level < len(self.delays) else 0

    @property
    def ip_version(self) -> Version:
        """4 or 6."""
        return self.ip.version


# Bytes per port that `auto` gives in addition to headroom: edge switches have shallow buffers, others deep ones.
SHALLOW: Final = 150_000
DEEP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """The buffer layout of one switch, in bytes: buffer = headroom + reserved + shared."""

    buffer: int
    headroom: int
    reserved: int

    @property
    def shared(self) -> int:
        """The bytes that all classes of all ports share; below 0 if the buffer is too small."""
        return self.buffer - self.headroom - self.reserved


def buffer_bytes(queues: QueuePolicy, level: int, ports: Sequence[tuple[int, int]], *, is_edge: bool) -> Budget:
    """The layout of a switch of a level with these ports: (rate in bit/s, mtu) each. is_edge: of that level."""
    pauses = len(queues.paused)
    headroom = pauses * sum(queues.pfc.headroom_bytes(rate, mtu) for rate, mtu in ports)
    reserved = len(ports) * sum(map(queues.reserve_of, queues.numbers))
    given = queues.buffer.at_level(level)
    a_port = SHALLOW if is_edge else DEEP
    total = headroom + len(ports) * a_port if given == "auto" else given
    return Budget(buffer=total, headroom=headroom, reserved=reserved)


def too_small(queues: QueuePolicy, name: str, ports: int, found: Budget, mtu: int) -> tuple[str, str]:
    """The reason that a switch's buffer is too small, and a hint. name: of the switch, or its level."""
    frame = mtu + HEADER
    alike = Counter(map(queues.reserve_of, queues.numbers))
    parts = [f"reserve {shown(size)} x {count} classes x {ports} ports" for size, count in alike.items()]
    if found.headroom:
        pauses = "" if len(queues.lossless) == 1 else f" x {len(queues.lossless)} lossless classes"
        each = found.headroom // ports // len(queues.lossless)
        parts.insert(0, f"headroom {shown(each)}{pauses} x {ports} ports of {name}")
    need = found.headroom + found.reserved + frame
    why = f"is below {need} bytes: {' + '.join(parts)} + a frame of {frame}"
    smaller = "a smaller queues.reserve" if not found.headroom else "queues.pfc.enabled: false, or a smaller reserve"
    return why, f"try {round_up(need + len(queues.numbers) * frame * ports)}, {smaller}"
