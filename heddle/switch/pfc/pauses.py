"""Send pause frames by ingress ports that exceed a class's threshold, repeat them before they expire, then send Xon."""

from __future__ import annotations

from typing import Final

import numpy as np

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.frame import build
from heddle.switch.pfc.thresholds import PfcPolicies
from heddle.switch.pfc.timers import Timers
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import LINK_HOST

PAUSED: Final = 1  # `state` of an ingress port's class in queue.h
_LEAST_NS: Final = 200_000  # minimum time between two frames for one class, even if a pause is shorter


class Pauses:
    """The pause requests of every ingress port. `state` in the map is authoritative; events are only a wake-up."""

    def __init__(self, world: World, rules: PfcPolicies, timers: Timers, kind: int) -> None:
        """kind: of this class's timers."""
        self._world, self._rules, self._timers, self._kind = world, rules, timers, kind
        self._state = world.queues.ingress["state"]
        self._sent = world.queues.agent["pfc_sent"]
        self._asked: set[int] = set()  # rows; each has a timer that repeats its pause frame
        self._frames: dict[tuple[int, bool], bytes] = {}

    def changed(self) -> None:
        """Apply changed policies: rebuild frames for new quanta, and send Xon where a class may no longer pause."""
        self._frames.clear()
        for index in list(self._asked):
            self.settle(index, 0)  # of these, none begins to pause

    def adopt(self, now: int) -> None:
        """Continue after an earlier agent: end pauses that it requested and that are not needed any more."""
        self.look(now)
        links = self._world.queues.links
        for gate in np.flatnonzero(self._world.queues.agent["until_ns"]).tolist():
            asking = int(links["peer"][gate // CLASSES])
            index = asking * CLASSES + gate % CLASSES
            # Not for a host: its port never exceeds a threshold, and only the host itself may send pause frames.
            if index not in self._asked and self._rules.pfc[index] and not links["flags"][asking] & LINK_HOST:
                self._send(index, False)

    def settle(self, index: int, now: int) -> None:
        """Send a pause frame or Xon, according to the map. index: row of an ingress port and class."""
        if self._state[index] == PAUSED and self._rules.pfc[index]:
            if index not in self._asked:
                self._ask(index, now)
        elif index in self._asked:
            self._asked.remove(index)
            self._timers.cancel(self._kind, index)
            self._send(index, False)

    def due(self, index: int, now: int) -> None:
        """Repeat or end a pause, when half of it is over."""
        self._asked.remove(index)
        if self._state[index] == PAUSED and self._rules.pfc[index]:
            self._ask(index, now)
        else:
            self._send(index, False)

    def look(self, now: int) -> None:
        """Check every row: events are lost when the ring is full, or when the process that read them dies."""
        for index in np.flatnonzero(self._state == PAUSED).tolist():
            self.settle(index, now)
        for index in [index for index in self._asked if self._state[index] != PAUSED]:
            self.settle(index, now)

    def end(self) -> None:
        """Send Xon for every pause, since no process will repeat them."""
        for index in self._asked:
            self._send(index, False)
            self._timers.cancel(self._kind, index)
        self._asked.clear()

    def _ask(self, index: int, now: int) -> None:
        self._send(index, True)
        self._asked.add(index)
        self._timers.push(now + max(_LEAST_NS, self._rules.pause_ns(index) // 2), self._kind, index)

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
