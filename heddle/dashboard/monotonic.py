"""Counters that never go back, from counters that may be reset: `./inv queues reset`, or a lab that comes up again.

In:  arrays of counters, reading after reading. Out: arrays that only grow while this process runs.
Prometheus takes a smaller value for a new start and counts from 0, which loses what was counted before; a reset in
Heddle is the user's, for their next experiment, and no new start of the exporter.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import numpy as np

from heddle.base.arrays import I64

Keyed = dict[str, I64]


class MonotonicCounters:
    """The counters of many labs. A lab whose ports are others than before starts again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, tuple[object, Keyed]] = {}
        self._base: dict[str, Keyed] = {}

    def of(self, lab: str, ports: object, now: Mapping[str, I64]) -> Keyed:
        """The counters of a lab, monotonic. ports: what the rows are; compared by ==. now: name -> counters by row."""
        with self._lock:
            known, last = self._last.get(lab, (None, {}))
            if known != ports:
                last, self._base[lab] = {}, {}
            base = self._base.setdefault(lab, {})
            for name, values in now.items():
                before = last.get(name)
                offset = base.setdefault(name, np.zeros_like(values))
                if before is not None:
                    base[name] = np.where(values < before, offset + before, offset)
            self._last[lab] = (ports, {name: values.copy() for name, values in now.items()})
            return {name: values + base[name] for name, values in now.items()}
