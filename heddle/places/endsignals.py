"""Signals to this process while its verb runs elsewhere.

In:  SIGINT, SIGTERM, SIGHUP. Out: what is to be sent to the verb; KeyboardInterrupt at the second Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
from types import TracebackType
from typing import Any, Self


class EndSignals:
    """Count Ctrl-C and note other signals. The second Ctrl-C leaves at once, and `left` is printed on stderr.

    interrupts: number of SIGINT. ending: number of the last other signal; 0: none came.
    """

    def __init__(self, left: str) -> None:
        self.interrupts, self.ending, self._left = 0, 0, left
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {n: signal.signal(n, self._come) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
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
        if number != signal.SIGINT:
            self.ending = number
            return
        self.interrupts += 1
        if self.interrupts > 1:
            raise KeyboardInterrupt
