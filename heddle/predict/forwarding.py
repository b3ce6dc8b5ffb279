"""The next hops of all switches as arrays, and the kernel's selection among them.

In:  groups of next hops, from FIBs (predict.py) or from a fabric file alone.
Out: Forwarding: the next hops of each switch for each destination, and the port that a hash value selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from heddle.base.arrays import I32, I64, U32, Bools

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
