"""Time of jobs packet by packet: for few packets, where flows with different bottlenecks wait in one queue.

In:  as for Engine (engine.py), but one network; Switching: packets, windows and thresholds of the emulation.
Out: Timing, with the times that packets crossed links. It is deterministic.
- A NIC takes packets of its queue pairs in turns, as far as their windows allow. Its port has room for a few frames.
- A port is a queue in order of arrival behind a token bucket. A packet that leaves is at the next port at once.
- A switch counts the bits that came in by a link and wait in it. Above Xoff that link stops, until Xon. Both are lower
  while little of the switch's buffer is free (the dynamic threshold). All packets are of one class.
- It ends early where ports wait for each other in a ring, so that their pauses never end: a PFC deadlock.
Not modelled: the time until a pause acts, acknowledgements (they take no time), losses, the watchdog, processors.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from heddle.endpoints.nic.nic import FILL, TURN
from heddle.endpoints.nicloop import SEND_FRAMES
from heddle.switch.queues.classes import budget_of, burst_bytes
from heddle_plugins.time.engine import Course, Engine, NetworkState, RunningPass
from heddle_plugins.time.network import Network

_EXTRA_BITS: Final = 512.0  # more than the headers that only some packets of a message have

_OFTEN: Final = 1 << 14  # events between looks for a deadlock, as other jobs may go on for ever


@dataclass(frozen=True)
class Switching:
    """Bits. packet: of a full one; burst: (links,) of a token bucket; node: (links,) the switch at the end, or -1.

    shared: (switches,) of the buffer; reserve: of a queue in it; alpha: of the dynamic threshold.
    """

    packet: float
    xoff: float
    xon: float
    burst: Sequence[float]
    node: Sequence[int]
    shared: Sequence[float]
    reserve: float = 0.0
    alpha: float = 1.0

    @classmethod
    def of(cls, network: Network) -> Switching:
        """As the emulation has it."""
        wires, policy = network.wires, network.wires.fabric.policy
        frame, queues = round(network.packet_bits / 8), policy.queues
        shared = [8.0 * budget_of(wires.fabric, each, queues).shared for each in wires.fabric.switches]
        return cls(
            8.0 * frame, 8.0 * queues.pfc.xoff, 8.0 * queues.pfc.xon,
            [8.0 * burst_bytes(frame, queues.burst, int(rate)) for rate in wires.rate.tolist()],
            wires.peer.tolist(), shared, 8.0 * queues.reserve_of(queues.paused[0]), queues.alpha,
        )  # fmt: skip


class _Message:
    """Of one flow. left: packets that its NIC has not taken; packet: bits of each."""

    __slots__ = ("bits", "job", "left", "packet", "since", "task")

    def __init__(self, job: int, task: int, bits: float, packets: int, since: float) -> None:
        self.job, self.task, self.bits, self.left, self.packet = job, task, bits, packets, bits / packets
        self.since = since


class _Packet(NamedTuple):
    """hop: of its flow's path. ends: the message, of its last packet."""

    flow: int
    hop: int
    bits: float
    ends: _Message | None


class _Port:
    """A sending port. round, built: of a NIC, its flows that may send, and packets that the port has no room for.

    free: from when on the bucket has tokens. held: bits that came by its link and wait in the switch there.
    """

    __slots__ = ("built", "burst_s", "free", "held", "node", "paused", "queue", "rate", "round", "wakes")

    def __init__(self, rate: float, burst: float, node: int) -> None:
        self.rate, self.burst_s, self.node = rate, burst / rate if rate else 0.0, node
        self.queue, self.built = deque[_Packet](), deque[_Packet]()
        self.round = deque[int]()
        self.free, self.held, self.paused, self.wakes = -np.inf, 0.0, False, False


class PacketEngine(Engine):
    """One simulation of one network; all flows have a window in flight (NetworkState), or no links."""

    def __init__(
        self, state: NetworkState, courses: Sequence[Course], switching: Switching, *, log: bool = False
    ) -> None:
        super().__init__([state], courses, log=log)
        paths, links, self._rules = state.paths, state.paths.links, switching
        ends = np.searchsorted(paths.flow, np.arange(paths.flows + 1)).tolist()
        # A flow without links, inside a host, has a port of its own.
        self._path = [
            paths.link[begin:end].tolist() or [links + flow] for flow, (begin, end) in enumerate(pairwise(ends))
        ]
        rates = np.concatenate([state.capacity, state.limit]).tolist()
        inside = [(0.0, -1)] * paths.flows
        places = [*zip(switching.burst, switching.node, strict=True), *inside]
        self._ports = [_Port(rate, *place) for rate, place in zip(rates, places, strict=True)]
        flight = np.zeros(paths.flows) if state.flight is None else state.flight
        self._window = np.maximum(1, np.rint(flight / switching.packet)).astype(int).tolist()
        self._out = [0] * paths.flows  # packets in flight
        self._to_send = [deque[_Message]() for _ in range(paths.flows)]
        self._used = [0.0] * len(switching.shared)  # of shared buffers
        self._due = deque[int]()  # ports that may have something to send now
        self._links = links

    def _over(self) -> bool:
        return bool(self.times.ring) or super()._over()

    def _step(self) -> None:
        if not self._heap or self.times.events % _OFTEN == _OFTEN - 1:
            self.times.ring = self._deadlock()
            if self.times.ring:
                return
        if not self._heap:
            waiting = [job for job, end in enumerate(self.times.ends) if end is None]
            raise self._endless(waiting, "its operations wait for each other, or a link has no rate")
        time_s, _, event = heapq.heappop(self._heap)
        self._now = max(self._now, time_s)
        event()
        while self._due:
            self._serve(self._due.popleft())

    def _deadlock(self) -> tuple[int, ...]:
        """The links of a ring, each paused by packets that wait for the next ones, and so for good."""
        most = max(self._rules.xon, self._rules.packet)  # at which a port may go on, if something of it leaves
        paused = {number for number, port in enumerate(self._ports) if port.paused}
        waits: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        for number in paused:
            for flow, hop, bits, _ in self._ports[number].queue:
                if hop:
                    waits[self._path[flow][hop - 1]][number] += bits
        while free := {
            each for each in paused
            if (stuck := sum(bits for after, bits in waits[each].items() if after in paused)) <= most
            and stuck < self._ports[each].held * (1 - 1e-9)
        }:  # fmt: skip
            paused -= free
        ring, at = list[int](), min(paused, default=None)
        while at is not None and at not in ring:
            ring.append(at)
            at = next(after for after in waits[at] if after in paused)
        return tuple(ring[ring.index(at) :]) if at is not None else ()

    def _sends(self, job: int, running: RunningPass, task: int) -> None:
        flows, bits = running.tasks.flows[task], running.tasks.bits[task]
        if not len(flows):
            self._released(job, running, task)
            return
        running.parts[task] = len(flows)
        for flow, amount in zip(flows.tolist(), bits.tolist(), strict=True):
            few = self._path[flow][0] >= self._links
            packets = 1 if few else max(1, int(-(-(amount - _EXTRA_BITS) // self._rules.packet)))
            self._to_send[flow].append(_Message(job, task, amount, packets, self._now))
            if len(self._to_send[flow]) == 1 and self._out[flow] < self._window[flow]:
                self._joins(flow)

    def _joins(self, flow: int) -> None:
        """A flow that has something to send, and could not until now, takes part in its NIC's turns."""
        first = self._path[flow][0]
        self._ports[first].round.append(flow)
        self._due.append(first)

    def _build(self, port: _Port) -> None:
        """Packets of the next turns, as the NIC of the emulation builds them."""
        while port.round and len(port.built) < FILL:
            flow = port.round.popleft()
            messages, window = self._to_send[flow], self._window[flow]
            for _ in range(min(TURN, FILL - len(port.built), window - self._out[flow])):
                message = messages[0]
                message.left -= 1
                if not message.left:
                    messages.popleft()
                port.built.append(_Packet(flow, 0, message.packet, None if message.left else message))
                self._out[flow] += 1
                if not messages:
                    break
            if messages and self._out[flow] < window:
                port.round.append(flow)

    def _serve(self, number: int) -> None:
        """Send what may leave by a port now."""
        port = self._ports[number]
        while True:
            while len(port.queue) < SEND_FRAMES and (port.built or port.round):
                if not port.built:
                    self._build(port)
                port.queue.append(port.built.popleft())
            if not port.queue or port.paused or not port.rate:
                return
            if port.free > self._now:
                if not port.wakes:
                    port.wakes = True
                    self._at(port.free, partial(self._wakes, number))
                return
            waited = port.free == self._now
            packet = port.queue.popleft()
            seconds = packet.bits / port.rate
            port.free = max(port.free, self._now - port.burst_s) + seconds
            self._leaves(number, packet, seconds if waited else 0.0)

    def _wakes(self, number: int) -> None:
        self._ports[number].wakes = False
        self._due.append(number)

    def _leaves(self, number: int, packet: _Packet, full_s: float) -> None:
        flow, hop, bits, message = packet
        path = self._path[flow]
        if hop:
            self._holds(path[hop - 1], -bits)
        if number < self._links:
            self.times.packets += 1
            self.times.bits[number] += bits
            self.times.full_s[number] += full_s
        if hop + 1 < len(path):
            self._ports[path[hop + 1]].queue.append(_Packet(flow, hop + 1, bits, message))
            self._due.append(path[hop + 1])
            self._holds(number, bits)
            return
        if self._out[flow] == self._window[flow] and self._to_send[flow]:
            self._joins(flow)
        self._out[flow] -= 1
        if message is not None:
            # Inside a host, a copy has ended when its port is free again.
            at = self._now if number < self._links else self._ports[number].free
            self._at(at, partial(self._arrives, flow, message))

    def _holds(self, number: int, bits: float) -> None:
        """Count bits that came by a link into its switch, or have left it, and pause or resume that link."""
        port, rules = self._ports[number], self._rules
        before, port.held = port.held, port.held + bits
        self._used[port.node] += self._share(port.held) - self._share(before)
        free = max(0.0, rules.shared[port.node] - self._used[port.node])
        xoff = min(rules.xoff, max(rules.reserve, rules.alpha * free))
        if bits > 0:
            port.paused |= port.held > xoff
        elif port.paused and port.held <= max(xoff - (rules.xoff - rules.xon), rules.packet):
            port.paused = False
            self._due.append(number)

    def _share(self, held: float) -> float:
        return max(0.0, min(held, self._rules.xoff) - self._rules.reserve)

    def _arrives(self, flow: int, message: _Message) -> None:
        if self._log is not None:
            bits, since, now = (np.array([each]) for each in (message.bits, message.since, self._now))
            self._log.append((np.array([flow]), bits, since, now))
        self._part_ends(message.job, message.task, 1)
