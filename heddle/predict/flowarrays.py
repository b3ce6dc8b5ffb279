"""Flows as columns: converts Flow objects to arrays, and rows of arrays to fields of packets.

In:  Flows, a dozen or millions. Out: FlowArrays, the fields that switches hash; FlowTable, also each flow's ends.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from heddle.base.arrays import I32, U32
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

    def take(self, rows: npt.NDArray[np.integer]) -> FlowArrays:
        """Some of the rows."""
        columns = (getattr(self, each.name) for each in fields(self))
        return FlowArrays(*(column[rows] if len(column) else column for column in columns))

    def part(self, start: int, stop: int) -> FlowArrays:
        """A range of rows, without a copy."""
        return FlowArrays(*(getattr(self, each.name)[start:stop] for each in fields(self)))

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
