"""Propagation delay of the paths of a run, in seconds and in packets.

In:  a fabric and the NICs of the ranks.
Out: Propagation: nanoseconds on hardware, emulated seconds (k times as long), bandwidth-delay product in packets.
The delay is modelled at the end of a path: the receiving NIC takes a frame this much later than the kernel delivers it.
It does not affect queues, marks and pauses of switches (docs/fabric-file.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.traffic.endpoint import Endpoint
from heddle.wire.layout import LAYOUTS


@dataclass(frozen=True, slots=True)
class Propagation:
    """The delays of a run. least_ns, most_ns: over its paths, on hardware, one way; both 0 if no delay is modelled.

    rate_bps: of the fastest NIC. frame: bytes of a full packet on the wire. left_out_ns: of the longest path of the
    fabric file, where the run's NICs do not add it.
    """

    least_ns: int
    most_ns: int
    k: int
    rate_bps: int
    frame: int
    left_out_ns: int = 0

    @classmethod
    def of(
        cls, fabric: Fabric, endpoints: Iterable[Endpoint], delays_ns: Iterable[int], left_out_ns: int = 0
    ) -> Propagation:
        """The delays of some paths. delays_ns: of each path between two of these NICs, one way, on hardware."""
        found, policy = [*delays_ns], fabric.policy
        frame = policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes
        return cls(min(found), max(found), policy.k, max(e.rate_bps for e in endpoints), frame, left_out_ns)

    @property
    def rtt_s(self) -> float:
        """The longest round-trip delay, in emulated seconds."""
        return 2 * self.most_ns * self.k * 1e-9

    @property
    def bdp_packets(self) -> int:
        """Full packets that the fastest NIC sends in `rtt_s`: the same number as on hardware with k times its rate."""
        return math.ceil(self.rtt_s * self.rate_bps / (8 * self.frame))

    def text(self, controlled: bool = False) -> str:
        """`1 to 3 us one way on hardware, 4 to 12 ms here; bandwidth-delay product 73 packets`.

        controlled: senders have congestion control.
        """
        if self.left_out_ns:
            path = f"{_range([self.left_out_ns])} one way on hardware"
            return f"not modelled: the kernel's NICs do not add link.delay ({path}); links do with link.delay_at: link"
        if not self.most_ns:
            sooner = "; congestion control reacts sooner than on hardware: use link.delay: shape" if controlled else ""
            return f"not modelled (link.delay: 0){sooner}"
        some = [self.least_ns, self.most_ns] if self.least_ns < self.most_ns else [self.most_ns]
        hardware, here = (_range([ns * factor for ns in some]) for factor in (1, self.k))
        return f"{hardware} one way on hardware, {here} here; bandwidth-delay product {self.bdp_packets} packets"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "rtt_s": self.rtt_s, "bdp_packets": self.bdp_packets}


def delay_between(delays: PathDelays, src: Endpoint, dst: Endpoint) -> int:
    """Nanoseconds on hardware from one NIC to another, one way."""
    return delays.between(src.first_hop.partition(":")[0], dst.first_hop.partition(":")[0])


def _range(values: list[int]) -> str:
    """Nanoseconds in the unit of the largest: `1 to 3 us`."""
    unit, factor = next((u, f) for u, f in (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)) if values[-1] >= f)
    return f"{' to '.join(f'{value / factor:.4g}' for value in values)} {unit}"
