"""The pace of a slow rank: when each of its messages is processed.

In:  complete messages, and their bytes. Out: the messages whose processing has ended, in order.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from heddle.endpoints.nic.qpend import NEVER

Item = TypeVar("Item")


class Pace(Generic[Item]):
    """Messages that a slow rank has to process, one after the other, each at the same rate. bytes_per_s: that rate."""

    __slots__ = ("_rate", "_until", "_waiting")

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._until = 0.0  # when all messages so far are processed
        self._waiting: deque[tuple[float, Item]] = deque()

    @property
    def due(self) -> float:
        """When the next message is processed; NEVER if there is none."""
        return self._waiting[0][0] if self._waiting else NEVER

    def add(self, item: Item, size: int, now: float) -> None:
        """A complete message of `size` bytes."""
        self._until = max(self._until, now) + size / self._rate
        self._waiting.append((self._until, item))

    def done(self, now: float) -> Item | None:
        """The next message whose processing has ended, or None."""
        return self._waiting.popleft()[1] if self._waiting and self._waiting[0][0] <= now else None
