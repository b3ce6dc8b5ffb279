"""Asking: pause frames out of ingress ports whose class holds too much, again before each runs out, and then Xon."""

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
_LEAST_NS: Final = 200_000  # between two frames for one class, however short a pause is


class Pauses:
    """What every ingress port asks of its peer. `state` in the map is the truth; events only say where to look."""

    def __init__(self, world: World, rules: PfcPolicies, timers: Timers, kind: int) -> None:
        """kind: of this room's timers."""
        self._world, self._rules, self._timers, self._kind = world, rules, timers, kind
        self._state = world.queues.ingress["state"]
        self._sent = world.queues.agent["pfc_sent"]
        self._asked: dict[int, int] = {}  # row -> when its pause is to be asked for again
        self._frames: dict[tuple[int, bool], bytes] = {}

    def changed(self) -> None:
        """Policies have changed: other quanta make other frames, and who may no longer pause takes it back."""
        self._frames.clear()
        for index in list(self._asked):
            self.settle(index, self._asked[index])

    def adopt(self, now: int) -> None:
        """Go on where an agent before has ended: it may have asked for pauses that nobody needs any more."""
        self.look(now)
        links = self._world.queues.links
        for gate in np.flatnonzero(self._world.queues.agent["until_ns"]).tolist():
            asking = int(links["peer"][gate // CLASSES])
            index = asking * CLASSES + gate % CLASSES
            # A host asks by itself, if at all: its port never holds too much.
            if index not in self._asked and self._rules.pfc[index] and not links["flags"][asking] & LINK_HOST:
                self._send(index, False)

    def settle(self, index: int, now: int) -> None:
        """Ask or take back, as the map has it. index: row of an ingress port and class."""
        if self._state[index] == PAUSED and self._rules.pfc[index]:
            if index not in self._asked:
                self._ask(index, now)
        elif self._asked.pop(index, None) is not None:
            self._send(index, False)

    def due(self, when: int, index: int, now: int) -> None:
        """Half of a pause is over."""
        if self._asked.get(index) == when:
            del self._asked[index]
            if self._state[index] == PAUSED and self._rules.pfc[index]:
                self._ask(index, now)
            else:
                self._send(index, False)

    def look(self, now: int) -> None:
        """Every row: events are lost when the ring is full, or with the process that had read them."""
        for index in np.flatnonzero(self._state == PAUSED).tolist():
            self.settle(index, now)
        for index in [index for index in self._asked if self._state[index] != PAUSED]:
            self.settle(index, now)

    def end(self) -> None:
        """Nobody will ask again: let all go on."""
        for index in self._asked:
            self._send(index, False)
        self._asked.clear()

    def _ask(self, index: int, now: int) -> None:
        self._send(index, True)
        again = now + max(_LEAST_NS, self._rules.pause_ns(index) // 2)
        self._asked[index] = again
        self._timers.push(again, self._kind, index)

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
