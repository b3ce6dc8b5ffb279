"""The PFC watchdog: ignore a peer that pauses a class forever (after SONiC's pfcwd).

A storm is a gate that has been closed for the detection time, with packets waiting all the time and none leaving.
Action `drop`: the waiting packets are released, to be dropped by the program at the peer, and new packets are dropped.
Action `forward`: packets pass as if there were no pause. Once no pause frame has arrived for the restoration time,
pauses are obeyed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.loop import DETECT, RESTORE, Deadlines
from heddle.switch.pfc.rows import DROP, NOT_WATCHED, PfcPolicies, RowState
from heddle.switch.pfc.world import World

# Checks per detection time, while nothing waits. A storm pauses the upstream ports within milliseconds, and those have
# the same detection time: the later this port detects it, the more of them detect a storm of their own. Ports that were
# paused already, by an incast, may do so even before this one; so do those of hardware.
LOOKS: Final = 100


class Watchdog:
    """One for all gates. Rows as in the maps, times in ns of CLOCK_MONOTONIC."""

    def __init__(
        self,
        world: World,
        rules: PfcPolicies,
        timers: Deadlines,
        rows: RowState,
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
            self._timers.push(now + self._rules.restore_ns[index], RESTORE, index)

    def closed(self, index: int, now: int) -> None:
        """Start to watch a gate that has just been closed."""
        detect = self._rules.detect_ns[index]
        if detect:
            waits = int(self._depth[index]) > 0
            self._waiting[index] = now if waits else 0
            self._timers.push(now + (detect if waits else detect // LOOKS), DETECT, index)

    def opened(self, index: int) -> None:
        """Stop watching a gate that has been opened."""
        if self._waiting[index] != NOT_WATCHED:
            self._waiting[index] = NOT_WATCHED
            self._timers.cancel(DETECT, index)

    def look(self, index: int, now: int) -> None:
        """Check a closed gate for a storm."""
        detect = self._rules.detect_ns[index]
        since = self._waiting[index]
        if since == NOT_WATCHED or not detect:
            return
        if int(self._depth[index]) == 0:
            self._waiting[index] = 0
            self._timers.push(now + detect // LOOKS, DETECT, index)
            return
        if not since:
            since = self._waiting[index] = now
        stuck = max(since, int(self._closed[index]), int(self._out[index]))
        if now < stuck + detect:
            self._timers.push(stuck + detect, DETECT, index)
            return
        self._storm(index, now)

    def _storm(self, index: int, now: int) -> None:
        action = self._rules.action[index]
        self._state[index], self._since[index] = action, now
        self._storms[index] += 1
        self._storming[index] = 1
        waiting = int(self._depth[index])
        self._release(index, now)
        self._timers.push((self._heard[index] or now) + self._rules.restore_ns[index], RESTORE, index)
        done = "drops" if action == DROP else "forwards"
        port, seconds = self._world.ports[index // CLASSES], self._rules.detect_ns[index] / 1e9
        what = f"paused by {port.peer_ref} for {seconds:g} s with {waiting} bytes waiting; {done} them"
        self._world.log.say("storm", f"{port.ref} class {index % CLASSES}: {what}")

    def calm(self, index: int, now: int) -> None:
        """Check whether a storm is over."""
        if not self._storming[index]:
            return
        over = self._heard[index] + self._rules.restore_ns[index]
        if now < over:
            self._timers.push(over, RESTORE, index)
            return
        self.end(index)

    def end(self, index: int) -> None:
        """End a storm: obey pauses again."""
        self._state[index] = 0
        self._storming[index] = 0
        port = self._world.ports[index // CLASSES]
        self._world.log.say("calm", f"{port.ref} class {index % CLASSES}: the storm is over, pauses are obeyed again")
