"""Drive a worker's ranks over verbs: queue pairs of the hosts' RDMA devices, completions instead of frames.

In:  endpoints, queue pairs as planned, messages of ranks. Out: complete messages for ranks, counters of QPs.
A message is a SEND with immediate into memory that the receiver has posted; its data are copied to the rank at once,
and the memory is posted again. The sender posts whole messages while its window has room for their packets.
"""

from __future__ import annotations

import errno
import select
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from heddle.base.problems import CheckError, Problem
from heddle.endpoints import connections
from heddle.endpoints.loops import NicError, NicLoop
from heddle.endpoints.nic.qpend import Message, PathUse, QpInfo
from heddle.endpoints.ranks import Rank
from heddle.endpoints.rdma.verbsdevice import (
    WR_SEND_IMM,
    Completion,
    Memory,
    Peer,
    VerbsDevice,
    VerbsParams,
    VerbsQp,
    message_bytes,
)
from heddle.endpoints.reports import NicReport, QpReport
from heddle.kernel.namespace import inside
from heddle.kernel.rdma import link_name
from heddle.switch.counters import StackCounts, StackKey, StackRow
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import QpMode
from heddle.traffic.plan import Plan
from heddle.traffic.schedule import Key, Schedule
from heddle.wire.sport import flow_label_for_sport

_MOST_POSTED: Final = 64  # messages for which a receiving queue pair has memory, if they are short
_LEAST_POSTED: Final = 8
_POSTED_BYTES: Final = 4 << 20
_SENDS: Final = 128  # work requests that a sending queue pair can have
_HOP_LIMIT: Final = 64
_REST_TURNS: Final = 4


class _Sender:
    """A queue pair that sends: messages that wait, and the packets of those that are posted."""

    def __init__(self, nic: VerbsNic, qp: VerbsQp, window: int, mtu: int) -> None:
        self._nic, self._qp, self._window, self._mtu = nic, qp, window, mtu
        self._waiting: deque[Message] = deque()
        self._posted: deque[int] = deque()  # packets of each message
        self._packets = 0
        self.total = 0  # packets of all posted messages

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged."""
        return not self._waiting and not self._posted

    def post(self, message: Message) -> None:
        """Send a message when the window allows."""
        self._waiting.append(message)
        self._fill()

    def done(self) -> None:
        """The oldest message was acknowledged."""
        self._packets -= self._posted.popleft()
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._posted) < _SENDS:
            message = self._waiting[0]
            data = np.frombuffer(message.payload, np.uint8)
            packets = max(1, -(-len(data) // self._mtu))
            if self._posted and self._packets + packets > self._window:
                return
            address = int(data.__array_interface__["data"][0])
            memory = self._nic.memory_of(address, len(data))
            self._qp.post_send(WR_SEND_IMM, 0, address, len(data), memory.lkey, imm=message.imm)
            self._waiting.popleft()
            self._posted.append(packets)
            self._packets += packets
            self.total += packets


@dataclass(slots=True)
class _Receiver:
    """A queue pair that receives. index: its number in the connection."""

    qp: VerbsQp
    memory: Memory
    size: int  # bytes for each message
    index: int
    rank: Rank

    def post(self, slot: int) -> None:
        """Post the memory of a slot."""
        self.qp.post_receive(slot, self.memory.address + slot * self.size, self.size, self.memory.lkey)


@dataclass(slots=True)
class _Arriving:
    """A message of which parts are missing."""

    data: NDArray[np.uint8]
    parts: int


class VerbsNic:
    """One rank's device. It is the rank's `Destinations`: it learns the epochs and sizes of messages in advance."""

    def __init__(self, plan: Plan, endpoint: Endpoint) -> None:
        self._plan = plan
        self.rank = endpoint.rank
        qps = sum(endpoint.rank in (qp.flow.src_rank, qp.flow.dst_rank) for qp in plan.qps)
        self.device = VerbsDevice(link_name(plan.lab, endpoint.host, endpoint.port), endpoint.ip, _SENDS * qps)
        self.qps: list[tuple[QpInfo, bool]] = []  # with whether it sends
        self._made: dict[int, VerbsQp] = {}
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._from: dict[bytes, int] = defaultdict(int)  # receiving queue pairs by peer
        self._schedules: dict[int, tuple[int, Schedule]] = {}  # lowest bits of an epoch -> epoch, schedule
        self._arriving: dict[tuple[int, Key], _Arriving] = {}
        self._registered: list[Memory] = []
        o = plan.options
        self._split = o.qp_mode == "split"
        self._size = message_bytes(plan)

    def connect(self, qp: QpInfo, params: VerbsParams, *, sends: bool) -> VerbsQp:
        """Connect the queue pair with the planned number; OSError when the device does not give it that number."""
        # The device numbers queue pairs in the order of creation, and the plan those of a NIC in the same order.
        while qp.qpn not in self._made:
            made = VerbsQp(self.device, _SENDS, self._slots)
            self._made[made.qpn] = made
            if made.qpn > qp.qpn:
                why = f"the RDMA device numbers its queue pairs from {min(self._made):#x}: do other programs use it?"
                raise OSError(errno.EBUSY, why)
        self.qps.append((qp, sends))
        flow = qp.flow
        label = 0 if self._plan.options.source_ports.mode == "qpn" else flow_label_for_sport(flow.sport)
        peer = Peer(
            str(ip_address(flow.dst_ip)), flow.dqpn, qp.psn, self._plan.ib_mtu, params.traffic_class, label,
            _HOP_LIMIT, params.timeout, params.retries,
        )  # fmt: skip
        self._made[qp.qpn].connect(peer)
        return self._made[qp.qpn]

    @property
    def _slots(self) -> int:
        return max(_LEAST_POSTED, min(_MOST_POSTED, _POSTED_BYTES // self._size))

    def sender(self, qp: QpInfo, params: VerbsParams) -> _Sender:
        """Open a sending queue pair."""
        made = self.connect(qp, params, sends=True)
        found = self._senders[made.qpn] = _Sender(self, made, qp.window, self._plan.ib_mtu)
        return found

    def receiver(self, qp: QpInfo, params: VerbsParams, rank: Rank) -> None:
        """Open a receiving queue pair, and post its memory."""
        made = self.connect(qp, params, sends=False)
        memory = Memory(self.device, np.zeros(self._slots * self._size, np.uint8))
        index = self._from[qp.flow.dst_ip]
        self._from[qp.flow.dst_ip] += 1
        end = self._receivers[made.qpn] = _Receiver(made, memory, self._size, index, rank)
        for slot in range(self._slots):
            end.post(slot)

    # called by the rank

    def expect(self, epoch: int, schedule: Schedule) -> None:
        """Learn the messages of an epoch."""
        self._schedules[connections.announced(connections.announced_by(epoch, (0, 0)))[0]] = epoch, schedule

    def keep(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        """Register the arrays from which messages will be sent. Earlier ones stay while messages are unacknowledged."""
        if self.idle:
            for memory in self._registered:
                memory.deregister()
            self._registered.clear()
        self._registered += [Memory(self.device, array) for array in arrays]

    # called by queue pairs and the loop

    def posted(self, qpn: int) -> int:
        """Packets of all messages that a sending queue pair has posted."""
        return self._senders[qpn].total

    def memory_of(self, address: int, length: int) -> Memory:
        """The registered memory that contains a range."""
        return next(each for each in self._registered if each.contains(address, length))

    @property
    def idle(self) -> bool:
        """Whether everything is acknowledged."""
        return all(sender.idle for sender in self._senders.values())

    def work(self) -> int:
        """Handle the completions that are there; return their number. NicError for a failed queue pair."""
        try:
            sent, received = self.device.sent(), self.device.received()
            for each in sent:
                self._check(each)
                self._senders[each.qpn].done()
            for each in received:
                self._check(each)
                self._take(each)
        except OSError as error:
            raise NicError(self.rank, f"its RDMA device failed: {error.strerror}") from None
        return len(sent) + len(received)

    def _check(self, each: Completion) -> None:
        if each.error:
            raise NicError(self.rank, each.error, each.qpn)

    def _take(self, each: Completion) -> None:
        """Copy a message, or a part of one, and pass complete messages to the rank."""
        end = self._receivers[each.qpn]
        start = each.wr_id * end.size
        self._deliver(end, each.imm or 0, end.memory.array[start : start + each.length])
        end.post(each.wr_id)

    def _deliver(self, end: _Receiver, imm: int, data: NDArray[np.uint8]) -> None:
        low_bits, key = connections.announced(imm)
        epoch, schedule = self._schedules[low_bits]
        receive = schedule.receives[key]
        size = receive.hi - receive.lo
        staged = self._arriving.get((epoch, key))
        if staged is None:
            parts = len(connections.part_sizes(size, self._plan.options.qps)) if self._split else 1
            staged = self._arriving[epoch, key] = _Arriving(np.empty(size, np.uint8), parts)
        start = end.index * connections.part_bytes(size, self._plan.options.qps) if self._split else 0
        staged.data[start : start + len(data)] = data
        staged.parts -= 1
        if not staged.parts:
            del self._arriving[epoch, key]
            end.rank.delivered(epoch & 0xFFFF, key, staged.data, lambda: None)

    def close(self) -> None:
        """Free everything."""
        for qp in self._made.values():
            qp.destroy()
        for memory in (*self._registered, *(end.memory for end in self._receivers.values())):
            memory.deregister()
        self.device.close()


class VerbsLoop(NicLoop):
    """The devices of one worker's ranks."""

    name: ClassVar[str] = "verbs"

    def __init__(self, plan: Plan) -> None:
        self._plan, self._params = plan, VerbsParams.of(plan)
        self._counts = StackCounts(plan.lab)
        self._nics: dict[int, VerbsNic] = {}
        self._by_fd: dict[int, VerbsNic] = {}
        self._ends: list[_Sender] = []
        self._poll = select.epoll()
        self._stop_fd = -1

    def open(self, endpoint: Endpoint, netns: Path, rkey: int) -> None:
        with inside(netns):
            nic = self._nics[endpoint.rank] = VerbsNic(self._plan, endpoint)
        self._by_fd[nic.device.fileno()] = nic
        self._poll.register(nic.device.fileno(), select.EPOLLIN)

    def sender(self, rank: int, qp: QpInfo) -> int:
        try:
            self._ends.append(self._nics[rank].sender(qp, self._params))
        except OSError as error:
            raise NicError(rank, f"{error.strerror}", qp.qpn) from None
        data, answers = keys_of(qp)
        self._counts.expect("sent", data, qp.psn)
        self._counts.expect("came", answers, qp.psn)
        return len(self._ends) - 1

    def link(self, rank: int, ends: Sequence[int], mode: QpMode) -> connections.Connection:
        return connections.QpConnection([self._ends[end] for end in ends], mode)

    def destinations(self, rank: int) -> connections.Destinations | None:
        return self._nics[rank]

    def receiver(self, rank: int, qp: QpInfo, memory: Rank) -> None:
        try:
            self._nics[rank].receiver(qp, self._params, memory)
        except OSError as error:
            raise NicError(rank, f"{error.strerror}", qp.qpn) from None
        self._counts.expect("came", keys_of(qp)[1], qp.psn)

    def turn(self, until: float, stop_fd: int) -> bool:
        if stop_fd != self._stop_fd:
            self._poll.register(stop_fd, select.EPOLLIN)
            self._stop_fd = stop_fd
        if self._work():
            until = 0.0
        else:
            for nic in self._nics.values():
                nic.device.arm()
            if self._work():
                until = 0.0
        for fd, _ in self._poll.poll(max(0.0, until - time.monotonic())):
            if fd == stop_fd:
                return True
            self._by_fd[fd].device.take_events()
        return False

    def _work(self) -> int:
        return sum([nic.work() for nic in self._nics.values()])

    def take_rest(self) -> None:
        for _ in range(_REST_TURNS):
            self._work()

    def idle(self) -> bool:
        return all(nic.idle for nic in self._nics.values())

    def qp_reports(self) -> Iterable[QpReport]:
        for rank, nic in self._nics.items():
            for qp, sends in nic.qps:
                here, there = keys_of(qp)
                came = self._counts.row("came", there)
                if sends:
                    sent = self._counts.row("sent", here)
                    self._check_count(nic, qp, sent)
                    counters = {"retransmitted": sent.behind, "naks": came.naks, "not_ready": came.rnr}
                    used = PathUse(here.sport, sent.packets, sent.bytes)
                    yield QpReport(rank, qp.qpn, (used,), (), came.ce, counters)
                else:
                    counters = {"out_of_order": came.ahead, "duplicates": came.behind}
                    yield QpReport(rank, qp.qpn, (), (PathUse(there.sport, came.packets),), came.ce, counters)

    def _check_count(self, nic: VerbsNic, qp: QpInfo, sent: StackRow) -> None:
        """CheckError when packets left with other headers than planned: they would look like an idle queue pair."""
        posted, left = nic.posted(qp.qpn), sent.packets - sent.behind
        if posted == left:
            return
        what = f"rank {nic.rank}, QP {qp.qpn:#x}"
        why = f"posted {posted} packets, but {left} left its NIC from UDP port {qp.flow.sport} to QP {qp.flow.dqpn:#x}"
        hint = "does this kernel choose source ports by another rule? ./inv capture shows the packets"
        raise CheckError(Problem("", what, why, hint))

    def nic_reports(self) -> Iterable[NicReport]:
        """Nothing is known of frames that no queue pair took: the kernel drops them without a report."""
        for _ in self._nics:
            yield NicReport(None, None)

    def close(self) -> None:
        for nic in self._nics.values():
            nic.close()
        self._counts.close()
        self._poll.close()


def keys_of(qp: QpInfo) -> tuple[StackKey, StackKey]:
    """How packets of a queue pair are counted: those that this end sends, and those that its peer sends.

    Both ends have the same source port: a flow label of the plan gives it, or the product of the two QP numbers.
    """
    flow = qp.flow
    here, there = str(ip_address(flow.src_ip)), str(ip_address(flow.dst_ip))
    return StackKey(here, there, flow.sport, flow.dqpn), StackKey(there, here, flow.sport, qp.qpn)
