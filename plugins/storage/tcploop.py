"""Drive a worker's ranks over TCP: sockets in the hosts' namespaces, non-blocking, in one epoll.

In:  endpoints, queue pairs as planned, messages of ranks. Out: messages in ranks' memories, TCP_INFO as reports of QPs.
A stream is a sequence of messages, each with a lead: its address, key, immediate and length. All connect before the
first message: later their handshakes would meet full queues. At the end each socket closes without a packet
(TCP_REPAIR): a FIN would be counted by switches after the ranks have reported, and would keep the 5-tuple for a minute.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final, Protocol

from heddle.endpoints.connections import Connection, QpConnection
from heddle.endpoints.loops import NicError, NicLoop
from heddle.endpoints.nic.qpend import Message, PathUse, QpInfo
from heddle.endpoints.ranks import Rank
from heddle.endpoints.reports import NicReport, QpReport
from heddle.kernel.namespace import inside
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import QpMode
from heddle.traffic.plan import Plan
from heddle.wire.layout import IPV4_BYTES, IPV6_BYTES
from heddle_plugins.storage.tcpinfo import NONE, TcpInfo
from heddle_plugins.storage.tcpparams import LEAD, TcpParams

_TIOCOUTQ: Final = 0x5411  # bytes that the peer has not acknowledged
_TCP_REPAIR: Final = 19
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")  # the last is SK_MEMINFO_DROPS
_PARTS: Final = 64  # buffers of one call
_ECN: Final = Path("/proc/sys/net/ipv4/tcp_ecn")  # for IPv6, too
_ERRORS: Final = {
    errno.ETIMEDOUT: "no acknowledgement for {:.0f} s: is the path or the peer's host down?",
    errno.ECONNREFUSED: "the peer does not listen",
    errno.ECONNRESET: "the peer has ended",
    errno.EHOSTUNREACH: "no route to the peer",
    errno.ENETUNREACH: "no route to the peer",
    errno.EADDRINUSE: "its port is in use by another program in the host",
    errno.EADDRNOTAVAIL: "its 5-tuple was in use less than a minute ago by a program that ended: wait, then run again",
    errno.ENOENT: "the host's kernel does not have --tcp-control {1}",
}


class _End(Protocol):
    """One end of a stream."""

    qp: QpInfo
    rank: int

    def fileno(self) -> int:
        """The socket in epoll."""

    def work(self, events: int) -> None:
        """Handle events of the socket; OSError when the stream has failed."""

    def report(self) -> QpReport:
        """Its counters."""

    def close(self) -> None:
        """Close it without a packet."""


def _silent(sock: socket.socket) -> None:
    with suppress(OSError):  # the peer has reset it
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
    sock.close()


class Sender(_End):
    """The sending end. It has no socket before `connect`."""

    def __init__(self, loop: TcpLoop, rank: int, netns: Path, qp: QpInfo) -> None:
        self._loop, self.rank, self._netns, self.qp = loop, rank, netns, qp
        self._sock: socket.socket | None = None
        self._waiting: deque[memoryview] = deque()
        self._connected = False
        self._syns = 0
        self._last: TcpInfo | None = None

    def fileno(self) -> int:
        return self._sock.fileno() if self._sock is not None else -1

    def connect(self) -> None:
        """Begin the handshake, once: every peer listens."""
        if self._sock is None:
            self._sock = self._loop.connected(self.qp, self._netns)
            self._loop.watch(self, select.EPOLLOUT)

    def post(self, message: Message) -> None:
        """Send a message: as much of it as the socket takes now, the rest later."""
        lead = LEAD.pack(message.va, message.rkey, message.imm, len(message.payload))
        self._waiting += [memoryview(lead), message.payload]
        try:
            if self._connected and len(self._waiting) == 2:
                self._flush()
        except OSError as error:
            raise self._loop.failed(self, error) from None

    def work(self, events: int) -> None:
        if self._sock is None:
            return
        if code := self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        if events & select.EPOLLHUP:
            raise OSError(errno.ECONNRESET, "reset")
        if not self._connected and events & select.EPOLLOUT:
            self._connected = True
            self._syns = 1 + TcpInfo.of(self._sock).retransmitted  # no data yet, and ACKs are not retransmitted
        self._flush()

    def _flush(self) -> None:
        while self._waiting and self._sock is not None:
            try:
                sent = self._sock.sendmsg([self._waiting[at] for at in range(min(_PARTS, len(self._waiting)))])
            except BlockingIOError:
                break
            while sent:
                first = self._waiting.popleft()
                if sent < len(first):
                    self._waiting.appendleft(first[sent:])
                sent -= min(sent, len(first))
        self._loop.watch(self, select.EPOLLOUT if self._waiting else 0)

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged."""
        if self._sock is None or self._waiting:
            return not self._waiting
        return not struct.unpack("i", fcntl.ioctl(self._sock, _TIOCOUTQ, bytes(4)))[0]

    def report(self) -> QpReport:
        info = TcpInfo.of(self._sock) if self._sock is not None else self._last
        sport, found = self.qp.flow.sport, info or NONE
        used = PathUse(sport, found.segments_out, found.frames(self._loop.ip_bytes, self._syns) if info else 0)
        counters = {
            "retransmitted": found.retransmitted, "ece": found.delivered_ce, "rtt_us": found.rtt,
            "min_rtt_us": found.min_rtt, "cwnd": found.cwnd, "mss": found.mss,
        }  # fmt: skip
        return QpReport(self.rank, self.qp.qpn, (used,), (PathUse(sport, found.segments_in),), 0, counters)

    def close(self) -> None:
        if self._sock is not None:
            self._last = TcpInfo.of(self._sock)
            _silent(self._sock)
            self._sock = None


class Receiver(_End):
    """The receiving end: it listens, and accepts the one peer of the plan."""

    def __init__(self, loop: TcpLoop, rank: int, listener: socket.socket, qp: QpInfo, memory: Rank) -> None:
        self._loop, self.rank, self._sock, self.qp, self._memory = loop, rank, listener, qp, memory
        self._peer = (str(ip_address(qp.flow.dst_ip)), qp.peer_sport)
        self._accepted = False
        self._repeated = 0  # SYNs, of which the accepted socket counts one
        self._lead = bytearray(LEAD.size)
        self._into = memoryview(self._lead)  # where the next bytes go
        self._imm: int | None = None  # of the message that arrives
        self._last: TcpInfo | None = None

    def fileno(self) -> int:
        return self._sock.fileno()

    def work(self, events: int) -> None:
        if not self._accepted:
            self._accept()
            return
        while True:
            try:
                count = self._sock.recv_into(self._into)
            except BlockingIOError:
                return
            if not count:
                raise OSError(errno.ECONNRESET, "the peer closed it")
            self._into = self._into[count:]
            while not len(self._into):
                self._next()

    def _next(self) -> None:
        """The lead, or the data, is complete."""
        if self._imm is not None:
            self._memory.arrived(self._imm)
            self._imm, self._into = None, memoryview(self._lead)
            return
        va, rkey, imm, length = LEAD.unpack(self._lead)
        found = self._memory.resolve(va, rkey, length)
        if found is None:
            raise OSError(errno.EPROTO, f"it has a message for an address or key that the rank does not have: {va:#x}")
        self._imm, self._into = imm, found

    def _accept(self) -> None:
        try:
            sock, address = self._sock.accept()
        except BlockingIOError:
            return
        if (str(ip_address(address[0].partition("%")[0])), address[1]) != self._peer:
            sock.close()
            return
        self._loop.forget(self)
        # Until the handshake ends, the kernel counts a repeated SYN as a drop of the listener (tcp_v4_rcv).
        self._repeated = _MEMINFO.unpack(self._sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1]
        self._sock.close()
        self._sock, self._accepted = sock, True
        _harden(sock)
        self._loop.watch(self, select.EPOLLIN)

    def report(self) -> QpReport:
        info = self._last if self._last is not None or not self._accepted else TcpInfo.of(self._sock)
        found = info or NONE
        came = (PathUse(self.qp.peer_sport, found.segments_in + self._repeated),)
        return QpReport(self.rank, self.qp.qpn, (), came, found.received_ce, {"out_of_order": found.out_of_order})

    def close(self) -> None:
        if self._accepted and self._last is None:
            self._last = TcpInfo.of(self._sock)
        _silent(self._sock)


def _harden(sock: socket.socket) -> None:
    """Non-blocking; a process that is killed leaves no TIME_WAIT, but resets the stream."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class TcpLoop(NicLoop):
    """The sockets of one worker's ranks."""

    name: ClassVar[str] = "tcp"

    def __init__(self, plan: Plan, params: TcpParams) -> None:
        self._plan, self._params = plan, params
        self._family = socket.AF_INET6 if plan.ip_version == 6 else socket.AF_INET
        self.ip_bytes = IPV6_BYTES if plan.ip_version == 6 else IPV4_BYTES
        self._netns: dict[int, Path] = {}
        self._senders: list[Sender] = []
        self._receivers: list[Receiver] = []
        self._by_fd: dict[int, _End] = {}
        self._masks: dict[int, int] = {}
        self._poll = select.epoll()
        self._stop_fd = -1

    def open(self, endpoint: Endpoint, netns: Path, rkey: int) -> None:
        self._netns[endpoint.rank] = netns

    def sender(self, rank: int, qp: QpInfo) -> int:
        self._senders.append(Sender(self, rank, self._netns[rank], qp))
        return len(self._senders) - 1

    def link(self, rank: int, ends: Sequence[int], mode: QpMode) -> Connection:
        return QpConnection([self._senders[end] for end in ends], mode)

    def receiver(self, rank: int, qp: QpInfo, memory: Rank) -> None:
        try:
            sock = self._bound(self._netns[rank], qp, qp.qpn & 0xFFFF)
            sock.listen(1)
        except OSError as error:
            raise NicError(rank, self._text(error), qp.qpn) from None
        end = Receiver(self, rank, sock, qp, memory)
        self._receivers.append(end)
        self.watch(end, select.EPOLLIN)

    def _bound(self, netns: Path, qp: QpInfo, port: int) -> socket.socket:
        """A socket of a host at a port of its own address."""
        params = self._params
        with inside(netns):
            sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            _harden(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, params.control.encode())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(params.timeout_s * 1000))
            if self._family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, params.tos)
            else:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, params.tos)
            sock.bind((str(ip_address(qp.flow.src_ip)), port))
        except OSError:
            sock.close()
            raise
        return sock

    def connected(self, qp: QpInfo, netns: Path) -> socket.socket:
        """A socket that begins to connect to the peer of a queue pair. Its SYN says whether ECN is negotiated."""
        sock = self._bound(netns, qp, qp.flow.sport)
        try:
            with inside(netns), _ecn(netns, on=self._params.ecn), suppress(BlockingIOError):
                sock.connect((str(ip_address(qp.flow.dst_ip)), qp.flow.dqpn & 0xFFFF))
        except OSError:
            sock.close()
            raise
        return sock

    def watch(self, end: _End, mask: int) -> None:
        """Wait for these events of an end, besides errors."""
        fd = end.fileno()
        if fd not in self._by_fd:
            self._by_fd[fd], self._masks[fd] = end, mask
            self._poll.register(fd, mask)
        elif self._masks[fd] != mask:
            self._masks[fd] = mask
            self._poll.modify(fd, mask)

    def forget(self, end: _End) -> None:
        """Before a socket is closed."""
        del self._by_fd[end.fileno()], self._masks[end.fileno()]
        self._poll.unregister(end.fileno())

    def failed(self, end: _End, error: OSError) -> NicError:
        """The error of a stream."""
        return NicError(end.rank, self._text(error), end.qp.qpn)

    def _text(self, error: OSError) -> str:
        known = _ERRORS.get(error.errno or 0)
        return str(error.strerror) if known is None else known.format(self._params.timeout_s, self._params.control)

    def begin(self) -> None:
        for sender in self._senders:
            try:
                sender.connect()
            except OSError as error:
                raise self.failed(sender, error) from None

    def turn(self, until: float, stop_fd: int) -> bool:
        if stop_fd != self._stop_fd:
            self._poll.register(stop_fd, select.EPOLLIN)
            self._stop_fd = stop_fd
        heard = False
        for fd, events in self._poll.poll(max(0.0, until - time.monotonic())):
            heard |= fd == stop_fd
            if (end := self._by_fd.get(fd)) is not None:
                try:
                    end.work(events)
                except OSError as error:
                    raise self.failed(end, error) from None
        return heard

    @property
    def _ends(self) -> Sequence[_End]:
        return [*self._senders, *self._receivers]

    def take_rest(self) -> None:
        self.close()

    def idle(self) -> bool:
        return all(sender.idle for sender in self._senders)

    def qp_reports(self) -> Iterable[QpReport]:
        return [end.report() for end in self._ends]

    def nic_reports(self) -> Iterable[NicReport]:
        """The kernel drops what no socket takes without a report."""
        return [NicReport(None, None) for _ in self._netns]

    def close(self) -> None:
        for end in self._ends:
            end.close()
        self._poll.close()


@contextmanager
def _ecn(netns: Path, *, on: bool) -> Iterator[None]:
    """Whether SYNs of this namespace, in which the thread is, ask for ECN. Workers of other ranks there wait."""
    lock = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = _ECN.read_text(encoding="ascii").strip()
        if on is (before not in ("0", "2")):  # 2: only if the peer asks for it
            yield
            return
        _ECN.write_text("1" if on else "2", encoding="ascii")
        try:
            yield
        finally:
            _ECN.write_text(before, encoding="ascii")
    finally:
        os.close(lock)
