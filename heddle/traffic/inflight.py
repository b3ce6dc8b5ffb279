"""The data that a connection may have in flight, and the share of each of its QPs.

In:  RunOptions, and the packets that the propagation delay of the longest path keeps in flight.
Out: packets per QP; InFlight, for the table's header and JSON.
A connection is all QPs from one rank to another. Its window does not depend on the number of QPs, so that a sweep over
`--qps` changes the paths and not the load. The exception: a QP never has less than MIN_QP_WINDOW.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from heddle.traffic.options import RunOptions

WINDOW_PACKETS: Final = 64  # a connection's default, in addition to the bandwidth-delay product
# A responder reports a lost packet when the next one arrives. With one packet in flight there is no next one, and each
# loss would cost a time-out.
MIN_QP_WINDOW: Final = 2


def windows_of(options: RunOptions, bdp_packets: int = 0) -> tuple[int, ...]:
    """Unacknowledged packets that each QP of a connection may have, by index."""
    qps = options.qps
    if options.window is not None:
        return (options.window,) * qps
    packets = WINDOW_PACKETS + bdp_packets
    shares = (packets * (i + 1) // qps - packets * i // qps for i in range(qps))
    return tuple(max(MIN_QP_WINDOW, share) for share in shares)


def shortfall(options: RunOptions, bdp_packets: int) -> str:
    """A warning if the user's windows cannot fill the longest path; else empty."""
    if options.window is None or (packets := options.window * options.qps) >= bdp_packets:
        return ""
    whose = f" on each of {options.qps} QPs" if options.qps > 1 else ""
    percent = 100 * packets / bdp_packets
    share = f"{int(percent)}" if percent >= 1 else f"{percent:.1g}"
    return (
        f"--window {options.window}{whose} keeps {packets} packet{'' if packets == 1 else 's'} in flight, but the"
        f" bandwidth-delay product of the longest path is {bdp_packets} packets: a connection reaches at most {share} %"
        f" of the line rate; use --window {-(-bdp_packets // options.qps)} or more, or leave it out"
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
    def of(cls, options: RunOptions, bdp_packets: int = 0) -> InFlight:
        """Of each connection of a run."""
        windows, fair = windows_of(options, bdp_packets), WINDOW_PACKETS + bdp_packets
        usual = fair if options.window is None and sum(windows) > fair else 0
        return cls(sum(windows), len(windows), min(windows), max(windows), usual)

    def text(self) -> str:
        """`64 packets per connection in flight, 4 on each of 16 QPs`."""
        each = str(self.most) if self.least == self.most else f"{self.least} or {self.most}"
        shared = f", {each} on each of {self.qps} QPs" if self.qps > 1 else ""
        more = f"; {self.usual} with up to {self.usual // MIN_QP_WINDOW} QPs" if self.usual else ""
        return f"{self.connection} packets per connection in flight{shared}{more}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
