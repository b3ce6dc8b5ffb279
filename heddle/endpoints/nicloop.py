"""The Python loop: it drives a worker's NICs for every transport that builds its own frames.

In:  endpoints, queue pairs, the time limit of a turn. Out: messages in ranks' memories, reports of QPs and NICs.
One pass receives the frames of all NICs. Passes begin at least `moderation_s` after each other, like a NIC's
interrupts (ethtool's rx-usecs): then one pass handles several frames at the cost of one. The first pass after a pause
begins at once.
"""

from __future__ import annotations

import errno
import select
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Final

from heddle.endpoints.admission.admitted import Admitted
from heddle.endpoints.admission.ctsends import CTS_BYTES
from heddle.endpoints.congestion.controlled import Controlled
from heddle.endpoints.congestion.ratecontrol import Shaper
from heddle.endpoints.connections import Connection, QpConnection, Wants
from heddle.endpoints.loops import NicError, NicLoop
from heddle.endpoints.nic.nic import Nic, QueuePair
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.ranks import Rank
from heddle.endpoints.reports import NicReport, QpReport
from heddle.endpoints.transports.protocol import Transport
from heddle.traffic.flow import Endpoint, qpns_of
from heddle.traffic.options import QpMode
from heddle.traffic.plan import Plan
from heddle.wire.layout import LAYOUTS

SEND_FRAMES: Final = 16  # maximum number of frames in the port's queue, which is the NIC's own queue
TICK_S: Final = 0.02  # time between two attempts on a link that was down
REST_TURNS: Final = 4  # number of reads at the end of a run
REST_S: Final = 3600.0  # longer than any delay
_MODERATION_FRAMES: Final = 3
_MODERATION_S: Final = 0.001  # the longest time that a frame may wait for the next pass


def moderation_s(plan: Plan) -> float:
    """Seconds between two passes: the time of a few full frames on the fastest NIC, and 1 ms at most.

    A NIC's queue has room for SEND_FRAMES frames, so its port does not run out of data meanwhile.
    """
    frame = 8 * (plan.ib_mtu + LAYOUTS[plan.ip_version].overhead_bytes)
    return min(_MODERATION_S, _MODERATION_FRAMES * frame / max(each.rate_bps for each in plan.endpoints))


def open_sockets(plan: Plan, endpoint: Endpoint, netns: Path) -> tuple[PacketSocket, PacketSocket]:
    """Two sockets: one sends data and receives all frames, one sends answers and counts frames for other MACs."""
    # The program at the NIC's ingress hides RoCE from the host's own stack, so no socket has to bind its UDP port.
    mtu, version = plan.ib_mtu, plan.ip_version
    qpns = qpns_of(endpoint)
    data = PacketSocket(netns, endpoint.port, mtu, send_frames=SEND_FRAMES, version=version, qpns=qpns)
    try:
        return data, PacketSocket(netns, endpoint.port, mtu, version=version, qpns=qpns, foreign=True)
    except OSError:
        data.close()
        raise


class PythonLoop(NicLoop):
    """The loop for every transport, and the reference for the compiled loop."""

    name: ClassVar[str] = "python"

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        moderation: float,
        congestion: Controlled | None = None,
        admitted: Admitted | None = None,
    ) -> None:
        self._plan, self._transport, self._moderation, self._congestion = plan, transport, moderation, congestion
        self._admitted = admitted
        self._nics: dict[int, Nic] = {}
        self._shapers: defaultdict[int, dict[bytes, Shaper]] = defaultdict(dict)  # of the congestion control, by rank
        self._by_fd: dict[int, Nic] = {}
        self._ends: list[QueuePair] = []
        self._poll = select.epoll()
        self._next_tick = self._last_pass = 0.0
        self._stop_fd = -1

    def open(self, endpoint: Endpoint, netns: Path, rkey: int) -> None:
        data, answers = open_sockets(self._plan, endpoint, netns)
        largest = max(self._transport.answer_bytes, CTS_BYTES if self._admitted is not None else 0)
        nic = Nic(data, answers, self._plan.ib_mtu, self._plan.ip_version, largest, self._plan.trim_dscps)
        self._nics[endpoint.rank] = nic
        self._by_fd[data.fileno()] = nic
        self._poll.register(data.fileno(), select.EPOLLIN)

    def sender(self, rank: int, qp: QpInfo) -> int:
        end = self._transport.sender(qp)
        if self._congestion is not None:
            end = self._congestion.sender(end, qp, self._plan.endpoints[rank].rate_bps, self._shapers[rank])
        if self._admitted is not None:
            end = self._admitted.sender(rank, qp, end)
        pair = QueuePair(self._nics[rank], qp, end)
        self._nics[rank].add(pair)
        self._ends.append(pair)
        return len(self._ends) - 1

    def link(self, rank: int, ends: Sequence[int], mode: QpMode) -> Connection:
        pairs = [self._ends[end] for end in ends]
        connection = QpConnection(pairs, mode)
        return connection if self._admitted is None else self._admitted.link(connection, pairs[0])

    def wants(self, rank: int) -> Wants | None:
        return self._admitted.wants(rank) if self._admitted is not None else None

    def receiver(self, rank: int, qp: QpInfo, memory: Rank) -> None:
        nic = self._nics[rank]
        end = self._transport.receiver(qp, memory)
        if self._congestion is not None:
            end = self._congestion.receiver(end, qp)
        if self._admitted is not None:
            end = self._admitted.receiver(rank, qp, end)
        pair = QueuePair(nic, qp, end)
        nic.add(pair)
        if self._admitted is not None:
            self._admitted.open(rank, pair)

    def turn(self, until: float, stop_fd: int) -> bool:
        if stop_fd != self._stop_fd:
            self._poll.register(stop_fd, select.EPOLLIN)
            self._stop_fd = stop_fd
        now = time.monotonic()
        for rank, nic in self._nics.items():
            if nic.eager:
                try:
                    nic.transmit(now)
                except OSError as error:
                    small = error.errno == errno.EMSGSIZE
                    why = "has a smaller MTU than its packets" if small else f"is gone: {error.strerror}"
                    raise NicError(rank, f"its port {why}") from None
                self._watch(nic)
        due = min(until, self._next_tick, *(nic.deadline for nic in self._nics.values()))
        rest = min(self._last_pass + self._moderation, until) - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        return self._pass(due)

    def _pass(self, due: float) -> bool:
        """Wait for frames until `due`, receive them, and check timers."""
        ready = self._poll.poll(max(0.0, due - time.monotonic()))
        # Timers expire by the time of this look. Frames that arrived until then are read first: a worker that had no
        # processor for a while would otherwise take a packet for lost that waits in its socket.
        self._last_pass = now = time.monotonic()
        if now >= due:
            ready = self._poll.poll(0)
        for fd, events in ready:
            if fd == self._stop_fd:
                return True
            nic = self._by_fd[fd]
            if events & (select.EPOLLIN | select.EPOLLERR):
                nic.receive(time.monotonic())
            if events & select.EPOLLOUT:
                nic.blocked = False
                nic.eager = True
        if now >= self._next_tick:
            self._tick(now)
        for nic in self._nics.values():
            if nic.deadline <= now:
                nic.expire(now)
        return False

    def _tick(self, now: float) -> None:
        """Check timers and errors, and try again to send on ports that were blocked."""
        self._next_tick = now + TICK_S
        for rank, nic in self._nics.items():
            nic.expire(now)
            nic.blocked = False
            nic.eager = True
            for qpn, why in nic.errors():
                raise NicError(rank, why, qpn)

    def _watch(self, nic: Nic) -> None:
        """Poll for writability only while the socket is full."""
        events = select.EPOLLIN | (select.EPOLLOUT if nic.blocked else 0)
        if events != nic.events:
            self._poll.modify(nic.socket.fileno(), events)
            nic.events = events

    def take_rest(self) -> None:
        for nic in self._nics.values():
            for _ in range(REST_TURNS):
                nic.receive(time.monotonic())
            nic.expire(time.monotonic() + REST_S)

    def idle(self) -> bool:
        return all(nic.idle for nic in self._nics.values())

    def qp_reports(self) -> Iterable[QpReport]:
        for rank, nic in self._nics.items():
            for pair in nic.qps.values():
                yield QpReport(
                    rank, pair.qpn, pair.sent, pair.received, pair.ce, dict(pair.end.counters()),
                    pair.end.rates(), pair.end.standing, pair.end.waits(), dict(pair.damaged),
                )  # fmt: skip

    def nic_reports(self) -> Iterable[NicReport]:
        for rank, nic in self._nics.items():
            yield NicReport(replace(nic.counters, foreign=self.foreign(rank)), nic.socket.drops())

    def foreign(self, rank: int) -> int:
        """Those that the second socket has counted."""
        return self._nics[rank].answers.passed()

    def close(self) -> None:
        for nic in self._nics.values():
            nic.close()
        self._poll.close()
