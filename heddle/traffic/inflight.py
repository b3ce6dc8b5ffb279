"""The propagation delay of a run's paths, and the data that a connection and each of its QPs may have in flight.

In:  a fabric and the NICs of the ranks; the QPs of a connection, and their window if the user set it.
Out: Propagation: nanoseconds on hardware, emulated seconds (k times as long), bandwidth-delay product in packets;
     packets per QP; InFlight, for the table's header and JSON.
The delay is modelled at the end of a path: the receiving NIC takes a frame this much later than the kernel delivers it.
It does not affect queues, marks and pauses of switches (docs/congestion-control.md).
A connection is all QPs from one rank to another. Its window does not depend on the number of QPs, so that a sweep over
`--qps` changes the paths and not the load. The exception: a QP never has less than MIN_QP_WINDOW.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from heddle.base.units import format_bytes
from heddle.fabric.model import Fabric
from heddle.fabric.pathdelay import PathDelays
from heddle.fabric.wiring import BACKEND
from heddle.traffic.flow import Endpoint
from heddle.wire.layout import ETH_BYTES, LAYOUTS

WINDOW_PACKETS: Final = 64  # a connection's default, in addition to the bandwidth-delay product
# A responder reports a lost packet when the next one arrives. With one packet in flight there is no next one, and each
# loss would cost a timeout.
MIN_QP_WINDOW: Final = 2


def windows_of(qps: int, window: int | None = None, bdp_packets: int = 0) -> tuple[int, ...]:
    """Unacknowledged packets that each QP of a connection may have, by index. window: of each, if the user set it."""
    if window is not None:
        return (window,) * qps
    packets = WINDOW_PACKETS + bdp_packets
    shares = (packets * (i + 1) // qps - packets * i // qps for i in range(qps))
    return tuple(max(MIN_QP_WINDOW, share) for share in shares)


def shortfall(qps: int, window: int | None, bdp_packets: int) -> str:
    """A warning if the user's windows cannot fill the longest path; else empty."""
    if window is None or (packets := window * qps) >= bdp_packets:
        return ""
    whose = f" on each of {qps} QPs" if qps > 1 else ""
    percent = 100 * packets / bdp_packets
    share = f"{int(percent)}" if percent >= 1 else f"{percent:.1g}"
    return (
        f"--window {window}{whose} keeps {packets} packet{'' if packets == 1 else 's'} in flight, but the"
        f" bandwidth-delay product of the longest path is {bdp_packets} packets: a connection reaches at most {share} %"
        f" of the line rate; use --window {-(-bdp_packets // qps)} or more, or leave it out"
    )


def xoff_not_reached(fabric: Fabric) -> tuple[str, ...]:
    """A sentence if no port can hold Xoff bytes of a job with default windows: PFC then never acts.

    Of n NICs, a link is between s that send and the rest: at most s (n - s) <= n^2 / 4 connections pass a port.
    """
    from heddle.switch.queues.classes import budget_of

    policy, nics = fabric.policy, sum(port.network == BACKEND for port in fabric.nics)
    connections = nics * nics // 4
    each = WINDOW_PACKETS * (policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes)
    most, xoff = connections * each, policy.queues.pfc.xoff
    budgets = [budget_of(fabric, node, policy.queues) for node in fabric.switches]
    free = min((budget.shared for budget in budgets), default=0) - nics * (nics - 1) * each
    if not policy.queues.paused or most >= min(xoff, policy.queues.alpha * free):
        return ()
    held = f"{format_bytes(most)}: {connections} connections with {WINDOW_PACKETS} packets in flight each"
    return (
        f"PFC does not act: pfc.xoff pauses a port from {format_bytes(xoff)} on, and no port holds more than {held};"
        " use a larger window, or a smaller queues.pfc.xoff",
    )


@dataclass(frozen=True, slots=True)
class InFlight:
    """Limits of unacknowledged packets. connection: of one connection; least, most: of one of its QPs.

    usual: the limit with fewer QPs, if a connection has more because of its many QPs; else 0.
    """

    connection: int
    qps: int
    least: int
    most: int
    usual: int = 0

    @classmethod
    def of(cls, windows: Sequence[int], bdp_packets: int = 0, *, chosen: bool = False) -> InFlight:
        """Of each connection of a run. windows: of its QPs; chosen: by the user."""
        fair = WINDOW_PACKETS + bdp_packets
        usual = fair if not chosen and sum(windows) > fair else 0
        return cls(sum(windows), len(windows), min(windows), max(windows), usual)

    def text(self) -> str:
        """`64 packets per connection in flight, 4 on each of 16 QPs`."""
        each = str(self.most) if self.least == self.most else f"{self.least} or {self.most}"
        shared = f", {each} on each of {self.qps} QPs" if self.qps > 1 else ""
        more = f"; {self.usual} with up to {self.usual // MIN_QP_WINDOW} QPs" if self.usual else ""
        return f"{self.connection} packets per connection in flight{shared}{more}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
        cls, fabric: Fabric, endpoints: Sequence[Endpoint], delays_ns: Iterable[int], left_out_ns: int = 0, *,
        segments: bool = False,
    ) -> Propagation:  # fmt: skip
        """The delays of some paths. delays_ns: of each path between two of these NICs, one way, on hardware.

        segments: kernels cut streams, in packets as long as the MTU allows.
        """
        found, policy = [*delays_ns], fabric.policy
        frame = policy.ib_mtu + LAYOUTS[policy.ip_version].overhead_bytes
        frame = ETH_BYTES + min(end.mtu for end in endpoints) if segments else frame
        return cls(min(found), max(found), policy.k, max(e.rate_bps for e in endpoints), frame, left_out_ns)

    @property
    def rtt_s(self) -> float:
        """The longest round-trip delay, in emulated seconds."""
        return 2 * self.most_ns * self.k * 1e-9

    @property
    def bdp_packets(self) -> int:
        """Full packets that the fastest NIC sends in `rtt_s`: the same number as on hardware with k times its rate."""
        return math.ceil(self.rtt_s * self.rate_bps / (8 * self.frame))

    def text(self, controlled: bool = False, network: str = BACKEND) -> str:
        """`1 to 3 us one way on hardware, 4 to 12 ms here; bandwidth-delay product 73 packets`.

        controlled: senders have congestion control. network: of the job.
        """
        if self.left_out_ns:
            path = f"{_range([self.left_out_ns])} one way on hardware"
            return f"not modelled: the kernel's NICs do not add link.delay ({path}); links do with link.delay_at: link"
        if not self.most_ns and network != BACKEND:
            return f"not modelled on links of the network {network}"
        if not self.most_ns:
            sooner = "; congestion control reacts sooner than on hardware: use link.delay: shape" if controlled else ""
            return f"not modelled (link.delay: 0){sooner}"
        some = [self.least_ns, self.most_ns] if self.least_ns < self.most_ns else [self.most_ns]
        hardware, here = (_range([ns * factor for ns in some]) for factor in (1, self.k))
        return f"{hardware} one way on hardware, {here} here; bandwidth-delay product {self.bdp_packets} packets"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rtt_s": self.rtt_s, "bdp_packets": self.bdp_packets}


def delay_between(delays: PathDelays, src: Endpoint, dst: Endpoint) -> int:
    """Nanoseconds on hardware from one NIC to another, one way."""
    return delays.between(src.first_hop.partition(":")[0], dst.first_hop.partition(":")[0])


def _range(values: list[int]) -> str:
    """Nanoseconds in the unit of the largest: `1 to 3 us`."""
    unit, factor = next((u, f) for u, f in (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)) if values[-1] >= f)
    return f"{' to '.join(f'{value / factor:.4g}' for value in values)} {unit}"
