"""Run some of the ranks of a plan in one process: `python -m heddle.endpoints.worker`, controlled by lines of JSON.

In (stdin):   the task (a Task); for each size {"go": true} when every worker has said "ready", and {"check": true}
              when the ranks of every worker have finished it; {"stop": true} when every worker has said "done";
              {"waits": true} at any time.
Out (stdout): for each size {"ready": true} before it and {"use": ...} when its ranks have finished it; {"done": true};
              with ready and done the results of the size that was checked; at the end {"report": ...}; {"waits": ...}
              when asked; or {"error": ...} at any time.
A rank learns of other ranks only by messages that arrive on its NIC; these barriers are the only exception. While a
worker waits at a barrier, it still serves its NICs. End of input ends the worker, so it cannot outlive its run.
"""

from __future__ import annotations

import errno
import heapq
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue, TypeAdapter

from heddle.base.problems import CheckError, HeddleError, MachineError, Problem
from heddle.endpoints.admission.admitted import admitted_of
from heddle.endpoints.congestion.controlled import congestion_of
from heddle.endpoints.connections import announced, place_of, rkey_of
from heddle.endpoints.elements import Elements
from heddle.endpoints.fastpath import fastloop
from heddle.endpoints.fastpath.fastloop import FastLoop
from heddle.endpoints.loops import NicError, NicLoop
from heddle.endpoints.nic.frames import FlowHeader
from heddle.endpoints.nic.nic import announce
from heddle.endpoints.nic.qpend import NEVER, QpInfo
from heddle.endpoints.nicloop import PythonLoop, moderation_s
from heddle.endpoints.ranks import PostingPace, Rank, Waits
from heddle.endpoints.reports import WorkerMessage, WorkerReport
from heddle.endpoints.transports import find_transport
from heddle.endpoints.transports.protocol import Transport
from heddle.host import capacity as machine
from heddle.host.capacity import WorkerUse
from heddle.kernel.namespace import inside
from heddle.traffic.flow import Endpoint, Flow
from heddle.traffic.plan import Plan
from heddle.wire.layout import TOS_ANSWER

_NAMED: Final = 2  # QPs that the text names
_LOOKS: Final = 8  # in the time after which NICs count as still
NOT_SENT_AGAIN: Final = "use --transport rc, or ./inv queues to find what was dropped"


def qp_text(plan: Plan, rank: int, qpn: int) -> str:
    """`QP 0x12 to rank 2 on host3:eth1`: a queue pair of a rank, and its peer. `from` if the peer sends the data."""
    for q in plan.qps:
        for mine, number, word, peer in (
            (q.flow.src_rank, q.src_qpn, "to", q.flow.dst_rank),
            (q.flow.dst_rank, q.flow.qpn, "from", q.flow.src_rank),
        ):
            if (mine, number) == (rank, qpn):
                return f"{_named(q.flow, number)} {word} rank {peer} on {plan.endpoints[peer].nic}"
    return f"QP {qpn:#x}"


def _named(flow: Flow, number: int) -> str:
    """`QP 0x12`; `TCP 10017`, the port of a stream's receiver."""
    return f"QP {number:#x}" if flow.has_qp else flow.label


def waiting_text(plan: Plan, rank: int, waits: Waits, ends: Mapping[tuple[int, int], str]) -> str:
    """`waits for 2 of 6 messages, the first (step 4, message 1) from rank 0 on host1:eth1 (QP 0x1: last good PSN 0x2)`.

    ends: by (rank, QPN).
    """
    members = next(each for each in plan.communicators if rank in each)
    peer = plan.endpoints[members[waits.peer]]
    flows = [q.flow for q in plan.qps if (q.flow.src_rank, q.flow.dst_rank) == (peer.rank, rank)]
    which = ", ".join(f"{_named(flow, flow.qpn)}: {ends.get((rank, flow.qpn), '')}" for flow in flows[:_NAMED])
    more = f" and {len(flows) - _NAMED} more" if len(flows) > _NAMED else ""
    return (
        f"waits for {waits.missing} of {waits.messages} messages, the first (step {waits.key[0]}, message"
        f" {waits.key[1]}) from rank {peer.rank} on {peer.nic} ({which or 'inside the host'}{more})"
    )


def waiting_problem(plan: Plan, rank: int, waits: Waits, ends: Mapping[tuple[int, int], str], still: bool) -> Problem:
    """What a rank waits for. still: no packet moves any more, and the transport does not retransmit."""
    what, why = f"rank {rank} on {plan.endpoints[rank].nic}:", waiting_text(plan, rank, waits, ends)
    if not still:
        return Problem("", what, why)
    lost = f"packets were lost, and {plan.options.transport} does not retransmit them"
    return Problem("", what, f"{why}, but no packet moves any more: {lost}", NOT_SENT_AGAIN)


class Stillness:
    """Whether a number of packets stays the same for `patience_s` seconds.

    With a transport that never sends again, ranks may wait for ever, and a rank alone cannot tell a lost message from
    one that waits for other ranks. So each worker reports when its NICs are still, and when packets move again. The run
    has lost data when all workers are still at the same time (crew.py).
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._count = -1
        self._since = self._next = 0.0
        self.still = False

    def changed(self, now: float, count: Callable[[], int]) -> bool:
        """Look again, if it is time; True when `still` has changed. count: packets so far."""
        if now < self._next:
            return False
        self._next = now + self._patience_s / _LOOKS
        before, found = self.still, count()
        if found != self._count:
            self._count, self._since = found, now
        self.still = now - self._since >= self._patience_s
        return self.still != before


class InsideHost:
    """Copies between ranks of one host, as over NVLink: no packets. A rank sends one message after the other.

    rate_bps: of each sending rank, emulated; receivers and memory are no limit, and there is no latency. ranks: by
    number; a peer is looked up when its message arrives.
    """

    def __init__(self, rate_bps: float, ranks: Mapping[int, Rank], clock: Callable[[], float] = time.monotonic) -> None:
        self._rate_bps, self._ranks, self._clock = rate_bps, ranks, clock
        self._free: defaultdict[int, float] = defaultdict(float)  # sender -> when its link is free
        self._copying: list[tuple[float, int, int, NDArray[np.uint8], int, int]] = []  # a heap
        self._number = 0

    def link(self, sender: int, receiver: int) -> InsideLink:
        """The connection from one rank to another one of its host."""
        return InsideLink(self, sender, receiver)

    def copy(self, sender: int, receiver: int, data: NDArray[np.uint8], va: int, imm: int) -> None:
        """Begin a copy, or let it wait for the earlier ones of its sender."""
        ends = max(self._clock(), self._free[sender]) + 8 * len(data) / self._rate_bps
        self._free[sender], self._number = ends, self._number + 1
        heapq.heappush(self._copying, (ends, self._number, receiver, data, va, imm))

    @property
    def due(self) -> float:
        """When `advance` must be called; NEVER without copies."""
        return self._copying[0][0] if self._copying else NEVER

    def advance(self) -> None:
        """Deliver the messages that have passed by now."""
        while self._copying and self._copying[0][0] <= self._clock():
            _, _, receiver, data, va, imm = heapq.heappop(self._copying)
            self._ranks[receiver].delivered(place_of(va)[0], announced(imm)[1], data.copy(), lambda: None)


class InsideLink:
    """A `Connection` without queue pairs."""

    def __init__(self, host: InsideHost, sender: int, receiver: int) -> None:
        self._host, self._sender, self._receiver = host, sender, receiver

    def post(self, data: NDArray[np.uint8], va: int, rkey: int, imm: int, turn: int) -> None:
        """Copy a message."""
        self._host.copy(self._sender, self._receiver, data, va, imm)


_LONG_S: Final = 1.0
_SIZE_S: Final = 0.1  # while a size is measured: a process that is stopped in a wait is missed only when the wait ends
_LAST_S: Final = 0.002
_LINK_DOWN: Final = frozenset({errno.ENOBUFS, errno.ENETDOWN})  # ENOBUFS: without a carrier the kernel drops frames
VALIDATE: Final = "run ./inv validate to check the lab"
_GO: Final = b'"go"'
_CHECK: Final = b'"check"'
_STOP: Final = b'"stop"'
_WAITS: Final = b'"waits"'
_FOREIGN: Final = b'"foreign"'


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a worker: the whole plan, its own ranks, and the namespace path of each host.

    parameters: of the plan's transport, as written by the transport itself. repeat: how often its sizes are measured;
    0: until it is told to stop.
    """

    plan: Plan
    ranks: tuple[int, ...]
    netns: Mapping[str, str]
    parameters: Mapping[str, JsonValue]
    repeat: int = 1


class Worker:
    """Runs ranks; a NicLoop drives their NICs."""

    def __init__(self, task: Task) -> None:
        self._plan, self._repeat = task.plan, task.repeat
        transport = find_transport(task.plan.options.transport).load(task.parameters)
        self.loop = loop_of(task.plan, transport)
        patience_s = transport.patience_s()
        self._stillness = Stillness(patience_s) if patience_s is not None else None
        self._ranks: dict[int, Rank] = {}
        self._inside = InsideHost(task.plan.inside_bps, self._ranks)
        # The reduction of all ranks' inputs, for each size: computed before the start, since it takes long.
        options, pattern = task.plan.options, task.plan.pattern
        elements, reduces = Elements.of(pattern, task.plan.size), pattern.redop != "none"
        self._totals = {size: elements.total(size // pattern.element_bytes) for size in options.sizes if reduces}
        self._turning: list[Rank] = []  # to be checked
        self._began: machine.OwnTime | None = None  # at the start of the current size
        self._absences = machine.Absences()  # of the current size
        self._owes = True  # must send a message: "ready" for the next size, or "done"
        self._unread = b""  # the incomplete line that has been read
        self._stopped = False
        keys = {e.rank: rkey_of(task.plan.lab, e.nic) for e in task.plan.endpoints}
        for rank in task.ranks:
            endpoint = task.plan.endpoints[rank]
            netns = Path(task.netns[endpoint.host])
            try:
                with inside(netns):
                    announce(endpoint.port, endpoint.mac, endpoint.ip, endpoint.gateway_ip)
                self.loop.open(endpoint, netns, keys[rank])
            except OSError as error:
                down = f"its link is down at {endpoint.nic} or at {endpoint.first_hop}"  # the errno cannot tell which
                why = down if error.errno in _LINK_DOWN else f"its port cannot be opened: {error.strerror}"
                raise RankError(endpoint, why) from None
        try:
            self._connect(task.ranks, keys)
        except NicError as error:
            raise RankError(task.plan.endpoints[error.rank], self._why(error)) from None
        self._slow = [each for each in self._ranks.values() if each.timed]
        for ready in self._ranks.values():
            ready.next_size()

    def _connect(self, ranks: tuple[int, ...], keys: Mapping[int, int]) -> None:
        """Open the QP ends of these ranks, and give each rank its sending ends."""
        plan, loop = self._plan, self.loop
        ends, slow, tos = plan.endpoints, dict(plan.options.slow), plan.options.tos
        paths: dict[int, dict[int, list[int]]] = {r: defaultdict(list) for r in ranks}
        for q in plan.qps:
            src, dst = q.flow.src_rank, q.flow.dst_rank
            if src in paths:
                header = _header(ends[src], ends[dst], q.flow.sport, q.flow.qpn, tos)
                sprayed = tuple(_header(ends[src], ends[dst], sport, q.flow.qpn, tos) for sport in q.sports[1:])
                more = (header, *sprayed) if sprayed else ()
                here = QpInfo(q.src_qpn, header, q.psn, q.window, q.delay_s, more, q.rtt_s)
                paths[src][dst].append(loop.sender(src, here))
        for members in plan.communicators:
            # In a communicator ranks are numbered from 0, as in patterns.
            number = {rank: place for place, rank in enumerate(members)}
            own = {number[rank]: keys[rank] for rank in members}
            for rank in (each for each in members if each in paths):
                mode = plan.options.qp_mode
                links = {number[peer]: loop.link(rank, found, mode) for peer, found in paths[rank].items()}
                inside = {number[peer] for peer in members if peer != rank and plan.inside(rank, peer)}
                links |= {peer: self._inside.link(rank, members[peer]) for peer in inside}
                self._ranks[rank] = Rank(
                    plan.options, plan.pattern, plan.size, number[rank], keys[rank], links, own, self._totals,
                    destinations=loop.destinations(rank), wants=loop.wants(rank),
                    bytes_per_s=slow.get(ends[rank].host, 0.0) * ends[rank].rate_bps / 8, repeat=self._repeat,
                    inside=inside, posting=_posting(plan, ends[rank].host),
                )  # fmt: skip
        for q in plan.qps:
            src, dst = q.flow.src_rank, q.flow.dst_rank
            if dst in paths:
                header = _header(ends[dst], ends[src], q.answer_sport, q.src_qpn, TOS_ANSWER)
                there = QpInfo(q.flow.qpn, header, q.psn, q.window, q.delay_s, peer_sport=q.flow.sport)
                loop.receiver(dst, there, self._ranks[dst])

    def run(self, stdin: int) -> bool:
        """Run all sizes, then serve the peers until the stop message; False when the input ended first."""
        while True:
            self._turn_over()
            # No event wakes the loop when the last acknowledgement arrives, so it polls.
            rest = 0.0 if self._turning else _LAST_S if self._owes else _LONG_S if self._began is None else _SIZE_S
            for rank in self._slow:
                rank.advance()
            self._inside.advance()
            until = min([time.monotonic() + rest, self._inside.due, *(rank.due for rank in self._slow)])
            try:
                if self._stillness is not None and self._stillness.changed(time.monotonic(), self._packets):
                    send(
                        WorkerMessage(still=self._waits(still=True))
                        if self._stillness.still
                        else WorkerMessage(moving=True)
                    )
                heard = self.loop.turn(until, stdin)
                if self._began is not None:
                    self._absences.look(time.monotonic(), until)
                if heard and self._read(stdin):
                    self.loop.take_rest()
                    return self._stopped
            except NicError as error:
                raise CheckError(*self._failed(error).problems, *self._foreign()) from None

    def _failed(self, error: NicError) -> RankError:
        """The error of a rank; if no QP failed but its port, also the QPs of the messages that it waits for."""
        rank, why = self._ranks[error.rank], self._why(error)
        if error.qpn is None and (found := rank.waits()) is not None:
            why = f"{why}; it {waiting_text(self._plan, error.rank, found, self._standings())}"
        endpoint = self._plan.endpoints[error.rank]
        return RankError(endpoint, why, VALIDATE if self._stillness is None else NOT_SENT_AGAIN)

    def _why(self, error: NicError) -> str:
        return error.why if error.qpn is None else f"{qp_text(self._plan, error.rank, error.qpn)}: {error.why}"

    def _read(self, stdin: int) -> bool:
        """Read the messages to start or check a size; True at the stop message, or when the input has ended."""
        chunk = os.read(stdin, 1 << 12)
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            if _GO in line:
                self._began, self._absences = machine.own_time(), machine.Absences()
                self.loop.begin()
                for rank in self._ranks.values():
                    rank.begin()
            elif _CHECK in line:
                self._turning, self._owes = list(self._ranks.values()), True
            elif _WAITS in line:
                send(WorkerMessage(waits=self._waits(still=False)))
            elif _FOREIGN in line:
                send(WorkerMessage(waits=self._foreign()))
            self._stopped = _STOP in line
        return self._stopped or not chunk

    def _turn_over(self) -> None:
        """Report when all ranks here have finished a size. After the check, report when they are ready for the next.

        No rank is checked before the ranks of all workers have finished: until then, other workers may need this
        worker's CPU and NICs. Each call checks one rank, so that large arrays do not keep NICs waiting.
        """
        if self._began is not None and all(rank.size_done for rank in self._ranks.values()):
            use = WorkerUse.between(self._began, machine.own_time(), self._absences.seconds)
            send(WorkerMessage(use=use))
            self._began = None
        if self._turning:
            rank = self._turning.pop(0)
            rank.check()
            rank.next_size()
        if self._owes and not self._turning and self.loop.idle():
            self._owes = False
            finished = all(rank.finished for rank in self._ranks.values())
            results = {number: rank.results[-1] for number, rank in self._ranks.items() if rank.results}
            send(WorkerMessage(ready=not finished, done=finished, results=results))

    def _packets(self) -> int:
        """The packets that its NICs have sent and received so far; while a slow rank works, a number that grows."""
        busy = time.monotonic_ns() if any(rank.due < NEVER for rank in self._slow) else 0
        return busy + sum(use.packets for end in self.loop.qp_reports() for use in (*end.sent, *end.received))

    def _standings(self) -> dict[tuple[int, int], str]:
        return {(end.rank, end.qpn): end.standing for end in self.loop.qp_reports()}

    def _waits(self, *, still: bool) -> tuple[Problem, ...]:
        """What the rank waits for that is furthest behind: the others may only wait for it. Empty: all have finished.

        still: see waiting_problem.
        """
        waiting = {rank: found for rank, each in self._ranks.items() if (found := each.waits()) is not None}
        if not waiting:
            return ()
        last = min(waiting, key=lambda rank: (waiting[rank].epoch, waiting[rank].key))
        return (waiting_problem(self._plan, last, waiting[last], self._standings(), still), *self._foreign())

    def _foreign(self) -> tuple[Problem, ...]:
        """The NICs that have dropped frames for another MAC, with the port that sent them."""
        found = []
        for rank in self._ranks:
            end, frames = self._plan.endpoints[rank], self.loop.foreign(rank)
            switch, _, port = end.first_hop.partition(":")
            why = f"{frames} frames for another MAC were dropped, which {end.first_hop} sent"
            hint = f"run ./inv exec {switch} ip neigh show dev {port}: the NIC has MAC {end.mac}"
            found += [Problem("", f"rank {rank} on {end.nic}:", why, hint)] if frames else []
        return tuple(found)

    def report(self) -> WorkerReport:
        """The report of this worker: per QP the packets, per NIC the frames for no QP."""
        return WorkerReport(
            qps=tuple(self.loop.qp_reports()),
            nics=tuple(self.loop.nic_reports()),
            loop=self.loop.name,
            journals={rank: each.journal for rank, each in self._ranks.items()},
        )


class RankError(CheckError):
    """One rank failed, so the run cannot continue."""

    def __init__(self, endpoint: Endpoint, why: str, hint: str = VALIDATE) -> None:
        super().__init__(Problem("", f"rank {endpoint.rank} on {endpoint.nic}:", why, hint))


def _posting(plan: Plan, host: str) -> PostingPace | None:
    """Of each rank of a host, whose NICs share the host's posting threads."""
    posting, second = plan.options.posting, plan.k * 1e-9
    if posting is None:
        return None
    post_ns, turn_ns = posting.costs_ns(sum(end.host == host for end in plan.endpoints))
    return PostingPace(post_ns * second, turn_ns * second, posting.batch)


def loop_of(plan: Plan, transport: Transport) -> NicLoop:
    """The loop of the hosts' stack if the transport uses it; the compiled loop if the plan, this machine and the user
    allow it; else Python's, which has everything.
    """
    if transport.stack is not None:
        return transport.stack.loop(plan, transport.params)
    pause, congestion = moderation_s(plan), congestion_of(plan)
    connection = transport.fast()
    if connection is None or why_not_compiled(plan, transport) or (found := _library(plan)) is None:
        return PythonLoop(plan, transport, pause, congestion, admitted_of(plan))
    return FastLoop(found, plan, connection, pause, congestion)


def why_not_compiled(plan: Plan, transport: Transport) -> str:
    """With what the compiled loop cannot drive the NICs of a plan; empty if it can."""
    if transport.fast() is None:
        missing = transport.uncompiled or f"--transport {plan.options.transport}"
    elif plan.control is not None and not plan.control.compiled:
        missing = f"--cc {plan.control.name}"
    elif plan.admission is not None and not plan.admission.compiled:
        missing = "--admission on"
    else:
        return ""
    return f"{missing}, which the compiled loop does not have"


def compiled(plan: Plan, transport: Transport) -> bool:
    """Whether `loop_of` selects the compiled loop; MachineError if the user requires it and it is not available."""
    return not why_not_compiled(plan, transport) and _library(plan) is not None


def _library(plan: Plan) -> fastloop.Library | None:
    if plan.options.fastpath == "off":
        return None
    found = fastloop.load()
    if isinstance(found, fastloop.Library):
        return found
    if plan.options.fastpath == "on":
        raise MachineError(Problem("", "--fastpath on", f"is not possible: {found}", "leave the option out"))
    return None


def _header(here: Endpoint, there: Endpoint, sport: int, dqpn: int, tos: int) -> FlowHeader:
    return FlowHeader(
        src_mac=here.mac, dst_mac=here.gateway_mac, src_ip=here.ip, dst_ip=there.ip, sport=sport, dqpn=dqpn, tos=tos
    )


def send(message: WorkerMessage) -> None:
    """Send one line to the parent process."""
    sys.stdout.write(message.line() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Read a task from stdin and run it; 0 on success."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this worker
    os.nice(machine.WORKER_NICE)
    task = TypeAdapter(Task).validate_json(sys.stdin.readline())
    try:
        try:
            worker = Worker(task)
            if worker.run(sys.stdin.fileno()):
                send(WorkerMessage(report=worker.report()))
        except HeddleError as error:
            send(WorkerMessage(error=tuple(error.problems)))
            return 1
    except BrokenPipeError:
        os._exit(1)  # the parent process has ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
