"""One NIC: queue pairs above, packet sockets below. Only the ends (QpEnd) of its queue pairs depend on a transport.

In:  frames from the socket, messages from ranks.
Out: frames to the socket, writes into the ranks' memory.
The NIC sends at line rate because its port is shaped: the socket has room for only a few frames, and when it is full
the NIC waits until the port has sent some. QPs take turns. Answers (ACKs and others) use another traffic class than
data, and a separate socket, so they are still sent while data is paused. Timers stop while the port sends no data at
all.
"""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
import struct
from collections import defaultdict, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from heddle.endpoints.nic.frames import FrameBuffer, Parser, Received, SendBatch, frame_bytes_for, ip_checksum
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import NEVER, Message, PathUse, QpEnd, QpInfo
from heddle.wire import layout as wire
from heddle.wire.sack import TRIMMED, TRIMMED_LAST

TURN: Final = 8  # packets that one QP sends before the turn of the next one
FILL: Final = 16  # frames that are built before they are passed to the socket
_SOLICITATION: Final = 135  # ICMPv6 type
STALLED_S: Final = 0.02  # a full port that has accepted no data for this time counts as paused
READS: Final = 4  # full batches that are read before the turn of the next NIC


@dataclass(slots=True)
class NicCounters:
    """Frames that arrived and were not passed to any QP, by reason."""

    malformed: int = 0
    icrc_errors: int = 0
    stray: int = 0  # for no QP of this NIC, not from the QP's peer, or of a kind unknown to its transport
    foreign: int = 0  # unicast, for another MAC


class QueuePair:
    """One end of a connection at its NIC, with its counters.

    packets, bytes: data frames that were sent, and frame bytes; retransmitted frames count again.
    ce: frames that arrived with a mark (congestion experienced). taken, damaged: UDP source port -> frames that arrived
    for this end, and those with a wrong ICRC.
    """

    __slots__ = (
        "_nic", "answers", "bytes", "ce", "damaged", "delay", "end", "order", "packets", "peer_ip", "qpn", "sport",
        "taken", "timer", "waiting",
    )  # fmt: skip

    def __init__(self, nic: Nic, qp: QpInfo, end: QpEnd) -> None:
        self._nic = nic
        self.qpn = qp.qpn
        self.sport = qp.flow.sport
        self.peer_ip = int.from_bytes(qp.flow.dst_ip, "big")
        self.end = end
        self.delay = qp.delay_s
        self.order = 0  # among the QPs of its NIC
        self.packets = self.bytes = self.ce = 0
        self.taken: defaultdict[int, int] = defaultdict(int)
        self.damaged: defaultdict[int, int] = defaultdict(int)
        self.waiting = False  # is in the NIC's round
        self.answers = False  # is in the NIC's list of QPs with answers
        self.timer = NEVER  # the earliest of its entries in the NIC's timers

    @property
    def sent(self) -> tuple[PathUse, ...]:
        """Its data frames by path, as its end reports."""
        return self.end.paths(PathUse(self.sport, self.packets, self.bytes))

    @property
    def received(self) -> tuple[PathUse, ...]:
        """The frames that arrived for it, by path."""
        return tuple(PathUse(sport, packets) for sport, packets in self.taken.items())

    def post(self, message: Message) -> None:
        """Queue a message, to be sent at this QP's turn."""
        self.end.post(message)
        self._nic.wake(self)

    def changed(self) -> None:
        """Its end was changed from outside the NIC, and may have frames to send or another deadline."""
        self._nic.look(self)


class Nic:
    """Drives all queue pairs of one port.

    packet_socket: sends data and receives all frames. answers: only sends. version: of IP, as in the sockets.
    answer_bytes: the largest payload of an answer. trim_dscps: of trimmed packets, and of those of the last hop.
    """

    def __init__(
        self, packet_socket: PacketSocket, answers: PacketSocket, ib_mtu: int, version: int = 4, answer_bytes: int = 0,
        trim_dscps: tuple[int, int] = (wire.DSCP_TRIMMED, wire.DSCP_TRIMMED_LAST),
    ) -> None:  # fmt: skip
        self.socket = packet_socket
        self.counters = NicCounters()
        self.blocked = False  # the data socket is full; wait until it can be written
        self.eager = False  # may have something to send
        self.events = select.EPOLLIN  # the events for which the worker polls this NIC
        self._timers: list[tuple[float, int, QueuePair]] = []  # a heap: (when, order, QP); may be earlier than needed
        self.qps: dict[int, QueuePair] = {}
        self._batch = SendBatch(ib_mtu, version=version)
        trimmed = dict(zip(trim_dscps, (TRIMMED, TRIMMED_LAST), strict=True))
        self._parser = Parser(version=version, trimmed=trimmed)
        self._filled = 0
        self._sent = 0
        self._round: deque[QueuePair] = deque()
        self._answering: deque[QueuePair] = deque()
        self.answers = answers
        self._answer_batch = SendBatch(answer_bytes, slots=FILL, version=version)
        self._answer_filled = self._answer_sent = 0
        self._late = FrameBuffer(frame_bytes_for(ib_mtu, version), version=version)  # frames taken from `_lines`
        # Delay of a path -> frames received by such paths that count as arrived later: (when, frame), in order.
        self._lines: dict[float, deque[tuple[float, bytes]]] = {}
        self._took = self._looked = 0.0  # times: the port last accepted data; timers were last checked

    def add(self, qp: QueuePair) -> None:
        """Open a queue pair."""
        qp.order = len(self.qps)
        self.qps[qp.qpn] = qp
        self._parser.expect(len(self.qps))
        if qp.delay:
            self._lines.setdefault(qp.delay, deque())

    def wake(self, qp: QueuePair) -> None:
        """Add a QP that may have data to send to the round."""
        if not qp.waiting:
            qp.waiting = True
            self._round.append(qp)
        self.eager = True

    @property
    def deadline(self) -> float:
        """The earliest time at which a timer or delay can expire; call `expire` then."""
        timer = self._timers[0][0] if self._timers else NEVER
        return min([timer, *(line[0][0] for line in self._lines.values() if line)]) if self._lines else timer

    @property
    def idle(self) -> bool:
        """Nothing to send, nothing unacknowledged."""
        return self._sent == self._filled and not self._has_answers and all(q.end.idle for q in self.qps.values())

    @property
    def _has_answers(self) -> bool:
        return bool(self._answering) or self._answer_sent < self._answer_filled

    def errors(self) -> list[tuple[int, str]]:
        """The QP numbers and errors of failed QPs."""
        return [(q.qpn, q.end.error) for q in self.qps.values() if q.end.error]

    def expire(self, now: float) -> None:
        """Call the ends whose timers have expired.

        Timers stop while the port accepts nothing, as when it is paused: the packets that they wait for are still in
        its queue, and a retransmission would only duplicate them.
        """
        if self.blocked and now - self._took > STALLED_S:
            for qp in self.qps.values():
                qp.end.hold(now - max(self._looked, self._took))
        self._looked = now
        self._release(now)
        while self._timers and self._timers[0][0] <= now:
            due: list[tuple[int, QueuePair]] = []
            while self._timers and self._timers[0][0] <= now:
                at, order, qp = heappop(self._timers)
                if at == qp.timer:  # else an outdated entry: the QP has had an earlier one since
                    qp.timer = NEVER
                    due.append((order, qp))
            for _, qp in sorted(due):  # QPs that share a rate take their turns in this order
                if qp.end.deadline <= now:
                    qp.end.expire(now)
                self.look(qp)

    def look(self, qp: QueuePair) -> None:
        """Queue a QP if it has frames to send, and register its timer."""
        end = qp.end
        if end.answering and not qp.answers:
            qp.answers = True
            self._answering.append(qp)
            self.eager = True
        if end.ready:
            self.wake(qp)
        self._watch(qp)

    def _watch(self, qp: QueuePair) -> None:
        """Register a QP's timer. If it has moved to a later time, this is detected when the earlier entry expires."""
        at = qp.end.deadline
        if at < qp.timer:
            qp.timer = at
            heappush(self._timers, (at, qp.order, qp))

    # sending

    def transmit(self, now: float) -> None:
        """Send all answers, then data until there is no more, or its socket is full (`blocked`)."""
        self._send_answers()
        while not self.blocked:
            if self._sent == self._filled:
                self._fill(now)
                if self._filled == 0:
                    self.eager = self._has_answers
                    return
            took = self.socket.send(self._batch, self._filled - self._sent, first=self._sent)
            self._sent += took
            if took:
                self._took = now
            if self._sent < self._filled:
                # A link that is down, or a full queue, causes no wake-up: the worker's tick tries again.
                self.blocked = self.socket.errno == errno.EAGAIN
                return

    def _send_answers(self) -> None:
        """Send answers. Those that the socket does not accept are offered again in the next call."""
        while self._has_answers:
            if self._answer_sent == self._answer_filled:
                self._answer_filled = self._answer_sent = 0
                while self._answering and self._answer_filled < FILL:
                    self._answer(self._answering.popleft())
            waiting = self._answer_filled - self._answer_sent
            took = self.answers.send(self._answer_batch, waiting, first=self._answer_sent)
            self._answer_sent += took
            if took < waiting:
                return

    def _answer(self, qp: QueuePair) -> None:
        """Build one answer; a QP with more answers waits for its next turn."""
        qp.end.answer(self._answer_batch, self._answer_filled)
        self._answer_filled += 1
        qp.answers = qp.end.answering
        if qp.answers:
            self._answering.append(qp)

    def _fill(self, now: float) -> None:
        slot, batch = 0, self._batch
        while self._round and slot < FILL:
            qp = self._round.popleft()
            end = qp.end
            count = end.take(batch, slot, min(TURN, FILL - slot), now)
            if count:
                qp.packets += count
                qp.bytes += int(batch.lengths[slot : slot + count].sum())
                slot += count
            self._watch(qp)
            if count and end.ready:
                self._round.append(qp)
            else:
                qp.waiting = False
        self._filled, self._sent = slot, 0

    def close(self) -> None:
        """Close its sockets."""
        self.socket.close()
        self.answers.close()

    # receiving

    def receive(self, now: float) -> None:
        """Receive frames, pass them to their QPs, and queue the QPs that then have frames to send."""
        touched: dict[int, QueuePair] = {}
        for _ in range(READS):
            buffer, lengths = self.socket.recv()
            if lengths:
                self._take(self._parser.parse(buffer, lengths), now, touched)
            if len(lengths) < buffer.slots:
                break
        for qp in touched.values():
            self.look(qp)

    def _take(self, got: Received, now: float, touched: dict[int, QueuePair], late: bool = False) -> None:
        for i, (sound, kind, qpn) in enumerate(zip(got.sounds, got.kinds, got.dqpns, strict=True)):
            qp = self.qps.get(qpn)
            ours = qp is not None and kind.src == qp.peer_ip
            size = kind.frame_bytes if sound else got.trimmed.get(i, 0)
            if not size or qp is None or not ours:
                if sound:
                    self.counters.stray += 1
                elif got.oks[i]:
                    self.counters.icrc_errors += 1
                else:
                    self.counters.malformed += 1
                if qp is not None and ours and got.oks[i]:  # a wrong ICRC: it arrived all the same
                    qp.damaged[kind.sport] += 1
                continue
            if qp.delay and not late:
                self._lines[qp.delay].append((now + qp.delay, bytes(got.buffer.frame_of(i, size))))
                continue
            if not (qp.end.receive if sound else qp.end.trimmed)(got, i, now):
                self.counters.stray += sound
                self.counters.malformed += not sound
                continue
            touched[qpn] = qp
            qp.taken[kind.sport] += 1
            if kind.ce:
                qp.ce += 1

    def _release(self, now: float) -> None:
        """Receive the frames whose delay is over."""
        touched: dict[int, QueuePair] = {}
        for line in self._lines.values():
            while line and line[0][0] <= now:
                lengths: list[int] = []
                while line and line[0][0] <= now and len(lengths) < self._late.slots:
                    frame = line.popleft()[1]
                    start = self._late.starts[len(lengths)]
                    self._late.mem[start : start + len(frame)] = frame
                    lengths.append(len(frame))
                self._take(self._parser.parse(self._late, lengths), now, touched, late=True)
        for qp in touched.values():
            self.look(qp)


def announce(interface: str, mac: str, ip: str, gateway_ip: str) -> None:
    """Send one ARP or ND request for the gateway, from inside the host's namespace: so the leaf learns this NIC's MAC
    before data arrives.

    Raises OSError when the interface does not exist.
    """
    own = bytes.fromhex(mac.replace(":", ""))
    asker, asked = ipaddress.ip_address(ip).packed, ipaddress.ip_address(gateway_ip).packed
    request = _arp_request(own, asker, asked) if len(asker) == 4 else _solicitation(own, asker, asked)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind((interface, 0))
        raw.send(request)


def _arp_request(mac: bytes, asker: bytes, asked: bytes) -> bytes:
    body = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, mac, asker, bytes(6), asked)
    return b"\xff" * 6 + mac + b"\x08\x06" + body


def _solicitation(mac: bytes, asker: bytes, asked: bytes) -> bytes:
    """A neighbour solicitation with our MAC in it (RFC 4861, section 4.3), to the asked one's multicast group."""
    group = ipaddress.IPv6Address("ff02::1:ff00:0").packed[:13] + asked[13:]
    body = struct.pack("!BBHI16sBB6s", _SOLICITATION, 0, 0, 0, asked, 1, 1, mac)
    pseudo = asker + group + struct.pack("!II", len(body), socket.IPPROTO_ICMPV6)  # RFC 8200, section 8.1
    body = body[:2] + struct.pack("!H", ip_checksum(pseudo + body)) + body[4:]
    # Receivers ignore it unless its hop limit is 255, which proves that it has crossed no router.
    header = struct.pack("!IHBB", 6 << 28, len(body), socket.IPPROTO_ICMPV6, 255) + asker + group
    return b"\x33\x33" + group[12:] + mac + struct.pack("!H", wire.ETHERTYPE_IPV6) + header + body
