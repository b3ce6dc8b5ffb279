"""The numbers of queue pairs, and their UDP source ports: functions of the NIC, its seat and the options alone.

In:  endpoints by rank. Out: QP numbers in sequence, first PSNs, source ports.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Final

from heddle.traffic.flow import Endpoint
from heddle.traffic.readers import SourcePorts
from heddle.wire.sport import SPORT_RULES

SEAT_QPNS: Final = 1 << 20  # QP numbers of each rank at a NIC
MAX_SEATS: Final = 14  # ranks of a NIC: 24 bits, and the first numbers of a NIC take part of them


def qpn_before_first(nic: str) -> int:
    """One less than the first QP number of a NIC (`host1:eth1`)."""
    # 0 and 1 are management QPs (IBTA vol. 1, section 3.9); starts stay well inside 24 bits.
    return 0x100 + (zlib.crc32(nic.encode()) & 0xFFFFF)


def qpns_of(endpoint: Endpoint) -> range | None:
    """The QP numbers that a rank has at a NIC with several ranks; None where it has the NIC for itself."""
    first = qpn_before_first(endpoint.nic) + 1 + endpoint.seat * SEAT_QPNS
    return range(first, first + SEAT_QPNS) if endpoint.shared else None


class QpNumbers:
    """Assigns QP numbers as NICs do: in sequence, from a start that differs between NICs."""

    def __init__(self, endpoints: Sequence[Endpoint], before_first: Callable[[str], int]) -> None:
        self._nics = [e.nic for e in endpoints]
        self._next = [before_first(e.nic) + e.seat * SEAT_QPNS for e in endpoints]

    def next(self, rank: int) -> int:
        """The next free QP number of that rank's NIC."""
        self._next[rank] += 1
        return self._next[rank]

    def psn(self, rank: int, qpn: int) -> int:
        """A 24-bit first PSN: any value is possible, also near the wrap."""
        return zlib.crc32(f"{self._nics[rank]}/{qpn}/psn".encode()) & 0xFFFFFF


def source_port(how: SourcePorts, index: int, own_qpn: int, peer_qpn: int) -> int:
    """The UDP source port of a queue pair. index: within its connection."""
    rule = SPORT_RULES.get(how.mode)
    return rule(own_qpn, peer_qpn) if rule is not None else how.ports[index % len(how.ports)]
