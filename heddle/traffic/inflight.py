"""How much data a connection may have in flight, and what each of its QPs has of that.

In:  RunOptions, and the packets that are under way on the longest path because of its propagation delay.
Out: packets per QP; InFlight, for the table's header and JSON.
A connection is all QPs from one rank to another. Its window is the same however many QPs share it, so that a sweep over
`--qps` changes the paths and not the load. Only so many QPs that a fair share would be below MIN_QP_WINDOW have more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from heddle.traffic.options import RunOptions

WINDOW_PACKETS: Final = 64  # a connection's, beside the bandwidth-delay product, when the user names none
# A responder reports a lost packet when the next one arrives. With one packet there is none, and each loss would cost a
# time-out.
MIN_QP_WINDOW: Final = 2


def windows_of(options: RunOptions, bdp_packets: int = 0) -> tuple[int, ...]:
    """Packets that each QP of a connection may have unacknowledged, by index."""
    qps = options.qps
    if options.window is not None:
        return (options.window,) * qps
    packets = WINDOW_PACKETS + bdp_packets
    shares = (packets * (i + 1) // qps - packets * i // qps for i in range(qps))
    return tuple(max(MIN_QP_WINDOW, share) for share in shares)


@dataclass(frozen=True, slots=True)
class InFlight:
    """Packets that may be unacknowledged. connection: of one connection; least, most: of one of its QPs.

    usual: what a connection has with fewer QPs, where it has more for its many QPs; else 0.
    """

    connection: int
    qps: int
    least: int
    most: int
    usual: int = 0

    @classmethod
    def of(cls, options: RunOptions, bdp_packets: int = 0) -> InFlight:
        """Of each connection of a run."""
        windows, fair = windows_of(options, bdp_packets), WINDOW_PACKETS + bdp_packets
        usual = fair if options.window is None and sum(windows) > fair else 0
        return cls(sum(windows), len(windows), min(windows), max(windows), usual)

    def text(self) -> str:
        """`64 packets a connection in flight, 4 on each of 16 QPs`."""
        each = str(self.most) if self.least == self.most else f"{self.least} or {self.most}"
        shared = f", {each} on each of {self.qps} QPs" if self.qps > 1 else ""
        more = f"; {self.usual} with up to {self.usual // MIN_QP_WINDOW} QPs" if self.usual else ""
        return f"{self.connection} packets a connection in flight{shared}{more}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
