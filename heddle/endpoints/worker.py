"""Runs some of the ranks of a plan, in one process: `python -m heddle.endpoints.worker`, spoken to by lines of JSON.

In (stdin):   the task (a Task), then {"go": true}, and {"stop": true} when every worker has said "done".
Out (stdout): {"ready": true}, {"size": n} for each size that its ranks have finished, {"done": true},
              and at the end {"report": ...}, or {"error": ...} at any time.
A rank learns of another only by what arrives on its NIC; the barrier before the start is the only exception. End of
input ends the worker, so it cannot outlive the run that started it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import JsonValue, TypeAdapter

from heddle.base.problems import CheckError, HeddleError, Problem
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import Nic, QueuePair, announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.ranks import Floats, Rank, rank_input, rkey_of
from heddle.endpoints.reports import NicReport, QpReport, WorkerMessage, WorkerReport
from heddle.endpoints.transports import find_transport
from heddle.host import capacity as machine
from heddle.kernel.namespace import inside
from heddle.traffic.collectives import find_pattern
from heddle.traffic.endpoint import Endpoint
from heddle.traffic.options import ELEMENT_BYTES
from heddle.traffic.plan import Plan
from heddle.wire.layout import TOS_ANSWER, TOS_DATA

_SEND_FRAMES: Final = 16  # how many may wait in the port's queue: the NIC's own queue
_TICK_S: Final = 0.02  # how often a link that was down is tried again


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker is to do: the whole plan, its own ranks, and the namespace path of each host.

    parameters: those of the plan's transport, as the transport itself wrote them.
    """

    plan: Plan
    ranks: tuple[int, ...]
    netns: Mapping[str, str]
    parameters: Mapping[str, JsonValue]


class Worker:
    """The event loop over the NICs of its ranks."""

    def __init__(self, task: Task) -> None:
        self._plan = task.plan
        self._transport = find_transport(task.plan.options.transport).load(task.parameters)
        self._nics: dict[int, Nic] = {}
        self._ranks: dict[int, Rank] = {}
        # The sum of all ranks' inputs, for each size: made before the start, since it takes its time.
        options = task.plan.options
        reduces = find_pattern(options.collective, options.algorithm).redop == "sum"
        self._totals = {size: _total(task.plan.size, size) for size in options.sizes if reduces}
        self._turning: list[Rank] = []
        self._busy = self._waited = 0.0
        self._next_tick = 0.0
        self._poll = select.epoll()
        self._by_fd: dict[int, Nic] = {}
        for rank in task.ranks:
            endpoint = task.plan.endpoints[rank]
            try:
                self._open(endpoint, Path(task.netns[endpoint.host]))
            except OSError as error:
                raise RankError(endpoint, f"its port cannot be opened: {error.strerror}") from None
        self._connect(task.ranks)
        for ready in self._ranks.values():
            ready.next_size()

    def _open(self, endpoint: Endpoint, netns: Path) -> None:
        with inside(netns):
            announce(endpoint.port, endpoint.mac, endpoint.ip, endpoint.gateway_ip)
        # The program at the NIC's ingress keeps RoCE from the host's own stack, so no socket need hold its UDP port.
        mtu, version = self._plan.ib_mtu, self._plan.ip_version
        port = PacketSocket(netns, endpoint.port, mtu, send_frames=_SEND_FRAMES, hush=False, version=version)
        answers = PacketSocket(netns, endpoint.port, mtu, receive_bytes=0, hush=False, version=version)
        nic = Nic(port, answers, mtu, version, self._transport.answer_bytes)
        self._nics[endpoint.rank] = nic
        self._by_fd[nic.socket.fileno()] = nic
        self._poll.register(nic.socket.fileno(), select.EPOLLIN)

    def _connect(self, ranks: tuple[int, ...]) -> None:
        """Open the QP ends of these ranks and give each rank the ones that it sends by."""
        plan, transport = self._plan, self._transport
        ends = plan.endpoints
        links: dict[int, dict[int, list[QueuePair]]] = {r: defaultdict(list) for r in ranks}
        for q in plan.qps:
            src, dst = q.flow.src_rank, q.flow.dst_rank
            if src in links:
                here = QpInfo(q.src_qpn, _header(ends[src], ends[dst], q.flow.sport, q.flow.qpn, TOS_DATA), q.psn)
                pair = QueuePair(self._nics[src], here, transport.sender(here))
                self._nics[src].add(pair)
                links[src][dst].append(pair)
        keys = {e.rank: rkey_of(plan.lab, e.nic) for e in ends}
        for members in plan.communicators:
            # Inside a communicator ranks are counted from 0, as patterns do.
            number = {rank: place for place, rank in enumerate(members)}
            own = {number[rank]: keys[rank] for rank in members}
            for rank in (each for each in members if each in links):
                peers = {number[peer]: pairs for peer, pairs in links[rank].items()}
                self._ranks[rank] = Rank(plan.options, plan.size, number[rank], keys[rank], peers, own)
        for q in plan.qps:
            src, dst = q.flow.src_rank, q.flow.dst_rank
            if dst in links:
                there = QpInfo(q.flow.qpn, _header(ends[dst], ends[src], q.flow.sport, q.src_qpn, TOS_ANSWER), q.psn)
                end = transport.receiver(there, self._ranks[dst])
                self._nics[dst].add(QueuePair(self._nics[dst], there, end))

    def run(self, stdin: int) -> None:
        """Work through all sizes, then answer the others until told to stop."""
        self._poll.register(stdin, select.EPOLLIN)
        started, cpu, queued = time.monotonic(), time.process_time(), machine.waited_s()
        said_done = False
        self._begin()
        while True:
            now = time.monotonic()
            for rank, nic in self._nics.items():
                if nic.eager:
                    try:
                        nic.transmit(now)
                    except OSError as error:
                        raise RankError(self._plan.endpoints[rank], f"its port is gone: {error.strerror}") from None
                    self._watch(nic)
            if not said_done:
                self._turn_over()
                said_done = self._is_done()
                if said_done:
                    elapsed = max(1e-9, time.monotonic() - started)
                    self._busy = (time.process_time() - cpu) / elapsed
                    self._waited = (machine.waited_s() - queued) / elapsed
                    say(WorkerMessage(done=True))
            if self._wait(stdin, sleep=not self._turning):
                return

    def _wait(self, stdin: int, sleep: bool) -> bool:
        """Sleep until something arrives or a timer runs out; True when it is time to stop."""
        due = min(self._next_tick, *(nic.deadline for nic in self._nics.values())) if sleep else 0.0
        for fd, events in self._poll.poll(max(0.0, due - time.monotonic())):
            if fd == stdin:
                return True
            nic = self._by_fd[fd]
            if events & (select.EPOLLIN | select.EPOLLERR):
                nic.receive(time.monotonic())
            if events & select.EPOLLOUT:
                nic.blocked = False
        now = time.monotonic()
        if now >= self._next_tick:
            self._tick(now)
        for nic in self._nics.values():
            if nic.deadline <= now:
                nic.expire(now)
        return False

    def _tick(self, now: float) -> None:
        """Note which ports take nothing, and try again where a link was down."""
        self._next_tick = now + _TICK_S
        for rank, nic in self._nics.items():
            nic.expire(now)
            nic.blocked = False
            nic.eager = True
            for error in nic.errors():
                raise RankError(self._plan.endpoints[rank], error)

    def _watch(self, nic: Nic) -> None:
        """Ask to be woken when a full socket has room again, and only then."""
        events = select.EPOLLIN | (select.EPOLLOUT if nic.blocked else 0)
        if events != nic.events:
            self._poll.modify(nic.socket.fileno(), events)
            nic.events = events

    def _turn_over(self) -> None:
        """When all ranks here have finished a size: check what it left and make the next one ready, then begin it.

        One rank a call, so that NICs are served in between, however large the arrays are; and none begins before all
        are ready, so that no rank's time includes the making of another's arrays.
        """
        if not self._turning:
            if not all(r.size_done for r in self._ranks.values()):
                return
            self._turning = [r for r in self._ranks.values() if not r.finished]
        if self._turning:
            rank = self._turning.pop(0)
            rank.check(self._totals.get(rank.size))
            rank.next_size()
            if not self._turning:
                say(WorkerMessage(size=len(rank.results)))
                self._begin()

    def _begin(self) -> None:
        for rank in self._ranks.values():
            if not rank.finished:
                rank.begin()

    def _is_done(self) -> bool:
        return all(r.finished for r in self._ranks.values()) and all(n.idle for n in self._nics.values())

    def report(self) -> WorkerReport:
        """What happened: per rank the sizes, per QP the packets, per NIC what was not for any QP."""
        return WorkerReport(
            ranks={number: tuple(rank.results) for number, rank in self._ranks.items()},
            qps=tuple(
                QpReport(rank, pair.qpn, pair.packets, pair.bytes, pair.ce, dict(pair.end.counters()))
                for rank, nic in self._nics.items()
                for pair in nic.qps.values()
            ),
            nics=tuple(NicReport(nic.counters, nic.socket.drops()) for nic in self._nics.values()),
            busy=self._busy,
            waited=self._waited,
        )


class RankError(CheckError):
    """Something of one rank failed; the run cannot go on."""

    def __init__(self, endpoint: Endpoint, why: str) -> None:
        what = f"rank {endpoint.rank} on {endpoint.nic}:"
        super().__init__(Problem("", what, why, "./inv validate says what of the lab is not as it should be"))


def _total(ranks: int, size: int) -> Floats:
    total = np.zeros(size // ELEMENT_BYTES, np.float32)
    for rank in range(ranks):
        total += rank_input(rank, len(total))
    return total


def _header(here: Endpoint, there: Endpoint, sport: int, dqpn: int, tos: int) -> FlowHeader:
    return FlowHeader(
        src_mac=here.mac, dst_mac=here.gateway_mac, src_ip=here.ip, dst_ip=there.ip, sport=sport, dqpn=dqpn, tos=tos
    )


def say(message: WorkerMessage) -> None:
    """One line to whoever started this worker."""
    sys.stdout.write(message.line() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Take a task from stdin and carry it out; 0 when it came to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this worker ends it
    task = TypeAdapter(Task).validate_json(sys.stdin.readline())
    try:
        worker = Worker(task)
        say(WorkerMessage(ready=True))
        if not sys.stdin.readline():
            return 0
        worker.run(sys.stdin.fileno())
        say(WorkerMessage(report=worker.report()))
    except HeddleError as error:
        say(WorkerMessage(error=tuple(error.problems)))
        return 1
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more
    return 0


if __name__ == "__main__":
    sys.exit(main())
