"""One flow: the same value from plan to verdict. Later stages refer to this value and never copy its fields.

In:  a plan's QPs, or the ends that a user names.
Out: Endpoint: a rank's NIC in a plan, its connection and addresses. Flow: one direction of a QP, with the fields that
     switches see. Sent: a flow and the counts of its sender. QP numbers, first PSNs and source ports.
FlowArrays (heddle/predict/forwarding.py) holds millions of flows as columns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.records import record
from heddle.traffic.readers import SourcePorts
from heddle.wire.layout import DSCP_DATA, PROTO_TCP, PROTO_UDP, ROCE_PORT
from heddle.wire.sport import SPORT_RULES


@record(frozen=True, slots=True)
class Endpoint:
    """One rank's NIC: host, port, link and addresses. seat: its number among the ranks of a NIC that is shared.

    serves: of its host (`Node.serves`).
    """

    rank: int
    host: str
    port: str
    ip: str
    mac: str
    gateway_ip: str
    gateway_mac: str
    first_hop: str  # the switch port where its packets enter the fabric: rtsw1:eth5
    rate_bps: int
    mtu: int
    seat: int = 0
    shared: bool = False
    serves: str = ""

    @property
    def nic(self) -> str:
        """`host1:eth1`."""
        return f"{self.host}:{self.port}"


FlowKey = tuple[str, str, int, int]  # source address, destination address, source port, number (Flow.qpn)
NO_RANK: Final = -1
PROTOCOL_SHIFT: Final = 24  # of Flow.qpn: a QP number has 24 bits, so this part of it is 0


@dataclass(frozen=True, slots=True)
class Flow:
    """The data direction of one QP: its 5-tuple, the destination's QP number, and its two ends. Or one direction of a
    TCP connection, or UDP packets other than RoCEv2.

    qpn: the destination's QP. Of other flows protocol << 24 | destination port, as the counters number them.
    src, dst: hosts. first_hop: the switch port where its packets enter the fabric, `rtsw1:eth5`. src_rank, dst_rank:
    within its job; NO_RANK for a flow that does not belong to a run. job: its name, if its run has several.
    """

    src: str
    dst: str
    src_ip: str
    dst_ip: str
    sport: int
    qpn: int
    first_hop: str
    dport: int = ROCE_PORT
    src_rank: int = NO_RANK
    dst_rank: int = NO_RANK
    job: str = ""
    dscp: int = DSCP_DATA  # of its packets, unless its program sets another one

    @classmethod
    def counted(cls, key: FlowKey, src: str, dst: str, first_hop: str) -> Flow:
        """A flow that counters have, and its ends."""
        qpn = key[3]
        dport = qpn & 0xFFFF if qpn >> PROTOCOL_SHIFT else ROCE_PORT
        return cls(src, dst, *key, first_hop, dport, dscp=usual_dscp(qpn))

    @property
    def key(self) -> FlowKey:
        """The key of counters: the QP and the 5-tuple. The other two fields are the same for all RoCEv2 packets."""
        return self.src_ip, self.dst_ip, self.sport, self.qpn

    @property
    def reverse(self) -> FlowKey:
        """The key of the packets that come back, where `has_qp` is false: of TCP its acknowledgements."""
        return self.dst_ip, self.src_ip, self.dport, self.protocol << PROTOCOL_SHIFT | self.sport

    @property
    def has_qp(self) -> bool:
        """Whether it is RoCEv2."""
        return not self.qpn >> PROTOCOL_SHIFT

    @property
    def protocol(self) -> int:
        """IPPROTO_UDP or IPPROTO_TCP."""
        return self.qpn >> PROTOCOL_SHIFT or PROTO_UDP

    @property
    def number(self) -> int:
        """The destination's QP, or its port if it has none."""
        return self.qpn if self.has_qp else self.dport

    @property
    def label(self) -> str:
        """`17`, the QP; `TCP 5201`, the protocol and the destination port of a flow without one."""
        protocol = "" if self.has_qp else "TCP " if self.protocol == PROTO_TCP else "UDP "
        return f"{protocol}{self.number}"

    def to_json(self) -> dict[str, Any]:
        return {
            **({"job": self.job} if self.job else {}),
            "src": self.src, "dst": self.dst, "src_rank": self.src_rank, "dst_rank": self.dst_rank,
            "src_ip": self.src_ip, "dst_ip": self.dst_ip, "sport": self.sport, "dport": self.dport,
            "qpn": self.qpn, "first_hop": self.first_hop,
            **({"dscp": self.dscp} if self.dscp != usual_dscp(self.qpn) else {}),
        }  # fmt: skip


def usual_dscp(qpn: int) -> int:
    """The DSCP of a flow that names no other. qpn: as in Flow."""
    return 0 if qpn >> PROTOCOL_SHIFT else DSCP_DATA


@dataclass(frozen=True, slots=True)
class Sent:
    """A flow and what its sender put on the wire: packets including retransmissions, and bytes of frames.

    planned: False for a flow of which the ends report packets, but which the plan of the run does not have.
    again: the DSCP of the packets that its sender sent again; -1: that of the flow, or it sent none again.
    """

    flow: Flow
    packets: int
    bytes: int
    planned: bool = True
    again: int = -1

    def classes(self, of_dscp: Sequence[int]) -> tuple[int, ...]:
        """The classes of its packets, first that of the flow's DSCP. of_dscp: a class for each DSCP."""
        own, again = of_dscp[self.flow.dscp], of_dscp[self.again if self.again >= 0 else self.flow.dscp]
        return (own,) if again == own else (own, again)

    def to_json(self) -> dict[str, Any]:
        """Flat: the flow, `packets` and `bytes`, `planned` if it was not, and `again` if it is another DSCP."""
        more: dict[str, Any] = {} if self.planned else {"planned": False}
        more |= {} if self.again < 0 else {"again": self.again}
        return {**self.flow.to_json(), "packets": self.packets, "bytes": self.bytes, **more}


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


@dataclass(frozen=True, slots=True)
class Numbering:
    """How the queue pairs of a transport are numbered.

    protocol: 0 is RoCEv2. With another one, IPPROTO_TCP, a queue pair is a connection, and its number is a port.
    before_first: one less than the first number of a NIC. each: numbers of each rank at a NIC.
    """

    protocol: int = 0
    before_first: Callable[[str], int] = qpn_before_first
    each: int = SEAT_QPNS

    def before(self, endpoint: Endpoint) -> int:
        """One less than the first number of a rank."""
        return self.before_first(endpoint.nic) + endpoint.seat * self.each

    def key(self, number: int) -> int:
        """`Flow.qpn` of the queue pair with this number."""
        return self.protocol << PROTOCOL_SHIFT | number


ROCE: Final = Numbering()


class QpNumbers:
    """Assigns QP numbers as NICs do: in sequence, from a start that differs between NICs."""

    def __init__(self, endpoints: Sequence[Endpoint], numbering: Numbering = ROCE) -> None:
        self._nics = [e.nic for e in endpoints]
        self._next = [numbering.before(e) for e in endpoints]

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
