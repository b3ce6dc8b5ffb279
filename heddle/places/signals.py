"""This machine's terminal and the signals to this process, while its verb runs elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class EndSignals:
    """Signals to this process. interrupts: the number of SIGINT. ending: the last other signal; 0: none came.

    resized: the terminal has another size.
    """

    interrupts: int = 0
    ending: int = 0
    resized: bool = False


@contextmanager
def end_signals(left: str) -> Iterator[EndSignals]:
    """Note signals. The second Ctrl-C leaves at once, and `left` is printed on stderr."""
    seen = EndSignals()

    def come(number: int, frame: object) -> None:
        if number == signal.SIGWINCH:
            seen.resized = True
        elif number != signal.SIGINT:
            seen.ending = number
        else:
            seen.interrupts += 1
            if seen.interrupts > 1:
                raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
    before = {number: signal.signal(number, come) for number in numbers}
    try:
        yield seen
    except KeyboardInterrupt:
        # Not in the handler: it may interrupt a write to stderr, whose buffer refuses another one meanwhile.
        print(left, file=sys.stderr)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
