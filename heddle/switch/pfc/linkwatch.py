"""Links that go down and come back: packets that waited there are lost, and their bytes are removed from the counters.

A port without a carrier, or whose peer has none, is set down: the programs drop its packets without counting them in a
queue. The kernel discards the contents of its qdisc (dev_deactivate). Once no packet is in flight any more, the depth
of the port and the occupancy of the ingress ports of those packets are corrected. The same is done once more before
the port counts again: at once, if the link has been down for longer than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.loop import LINK, Deadlines
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import LINK_DOWN

_GRACE_NS: Final = 50_000_000  # by then, packets that were in flight through programs and backlogs have arrived


class Links:
    """All ports' links, by port id."""

    def __init__(self, world: World, timers: Deadlines, lost: Callable[[int, int], None]) -> None:
        """lost: called with a row and now, for each class of a port that went down."""
        self._world, self._timers, self._lost = world, timers, lost
        self._flags, self._peers = world.queues.links["flags"], world.queues.links["peer"].tolist()
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
        self._timers.push(max(now, (self._down[number] or now) + _GRACE_NS), LINK, number)

    def due(self, number: int) -> None:
        """Correct the counters of a port that went down, now that no packet is in flight."""
        if number not in self._down:
            return
        self._world.queues.reset_port(number)
        if self._usable(number):
            del self._down[number]
            self._flags[number] = int(self._flags[number]) & ~LINK_DOWN
            self._world.log.say("link", f"{self._world.ports[number].ref} is up again")
