"""What is typed here, or comes in through a pipe, for a verb that runs elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import termios
import threading
import tty
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from heddle.places.channel import Broken

if TYPE_CHECKING:
    from heddle.places.channel import AgentConnection

_AHEAD: Final = 1 << 20  # bytes that may be under way: more wait here until the verb has taken some


class Keyboard:
    """Passes stdin on for the length of a verb.

    wanted: the verb reads stdin at all. typed: it is a terminal, whose every key goes there as it is, Ctrl-C too; its
    size goes along when it changes.
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
        """So many bytes have reached the verb."""
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
            return  # the main thread sees the same

    def _size(self, number: int, frame: object) -> None:
        # Not from within the handler: the main thread may just be sending.
        threading.Thread(target=self._resize, daemon=True).start()

    def _resize(self) -> None:
        try:
            self.link.send(b"W", json.dumps(list(shutil.get_terminal_size()[::-1])).encode())
        except Broken:
            return
