"""This machine's terminal and the signals to this process, while its verb runs elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self


class EndSignals:
    """Count Ctrl-C and note other signals. The second Ctrl-C leaves at once, and `left` is printed on stderr.

    interrupts: number of SIGINT. ending: number of the last other signal; 0: none came. resized: the terminal has
    another size.
    """

    def __init__(self, left: str) -> None:
        self.interrupts, self.ending, self.resized, self._left = 0, 0, False, left
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
        self._before = {number: signal.signal(number, self._come) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt):
            # Not in the handler: it may interrupt a write to stderr, whose buffer refuses another one meanwhile.
            print(self._left, file=sys.stderr)

    def _come(self, number: int, frame: object) -> None:
        if number == signal.SIGWINCH:
            self.resized = True
        elif number != signal.SIGINT:
            self.ending = number
        else:
            self.interrupts += 1
            if self.interrupts > 1:
                raise KeyboardInterrupt


@contextmanager
def raw_terminal() -> Iterator[None]:
    """The terminal on stdin passes every key unchanged, Ctrl-C too."""
    modes = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)


def terminal_size() -> tuple[int, int]:
    """Columns and rows of the terminal on stdin; not LINES and COLUMNS, which any program sets for its children."""
    size = os.get_terminal_size(0)
    return size.columns, size.lines
