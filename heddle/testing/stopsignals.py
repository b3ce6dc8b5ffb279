"""SIGTERM and SIGHUP end a pytest that has labs up as Ctrl-C does: its labs go down first.

In:  a running pytest. Out: nothing; a signal with another handler keeps it.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Handlers for the time in which labs are up; only the main thread can install them."""

    def __init__(self) -> None:
        self._installed: list[signal.Signals] = []

    def install(self) -> None:
        """Handle the signals that have their default action."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
                self._installed.append(number)

    def restore(self) -> None:
        """Restore the default action."""
        if threading.current_thread() is threading.main_thread():
            while self._installed:
                signal.signal(self._installed.pop(), signal.SIG_DFL)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """pytest ends its session on KeyboardInterrupt, fixtures included.

    Often two signals come: `timeout` signals the process and then its group. The second must not break off what takes
    the labs down.
    """
    for each in _SIGNALS:
        if signal.getsignal(each) is _interrupt:
            signal.signal(each, _ends_already)
    raise KeyboardInterrupt(f"signal {signal.Signals(number).name}")


def _ends_already(number: int, frame: FrameType | None) -> None:
    """A handler, not SIG_IGN, which children would inherit."""
