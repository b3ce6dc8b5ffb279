"""Entropy policies: which of its UDP source ports a queue pair of `srd` uses for its next packet.

| policy | the next port |
|---|---|
| oblivious | the next one in turn |
| bitmap | the next one in turn without a penalty; to skip a port costs it one point of its penalty |
| reps | the one of the oldest good answer that was not used again yet; without one, a random port |

bitmap: a marked packet costs its port 1 point, a trimmed one 4, a timeout 15, which is the most.
reps: recycled entropies (Bonato et al., "REPS: Recycled Entropy Packet Spraying for Adaptive Load Balancing and Failure
Mitigation", 2024) keep the ports of the last 8 packets that arrived unmarked. A timeout may be a failed path: for
FREEZE_S ports then come only from the kept ones, again and again, and after it 16 packets explore.
All numbers are those of uet-htsim.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Final, Literal, Protocol

EntropyPolicy = Literal["oblivious", "bitmap", "reps"]
KEPT: Final = 8
EXPLORED: Final = 16
FREEZE_S: Final = 0.1  # some round trips of an emulated fabric
PENALTIES: Final[Mapping[str, int]] = {"good": 0, "marked": 1, "trimmed": 4, "timeout": 15}


class EntropyChooser(Protocol):
    """The ports of one sending end, as numbers from 0."""

    def next(self, now: float) -> int:
        """The port of the next packet."""

    def feedback(self, port: int, what: str, now: float) -> None:
        """A packet on this port was answered: `good`, `marked` or `trimmed`."""

    def timed_out(self, now: float) -> None:
        """No answer came in time; it is not known of which port."""


class Oblivious(EntropyChooser):
    """The ports in turn, whatever happens."""

    def __init__(self, ports: int, seed: int) -> None:
        self._ports = ports
        self._at = -1

    def next(self, now: float) -> int:
        self._at = (self._at + 1) % self._ports
        return self._at

    def feedback(self, port: int, what: str, now: float) -> None:
        pass

    def timed_out(self, now: float) -> None:
        pass


class Bitmap(Oblivious):
    """The ports in turn, but for those with a penalty."""

    def __init__(self, ports: int, seed: int) -> None:
        super().__init__(ports, seed)
        self.penalties = [0] * ports
        self._last = 0

    def next(self, now: float) -> int:
        for _ in range(self._ports):
            port = super().next(now)
            if not self.penalties[port]:
                break
            self.penalties[port] -= 1
        self._last = port
        return port

    def feedback(self, port: int, what: str, now: float) -> None:
        self.penalties[port] = min(self.penalties[port] + PENALTIES[what], PENALTIES["timeout"])

    def timed_out(self, now: float) -> None:
        self.feedback(self._last, "timeout", now)


class Reps(EntropyChooser):
    """Ports of packets that arrived unmarked are used again."""

    def __init__(self, ports: int, seed: int) -> None:
        self._ports, self._dice = ports, random.Random(seed)  # noqa: S311
        self.fresh: deque[int] = deque(maxlen=KEPT)  # not used again yet, oldest first
        self._kept: deque[int] = deque(maxlen=KEPT)  # all of the latest ones, for a freeze
        self._frozen_until = 0.0
        self._explore = 0

    def next(self, now: float) -> int:
        if self._frozen_until:
            if now < self._frozen_until and self._kept:
                self._kept.rotate(-1)
                return self._kept[-1]
            if now >= self._frozen_until:
                self._frozen_until, self._explore = 0.0, EXPLORED
                self.fresh.clear()
        if self._explore or not self.fresh:
            self._explore = max(0, self._explore - 1)
            return self._dice.randrange(self._ports)
        return self.fresh.popleft()

    def feedback(self, port: int, what: str, now: float) -> None:
        if what == "good":
            self.fresh.append(port)
            self._kept.append(port)

    def timed_out(self, now: float) -> None:
        if not self._explore:
            self._frozen_until = now + FREEZE_S


CHOOSERS: Final[Mapping[EntropyPolicy, type[Oblivious] | type[Reps]]] = {
    "oblivious": Oblivious,
    "bitmap": Bitmap,
    "reps": Reps,
}
