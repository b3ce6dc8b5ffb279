"""Queues over the time of a run: a thread of the run's own process reads the shared maps once a bucket.

In:  a lab's queues, mapped into memory (topologies/switch/cells.py), and the length of a bucket.
Out: Series: for every port and class that moved, what each column was in each bucket.
Nothing is asked of the kernel: the maps are memory, so a reading costs some copies. Rows that stand still are not kept,
and when a run is long, two buckets become one, so that memory stays bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]

CLASSES: Final = 8
# Values at a bucket's end; most within it; and what was added in it.
LEVELS: Final = ("depth", "occupancy")
PEAKS: Final = ("peak", "occupancy_peak")
COUNTS: Final = ("out_bytes", "marks", "drops", "pfc_sent", "pfc_received", "paused_ns")
COLUMNS: Final = (*LEVELS, *PEAKS, *COUNTS)
_LEVELS: Final = slice(0, len(LEVELS))
_PEAKS: Final = slice(len(LEVELS), len(LEVELS) + len(PEAKS))
_COUNTS: Final = slice(len(LEVELS) + len(PEAKS), len(COLUMNS))
_PAUSED: Final = COLUMNS.index("paused_ns")

_MOST: Final = 4096  # buckets; then each two become one
_SHARE: Final = 0.03  # of a processor that reading may take: where it would take more, buckets are longer
_END_S: Final = 2.0


class LiveQueues(Protocol):
    """What of a lab's mapped queues is read here: structured arrays, a row a port and class (port id * 8 + class)."""

    @property
    def cells(self) -> npt.NDArray[Any]:
        """By egress port: depth, peak, out_bytes, marks, drops, ..."""

    @property
    def ingress(self) -> npt.NDArray[Any]:
        """By ingress port: occupancy, peak, ..."""

    @property
    def gates(self) -> npt.NDArray[Any]:
        """Pause frames that a port took, counted by the program."""

    @property
    def agent(self) -> npt.NDArray[Any]:
        """Pause frames that the agent sent out of a port, and how long it held the port's gates closed."""


def counted(live: LiveQueues, now_ns: int) -> I64:
    """All columns of all rows, shape (rows, columns), counters since the lab came up; now_ns is CLOCK_MONOTONIC.

    A gate that is closed at this moment counts as paused until now.
    """
    cells, ingress, gates, agent = live.cells, live.ingress, live.gates, live.agent
    table = np.empty((len(cells), len(COLUMNS)), np.int64)
    closed = agent["closed_since_ns"].astype(np.int64)
    sources = {
        "depth": cells["depth"], "occupancy": ingress["occupancy"],
        "peak": cells["peak"], "occupancy_peak": ingress["peak"],
        "out_bytes": cells["out_bytes"], "marks": cells["marks"], "drops": cells["drops"].sum(axis=1),
        "pfc_sent": agent["pfc_sent"], "pfc_received": gates["pfc_received"], "paused_ns": agent["paused_ns"],
    }  # fmt: skip
    for index, name in enumerate(COLUMNS):
        table[:, index] = sources[name]
    table[:, _PAUSED] += np.where(closed > 0, np.maximum(0, now_ns - closed), 0)
    return table


@dataclass(frozen=True)
class _Bucket:
    """end_ns: CLOCK_MONOTONIC. rows: those that moved, or hold something. values: (rows, columns)."""

    end_ns: int
    rows: I32
    values: I64


@dataclass(frozen=True)
class Series:
    """Queues over time. Everything by bucket is of shape (rows, buckets); times are emulated time, which is wall time.

    start_s: 0 is the moment the first packet could be sent; ends_s: the end of each bucket, seconds. rows: indices of
    the maps, port id * 8 + class. columns: depth, occupancy, peak and occupancy_peak in bytes; out_bytes, marks, drops,
    pfc_sent, pfc_received and paused_ns of that bucket alone.
    """

    ends_s: F64
    rows: I32
    columns: dict[str, I64]
    asked_s: float  # the bucket that was asked for; those that are there may be longer
    readings: int
    cost_s: float  # processor time that all readings took

    @property
    def starts_s(self) -> F64:
        """The beginning of each bucket."""
        return np.concatenate([[0.0], self.ends_s[:-1]])

    @property
    def bucket_s(self) -> float:
        """The usual length of a bucket, seconds."""
        return float(np.median(self.ends_s - self.starts_s)) if len(self.ends_s) else self.asked_s

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """For a .npz file; `of_arrays` reads them."""
        about = np.array([self.asked_s, self.readings, self.cost_s])
        return {"ends_s": self.ends_s, "rows": self.rows, "about": about, **self.columns}

    @classmethod
    def of_arrays(cls, data: Any) -> Series:
        """What `arrays` gave, or a file of them; KeyError or ValueError when it is something else."""
        ends, rows, about = (np.asarray(data[name]) for name in ("ends_s", "rows", "about"))
        columns = {name: np.asarray(data[name], np.int64) for name in COLUMNS}
        if about.shape != (3,) or any(each.shape != (len(rows), len(ends)) for each in columns.values()):
            raise ValueError("its arrays do not fit together")
        asked, readings, cost = (float(each) for each in about)
        return cls(ends.astype(np.float64), rows.astype(np.int32), columns, asked, int(readings), cost)


class Sampler:
    """Reads a lab's queues in a thread of its own, for the length of a with block.

    bucket_s: seconds. Peaks are taken back to 0 at the end of each bucket, so there may be but
    one sampler a lab: whoever runs holds the lab's lock.
    """

    def __init__(self, live: LiveQueues, bucket_s: float = 0.01) -> None:
        self._live = live
        self._asked = self._length = bucket_s
        self._buckets: list[_Bucket] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="queues", daemon=True)
        self._start_ns = 0
        self._last = np.zeros((0, len(COLUMNS)), np.int64)
        self._readings = 0
        self._cost = 0.0

    def __enter__(self) -> Self:
        began = time.thread_time()
        self._start_ns = time.monotonic_ns()
        self._forget_peaks()
        self._last = counted(self._live, self._start_ns)
        self._length = max(self._asked, (time.thread_time() - began) / _SHARE)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        due = self._start_ns / 1e9 + self._length
        while not self._end.wait(max(0.0, due - time.monotonic())):
            self._read()
            due += self._length
            if due < (now := time.monotonic()):  # busy elsewhere: no readings in a row to make up
                due = now + self._length
        self._read()  # what has happened since the last

    def _read(self) -> None:
        began = time.thread_time()
        now_ns = time.monotonic_ns()
        now = counted(self._live, now_ns)
        self._forget_peaks()
        change = now - self._last
        change[:, _LEVELS] = now[:, _LEVELS]
        # A packet that came between the reading and the forgetting is in the depth, though not in the peak.
        change[:, _PEAKS] = np.maximum(now[:, _PEAKS], np.maximum(now[:, _LEVELS], self._last[:, _LEVELS]))
        change[:, _COUNTS] = np.maximum(change[:, _COUNTS], 0)  # a port that was reset; a pause that ended meanwhile
        rows = np.flatnonzero(change.any(axis=1)).astype(np.int32)
        self._last = now
        self._buckets.append(_Bucket(now_ns, rows, change[rows]))
        self._readings += 1
        if len(self._buckets) >= _MOST:
            self._buckets = halved(self._buckets)
            self._length *= 2
        self._cost += time.thread_time() - began

    def _forget_peaks(self) -> None:
        for table in (self._live.cells, self._live.ingress):
            peak = table["peak"]
            moved = np.flatnonzero(peak)
            peak[moved] = 0  # only those: an idle port's line stays with the processor that has it

    def series(self, start_ns: int = 0) -> Series:
        """What was seen, after the with block. start_ns: what ended before is left out, and time is counted from it."""
        buckets = [each for each in self._buckets if each.end_ns > start_ns]
        began = max(start_ns, self._start_ns)
        ends = np.array([(each.end_ns - began) / 1e9 for each in buckets])
        rows = np.unique(np.concatenate([each.rows for each in buckets] or [np.zeros(0, np.int32)]))
        dense = np.zeros((len(COLUMNS), len(rows), len(ends)), np.int64)
        for at, bucket in enumerate(buckets):
            dense[:, np.searchsorted(rows, bucket.rows), at] = bucket.values.T
        columns = {name: dense[index] for index, name in enumerate(COLUMNS)}
        return Series(ends, rows.astype(np.int32), columns, self._asked, self._readings, self._cost)


def halved(buckets: Sequence[_Bucket]) -> list[_Bucket]:
    """Each two buckets as one: the later one's levels, the higher peaks, sums of what was counted."""
    merged = [_merged(one, two) for one, two in zip(buckets[::2], buckets[1::2], strict=False)]
    return merged + ([buckets[-1]] if len(buckets) % 2 else [])


def _merged(one: _Bucket, two: _Bucket) -> _Bucket:
    rows = np.union1d(one.rows, two.rows).astype(np.int32)
    values = np.zeros((len(rows), len(COLUMNS)), np.int64)
    first, second = np.searchsorted(rows, one.rows), np.searchsorted(rows, two.rows)
    values[first] = one.values
    values[:, _LEVELS] = 0  # what one held, and two does not, is empty by then
    values[second, _LEVELS] = two.values[:, _LEVELS]
    values[second, _PEAKS] = np.maximum(values[second, _PEAKS], two.values[:, _PEAKS])
    values[second, _COUNTS] += two.values[:, _COUNTS]
    return _Bucket(two.end_ns, rows, values)
