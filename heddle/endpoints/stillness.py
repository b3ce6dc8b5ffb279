"""Detect that a worker's NICs have stopped: with a transport that never sends again, its ranks may wait for ever.

A rank alone cannot tell a lost message from one that waits for other ranks. So each worker reports when none of its
NICs has sent or received a packet for a while, and when they move again. The run has lost data when all workers are
still at the same time (crew.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_LOOKS: Final = 8  # in the time after which NICs count as still


class Stillness:
    """Whether a number of packets stays the same for `patience_s` seconds."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._count = -1
        self._since = self._next = 0.0
        self.still = False

    def changed(self, now: float, count: Callable[[], int]) -> bool:
        """Look again, if it is time; True when `still` has changed. count: packets so far."""
        if now < self._next:
            return False
        self._next = now + self._patience_s / _LOOKS
        before, found = self.still, count()
        if found != self._count:
            self._count, self._since = found, now
        self.still = now - self._since >= self._patience_s
        return self.still != before
