"""Stdin of this machine, typed or from a pipe, for a verb that runs on a server."""

from __future__ import annotations

import json
import os
import signal
import termios
import threading
import tty
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.places.channel import Broken

if TYPE_CHECKING:
    from heddle.places.channel import AgentConnection

_AHEAD: Final = 1 << 20  # largest number of bytes sent that the verb has not read yet


def size_of_terminal() -> list[int]:
    """Rows and columns of the terminal on stdin; not LINES and COLUMNS, which any program sets for its children."""
    columns, rows = os.get_terminal_size(0)
    return [rows, columns]


class Keyboard:
    """Send stdin to a verb while it runs.

    wanted: the verb reads stdin. typed: stdin is a terminal; every key is sent unchanged, Ctrl-C too, and so are
    changes of its size.
    """

    def __init__(self, link: AgentConnection, *, typed: bool, wanted: bool) -> None:
        self.link, self.typed, self.wanted = link, typed, wanted
        self._room = threading.Condition()
        self._ahead = 0
        self._modes: list[Any] | None = None
        self._resized: Any = None

    def __enter__(self) -> Self:
        if self.typed:
            self._modes = termios.tcgetattr(0)
            tty.setraw(0)
            self._resized = signal.signal(signal.SIGWINCH, self._size)
        if self.wanted:
            # A daemon: it may be reading when the verb ends.
            threading.Thread(target=self._pass, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._modes is not None:
            signal.signal(signal.SIGWINCH, self._resized)
            termios.tcsetattr(0, termios.TCSADRAIN, self._modes)

    def taken(self, count: int) -> None:
        """Note that the verb has read so many bytes."""
        with self._room:
            self._ahead -= count
            self._room.notify()

    def _pass(self) -> None:
        try:
            while True:
                with self._room:
                    self._room.wait_for(lambda: self._ahead < _AHEAD)
                data = os.read(0, 1 << 15)
                if not data:
                    self.link.send(b"Z")
                    return
                with self._room:
                    self._ahead += len(data)
                self.link.send(b"I", data)
        except (Broken, OSError):
            return  # the main thread sees the same error

    def _size(self, number: int, frame: object) -> None:
        # Not in the handler itself: the main thread may hold the lock of the channel.
        threading.Thread(target=self._resize, daemon=True).start()

    def _resize(self) -> None:
        try:
            self.link.send(b"W", json.dumps(size_of_terminal()).encode())
        except Broken:
            return
