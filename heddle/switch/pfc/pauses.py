"""Send pause frames by ingress ports that exceed a class's threshold, repeat them before they expire, then send Xon."""

from __future__ import annotations

from typing import Final

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.frame import build
from heddle.switch.pfc.loop import REFRESH, Deadlines
from heddle.switch.pfc.rows import PfcPolicies, RowState
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import LINK_HOST

PAUSED: Final = 1  # `state` of an ingress port's class in queue.h
LEAST_NS: Final = 200_000  # minimum time between two frames for one class, even if a pause is shorter


class Pauses:
    """The pause requests of every ingress port. `state` in the map is authoritative; events are only a wake-up."""

    def __init__(self, world: World, rules: PfcPolicies, timers: Deadlines, rows: RowState) -> None:
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
            self._timers.cancel(REFRESH, index)
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
            self._timers.cancel(REFRESH, index)
            self._asked[index] = 0

    def _ask(self, index: int, now: int) -> None:
        self._send(index, True)
        self._asked[index] = 1
        self._timers.push(now + max(LEAST_NS, self._rules.pause_ns(index) // 2), REFRESH, index)

    def _send(self, index: int, pause: bool) -> None:
        port = self._world.ports[index // CLASSES]
        space = self._world.spaces.get(port.node)
        if space is None:  # its namespace is gone
            return
        frame = self._frames.get((index, pause))
        if frame is None:
            quanta = {index % CLASSES: self._rules.quanta[index] if pause else 0}
            frame = self._frames[index, pause] = build(space.macs[port.name], quanta)
        if space.send(port.name, frame):
            self._sent[index] += 1
