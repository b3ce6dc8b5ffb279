"""The PFC agent of a lab: MAC control and the pause timers of all ports of all switches, in one process.

The BPF programs send events by a ring buffer. When an ingress port exceeds its threshold, the agent sends a pause frame
by that port. When a pause frame arrives, it closes gates for the requested time. ../compiled/pfcloop.c does both
(tests/pfcreference.py is its reference). A keeper, forked from the agent, replaces it when it dies: see keeper.py.

    python -m heddle.switch.pfc < layout.json      (see world.AgentConfig; returns when the agent is running)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from heddle.base.ethernet import CLASSES, pfc_frame
from heddle.switch.pfc import loop
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import LINK_DOWN, LINK_HOST

# Checks per detection time, while nothing waits. A storm pauses the upstream ports within milliseconds, and those have
# the same detection time: the later this port detects it, the more of them detect a storm of their own. Ports that were
# paused already, by an incast, may do so even before this one; so do those of hardware.
LOOKS: Final = 100


class Watchdog:
    """Ignore a peer that pauses a class forever (after SONiC's pfcwd). Rows as in the maps, ns of CLOCK_MONOTONIC.

    A storm is a gate that has been closed for the detection time, with packets waiting all the time and none leaving.
    Action `drop`: the waiting packets are released, to be dropped by the program at the peer, and new packets are
    dropped. Action `forward`: packets pass as if there were no pause. Once no pause frame has arrived for the
    restoration time, pauses are obeyed again.
    """

    def __init__(
        self,
        world: World,
        rules: loop.PfcPolicies,
        timers: loop.Deadlines,
        rows: loop.RowState,
        release: Callable[[int, int], None],
    ) -> None:
        """release: opens a gate (row, now)."""
        self._world, self._rules, self._timers = world, rules, timers
        self._rows, self._release = rows, release
        self._waiting, self._heard, self._storming = rows.waiting, rows.heard, rows.storming
        self._depth, self._out = world.queues.cells["depth"], world.queues.cells["last_out_ns"]
        table = world.queues.agent
        self._state, self._storms, self._since = table["watchdog"], table["storms"], table["storm_since_ns"]
        self._closed = table["closed_since_ns"]

    def adopt(self, now: int) -> None:
        """Take over the storms of an earlier agent."""
        for index in self._state.nonzero()[0].tolist():
            self._storming[index] = 1
            self._heard[index] = now
            self._timers.push(now + self._rules.restore_ns[index], loop.RESTORE, index)

    def closed(self, index: int, now: int) -> None:
        """Start to watch a gate that has just been closed."""
        detect = self._rules.detect_ns[index]
        if detect:
            waits = int(self._depth[index]) > 0
            self._waiting[index] = now if waits else 0
            self._timers.push(now + (detect if waits else detect // LOOKS), loop.DETECT, index)

    def opened(self, index: int) -> None:
        """Stop watching a gate that has been opened."""
        if self._waiting[index] != loop.NOT_WATCHED:
            self._waiting[index] = loop.NOT_WATCHED
            self._timers.cancel(loop.DETECT, index)

    def look(self, index: int, now: int) -> None:
        """Check a closed gate for a storm."""
        detect = self._rules.detect_ns[index]
        since = self._waiting[index]
        if since == loop.NOT_WATCHED or not detect:
            return
        if int(self._depth[index]) == 0:
            self._waiting[index] = 0
            self._timers.push(now + detect // LOOKS, loop.DETECT, index)
            return
        if not since:
            since = self._waiting[index] = now
        stuck = max(since, int(self._closed[index]), int(self._out[index]))
        if now < stuck + detect:
            self._timers.push(stuck + detect, loop.DETECT, index)
            return
        self._storm(index, now)

    def _storm(self, index: int, now: int) -> None:
        action = self._rules.action[index]
        self._state[index], self._since[index] = action, now
        self._storms[index] += 1
        self._storming[index] = 1
        waiting = int(self._depth[index])
        self._release(index, now)
        self._timers.push((self._heard[index] or now) + self._rules.restore_ns[index], loop.RESTORE, index)
        done = "drops" if action == loop.DROP else "forwards"
        port, seconds = self._world.ports[index // CLASSES], self._rules.detect_ns[index] / 1e9
        what = f"paused by {port.peer_ref} for {seconds:g} s with {waiting} bytes waiting; {done} them"
        self._world.log.say("storm", f"{port.ref} class {index % CLASSES}: {what}")

    def calm(self, index: int, now: int) -> None:
        """Check whether a storm is over."""
        if not self._storming[index]:
            return
        over = self._heard[index] + self._rules.restore_ns[index]
        if now < over:
            self._timers.push(over, loop.RESTORE, index)
            return
        self.end(index)

    def end(self, index: int) -> None:
        """End a storm: obey pauses again."""
        self._state[index] = 0
        self._storming[index] = 0
        port = self._world.ports[index // CLASSES]
        self._world.log.say("calm", f"{port.ref} class {index % CLASSES}: the storm is over, pauses are obeyed again")


PAUSED: Final = 1  # `state` of an ingress port's class in queue.h
LEAST_NS: Final = 200_000  # minimum time between two frames for one class, even if a pause is shorter


class Pauses:
    """The pause requests of every ingress port. `state` in the map is authoritative; events are only a wake-up."""

    def __init__(self, world: World, rules: loop.PfcPolicies, timers: loop.Deadlines, rows: loop.RowState) -> None:
        self._world, self._rules, self._timers, self._rows = world, rules, timers, rows
        self._asked = rows.asked
        self._state = world.queues.ingress["state"]
        self._sent = world.queues.agent["pfc_sent"]
        self._frames: dict[tuple[int, bool], bytes] = {}

    def changed(self) -> None:
        """Apply changed policies: rebuild frames for new quanta, and send Xon where a class may no longer pause."""
        self._frames.clear()
        for index in self._rows.asking():
            self.settle(index, 0)  # of these, none begins to pause

    def adopt(self, now: int) -> None:
        """Continue after an earlier agent: end pauses that it requested and that are not needed any more."""
        self.look(now)
        links = self._world.queues.links
        for gate in np.flatnonzero(self._world.queues.agent["until_ns"]).tolist():
            asking = int(links["peer"][gate // CLASSES])
            index = asking * CLASSES + gate % CLASSES
            if asking not in self._world.ports:  # it is in another shard, whose agent does this
                continue
            # Not for a host: its port never exceeds a threshold, and only the host itself may send pause frames.
            if not self._asked[index] and self._rules.pfc[index] and not links["flags"][asking] & LINK_HOST:
                self._send(index, False)

    def settle(self, index: int, now: int) -> None:
        """Send a pause frame or Xon, according to the map. index: row of an ingress port and class."""
        if self._state[index] == PAUSED and self._rules.pfc[index]:
            if not self._asked[index]:
                self._ask(index, now)
        elif self._asked[index]:
            self._asked[index] = 0
            self._timers.cancel(loop.REFRESH, index)
            self._send(index, False)

    def look(self, now: int) -> None:
        """Check every row: events are lost when the ring is full, or when the process that read them dies."""
        for index in np.flatnonzero(self._state == PAUSED).tolist():
            self.settle(index, now)
        for index in [index for index in self._rows.asking() if self._state[index] != PAUSED]:
            self.settle(index, now)

    def end(self) -> None:
        """Send Xon for every pause, since no process will repeat them."""
        for index in self._rows.asking():
            self._send(index, False)
            self._timers.cancel(loop.REFRESH, index)
            self._asked[index] = 0

    def _ask(self, index: int, now: int) -> None:
        self._send(index, True)
        self._asked[index] = 1
        self._timers.push(now + max(LEAST_NS, self._rules.pause_ns(index) // 2), loop.REFRESH, index)

    def _send(self, index: int, pause: bool) -> None:
        port = self._world.ports[index // CLASSES]
        space = self._world.spaces.get(port.node)
        if space is None:  # its namespace is gone
            return
        frame = self._frames.get((index, pause))
        if frame is None:
            quanta = {index % CLASSES: self._rules.quanta[index] if pause else 0}
            frame = self._frames[index, pause] = pfc_frame(space.macs[port.name], quanta)
        if space.send(port.name, frame):
            self._sent[index] += 1


_GRACE_NS: Final = 50_000_000  # by then, packets that were in flight through programs and backlogs have arrived


class Links:
    """All ports' links, by port id. Packets that waited at a link that goes down are removed from the counters.

    A port without a carrier, or whose peer has none, is set down: the programs drop its packets without counting them
    in a queue, and the kernel discards its qdisc (dev_deactivate). Once no packet is in flight any more, the depth of
    the port and the occupancy of the ingress ports of those packets are corrected. The same is done once more before
    the port counts again: at once, if the link has been down for longer than that.
    """

    def __init__(self, world: World, timers: loop.Deadlines, lost: Callable[[int, int], None]) -> None:
        """lost: called with a row and now, for each class of a port that went down."""
        self._world, self._timers, self._lost = world, timers, lost
        self._flags, peers = world.queues.links["flags"], world.queues.links["peer"].tolist()
        # The agent of another shard knows its ports; a port without a carrier is seen here.
        self._peers = [peer if peer in world.ports else number for number, peer in enumerate(peers)]
        self._ids = {(port.node, port.name): number for number, port in world.ports.items()}
        self._up = dict.fromkeys(world.ports, True)
        self._down = dict.fromkeys((number for number in world.ports if self._flags[number] & LINK_DOWN), 0)

    def read(self, node: str, now: int) -> None:
        """Read all links of a namespace: at the start, and when notifications were lost."""
        for name, up in self._world.spaces[node].links().items():
            self.changed(node, name, up, now)

    def changed(self, node: str, name: str, up: bool, now: int) -> None:
        """Record the state of a port. Ignore interfaces that are not ports of the fabric (lo, management)."""
        number = self._ids.get((node, name))
        if number is None or (self._up[number] == up and (number in self._down) != up):
            return
        self._up[number] = up
        self._settle(number, now)
        self._settle(self._peers[number], now)

    def _usable(self, number: int) -> bool:
        return self._up[number] and self._up[self._peers[number]]

    def _settle(self, number: int, now: int) -> None:
        usable = self._usable(number)
        if usable == (number not in self._down):
            return
        if not usable:
            self._down[number] = now
            # Without grace(): it waits for all CPUs, and gates must not wait.
            self._flags[number] = int(self._flags[number]) | LINK_DOWN
            for index in range(number * CLASSES, (number + 1) * CLASSES):
                self._lost(index, now)
            self._world.log.say("link", f"{self._world.ports[number].ref} is down: packets that waited there are lost")
        self._timers.push(max(now, (self._down[number] or now) + _GRACE_NS), loop.LINK, number)

    def due(self, number: int) -> None:
        """Correct the counters of a port that went down, now that no packet is in flight."""
        if number not in self._down:
            return
        self._world.queues.reset_port(number)
        if self._usable(number):
            del self._down[number]
            self._flags[number] = int(self._flags[number]) & ~LINK_DOWN
            self._world.log.say("link", f"{self._world.ports[number].ref} is up again")


TICK_NS: Final = 100_000_000
_TICKS_A_LOOK: Final = 10  # ticks between two checks of namespaces and counters
ROUNDS: Final = 4  # of reading events, before timers get their turn
_SILENT_NS: Final = 1_000_000_000
_SILENT_TICKS: Final = 10  # in a row, since suspending the machine stops agent and keeper alike


class Ended(BaseException):
    """This process was asked to end."""


class Agent:
    """One lab's agent. `run` returns when the keeper has died, so that another can be started."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._queues = queues = world.queues
        self._rules = loop.PfcPolicies(queues)
        self._rows = loop.RowState(len(queues.agent))
        self._loop = self._new_loop()
        self._pauses = Pauses(world, self._rules, self._loop, self._rows)
        self._watchdog = Watchdog(world, self._rules, self._loop, self._rows, self._open)
        self._links = Links(world, self._loop, self._lost)
        table = queues.agent
        self._since, self._until = table["closed_since_ns"], table["until_ns"]
        self._out = queues.cells["last_out_ns"]
        self._count, self._last = table["reactions"], table["reaction_last_ns"]
        self._max, self._sum = table["reaction_max_ns"], table["reaction_sum_ns"]
        self._histogram = table["spare"].view("<u4")
        self._ticks = 0
        self._keeper, self._silent = -1, 0
        self._handlers: dict[int, Callable[[], None]] = {}
        for node, space in world.spaces.items():
            self._handlers[space.netlink.fileno()] = partial(self._take_notices, node)
        for fd in self._handlers:
            self._loop.add(fd)

    def _new_loop(self) -> loop.CompiledLoop:
        return loop.CompiledLoop(self._world, self._rules, self._rows)

    def run(self, keeper: int) -> None:
        """Work until the process behind the pidfd `keeper` has ended. Raise Ended when this process is asked to end."""
        self._loop.add(keeper)
        self._keeper, self._silent = keeper, 0
        while True:
            for work in self._loop.wait():
                if work.fd < 0:
                    self._due(work.kind, work.row, time.monotonic_ns())
                elif work.fd == keeper:
                    self._loop.remove(keeper)
                    return
                elif handler := self._handlers.get(work.fd):  # an earlier handler may have closed this namespace
                    handler()
            if self._world.page.ending:
                raise Ended

    def reload(self) -> None:
        """Read the rules now; for a signal handler, which may interrupt any code."""
        self._loop.push(time.monotonic_ns(), loop.RELOAD, 0)

    def close(self) -> None:
        """Close the descriptors that a successor opens for itself."""
        self._loop.close()

    def end(self) -> None:
        """Open all gates, and send Xon to all paused peers."""
        for index in self._until.nonzero()[0].tolist():
            self._world.open_gate(index, time.monotonic_ns())
        self._pauses.end()

    def begin(self, *, first: bool) -> None:
        """Take over the current state: keep running pauses until their end, and open the gates that are overdue.

        first: no agent ran before this one; it then opens every other gate, too, even if the table shows it open.
        """
        now = time.monotonic_ns()
        for index, (space, port, number) in self._world.gates.items():
            until = int(self._until[index])
            if until > now and self._rules.pfc[index]:
                space.close(port, number)  # the previous agent may have been killed just before it did this
                self._watch(index, until)
                self._watchdog.closed(index, int(self._since[index]))
            elif until or first:
                self._world.open_gate(index, now)
        self._pauses.adopt(now)
        self._watchdog.adopt(now)
        for node in self._world.spaces:
            self._world.page.heartbeat_ns = time.monotonic_ns()  # the keeper already runs and watches it
            self._links.read(node, now)
        self._loop.push(now + TICK_NS, loop.TICK, 0)

    def _due(self, kind: int, index: int, now: int) -> None:
        if kind == loop.DETECT:
            self._watchdog.look(index, now)
        elif kind == loop.RESTORE:
            self._watchdog.calm(index, now)
        elif kind == loop.LINK:
            self._links.due(index)
        elif kind == loop.TICK:
            self._tick(now)
        elif self._rules.load():
            self._changed(now)

    def _watch(self, index: int, until: int) -> None:
        self._rows.checked[index] = until
        self._loop.push(until, loop.EXPIRE, index)

    def _open(self, index: int, now: int) -> None:
        """Open a gate, and record the reaction time of its pause.

        That is the time from the pause frame until the gate was closed, or until the last packet of the class arrived
        at the peer, whichever is later.
        """
        rows = self._rows
        rows.checked[index] = 0
        self._loop.cancel(loop.EXPIRE, index)
        if heard := rows.arrived[index]:
            rows.arrived[index] = 0
            took = max(rows.shut[index], int(self._out[index])) - heard
            self._count[index] += 1
            self._last[index] = took
            self._sum[index] += took
            self._max[index] = max(took, int(self._max[index]))
            self._histogram[index, loop.reaction_bin(took)] += 1
        self._world.open_gate(index, now)
        self._watchdog.opened(index)

    def _lost(self, index: int, now: int) -> None:
        """Open the gate of a row whose port has lost its link: its peer cannot send Xon any more."""
        if index in self._world.gates and self._until[index]:
            self._open(index, now)

    def _take_notices(self, node: str) -> None:
        space = self._world.spaces.get(node)
        if space is None:
            return
        refused = space.errors
        for event in space.notices():
            if event.port:
                self._links.changed(node, event.port, event.up, time.monotonic_ns())
            else:
                self._links.read(node, time.monotonic_ns())
        if space.errors > refused:
            self._world.log.say("refused", f"{node}: the kernel refused to change a gate; its qdiscs were changed")

    def _tick(self, now: int) -> None:
        self._loop.push(now + TICK_NS, loop.TICK, 0)
        self._ticks += 1
        if self._rules.load():
            self._changed(now)
        self._pauses.look(now)
        self._silent = self._silent + 1 if now - self._world.page.keeper_ns > _SILENT_NS else 0
        if self._silent >= _SILENT_TICKS:
            self._world.log.say("keeper", "the keeper process is unresponsive")
            with suppress(ProcessLookupError):  # the pidfd reports its end, as any other
                signal.pidfd_send_signal(self._keeper, signal.SIGKILL)
        if self._ticks % _TICKS_A_LOOK == 0:
            self._close_lost_nodes()
            for port, number, held in self._queues.reconcile(self._world.qdisc_reader()):
                what = f"{held} bytes were lost between the two programs that count them; removed from the queue depth"
                self._world.log.say("lost", f"{self._world.ports[port].ref} class {number}: {what}")

    def _changed(self, now: int) -> None:
        """Apply changed rules: open the gates of classes that can no longer be paused."""
        self._loop.rules_changed()
        self._pauses.changed()
        for index in self._until.nonzero()[0].tolist():
            if not self._rules.pfc[index]:
                self._open(index, now)
        for index in [index for index in self._rows.storms() if not self._rules.detect_ns[index]]:
            self._watchdog.end(index)

    def _close_lost_nodes(self) -> None:
        """Close the sockets of nodes whose namespaces are gone; raise Ended when no node is left."""
        for node in self._world.lost():
            fd = self._world.spaces[node].netlink.fileno()
            self._loop.remove(fd)
            del self._handlers[fd]
            self._loop.forget(node)
            self._world.close_node(node)
            self._world.log.say("gone", f"the namespace of {node} was removed")
        if not self._world.spaces:
            self._world.page.end()
            raise Ended


def quiet_signals(stop: Callable[[], None]) -> None:
    """Make SIGTERM and SIGINT end both processes cleanly, and ignore SIGHUP of a terminal."""

    def ended(*_: object) -> None:
        stop()
        raise Ended

    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
