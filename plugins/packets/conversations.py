"""What the packets of a capture say about its queue pairs: order, loss, marks, answers; and about pauses.

In:  packets with their dissection, one after the other (`CaptureTotals.add`).
Out: a QpConversation for each direction of a queue pair at each port; PauseCount; sums of kinds, opcodes, ECN, ICRCs.
A capture has one point of view: what was lost before the port is a gap, what was lost behind it is a repetition.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from heddle.wire import layout as wire
from heddle.wire.dissect import ROCE_CUT, ROCE_TRIMMED, Dissected
from heddle.wire.layout import BTH_BYTES, ICRC_BYTES, IPV6_BYTES, UDP_BYTES, psn_after, verdict
from heddle_plugins.packets.capturefile import CapturedPacket

_RESTART: Final = 1 << 16  # a jump that far is a new connection on the same number, not a loss
_NEAR: Final = 1 << 12  # so is a shorter one, to the start of a message: no sender has that many packets under way
_numbers = partial(array, "q")

Range = tuple[int, int]  # how far its start is ahead of the last number, and how many numbers it has


@dataclass(slots=True)
class PsnOrder:
    """The packet sequence numbers of one direction, in the order in which they passed.

    gaps: jumps ahead, and missing: numbers that have not passed at all so far; late: numbers of a gap that passed later
    (reordered before this port, or lost before it and retransmitted); repeated: numbers that passed before; restarts:
    jumps, in either direction, that look like another connection on the same QP number. A hole among the last 65,536
    numbers takes 16 bytes.
    """

    first: int | None = None
    last: int = 0
    gaps: int = 0
    missing: int = 0
    late: int = 0
    repeated: int = 0
    restarts: int = 0
    _at: int = 0  # `last`, without its wraps
    _starts: array[int] = field(default_factory=_numbers)  # of the holes, ascending and without wraps
    _sizes: array[int] = field(default_factory=_numbers)

    def between(self, psn: int) -> int:
        """How many numbers are between the last one and this; negative when this is not ahead."""
        return 0 if self.first is None else psn_after(psn, self.last) - 1

    def add(self, psn: int, lost: Sequence[Range] | None = None, *, starts: bool = True, span: int = 1) -> bool:
        """Take the next number; whether it is ahead of all before.

        lost: the numbers in between that had to pass here; None: all. starts: the packet starts a message.
        span: the numbers that it takes if it is late.
        """
        if self.first is None:
            self.first = self.last = psn
            return True
        step, far = psn_after(psn, self.last), _NEAR if starts else _RESTART
        if step > 0:
            lost = [(1, step - 1)] if lost is None else lost
            count = sum(numbers for _, numbers in lost)
            if count > far:
                self._restart()
            elif count:
                self._skipped(lost, count)
        elif self._filled(self._at + step, span):
            return False
        elif -step > far:
            self._restart()
        else:
            self.repeated += 1
            return False
        self.last, self._at = psn, self._at + step
        return True

    def _restart(self) -> None:
        self.restarts += 1
        del self._starts[:], self._sizes[:]

    def _skipped(self, lost: Sequence[Range], count: int) -> None:
        self.gaps += 1
        self.missing += count
        old = bisect_right(self._starts, self._at - _RESTART)  # a number that far behind is a new connection's
        del self._starts[:old], self._sizes[:old]
        for start, numbers in lost:
            self._starts.append(self._at + start)
            self._sizes.append(numbers)

    def _filled(self, at: int, span: int) -> bool:
        index = bisect_right(self._starts, at) - 1
        if index < 0 or at >= self._starts[index] + self._sizes[index]:
            return False
        before = at - self._starts[index]
        span = min(span, self._sizes[index] - before)
        after = self._sizes[index] - before - span
        rest = [(start, size) for start, size in ((at - before, before), (at + span, after)) if size]
        self._starts[index : index + 1] = _numbers([start for start, _ in rest])
        self._sizes[index : index + 1] = _numbers([size for _, size in rest])
        self.missing -= span
        self.late += 1
        return True


_REMEMBERED: Final = 8192  # packets of the capture
_SOON_NS: Final = 50_000  # less than a NIC's timers, more than a packet takes through a switch
_BTH_MASKED: Final = 4  # the byte of the BTH that switches may change

Identity = tuple[object, int, bytes, bytes]  # queue pair, PSN, IP ID, ICRC


@dataclass(slots=True)
class OriginalPacket:
    """A packet that was seen. where: its TTL, tunnel and VLAN tags; marked: whether it or a copy of it was CE."""

    where: tuple[object, ...]
    time_ns: int
    marked: bool


@dataclass(slots=True)
class CountedSender:
    """One direction of a queue pair. last: its last packet; ids: the last IP ID of data, and of answers."""

    last: Identity | None = None
    ids: dict[bool, bytes] = field(default_factory=dict)
    counts: bool = False  # its IP IDs differ


@dataclass(slots=True)
class Copies:
    """The last packets of a capture, and the ports at which it has packets more than once that were sent once.

    A mirror of both directions of a switch has a routed packet before and after it, with one TTL less and other
    Ethernet addresses. A capture on all devices of a host has it at a bond and at a member, byte for byte. The ICRC
    covers what no switch changes, and the IP ID. A sender that counts its packets in the IP ID gives a retransmission
    another one, so packets that are equal in both are copies. IPv6 has no ID, and some NICs send a constant one. There,
    an equal packet is a copy only directly behind the other one, since no sender can know a loss that soon.
    """

    _seen: dict[Identity, OriginalPacket] = field(default_factory=dict)
    _ports: set[str] = field(default_factory=set)

    def original(
        self, key: tuple[str, str, str, int], sender: CountedSender, frame: bytes, what: Dissected, time_ns: int
    ) -> OriginalPacket | None:
        """The packet of which this one is a copy; None for a new packet. key: port, addresses and queue pair."""
        at, data = what.ip_at, what.kind == "RoCE data"
        four = frame[at] >> 4 == 4
        number = frame[at + 4 : at + 6] if four else b""
        where = frame[at + 8 if four else at + 7], what.tunnel, what.fields.get("pcp")
        identity = key, int(what.fields["psn"]), number, _digest(frame, at, four=four)
        seen = self._seen.get(identity)
        if seen is not None:
            soon = sender.last == identity and time_ns - seen.time_ns <= _SOON_NS
            directly = soon and (data or key[0] in self._ports)  # equal answers may be two answers
            if seen.where != where or (number and sender.counts) or directly:
                self._ports.add(key[0])
                return seen
        sender.counts = sender.counts or sender.ids.get(data, number) != number
        sender.ids[data], sender.last = number, identity
        self._seen.pop(identity, None)
        self._seen[identity] = OriginalPacket(where, time_ns, what.fields["ecn"] == "ce")
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return None


def _digest(frame: bytes, at: int, *, four: bool) -> bytes:
    """The ICRC; of a packet without one, a checksum over what the capture has of it and no switch changes."""
    if four:
        size, bth = int.from_bytes(frame[at + 2 : at + 4], "big"), at + 4 * (frame[at] & 0x0F) + UDP_BYTES
    else:
        size = IPV6_BYTES + int.from_bytes(frame[at + 4 : at + 6], "big")
        bth = at + IPV6_BYTES + UDP_BYTES
    icrc = frame[at + size - ICRC_BYTES : at + size]
    if len(icrc) == ICRC_BYTES and any(icrc) and at + size >= bth + BTH_BYTES + ICRC_BYTES:
        return icrc
    head = zlib.crc32(frame[bth : bth + _BTH_MASKED])
    return zlib.crc32(frame[bth + _BTH_MASKED + 1 : at + size], head).to_bytes(ICRC_BYTES, "big")


UNTAGGED: Final = "untagged"
_FEW: Final = 10  # packet numbers that a list names
# Bounds, so that no capture fills the memory.
_MOST_QPS: Final = 16384  # queue pairs that are counted one by one
_MOST_PAUSED: Final = 4096  # senders and classes
_MOST_READS: Final = 256  # READs of a queue pair that wait for responses
_MOST_ASKED: Final = 4096  # READs by which the queue pairs of a connection find each other
_MOST_PCPS: Final = 16

_RESPONSES: Final = range(wire.READ_RESPONSE_FIRST, wire.READ_RESPONSE_ONLY + 1)
_WITHIN: Final = frozenset(code for code, name in wire.OPCODE_NAMES.items() if "_MIDDLE" in name or "_LAST" in name)
_FULL: Final = frozenset(code for code, name in wire.OPCODE_NAMES.items() if name.endswith(("_FIRST", "_MIDDLE")))
_UNKNOWN: Final = 1 << 32  # bytes of a READ whose length the capture does not have: any number of responses is right
_MTUS: Final = (256, 512, 1024, 2048, 4096)  # of a path: the payload of full packets
NAK_REASONS: Final = {
    0x60: "sequence", 0x61: "invalid request", 0x62: "access", 0x63: "operation", 0x64: "invalid RD request",
}  # fmt: skip


@dataclass(slots=True)
class QpConversation:
    """All packets from one address to one queue pair of another, as one port saw them. bytes: on the wire.

    data: requests, which have PSNs of their own; responses: those of RDMA READs. naks: by reason; reserved: answers
    whose syndrome has no meaning. ce: marked packets. dscps, pcps: packets by DSCP, and by the PCPs of their VLAN tags.
    copies: see Copies. They are in no other sum but packets, bytes, dscps and pcps.
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
    copies: int = 0
    icrc_wrong: int = 0
    naks: Counter[str] = field(default_factory=Counter)
    reserved: Counter[str] = field(default_factory=Counter)
    dscps: Counter[str] = field(default_factory=Counter)
    pcps: Counter[str] = field(default_factory=Counter)
    sports: set[int] = field(default_factory=set)
    order: PsnOrder = field(default_factory=PsnOrder)
    order_of_responses: PsnOrder = field(default_factory=PsnOrder)
    sender: CountedSender = field(default_factory=CountedSender)
    requester: QpConversation | None = None  # of READ responses: the queue pair that answers these READs
    _mtu: int = 0  # 0: not known
    _read: int | None = None  # bytes that the last request asked for
    _reads: dict[int, int] = field(default_factory=dict)  # PSN -> bytes asked for, of READs without a response so far
    _unended: bool = False  # the last response was not the last one of its READ

    def add(
        self, what: Dissected, wire_bytes: int, *, icrc_wrong: bool, original: OriginalPacket | None = None
    ) -> None:
        """Count one packet. A packet with a wrong ICRC is no evidence for anything but itself, nor is a copy."""
        fields, marked = what.fields, what.fields["ecn"] == "ce"
        self.packets += 1
        self.bytes += wire_bytes
        self.dscps[str(fields["dscp"])] += 1
        pcp = str(fields.get("pcp", UNTAGGED))
        self.pcps[pcp if pcp in self.pcps or len(self.pcps) < _MOST_PCPS else "others"] += 1
        if original is not None:
            self.copies += 1
            self.ce += marked and not original.marked and not icrc_wrong  # behind the switch that has marked it
            original.marked |= marked
            return
        self.icrc_wrong += icrc_wrong
        if icrc_wrong:
            return
        payload, psn = int(fields["payload_bytes"]), int(fields["psn"])
        self.payload += payload
        self.ce += marked
        if len(self.sports) <= _FEW:
            self.sports.add(int(fields["sport"]))
        code = what.opcode
        if code in _FULL and payload in _MTUS:
            self._mtu = payload
        if code == wire.CNP:
            self.cnps += 1
        elif code == wire.ACK:
            if what.kind != ROCE_CUT:
                self._answer(what.kind, int(fields["syndrome"]))
        elif code == wire.ATOMIC_ACK:
            self.acks += 1
        elif code in _RESPONSES:
            self._response(code, psn)
        elif code in wire.OPCODE_NAMES:
            asked = int(fields.get("read_bytes", _UNKNOWN)) if code == wire.READ_REQUEST else None
            self._request(code, psn, asked)

    def _answer(self, kind: str, syndrome: int) -> None:
        if kind == "RoCE NAK":
            self.naks[NAK_REASONS.get(syndrome, f"reserved {syndrome:#04x}")] += 1
        elif kind == "RoCE RNR":
            self.rnrs += 1
        elif kind == "RoCE ACK":
            self.acks += 1
        else:
            self.reserved[f"{syndrome:#04x}"] += 1

    def _request(self, code: int, psn: int, asked: int | None) -> None:
        self.data += 1
        between = self.order.between(psn)
        # The responses to a READ use the numbers behind its own.
        used = 0 if self._read is None else self._packets_of(self._read, between + 1) - 1
        lost = [(1 + used, between - used)] if between > used else []
        span = 1 if asked is None else self._packets_of(asked)
        if not self.order.add(psn, lost, starts=code not in _WITHIN, span=span):
            return
        self._read = asked
        if asked is not None and asked != _UNKNOWN:
            self._reads[psn] = asked
            if len(self._reads) > _MOST_READS:
                del self._reads[next(iter(self._reads))]

    def _packets_of(self, asked: int, most: int = wire.PSN_HALF) -> int:
        """The number of responses to a READ, `most` at most; if the MTU is not known, the largest that it can be."""
        counts = [max(1, -(-asked // mtu)) for mtu in ((self._mtu,) if self._mtu else _MTUS)]
        return max((count for count in counts if count <= most), default=most)

    def _response(self, code: int, psn: int) -> None:
        self.responses += 1
        order, first = self.order_of_responses, code not in _WITHIN
        between = order.between(psn)
        lost: list[Range] = []
        if self.requester is not None:
            self.requester._mtu = self.requester._mtu or self._mtu
        if between > 0 and self.requester is not None:
            lost = self.requester.unanswered(order.last, between)
        elif between > 0 and not first:
            lost = [(1, between) if self._unended else (between, 1)]
        elif between > 0 and self._unended:  # the other numbers may be those of requests
            lost = [(1, 1)]
        order.add(psn, lost, starts=first)
        self._unended = code in _FULL

    def unanswered(self, last: int, between: int) -> list[Range]:
        """The responses to this queue pair's READs that are missing among the numbers between two responses."""
        lost = []
        for psn, asked in list(self._reads.items()):
            start = wire.psn_after(psn, last)
            end = start + (self._packets_of(asked) if self._mtu else -(-asked // _MTUS[-1]) or 1)
            if end <= 1:
                del self._reads[psn]
            elif start <= between:
                start, end = max(start, 1), min(end, between + 1)
                lost.append((start, end - start))
        return lost

    def to_json(self) -> dict[str, Any]:
        """Flat, but for the order of PSNs and the reasons of NAKs."""
        return {
            "port": self.port, "src": self.src, "dst": self.dst, "qpn": self.qpn,
            "packets": self.packets, "bytes": self.bytes, "payload_bytes": self.payload, "data": self.data,
            "responses": self.responses, "acks": self.acks, "naks": dict(self.naks), "rnrs": self.rnrs,
            "reserved": dict(self.reserved), "cnps": self.cnps, "ce": self.ce, "icrc_wrong": self.icrc_wrong,
            "copies": self.copies, "dscp": dict(self.dscps), "pcp": dict(self.pcps),
            "sports": sorted(self.sports)[:_FEW],
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
    cut: int = 0  # RoCEv2 packets of which the capture has no BTH
    copies: int = 0
    uncounted: int = 0  # RoCEv2 packets of more queue pairs than are counted one by one
    kinds: Counter[str] = field(default_factory=Counter)
    kind_bytes: Counter[str] = field(default_factory=Counter)
    tunnels: Counter[str] = field(default_factory=Counter)
    opcodes: Counter[str] = field(default_factory=Counter)
    ecn: Counter[str] = field(default_factory=Counter)
    icrc: Counter[str] = field(default_factory=Counter)
    wrong: list[int] = field(default_factory=list)  # numbers of the first packets with a wrong ICRC
    qps: dict[tuple[str, str, str, int], QpConversation] = field(default_factory=dict)
    pauses: dict[tuple[str, str, str], PauseCount] = field(default_factory=dict)
    _seen: Copies = field(default_factory=Copies)
    # Port, addresses and PSN of a READ -> its queue pair; None if several have one with that PSN.
    _asked: dict[tuple[str, str, str, int], QpConversation | None] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first packet to the last."""
        return max(0, self.last_ns - self.first_ns) / 1e9

    @property
    def roce(self) -> int:
        """RoCEv2 packets with a BTH."""
        return sum(self.opcodes.values())

    @property
    def dscps(self) -> Counter[str]:
        """Packets of all queue pairs by DSCP."""
        return sum((each.dscps for each in self.qps.values()), Counter[str]())

    @property
    def pcps(self) -> Counter[str]:
        """Packets of all queue pairs by PCP."""
        return sum((each.pcps for each in self.qps.values()), Counter[str]())

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
        if what.tunnel:
            self.tunnels[what.tunnel] += 1
        if packet.data is not None and what.ip_at and what.kind != ROCE_TRIMMED:
            self._roce(packet, what, packet.data)
        elif what.kind == ROCE_CUT:
            self.cut += 1
        for traffic_class, quanta in what.pauses:
            key = packet.port, what.src, traffic_class
            if key in self.pauses or len(self.pauses) < _MOST_PAUSED:
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
            if len(self.qps) == _MOST_QPS:
                self.uncounted += 1
                return
            found = self.qps[key] = QpConversation(*key)
        original = self._seen.original(key, found.sender, frame, what, packet.time_ns)
        self.copies += original is not None
        if original is None and icrc != "wrong" and (what.opcode == wire.READ_REQUEST or what.opcode in _RESPONSES):
            self._paired(found, what.opcode, what.src, what.dst, int(fields["psn"]))
        found.add(what, packet.wire_bytes, icrc_wrong=icrc == "wrong", original=original)

    def _paired(self, found: QpConversation, code: int, src: str, dst: str, psn: int) -> None:
        """Find the queue pair whose READs another one's responses answer: by addresses, and by the PSN of a READ."""
        if code == wire.READ_REQUEST:
            key = found.port, src, dst, psn
            self._asked[key] = found if self._asked.get(key, found) is found else None
            if len(self._asked) > _MOST_ASKED:
                del self._asked[next(iter(self._asked))]
        elif code not in _WITHIN and found.requester is None:
            found.requester = self._asked.get((found.port, dst, src, psn))
