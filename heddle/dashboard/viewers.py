"""Watches of all labs and the people who look: messages go from a reader's thread to every open page.

In:  the event loop of the server. Out: a stream of server-sent events for each viewer (HTML standard, 9.2).
A message is made once and shared. A viewer whose connection is slower than the messages gets the whole state again
instead of what it missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from heddle.dashboard.labwatch import LabWatch

_WAITING: Final = 20  # messages for one viewer; then it is too slow
_BEAT_S: Final = 15.0  # between two lines to a silent connection, so that it is known to be open


class Viewers:
    """The open pages of one lab."""

    def __init__(self, lab: str, loop: asyncio.AbstractEventLoop) -> None:
        self.watch = LabWatch(lab, self.send)
        self._loop = loop
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._closed = False

    def send(self, kind: str, text: str) -> None:
        """Give a message to all viewers; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, message(kind, text))

    def _deliver(self, data: bytes) -> None:
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(message("hello", self.watch.hello()))
            else:
                queue.put_nowait(data)

    async def stream(self) -> AsyncIterator[bytes]:
        """Everything for one viewer, until it goes or the server ends."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING)
        if self._closed:
            return
        self._queues.add(queue)
        self.watch.join()
        try:
            yield message("hello", self.watch.hello())
            while True:
                try:
                    data = await asyncio.wait_for(queue.get(), _BEAT_S)
                except TimeoutError:
                    data = b": open\n\n"
                if data is None:
                    return
                yield data
        finally:
            self._queues.discard(queue)
            self.watch.leave()

    def end_streams(self) -> None:
        """End the streams of all viewers."""
        self._closed = True
        for queue in self._queues:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)


def message(kind: str, text: str) -> bytes:
    """One server-sent event; the text is one line of JSON."""
    return f"event: {kind}\ndata: {text}\n\n".encode()
