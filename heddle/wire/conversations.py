"""What the packets of a capture say about its queue pairs: order, loss, marks, answers; and about pauses.

In:  packets with their dissection, one after the other (`CaptureTotals.add`).
Out: a QpConversation for each direction of a queue pair at each port; PauseCount; sums of kinds, opcodes, ECN, ICRCs.
A capture has one point of view: what was lost before the port is a gap, what was lost behind it is a repetition.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.wire.capturefile import CapturedPacket
from heddle.wire.dissect import ROCE_V1, Dissected
from heddle.wire.icrc import verdict
from heddle.wire.layout import ACK, ATOMIC_ACK, CNP, OPCODE_NAMES, PSN_MASK, READ_REQUEST, READ_RESPONSE_ONLY
from heddle.wire.layout import READ_RESPONSE_FIRST as _FIRST_RESPONSE

_HALF: Final = (PSN_MASK + 1) // 2
_RESTART: Final = 1 << 16  # a jump that far is a new connection on the same number, not a loss
_MOST_HOLES: Final = 1024  # that are remembered for a queue pair
_FEW: Final = 10  # packet numbers that a list names
_CODES: Final = {name: code for code, name in OPCODE_NAMES.items()}
_RESPONSES: Final = range(_FIRST_RESPONSE, READ_RESPONSE_ONLY + 1)
_NAK_REASONS: Final = {0x60: "sequence", 0x61: "invalid request", 0x62: "access", 0x63: "operation"}
_PAUSE_KINDS: Final = ("PFC", "PAUSE")
_OPCODE_OF_PFC: Final = 0x0101


@dataclass(slots=True)
class PsnOrder:
    """The packet sequence numbers of one direction, in the order in which they passed.

    gaps: jumps ahead, and missing: numbers that have not passed at all so far; late: numbers of a gap that passed later
    (reordered before this port, or lost before it and sent again); repeated: numbers that passed before.
    """

    first: int | None = None
    last: int = 0
    gaps: int = 0
    missing: int = 0
    late: int = 0
    repeated: int = 0
    restarts: int = 0
    _holes: list[tuple[int, int]] = field(default_factory=list)  # start, numbers

    def add(self, psn: int, *, jump: bool = False) -> None:
        """Take the next number. jump: numbers before it were used by packets of the other direction."""
        if self.first is None:
            self.first = self.last = psn
            return
        ahead = (psn - self.last - 1) & PSN_MASK
        if ahead < _HALF:
            if ahead and not jump:
                self._skipped(ahead)
            self.last = psn
        elif not self._filled(psn):
            if PSN_MASK + 1 - ahead > _RESTART:
                self.restarts, self.last = self.restarts + 1, psn
                self._holes.clear()
            else:
                self.repeated += 1

    def _skipped(self, ahead: int) -> None:
        if ahead > _RESTART:
            self.restarts += 1
            self._holes.clear()
            return
        self.gaps += 1
        self.missing += ahead
        self._holes.append(((self.last + 1) & PSN_MASK, ahead))
        del self._holes[:-_MOST_HOLES]

    def _filled(self, psn: int) -> bool:
        for index, (start, numbers) in enumerate(self._holes):
            at = (psn - start) & PSN_MASK
            if at < numbers:
                parts = [(start, at), ((psn + 1) & PSN_MASK, numbers - at - 1)]
                self._holes[index : index + 1] = [part for part in parts if part[1]]
                self.missing -= 1
                self.late += 1
                return True
        return False


@dataclass(slots=True)
class QpConversation:
    """All packets from one address to one queue pair of another, as one port saw them. bytes: on the wire.

    data: requests, which have PSNs of their own; responses: those of RDMA READs. naks: by reason. ce: marked packets.
    """

    port: str
    src: str
    dst: str
    qpn: int
    packets: int = 0
    bytes: int = 0
    payload: int = 0
    data: int = 0
    responses: int = 0
    acks: int = 0
    rnrs: int = 0
    cnps: int = 0
    ce: int = 0
    icrc_wrong: int = 0
    naks: Counter[str] = field(default_factory=Counter)
    sports: set[int] = field(default_factory=set)
    order: PsnOrder = field(default_factory=PsnOrder)
    order_of_responses: PsnOrder = field(default_factory=PsnOrder)
    _after_read: bool = False

    def add(self, what: Dissected, wire_bytes: int, *, icrc_wrong: bool) -> None:
        """Count one packet. A packet with a wrong ICRC is no evidence for anything but itself."""
        fields = what.fields
        self.packets += 1
        self.bytes += wire_bytes
        self.icrc_wrong += icrc_wrong
        if icrc_wrong:
            return
        self.payload += int(fields["payload_bytes"])
        self.ce += fields["ecn"] == "ce"
        if len(self.sports) <= _FEW:
            self.sports.add(int(fields["sport"]))
        code, psn = _CODES.get(str(fields["opcode"]), -1), int(fields["psn"])
        if code == CNP:
            self.cnps += 1
        elif code == ACK:
            self._answer(what.kind, int(fields.get("syndrome", 0)))
        elif code == ATOMIC_ACK:
            self.acks += 1
        elif code in _RESPONSES:
            self.responses += 1
            # Each READ has a range of numbers of its own, which requests of other kinds may separate.
            first = code in (_FIRST_RESPONSE, READ_RESPONSE_ONLY)
            self.order_of_responses.add(psn, jump=first)
        elif code >= 0:
            self.data += 1
            self.order.add(psn, jump=self._after_read)
            self._after_read = code == READ_REQUEST  # its responses use the numbers behind its own

    def _answer(self, kind: str, syndrome: int) -> None:
        if kind == "RoCE NAK":
            self.naks[_NAK_REASONS.get(syndrome, f"syndrome {syndrome:#04x}")] += 1
        elif kind == "RoCE RNR":
            self.rnrs += 1
        else:
            self.acks += 1

    def to_json(self) -> dict[str, Any]:
        """Flat, but for the order of PSNs and the reasons of NAKs."""
        return {
            "port": self.port, "src": self.src, "dst": self.dst, "qpn": self.qpn,
            "packets": self.packets, "bytes": self.bytes, "payload_bytes": self.payload, "data": self.data,
            "responses": self.responses, "acks": self.acks, "naks": dict(self.naks), "rnrs": self.rnrs,
            "cnps": self.cnps, "ce": self.ce, "icrc_wrong": self.icrc_wrong, "sports": sorted(self.sports)[:_FEW],
            "psn": _order_json(self.order), "psn_of_responses": _order_json(self.order_of_responses),
        }  # fmt: skip


def _order_json(order: PsnOrder) -> dict[str, int] | None:
    if order.first is None:
        return None
    return {
        "first": order.first, "last": order.last, "gaps": order.gaps, "missing": order.missing, "late": order.late,
        "repeated": order.repeated, "restarts": order.restarts,
    }  # fmt: skip


@dataclass(slots=True)
class PauseCount:
    """Pause frames of one class at one port. longest: the largest time asked for, in quanta of 512 bit times."""

    port: str
    src: str
    traffic_class: str  # a number, or `all` for IEEE 802.3 PAUSE
    pauses: int = 0
    resumes: int = 0
    longest: int = 0

    def add(self, quanta: int) -> None:
        """Count one frame; 0 quanta end a pause."""
        self.pauses += quanta > 0
        self.resumes += quanta == 0
        self.longest = max(self.longest, quanta)

    def to_json(self) -> dict[str, Any]:
        """Flat."""
        return {
            "port": self.port, "src": self.src, "class": self.traffic_class,
            "pauses": self.pauses, "resumes": self.resumes, "longest_quanta": self.longest,
        }  # fmt: skip


@dataclass(slots=True)
class CaptureTotals:
    """All that a capture adds up to. Memory grows with the number of conversations, not of packets."""

    packets: int = 0
    wire_bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    unread: int = 0  # packets of a link type that is not known here
    kinds: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[str] = field(default_factory=Counter)
    ecn: Counter[str] = field(default_factory=Counter)
    icrc: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)  # numbers of the first packets with a wrong ICRC
    qps: dict[tuple[str, str, str, int], QpConversation] = field(default_factory=dict)
    pauses: dict[tuple[str, str, str], PauseCount] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first packet to the last."""
        return max(0, self.last_ns - self.first_ns) / 1e9

    @property
    def roce(self) -> int:
        """RoCEv2 packets."""
        return sum(self.opcodes.values())

    def add(self, packet: CapturedPacket, what: Dissected) -> None:
        """Count one packet."""
        if not self.packets:
            self.first_ns = packet.time_ns
        self.packets += 1
        self.wire_bytes += packet.wire_bytes
        self.last_ns = max(self.last_ns, packet.time_ns)
        self.unread += packet.data is None
        self.kinds[what.kind] += 1
        self.kind_bytes[what.kind] += packet.wire_bytes
        if packet.data is not None and what.ip_at and what.kind != ROCE_V1:
            self._roce(packet, what, packet.data)
        elif packet.data is not None and what.kind in _PAUSE_KINDS:
            for traffic_class, quanta in _quanta(packet.data):
                key = packet.port, what.src, traffic_class
                self.pauses.setdefault(key, PauseCount(*key)).add(quanta)

    def _roce(self, packet: CapturedPacket, what: Dissected, frame: bytes) -> None:
        fields = what.fields
        icrc = verdict(frame, what.ip_at)
        self.icrc[icrc] += 1
        self.opcodes[str(fields["opcode"])] += 1
        self.ecn[str(fields["ecn"])] += 1
        if icrc == "wrong" and len(self.wrong) < _FEW:
            self.wrong.append(packet.number)
        key = packet.port, what.src, what.dst, int(fields["qpn"])
        found = self.qps.get(key)
        if found is None:
            found = self.qps[key] = QpConversation(*key)
        found.add(what, packet.wire_bytes, icrc_wrong=icrc == "wrong")


def _quanta(frame: bytes) -> Iterator[tuple[str, int]]:
    """Classes and their quanta, of a pause frame; nothing of one that is cut short."""
    at = 14
    while frame[at - 2 : at] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    try:
        operation, enabled, *quanta = struct.unpack_from(">10H", frame.ljust(at + 20, b"\0"), at)
    except struct.error:
        return
    if operation != _OPCODE_OF_PFC:
        yield "all", enabled  # in IEEE 802.3 PAUSE the quanta follow the opcode
        return
    yield from ((str(number), quanta[number]) for number in range(8) if enabled >> number & 1)
