"""A clock that is where the test has put it: a sampler reads when the test moves it, and at no other time."""

from __future__ import annotations

import threading

from heddle.runs.series import Clock

_PATIENCE_S = 60.0  # of the test, for the sampler's thread to take a reading: only a defect takes so long


class SetClock(Clock):
    """cost_s: processor time that each reading takes by this clock. No time goes by while the sampler reads."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._moved = threading.Condition()
        self._now = 10**12
        self._due: int | None = None  # when the sampler wants to read next; None while it reads
        self._cost, self._cpu = cost_s, 0.0

    def now_ns(self) -> int:
        return self._now

    def cpu_s(self) -> float:
        self._cpu += self._cost  # asked before a reading and after it
        return self._cpu

    def wait(self, end: threading.Event, seconds: float) -> bool:
        with self._moved:
            due = self._due = self._now + round(seconds * 1e9)
            self._moved.notify_all()
            while self._now < due and not end.is_set():
                self._moved.wait(0.001)  # who sets the event does not know of this condition
            self._due = None
        return end.is_set()

    def forward(self, seconds: float) -> None:
        """Let time go by. Every reading that becomes due meanwhile is taken, at its time."""
        target = self._now + round(seconds * 1e9)
        with self._moved:
            while True:
                assert self._moved.wait_for(lambda: self._due is not None, _PATIENCE_S), "the sampler does not wait"
                assert self._due is not None
                if self._due > target:
                    self._now = target
                    return
                self._now, self._due = self._due, None
                self._moved.notify_all()
