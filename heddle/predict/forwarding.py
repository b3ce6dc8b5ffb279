"""Flows as columns; the next hops of all switches as arrays, and the kernel's selection among them.

In:  Flows, a dozen or millions; groups of next hops, from FIBs (predict.py) or from a fabric file alone.
Out: FlowArrays, the fields that switches hash; FlowTable, also each end of a flow. Forwarding: the next hops of each
     switch for each destination, and the port that a hash value selects.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, I64, U32, Bools
from heddle.fabric.model import Fabric
from heddle.traffic.flow import PROTOCOL_SHIFT, Flow
from heddle.wire.layout import PROTO_UDP

_IPV6_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class FlowArrays:
    """Flows as columns, each of shape (flows,) and dtype uint32; IPv6 addresses have shape (flows, 4).

    qpn: as Flow.qpn. label: the IPv6 flow label of the packets; zero if not given.
    """

    src: U32
    dst: U32
    sport: U32
    dport: U32
    qpn: U32
    label: U32 = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    @classmethod
    def of(cls, flows: Sequence[Flow]) -> Self:
        """The columns of some flows, all of one address family."""
        src, dst = address_words([f.src_ip for f in flows]), address_words([f.dst_ip for f in flows])
        rows = np.array([(f.sport, f.dport, f.qpn) for f in flows], dtype=np.uint32).reshape(len(flows), 3)
        return cls(src, dst, *(np.ascontiguousarray(rows[:, i]) for i in range(3)))

    def __len__(self) -> int:
        return len(self.sport)

    @property
    def protocol(self) -> U32:
        """IPPROTO_UDP or IPPROTO_TCP of each flow."""
        found = self.qpn >> np.uint32(PROTOCOL_SHIFT)
        found[found == 0] = PROTO_UDP
        return found

    @property
    def ipv6(self) -> bool:
        """Whether addresses are IPv6 ones."""
        return self.src.ndim == 2

    def take(self, rows: npt.NDArray[np.integer] | slice) -> FlowArrays:
        """Some of the rows; a slice of them is no copy."""
        columns = (getattr(self, each.name) for each in fields(self))
        return FlowArrays(*(column[rows] if len(column) else column for column in columns))

    def rows(self) -> Iterator[tuple[bytes, bytes, int, int]]:
        """For each flow: source and destination address in network order, source and destination port."""
        src, dst = self.src.astype(">u4"), self.dst.astype(">u4")
        for row in range(len(self)):
            yield src[row : row + 1].tobytes(), dst[row : row + 1].tobytes(), int(self.sport[row]), int(self.dport[row])


@dataclass(frozen=True)
class FlowTable:
    """Flows of a fabric, as input of a walk.

    addresses: the distinct destinations. destination (flows,): each flow's index in them. first (flows,): index of the
    first switch of each flow, in the order of fabric.switches.
    """

    arrays: FlowArrays
    addresses: tuple[str, ...]
    destination: I32
    first: I32

    @classmethod
    def of(cls, fabric: Fabric, flows: Sequence[Flow]) -> Self:
        """The table of some flows. KeyError if a flow does not enter at a switch of the fabric."""
        addresses = tuple(dict.fromkeys(flow.dst_ip for flow in flows))
        classes = {address: number for number, address in enumerate(addresses)}
        ids = {switch.name: number for number, switch in enumerate(fabric.switches)}
        return cls(
            FlowArrays.of(flows),
            addresses,
            np.array([classes[flow.dst_ip] for flow in flows], dtype=np.int32),
            np.array([ids[flow.first_hop.partition(":")[0]] for flow in flows], dtype=np.int32),
        )


def address_words(addresses: Sequence[str]) -> U32:
    """Addresses as numbers: shape (n,) for IPv4, (n, 4) for IPv6. OSError if their families differ."""
    family = socket.AF_INET6 if addresses and ":" in addresses[0] else socket.AF_INET
    raw = b"".join(socket.inet_pton(family, each) for each in addresses)
    words = np.frombuffer(raw, dtype=">u4").astype(np.uint32)
    return words.reshape(-1, _IPV6_WORDS) if family == socket.AF_INET6 else words


NOWHERE: Final = -1


@dataclass(frozen=True)
class Forwarding:
    """All switches' next hops. A destination is a class of addresses that all switches treat the same.

    switches, ports: names by id; a port is `rtsw1:eth1`, and all egress ports of all switches are included.
    peer (ports,): the switch behind a port, -1 for a host or nothing.
    group (switches, destinations): the group of next hops, -1 for no route.
    start (groups + 1,), member (total,), weight (total,): a group's live ports, in the kernel's order. A group without
    ports discards.
    modulo (groups,): True for a resilient group of the kernel: its members are its buckets; hash % buckets chooses.
    """

    switches: tuple[str, ...]
    ports: tuple[str, ...]
    peer: I32
    group: I32
    start: I64
    member: I32
    weight: I32
    modulo: Bools

    @cached_property
    def size(self) -> I64:
        """Members of each group."""
        return np.diff(self.start)

    @cached_property
    def width(self) -> I64:
        """The same with a 0 at the end, for index -1 (no route). It works for fabrics without any group, too."""
        return np.append(self.size, 0)

    @cached_property
    def bounds(self) -> I64:
        """Each member's upper bound, with its group in the bits above 31: ascending over all members of all groups.

        fib_rebalance, rt6_upper_bound_set, nh_hthr_group_rebalance:
        DIV_ROUND_CLOSEST_ULL(running weight << 31, total) - 1.
        """
        owner = np.repeat(np.arange(len(self.size)), self.size)
        running = np.cumsum(self.weight, dtype=np.int64)
        before = np.concatenate([[0], running])[self.start[:-1]]
        total = np.concatenate([[0], running])[self.start[1:]] - before
        inner = running - before[owner]
        shares: I64 = ((inner << 31) + total[owner] // 2) // total[owner] - 1
        return shares + (owner.astype(np.int64) << 31)

    @cached_property
    def _weightless(self) -> bool:
        return bool((self.weight == 1).all())

    @cached_property
    def _group_ports(self) -> I64:
        """(group, port) of all members, each packed into one number, sorted."""
        owner = np.repeat(np.arange(len(self.size)), self.size)
        return np.unique(owner.astype(np.int64) << 32 | self.member)

    def holds(self, group: I32, port: I32) -> Bools:
        """Whether each port (-1: none) is a live next hop of each group."""
        wanted = group.astype(np.int64) << 32 | np.maximum(port, 0)
        known = self._group_ports
        at = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
        found: Bools = (port >= 0) & (known[at] == wanted if len(known) else False)
        return found

    def choose(self, group: I32, value: U32) -> I32:
        """The port that a kernel selects for each 31-bit value: by threshold, or by bucket. Groups must have members.

        The first member whose bound is not below the value (fib_select_multipath, fib6_select_path,
        nexthop_select_path_hthr); value % buckets in a resilient group (nexthop_select_path_res).
        """
        if self._weightless:  # the bound of the nth of N ports is round(n * 2^31 / N) - 1
            size = self.size[group]
            at = self.start[group] + ((value.astype(np.int64) + 1) * size - size // 2 - 1 >> 31)
        else:
            at = np.searchsorted(self.bounds, value.astype(np.int64) + (group.astype(np.int64) << 31), side="left")
        if self.modulo.any():
            by_bucket = self.start[group] + value % self.size[group]
            at = np.where(self.modulo[group], by_bucket, at)
        return self.member[at]


def forwarding_of(
    switches: Sequence[str],
    ports: Sequence[str],
    peer: Sequence[int],
    group: I32,
    groups: Sequence[tuple[Sequence[int], Sequence[int], bool]],
) -> Forwarding:
    """Forwarding from plain lists; groups: members, weights, and whether a bucket chooses."""
    start = np.cumsum([0, *(len(members) for members, _, _ in groups)], dtype=np.int64)
    return Forwarding(
        tuple(switches),
        tuple(ports),
        np.array(peer, dtype=np.int32).reshape(len(ports)),
        group,
        start,
        np.array([port for members, _, _ in groups for port in members], dtype=np.int32),
        np.array([weight for _, weights, _ in groups for weight in weights], dtype=np.int32),
        np.array([modulo for _, _, modulo in groups], dtype=bool),
    )
