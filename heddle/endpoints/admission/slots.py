"""The buffer slots of one receiver: which of the expected messages may be sent now. Pure: no packets, no clock.

In:  messages in the order in which the receiver wants them (`post`), messages that it has processed (`consumed`).
Out: messages to grant (`granted`).
Messages go to the channels in turn. A channel grants its messages in order. Its slots are a ring, as in NCCL: message n
uses the slot of message n - steps, and waits until that one is processed. So at most channels x steps messages are
granted and not processed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class _Channel(Generic[Item]):
    """The ring of one channel: `held` has the messages from the oldest slot on, granted and not yet free."""

    __slots__ = ("done", "held", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Item] = deque()
        self.held: deque[Item] = deque()
        self.done: set[Item] = set()  # of `held`: processed, but an older one is not


class Slots(Generic[Item]):
    """All channels of a receiver. Messages must differ as long as they are not processed."""

    __slots__ = ("_channels", "_posted", "_steps", "_where")

    def __init__(self, channels: int, steps: int) -> None:
        self._channels: list[_Channel[Item]] = [_Channel() for _ in range(channels)]
        self._steps = steps
        self._posted = 0
        self._where: dict[Item, _Channel[Item]] = {}  # of granted messages that are not processed

    def post(self, items: Iterable[Item]) -> None:
        """The receiver expects these messages, in this order."""
        for item in items:
            self._channels[self._posted % len(self._channels)].waiting.append(item)
            self._posted += 1

    def granted(self) -> list[Item]:
        """The messages that have a slot now and had none before: send a CTS for each."""
        found: list[Item] = []
        for channel in self._channels:
            while channel.waiting and len(channel.held) < self._steps:
                item = channel.waiting.popleft()
                channel.held.append(item)
                self._where[item] = channel
                found.append(item)
        return found

    def consumed(self, item: Item) -> None:
        """The receiver has processed a message. KeyError if it was not granted, or was processed before."""
        channel = self._where.pop(item)
        channel.done.add(item)
        while channel.held and channel.held[0] in channel.done:
            channel.done.remove(channel.held.popleft())

    @property
    def outstanding(self) -> int:
        """Messages that are granted and not processed."""
        return len(self._where)

    @property
    def waiting(self) -> int:
        """Messages that are expected and have no slot yet."""
        return sum(len(channel.waiting) for channel in self._channels)
