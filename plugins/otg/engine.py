"""Flows under way: a thread drives the senders and NICs of a configuration, until all flows have ended and settled.

In:  a TrafficPlan, the namespaces of the hosts. Out: counters of each flow at any time.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from heddle.base.problems import HeddleError, MachineError, Problem
from heddle.endpoints.nic.nic import Nic, QueuePair, announce
from heddle.endpoints.nic.packetsocket import PacketSocket
from heddle.endpoints.nic.qpend import QpInfo
from heddle.endpoints.nicloop import SEND_FRAMES, TICK_S
from heddle.traffic.flow import Endpoint
from heddle.wire.layout import LAYOUTS
from heddle_plugins.otg.activeflows import PAUSED, STARTED, STOPPED, ActiveFlow, FlowState, RawActive, RoceActive
from heddle_plugins.otg.flows import RawFlow, RoceFlow, TrafficPlan
from heddle_plugins.otg.qps import (
    CnpSender,
    MessageMemory,
    MessageReceiver,
    MessageSender,
    header_of,
    paced,
    shaper_of,
)
from heddle_plugins.otg.rawflows import RawCounter, RawSender, sinks

_PASS_S: Final = 0.0005  # between two looks at the sockets


class TrafficEngine:
    """The senders, receivers and NICs of a configuration. `ended` is called in its thread when all flows have settled.

    MachineError when a port cannot be used.
    """

    def __init__(
        self, plan: TrafficPlan, k: int, ib_mtu: int, netns: Callable[[str], Path], ended: Callable[[], None]
    ) -> None:
        self._plan, self._k, self._ib_mtu, self._netns, self._ended = plan, k, ib_mtu, netns, ended
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._flows: dict[str, ActiveFlow] = {}
        self._raw: list[RawActive] = []
        self._nics: dict[str, Nic] = {}
        self._by_fd: dict[int, Nic] = {}
        self._sockets: dict[str, PacketSocket] = {}
        self._poll = select.epoll()
        self._stack.callback(self._poll.close)
        self._closing = self._closed = self._done = False
        self._next_tick = 0.0
        self.error: HeddleError | None = None
        try:
            for flow in plan.raw:
                self._open_raw(flow)
            self._open_roce(plan.roce)
        except OSError as error:
            self._stack.close()
            why = f"cannot be opened: {error.strerror}; a link may be down"
            raise MachineError(Problem("", "a port of the configuration", why, "run ./inv validate")) from None
        except BaseException:
            self._stack.close()
            raise
        self._thread = threading.Thread(target=self._work, name="otg", daemon=True)

    def _announce(self, end: Endpoint) -> None:
        from heddle.kernel.namespace import inside

        with inside(self._netns(end.host)):
            announce(end.port, end.mac, end.ip, end.gateway_ip)

    def _open_raw(self, flow: RawFlow) -> None:
        end = flow.tx.end
        port = self._sockets.get(end.nic)
        if port is None:
            self._announce(end)
            size = end.mtu
            port = PacketSocket(self._netns(end.host), end.port, size, send_frames=SEND_FRAMES, receive_bytes=0)
            self._sockets[end.nic] = port
            self._stack.callback(port.close)
        counter = None
        if flow.rx is not None and flow.signature is not None:
            there = self._netns(flow.rx.end.host)
            counter = RawCounter(flow, there)
            self._stack.callback(counter.close)
            for each in sinks(flow, there):
                self._stack.callback(each.close)
        made = RawActive(RawSender(flow, port), counter)
        self._raw.append(made)
        self._flows[flow.name] = made

    def _nic(self, end: Endpoint) -> Nic:
        found = self._nics.get(end.nic)
        if found is None:
            self._announce(end)
            netns, version = self._netns(end.host), 6 if ":" in end.ip else 4
            data = PacketSocket(netns, end.port, self._ib_mtu, send_frames=SEND_FRAMES, version=version)
            self._stack.callback(data.close)
            answers = PacketSocket(netns, end.port, self._ib_mtu, receive_bytes=0, version=version)
            self._stack.callback(answers.close)
            found = self._nics[end.nic] = Nic(data, answers, self._ib_mtu, version)
            self._by_fd[data.fileno()] = found
            self._poll.register(data.fileno(), select.EPOLLIN)
        return found

    def _open_roce(self, flows: Collection[RoceFlow]) -> None:
        shapers = {}
        for flow in flows:
            here, there, data = flow.qp.port.end, flow.rx.end, flow.qp.data
            frame_bits = 8 * (self._ib_mtu + LAYOUTS[6 if ":" in here.ip else 4].overhead_bytes)
            if here.nic not in shapers:
                shapers[here.nic] = shaper_of(flow, frame_bits)
            own, sport = data["source_qp_number"], data["udp_source_port"]
            out = QpInfo(own, header_of(here, there, sport, flow.responder, flow.qp.tos), data["initial_psn"], 0,
                         flow.delay_s, (), flow.rtt_s)  # fmt: skip
            sender = MessageSender(flow, out)
            nic = self._nic(here)
            requester = QueuePair(nic, out, paced(sender, flow, out, shapers[here.nic], self._k, frame_bits))
            nic.add(requester)
            back = QpInfo(flow.responder, header_of(there, here, sport, own, 0), data["initial_psn"], 0, flow.delay_s,
                          peer_sport=sport)  # fmt: skip
            receiver = MessageReceiver(flow, back, MessageMemory(flow.message_bytes))
            far = self._nic(there)
            responder = QueuePair(far, back, CnpSender(receiver, flow.rx, self._k, back) if flow.rx.dcqcn else receiver)
            far.add(responder)
            self._flows[flow.name] = RoceActive(nic, sender, requester, receiver, responder)

    def start(self, names: Collection[str]) -> bool:
        """Start flows from their beginning; False when all flows have settled, so that this engine ends."""
        with self._lock:
            if self._done:
                return False
            now = time.monotonic()
            for name in names:
                self._flows[name].start(now)
            self._begin()
        return True

    def _begin(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def stop(self, names: Collection[str]) -> None:
        """End flows; their last packets still arrive."""
        with self._lock:
            for name in names:
                flow = self._flows[name]
                flow.stop()
                if flow.state == PAUSED:
                    flow.state = STARTED

    def pause(self, names: Collection[str]) -> None:
        """Let flows wait that send."""
        with self._lock:
            for name in names:
                flow = self._flows[name]
                if flow.state == STARTED and flow.sending:
                    flow.pause()
                    flow.state = PAUSED

    def resume(self, names: Collection[str]) -> bool:
        """Continue paused flows, and start those that are stopped; False as `start`."""
        with self._lock:
            if self._done:
                return False
            now = time.monotonic()
            for name in names:
                flow = self._flows[name]
                if flow.state == PAUSED:
                    flow.go_on(now)
                    flow.state = STARTED
                elif flow.state == STOPPED:
                    flow.start(now)
            self._begin()
        return True

    def rows(self) -> Mapping[str, FlowState]:
        """Every flow."""
        with self._lock:
            return {name: flow.row() for name, flow in self._flows.items()}

    def close(self) -> None:
        """End everything now."""
        self._closing = True
        self.join()
        self._finish()

    def join(self) -> None:
        """Wait for the end of its thread, from another one."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _finish(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stack.close()

    def settle(self, names: Collection[str], seconds: float) -> None:
        """Return when these flows are stopped, or after so many seconds; if all are, when its thread has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(self._flows[name].state != STOPPED for name in names):
            time.sleep(TICK_S)
        if all(flow.state == STOPPED for flow in self._flows.values()):
            self.join()

    def complaints(self) -> list[str]:
        """Why its counters are not those of the network, or why it has ended; empty usually."""
        lost = {name: nic.socket.drops() for name, nic in self._nics.items()}
        found = [f"{name} was too slow, and its host lost {count} packets" for name, count in lost.items() if count]
        return [*found, *(map(str, self.error.problems) if self.error is not None else ())]

    def _work(self) -> None:
        try:
            while not self._closing:
                with self._lock:
                    due = self._turn(time.monotonic())
                    if all(flow.state == STOPPED for flow in self._flows.values()):
                        self._done = True
                        break
                time.sleep(_PASS_S)
                self._receive(due)
        except HeddleError as error:
            self.error = error
        except OSError as error:
            why = f"cannot be used any more: {error.strerror}"
            self.error = MachineError(Problem("", str(error.filename or "a port"), why, "run ./inv validate"))
        finally:
            with self._lock:
                self._done = True
                for flow in self._flows.values():
                    flow.state = STOPPED
            self._ended()

    def _turn(self, now: float) -> float:
        """Send what is due; the time of the next turn."""
        for each in self._raw:
            each.sender.turn(now)
        for nic in self._nics.values():
            if nic.deadline <= now:
                nic.expire(now)
            if nic.eager:
                nic.transmit(now)
                events = select.EPOLLIN | (select.EPOLLOUT if nic.blocked else 0)
                if events != nic.events:
                    self._poll.modify(nic.socket.fileno(), events)
                    nic.events = events
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            for nic in self._nics.values():
                nic.expire(now)
                nic.blocked, nic.eager = False, True
            for flow in self._flows.values():
                flow.look(now)
        dues = [each.sender.due for each in self._raw if each.sender.due is not None]
        return min([self._next_tick, *dues, *(nic.deadline for nic in self._nics.values())])

    def _receive(self, due: float) -> None:
        ready = self._poll.poll(max(0.0, due - time.monotonic()))
        with self._lock:
            for fd, events in ready:
                nic = self._by_fd[fd]
                if events & (select.EPOLLIN | select.EPOLLERR):
                    nic.receive(time.monotonic())
                if events & select.EPOLLOUT:
                    nic.blocked, nic.eager = False, True
