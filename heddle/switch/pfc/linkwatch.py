"""Links that go down and come back: what waited there is lost with them, and leaves no bytes in the books.

A port without a carrier, or whose peer has none, is set down: the programs drop its packets and count them no more.
The kernel throws away what its qdisc held (dev_deactivate). Once nothing is under way any more, the port's depth and
the occupancy of the ports by which that came are put right. The same is done once more before it counts again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from heddle.base.ethernet import CLASSES
from heddle.switch.pfc.timers import Timers
from heddle.switch.pfc.world import World
from heddle.switch.queues.cells import LINK_DOWN

_GRACE_NS: Final = 50_000_000  # packets that were on their way through programs and backlogs have arrived by then


class Links:
    """All ports' links, by port id."""

    def __init__(self, world: World, timers: Timers, kind: int, lost: Callable[[int, int], None]) -> None:
        """kind: of this room's timers. lost: called with a row and now, for each class of a port that has gone down."""
        self._world, self._timers, self._kind, self._lost = world, timers, kind, lost
        self._flags, self._peers = world.queues.links["flags"], world.queues.links["peer"].tolist()
        self._ids = {(port.node, port.name): number for number, port in world.ports.items()}
        self._up = dict.fromkeys(world.ports, True)
        self._down = {number for number in world.ports if self._flags[number] & LINK_DOWN}

    def read(self, node: str, now: int) -> None:
        """Ask a whole namespace: at the start, and when notifications were lost."""
        for name, up in self._world.spaces[node].links().items():
            self.changed(node, name, up, now)

    def changed(self, node: str, name: str, up: bool, now: int) -> None:
        """A port has this state. Names that are no ports of the fabric (lo, management) are passed over."""
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
            self._down.add(number)
            # Not by set_down: that waits for all processors, and gates do not.
            self._flags[number] = int(self._flags[number]) | LINK_DOWN
            for index in range(number * CLASSES, (number + 1) * CLASSES):
                self._lost(index, now)
            self._world.log.say("link", f"{self._world.ports[number].ref} is down: what waited there is lost")
        self._timers.push(now + _GRACE_NS, self._kind, number)

    def due(self, number: int) -> None:
        """Nothing is under way any more."""
        if number not in self._down:
            return
        self._world.queues.reset_port(number)
        if self._usable(number):
            self._down.discard(number)
            self._flags[number] = int(self._flags[number]) & ~LINK_DOWN
            self._world.log.say("link", f"{self._world.ports[number].ref} is up again")
