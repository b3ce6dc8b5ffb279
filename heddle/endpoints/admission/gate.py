"""The gate of one sender to one peer: it keeps messages until they are granted. Pure: no packets, no clock.

In:  messages that are ready to be sent, grants that arrived, the time.
Out: messages to send, their waits, an error when no grant arrives in time.
A grant names its message, so grants and messages may come in any order. A message waits from the time when it is ready
and its predecessor was released: as in NCCL, whose proxy looks for the CTS of one message after the other.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from heddle.endpoints.admission.grant import Grant
from heddle.endpoints.admission.waits import WaitRecord
from heddle.endpoints.nic.qpend import NEVER

Held = TypeVar("Held")


class GrantGate(Generic[Held]):
    """Messages and grants of one connection. limit_s: seconds without a grant after which it fails; 0: never."""

    __slots__ = ("_early", "_held", "_last", "_limit", "error", "grants", "waits")

    def __init__(self, limit_s: float) -> None:
        self._limit = limit_s
        self._held: dict[Grant, tuple[Held, float]] = {}  # with the time when each was ready, in order
        self._early: set[Grant] = set()  # granted, but not ready
        self._last = -NEVER  # when the last message was released
        self.waits = WaitRecord()
        self.grants = 0
        self.error = ""

    @property
    def held(self) -> int:
        """Messages that wait."""
        return len(self._held)

    @property
    def deadline(self) -> float:
        """When the oldest message has waited too long without any release."""
        if not self._held or not self._limit or self.error:
            return NEVER
        _, ready = next(iter(self._held.values()))
        return max(ready, self._last) + self._limit

    def post(self, grant: Grant, message: Held, now: float) -> Held | None:
        """A message is ready; return it if it may be sent at once."""
        if grant in self._early:
            self._early.remove(grant)
            self.waits.add(0.0)
            self._last = now
            return message
        self._held[grant] = message, now
        return None

    def granted(self, grant: Grant, now: float) -> Held | None:
        """A grant has arrived; return its message if that is ready."""
        self.grants += 1
        found = self._held.pop(grant, None)
        if found is None:
            self._early.add(grant)
            return None
        message, ready = found
        self.waits.add(now - max(ready, self._last))
        self._last = now
        return message

    def expire(self, now: float) -> None:
        """Fail if the deadline has passed."""
        if now >= self.deadline:
            count = len(self._held)
            messages = f"{count} message{' waits' if count == 1 else 's wait'}"
            self.error = f"no clear-to-send (CTS) for {self._limit:.3g} s, and {messages} for it"
