"""Elapsed time of the steps of `up`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepClock:
    """Elapsed time of each step, in seconds."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._steps: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a with block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._steps[name] = round(time.monotonic() - start, 3)

    def seconds(self) -> dict[str, float]:
        """Steps so far, and `total`."""
        return {**self._steps, "total": round(time.monotonic() - self._start, 3)}
