"""The queue pairs of a plan as columns: the same as the objects of heddle/traffic/plan.py, for millions of QPs.

In:  endpoints by rank, connections in plan order, QPs per connection, the choice of source ports.
Out: Connections, one per row; and flows, made for some connections at a time to limit memory: one row per QP, or one
     for each source port over which a QP sprays.
QP numbers and source ports are exactly those of `build_plan`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, I64, U32, U64
from heddle.predict.flowarrays import FlowArrays, address_words
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import SourcePorts
from heddle.traffic.plan import qpn_before_first
from heddle.wire.layout import ROCE_PORT
from heddle.wire.sport import SPORT_RULES, entropy_sport

# The formulas for one QP; they use 64-bit arithmetic, so they work for columns too.
_SPORTS: Final = cast(Mapping[str, Callable[[U64, U64], U64]], SPORT_RULES)
_SPRAYED: Final = cast(Callable[[U64, U64], U64], entropy_sport)
BATCH: Final = 1 << 19  # flows per batch: few enough for memory, enough for numpy to be fast
FLOW_BYTES: Final = 400  # memory per flow of a batch: columns, hashes in 64 bits and their state, hops
CONNECTION_BYTES: Final = 160  # memory per connection: columns, and sorting them
LENGTH_BYTES: Final = 80  # memory per flow of a connection and different length: bytes, and their sums


@dataclass(frozen=True)
class Connections:
    """Pairs of ranks with traffic, in plan order. numbers: each end's QP number of index 0; index i has i more.

    kind: row of the table in volume.py with the bytes of each of its flows. sports: source ports of each QP.
    """

    src: I32
    dst: I32
    src_number: U32
    dst_number: U32
    kind: I32
    qps: int
    source_ports: SourcePorts
    sports: int = 1

    def __len__(self) -> int:
        return len(self.src)

    @property
    def each(self) -> int:
        """The number of flows of a connection: one for each source port of each QP."""
        return self.qps * self.sports

    @property
    def flows(self) -> int:
        """The number of flows."""
        return len(self.src) * self.each

    def batches(self, limit: int = BATCH) -> Iterator[slice]:
        """Connections in slices of at most `limit` flows, or of one connection."""
        step = max(1, limit // self.each)
        for start in range(0, len(self.src), step):
            yield slice(start, min(start + step, len(self.src)))


def connect(
    endpoints: Sequence[Endpoint], src: npt.NDArray[np.integer], dst: npt.NDArray[np.integer], kind: I32,
    qps: int, source_ports: SourcePorts, sports: int = 1,
) -> Connections:  # fmt: skip
    """Open `qps` QPs for every pair of ranks, in this order; each NIC assigns QP numbers in sequence."""
    ends = np.stack([src, dst], axis=1).astype(np.int32).ravel()  # in the order of number assignment
    earlier = _earlier_equal(ends, len(endpoints))
    start = np.array([qpn_before_first(e.nic) for e in endpoints], dtype=np.int64)
    number = (start[ends] + 1 + earlier * qps).astype(np.uint32).reshape(-1, 2)
    return Connections(
        src.astype(np.int32), dst.astype(np.int32),
        np.ascontiguousarray(number[:, 0]), np.ascontiguousarray(number[:, 1]), kind, qps, source_ports, sports,
    )  # fmt: skip


def _earlier_equal(values: I32, kinds: int) -> I64:
    """For each index, the number of equal values at earlier indices. values: from 0 to kinds - 1."""
    order = np.argsort(values, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(values, minlength=kinds))[:-1]])
    earlier = np.empty(len(values), dtype=np.int64)
    earlier[order] = np.arange(len(values)) - first[values[order]]
    return earlier


def addresses(endpoints: Sequence[Endpoint]) -> U32:
    """Addresses by rank, as in FlowArrays: (ranks,) for IPv4, (ranks, 4) words, most significant first, for IPv6."""
    return address_words([endpoint.ip for endpoint in endpoints])


def flows_of(connections: Connections, part: slice, address: U32) -> FlowArrays:
    """The flows of some connections, sorted by connection, index of the QP, index of the port. address: `addresses`."""
    qps, sports = connections.qps, connections.sports
    index = np.arange(qps, dtype=np.uint32)
    mine = (connections.src_number[part, None] + index).ravel()
    theirs = (connections.dst_number[part, None] + index).ravel()
    how = connections.source_ports
    rule = _SPORTS.get(how.mode)
    if rule is not None:
        base = rule(mine.astype(np.uint64), theirs.astype(np.uint64))
    else:
        turns = np.array([how.ports[i % len(how.ports)] for i in range(qps)], dtype=np.uint64)
        base = np.tile(turns, len(mine) // qps)
    more = _SPRAYED(base[:, None], np.arange(1, sports, dtype=np.uint64))
    sport = np.concatenate([base[:, None], more], axis=1).ravel().astype(np.uint32)
    src = address[np.repeat(connections.src[part], connections.each)]
    dst = address[np.repeat(connections.dst[part], connections.each)]
    return FlowArrays(src, dst, sport, np.full(len(sport), ROCE_PORT, dtype=np.uint32), np.repeat(theirs, sports))
