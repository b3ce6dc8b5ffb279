"""Queues over the time of a run: a thread of the run's process reads the shared maps once per bucket.

In:  a lab's queues, mapped into memory (heddle/switch/queues/cells.py), and the length of a bucket.
Out: Series: for every port and class that changed, the value of each column in each bucket; with a label for each row
it is Recorded, `series.npz` in the run's directory, which `plot` draws.
There are no system calls: the maps are memory, so a reading costs only copies. The compiled code reads a row at a time;
numpy does the same with more CPU time. Peaks start at 0 again in every row that was read. Rows without changes are not
kept. In a long run each two buckets are merged, so that memory stays bounded.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from heddle.base.arrays import F64, I32, I64
from heddle.base.ethernet import CLASSES
from heddle.runs.files import Layout, UnreadableError, read_arrays, typed, undamaged, write_arrays
from heddle.switch.compiled import layouts
from heddle.switch.queues.cells import LabQueues, ShardRows

# LEVELS: the value at a bucket's end. PEAKS: the maximum in it. COUNTS: the increase in it.
LEVELS: Final = ("depth", "occupancy")
PEAKS: Final = ("peak", "occupancy_peak")
COUNTS: Final = ("out_bytes", "marks", "drops", "pfc_sent", "pfc_received", "paused_ns", "trims")
COLUMNS: Final = (*LEVELS, *PEAKS, *COUNTS)
_NEWER: Final = frozenset({"trims"})  # older series do not have it


class LiveQueues(Protocol):
    """The mapped queues of a lab: structured arrays with one row per port and class (port id * 8 + class)."""

    @property
    def cells(self) -> npt.NDArray[Any]:
        """By egress port: depth, peak, out_bytes, marks, drops, ..."""

    @property
    def ingress(self) -> npt.NDArray[Any]:
        """By ingress port: occupancy, peak, ..."""

    @property
    def gates(self) -> npt.NDArray[Any]:
        """Pause frames that a port received, counted by the BPF program."""

    @property
    def agent(self) -> npt.NDArray[Any]:
        """Pause frames that the agent sent by a port, and how long the port's gates were closed."""


class Words:
    """The maps as words of 8 bytes, and the words to read. Few large numpy operations are faster than many small."""

    _READ: Final = {
        "cells": ("depth", "peak", "out_bytes", "marks", "drops", "trims"),
        "ingress": ("occupancy", "peak"),
        "gates": ("pfc_received", "last_ns"),
        "agent": ("pfc_sent", "paused_ns", "closed_since_ns"),
    }

    def __init__(self, live: LiveQueues) -> None:
        self.tables: list[I64] = []
        self.rows = len(live.cells)
        self._taken: list[int] = []  # words of all tables side by side that are read
        self._at: dict[str, slice] = {}  # `cells.drops` -> which of those read
        side = 0
        for name, fields in self._READ.items():
            table: npt.NDArray[Any] = getattr(live, name)
            words = table.dtype.itemsize // 8
            self.tables.append(table.view("<i8").reshape(self.rows, words))
            for field in fields:
                layout, offset = table.dtype[field], _offset(table.dtype, field)
                first, count = side + offset // 8, layout.itemsize // 8
                self._at[f"{name}.{field}"] = slice(len(self._taken), len(self._taken) + count)
                self._taken += range(first, first + count)
            side += words

    def read(self, rows: I64) -> I64:
        """The words of some rows, shape (rows, words)."""
        return np.concatenate([table.take(rows, axis=0) for table in self.tables], axis=1)[:, self._taken]

    def fields(self) -> ctypes.Array[layouts.FieldStruct]:
        """The words as the compiled code finds them, in the same order."""
        found = (layouts.FieldStruct * len(self._taken))()
        ends = np.cumsum([table.shape[1] for table in self.tables])
        for place, word in enumerate(self._taken):
            at = int(np.searchsorted(ends, word, side="right"))
            table = self.tables[at]
            found[place] = _field(table[:, word - int(ends[at]) + table.shape[1]])
        return found

    def column(self, raw: I64, name: str) -> I64:
        """One field, summed where it is several words (drops by cause)."""
        part = raw[:, self._at[name]]
        return part[:, 0] if part.shape[1] == 1 else part.sum(axis=1)

    def columns(self, raw: I64, now_ns: int) -> I64:
        """COLUMNS of one reading: levels, peaks, and counters since the lab came up.

        A gate that is closed at `now_ns` counts as paused until then.
        """
        table = np.empty((len(raw), len(COLUMNS)), np.int64)
        closed = self.column(raw, "agent.closed_since_ns")
        names = {"occupancy": "ingress.occupancy", "occupancy_peak": "ingress.peak", "pfc_sent": "agent.pfc_sent",
                 "pfc_received": "gates.pfc_received", "paused_ns": "agent.paused_ns"}  # fmt: skip
        for index, name in enumerate(COLUMNS):
            table[:, index] = self.column(raw, names.get(name, f"cells.{name}"))
        table[:, COLUMNS.index("paused_ns")] += np.where(closed > 0, np.maximum(0, now_ns - closed), 0)
        return table


class RowReader(Protocol):
    """Reads rows, and remembers which were not empty, and what each had dropped."""

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words (rows, words). since_ns: of the last reading, CLOCK_MONOTONIC.

        every: all rows; otherwise those where a packet arrived, waits or was dropped, or a pause arrived or goes on.
        """


class NumpyRows:
    """The reference, for any machine."""

    def __init__(self, live: LiveQueues, words: Words) -> None:
        self._live, self._words = live, words
        self._full = np.zeros(0, np.int64)  # rows that were not empty at the last reading
        self._dropped = np.zeros(words.rows, np.uint64)  # drop_bytes of all rows then

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words."""
        dropped = self._live.cells["drop_bytes"].copy()  # before the words: a later drop is read next time
        rows = np.arange(self._words.rows) if every else self._awake(since_ns, dropped)
        raw = self._words.read(rows)
        self._live.cells["peak"][rows] = 0
        self._live.ingress["peak"][rows] = 0
        full = (self._live.cells["depth"][rows] != 0) | (self._live.ingress["occupancy"][rows] != 0)
        self._full = rows[full]
        self._dropped[rows] = dropped[rows]
        return rows, raw

    def _awake(self, since_ns: int, dropped: npt.NDArray[np.uint64]) -> I64:
        live = self._live
        awake = (live.cells["peak"] != 0) | (live.cells["depth"] != 0) | (live.ingress["occupancy"] != 0)
        awake |= (live.ingress["peak"] != 0) | (live.agent["closed_since_ns"] != 0)
        awake |= live.gates["last_ns"] >= since_ns
        awake |= dropped != self._dropped  # a port that is down drops packets that it does not queue
        awake[self._full] = True
        return np.flatnonzero(awake)


class CompiledRows:
    """The same by the compiled code."""

    def __init__(self, code: ctypes.CDLL, live: LiveQueues, words: Words) -> None:
        self._code, self._live = code, live
        count, self._taken = words.rows, words.fields()
        self._full, self._dropped = np.zeros(count, np.uint8), np.zeros(count, np.int64)
        self._rows, self._raw = np.zeros(count, np.uint32), np.zeros((count, len(self._taken)), np.int64)
        tables = {"depth": (live.cells, "depth"), "peak": (live.cells, "peak"),
                  "occupancy": (live.ingress, "occupancy"), "occupancy_peak": (live.ingress, "peak"),
                  "closed_since_ns": (live.agent, "closed_since_ns"), "last_ns": (live.gates, "last_ns"),
                  "drop_bytes": (live.cells, "drop_bytes")}  # fmt: skip
        fields = {name: _field(table[field]) for name, (table, field) in tables.items()}
        state = self._full.ctypes.data, self._dropped.ctypes.data
        self._reader = layouts.ReaderStruct(count, len(self._taken), ctypes.addressof(self._taken), *state, **fields)
        self._out = (self._rows.ctypes.data, self._raw.ctypes.data)

    def read(self, since_ns: int, *, every: bool) -> tuple[I64, I64]:
        """Rows, ascending, and their words."""
        found = self._code.hd_rows_read(self._reader, since_ns, every, *self._out)
        return self._rows[:found].astype(np.int64), self._raw[:found].copy()


def row_reader(live: LiveQueues, words: Words) -> RowReader:
    """The compiled reader if this machine can use it."""
    code = layouts.load()
    return NumpyRows(live, words) if isinstance(code, str) else CompiledRows(code, live, words)


def _field(view: npt.NDArray[Any]) -> layouts.FieldStruct:
    return layouts.FieldStruct(view.ctypes.data, view.strides[0])


def _offset(layout: np.dtype[Any], field: str) -> int:
    fields = layout.fields
    assert fields is not None  # noqa: S101  (a map's row is a struct)
    return int(fields[field][1])


_LEVELS: Final = slice(0, len(LEVELS))
_PEAKS: Final = slice(len(LEVELS), len(LEVELS) + len(PEAKS))
_COUNTS: Final = slice(len(LEVELS) + len(PEAKS), len(COLUMNS))
_PAUSED: Final = COLUMNS.index("paused_ns")

_MOST: Final = 4096  # buckets; then each two are merged
_SHARE: Final = 0.1  # maximum share of a CPU for reading: if more would be needed, buckets get longer
_LOOK_S: Final = 0.2
_END_S: Final = 5.0


def counted(live: LiveQueues, now_ns: int) -> I64:
    """All columns of all rows, shape (rows, columns): counters since the lab came up. now_ns: CLOCK_MONOTONIC."""
    words = Words(live)
    return words.columns(words.read(np.arange(words.rows)), now_ns)


@dataclass(frozen=True)
class _Bucket:
    """One bucket. end_ns: CLOCK_MONOTONIC. rows: those that may have changed. values: (rows, columns) of `counted`."""

    end_ns: int
    rows: I64
    values: I64


@dataclass(frozen=True)
class Series:
    """Queues over time. Values by bucket have the shape (rows, buckets). Times are wall time, which is emulated time.

    ends_s: the end of each bucket in seconds since the first packet could be sent. rows: indices of the maps, port id *
    8 + class. columns: depth, occupancy, peak and occupancy_peak in bytes; out_bytes, marks, drops, pfc_sent,
    pfc_received, paused_ns and trims: increase in that bucket.
    """

    ends_s: F64
    rows: I32
    columns: dict[str, I64]
    asked_s: float  # the requested length of a bucket; actual buckets may be longer
    readings: int
    cost_s: float  # CPU time of all readings

    @property
    def starts_s(self) -> F64:
        """The beginning of each bucket."""
        return np.concatenate([[0.0], self.ends_s[:-1]])

    @property
    def bucket_s(self) -> float:
        """The usual length of a bucket, seconds."""
        return float(np.median(self.ends_s - self.starts_s)) if len(self.ends_s) else self.asked_s

    def coarser(self, most: int) -> Series:
        """The series with at most `most` buckets. Merged buckets keep the last level, the highest peak and the sum of
        counts.
        """
        count = len(self.ends_s)
        if count <= most:
            return self
        firsts = np.arange(0, count, -(-count // most))
        lasts = np.append(firsts[1:], count) - 1
        columns = {}
        for name, values in self.columns.items():
            if name in LEVELS:
                columns[name] = values[:, lasts]
            elif name in PEAKS:
                columns[name] = np.maximum.reduceat(values, firsts, axis=1)
            else:
                columns[name] = np.add.reduceat(values, firsts, axis=1)
        return replace(self, ends_s=self.ends_s[lasts], columns=columns)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for a .npz file; `of_arrays` reads them."""
        about = np.array([self.asked_s, self.readings, self.cost_s])
        return {"ends_s": self.ends_s, "rows": self.rows, "about": about, **self.columns}

    @classmethod
    def of_arrays(cls, data: Any) -> Series:
        """From the output of `arrays`, or its .npz file; KeyError or ValueError for other data."""
        ends, rows, about = (np.asarray(data[name]) for name in ("ends_s", "rows", "about"))
        none = np.zeros((len(rows), len(ends)), np.int64)
        found = {name: none if name in _NEWER and name not in data else data[name] for name in COLUMNS}
        columns = {name: np.asarray(values, np.int64) for name, values in found.items()}
        if about.shape != (3,) or any(each.shape != (len(rows), len(ends)) for each in columns.values()):
            raise ValueError("its arrays do not fit together")
        asked, readings, cost = (float(each) for each in about)
        return cls(ends.astype(np.float64), rows.astype(np.int32), columns, asked, int(readings), cost)


@dataclass(frozen=True)
class QueueTotals:
    """Counters at one moment; rows are those of the maps."""

    counts: I64  # output of counted
    drops: I64  # rows, causes
    storms: int

    @classmethod
    def of(cls, live: LabQueues) -> QueueTotals:
        """Read the counters now."""
        drops = np.column_stack((live.cells["drops"], live.gates["lost"])).astype(np.int64)
        return cls(counted(live, time.monotonic_ns()), drops, int(live.agent["storms"].sum()))


@dataclass(frozen=True)
class QueueRecord:
    """The queues of one run: counters before and after it, and their course. remarks: warnings for its result.

    shard: where the rows of a shard are in the whole lab.
    """

    before: QueueTotals
    after: QueueTotals
    series: Series
    remarks: tuple[str, ...] = ()
    shard: ShardRows | None = None


class Clock:
    """The time by which a sampler reads; unit tests set their own."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def cpu_s(self) -> float:
        """Processor time of the calling thread, seconds."""
        return time.thread_time()

    def wait(self, end: threading.Event, seconds: float) -> bool:
        """Wait for so long, or until the event is set; True for the event."""
        return end.wait(seconds)


class Sampler:
    """Reads a lab's queues in a separate thread during a with block.

    bucket_s: seconds. Peaks are reset to 0 at the end of each bucket, so a lab may have only one sampler: the caller
    holds the lab's lock. watch: called a few times per second in the same thread.
    """

    def __init__(
        self,
        live: LiveQueues,
        bucket_s: float = 0.01,
        watch: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._watch, self._clock = watch, clock or Clock()
        self._live, self._words = live, Words(live)
        self._reader = row_reader(live, self._words)
        self._asked = self._length = bucket_s
        self._raw: list[tuple[int, I64, I64]] = []  # end, rows, words
        self._buckets: list[_Bucket] = []  # older ones
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="queues", daemon=True)
        self._start_ns = self._at_ns = 0
        self._first = np.zeros((0, len(COLUMNS)), np.int64)
        self._readings = 0
        self._cost = self._usual = 0.0  # seconds, of all readings and of one

    def __enter__(self) -> Self:
        self._start_ns = self._at_ns = self._clock.now_ns()
        _, raw = self._reader.read(0, every=True)
        self._first = self._words.columns(raw, self._start_ns)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(_END_S)

    def _work(self) -> None:
        clock = self._clock
        due = self._start_ns + _ns(self._length)
        look = 0
        while not clock.wait(self._end, max(0, due - clock.now_ns()) / 1e9):
            began = clock.cpu_s()
            self._read(every=False)
            cost = clock.cpu_s() - began
            self._cost += cost
            self._usual += (cost - self._usual) / 16
            self._length = max(self._length, self._usual / _SHARE)
            if clock.now_ns() >= look:
                self._watch()
                look = clock.now_ns() + _ns(_LOOK_S)
            due += _ns(self._length)
            if due < (now := clock.now_ns()):  # too late: skip readings instead of catching up
                due = now + _ns(self._length)
        self._read(every=True)  # the last reading has all rows

    def _read(self, *, every: bool) -> None:
        now_ns = self._clock.now_ns()
        rows, raw = self._reader.read(self._at_ns, every=every)
        self._raw.append((now_ns, rows, raw))
        self._at_ns = now_ns
        self._readings += 1
        if len(self._buckets) + len(self._raw) >= _MOST:
            self._buckets = halved(self._all())
            self._raw.clear()
            self._length *= 2

    def _all(self) -> list[_Bucket]:
        return [*self._buckets, *(_Bucket(now, rows, self._words.columns(raw, now)) for now, rows, raw in self._raw)]

    def series(self, start_ns: int = 0) -> Series:
        """The series, after the with block. start_ns: earlier buckets are left out, and times are relative to it."""
        buckets, last = self._all(), self._first.copy()
        began = max(start_ns, self._start_ns)
        kept: list[_Bucket] = []
        for bucket in buckets:
            change = changes(bucket.values, last[bucket.rows])
            paused = np.maximum(last[bucket.rows, _PAUSED], bucket.values[:, _PAUSED])
            last[bucket.rows] = bucket.values
            # A reading while the agent opens a gate may count the pause twice; the next reading is then lower.
            last[bucket.rows, _PAUSED] = paused
            if bucket.end_ns > began:
                moved = change.any(axis=1)
                kept.append(_Bucket(bucket.end_ns, bucket.rows[moved], change[moved]))
        ends = np.array([(each.end_ns - began) / 1e9 for each in kept])
        rows = np.unique(np.concatenate([each.rows for each in kept] or [np.zeros(0, np.int64)]))
        dense = np.zeros((len(COLUMNS), len(rows), len(ends)), np.int64)
        for at, bucket in enumerate(kept):
            dense[:, np.searchsorted(rows, bucket.rows), at] = bucket.values.T
        columns = {name: dense[index] for index, name in enumerate(COLUMNS)}
        return Series(ends, rows.astype(np.int32), columns, self._asked, self._readings, self._cost)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def changes(now: I64, last: I64) -> I64:
    """A bucket's columns from two readings of `counted`: current levels, peaks, and increases of counters."""
    change = now - last
    change[:, _LEVELS] = now[:, _LEVELS]
    # A packet that arrived between the reading and the reset of peaks is in the depth, but not in the peak.
    change[:, _PEAKS] = np.maximum(now[:, _PEAKS], np.maximum(now[:, _LEVELS], last[:, _LEVELS]))
    change[:, _COUNTS] = np.maximum(change[:, _COUNTS], 0)  # a port that was reset; a pause that ended meanwhile
    return change


def halved(buckets: Sequence[_Bucket]) -> list[_Bucket]:
    """Merge each two buckets: levels and counters of the later one, and the higher peaks."""
    merged = [_merged(one, two) for one, two in zip(buckets[::2], buckets[1::2], strict=False)]
    return merged + ([buckets[-1]] if len(buckets) % 2 else [])


def _merged(one: _Bucket, two: _Bucket) -> _Bucket:
    rows = np.union1d(one.rows, two.rows)
    values = np.zeros((len(rows), len(COLUMNS)), np.int64)
    first, second = np.searchsorted(rows, one.rows), np.searchsorted(rows, two.rows)
    values[first] = one.values
    peaks = values[second, _PEAKS]
    values[second] = two.values
    values[second, _PEAKS] = np.maximum(peaks, two.values[:, _PEAKS])
    return _Bucket(two.end_ns, rows, values)


SERIES: Final = "series.npz"
_FORMAT: Final = 1
_ARRAYS: Final[Layout] = {"ends_s": ("f", 1), "rows": ("i", 1), "about": ("f", 1)} | dict.fromkeys(COLUMNS, ("i", 2))


@dataclass(frozen=True, slots=True)
class RowLabel:
    """The label of a row of a series. Thresholds in bytes at the end of the run; 0 where the class has none.

    host: the port belongs to a host. Its queue holds what sockets send, which is no congestion.
    """

    port: str
    traffic_class: int
    kind: str  # control, lossless, lossy
    rate_bps: int
    kmin: int = 0
    kmax: int = 0
    xoff: int = 0
    xon: int = 0
    host: bool = False

    @property
    def name(self) -> str:
        """`rtsw1:eth3 class 3`."""
        return f"{self.port} class {self.traffic_class}"

    @property
    def possible(self) -> bool:
        """Whether a port can have such a row."""
        least = min(self.kmin, self.kmax, self.xoff, self.xon)
        return ":" in self.port and 0 <= self.traffic_class < CLASSES and self.rate_bps > 0 and least >= 0


_LABELS: Final = TypeAdapter(tuple[RowLabel, ...])


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run's queues over time. labels: one per row of the series. what: a description of the run. k: the scale."""

    lab: str
    what: str
    k: int
    labels: tuple[RowLabel, ...]
    series: Series


def write_series(directory: Path, recorded: Recorded) -> None:
    """Write series.npz atomically."""
    about: dict[str, Any] = {"format": _FORMAT, "lab": recorded.lab, "what": recorded.what, "k": recorded.k}
    about["labels"] = [asdict(label) for label in recorded.labels]
    write_arrays(directory / SERIES, about, recorded.series.arrays())


def read_series(directory: Path) -> Recorded:
    """Read series.npz. UnreadableError with the reason when that is not possible."""
    path = directory / SERIES
    if not path.exists():
        raise UnreadableError(f"{SERIES} is missing, so its queues were not recorded")
    with undamaged(SERIES):
        about, arrays = read_arrays(path, _FORMAT, _ARRAYS, _NEWER)
        series = Series.of_arrays(arrays)
        if (np.diff(series.ends_s, prepend=0.0) < 0).any():
            raise ValueError("its times do not rise")
        labels = typed(_LABELS, about["labels"])
        if len(labels) != len(series.rows) or not all(each.possible for each in labels):
            raise ValueError("its labels do not fit to its rows")
        if (k := int(about["k"])) < 1:
            raise ValueError(f"k is {k}")
        return Recorded(str(about["lab"]), str(about["what"]), k, labels, series)
