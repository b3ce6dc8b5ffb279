"""Paces: when each message of a slow rank is processed, and when a posting thread posts each message to a NIC.

In:  messages. Out: those whose processing, or posting, has ended, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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

    def add(self, item: Item, size: float, now: float) -> None:
        """A complete message of `size` bytes."""
        self._until = max(self._until, now) + size / self._rate
        self._waiting.append((self._until, item))

    def done(self, now: float) -> Item | None:
        """The next message whose processing has ended, or None."""
        return self._waiting.popleft()[1] if self._waiting and self._waiting[0][0] <= now else None


class PostingPace(Pace[Callable[[], None]]):
    """The messages that a rank posts, when its thread has time for them (traffic/options.py).

    post_s, turn_s: time for each message, and for each `batch` of them, or a shorter rest.
    """

    __slots__ = ("_batch", "_count", "_post_s", "_turn_s")

    def __init__(self, post_s: float, turn_s: float, batch: int) -> None:
        super().__init__(1.0)
        self._post_s, self._turn_s, self._batch = post_s, turn_s, batch
        self._count = 0  # messages since the NIC had nothing to post

    def post(self, message: Callable[[], None], now: float) -> None:
        """A message, as the call that gives it to the NIC."""
        self._count = self._count + 1 if self.due < NEVER else 0
        self.add(message, self._post_s + (0.0 if self._count % self._batch else self._turn_s), now)
