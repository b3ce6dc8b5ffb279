"""One NIC: queue pairs above, packet sockets below.

In:  frames from the socket, messages from ranks.
Out: frames to the socket, writes into the ranks' memory.
The NIC sends at line rate because its port is shaped to it: the socket holds a few frames only, and when it is full
the NIC waits until the port has let some go. QPs take turns. Answers (ACK, NAK) are of another class than data and have
a socket of their own: while data is paused, they go on. Timers stand still while the port lets no data go at all.
"""

from __future__ import annotations

import errno
import ipaddress
import select
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from heddle.endpoints.nic.frames import FlowHeader, SendBatch, ip_checksum
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.parse import Parser, Received
from heddle.endpoints.transports.rc import Burst, Message, Requester, Responder, WritePacket
from heddle.wire import layout as wire
from heddle.wire.layout import ACK_NO_LIMIT

_TURN: Final = 8  # packets that one QP sends before the next has its turn
_FILL: Final = 16  # frames that are made before they are handed to the socket
_SOLICITATION: Final = 135  # ICMPv6 type
_READS: Final = 4  # full batches that are taken in before others have their turn

_WRITES: Final = {
    # opcode: (first, last, has RETH, has immediate)
    wire.WRITE_FIRST: (True, False, True, False),
    wire.WRITE_MIDDLE: (False, False, False, False),
    wire.WRITE_LAST: (False, True, False, False),
    wire.WRITE_LAST_IMM: (False, True, False, True),
    wire.WRITE_ONLY: (True, True, True, False),
    wire.WRITE_ONLY_IMM: (True, True, True, True),
}


@dataclass(slots=True)
class NicCounters:
    """Frames that arrived and were not given to any QP, by reason."""

    malformed: int = 0
    icrc_errors: int = 0
    stray: int = 0  # for no QP of this NIC, or not from its peer


class QueuePair:
    """One end of a connection: sends or receives data, and the answers to it."""

    __slots__ = ("_nic", "flow", "peer_ip", "qpn", "requester", "responder", "waiting")

    def __init__(
        self,
        nic: Nic,
        qpn: int,
        flow: FlowHeader,
        requester: Requester | None = None,
        responder: Responder | None = None,
    ) -> None:
        self._nic = nic
        self.qpn = qpn
        self.flow = flow
        self.peer_ip = int.from_bytes(flow.dst_ip, "big")
        self.requester = requester
        self.responder = responder
        self.waiting = False  # already in the NIC's round

    def post(self, message: Message) -> None:
        """Send a message when it is this QP's turn."""
        if self.requester is None:
            raise ValueError(f"QP {self.qpn:#x} only receives")
        self.requester.post(message)
        self._nic.wake(self)


class Nic:
    """Drives all queue pairs of one port.

    packet_socket: for data, and all that comes in. answers: only sends. version: of IP, as the sockets'.
    """

    def __init__(self, packet_socket: PacketSocket, answers: PacketSocket, ib_mtu: int, version: int = 4) -> None:
        self.socket = packet_socket
        self.counters = NicCounters()
        self.blocked = False  # the data socket is full; wait until it can be written
        self.eager = False  # may have something to send
        self.events = select.EPOLLIN  # what the worker's poll watches this NIC for
        self.qps: dict[int, QueuePair] = {}
        self._batch = SendBatch(ib_mtu, version=version)
        self._parser = Parser(version=version)
        self._filled = 0
        self._sent = 0
        self._round: deque[QueuePair] = deque()
        self._answers: deque[tuple[QueuePair, int, int, int]] = deque()
        self._answer_socket = answers
        self._answer_batch = SendBatch(0, slots=_FILL, version=version)
        self._answer_filled = self._answer_sent = 0
        self._took = self._looked = 0.0  # when the port last took data; when timers were last looked at

    def add(self, qp: QueuePair) -> None:
        """Open a queue pair."""
        self.qps[qp.qpn] = qp

    def wake(self, qp: QueuePair) -> None:
        """The QP may have something to send."""
        if not qp.waiting:
            qp.waiting = True
            self._round.append(qp)
        self.eager = True

    @property
    def idle(self) -> bool:
        """Nothing to send, nothing unacknowledged."""
        return (
            self._sent == self._filled
            and not self._answering
            and all(q.requester is None or q.requester.idle for q in self.qps.values())
        )

    @property
    def _answering(self) -> bool:
        return bool(self._answers) or self._answer_sent < self._answer_filled

    def errors(self) -> list[str]:
        """What QPs died of."""
        return [
            f"QP {q.qpn:#x}: {q.requester.error}"
            for q in self.qps.values()
            if q.requester is not None and q.requester.error
        ]

    def expire(self, now: float) -> bool:
        """Let the timers of all QPs look at the clock; True when one ran out.

        Timers stand still while the port takes nothing, as it does when it is paused: what they wait for is still in
        it, and sending that again would only double it.
        """
        if self.blocked and self._took < self._looked:
            for qp in self.qps.values():
                if qp.requester is not None:
                    qp.requester.hold(now - self._looked)
        self._looked = now
        late = [q for q in self.qps.values() if q.requester is not None and q.requester.deadline <= now]
        for qp in late:
            if qp.requester is not None:
                qp.requester.expire(now)
            self.wake(qp)
        return bool(late)

    # sending

    def transmit(self, now: float) -> None:
        """Send all answers, then data until there is no more, or its socket is full (`blocked`)."""
        self._send_answers()
        while not self.blocked:
            if self._sent == self._filled:
                self._fill(now)
                if self._filled == 0:
                    self.eager = self._answering
                    return
            took = self.socket.send(self._batch, self._filled - self._sent, first=self._sent)
            self._sent += took
            if took:
                self._took = now
            if self._sent < self._filled:
                # A link that is down or a queue that refuses gives no wake-up: the worker's tick tries again.
                self.blocked = self.socket.errno == errno.EAGAIN
                return

    def _send_answers(self) -> None:
        """What the socket does not take is offered again with the next call."""
        while self._answering:
            if self._answer_sent == self._answer_filled:
                self._answer_filled = self._answer_sent = 0
                while self._answers and self._answer_filled < _FILL:
                    qp, psn, syndrome, msn = self._answers.popleft()
                    self._answer_batch.put_ack(self._answer_filled, qp.flow, psn, syndrome, msn)
                    self._answer_filled += 1
            waiting = self._answer_filled - self._answer_sent
            took = self._answer_socket.send(self._answer_batch, waiting, first=self._answer_sent)
            self._answer_sent += took
            if took < waiting:
                return

    def _fill(self, now: float) -> None:
        slot = 0
        while self._round and slot < _FILL:
            qp = self._round.popleft()
            requester = qp.requester
            if requester is None:
                continue
            for burst in requester.take(min(_TURN, _FILL - slot), now):
                slot = self._put(slot, qp, requester, burst)
            if requester.ready > 0:
                self._round.append(qp)
            else:
                qp.waiting = False
        self._filled, self._sent = slot, 0

    def _put(self, slot: int, qp: QueuePair, requester: Requester, burst: Burst) -> int:
        """Write a burst's frames from `slot` on; the slot after them."""
        message = burst.message
        requester.counters.sent_bytes += self._batch.put_write(
            slot, qp.flow, burst.psn, message.payload,
            reth=(message.va, message.rkey, len(message.payload)), imm=message.imm,
            index=burst.start, count=burst.packets, ack_every=requester.params.ack_every,
        )  # fmt: skip
        return slot + burst.packets

    # receiving

    def receive(self, now: float) -> None:
        """Take in what has arrived, give it to its QPs, and queue their answers."""
        touched: dict[int, QueuePair] = {}
        for _ in range(_READS):
            buffer, lengths = self.socket.recv()
            if lengths:
                self._take(self._parser.parse(buffer, lengths), now, touched)
            if len(lengths) < buffer.slots:
                break
        for qp in touched.values():
            self._answer(qp)

    def _take(self, got: Received, now: float, touched: dict[int, QueuePair]) -> None:
        beyond = 0  # frames before this one have been taken as part of a run
        for i, (sound, kind, qpn) in enumerate(zip(got.sounds, got.kinds, got.dqpns, strict=True)):
            if i < beyond:
                continue
            qp = self.qps.get(qpn)
            if not sound or qp is None or kind.src != qp.peer_ip:
                self._turn_away(got.oks[i], sound)
                continue
            requester = qp.requester
            if kind.opcode == wire.ACK and requester is not None:
                syndrome, _ = got.aeth(i)
                requester.acknowledge(got.psns[i], syndrome, now)
                if requester.ready > 0:
                    self.wake(qp)
                continue
            write = _WRITES.get(kind.opcode)
            if write is None or qp.responder is None:
                self.counters.stray += 1
                continue
            touched[qpn] = qp
            beyond = got.run_end(i) if kind.opcode == wire.WRITE_MIDDLE else i + 1
            if kind.ce:
                qp.responder.counters.ce += beyond - i
            if beyond > i + 1:
                qp.responder.receive_middles(got.psns[i], got.block(i, beyond), any(got.ackreqs[i:beyond]))
                continue
            first, last, has_reth, has_imm = write
            reth = got.reth(i) if has_reth else None
            imm = got.imm(i) if has_imm else None
            packet = WritePacket(got.psns[i], first, last, got.ackreqs[i], reth, imm)
            qp.responder.receive(packet, got.payload(i))

    def _turn_away(self, ok: bool, sound: bool) -> None:
        """Count a frame that is for no QP here, by what was wrong with it."""
        if sound:
            self.counters.stray += 1
        elif ok:
            self.counters.icrc_errors += 1
        else:
            self.counters.malformed += 1

    def _answer(self, qp: QueuePair) -> None:
        """One ACK for all that a batch brought, or the NAK of its gap."""
        responder = qp.responder
        if responder is None:
            return
        if responder.reply is not None:
            psn, syndrome = responder.reply
            self._answers.append((qp, psn, syndrome, responder.msn))
        elif responder.ack_due:
            self._answers.append((qp, responder.acked, ACK_NO_LIMIT, responder.msn))
        else:
            return
        responder.reply = None
        responder.ack_due = False
        self.eager = True


def announce(interface: str, mac: str, ip: str, gateway_ip: str) -> None:
    """Ask for the gateway once, by ARP or ND, from inside the host's namespace: so the RTSW knows this NIC before data
    comes.

    Raises OSError when the interface is not there.
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
    # Receivers take none whose hop limit is not 255: it has crossed no router.
    header = struct.pack("!IHBB", 6 << 28, len(body), socket.IPPROTO_ICMPV6, 255) + asker + group
    return b"\x33\x33" + group[12:] + mac + struct.pack("!H", wire.ETHERTYPE_IPV6) + header + body
